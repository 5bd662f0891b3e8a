/* SPDX-License-Identifier: Apache-2.0
 *
 * round.c - the neighbors of a round, and messages between them.
 */
#include "comm/internal.h"
#include "mixing/internal.h"
#include "mixing/round.h"
#include "survival/internal.h"

#include "base/fail.h"
#include "device/device_ops.h"

#include <dualpipe/survival.h>

#include <math.h>
#include <stdlib.h>

/* ---- weights ----------------------------------------------------------------------------------- */

bool dp_round_is_alone(const struct dp_graph *g, int64_t t, int32_t worker)
{
    const struct dp_mix_group *group = dp_graph_group(g, t, worker);

    return group ? group->count == 1 : g->workers == 1;
}

double dp_round_share(const struct dp_graph *g, int64_t t, int32_t worker)
{
    const struct dp_mix_group *group = dp_graph_group(g, t, worker);

    if (!group || group->count == 1)
        return 1;
    return (1 - group->self) / (group->count - 1);
}

double dp_round_self(const struct dp_graph *g, int64_t t, int32_t worker)
{
    const struct dp_mix_group *group = dp_graph_group(g, t, worker);

    return group ? group->self : dp_graph_weight(g, t, worker, worker);
}

/* ---- neighbors --------------------------------------------------------------------------------- */

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

/* ---- messages ---------------------------------------------------------------------------------- */

void dp_transfers_clear(struct dp_transfers *m)
{
    m->count = m->done = 0;
    m->cut_short = false;
}

struct dp_request *dp_transfers_next(struct dp_transfers *m, int peer)
{
    m->list[m->count].peer = peer;
    return &m->list[m->count].request;
}

int dp_transfers_note(struct dp_transfers *m, int err)
{
    m->count += !err;
    m->cut_short = m->cut_short || err;
    return err;
}

int dp_transfers_receive(struct dp_transfers *m, int peer, uint64_t tag, void *to, size_t len)
{
    return dp_transfers_note(m, dp_comm_irecv(m->comm, peer, DP_CHANNEL_REDUCE, tag, to, len,
                                             dp_transfers_next(m, peer)));
}

int dp_transfers_send(struct dp_transfers *m, int peer, uint64_t tag, const void *from, size_t len)
{
    return dp_transfers_note(m, dp_comm_isend(m->comm, peer, DP_CHANNEL_REDUCE, tag, from, len,
                                             dp_transfers_next(m, peer)));
}

int dp_transfers_gather(struct dp_transfers *m, const struct dp_neighbor *from, int32_t count,
                       uint64_t tag, void *to, size_t stride, size_t len)
{
    int err = 0;

    for (int32_t k = 0; k < count && !err; k++)
        err = dp_transfers_receive(m, from[k].worker, tag, (char *)to + (size_t)k * stride, len);
    return err;
}

int dp_transfers_spread(struct dp_transfers *m, const struct dp_neighbor *to, int32_t count,
                       uint64_t tag, const void *from, size_t len)
{
    int err = 0;

    for (int32_t k = 0; k < count && !err; k++)
        err = dp_transfers_send(m, to[k].worker, tag, from, len);
    return err;
}

int dp_transfers_end_next(struct dp_transfers *m, bool wait, const struct dp_comm *all)
{
    struct dp_round_transfer *at = &m->list[m->done];
    int err = !wait ? dp_comm_test(m->comm, &at->request)
              : all ? dp_comm_wait_alive(m->comm, &at->request, at->peer, all)
                    : dp_comm_wait(m->comm, &at->request, at->peer);

    m->done += !err;
    return err;
}

int dp_transfers_end(struct dp_transfers *m, bool wait, const struct dp_comm *all)
{
    int err = 0;

    while (m->done < m->count && !err)
        err = dp_transfers_end_next(m, wait, all);
    return err || !m->cut_short
               ? err
               : dp_fail_quietly(DP_ECOMM, "the exchange could not be begun with all neighbors");
}

int dp_transfers_await(const struct dp_transfers *m, int32_t first, struct dp_device_stream *stream)
{
    int err = 0;

    for (int32_t i = first; i < m->count && !err; i++)
        err = dp_comm_stream_wait(m->comm, &m->list[i].request, stream);
    return err;
}

/* ---- on a device ------------------------------------------------------------------------------- */

int dp_stream_arrivals_new(struct dp_comm *comm, struct dp_device *dev, size_t bytes, char **out)
{
    void *memory = NULL;
    int err = bytes ? dp_device_alloc(dev, DP_MEMORY_DEVICE, bytes, &memory) : 0;

    *out = memory;
    return err || !memory ? err : dp_comm_register(comm, memory, bytes);
}

void dp_stream_arrivals_free(struct dp_comm *comm, struct dp_device *dev, char *arrivals)
{
    if (arrivals)
        dp_comm_unregister(comm, arrivals);
    dp_device_free(dev, DP_MEMORY_DEVICE, arrivals);
}

int dp_stream_agree_on_rows(struct dp_comm *comm, bool *begins, int32_t count)
{
    const size_t each = (size_t)count, size = (size_t)dp_comm_size(comm);
    bool *all = malloc(size * each + 1);
    int err = all ? dp_comm_allgather(comm, begins, all, each)
                  : dp_fail(DP_ENOMEM, "no memory for rows of %d parameters", count);

    for (size_t i = 0; i < size * each && !err; i++)
        begins[i % each] |= all[i];
    free(all);
    return err;
}

bool dp_stream_takes(const struct dp_parameter *p)
{
    return !(p->flags & DP_PARAMETER_FROZEN) && dp_parameter_elements(p) > 0;
}

bool dp_stream_is_on(const struct dp_device *dev, const DLTensor *t)
{
    const DLDevice dl = dp_device_dl(dev);

    return t->device.device_type == dl.device_type && t->device.device_id == dl.device_id;
}

int dp_stream_check(struct dp_comm *comm, struct dp_device *dev, const char *what,
                    const struct dp_parameter *list, int32_t count,
                    int (*check)(const struct dp_parameter *p, const struct dp_device *dev,
                                 struct dp_device_stream *stream))
{
    const struct dp_comm_caps caps = dp_comm_caps(comm);
    struct dp_device_stream *stream;
    int err = dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &stream);

    if (err)
        return err;
    for (int32_t i = 0; i < count && !err; i++)
        if (dp_stream_takes(&list[i]))
            err = check(&list[i], dev, stream);
    dp_device_stream_free(stream);
    if (!err && !(caps.stream_ordered && caps.device_memory))
        err = dp_fail(DP_EUNSUPPORTED,
                      "%s in the order of a stream: the communicator '%s' has none, expected one of "
                      "NCCL (dualpipe/nccl.h)",
                      what, dp_comm_name(comm));
    return err;
}
