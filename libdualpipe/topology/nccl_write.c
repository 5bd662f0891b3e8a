/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_write.c - a host as NCCL_TOPO_FILE wants it. Whole: NCCL stops at a CPU without its attributes.
 *
 *      <system version="1">
 *        <cpu numaid affinity arch vendor familyid modelid>
 *          <pci busid class vendor ... link_speed link_width>     a switch
 *            <pci ...><gpu dev sm gdr><nvlink target count tclass/></gpu></pci>
 *            <pci ...><nic><net name dev speed port guid gdr/></nic></pci>
 *
 * Source: what NCCL reads in its graph/xml.cc and graph/topo.cc. Its CPU masks are groups of 32 bits,
 * the highest first; rates of nets are in Mb/s, of C2C in MB/s.
 */
#include "base/fail.h"
#include "topology/format.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { NVSWITCH_CLASS = 0x068000 };

struct writer {
    const struct dp_topology *t;
    struct dp_text *out;
    int32_t nets; /* so far */
};

/* ---- attributes ----------------------------------------------------------------------------- */

void dp_xml_add(struct dp_text *out, const char *key, const char *value)
{
    dp_text_addf(out, " %s=\"", key);
    for (; *value; value++) {
        static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&quot;"};
        const char *special = strchr("&<>\"", *value);
        if (special)
            dp_text_adds(out, names[special - "&<>\""]);
        else if ((unsigned char)*value >= ' ')
            dp_text_add(out, value, 1);
    }
    dp_text_adds(out, "\"");
}

static void add_text(const struct writer *w, const char *key, uint32_t text, const char *otherwise)
{
    dp_xml_add(w->out, key, text ? dp_topology_text(w->t, text) : otherwise);
}

bool dp_topo_next_cpus(const char **cpus, unsigned long *first, unsigned long *last)
{
    char *end;

    *first = *last = strtoul(*cpus, &end, 10);
    if (end == *cpus)
        return false;
    if (*end == '-')
        *last = strtoul(end + 1, &end, 10);
    *last = *last < DP_TOPO_CPUS_MAX ? *last : DP_TOPO_CPUS_MAX - 1;
    *cpus = end + (*end == ',');
    return true;
}

/* "0-3,8" to "00000000,0000010f". */
void dp_topo_add_mask(struct dp_text *out, const char *prefix, const char *cpus)
{
    uint32_t words[DP_TOPO_CPUS_MAX / 32] = {0};
    int top = 0;

    for (unsigned long i, last; dp_topo_next_cpus(&cpus, &i, &last);)
        for (; i <= last; i++) {
            words[i / 32] |= 1u << i % 32;
            top = (int)(i / 32) > top ? (int)(i / 32) : top;
        }
    for (int i = top; i >= 0; i--)
        dp_text_addf(out, "%s%08" PRIx32 "%s", prefix, words[i], i ? "," : "");
}

static void add_busid(const struct writer *w, const char *key, const struct dp_topo_pci *pci)
{
    dp_text_addf(w->out, " %s=\"%04" PRIx32 ":%02x:%02x.%x\"", key, pci->domain, pci->bus, pci->device,
                 pci->function);
}

const struct dp_topo_link *dp_topo_uplink(const struct dp_topology *t, int32_t node)
{
    for (int32_t k = t->first_around[node]; k < t->first_around[node + 1]; k++)
        if (t->links[t->around[k]].kind == DP_TOPO_PCI && t->links[t->around[k]].b == node)
            return &t->links[t->around[k]];
    return NULL;
}

/* ---- devices -------------------------------------------------------------------------------- */

static void open_pci(const struct writer *w, int32_t node)
{
    static const char *const speeds[] = {
        "", "2.5 GT/s PCIe", "5.0 GT/s PCIe", "8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe",
        "64.0 GT/s PCIe", "128.0 GT/s PCIe",
    };
    const struct dp_topo_node *n = &w->t->nodes[node];
    const struct dp_topo_link *l = dp_topo_uplink(w->t, node);

    dp_text_adds(w->out, "<pci");
    add_busid(w, "busid", &n->pci);
    dp_text_addf(w->out, " class=\"0x%06" PRIx32 "\" vendor=\"0x%04x\" device=\"0x%04x\" "
                 "subsystem_vendor=\"0x%04x\" subsystem_device=\"0x%04x\" link_speed=\"%s\" "
                 "link_width=\"%d\">\n", n->pci.class_code, n->pci.vendor_id, n->pci.device_id,
                 n->pci.subsystem_vendor_id, n->pci.subsystem_device_id,
                 speeds[l && l->gen >= 0 && l->gen <= 7 ? l->gen : 0], l ? l->width : 0);
}

static void add_nvlink(const struct writer *w, int32_t gpu, const struct dp_topo_link *l)
{
    const struct dp_topo_node *other = &w->t->nodes[l->a == gpu ? l->b : l->a];

    if (l->kind == DP_TOPO_C2C) {
        dp_text_addf(w->out, "<c2c bw=\"%.0f\" count=\"1\"/>\n", 1000 * l->bytes_per_ns);
    } else if (l->kind == DP_TOPO_NVLINK) {
        struct dp_topo_pci hub = {.domain = 0xffff, .bus = 0xff};
        bool is_hub = other->kind == DP_TOPO_NVSWITCH;
        dp_text_adds(w->out, "<nvlink");
        add_busid(w, "target", is_hub ? &hub : &other->pci);
        dp_text_addf(w->out, " count=\"%" PRId32 "\" tclass=\"0x%06x\"/>\n", l->count,
                     is_hub ? (unsigned)NVSWITCH_CLASS : (unsigned)other->pci.class_code);
    }
}

static void add_gpu(const struct writer *w, int32_t gpu)
{
    const struct dp_topo_node *n = &w->t->nodes[gpu];

    dp_text_addf(w->out, "<gpu dev=\"%" PRId32 "\" sm=\"%" PRId32 "\" gdr=\"1\">\n",
                 n->os_index < 0 ? n->index : n->os_index, n->sm);
    for (int32_t k = w->t->first_around[gpu]; k < w->t->first_around[gpu + 1]; k++)
        add_nvlink(w, gpu, &w->t->links[w->t->around[k]]);
    dp_text_adds(w->out, "</gpu>\n");
}

static void add_nic(struct writer *w, int32_t nic)
{
    int32_t first, count = dp_topology_ports(w->t, nic, &first);

    dp_text_adds(w->out, "<nic>\n");
    for (int32_t i = first; i < first + count; i++) {
        const struct dp_topo_port *p = &w->t->ports[i];
        if (!p->up)
            continue;
        dp_text_adds(w->out, "<net");
        add_text(w, "name", p->rdma ? p->rdma : p->net, "net");
        dp_text_addf(w->out, " dev=\"%" PRId32 "\" speed=\"%.0f\" port=\"%" PRId32 "\" guid=\"0x%" PRIx64
                     "\" gdr=\"%d\"/>\n", w->nets++,
                     p->bytes_per_ns > 0 ? 8000 * p->bytes_per_ns : 10000., p->number, p->guid,
                     p->rdma != 0);
    }
    dp_text_adds(w->out, "</nic>\n");
}

/* ---- the tree ------------------------------------------------------------------------------- */

/* Roots are no elements: what stands in them stands in the CPU. */
static void add_children(struct writer *w, int32_t node)
{
    const struct dp_topology *t = w->t;

    for (int32_t i = node + 1; i < t->nodes[node].end; i = t->nodes[i].end) {
        enum dp_topo_kind kind = t->nodes[i].kind;
        if (kind == DP_TOPO_ROOT) {
            add_children(w, i);
            continue;
        }
        if (!t->nodes[i].pci.known) {
            add_nic(w, i);
            continue;
        }
        open_pci(w, i);
        if (kind == DP_TOPO_GPU)
            add_gpu(w, i);
        else if (kind == DP_TOPO_NIC)
            add_nic(w, i);
        else
            add_children(w, i);
        dp_text_adds(w->out, "</pci>\n");
    }
}

/* NCCL knows Arm as arm64, and wants numbers for every CPU. */
static const char *nccl_arch(const char *arch)
{
    return !strcmp(arch, "aarch64") ? "arm64" : *arch ? arch : "x86_64";
}

static void add_cpu(struct writer *w, int32_t numa)
{
    const struct dp_topo_node *n = &w->t->nodes[numa], *host = &w->t->nodes[n->host];

    dp_text_addf(w->out, "<cpu numaid=\"%" PRId32 "\" affinity=\"",
                 n->os_index < 0 ? n->index : n->os_index);
    dp_topo_add_mask(w->out, "", dp_topology_text(w->t, n->cpus));
    dp_text_adds(w->out, "\"");
    dp_xml_add(w->out, "arch", nccl_arch(dp_topology_text(w->t, host->arch)));
    add_text(w, "vendor", host->vendor, "GenuineIntel");
    dp_text_addf(w->out, " familyid=\"%" PRId32 "\" modelid=\"%" PRId32 "\">\n",
                 host->family < 0 ? 6 : host->family, host->cpu_model < 0 ? 143 : host->cpu_model);
    add_children(w, numa);
    dp_text_adds(w->out, "</cpu>\n");
}

int dp_topo_write_nccl(const struct dp_topology *t, struct dp_text *out)
{
    struct writer w = {t, out, 0};

    if (t->host_count != 1)
        return dp_fail(DP_EINVAL, "NCCL's files describe one host, this topology has %d: take one out",
                       t->host_count);
    for (int32_t i = 0; i < t->node_count; i++)
        if ((t->nodes[i].kind == DP_TOPO_GPU || t->nodes[i].kind == DP_TOPO_SWITCH) &&
            !t->nodes[i].pci.known)
            return dp_fail(DP_EUNSUPPORTED, "%s%d has no PCI address, which NCCL's files need",
                           dp_topo_kind_name(t->nodes[i].kind), t->nodes[i].index);
    dp_text_adds(out, "<system version=\"1\">\n");
    for (int32_t i = 0; (i = dp_topology_next(t, DP_TOPO_NUMA, -1, i)) >= 0; i = t->nodes[i].end)
        add_cpu(&w, i);
    dp_text_adds(out, "</system>\n");
    return 0;
}
