/* SPDX-License-Identifier: Apache-2.0
 *
 * options.h - the NCCL_IB_* variables of NCCL's own transport, with their meaning and, unless
 * stated otherwise, their defaults.
 */
#ifndef DPN_VERBS_OPTIONS_H
#define DPN_VERBS_OPTIONS_H

#include <dualpipe/dualpipe.h>
#include <netinet/in.h>

enum { DPN_AUTO = -1 };

/* An address range such as 10.1.0.0/16; IPv4 ranges are IPv4-mapped IPv6 ranges. */
struct dpn_range {
    struct in6_addr address;
    int prefix; /* prefix length of 128 bits; 0: everything */
};

struct dpn_verbs_options {
    bool disabled;            /* NCCL_IB_DISABLE */
    const char *hca;          /* NCCL_IB_HCA, see dpn_verbs_filter */
    int gid_index;            /* NCCL_IB_GID_INDEX; DPN_AUTO: choose */
    int flid_index;   /* NCCL_IB_ROUTABLE_FLID_GID_INDEX: on InfiniBand, if that GID has a FLID */
    int roce_version; /* NCCL_IB_ROCE_VERSION_NUM: 1, 2; DPN_AUTO: 2 if available */
    int family;               /* NCCL_IB_ADDR_FAMILY: AF_INET, AF_INET6; AF_UNSPEC */
    struct dpn_range range;   /* NCCL_IB_ADDR_RANGE */
    int timeout;              /* NCCL_IB_TIMEOUT: 4.096 us << timeout until a packet is repeated */
    int retries;              /* NCCL_IB_RETRY_CNT */
    int pkey_index;           /* NCCL_IB_PKEY */
    int service_level;        /* NCCL_IB_SL; DPN_AUTO: by traffic class */
    int traffic_class; /* NCCL_IB_TC; DPN_AUTO: by traffic class of the communicator, otherwise 0 */
    int cts_class;     /* NCCL_IB_FIFO_TC: of what a receiver sends; DPN_AUTO: the same */
    bool inlines_cts;  /* NCCL_IB_USE_INLINE; the default is yes here */
    int qps;                  /* NCCL_IB_QPS_PER_CONNECTION, per rail */
    bool split;               /* NCCL_IB_SPLIT_DATA_ON_QPS */
    int relaxed_ordering; /* NCCL_IB_PCI_RELAXED_ORDERING: 0, 1; 2: if the library supports it */
    int adaptive_routing;     /* NCCL_IB_ADAPTIVE_ROUTING: 0, 1; DPN_AUTO: on InfiniBand */
    int64_t adaptive_bytes;   /* NCCL_IB_AR_THRESHOLD */
    bool out_of_order;        /* NCCL_IB_OOO_RQ */
    int data_direct;          /* NCCL_IB_DATA_DIRECT: 0 no; 1, 2; DPN_AUTO: where available */
    bool ece;                 /* NCCL_IB_ECE_ENABLE */
    bool merge_functions;     /* NCCL_IB_MERGE_VFS: functions of one card have one guid */
    bool merge_nics;          /* NCCL_IB_MERGE_NICS */
    bool sorts_by_pci;        /* NCCL_IB_DEVICE_PCI_ORDER */
    bool asks_kernel_speed;   /* NCCL_IB_QUERY_PORT_SPEED; otherwise from the port's attributes */
    bool warns_of_rails;      /* NCCL_IB_WARN_RAIL_LOCAL */
    int subnet_bits; /* NCCL_IB_SUBNET_PREFIX_LEN with NCCL_IB_SUBNET_AWARE_ROUTING; otherwise 0 */
    bool handles_events;        /* NCCL_IB_RETURN_ASYNC_EVENTS */
    bool flushes;             /* not NCCL_GDR_FLUSH_DISABLE */
};

/* An invalid value is logged as a warning and the default used, since the variables are NCCL's. */
void dpn_verbs_options_read(struct dpn_verbs_options *out);

/* "10.0.0.0/8", "fd00::/64". DP_EINVAL. */
int dpn_range_parse(const char *text, struct dpn_range *out);

/* ---- which ports are used -------------------------------------------------------------------- */

struct dpn_rail_place {
    int rail, plane; /* -1: not specified */
};

/* Whether list (NULL: everything) admits a port. place: the rail and plane that the list specifies.
 */
bool dpn_verbs_filter(const char *list, const char *device, int port, struct dpn_rail_place *place);

#endif
