/* SPDX-License-Identifier: Apache-2.0 */
#include "train/cuda/cuda_links.h"

#include <dualpipe/nccl.h>
#include <dualpipe/pipeline.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- devices ------------------------------------------------------------------------------- */

int cuda_device_of_rank(const char *asked, int rank, int ranks, char name[static CUDA_DEVICE_NAME],
                        bool *shared)
{
    struct dp_process process;
    int count = 1;

    snprintf(name, CUDA_DEVICE_NAME, "%s", asked);
    *shared = ranks > 1;
    if (strcmp(asked, "cuda"))
        return 0;
    int err = dp_process_from_env(&process);
    if (!err)
        err = dp_device_cuda_count(&count);
    if (err)
        return err;
    const bool told = process.local_rank >= 0 && process.local_size > 0;
    snprintf(name, CUDA_DEVICE_NAME, "cuda:%d", (told ? process.local_rank : rank) % count);
    *shared = (told ? process.local_size : ranks) > count;
    return 0;
}

void cuda_links_prepare(int rank, bool shared)
{
    char host[32];

    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    snprintf(host, sizeof(host), "dualpipe-%d", rank);
    if (shared)
        setenv("NCCL_HOSTID", host, 0);
}

/* ---- peers --------------------------------------------------------------------------------- */

static bool has_end(const struct dp_schedule *s, int rank)
{
    for (int i = 0; i < dp_schedule_slot_count(s, rank); i++) {
        const int stage = dp_schedule_slot(s, rank, i)->stage;
        if (stage == 0 || stage == s->stages - 1)
            return true;
    }
    return false;
}

/* Ranks that have a member of the tied parameters send each other gradients and values. */
static int add_tied(const struct dp_schedule *s, int rank, struct dp_nccl_peer *out)
{
    const unsigned sums = 1U << DP_CHANNEL_REDUCE;
    int count = 0;

    for (int r = 0; r < s->ranks && has_end(s, rank); r++)
        if (r != rank && has_end(s, r))
            out[count++] = (struct dp_nccl_peer){s->group_rank[r], sums, sums};
    return count;
}

int cuda_links_open(const struct cuda_links_config *config, struct dp_comm **out)
{
    struct dp_nccl_config nccl = {.device = config->device};
    struct dp_nccl_peer *peers =
        calloc(3 * (size_t)config->schedules[0]->ranks, sizeof(*peers));
    int count = 0, more = peers ? 0 : DP_ENOMEM;

    for (int i = 0; i < 2 && more >= 0; i++) {
        count += more;
        more = dp_pipeline_nccl_peers(config->schedules[i], config->rank, peers + count);
    }
    if (more < 0) {
        free(peers);
        return more;
    }
    count += more;
    if (config->tied)
        count += add_tied(config->schedules[0], config->rank, peers + count);
    nccl.peers = peers;
    nccl.peer_count = count;
    const int err = dp_comm_nccl_open(config->host, &nccl, out);
    free(peers);
    return err;
}
