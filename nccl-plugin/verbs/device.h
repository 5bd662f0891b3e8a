/* SPDX-License-Identifier: Apache-2.0
 *
 * device.h - the RDMA devices of this host and their ports. They are opened once per process and
 * never closed, since NCCL keeps pointers to their properties.
 */
#ifndef DPN_VERBS_DEVICE_H
#define DPN_VERBS_DEVICE_H

#include "nccl-plugin/verbs/gid.h"
#include "nccl-plugin/net/transport.h"
#include "nccl-plugin/verbs/options.h"

#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>

/* ---- memory ---------------------------------------------------------------------------------- */

/* Addresses [from, to): pages, or bytes of a dma-buf. */
struct dpn_mr_entry {
    uintptr_t from, to;
    bool is_dma_buf;
    int refs;
    struct ibv_mr *mr;
};

/* Sorted by from, to, is_dma_buf. Zeroed memory is an empty cache. */
struct dpn_mr_cache {
    int count, room;
    struct dpn_mr_entry *entries;
};

struct dpn_hca;

/* May take long: pages are pinned. The device's lock is held for its list only. DP_ENOMEM (mostly
 * the limit on locked memory), DP_EUNSUPPORTED, DP_EIO. */
int dpn_mr_get(struct dpn_hca *hca, const struct dpn_region *region, struct ibv_mr **out);
/* NULL is fine. */
void dpn_mr_put(struct dpn_hca *hca, struct ibv_mr *mr);

/* As many ports as NCCL's own transport uses. */
enum { DPN_MAX_PORTS = 32, DPN_HCA_NAME = 64, DPN_PORT_NAME = 80, DPN_HCA_PORTS = 8 };

/* A device: what its ports share. */
struct dpn_hca {
    char name[DPN_HCA_NAME];
    struct ibv_context *context;
    struct ibv_pd *pd;
    char *pci_path; /* NULL: not on the PCI bus, such as Soft-RoCE */
    int function;   /* PCI function; the second port of a card is often a function of its own */
    uint64_t bus;   /* its own PCI address as a number; UINT64_MAX: none */
    uint64_t guid;  /* the same for all functions of a card */
    int pointers;   /* NCCL_PTR_*, the memory that it accesses */
    bool relaxed_ordering;
    bool is_soft;   /* Soft-RoCE */
    atomic_bool has_data_direct; /* for dma-bufs; see verbs/load.h */
    pthread_mutex_t lock; /* protects the members below; held for moments only */
    struct dpn_mr_cache cache;
    int64_t events_read_ns;
    atomic_bool is_dead;
    /* How often a port went down or came up, by port number; an odd number means down. */
    atomic_uint port_changes[DPN_HCA_PORTS + 1];
};

struct dpn_port {
    struct dpn_hca *hca;
    int number;
    char name[DPN_PORT_NAME]; /* "mlx5_0", or "mlx5_0:2" if the device has several ports */
    bool is_ethernet;
    uint8_t mtu; /* enum ibv_mtu */
    uint16_t lid;
    uint8_t needs_grh; /* InfiniBand: packets need a global route header, by IBV_QPF_GRH_REQUIRED */
    uint32_t max_message; /* of one work request, in bytes */
    int speed_mbps;
    struct dpn_rail_place place;
};

struct dpn_ports {
    int count, hca_count;
    struct dpn_port list[DPN_MAX_PORTS];
    struct dpn_hca hcas[DPN_MAX_PORTS];
};

/* Find active ports that the options admit, in the order of NCCL's own transport: that of the PCI
 * bus, and then that of libibverbs. Never fails: `why` explains why there are not more. */
void dpn_ports_find(const struct dpn_verbs_options *options, struct dpn_ports *out, char *why,
                    size_t why_len);

/* The GIDs of a port as they are now. DP_EIO, and none, if its table cannot be read; not of InfiniBand,
 * where the LID is enough. */
int dpn_port_gids(const struct dpn_port *port, const struct dpn_verbs_options *options,
                  struct dpn_gids *out);

/* Its LID, MTU and whether it needs a global route header, as they are now: a subnet manager or an
 * administrator may change them. */
void dpn_port_query(const struct dpn_port *port, uint16_t *lid, uint8_t *mtu, uint8_t *needs_grh);

/* Read asynchronous events of the device, at most once per millisecond. Any thread; never blocks.
 */
void dpn_hca_read_events(struct dpn_hca *hca, int64_t now_ns);
static inline bool dpn_port_is_down(const struct dpn_port *port)
{
    return atomic_load_explicit(&port->hca->is_dead, memory_order_relaxed) ||
           atomic_load_explicit(&port->hca->port_changes[port->number], memory_order_relaxed) % 2;
}

/* ---- of this process, read once by dpn_verbs_find --------------------------------------------- */

struct dpn_verbs_state {
    struct dpn_verbs_options options;
    struct dpn_ports ports;
    /* 0: first value of the counters of a new connection. Tests set it to make them wrap soon */
    uint32_t first_count;
};
extern struct dpn_verbs_state dpn_verbs_state;

#endif
