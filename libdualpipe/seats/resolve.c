/* SPDX-License-Identifier: Apache-2.0 */
#include "seats/resolve.h"

#include "base/fail.h"

#include <stdlib.h>
#include <string.h>

/* ---- nodes ---------------------------------------------------------------------------------- */

static int compare_ids(const void *a, const void *b)
{
    const struct dp_seat_node *x = a, *y = b;

    return (x->id > y->id) - (x->id < y->id);
}

static int sort_nodes(struct dp_seats *s)
{
    if (s->node_count)
        qsort(s->nodes, (size_t)s->node_count, sizeof(*s->nodes), compare_ids);
    for (int32_t i = 0; i < s->node_count; i++) {
        if (s->nodes[i].id < 0)
            return dp_fail(DP_EINVAL, "%s: nodes: one without an id, expected a number from 0 on",
                           s->name);
        if (i && s->nodes[i].id == s->nodes[i - 1].id)
            return dp_fail(DP_EINVAL, "%s: nodes: id %d twice, expected each once", s->name,
                           s->nodes[i].id);
    }
    return 0;
}

/* An id becomes the place of its node, if that is of this kind. */
static bool resolve_id(const struct dp_seats *s, const char *kind, int32_t *id)
{
    const struct dp_seat_node key = {.id = *id};
    const struct dp_seat_node *found =
        s->node_count ? bsearch(&key, s->nodes, (size_t)s->node_count, sizeof(key), compare_ids)
                      : NULL;

    if (!found || (kind && strcmp(dp_seats_text(s, found->kind), kind)))
        return false;
    *id = (int32_t)(found - s->nodes);
    return true;
}

static bool resolve_maybe(const struct dp_seats *s, const char *kind, int32_t *id)
{
    return *id == DP_SEAT_ABSENT || resolve_id(s, kind, id);
}

/* ---- workers -------------------------------------------------------------------------------- */

static int wrong_seat(const struct dp_seats *s, int32_t worker, const char *expected)
{
    return dp_fail(DP_EINVAL, "%s: workers[%d].%s", s->name, worker, expected);
}

static int resolve_nics(const struct dp_seats *s, int32_t worker, struct dp_seat *seat)
{
    if (seat->qps_count != seat->nic_count)
        return wrong_seat(s, worker, "qps: expected as many as nics");
    for (int32_t i = 0; i < seat->nic_count; i++) {
        if (!resolve_id(s, "nic", &seat->nics[i]))
            return wrong_seat(s, worker, "nics: expected ids of NICs in nodes");
        if (seat->qps[i] < 1 || seat->qps[i] > 256)
            return wrong_seat(s, worker, "qps: expected numbers from 1 to 256");
    }
    for (int32_t i = 0; i < seat->copy_count; i++)
        if (!resolve_id(s, NULL, &seat->copy[i]))
            return wrong_seat(s, worker, "copy: expected ids of nodes");
    return 0;
}

static int resolve_seat(const struct dp_seats *s, int32_t worker, struct dp_seat *seat)
{
    if (seat->replica != worker / s->ranks || seat->rank != worker % s->ranks)
        return wrong_seat(s, worker, "rank: expected workers in order of replica, then rank");
    if (!resolve_id(s, "gpu", &seat->gpu))
        return wrong_seat(s, worker, "gpu: expected the id of a GPU in nodes");
    if (!resolve_maybe(s, "numa", &seat->memory))
        return wrong_seat(s, worker, "memory: expected the id of a NUMA node in nodes");
    return resolve_nics(s, worker, seat);
}

/* Every process sits once. */
static int check_processes(const struct dp_seats *s)
{
    bool *is_taken = calloc((size_t)s->seat_count, sizeof(*is_taken));
    int err = is_taken ? 0 : dp_fail(DP_ENOMEM, "%s: no memory for %d workers", s->name,
                                     s->seat_count);

    for (int32_t w = 0; !err && w < s->seat_count; w++) {
        const int32_t process = s->seats[w].process;
        if (process < 0 || process >= s->seat_count || is_taken[process])
            err = dp_fail(DP_EINVAL, "%s: workers[%d].came_as: %d, expected each of 0 to %d once",
                          s->name, w, process, s->seat_count - 1);
        else
            is_taken[process] = true;
    }
    free(is_taken);
    return err;
}

static int resolve_seats(struct dp_seats *s)
{
    int err = 0;

    if (s->ranks < 1 || s->replicas < 1 || s->ranks > DP_WORKERS_MAX / s->replicas)
        return dp_fail(DP_EINVAL, "%s: %d ranks and %d replicas, expected 1 to %d workers", s->name,
                       s->ranks, s->replicas, DP_WORKERS_MAX);
    if (s->seat_count != s->ranks * s->replicas)
        return dp_fail(DP_EINVAL, "%s: %d workers, expected %d, one for each rank of each replica",
                       s->name, s->seat_count, s->ranks * s->replicas);
    for (int32_t w = 0; !err && w < s->seat_count; w++)
        err = resolve_seat(s, w, &s->seats[w]);
    return err ? err : check_processes(s);
}

/* ---- flows ---------------------------------------------------------------------------------- */

static int resolve_flow(const struct dp_seats *s, int32_t i, struct dp_seat_flow *f)
{
    const char *wrong = NULL;

    if (f->kind == DP_FLOW_KINDS)
        wrong = "kind: expected activation, gradient, mirror, mixing or offload";
    else if (f->from < 0 || f->from >= s->seat_count || f->to < 0 || f->to >= s->seat_count)
        wrong = "from, to: expected workers";
    else if (!resolve_maybe(s, "nic", &f->nic_from) || !resolve_maybe(s, "nic", &f->nic_to))
        wrong = "nic_from, nic_to: expected ids of NICs in nodes";
    else if (!resolve_maybe(s, "rail", &f->rail))
        wrong = "rail: expected the id of a rail in nodes";
    else if (f->traffic_class < 0 || f->traffic_class > 255)
        wrong = "traffic_class: expected a number from 0 to 255";
    return wrong ? dp_fail(DP_EINVAL, "%s: flows[%d].%s", s->name, i, wrong) : 0;
}

int dp_seats_resolve(struct dp_seats *s)
{
    int err = sort_nodes(s);

    if (!err)
        err = resolve_seats(s);
    for (int32_t i = 0; !err && i < s->flow_count; i++)
        err = resolve_flow(s, i, &s->flows[i]);
    return err;
}
