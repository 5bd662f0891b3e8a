/* SPDX-License-Identifier: Apache-2.0
 *
 * suggest.c - what the traffic of a job says about the places of its ranks: which link is the slowest,
 * which two ranks to swap, and how much another order would save.
 */
#include "config.h"

#include "run/run.h"

#include "command.h"
#include "files.h"

#include <dualpipe/placement.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TRAFFIC_BYTES_MAX = 1 << 30, SWAP_RANKS_MAX = 128 /* all pairs are tried */ };
static const double least_gain = 0.01;

/* What this run has added to the file. */
static struct dp_traffic_matrix *read_traffic(const char *path, size_t from)
{
    struct dp_traffic_matrix *m = NULL;
    size_t len;
    char *text = input_read(path, TRAFFIC_BYTES_MAX, &len);

    if (!text || len <= from)
        fprintf(stderr, "dualpipe: no communicator of NCCL has written to %s\n", path);
    else if (dp_traffic_read(text + from, len - from, path, &m))
        m = NULL; /* said */
    free(text);
    return m;
}

/* The GPUs of its workers; false: it is of other ranks, or of another cluster. */
static bool list_placed(const struct dp_assignment *p, bool keeps_ranks, const struct dp_topology *t,
                        int ranks, int32_t *gpus)
{
    bool is_listed = p->worker_count == ranks;

    for (int w = 0; w < ranks && is_listed; w++) {
        int32_t *gpu = &gpus[keeps_ranks ? p->workers[w].process : w];
        const char *label = dp_assignment_text(p, p->nodes[p->workers[w].gpu].label);
        is_listed = !dp_topology_find(t, label, gpu) && t->nodes[*gpu].kind == DP_TOPO_GPU;
    }
    return is_listed;
}

/* Where the ranks were: by the placement, or the first GPUs. */
static bool list_gpus(const struct run_settings *s, const struct dp_topology *t, int ranks,
                      int32_t *gpus)
{
    struct dp_assignment *p = NULL;
    const bool is_placed = s->placement && !dp_assignment_load(s->placement, &p) &&
                           list_placed(p, s->keeps_ranks, t, ranks, gpus);
    int32_t gpu = is_placed ? 0 : -1;

    dp_assignment_free(p);
    for (int i = 0; i < ranks && !is_placed; i++) {
        gpu = dp_topology_next(t, DP_TOPO_GPU, -1, gpu + 1);
        gpus[i] = gpu;
        if (gpu < 0)
            break;
    }
    return gpu >= 0;
}

/* ---- the best swap --------------------------------------------------------------------------- */

struct swap {
    int a, b;
    double slowest_ns;
};

static void try_swap(const struct dp_placement_spec *spec, int32_t *gpus, int a, int b,
                     struct swap *best)
{
    const int32_t first = gpus[a];
    double ns;

    gpus[a] = gpus[b];
    gpus[b] = first;
    if (!dp_placement_weigh(spec, gpus, &ns) && ns < best->slowest_ns)
        *best = (struct swap){a, b, ns};
    gpus[b] = gpus[a];
    gpus[a] = first;
}

static struct swap find_swap(const struct dp_placement_spec *spec, int32_t *gpus, double before_ns)
{
    const int ranks = spec->measured->ranks;
    struct swap best = {-1, -1, before_ns * (1 - least_gain)};

    for (int a = 0; a < ranks && ranks <= SWAP_RANKS_MAX; a++)
        for (int b = a + 1; b < ranks; b++)
            try_swap(spec, gpus, a, b, &best);
    return best;
}

/* ---- in words -------------------------------------------------------------------------------- */

/* The busiest link as the ranks came. */
static const struct dp_placed_link *slowest_before(const struct dp_placement *p)
{
    const struct dp_placed_link *slowest = NULL;

    for (int32_t i = 0; i < p->link_count; i++)
        if (!slowest || p->links[i].before_ns > slowest->before_ns)
            slowest = &p->links[i];
    return slowest;
}

static const char *name_link(const struct dp_topology *t, const struct dp_placed_link *link,
                             char *text, size_t len)
{
    char from[DP_TOPO_LABEL_LEN], to[DP_TOPO_LABEL_LEN];

    snprintf(text, len, "%s to %s", dp_topology_label(t, link->from, from),
             dp_topology_label(t, link->to, to));
    return text;
}

static const struct dp_measured_flow *largest_flow(const struct dp_traffic_matrix *m)
{
    const struct dp_measured_flow *largest = NULL;

    for (int32_t i = 0; i < m->flow_count; i++)
        if (!largest || m->flows[i].bytes > largest->bytes)
            largest = &m->flows[i];
    return largest;
}

static int percent_less(double after, double before)
{
    return (int)(100 * (1 - after / before) + 0.5);
}

static void say_gain(const struct dp_placement_spec *spec, const struct dp_placement *p,
                     int32_t *gpus, const char *path)
{
    const struct dp_placed_link *link = slowest_before(p);
    const struct swap swap = find_swap(spec, gpus, p->before_ns);
    const int order = percent_less(p->after_ns, p->before_ns);
    char name[2 * DP_TOPO_LABEL_LEN + 8];

    if (!link || p->before_ns <= 0)
        return;
    fprintf(stderr, "dualpipe: the slowest link of what NCCL sent: %s, busy for %.3g s\n",
            name_link(spec->topology, link, name, sizeof(name)), p->before_ns / 1e9);
    if (swap.a >= 0)
        fprintf(stderr, "dualpipe: swap ranks %d and %d: %d %% less over the slowest link\n", swap.a,
                swap.b, percent_less(swap.slowest_ns, p->before_ns));
    if (order >= 1)
        fprintf(stderr,
                "dualpipe: another order: %d %% less; dualpipe topo place --traffic %s -f assignment -o "
                "FILE, then run --placement FILE\n",
                order, path);
    else
        fputs("dualpipe: no other order of the ranks is better\n", stderr);
}

static void suggest(const struct dp_traffic_matrix *m, const struct dp_topology *t, int32_t *gpus,
                    const char *path)
{
    const struct dp_placement_spec spec = {
        .topology = t, .measured = m, .replicas = 1, .gpus = gpus};
    struct dp_placement *p;

    if (dp_placement_new(&spec, &p))
        return; /* said */
    say_gain(&spec, p, gpus, path);
    dp_placement_free(p);
}

static void say_matrix(const struct dp_traffic_matrix *m)
{
    const struct dp_measured_flow *largest = largest_flow(m);
    double bytes = 0;
    char all[16], most[16];

    for (int32_t i = 0; i < m->flow_count; i++)
        bytes += m->flows[i].bytes;
    fprintf(stderr, "dualpipe: NCCL sent %s between %d ranks",
            stat_bytes_text(bytes, all, sizeof(all)), m->ranks);
    if (largest)
        fprintf(stderr, ", most from rank %d to %d, %s", largest->from, largest->to,
                stat_bytes_text(largest->bytes, most, sizeof(most)));
    if (m->missing)
        fprintf(stderr, "; %d ranks have written nothing", m->missing);
    fputs("\n", stderr);
}

void run_suggest(const struct run_values *v, const struct run_settings *s)
{
    struct dp_traffic_matrix *m = s->traffic ? read_traffic(s->traffic, s->traffic_from) : NULL;
    int32_t *gpus = m ? malloc((size_t)m->ranks * sizeof(*gpus)) : NULL;
    struct dp_topology *t = NULL;

    if (m)
        say_matrix(m);
    if (gpus && m->flow_count) {
        const bool is_given = tune_has_source(&v->source);
        if (!is_given)
            command_mute(true);
        const int err = is_given ? tune_load_topology(&v->source, &t)
                                 : dp_topology_read_sysfs("/", &t);
        const bool is_listed = !err && list_gpus(s, t, m->ranks, gpus);
        command_mute(false);
        if (is_listed)
            suggest(m, t, gpus, s->traffic);
        else if (!err)
            fprintf(stderr,
                    "dualpipe: no suggestion for %d ranks: the topology has fewer GPUs; --topology "
                    "describes the cluster\n",
                    m->ranks);
    }
    dp_topology_free(t);
    free(gpus);
    dp_traffic_free(m);
}
