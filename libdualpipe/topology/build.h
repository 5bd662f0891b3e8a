/* SPDX-License-Identifier: Apache-2.0
 *
 * build.h - put a topology together: add nodes (a parent before its children), links, ports, notes in
 * any order, then finish, which brings them into the order that topology.h promises, and checks.
 *
 *      struct dp_topo_builder b = {0};
 *      int32_t host = dp_topo_add_node(&b, DP_TOPO_HOST, -1);
 *      dp_topo_node(&b, host)->name = dp_topo_add_text(&b, "node0");
 *      ...
 *      return dp_topo_finish(&b, out);
 *
 * A failure is remembered; what is added after it goes nowhere, and finish says DP_ENOMEM, or DP_EINVAL
 * of a host that is too wide.
 */
#ifndef DP_TOPOLOGY_BUILD_H
#define DP_TOPOLOGY_BUILD_H

#include "base/text.h"
#include <dualpipe/topology.h>

/* NUMA nodes of a host: as many as Linux has at most; each is joined to each. */
enum { DP_TOPO_NODES_MAX = 1 << 24, DP_TOPO_NUMAS_MAX = 1024 };

struct dp_topo_builder {
    struct dp_topology t; /* counts and arrays, in the order of adding */
    size_t node_room, link_room, port_room, gid_room, note_room, text_room;
    uint32_t *texts; /* hash table of offsets, 0: free */
    size_t text_slots, text_count;
    bool failed, is_too_wide;    /* for lack of memory, for a host of too many NUMA nodes */
    int32_t numa_host, numa_count; /* of the NUMA node that was added last */
    struct dp_topo_node no_node; /* what is written to after a failure */
    struct dp_topo_link no_link;
    struct dp_topo_port no_port;
};

/* The offset of s, of which there is one copy; 0 for NULL and "". */
uint32_t dp_topo_add_text(struct dp_topo_builder *b, const char *s);
uint32_t dp_topo_add_textf(struct dp_topo_builder *b, const char *fmt, ...) DP_PRINTF(2, 3);

/* The new node's number, 0 after a failure. Its numbers that may be unknown are -1. */
int32_t dp_topo_add_node(struct dp_topo_builder *b, enum dp_topo_kind kind, int32_t parent);
/* Valid until the next node is added. */
struct dp_topo_node *dp_topo_node(struct dp_topo_builder *b, int32_t node);

/* A link of one, with the kind's usual latency. Valid until the next link is added. */
struct dp_topo_link *dp_topo_add_link(struct dp_topo_builder *b, enum dp_topo_link_kind kind,
                                      int32_t from, int32_t to, double bytes_per_ns);
/* A PCI link that runs at a generation and width, of which it could do more or does not say (0). */
struct dp_topo_link *dp_topo_add_pci_link(struct dp_topo_builder *b, int32_t from, int32_t to,
                                          int gen, int width, int gen_max, int width_max);

/* Every two NUMA nodes with CPUs of a host, at the rate that is usual for its CPU's vendor, as no
 * interface reports it. Memory without CPUs is joined to all CPUs; it stands behind them. How fast
 * is not known there, nor where the vendor is not. */
void dp_topo_join_numas(struct dp_topo_builder *b, int32_t host);

/* A port of a NIC, of no rail; valid until the next port is added. */
struct dp_topo_port *dp_topo_add_port(struct dp_topo_builder *b, int32_t nic, int32_t number);
/* A GID of the port that was added last. */
void dp_topo_add_gid(struct dp_topo_builder *b, int index, enum dp_topo_gid_type type,
                     const uint8_t raw[16]);
/* Join a port (its number in the builder) to a rail by a link of the port's rate. */
void dp_topo_join_rail(struct dp_topo_builder *b, int32_t port, int32_t rail);

void dp_topo_add_note(struct dp_topo_builder *b, enum dp_topo_note_kind kind, int32_t node,
                      const char *fmt, ...) DP_PRINTF(4, 5);

/* The address "0000:1b:00.0" into pci, whose other members stay; false: it is none. */
bool dp_topo_parse_pci(const char *text, struct dp_topo_pci *pci);
/* Writes it as above, and returns text. */
enum { DP_TOPO_PCI_LEN = 32 };
const char *dp_topo_pci_text(const struct dp_topo_pci *pci, char text[DP_TOPO_PCI_LEN]);
static inline bool dp_topo_same_pci(const struct dp_topo_pci *a, const struct dp_topo_pci *b)
{
    return a->domain == b->domain && a->bus == b->bus && a->device == b->device &&
           a->function == b->function;
}
/* "0c42:a103:0012:3456", as the kernel writes GUIDs, as a number. */
uint64_t dp_topo_parse_guid(const char *text);
/* "fe80:0000:0000:0000:ba59:9f03:00d0:8f4a", all eight groups with four digits. */
bool dp_topo_parse_gid(const char *text, uint8_t raw[16]);

/* Hand over what was added, in order and checked; b is empty again, also after an error. */
int dp_topo_finish(struct dp_topo_builder *b, struct dp_topology **out);
void dp_topo_builder_fini(struct dp_topo_builder *b);

/* What topology.h promises of a topology that is in order: parents; links that join what they may join,
 * once, and with rates that are numbers; ports and rails; every node of a host reachable from its first
 * NUMA node; names that are unique. DP_EINVAL with one sentence that names the node or link.
 * dp_topo_finish asks it of all that is read or built. */
int dp_topo_check(const struct dp_topology *t);

/* Give the ports of all hosts rails, and the rails spines, as dp_topology_merge says (merge.c). */
void dp_topo_join_hosts(struct dp_topo_builder *b);

/* ---- assumed rates (assumed_rates.c) --------------------------------------------------------- */

/* Bytes per ns of a PCI lane after line coding; 0 for a generation that is not known. */
double dp_pci_lane_rate(int gen);
enum { DP_PCI_GEN_MAX = 7 };
/* The generation whose lanes run at so many GT/s (2.5, 5, 8, 16, 32, 64, 128); 0: none. */
int dp_pci_gen(double gigatransfers);
double dp_topo_assumed_latency(enum dp_topo_link_kind kind);
/* Between two NUMA nodes: of one package or of two, by the CPU's vendor ("GenuineIntel", ...). */
double dp_topo_assumed_cpu_rate(const char *vendor, bool same_package);
/* The rate that a port counts with where routes are compared: its own, or the 10 Gb/s that NCCL
 * takes where it is not known. */
double dp_topo_port_rate(const struct dp_topo_port *p);
/* Of one NVLink of a GPU with this compute capability; 0: not known. */
double dp_topo_assumed_nvlink_rate(int sm);
/* Of one xGMI link of a GPU of this architecture, "gfx942"; 0: not known. */
double dp_topo_assumed_xgmi_rate(const char *gcn);

/* ---- names ----------------------------------------------------------------------------------- */

/* The words of a topology's forms. */

/* In the order of their enums, NULL-terminated. */
extern const char *const dp_topo_kind_names[DP_TOPO_KINDS + 1];
extern const char *const dp_topo_link_kind_names[DP_TOPO_LINK_KINDS + 1];
extern const char *const dp_topo_fabric_names[];    /* "ethernet", "infiniband" */
extern const char *const dp_topo_gid_type_names[];  /* "ib", "rocev1", "rocev2" */
extern const char *const dp_topo_note_kind_names[]; /* "missing", "assumed" */

/* The place of name[len] in names (NULL-terminated), -1: it is none. */
int dp_topo_name_index(const char *name, size_t len, const char *const *names);

/* The first of the hosts that share NVSwitches with this one (a HOST), itself if there is none before
 * it: for NCCL they are one node. */
int32_t dp_topo_domain(const struct dp_topology *t, int32_t host);

/* Wi-Fi, by its class or its interface's name: of use only where there is nothing else. */
bool dp_topo_is_wireless(const struct dp_topology *t, const struct dp_topo_port *p);

/* ---- format ---------------------------------------------------------------------------------- */

/* The formats of a topology, one writer and one reader a file. */

enum { DP_TOPO_JSON_VERSION = 1 };

void dp_topo_write_json(const struct dp_topology *t, struct dp_text *out);
int dp_topo_read_json(const char *text, size_t len, struct dp_topology **out);

/* NCCL's files: of one host. DP_EINVAL. */
int dp_topo_write_nccl(const struct dp_topology *t, struct dp_text *out);
/* DP_EUNSUPPORTED in a build without expat. */
int dp_topo_read_nccl(const char *text, size_t len, struct dp_topology **out);

/* What `nvidia-smi topo -m` prints. */
int dp_topo_read_smi(const char *text, size_t len, struct dp_topology **out);

/* hwloc's files: of one host. xml NULL: this machine. DP_EUNSUPPORTED in a build without hwloc. */
int dp_topo_read_hwloc(const char *xml, size_t len, struct dp_topology **out);

/* ---- path ------------------------------------------------------------------------------------ */

/* Routes by the thousand: the ways out of a node's host, which are most of what a route between
 * hosts costs, are found once for each node and kept. */

struct dp_topo_exits;

/* NULL: no memory. t outlives it. */
struct dp_topo_exits *dp_topo_exits_new(const struct dp_topology *t);
void dp_topo_exits_free(struct dp_topo_exits *kept);
/* dp_topology_path, with the same answers; not for two threads at once. kept may be NULL. */
int dp_topo_path_by(const struct dp_topology *t, struct dp_topo_exits *kept, int32_t a, int32_t b,
                    struct dp_topo_path *path);

#endif
