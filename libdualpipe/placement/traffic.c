/* SPDX-License-Identifier: Apache-2.0 */
#include "placement/search.h"

#include "base/fail.h"

#include <math.h>
#include <stdlib.h>

/* ---- the spec ------------------------------------------------------------------------------- */

static int check_bytes(const char *member, double bytes)
{
    if (bytes >= 0 && isfinite(bytes))
        return 0;
    return dp_fail(DP_EINVAL, "%s: %g, expected a number of bytes from 0", member, bytes);
}

static int check_mixing(const struct dp_placement_spec *spec, int replicas)
{
    for (int i = 0; spec->mixing && i < spec->mixing_count; i++) {
        const struct dp_replica_pair *p = &spec->mixing[i];
        if (p->a < 0 || p->b < 0 || p->a >= replicas || p->b >= replicas || p->a == p->b)
            return dp_fail(DP_EINVAL,
                           "mixing: pair %d is of replicas %d and %d, expected two of 0 to %d", i,
                           p->a, p->b, replicas - 1);
        if (!(p->share >= 0) || !isfinite(p->share))
            return dp_fail(DP_EINVAL, "mixing: pair %d has a share of %g, expected a number from 0",
                           i, p->share);
    }
    return 0;
}

static int check(const struct dp_placement_spec *spec)
{
    int err;

    if (!spec->schedule)
        return dp_fail(DP_EINVAL, "schedule: NULL, expected one");
    if (!spec->topology)
        return dp_fail(DP_EINVAL, "topology: NULL, expected one");
    const int ranks = spec->schedule->ranks, most = (1 << 20) / ranks;
    if (spec->replicas < 0 || spec->replicas > most)
        return dp_fail(DP_EINVAL, "replicas: %d of %d ranks, expected up to %d", spec->replicas, ranks,
                       most);
    if ((err = check_bytes("activation_bytes", spec->activation_bytes)) ||
        (err = check_bytes("gradient_bytes", spec->gradient_bytes)) ||
        (err = check_bytes("parameter_bytes", spec->parameter_bytes)) ||
        (err = check_bytes("offload_bytes", spec->offload_bytes)))
        return err;
    return check_mixing(spec, spec->replicas ? spec->replicas : 1);
}

/* ---- flows ---------------------------------------------------------------------------------- */

static void add_flow(struct dp_traffic *t, enum dp_flow_kind kind, int32_t from, int32_t to,
                     double bytes)
{
    if (bytes > 0 && (from != to || kind == DP_FLOW_OFFLOAD))
        t->flows[t->flow_count++] = (struct dp_flow){
            .kind = kind, .from = from, .to = to, .bytes = bytes, .nic_from = -1, .nic_to = -1,
            .rail = -1};
}

/* How many messages, and whether weight gradients, a slot of the rank sends in a step. */
struct sent {
    int32_t forwards, backwards, reduces;
};

static void count_messages(const struct dp_schedule *s, int rank, struct sent sent[DP_MAX_SLOTS])
{
    const struct dp_op *ops = s->ops ? dp_schedule_ops(s, rank) : NULL;
    const int32_t mb = s->mb_per_stream, back = !s->forward_only;

    for (int i = 0; i < DP_MAX_SLOTS; i++)
        sent[i] = (struct sent){0};
    for (int i = 0; !s->ops && i < dp_schedule_slot_count(s, rank); i++) {
        const struct dp_slot *slot = dp_schedule_slot(s, rank, i);
        sent[i] = (struct sent){mb * (slot->next >= 0), mb * back * (slot->prev >= 0),
                                back * (slot->mirror >= 0)};
    }
    for (size_t i = 0; i < dp_schedule_count(s, rank); i++) {
        sent[ops[i].slot].forwards += ops[i].kind == DP_OP_SEND_F;
        sent[ops[i].slot].backwards += ops[i].kind == DP_OP_SEND_B;
        sent[ops[i].slot].reduces += ops[i].kind == DP_OP_REDUCE;
    }
}

static void add_rank(struct dp_traffic *t, const struct dp_placement_spec *spec, int32_t base,
                     int rank, const struct sent *sent)
{
    const double back = spec->gradient_bytes > 0 ? spec->gradient_bytes : spec->activation_bytes;

    for (int i = 0; i < dp_schedule_slot_count(spec->schedule, rank); i++) {
        const struct dp_slot *slot = dp_schedule_slot(spec->schedule, rank, i);
        add_flow(t, DP_FLOW_ACTIVATION, base + rank, base + slot->next,
                 sent[i].forwards * spec->activation_bytes);
        add_flow(t, DP_FLOW_GRADIENT, base + rank, base + slot->prev, sent[i].backwards * back);
        add_flow(t, DP_FLOW_MIRROR, base + rank, base + slot->mirror,
                 sent[i].reduces * spec->parameter_bytes);
    }
    add_flow(t, DP_FLOW_OFFLOAD, base + rank, base + rank, spec->offload_bytes);
}

/* A rank's parameters are those of all of its stages. */
static void add_mixing(struct dp_traffic *t, const struct dp_placement_spec *spec,
                       const struct dp_replica_pair *pair)
{
    const int32_t ranks = spec->schedule->ranks, a = pair->a, b = pair->b;
    const double share = pair->share > 0 ? pair->share : 1;

    for (int32_t p = 0; p < ranks; p++) {
        double bytes = share * spec->parameter_bytes * dp_schedule_slot_count(spec->schedule, p);
        add_flow(t, DP_FLOW_MIXING, a * ranks + p, b * ranks + p, bytes);
        if (!pair->one_way)
            add_flow(t, DP_FLOW_MIXING, b * ranks + p, a * ranks + p, bytes);
    }
}

static int count_pairs(const struct dp_placement_spec *spec, int replicas)
{
    return spec->mixing ? spec->mixing_count : replicas > 2 ? replicas : replicas - 1;
}

static int collect_flows(struct dp_traffic *t, const struct dp_placement_spec *spec, int replicas)
{
    const struct dp_schedule *s = spec->schedule;
    const int pairs = count_pairs(spec, replicas);
    const size_t most = (size_t)t->workers * (3 * (size_t)s->max_slots + 1) +
                        2 * (size_t)pairs * (size_t)s->ranks;
    struct sent sent[DP_MAX_SLOTS];

    t->flows = malloc(most * sizeof(*t->flows));
    if (!t->flows)
        return dp_fail(DP_ENOMEM, "no memory for %zu flows", most);
    for (int rank = 0; rank < s->ranks; rank++) {
        count_messages(s, rank, sent);
        for (int d = 0; d < replicas; d++)
            add_rank(t, spec, d * s->ranks, rank, sent);
    }
    for (int i = 0; i < pairs; i++) {
        const struct dp_replica_pair of_ring = {.a = i, .b = (i + 1) % replicas};
        add_mixing(t, spec, spec->mixing ? &spec->mixing[i] : &of_ring);
    }
    return 0;
}

static int compare_flows(const void *a, const void *b)
{
    const struct dp_flow *x = a, *y = b;

    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    if (x->to != y->to)
        return x->to < y->to ? -1 : 1;
    return (int)x->kind - (int)y->kind;
}

/* ---- edges ---------------------------------------------------------------------------------- */

static void merge(struct dp_traffic *t)
{
    struct dp_edge *last = NULL;

    for (int32_t i = 0; i < t->flow_count; i++) {
        const struct dp_flow *f = &t->flows[i];
        if (!last || last->from != f->from || last->to != f->to) {
            last = &t->edges[t->edge_count++];
            *last = (struct dp_edge){f->from, f->to, 0};
        }
        last->bytes += f->bytes;
    }
}

static void index_edges(struct dp_traffic *t)
{
    for (int32_t e = 0; e < t->edge_count; e++) {
        t->first[t->edges[e].from + 1]++;
        if (t->edges[e].from != t->edges[e].to)
            t->first[t->edges[e].to + 1]++;
    }
    for (int32_t w = 0; w < t->workers; w++)
        t->first[w + 1] += t->first[w];
    /* Filled from the back, so that first[w] comes to where it belongs. */
    for (int32_t w = t->workers; w > 0; w--)
        t->first[w] = t->first[w - 1];
    for (int32_t e = 0; e < t->edge_count; e++) {
        t->of_worker[t->first[t->edges[e].from + 1]++] = e;
        if (t->edges[e].from != t->edges[e].to)
            t->of_worker[t->first[t->edges[e].to + 1]++] = e;
    }
}

static int collect_edges(struct dp_traffic *t)
{
    const size_t flows = (size_t)t->flow_count + 1;

    t->edges = malloc(flows * sizeof(*t->edges));
    t->first = calloc((size_t)t->workers + 1, sizeof(*t->first));
    t->of_worker = malloc(2 * flows * sizeof(*t->of_worker));
    if (!t->edges || !t->first || !t->of_worker)
        return dp_fail(DP_ENOMEM, "no memory for %d flows", t->flow_count);
    merge(t);
    index_edges(t);
    return 0;
}

/* A schedule that computes but sends nothing has not been given its messages. */
static int check_messages(const struct dp_traffic *t, const struct dp_placement_spec *spec)
{
    const struct dp_schedule *s = spec->schedule;

    if (t->flow_count || s->ranks == 1 || !s->ops)
        return 0;
    for (size_t i = 0; i < s->first[s->ranks]; i++)
        if (s->ops[i].kind == DP_OP_SEND_F)
            return 0;
    return dp_fail(DP_EINVAL, "schedule: %d ranks without messages, expected some", s->ranks);
}

int dp_traffic_init(struct dp_traffic *t, const struct dp_placement_spec *spec)
{
    int err = check(spec);

    *t = (struct dp_traffic){0};
    if (err)
        return err;
    const int replicas = spec->replicas ? spec->replicas : 1;
    t->workers = replicas * spec->schedule->ranks;
    err = collect_flows(t, spec, replicas);
    if (!err)
        err = check_messages(t, spec);
    if (!err) {
        qsort(t->flows, (size_t)t->flow_count, sizeof(*t->flows), compare_flows);
        err = collect_edges(t);
    }
    if (err)
        dp_traffic_fini(t);
    return err;
}

void dp_traffic_fini(struct dp_traffic *t)
{
    free(t->of_worker);
    free(t->first);
    free(t->edges);
    free(t->flows);
    *t = (struct dp_traffic){0};
}
