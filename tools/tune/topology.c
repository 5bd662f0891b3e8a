/* SPDX-License-Identifier: Apache-2.0
 *
 * topology.c - from a cluster to the few numbers that the model of the tuner counts with. The
 * first host stands for all of them.
 */
#include "tune/tune.h"

#include "command.h"
#include "topo/topo.h"

#include <dualpipe/assignment.h>

#include <unistd.h>

bool tune_has_source(const struct tune_source *source)
{
    return source->topology || source->synthetic || source->sysfs;
}

int tune_load_topology(const struct tune_source *source, struct dp_topology **out)
{
    const char *const text = source->topology;
    struct topo_args args = {.synthetic = source->synthetic, .sysfs = source->sysfs};

    if (text && (args.synthetic || args.sysfs))
        return command_misused("expected one of --topology, --sysfs and --synthetic");
    if (text && !access(text, R_OK))
        args.inputs = (struct arg_list){1, {text}};
    else if (text)
        args.synthetic = text;
    return topo_load(&args, out);
}

static int64_t count_gpus(const struct dp_topology *t)
{
    int64_t count = 0;

    for (int32_t gpu = -1; (gpu = dp_topology_next(t, DP_TOPO_GPU, -1, gpu + 1)) >= 0;)
        count++;
    return count;
}

/* From NVSwitches of the third generation on, which those of Hopper are: the switch adds up. */
static bool has_nvls(const struct dp_topology *t)
{
    const int32_t gpu = dp_topology_next(t, DP_TOPO_GPU, -1, 0);

    return gpu >= 0 && t->nodes[gpu].sm >= 90 && dp_topology_next(t, DP_TOPO_NVSWITCH, -1, 0) >= 0;
}

int tune_read_topology(const struct tune_source *source, struct tune_place *out)
{
    struct dp_topology *t;
    int status = tune_load_topology(source, &t);

    if (status)
        return status;
    *out = (struct tune_place){
        .ranks = count_gpus(t), .nodes = dp_topology_domain_count(t), .has_nvls = has_nvls(t)};
    for (int32_t i = 0; i < t->note_count; i++)
        if (t->notes[i].kind == DP_TOPO_MISSING)
            fprintf(stderr, "not seen: %s\n", dp_topology_text(t, t->notes[i].text));
    int err = dp_topology_rates(t, &out->links.intra_gbs, &out->links.inter_gbs);
    dp_topology_free(t);
    return err ? command_failed(err) : EXIT_OK;
}

int tune_read_placement(const char *path, struct tune_place *out)
{
    struct dp_assignment *s;
    int err = dp_assignment_load(path, &s);

    if (err)
        return command_failed(err);
    *out = (struct tune_place){.links = {.intra_gbs = s->intra_gbs, .inter_gbs = s->inter_gbs},
                               .ranks = s->worker_count,
                               .nodes = s->node_total};
    dp_assignment_free(s);
    return EXIT_OK;
}
