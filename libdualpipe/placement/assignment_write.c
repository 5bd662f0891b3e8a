/* SPDX-License-Identifier: Apache-2.0
 *
 * assignment_write.c - a placement as the lines that assignment_read.c reads: first the nodes that it
 * speaks of, with the names by which other programs know them; everything else refers to those by
 * number.
 */
#include "base/fail.h"
#include "base/text.h"
#include "placement/internal.h"
#include "topology/build.h"
#include "topology/internal.h"

#include <dualpipe/placement.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct writer {
    const struct dp_placement *p;
    const struct dp_topology *t;
    struct dp_text *out;
    bool *is_named; /* [node_count] */
};

/* ---- fields ----------------------------------------------------------------------------------- */

static void add_int(const struct writer *w, const char *key, int32_t value)
{
    dp_text_addf(w->out, " %s=%" PRId32, key, value);
}

static void add_id(const struct writer *w, const char *key, int32_t node)
{
    if (node >= 0)
        add_int(w, key, node);
}

static void add_number(const struct writer *w, const char *key, double value)
{
    dp_text_addf(w->out, " %s=", key);
    dp_text_add_number(w->out, value);
}

/* What would end the text becomes "%20" and the like. */
static void add_text(const struct writer *w, const char *key, const char *text)
{
    if (*text)
        dp_text_addf(w->out, " %s=", key);
    for (; *text; text++)
        dp_text_addf(w->out, (unsigned char)*text <= ' ' || strchr("%#\x7f", *text) ? "%%%02x" : "%c",
                     (unsigned char)*text);
}

static void add_list(const struct writer *w, const char *key, const int32_t *numbers, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        if (!i)
            dp_text_addf(w->out, " %s=", key);
        dp_text_addf(w->out, "%s%" PRId32, i ? "," : "", numbers[i]);
    }
}

/* ---- nodes ---------------------------------------------------------------------------------- */

static void name_node(const struct writer *w, int32_t node)
{
    if (node >= 0)
        w->is_named[node] = true;
}

static void name_nodes(const struct writer *w)
{
    for (int32_t i = 0; i < w->p->ranks * w->p->replicas; i++) {
        const struct dp_placed_worker *worker = &w->p->workers[i];
        name_node(w, worker->gpu);
        name_node(w, worker->memory);
        for (int32_t k = 0; k < worker->nic_count; k++)
            name_node(w, worker->nics[k]);
    }
    for (int32_t i = 0; i < w->p->flow_count; i++) {
        name_node(w, w->p->flows[i].nic_from);
        name_node(w, w->p->flows[i].nic_to);
        name_node(w, w->p->flows[i].rail);
    }
}

/* What RDMA and the kernel call the NIC's ports. */
static void add_ports(const struct writer *w, int32_t nic)
{
    int32_t first, count = dp_topology_ports(w->t, nic, &first);

    for (int32_t i = first; i < first + count; i++) {
        const struct dp_topo_port *port = &w->t->ports[i];
        dp_text_addf(w->out, "port number=%" PRId32, port->number);
        add_text(w, "rdma", dp_topology_text(w->t, port->rdma));
        add_text(w, "net", dp_topology_text(w->t, port->net));
        dp_text_adds(w->out, "\n");
    }
}

static void add_node(const struct writer *w, int32_t i)
{
    const struct dp_topo_node *n = &w->t->nodes[i];
    char label[DP_TOPO_LABEL_LEN], address[DP_TOPO_PCI_LEN];

    dp_text_addf(w->out, "node id=%" PRId32 " kind=%s", i, dp_topo_kind_name(n->kind));
    add_text(w, "label", dp_topology_label(w->t, i, label));
    if (n->host >= 0)
        add_text(w, "host", dp_topology_label(w->t, n->host, label));
    if (n->pci.known)
        dp_text_addf(w->out, " pci=%s", dp_topo_pci_text(&n->pci, address));
    if (n->kind == DP_TOPO_NUMA || n->kind == DP_TOPO_GPU)
        add_id(w, "os_index", n->os_index);
    if (n->kind == DP_TOPO_NUMA)
        add_text(w, "cpus", dp_topology_text(w->t, n->cpus));
    dp_text_adds(w->out, "\n");
    if (n->kind == DP_TOPO_NIC)
        add_ports(w, i);
}

/* As NCCL counts them; a worker stands for its node if none before it is there. */
static int32_t count_nodes(const struct dp_placement *p, const struct dp_topology *t, bool *is_met)
{
    int32_t count = 0;

    for (int32_t w = 0; w < p->ranks * p->replicas; w++) {
        int32_t node = dp_topo_domain(t, t->nodes[p->workers[w].gpu].host);
        count += !is_met[node];
        is_met[node] = true;
    }
    memset(is_met, 0, (size_t)t->node_count * sizeof(*is_met));
    return count;
}

/* ---- the file --------------------------------------------------------------------------------- */

static void add_worker(const struct writer *w, int32_t i)
{
    const struct dp_placed_worker *worker = &w->p->workers[i];

    dp_text_addf(w->out, "worker replica=%" PRId32 " rank=%" PRId32 " gpu=%" PRId32 " came_as=%" PRId32,
                 i / w->p->ranks, i % w->p->ranks, worker->gpu, worker->came_as);
    add_id(w, "memory", worker->memory);
    add_list(w, "nics", worker->nics, worker->nic_count);
    add_list(w, "qps", worker->qps, worker->nic_count);
    dp_text_adds(w->out, "\n");
}

static void add_flow(const struct writer *w, int32_t i)
{
    const struct dp_flow *f = &w->p->flows[i];

    dp_text_addf(w->out, "flow kind=%s from=%" PRId32 " to=%" PRId32, dp_flow_kind_name(f->kind),
                 f->from, f->to);
    add_number(w, "bytes", f->bytes);
    add_id(w, "nic_from", f->nic_from);
    add_id(w, "nic_to", f->nic_to);
    add_id(w, "rail", f->rail);
    if (f->traffic_class)
        add_int(w, "traffic_class", f->traffic_class);
    dp_text_adds(w->out, "\n");
}

static void add_head(const struct writer *w, double intra_gbs, double inter_gbs)
{
    const struct dp_placement *p = w->p;

    dp_text_addf(w->out, "dualpipe assignment 1\n# By dualpipe %s. The slowest link is busy for ",
                 dp_version());
    dp_text_add_number(w->out, p->after_ns);
    dp_text_adds(w->out, " ns in a step, as the ranks came for ");
    dp_text_add_number(w->out, p->before_ns);
    dp_text_addf(w->out, " ns.\nplacement ranks=%" PRId32 " replicas=%" PRId32, p->ranks, p->replicas);
    add_number(w, "intra_gbs", intra_gbs);
    add_number(w, "inter_gbs", inter_gbs);
    add_int(w, "nodes", count_nodes(p, w->t, w->is_named));
    dp_text_adds(w->out, "\n");
}

int dp_placement_write(const struct dp_placement *p, const struct dp_topology *t, char **text,
                       size_t *len)
{
    struct dp_text out = {0};
    const struct writer w = {p, t, &out, calloc((size_t)t->node_count, sizeof(bool))};
    double intra_gbs = 0, inter_gbs = 0;
    int err = w.is_named ? dp_topology_rates(t, &intra_gbs, &inter_gbs)
                         : dp_fail(DP_ENOMEM, "no memory for %d nodes", t->node_count);

    if (!err) {
        add_head(&w, intra_gbs, inter_gbs);
        name_nodes(&w);
        for (int32_t i = 0; i < t->node_count; i++)
            if (w.is_named[i])
                add_node(&w, i);
        for (int32_t i = 0; i < p->ranks * p->replicas; i++)
            add_worker(&w, i);
        for (int32_t i = 0; i < p->flow_count; i++)
            add_flow(&w, i);
        dp_text_adds(&out, "end\n");
        err = dp_text_take(&out, text, len);
    }
    dp_text_fini(&out);
    free(w.is_named);
    return err;
}
