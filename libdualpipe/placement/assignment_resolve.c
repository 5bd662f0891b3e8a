/* SPDX-License-Identifier: Apache-2.0 */
#include "placement/assignment_resolve.h"

#include "base/fail.h"

#include <stdlib.h>
#include <string.h>

/* ---- nodes ---------------------------------------------------------------------------------- */

static int compare_ids(const void *a, const void *b)
{
    const struct dp_assigned_node *x = a, *y = b;

    return (x->id > y->id) - (x->id < y->id);
}

static int sort_nodes(struct dp_assignment *s)
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

bool dp_assignment_resolve_id(const struct dp_assignment *s, const char *kind, int32_t *id)
{
    const struct dp_assigned_node key = {.id = *id};
    const struct dp_assigned_node *found =
        s->node_count ? bsearch(&key, s->nodes, (size_t)s->node_count, sizeof(key), compare_ids)
                      : NULL;

    if (!found || (kind && strcmp(dp_assignment_text(s, found->kind), kind)))
        return false;
    *id = (int32_t)(found - s->nodes);
    return true;
}

static bool resolve_maybe(const struct dp_assignment *s, const char *kind, int32_t *id)
{
    return *id == DP_ASSIGNED_ABSENT || dp_assignment_resolve_id(s, kind, id);
}

/* ---- workers -------------------------------------------------------------------------------- */

static int wrong_assignment(const struct dp_assignment *s, int32_t worker, const char *expected)
{
    return dp_fail(DP_EINVAL, "%s: workers[%d].%s", s->name, worker, expected);
}

static int resolve_nics(const struct dp_assignment *s, int32_t w, struct dp_assigned_worker *worker)
{
    if (worker->qps_count != worker->nic_count)
        return wrong_assignment(s, w, "qps: expected as many as nics");
    for (int32_t i = 0; i < worker->nic_count; i++) {
        if (!dp_assignment_resolve_id(s, "nic", &worker->nics[i]))
            return wrong_assignment(s, w, "nics: expected ids of NICs in nodes");
        if (worker->qps[i] < 1 || worker->qps[i] > 256)
            return wrong_assignment(s, w, "qps: expected numbers from 1 to 256");
    }
    for (int32_t i = 0; i < worker->copy_count; i++)
        if (!dp_assignment_resolve_id(s, NULL, &worker->copy[i]))
            return wrong_assignment(s, w, "copy: expected ids of nodes");
    return 0;
}

static int resolve_worker(const struct dp_assignment *s, int32_t w, struct dp_assigned_worker *worker)
{
    if (worker->replica != w / s->ranks || worker->rank != w % s->ranks)
        return wrong_assignment(s, w, "rank: expected workers in order of replica, then rank");
    if (!dp_assignment_resolve_id(s, "gpu", &worker->gpu))
        return wrong_assignment(s, w, "gpu: expected the id of a GPU in nodes");
    if (!resolve_maybe(s, "numa", &worker->memory))
        return wrong_assignment(s, w, "memory: expected the id of a NUMA node in nodes");
    return resolve_nics(s, w, worker);
}

/* Every process has one worker. */
static int check_processes(const struct dp_assignment *s)
{
    bool *is_taken = calloc((size_t)s->worker_count, sizeof(*is_taken));
    int err = is_taken ? 0 : dp_fail(DP_ENOMEM, "%s: no memory for %d workers", s->name,
                                     s->worker_count);

    for (int32_t w = 0; !err && w < s->worker_count; w++) {
        const int32_t process = s->workers[w].process;
        if (process < 0 || process >= s->worker_count || is_taken[process])
            err = dp_fail(DP_EINVAL, "%s: workers[%d].came_as: %d, expected each of 0 to %d once",
                          s->name, w, process, s->worker_count - 1);
        else
            is_taken[process] = true;
    }
    free(is_taken);
    return err;
}

static int resolve_all(struct dp_assignment *s)
{
    int err = 0;

    if (s->ranks < 1 || s->replicas < 1 || s->ranks > DP_WORKERS_MAX / s->replicas)
        return dp_fail(DP_EINVAL, "%s: %d ranks and %d replicas, expected 1 to %d workers", s->name,
                       s->ranks, s->replicas, DP_WORKERS_MAX);
    if (s->worker_count != s->ranks * s->replicas)
        return dp_fail(DP_EINVAL, "%s: %d workers, expected %d, one for each rank of each replica",
                       s->name, s->worker_count, s->ranks * s->replicas);
    for (int32_t w = 0; !err && w < s->worker_count; w++)
        err = resolve_worker(s, w, &s->workers[w]);
    return err ? err : check_processes(s);
}

/* ---- flows ---------------------------------------------------------------------------------- */

static int resolve_flow(const struct dp_assignment *s, int32_t i, struct dp_assigned_flow *f)
{
    const char *wrong = NULL;

    if (f->kind == DP_FLOW_KINDS)
        wrong = "kind: expected activation, gradient, mirror, mixing or offload";
    else if (f->from < 0 || f->from >= s->worker_count || f->to < 0 || f->to >= s->worker_count)
        wrong = "from, to: expected workers";
    else if (!resolve_maybe(s, "nic", &f->nic_from) || !resolve_maybe(s, "nic", &f->nic_to))
        wrong = "nic_from, nic_to: expected ids of NICs in nodes";
    else if (!resolve_maybe(s, "rail", &f->rail))
        wrong = "rail: expected the id of a rail in nodes";
    else if (f->traffic_class < 0 || f->traffic_class > 255)
        wrong = "traffic_class: expected a number from 0 to 255";
    return wrong ? dp_fail(DP_EINVAL, "%s: flows[%d].%s", s->name, i, wrong) : 0;
}

int dp_assignment_resolve(struct dp_assignment *s)
{
    int err = sort_nodes(s);

    if (!err)
        err = resolve_all(s);
    for (int32_t i = 0; !err && i < s->flow_count; i++)
        err = resolve_flow(s, i, &s->flows[i]);
    return err;
}
