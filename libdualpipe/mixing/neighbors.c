/* SPDX-License-Identifier: Apache-2.0 */
#include "mixing/neighbors.h"

#include "base/fail.h"

#include <dualpipe/mixer.h>
#include <dualpipe/replicas.h>

#include <math.h>
#include <stdlib.h>

static int32_t others_of(const struct dp_graph *g, const struct dp_mix_group *group, int32_t worker,
                         struct dp_neighbor *out)
{
    int32_t count = 0;

    for (int32_t k = 0; k < group->count; k++) {
        const int32_t member = g->members[group->first + (size_t)k];
        if (member != worker)
            out[count++] =
                (struct dp_neighbor){member, (1 - group->self) / (group->count - 1)};
    }
    return count;
}

int32_t dp_neighbors_from(const struct dp_graph *g, int64_t t, int32_t worker,
                          struct dp_neighbor *out)
{
    const struct dp_mix_group *group = dp_graph_group(g, t, worker);
    size_t link_count;
    const struct dp_mix_link *links = dp_graph_links(g, t, worker, &link_count);
    int32_t count = 0;

    if (group)
        return others_of(g, group, worker, out);
    for (size_t i = 0; i < link_count; i++)
        if (links[i].from != worker)
            out[count++] = (struct dp_neighbor){links[i].from, links[i].weight};
    return count;
}

int32_t dp_neighbors_to(const struct dp_graph *g, int64_t t, int32_t worker, struct dp_neighbor *out)
{
    const struct dp_mix_round *r = &g->rounds[t % g->period];
    const struct dp_mix_group *group = dp_graph_group(g, t, worker);
    int32_t count = 0;

    if (group)
        return others_of(g, group, worker, out);
    for (size_t i = r->first_link; i < r->first_link + r->link_count; i++)
        if (g->links[i].from == worker && g->links[i].to != worker)
            out[count++] = (struct dp_neighbor){g->links[i].to, g->links[i].weight};
    return count;
}

int32_t dp_neighbors_max(const struct dp_graph *g, int32_t worker)
{
    int32_t most = 0;

    for (int32_t t = 0; t < g->period; t++) {
        const struct dp_mix_round *r = &g->rounds[t];
        const struct dp_mix_group *group = dp_graph_group(g, t, worker);
        int32_t from = 0, to = 0;
        for (size_t i = r->first_link; i < r->first_link + r->link_count; i++) {
            const struct dp_mix_link *l = &g->links[i];
            from += l->to == worker && l->from != worker;
            to += l->from == worker && l->to != worker;
        }
        from = group ? group->count - 1 : from > to ? from : to;
        most = from > most ? from : most;
    }
    return most;
}

bool dp_graph_is_symmetric(const struct dp_graph *g, int32_t *round, int32_t *i, int32_t *j)
{
    for (int32_t t = 0; t < g->period; t++) {
        const struct dp_mix_round *r = &g->rounds[t];
        for (size_t k = r->first_link; k < r->first_link + r->link_count; k++) {
            const struct dp_mix_link *l = &g->links[k];
            if (fabs(l->weight - dp_graph_weight(g, t, l->from, l->to)) <= 1e-12)
                continue;
            *round = t;
            *i = l->from;
            *j = l->to;
            return false;
        }
    }
    return true;
}

int dp_neighbor_wait(struct dp_comm *comm, struct dp_request *request, int32_t worker,
                     const struct dp_comm *all)
{
    return all ? dp_comm_wait_alive(comm, request, worker, all)
               : dp_comm_wait(comm, request, worker);
}

int dp_mixer_nccl_peers(const struct dp_graph *g, int rank, struct dp_nccl_peer *out)
{
    const unsigned mixes = 1U << DP_CHANNEL_REDUCE;
    struct dp_neighbor *all = calloc((size_t)g->workers + 1, sizeof(*all));
    int count = all ? dp_replicas_nccl_peers(rank, g->workers, out) : DP_ENOMEM;

    for (int32_t t = 0; t < 2 * g->period && count >= 0; t++) {
        const bool sends = t % 2;
        const int32_t len = sends ? dp_neighbors_to(g, t / 2, rank, all)
                                  : dp_neighbors_from(g, t / 2, rank, all);
        for (int32_t i = 0; i < len; i++) {
            int at = 0;
            while (at < count && out[at].rank != all[i].worker)
                at++;
            if (at == count)
                out[count++] = (struct dp_nccl_peer){.rank = all[i].worker};
            out[at].sends |= sends ? mixes : 0;
            out[at].receives |= sends ? 0 : mixes;
        }
    }
    free(all);
    return count == DP_ENOMEM ? dp_fail(count, "no memory for neighbors") : count;
}
