/* SPDX-License-Identifier: Apache-2.0
 *
 * json_write.c - a placement as JSON. First the nodes that it speaks of, with the names by which
 * other programs know them; everything else refers to those by number.
 */
#include "base/fail.h"
#include "base/json.h"
#include "placement/format.h"

#include <dualpipe/placement.h>

#include <inttypes.h>
#include <stdlib.h>

struct writer {
    const struct dp_placement *p;
    const struct dp_topology *t;
    struct dp_text *out;
    bool *is_named; /* [node_count] */
    int err;        /* the first of a search */
};

static void add_number(const struct writer *w, const char *key, double value)
{
    dp_text_addf(w->out, ", \"%s\": ", key);
    dp_json_add_number(w->out, value);
}

static void add_node_number(const struct writer *w, const char *key, int32_t node)
{
    if (node >= 0)
        dp_text_addf(w->out, ", \"%s\": %" PRId32, key, node);
}

/* The route of a copy between the GPU and its pinned memory. Routes longer than a reader has room
 * for are left out; there is none in any machine that we know. */
static struct dp_topo_path find_copy(struct writer *w, const struct dp_placed_worker *worker)
{
    struct dp_topo_path path = {.class_ = DP_TOPO_NONE};
    int err = worker->memory < 0 ? 0 : dp_topology_path(w->t, worker->gpu, worker->memory, &path);

    if (err || path.class_ == DP_TOPO_NONE || path.hops >= DP_ASSIGNED_COPY_MAX)
        path.hops = -1;
    if (!w->err)
        w->err = err;
    return path;
}

/* ---- nodes ---------------------------------------------------------------------------------- */

static void name_node(const struct writer *w, int32_t node)
{
    if (node >= 0)
        w->is_named[node] = true;
}

static void name_nodes(struct writer *w)
{
    for (int32_t i = 0; i < w->p->ranks * w->p->replicas; i++) {
        const struct dp_placed_worker *worker = &w->p->workers[i];
        name_node(w, worker->gpu);
        name_node(w, worker->memory);
        for (int32_t k = 0; k < worker->nic_count; k++)
            name_node(w, worker->nics[k]);
        const struct dp_topo_path copy = find_copy(w, worker);
        for (int32_t k = 0; k <= copy.hops; k++)
            name_node(w, copy.nodes[k]);
    }
    for (int32_t i = 0; i < w->p->flow_count; i++) {
        name_node(w, w->p->flows[i].nic_from);
        name_node(w, w->p->flows[i].nic_to);
        name_node(w, w->p->flows[i].rail);
    }
    for (int32_t i = 0; i < w->p->link_count; i++) {
        name_node(w, w->p->links[i].from);
        name_node(w, w->p->links[i].to);
    }
}

/* What RDMA and the kernel call the NIC's ports. */
static void add_ports(struct writer *w, int32_t nic)
{
    int32_t first, count = dp_topology_ports(w->t, nic, &first);

    dp_text_adds(w->out, ", \"ports\": [");
    for (int32_t i = first; i < first + count; i++) {
        const struct dp_topo_port *port = &w->t->ports[i];
        dp_text_addf(w->out, "%s{\"number\": %" PRId32 ", \"rdma\": ", i > first ? ", " : "",
                     port->number);
        dp_json_add_string(w->out, dp_topology_text(w->t, port->rdma));
        dp_text_adds(w->out, ", \"net\": ");
        dp_json_add_string(w->out, dp_topology_text(w->t, port->net));
        dp_text_adds(w->out, "}");
    }
    dp_text_adds(w->out, "]");
}

static void add_node(struct writer *w, int32_t i)
{
    const struct dp_topo_node *n = &w->t->nodes[i];
    char label[DP_TOPO_LABEL_LEN];

    dp_text_addf(w->out, "{\"id\": %" PRId32 ", \"kind\": \"%s\", \"label\": ", i,
                 dp_topo_kind_name(n->kind));
    dp_json_add_string(w->out, dp_topology_label(w->t, i, label));
    if (n->host >= 0) {
        dp_text_adds(w->out, ", \"host\": ");
        dp_json_add_string(w->out, dp_topology_label(w->t, n->host, label));
    }
    if (n->pci.known)
        dp_text_addf(w->out, ", \"pci\": \"%04x:%02x:%02x.%x\"", n->pci.domain, n->pci.bus,
                     n->pci.device, n->pci.function);
    if (n->kind == DP_TOPO_NUMA || n->kind == DP_TOPO_GPU)
        add_node_number(w, "os_index", n->os_index);
    if (n->kind == DP_TOPO_NUMA) {
        dp_text_adds(w->out, ", \"cpus\": ");
        dp_json_add_string(w->out, dp_topology_text(w->t, n->cpus));
    }
    if (n->kind == DP_TOPO_NIC)
        add_ports(w, i);
    dp_text_adds(w->out, "}");
}

static void add_nodes(struct writer *w)
{
    const char *between = "\n";

    dp_text_adds(w->out, ",\n\"nodes\": [");
    for (int32_t i = 0; i < w->t->node_count; i++) {
        if (!w->is_named[i])
            continue;
        dp_text_adds(w->out, between);
        add_node(w, i);
        between = ",\n";
    }
    dp_text_adds(w->out, "]");
}

/* ---- the rest ------------------------------------------------------------------------------- */

static void add_numbers(struct writer *w, const char *key, const int32_t *numbers,
                        int32_t count)
{
    dp_text_addf(w->out, ", \"%s\": [", key);
    for (int32_t i = 0; i < count; i++)
        dp_text_addf(w->out, "%s%" PRId32, i ? ", " : "", numbers[i]);
    dp_text_adds(w->out, "]");
}

static void add_worker(struct writer *w, int32_t i)
{
    const struct dp_placed_worker *worker = &w->p->workers[i];
    const struct dp_topo_path copy = find_copy(w, worker);

    dp_text_addf(w->out, "{\"replica\": %" PRId32 ", \"rank\": %" PRId32 ", \"gpu\": %" PRId32
                         ", \"came_as\": %" PRId32,
                 i / w->p->ranks, i % w->p->ranks, worker->gpu, worker->came_as);
    add_node_number(w, "memory", worker->memory);
    add_numbers(w, "nics", worker->nics, worker->nic_count);
    add_numbers(w, "qps", worker->qps, worker->nic_count);
    if (copy.hops >= 0)
        add_numbers(w, "copy", copy.nodes, copy.hops + 1);
    dp_text_adds(w->out, "}");
}

static void add_flow(struct writer *w, int32_t i)
{
    const struct dp_flow *f = &w->p->flows[i];

    dp_text_addf(w->out, "{\"kind\": \"%s\", \"from\": %" PRId32 ", \"to\": %" PRId32,
                 dp_flow_kind_name(f->kind), f->from, f->to);
    add_number(w, "bytes", f->bytes);
    add_node_number(w, "nic_from", f->nic_from);
    add_node_number(w, "nic_to", f->nic_to);
    add_node_number(w, "rail", f->rail);
    if (f->traffic_class)
        dp_text_addf(w->out, ", \"traffic_class\": %u", f->traffic_class);
    dp_text_addf(w->out, ", \"class\": \"%s\"}", dp_topo_class_name(f->class_));
}

static void add_link(struct writer *w, int32_t i)
{
    const struct dp_placed_link *l = &w->p->links[i];

    dp_text_addf(w->out, "{\"kind\": \"%s\", \"from\": %" PRId32 ", \"to\": %" PRId32,
                 dp_topo_link_kind_name(w->t->links[l->link].kind), l->from, l->to);
    add_number(w, "before_ns", l->before_ns);
    add_number(w, "after_ns", l->after_ns);
    dp_text_adds(w->out, "}");
}

static void add_list(struct writer *w, const char *name, int32_t count,
                     void (*add)(struct writer *w, int32_t i))
{
    dp_text_addf(w->out, ",\n\"%s\": [", name);
    for (int32_t i = 0; i < count; i++) {
        dp_text_adds(w->out, i ? ",\n" : "\n");
        add(w, i);
    }
    dp_text_adds(w->out, "]");
}

/* As NCCL counts them; a worker stands for its node if none before it is there. */
static int32_t count_nodes(const struct dp_placement *p, const struct dp_topology *t, bool *is_met)
{
    int32_t count = 0;

    for (int32_t w = 0; w < p->ranks * p->replicas; w++) {
        int32_t node = dp_topology_domain(t, t->nodes[p->workers[w].gpu].host);
        count += !is_met[node];
        is_met[node] = true;
    }
    for (int32_t i = 0; i < t->node_count; i++)
        is_met[i] = false;
    return count;
}

int dp_placement_write(const struct dp_placement *p, const struct dp_topology *t, char **text,
                       size_t *len)
{
    struct dp_text out = {0};
    struct writer w = {p, t, &out, calloc((size_t)t->node_count, sizeof(bool)), 0};
    double inner = 0, outer = 0;

    if (!w.is_named)
        return dp_fail(DP_ENOMEM, "no memory for %d nodes", t->node_count);
    w.err = dp_topology_rates(t, &inner, &outer);
    const int32_t nodes = count_nodes(p, t, w.is_named);
    name_nodes(&w);
    dp_text_addf(&out, "{\"dualpipe_placement\": %d, \"source\": \"dualpipe %s\"",
                 DP_PLACEMENT_JSON_VERSION, dp_version());
    dp_text_addf(&out, ", \"ranks\": %" PRId32 ", \"replicas\": %" PRId32 ", \"exact\": %s",
                 p->ranks, p->replicas, p->exact ? "true" : "false");
    add_number(&w, "before_ns", p->before_ns);
    add_number(&w, "after_ns", p->after_ns);
    dp_text_adds(&out, ",\n\"rates\": {\"intra_gbs\": ");
    dp_json_add_number(&out, inner);
    add_number(&w, "inter_gbs", outer);
    dp_text_addf(&out, ", \"nodes\": %" PRId32 "}", nodes);
    add_nodes(&w);
    add_list(&w, "workers", p->ranks * p->replicas, add_worker);
    add_list(&w, "flows", p->flow_count, add_flow);
    add_list(&w, "links", p->link_count, add_link);
    dp_text_adds(&out, "}\n");
    free(w.is_named);
    if (w.err) {
        dp_text_fini(&out);
        return w.err;
    }
    return dp_text_take(&out, text, len);
}
