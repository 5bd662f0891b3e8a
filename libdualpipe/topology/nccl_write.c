/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_write.c - a host as NCCL_TOPO_FILE wants it.
 *
 *      <system version="1">
 *        <cpu numaid affinity arch vendor familyid modelid>
 *          <pci busid class vendor ... link_speed link_width>     a switch
 *            <pci ...><gpu dev sm><nvlink target count tclass/></gpu></pci>
 *            <pci ...><nic><net name speed port guid/></nic></pci>
 *
 * NCCL obeys what it finds, and looks itself for what is not there. So an attribute whose value is
 * not known is left out, and so is gdr, which no topology knows; only numaid must be there, for
 * which NCCL writes -1 itself where it does not know it.
 *
 * Source: what NCCL reads in its graph/xml.cc and graph/topo.cc. Its CPU masks are groups of 32
 * bits, the highest first; rates of nets are in Mb/s, of C2C in MB/s.
 */
#include "base/fail.h"
#include "base/text.h"
#include "topology/build.h"
#include "topology/internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CPUS = 8192 };

struct writer {
    const struct dp_topology *t;
    struct dp_text *out;
};

/* ---- attributes ----------------------------------------------------------------------------- */

/* KEY="VALUE", escaped; a question mark is for what XML does not take. */
static void add_attribute(struct dp_text *out, const char *key, const char *value)
{
    static const char specials[] = "&<>\"";
    static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&quot;"};

    dp_text_addf(out, " %s=\"", key);
    for (size_t n; *value; value += n ? n : 1) {
        const char *special = strchr(specials, *value);
        n = dp_utf8_len(value, strlen(value));
        if (special)
            dp_text_adds(out, names[special - specials]);
        else if (!n || (unsigned char)*value < ' ' || !strncmp(value, "\xef\xbf\xbe", 3) ||
                 !strncmp(value, "\xef\xbf\xbf", 3))
            dp_text_adds(out, "?");
        else
            dp_text_add(out, value, n);
    }
    dp_text_adds(out, "\"");
}

static void add_text(const struct writer *w, const char *key, uint32_t text)
{
    if (text)
        add_attribute(w->out, key, dp_topology_text(w->t, text));
}

/* A number that is known. */
static void add_number(const struct writer *w, const char *key, int32_t number, bool is_known)
{
    if (is_known)
        dp_text_addf(w->out, " %s=\"%" PRId32 "\"", key, number);
}

static void add_id(const struct writer *w, const char *key, uint16_t id)
{
    if (id)
        dp_text_addf(w->out, " %s=\"0x%04x\"", key, id);
}

/* The next range of a list such as "0-3,8", up to MOST_CPUS; false: none is left. */
static bool next_cpus(const char **cpus, unsigned long *first, unsigned long *last)
{
    char *end;

    *first = *last = strtoul(*cpus, &end, 10);
    if (end == *cpus)
        return false;
    if (*end == '-')
        *last = strtoul(end + 1, &end, 10);
    *last = *last < MOST_CPUS ? *last : MOST_CPUS - 1;
    *cpus = end + (*end == ',');
    return true;
}

/* "0-3,8" to "0000010f". */
static void add_mask(struct dp_text *out, const char *cpus)
{
    uint32_t words[MOST_CPUS / 32] = {0};
    int top = 0;

    for (unsigned long i, last; next_cpus(&cpus, &i, &last);)
        for (; i <= last; i++) {
            words[i / 32] |= 1u << i % 32;
            top = (int)(i / 32) > top ? (int)(i / 32) : top;
        }
    for (int i = top; i >= 0; i--)
        dp_text_addf(out, "%08" PRIx32 "%s", words[i], i ? "," : "");
}

/* All of it, or as much as the node's kind says. */
static void add_class(const struct writer *w, const char *key, enum dp_topo_kind kind,
                      uint32_t code)
{
    static const char *const of_kind[DP_TOPO_KINDS] = {
        [DP_TOPO_SWITCH] = "0x060400",
        [DP_TOPO_GPU] = "0x03",
        [DP_TOPO_NIC] = "0x02",
        [DP_TOPO_NVSWITCH] = "0x068000",
    };

    if (code)
        dp_text_addf(w->out, " %s=\"0x%06" PRIx32 "\"", key, code);
    else
        add_attribute(w->out, key, of_kind[kind]);
}

static void add_busid(const struct writer *w, const char *key, const struct dp_topo_pci *pci)
{
    char text[DP_TOPO_PCI_LEN];

    dp_text_addf(w->out, " %s=\"%s\"", key, dp_topo_pci_text(pci, text));
}

/* ---- devices -------------------------------------------------------------------------------- */

static void open_pci(const struct writer *w, int32_t node)
{
    static const char *const speeds[DP_PCI_GEN_MAX + 1] = {
        "", "2.5", "5.0", "8.0", "16.0", "32.0", "64.0", "128.0",
    };
    const struct dp_topo_node *n = &w->t->nodes[node];
    const struct dp_topo_link *l = dp_topology_uplink(w->t, node);

    dp_text_adds(w->out, "<pci");
    add_busid(w, "busid", &n->pci);
    add_class(w, "class", n->kind, n->pci.class_code);
    add_id(w, "vendor", n->pci.vendor_id);
    add_id(w, "device", n->pci.device_id);
    add_id(w, "subsystem_vendor", n->pci.subsystem_vendor_id);
    add_id(w, "subsystem_device", n->pci.subsystem_device_id);
    if (l && l->gen > 0 && l->gen <= DP_PCI_GEN_MAX)
        dp_text_addf(w->out, " link_speed=\"%s GT/s PCIe\"", speeds[l->gen]);
    if (l)
        add_number(w, "link_width", l->width, l->width > 0);
    dp_text_adds(w->out, ">\n");
}

static void add_nvlink(const struct writer *w, int32_t gpu, const struct dp_topo_link *l)
{
    const struct dp_topo_node *other = &w->t->nodes[l->a == gpu ? l->b : l->a];

    if (l->kind == DP_TOPO_C2C && l->bytes_per_ns > 0) {
        dp_text_addf(w->out, "<c2c bw=\"%.0f\" count=\"1\"/>\n", 1000 * l->bytes_per_ns);
    } else if (dp_topo_is_gpu_link(l->kind)) {
        const struct dp_topo_pci hub = {.domain = 0xffff, .bus = 0xff};
        const struct dp_topo_pci *target = other->kind == DP_TOPO_NVSWITCH ? &hub : &other->pci;
        dp_text_addf(w->out, "<%s", dp_topo_link_kind_name(l->kind));
        add_busid(w, "target", target);
        dp_text_addf(w->out, " count=\"%" PRId32 "\"", l->count);
        add_class(w, "tclass", other->kind, target->class_code);
        dp_text_adds(w->out, "/>\n");
    }
}

static void add_gpu(const struct writer *w, int32_t gpu)
{
    const struct dp_topo_node *n = &w->t->nodes[gpu];

    dp_text_adds(w->out, "<gpu");
    add_number(w, "dev", n->os_index, n->os_index >= 0);
    add_number(w, "sm", n->sm, n->sm > 0);
    dp_text_adds(w->out, ">\n");
    for (int32_t k = w->t->first_around[gpu]; k < w->t->first_around[gpu + 1]; k++)
        add_nvlink(w, gpu, &w->t->links[w->t->around[k]]);
    dp_text_adds(w->out, "</gpu>\n");
}

static void add_nic(const struct writer *w, int32_t nic)
{
    int32_t first, count = dp_topology_ports(w->t, nic, &first);

    dp_text_adds(w->out, "<nic>\n");
    for (int32_t i = first; i < first + count; i++) {
        const struct dp_topo_port *p = &w->t->ports[i];
        if (!p->up || (!p->rdma && !p->net)) /* NCCL knows nets by their names */
            continue;
        dp_text_adds(w->out, "<net");
        add_text(w, "name", p->rdma ? p->rdma : p->net);
        if (p->bytes_per_ns > 0)
            dp_text_addf(w->out, " speed=\"%.0f\"", 8000 * p->bytes_per_ns);
        add_number(w, "port", p->number, p->number > 0);
        if (p->guid)
            dp_text_addf(w->out, " guid=\"0x%" PRIx64 "\"", p->guid);
        dp_text_adds(w->out, "/>\n");
    }
    dp_text_adds(w->out, "</nic>\n");
}

/* ---- the tree ------------------------------------------------------------------------------- */

/* Roots are no elements: what stands in them stands in the CPU. */
static void add_children(const struct writer *w, int32_t node)
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

static void add_cpu(const struct writer *w, int32_t numa)
{
    const struct dp_topo_node *n = &w->t->nodes[numa], *host = &w->t->nodes[n->host];

    dp_text_addf(w->out, "<cpu numaid=\"%" PRId32 "\"", n->os_index);
    if (n->cpus) {
        dp_text_adds(w->out, " affinity=\"");
        add_mask(w->out, dp_topology_text(w->t, n->cpus));
        dp_text_adds(w->out, "\"");
    }
    if (!strcmp(dp_topology_text(w->t, host->arch), "aarch64"))
        add_attribute(w->out, "arch", "arm64"); /* as NCCL calls it */
    else
        add_text(w, "arch", host->arch);
    add_text(w, "vendor", host->vendor);
    const bool has_model =
        host->family >= 0 && host->cpu_model >= 0; /* NCCL asks for neither or both */
    add_number(w, "familyid", host->family, has_model);
    add_number(w, "modelid", host->cpu_model, has_model);
    dp_text_adds(w->out, ">\n");
    add_children(w, numa);
    dp_text_adds(w->out, "</cpu>\n");
}

int dp_topo_write_nccl(const struct dp_topology *t, struct dp_text *out)
{
    const struct writer w = {t, out};

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
