/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/links.h"

#include "base/fail.h"

#include <dualpipe/mixer.h>
#include <dualpipe/nccl.h>
#include <dualpipe/pipeline.h>
#include <dualpipe/replicas.h>

#include <stdlib.h>

/* Any rank may have a member of a group. */
static int add_tied(const struct dp_schedule *s, int rank, struct dp_nccl_peer *out)
{
    const unsigned sums = 1U << DP_CHANNEL_REDUCE;
    int count = 0;

    for (int r = 0; r < s->ranks; r++)
        if (r != rank)
            out[count++] = (struct dp_nccl_peer){s->group_rank[r], sums, sums};
    return count;
}

static int open_links(struct dp_comm *host, struct dp_device *device, struct dp_nccl_peer *peers,
                      int count, struct dp_comm **out)
{
    const struct dp_nccl_config config = {.device = device, .peers = peers, .peer_count = count};
    const int err = count < 0 ? count : dp_comm_nccl_open(host, &config, out);

    free(peers);
    return err;
}

static struct dp_nccl_peer *room_for(int peers)
{
    struct dp_nccl_peer *room = calloc((size_t)peers, sizeof(*room));

    if (!room)
        dp_fail(DP_ENOMEM, "no memory for %d peers", peers);
    return room;
}

int links_of_pipeline(struct dp_comm *host, struct dp_device *device,
                      const struct dp_schedule *const schedules[2], int rank, bool tied,
                      struct dp_comm **out)
{
    struct dp_nccl_peer *peers = room_for(3 * schedules[0]->ranks);
    int count = 0, more = peers ? 0 : DP_ENOMEM;

    for (int i = 0; i < 2 && more >= 0; i++) {
        more = dp_pipeline_nccl_peers(schedules[i], rank, peers + count);
        count += more < 0 ? 0 : more;
    }
    if (more >= 0 && tied)
        count += add_tied(schedules[0], rank, peers + count);
    return open_links(host, device, peers, more < 0 ? more : count, out);
}

int links_of_replicas(struct dp_comm *host, struct dp_device *device, const struct dp_graph *graph,
                      struct dp_comm **out)
{
    const int rank = dp_comm_rank(host), size = dp_comm_size(host);
    struct dp_nccl_peer *peers = room_for(size);
    const int count = !peers  ? DP_ENOMEM
                      : graph ? dp_mixer_nccl_peers(graph, rank, peers)
                              : dp_replicas_nccl_peers(rank, size, peers);

    return open_links(host, device, peers, count, out);
}
