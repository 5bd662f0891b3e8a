/* SPDX-License-Identifier: Apache-2.0
 *
 * topology.h - machines as data: what is near what, and how wide the routes are.
 *
 * A topology is a list of nodes (hosts, NUMA nodes, PCI roots and switches, GPUs, NICs, the fabric's
 * rails), each with its parent, and a list of links between nodes. Nothing in it points at anything
 * live: it is read from this machine, from a file or from a description of a few words, and then
 * checked, searched, printed and drawn anywhere.
 *
 *      host node0                          host node1
 *        numa0 ======== numa1                ...
 *          root0          root1                      tree: parent and child; a link joins the two
 *            switch0        switch1                  ==== between NUMA nodes (CPU)
 *              gpu0 nic0      gpu1 nic1              gpu -- nvswitch (NVLINK), gpu -- numa (C2C)
 *              |     \        |     \
 *        nvswitch0---\--------'      \               nic -- rail (NET), one for each cabled port
 *                   rail0           rail1
 *                       \___ spine0 ___/             rail -- spine (NET)
 *
 * Order. Nodes stand in preorder: a parent right before its children, so that the nodes below n are
 * n + 1 to nodes[n].end - 1. Hosts come first, one after the other; then what belongs to no host: an
 * NVSwitch shared by hosts, rails, spines. Links are sorted by (a, b) with a < b; in the tree a is the
 * parent. So the links of a host are neighbours, too.
 *
 * Units. Rates are in bytes per ns, which is GB/s, one direction; a link carries its rate in both
 * directions at once. They are those of the wire after line coding (PCIe 5.0 x16: 63.0, NVLink 4:
 * 25 a link, 400 Gb/s: 50), before packet headers: about 0.8 to 0.95 of them reach a program. 0: known
 * not to limit, or not known at all (DP_TOPO_RATE_UNKNOWN is set). Latencies are one way, in ns, and
 * always assumed: no interface reports them. Sizes are in bytes.
 *
 * Sources: PCI Express Base Specification (rates); nvidia-smi topo -m (classes); hwloc 2.x, NCCL's
 * topology files, Linux' Documentation/ABI for what is read where.
 */
#ifndef DUALPIPE_TOPOLOGY_H
#define DUALPIPE_TOPOLOGY_H

#include <dualpipe/dualpipe.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the model ------------------------------------------------------------------------------ */

enum dp_topo_kind {
    DP_TOPO_HOST,     /* parent none */
    DP_TOPO_NUMA,     /* memory and the CPUs next to it; parent HOST. Every host has one at least */
    DP_TOPO_ROOT,     /* PCI host bridge (root complex); parent NUMA */
    DP_TOPO_SWITCH,   /* PCI switch, all of its ports in one; parent ROOT or SWITCH */
    DP_TOPO_GPU,      /* parent SWITCH, ROOT, or NUMA if it hangs on no PCI bus that we see */
    DP_TOPO_NIC,      /* a network function with one or more ports; parent as a GPU's */
    DP_TOPO_NVSWITCH, /* all NVSwitches of an NVLink domain in one; parent HOST, or none if shared */
    DP_TOPO_RAIL,     /* ports that reach one another directly (a leaf switch, a subnet); parent none */
    DP_TOPO_SPINE,    /* what joins rails; parent none */
    DP_TOPO_KINDS
};

/* A PCI address and identity. */
struct dp_topo_pci {
    bool known; /* else all of it is 0: the device is not on a PCI bus */
    uint8_t bus, device, function;
    uint32_t domain;
    uint32_t class_code;         /* 24 bits: 0x030200 a GPU, 0x020000 Ethernet, 0x060400 a bridge */
    uint16_t vendor_id, device_id, subsystem_vendor_id, subsystem_device_id;
};

/* Texts are offsets in the topology's own text: dp_topology_text(t, node->name). 0 is "". */
struct dp_topo_node {
    enum dp_topo_kind kind;
    int32_t parent; /* node, -1: none */
    int32_t end;    /* after the last node below this one */
    int32_t host;   /* the HOST above it, itself for a HOST; -1 for what belongs to no host */
    int32_t index;  /* its number among its kind on its host, in order: "gpu3" is the GPU with 3 */
    int32_t os_index; /* NUMA: the kernel's number; GPU: NVML's; -1: not known */
    uint32_t name;  /* RAIL, SPINE: unique, never ""; HOST: unique, "" if not known, as in files of NCCL,
                     * and then its label is "node" or, of several, "node0", "node1", ...;
                     * NIC: of its first port, "mlx5_0", "eth0";
                     * NVSWITCH: of the domain that hosts may share, "" for none */
    uint32_t model; /* HOST: the CPU's; GPU, NIC, SWITCH: the product's; "" if not known */
    uint32_t cpus;  /* NUMA: its CPUs as the kernel writes them, "0-55,112-167"; "" for memory only */
    uint32_t uuid;  /* GPU: "GPU-..." as NVML has it; HOST: by which NCCL tells hosts apart; "" */
    uint32_t arch, vendor; /* HOST: "x86_64", "GenuineIntel"; "" if not known */
    int32_t family, cpu_model; /* HOST: the CPU's family and model numbers; -1 */
    int32_t package;       /* NUMA: the socket it is in; -1 */
    int32_t memory_node;   /* GPU: the kernel's number of the NUMA node that its memory is, as on Grace
                            * Hopper; such a node is not among the host's; -1: none, or not known */
    int32_t sm;            /* GPU: compute capability, 90 for 9.0; 0: not known */
    uint64_t memory_bytes; /* NUMA, GPU; 0: not known */
    uint64_t cache_bytes;  /* NUMA: its last-level caches together; 0: not known */
    struct dp_topo_pci pci; /* ROOT: domain and bus only; SWITCH: of its upstream port */
};

enum dp_topo_link_kind {
    DP_TOPO_MESH,   /* a NUMA node and its PCI roots: inside the CPU; not a limit */
    DP_TOPO_PCI,    /* along the PCI tree */
    DP_TOPO_CPU,    /* between NUMA nodes of a host */
    DP_TOPO_NVLINK, /* GPU and GPU, or GPU and NVSWITCH */
    DP_TOPO_XGMI,   /* GPU and GPU, of AMD: Infinity Fabric */
    DP_TOPO_C2C,    /* GPU and NUMA: NVLink-C2C and the like */
    DP_TOPO_NET,    /* NIC and RAIL, RAIL and SPINE */
    DP_TOPO_LINK_KINDS
};

enum {
    DP_TOPO_RATE_ASSUMED = 1, /* the rate comes from a table of usual ones, not from the machine */
    DP_TOPO_RATE_UNKNOWN = 2, /* not known; bytes_per_ns is 0 */
    DP_TOPO_DEGRADED = 4      /* PCI: slower or narrower than both of its ends could be */
};

struct dp_topo_link {
    enum dp_topo_link_kind kind;
    int32_t a, b;         /* nodes, a < b; in the tree a is the parent */
    uint32_t flags;       /* DP_TOPO_RATE_ASSUMED, ... */
    int32_t count;        /* NVLINK, XGMI, C2C: links bundled into this one; else 1 */
    int32_t port;         /* NIC -- RAIL: in ports; else -1 */
    int32_t gen, width;   /* PCI: as it runs, 5 and 16; NVLINK: gen is its version; 0: not known */
    int32_t gen_max, width_max; /* PCI: what both ends could do; 0: not known */
    double bytes_per_ns;  /* of the bundle, each direction */
    double latency_ns;
};

enum dp_topo_fabric { DP_TOPO_ETHERNET, DP_TOPO_INFINIBAND, DP_TOPO_FABRIC_UNKNOWN };

struct dp_topo_port {
    int32_t nic;          /* node */
    int32_t number;       /* 1, 2, ... as the driver counts; 0: not known */
    int32_t rail;         /* node; -1: not known, or not cabled */
    enum dp_topo_fabric fabric;
    bool up;
    uint32_t rdma, net;   /* text: "mlx5_0", "ens1f0"; "" for none */
    int32_t mtu_bytes;    /* RDMA's active MTU, else the interface's; 0: not known */
    uint64_t guid;        /* of the adapter (system image), as a number; 0: not known */
    double bytes_per_ns;  /* 0: not known */
    int32_t first_gid, gid_count; /* in gids */
    /* Text: what it reaches without a router, "10.1.0.0/16", "2001:db8::/64" with all its groups; of
     * InfiniBand the whole fabric, by its prefix and subnet manager, "fe80:0000:0000:0000 sm 1"; "" if
     * not known. Only equality means something. */
    uint32_t subnet;
};

enum dp_topo_gid_type { DP_TOPO_GID_IB, DP_TOPO_GID_ROCE_V1, DP_TOPO_GID_ROCE_V2 };

struct dp_topo_gid {
    int32_t index; /* in the port's table, where there may be holes */
    enum dp_topo_gid_type type;
    uint8_t raw[16];
};

/* What a reader could not see, or took for granted: one sentence each. */
enum dp_topo_note_kind { DP_TOPO_MISSING, DP_TOPO_ASSUMED };
struct dp_topo_note {
    enum dp_topo_note_kind kind;
    int32_t node; /* about which; -1: all */
    uint32_t text;
};

/* Read it freely; only builders and readers write. */
struct dp_topology {
    int32_t node_count, link_count, port_count, gid_count, note_count;
    int32_t host_count;
    struct dp_topo_node *nodes;
    struct dp_topo_link *links;
    struct dp_topo_port *ports; /* by nic, then number */
    struct dp_topo_gid *gids;
    struct dp_topo_note *notes;
    int32_t *first_around; /* [node_count + 1]: node n's links are around[first_around[n]] ... */
    int32_t *around;       /* [2 * link_count] */
    size_t text_len;
    char *text;            /* strings end with NUL; begins with an empty one */
};

/* NVLink or what is like it: between GPUs, and to the switches of such links. */
static inline bool dp_topo_is_gpu_link(enum dp_topo_link_kind kind)
{
    return kind == DP_TOPO_NVLINK || kind == DP_TOPO_XGMI;
}

static inline const char *dp_topology_text(const struct dp_topology *t, uint32_t text)
{
    return t->text + text;
}
/* The node at the other end of link number `link`. */
static inline int32_t dp_topology_across(const struct dp_topology *t, int32_t link, int32_t node)
{
    return t->links[link].a == node ? t->links[link].b : t->links[link].a;
}

/* The node of this kind that a node stands in, itself for one; -1: in none. */
static inline int32_t dp_topology_above(const struct dp_topology *t, int32_t node,
                                        enum dp_topo_kind kind)
{
    while (node >= 0 && t->nodes[node].kind != kind)
        node = t->nodes[node].parent;
    return node;
}
/* Its link on PCI to what it stands in; NULL: none. */
static inline const struct dp_topo_link *dp_topology_uplink(const struct dp_topology *t, int32_t node)
{
    for (int32_t k = t->first_around[node]; k < t->first_around[node + 1]; k++)
        if (t->links[t->around[k]].kind == DP_TOPO_PCI && t->links[t->around[k]].b == node)
            return &t->links[t->around[k]];
    return NULL;
}

DP_PUBLIC void dp_topology_free(struct dp_topology *t);

/* The first node at or after `from` that is of this kind, below `within` (-1: anywhere); -1: none.
 *      for (int32_t g = -1; (g = dp_topology_next(t, DP_TOPO_GPU, host, g + 1)) >= 0;) */
static inline int32_t dp_topology_next(const struct dp_topology *t, enum dp_topo_kind kind,
                                       int32_t within, int32_t from)
{
    int32_t end = within < 0 ? t->node_count : t->nodes[within].end;

    for (int32_t i = from > within ? from : within + 1; i < end; i++)
        if (t->nodes[i].kind == kind)
            return i;
    return -1;
}

/* How many there are of this kind below `within` (-1: anywhere). */
static inline int32_t dp_topology_count(const struct dp_topology *t, enum dp_topo_kind kind,
                                        int32_t within)
{
    int32_t count = 0;

    for (int32_t i = within; (i = dp_topology_next(t, kind, within, i + 1)) >= 0;)
        count++;
    return count;
}

/* How many ports the NIC has: ports[*first] and on. */
static inline int32_t dp_topology_ports(const struct dp_topology *t, int32_t nic, int32_t *first)
{
    int32_t end, at = 0;

    while (at < t->port_count && t->ports[at].nic < nic)
        at++;
    for (end = at; end < t->port_count && t->ports[end].nic == nic;)
        end++;
    *first = at;
    return end - at;
}

/* The node's name in this topology, written to text and returned: "node0", "node0/gpu3", "rail2"; the
 * host is left out where there is only one. Cut where it is too long. */
enum { DP_TOPO_LABEL_LEN = 96 };
DP_PUBLIC const char *dp_topology_label(const struct dp_topology *t, int32_t node,
                                        char text[DP_TOPO_LABEL_LEN]);

/* The node that a person means: a label, a host's name, "gpu3" on the first host, a device's name
 * ("mlx5_0", "eth0"), a PCI address ("0000:1b:00.0", "1b:00.0"), a UUID, each with "HOST/" before it
 * for another host than the first that has one. DP_EINVAL with the nearest name. */
DP_PUBLIC int dp_topology_find(const struct dp_topology *t, const char *name, int32_t *node);

/* ---- the route between two nodes -------------------------------------------------------------- */

/* From best to worst. PIX to SYS say the same as in `nvidia-smi topo -m`. */
enum dp_topo_class {
    DP_TOPO_SELF, /* the same node */
    DP_TOPO_NV,   /* NVLink, direct or through NVSwitches */
    DP_TOPO_XG,   /* xGMI, direct; "XGMI" */
    DP_TOPO_CHIP, /* GPU and NUMA over C2C */
    DP_TOPO_PIX,  /* at most one PCI switch */
    DP_TOPO_PXB,  /* several PCI switches, but no PCI root */
    DP_TOPO_PHB,  /* through a PCI root (in the CPU) */
    DP_TOPO_NODE, /* through two PCI roots of one NUMA node */
    DP_TOPO_SYS,  /* from NUMA node to NUMA node */
    DP_TOPO_RAILED, /* another host, over one rail; "NET" */
    DP_TOPO_SPINED, /* another host, over a spine; "NET*" */
    DP_TOPO_NONE, /* no route */
    DP_TOPO_CLASSES
};

enum { DP_TOPO_HOPS_MAX = 32 };
struct dp_topo_path {
    enum dp_topo_class class_;
    int32_t nvlinks;     /* NV, XG: links bundled, of the narrowest hop ("NV18") */
    int32_t bottleneck;  /* the slowest link, the first of several; -1: nothing limits */
    double bytes_per_ns; /* its rate; 0: nothing known limits */
    double latency_ns;   /* of all hops */
    int32_t hops;
    int32_t nodes[DP_TOPO_HOPS_MAX + 1]; /* from a to b */
    int32_t links[DP_TOPO_HOPS_MAX];
};

/* The route that data takes from a to b when no GPU in between forwards it: over NVLink where the two
 * share some; else on one host the widest route through its PCI tree and CPUs, and of equally wide ones
 * that with the least latency; to another host by the pair of NICs on one rail (else across the spine)
 * that is widest, and nearest. Costs microseconds; allocates only for hosts of over 256 nodes. a and b
 * are nodes: hosts stand for their first NUMA node; rails, spines and shared NVSwitches are only reached
 * from their neighbours. The same nodes always get the same route, and the way back is as wide.
 * DP_EINVAL for what is no node, DP_ENOMEM; where there is no route, 0 and class DP_TOPO_NONE with 0
 * hops. Any thread. */
DP_PUBLIC int dp_topology_path(const struct dp_topology *t, int32_t a, int32_t b,
                               struct dp_topo_path *path);

/* The NICs of the GPU's host that are up, or whose state is not known, best first as in NCCL: widest,
 * the port's rate included, then nearest class; a rate that is not known counts as 10 Gb/s, and Wi-Fi
 * comes last. Equal ones of one kind (fabric, RDMA or not) turn round with the GPU's index, so that
 * GPUs that share several NICs begin with different ones. At most `max`. */
DP_PUBLIC int dp_topology_nics(const struct dp_topology *t, int32_t gpu, int32_t *nics, int32_t max,
                               int32_t *count);

/* As many nodes as NCCL counts: hosts, those that share NVSwitches as one. */
DP_PUBLIC int32_t dp_topology_domain_count(const struct dp_topology *t);

/* What joins the GPUs of a node in this sense, and what a node has to the others, all its ports
 * together; 0: not known, or not there. The first stands for all. DP_ENOMEM. Any thread. */
DP_PUBLIC int dp_topology_rates(const struct dp_topology *t, double *inner, double *outer);

/* Bind the calling thread, and those that it starts, to the CPUs of that NUMA node that it may use
 * already, and let memory come from there as long as there is some. t is of this machine
 * (read_sysfs, read_hwloc). cpu_count, if not NULL: how many CPUs it has now. DP_EINVAL for a node
 * that hangs from no NUMA node; DP_EUNSUPPORTED where the thread may use none of its CPUs; the
 * kernel's errno, -EPERM in some containers. After an error the thread is where it was, or on these
 * CPUs with memory as before. */
DP_PUBLIC int dp_topology_bind(const struct dp_topology *t, int32_t node, int *cpu_count);

/* ---- building, reading, writing ------------------------------------------------------------- */

/* Build what a short description says: words, separated by blanks. KIND:COUNT words nest: each stands
 * inside what came before it. KEY=VALUE words hold for the whole.
 *
 *      "host:4 numa:2 root:2 switch:1 gpu:2 nic:1 nvlink=switch:18x25 pcie=5x16 net=400Gb/s"
 *
 *      host:N                        hosts (1)
 *      numa:N root:N switch:N        so many in each of what is named before (numa: 1); a second
 *                                    "switch:" stands in the first. Where no root is named, each switch,
 *                                    GPU and NIC gets one of its own
 *      gpu:N nic:N                   so many in each of the innermost named before; "numa:2 nic:1
 *                                    root:2 gpu:1" has a NIC a NUMA node and two GPUs
 *      pcie=GENxWIDTH|unknown        of GPUs, NICs and switches' uplinks (4x16)
 *      uplink=, nicpcie=             the same, of switches' uplinks or of NICs only
 *      nvlink=switch:COUNTxRATE      every GPU to the host's NVSwitch: COUNT links of RATE GB/s
 *      nvlink=mesh:, pair:, domain:  every two GPUs of a host; GPUs 0 and 1, 2 and 3, ...; every GPU to
 *                                    one NVSwitch for several hosts; nvlink=none
 *      domain=N                      so many hosts share that NVSwitch (all)
 *      c2c=RATE                      every GPU to its NUMA node
 *      cpu=RATE                      between NUMA nodes of a host (by the CPU's vendor, marked assumed)
 *      net=RATE                      of every port: 400Gb/s, or in GB/s (200Gb/s)
 *      ports=N                       of every NIC (1)
 *      fabric=ethernet|infiniband    (ethernet)
 *      rails=port|one|none           the k-th ports of all hosts on rail k (where there are several
 *                                    hosts); all on one; no rails
 *      spine=RATE|none               from each rail to the spine (as much as its ports together)
 *      cpus=N memory=SIZE            of a NUMA node: CPUs; bytes, or with K, M, G, T for powers of 1024
 *      gpumem=SIZE sm=N gpumodel=NAME   of every GPU
 *      nicmodel=NAME nicname=PREFIX  the NICs' product, and what their ports are called (mlx5_)
 *      cpumodel=NAME arch=NAME vendor=NAME name=PREFIX    of the hosts; '_' stands for a blank
 *
 * The first word may be the name of a usual machine, which stands for such a description; later words
 * replace its own: "dgx-h100 host:4". dp_topology_presets lists them. DP_EINVAL names the word. */
DP_PUBLIC int dp_topology_new_synthetic(const char *description, struct dp_topology **out);

struct dp_topology_preset {
    const char *name, *about, *description;
};
/* The usual machines; ends with a row of NULLs. */
DP_PUBLIC const struct dp_topology_preset *dp_topology_presets(void);

enum dp_topology_format {
    DP_TOPOLOGY_AUTO,  /* for reading: tell by the first characters */
    DP_TOPOLOGY_JSON,  /* all of it; topology/README.md documents the members */
    DP_TOPOLOGY_SYNTHETIC, /* for reading: a description as above */
    DP_TOPOLOGY_NCCL_XML, /* one host, as in NCCL_TOPO_FILE; reading DP_EUNSUPPORTED without expat */
    DP_TOPOLOGY_NVIDIA_SMI, /* for reading: one host, as `nvidia-smi topo -m` prints it */
    DP_TOPOLOGY_HWLOC_XML /* for reading: one host, as of hwloc 2 (lstopo FILE.xml), which has no
                             place for NVLink and ports' rates; DP_EUNSUPPORTED without hwloc */
};

/* Write all of t. *text is malloc'ed, the caller frees it; *len (may be NULL) is without the NUL that
 * ends it. DP_EINVAL, DP_ENOMEM. */
DP_PUBLIC int dp_topology_write(const struct dp_topology *t, enum dp_topology_format format,
                                char **text, size_t *len);
/* Read what any tool wrote, text[len]. DP_EINVAL with the place and what was expected there; DP_ENOMEM;
 * the caller frees *out. What dp_topology_write wrote as JSON comes back equal. */
DP_PUBLIC int dp_topology_read(const char *text, size_t len, enum dp_topology_format format,
                               struct dp_topology **out);

/* A machine as Linux describes it below root: "" for this machine, else a directory with the files of
 * /sys and some of /proc (cpuinfo, sys/kernel/hostname, driver/nvidia) that were captured elsewhere.
 * How NVLink joins this machine's GPUs is asked of NVML, which is loaded at run time; a captured tree
 * does not say it, and neither the rates of the CPU's links. What cannot be seen is left out, and noted;
 * DP_ENOENT only where there is no root/sys. DP_EINVAL for a DUALPIPE_TOPOLOGY_ variable. DP_ENOMEM. */
DP_PUBLIC int dp_topology_read_sysfs(const char *root, struct dp_topology **out);

/* This machine as hwloc sees it, which knows platforms on which /sys says little; of links only how much
 * they carry, of ports no rates. NVLink as above. DP_EUNSUPPORTED in a build without hwloc. */
DP_PUBLIC int dp_topology_read_hwloc(struct dp_topology **out);

/* Several machines that nothing joins yet into one cluster. Ports in one Ethernet subnet are on one
 * rail. An InfiniBand subnet is a whole fabric: in one, the k-th ports of all hosts are on a rail. So
 * are the k-th ports of one fabric whose subnet is not known, or, of Ethernet, that no other host is in.
 * The rails of an InfiniBand subnet, those of Ethernet, and those of unknown fabrics are joined by a
 * spine as wide as their ports together. NVSwitches of several hosts that have one name, which NVML
 * reads as the fabric's cluster and clique, are one that these hosts share. Two hosts of one name or
 * one host_hash are DP_EINVAL. */
DP_PUBLIC int dp_topology_merge(const struct dp_topology *const *parts, size_t count,
                                struct dp_topology **out);

/* One host (its node) alone, without rails; NVSwitches that it shared are its own, under their name. */
DP_PUBLIC int dp_topology_take_host(const struct dp_topology *t, int32_t host,
                                    struct dp_topology **out);

/* One host as a guest on it sees it, for NCCL in virtual machines that are shown a flat PCI bus. map
 * has a line for each device that was passed on, its name here and its PCI address in the guest, and
 * for each NUMA node whose CPUs are others there, its name and their list; '#' begins a comment:
 *      0000:1b:00.0 0001:00:00.0
 *      mlx5_3       0002:00:00.0
 *      numa0        0-47
 * Other devices are left out; bridges get addresses that no guest uses; how the guest numbers GPUs and
 * names NICs is not known. DP_EINVAL names the line. */
DP_PUBLIC int dp_topology_remap(const struct dp_topology *t, const char *map,
                                struct dp_topology **out);

#ifdef __cplusplus
}
#endif
#endif
