/* SPDX-License-Identifier: Apache-2.0
 *
 * topology.c - from a cluster to the few numbers that the model of the tuner counts with. The
 * first host stands for all of them.
 */
#include "tune/tune.h"

#include "command.h"
#include "topo/topo.h"

#include <dualpipe/seats.h>

#include <unistd.h>

/* 0, else an EXIT_ value. */
static int load(const char *text, struct dp_topology **out)
{
    struct topo_args args = {.synthetic = text};

    if (!access(text, R_OK))
        args = (struct topo_args){.inputs = {1, {text}}};
    return topo_load(&args, out);
}

static int64_t count_gpus(const struct dp_topology *t)
{
    int64_t count = 0;

    for (int32_t gpu = -1; (gpu = dp_topology_next(t, DP_TOPO_GPU, -1, gpu + 1)) >= 0;)
        count++;
    return count;
}

int tune_read_topology(const char *text, struct dp_tuning_links *links, int64_t *ranks,
                       int64_t *nodes)
{
    struct dp_topology *t;
    int status = load(text, &t);

    if (status)
        return status;
    *links = (struct dp_tuning_links){0};
    *ranks = count_gpus(t);
    *nodes = dp_topology_domain_count(t);
    int err = dp_topology_rates(t, &links->intra_gbs, &links->inter_gbs);
    dp_topology_free(t);
    return err ? command_failed(err) : EXIT_OK;
}

int tune_read_placement(const char *path, struct dp_tuning_links *links, int64_t *ranks,
                        int64_t *nodes)
{
    struct dp_seats *s;
    int err = dp_seats_load(path, &s);

    if (err)
        return command_failed(err);
    *links = (struct dp_tuning_links){.intra_gbs = s->intra_gbs, .inter_gbs = s->inter_gbs};
    *ranks = s->seat_count;
    *nodes = s->node_total;
    dp_seats_free(s);
    return EXIT_OK;
}
