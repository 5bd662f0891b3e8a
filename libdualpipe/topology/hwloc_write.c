/* SPDX-License-Identifier: Apache-2.0
 *
 * hwloc_write.c - a host as hwloc 2 writes it, for lstopo and what else reads its files. Written by
 * hand, so that it needs no hwloc:
 *
 *      Machine
 *        Package                                     a socket
 *          Group                                     where it has several NUMA nodes
 *            NUMANode, L3Cache > PU ...
 *            Bridge (host)                           ROOT
 *              Bridge (root port)                    made up: PCI devices stand behind one each
 *                Bridge (upstream port)              SWITCH
 *                  Bridge (downstream port)          made up
 *                    PCIDev > OSDev                  GPU, NIC
 *
 * Source: what hwloc 2.9 writes and reads; doc/hwloc2.dtd.
 */
#include "base/fail.h"
#include "topology/format.h"
#include "topology/hwloc_infos.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OSDEV_GPU = 1, OSDEV_NET = 2, OSDEV_RDMA = 3, OSDEV_COMPUTE = 5 };

struct writer {
    const struct dp_topology *t;
    struct dp_text *out;
    uint32_t objects; /* so far */
    bool has_cpus;    /* else the first NUMA node gets CPU 0: hwloc wants one */
};

static const struct dp_topo_node *node_of(const struct writer *w, int32_t node)
{
    return &w->t->nodes[node];
}

/* ---- pieces --------------------------------------------------------------------------------- */

static void add_info(const struct writer *w, const char *name, const char *value)
{
    if (!*value)
        return;
    dp_text_adds(w->out, "<info");
    dp_xml_add(w->out, "name", name);
    dp_xml_add(w->out, "value", value);
    dp_text_adds(w->out, "/>\n");
}

static void add_info_text(const struct writer *w, const char *name, uint32_t text)
{
    add_info(w, name, dp_topology_text(w->t, text));
}

static void add_info_number(const struct writer *w, const char *name, int64_t number)
{
    if (number >= 0)
        dp_text_addf(w->out, "<info name=\"%s\" value=\"%" PRId64 "\"/>\n", name, number);
}

static void add_set(const struct writer *w, const char *key, const char *list)
{
    dp_text_addf(w->out, " %s=\"", key);
    dp_topo_add_mask(w->out, "0x", list);
    dp_text_adds(w->out, "\"");
}

/* An object with CPUs; its other attributes follow. */
static void open_object(struct writer *w, const char *type, int64_t os_index, const char *cpus,
                        const char *nodes)
{
    dp_text_addf(w->out, "<object type=\"%s\"", type);
    if (os_index >= 0)
        dp_text_addf(w->out, " os_index=\"%" PRId64 "\"", os_index);
    add_set(w, "cpuset", cpus);
    add_set(w, "complete_cpuset", cpus);
    add_set(w, "nodeset", nodes);
    add_set(w, "complete_nodeset", nodes);
    dp_text_addf(w->out, " gp_index=\"%" PRIu32 "\"", ++w->objects);
}

static void open_io(struct writer *w, const char *type)
{
    dp_text_addf(w->out, "<object type=\"%s\" gp_index=\"%" PRIu32 "\"", type, ++w->objects);
}

static void close_object(const struct writer *w)
{
    dp_text_adds(w->out, "</object>\n");
}

/* ---- what GPUs and NICs are called ---------------------------------------------------------- */

static void open_osdev(struct writer *w, const char *name, int type)
{
    open_io(w, "OSDev");
    dp_xml_add(w->out, "name", name);
    dp_text_addf(w->out, " osdev_type=\"%d\">\n", type);
}

/* As hwloc sees a GPU through NVML and through CUDA. */
static void add_gpu(struct writer *w, int32_t gpu)
{
    const struct dp_topo_node *n = node_of(w, gpu);
    int32_t number = n->os_index < 0 ? n->index : n->os_index;

    if (n->uuid || n->os_index >= 0) {
        open_io(w, "OSDev");
        dp_text_addf(w->out, " name=\"nvml%" PRId32 "\" subtype=\"NVML\" osdev_type=\"%d\">\n", number,
                     OSDEV_GPU);
        add_info_text(w, "GPUModel", n->model);
        add_info_text(w, "NVIDIAUUID", n->uuid);
        close_object(w);
    }
    if (n->memory_bytes) {
        open_io(w, "OSDev");
        dp_text_addf(w->out, " name=\"cuda%" PRId32 "\" subtype=\"CUDA\" osdev_type=\"%d\">\n", number,
                     OSDEV_COMPUTE);
        add_info_text(w, "GPUModel", n->model);
        add_info_number(w, "CUDAGlobalMemorySize", (int64_t)(n->memory_bytes >> 10));
        close_object(w);
    }
}

static void add_rdma(struct writer *w, int32_t first, int32_t count)
{
    const struct dp_topo_port *p = &w->t->ports[first];

    open_osdev(w, dp_topology_text(w->t, p->rdma), OSDEV_RDMA);
    if (p->guid)
        dp_text_addf(w->out, "<info name=\"SysImageGUID\" value=\"%04x:%04x:%04x:%04x\"/>\n",
                     (unsigned)(p->guid >> 48), (unsigned)(p->guid >> 32 & 0xffff),
                     (unsigned)(p->guid >> 16 & 0xffff), (unsigned)(p->guid & 0xffff));
    for (int32_t i = 0; i < count && p[i].rdma == p->rdma; i++)
        dp_text_addf(w->out, "<info name=\"Port%" PRId32 "State\" value=\"%d\"/>\n", p[i].number,
                     p[i].up ? 4 : 1);
    for (int32_t i = 0; i < count && p[i].rdma == p->rdma; i++)
        dp_hwloc_add_gids(w->t, &p[i], w->out);
    close_object(w);
}

static void add_nic(struct writer *w, int32_t nic)
{
    int32_t first, count = dp_topology_ports(w->t, nic, &first);

    for (int32_t i = first; i < first + count; i++)
        if (w->t->ports[i].net) {
            open_osdev(w, dp_topology_text(w->t, w->t->ports[i].net), OSDEV_NET);
            close_object(w);
        }
    if (count && w->t->ports[first].rdma)
        add_rdma(w, first, count);
}

/* ---- PCI ------------------------------------------------------------------------------------ */

static void add_pci(const struct writer *w, const struct dp_topo_pci *p, double rate)
{
    dp_text_addf(w->out, " pci_busid=\"%04x:%02x:%02x.%x\" pci_type=\"%04x [%04x:%04x] [%04x:%04x] 00\" "
                 "pci_link_speed=\"%.6f\"", p->domain, p->bus, p->device, p->function,
                 p->class_code >> 8, p->vendor_id, p->device_id, p->subsystem_vendor_id,
                 p->subsystem_device_id, rate);
}

/* The last bus of a node and of what is below it. */
static uint8_t last_bus(const struct writer *w, int32_t node)
{
    uint8_t last = node_of(w, node)->pci.bus;

    for (int32_t i = node + 1; i < node_of(w, node)->end; i++)
        if (node_of(w, i)->pci.known && node_of(w, i)->pci.domain == node_of(w, node)->pci.domain &&
            node_of(w, i)->pci.bus > last)
            last = node_of(w, i)->pci.bus;
    return last;
}

/* pci NULL: a host bridge. Buses from..last are behind it. */
static void open_bridge(struct writer *w, const struct dp_topo_pci *pci, uint32_t domain, uint8_t from,
                        uint8_t last, int depth, double rate)
{
    open_io(w, "Bridge");
    dp_text_addf(w->out, " bridge_type=\"%d-1\" depth=\"%d\" bridge_pci=\"%04" PRIx32 ":[%02x-%02x]\"",
                 pci != NULL, depth, domain, from, last);
    if (pci)
        add_pci(w, pci, rate);
    dp_text_adds(w->out, ">\n");
}

/* The port of `parent`, which is a switch or root, that its child number `number` is behind. */
static struct dp_topo_pci port_of(const struct dp_topo_node *parent, int number)
{
    const struct dp_topo_pci *p = &parent->pci;

    return (struct dp_topo_pci){
        .known = true, .domain = p->domain, .bus = p->bus, .device = (uint8_t)(1 + number % 31),
        .function = (uint8_t)(number / 31 % 8), .class_code = 0x060400, .vendor_id = p->vendor_id,
        .device_id = p->device_id,
    };
}

static double rate_of(const struct writer *w, int32_t node)
{
    const struct dp_topo_link *l = dp_topo_uplink(w->t, node);

    return l ? l->bytes_per_ns : 0;
}

/* A virtual machine's devices stand right on the root's bus, real ones behind a port. */
static bool has_port(const struct writer *w, int32_t node)
{
    const struct dp_topo_node *n = node_of(w, node), *parent = node_of(w, n->parent);

    if (parent->kind == DP_TOPO_ROOT && n->kind != DP_TOPO_SWITCH)
        return n->pci.domain != parent->pci.domain || n->pci.bus != parent->pci.bus;
    return parent->kind == DP_TOPO_ROOT || parent->kind == DP_TOPO_SWITCH;
}

static void add_device(struct writer *w, int32_t node)
{
    const struct dp_topo_node *n = node_of(w, node);

    open_io(w, "PCIDev");
    add_pci(w, &n->pci, rate_of(w, node));
    dp_text_adds(w->out, ">\n");
    add_info_text(w, "PCIDevice", n->model);
    dp_hwloc_add_infos(w->t, node, w->out);
    if (n->kind == DP_TOPO_GPU)
        add_gpu(w, node);
    else
        add_nic(w, node);
    close_object(w);
}

/* What is below a NUMA node, root or switch; what has no PCI address hwloc has no place for. */
static void add_children(struct writer *w, int32_t parent, int depth)
{
    int number = 0;

    for (int32_t i = parent + 1; i < node_of(w, parent)->end; i = node_of(w, i)->end) {
        const struct dp_topo_node *n = node_of(w, i);
        struct dp_topo_pci port = port_of(node_of(w, parent), number++);
        bool behind_port = has_port(w, i);
        int below = depth + behind_port;
        if (!n->pci.known)
            continue;
        if (behind_port)
            open_bridge(w, &port, n->pci.domain, n->pci.bus, last_bus(w, i), depth, rate_of(w, i));
        if (n->kind == DP_TOPO_ROOT || n->kind == DP_TOPO_SWITCH) {
            open_bridge(w, n->kind == DP_TOPO_ROOT ? NULL : &n->pci, n->pci.domain, n->pci.bus,
                        last_bus(w, i), below, rate_of(w, i));
            add_info_text(w, "PCIDevice", n->model);
            if (n->kind == DP_TOPO_SWITCH)
                dp_hwloc_add_infos(w->t, i, w->out);
            add_children(w, i, below + 1);
            close_object(w);
        } else {
            add_device(w, i);
        }
        if (behind_port)
            close_object(w);
    }
}

/* ---- CPUs and memory ------------------------------------------------------------------------ */

static int32_t number_of(const struct writer *w, int32_t numa)
{
    return node_of(w, numa)->os_index < 0 ? node_of(w, numa)->index : node_of(w, numa)->os_index;
}

static const char *cpus_of(const struct writer *w, int32_t numa)
{
    return w->has_cpus || node_of(w, numa)->index ? dp_topology_text(w->t, node_of(w, numa)->cpus) : "0";
}

/* The lists of CPUs and of numbers of the NUMA nodes of a package (-2: of all), and how many they are;
 * only those that have CPUs. */
static int list_numas(const struct writer *w, int32_t package, struct dp_text *cpus,
                      struct dp_text *nodes)
{
    int count = 0;

    dp_text_adds(cpus, "");
    dp_text_adds(nodes, "");
    for (int32_t i = 0; (i = dp_topology_next(w->t, DP_TOPO_NUMA, 0, i + 1)) >= 0;) {
        const char *own = cpus_of(w, i);
        if (package != -2 && (node_of(w, i)->package != package || !*own))
            continue;
        dp_text_addf(cpus, "%s%s", cpus->len && *own ? "," : "", own);
        dp_text_addf(nodes, "%s%" PRId32, nodes->len ? "," : "", number_of(w, i));
        count++;
    }
    return count;
}

static void add_processors(struct writer *w, const char *cpus, const char *node)
{
    char one[24];

    for (unsigned long i, last; dp_topo_next_cpus(&cpus, &i, &last);)
        for (; i <= last; i++) {
            snprintf(one, sizeof(one), "%lu", i);
            open_object(w, "PU", (int64_t)i, one, node);
            dp_text_adds(w->out, "/>\n");
        }
}

static void add_memory(struct writer *w, int32_t numa)
{
    char node[24];

    snprintf(node, sizeof(node), "%" PRId32, number_of(w, numa));
    open_object(w, "NUMANode", number_of(w, numa), cpus_of(w, numa), node);
    dp_text_addf(w->out, " local_memory=\"%" PRIu64 "\"/>\n", node_of(w, numa)->memory_bytes);
}

/* A NUMA node with its CPUs and devices, in an object of their own or in the one that is open. */
static void add_numa(struct writer *w, int32_t numa, bool in_group)
{
    const char *cpus = cpus_of(w, numa);
    uint64_t cache = node_of(w, numa)->cache_bytes;
    char node[24];

    snprintf(node, sizeof(node), "%" PRId32, number_of(w, numa));
    if (in_group) {
        open_object(w, "Group", -1, cpus, node);
        dp_text_adds(w->out, " kind=\"0\" subkind=\"0\">\n");
    }
    add_memory(w, numa);
    if (cache) {
        open_object(w, "L3Cache", -1, cpus, node);
        dp_text_addf(w->out, " cache_size=\"%" PRIu64 "\" depth=\"3\" cache_linesize=\"64\" "
                     "cache_associativity=\"0\" cache_type=\"0\">\n", cache);
    }
    add_processors(w, cpus, node);
    if (cache)
        close_object(w);
    add_children(w, numa, 0);
    if (in_group)
        close_object(w);
}

static void add_cpu_infos(const struct writer *w)
{
    const struct dp_topo_node *host = node_of(w, 0);

    add_info_text(w, "CPUVendor", host->vendor);
    add_info_number(w, "CPUFamilyNumber", host->family);
    add_info_number(w, "CPUModelNumber", host->cpu_model);
    add_info_text(w, "CPUModel", host->model);
}

/* All NUMA nodes of a package that have CPUs; of an unknown one (-1), in the machine itself. */
static void add_package(struct writer *w, int32_t package, int numas)
{
    struct dp_text cpus = {0}, nodes = {0};
    int count = list_numas(w, package, &cpus, &nodes);

    w->out->failed |= cpus.failed || nodes.failed;
    if (package >= 0 && !w->out->failed) {
        open_object(w, "Package", package, cpus.data, nodes.data);
        dp_text_adds(w->out, ">\n");
        add_cpu_infos(w);
    }
    dp_text_fini(&cpus);
    dp_text_fini(&nodes);
    for (int32_t i = 0; (i = dp_topology_next(w->t, DP_TOPO_NUMA, 0, i + 1)) >= 0;)
        if (node_of(w, i)->package == package && *cpus_of(w, i))
            add_numa(w, i, package >= 0 ? count > 1 : numas > 1);
    if (package >= 0)
        close_object(w);
}

/* Is this the first NUMA node of its package that has CPUs? */
static bool is_first(const struct writer *w, int32_t numa)
{
    for (int32_t i = 0; (i = dp_topology_next(w->t, DP_TOPO_NUMA, 0, i + 1)) >= 0 && i < numa;)
        if (node_of(w, i)->package == node_of(w, numa)->package && *cpus_of(w, i))
            return false;
    return *cpus_of(w, numa);
}

/* ---- all of it ------------------------------------------------------------------------------ */

static void add_machine(struct writer *w, const char *cpus, const char *nodes, int numas)
{
    open_object(w, "Machine", 0, cpus, nodes);
    add_set(w, "allowed_cpuset", cpus);
    add_set(w, "allowed_nodeset", nodes);
    dp_text_adds(w->out, ">\n");
    if (node_of(w, 0)->name)
        add_info_text(w, "HostName", node_of(w, 0)->name);
    add_info_text(w, "Architecture", node_of(w, 0)->arch);
    add_cpu_infos(w);
    for (int32_t i = 0; (i = dp_topology_next(w->t, DP_TOPO_NUMA, 0, i + 1)) >= 0;) {
        if (is_first(w, i))
            add_package(w, node_of(w, i)->package, numas);
        if (!*cpus_of(w, i)) {
            add_memory(w, i);
            add_children(w, i, 0);
        }
    }
    close_object(w);
}

int dp_topo_write_hwloc(const struct dp_topology *t, struct dp_text *out)
{
    struct writer w = {.t = t, .out = out};
    struct dp_text cpus = {0}, nodes = {0};

    if (t->host_count != 1)
        return dp_fail(DP_EINVAL, "hwloc's files describe one host, this topology has %d: take one out",
                       t->host_count);
    for (int32_t i = 0; (i = dp_topology_next(t, DP_TOPO_NUMA, 0, i + 1)) >= 0;)
        w.has_cpus |= t->nodes[i].cpus != 0;
    int numas = list_numas(&w, -2, &cpus, &nodes);
    out->failed |= cpus.failed || nodes.failed;
    dp_text_adds(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                      "<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\">\n");
    if (!out->failed)
        add_machine(&w, cpus.data, nodes.data, numas);
    dp_text_adds(out, "</topology>\n");
    dp_text_fini(&cpus);
    dp_text_fini(&nodes);
    return 0;
}
