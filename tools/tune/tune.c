/* SPDX-License-Identifier: Apache-2.0
 *
 * tune.c - `dualpipe tune COMMAND ...`: the table of its commands, and what they share.
 */
#include "tune/tune.h"

#include "command.h"
#include "commands.h"
#include "topo/topo.h"

#include <dualpipe/assignment.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct command commands[] = {
    {"explain", "what the tuner would answer, size by size, and why", run_tune_explain},
    {"fit", "turn what NCCL's tests measured into a table for the tuner", run_tune_fit},
    {0},
};

static const struct command_set set = {
    .name = "dualpipe tune",
    .about = "Which algorithm and protocol NCCL uses for a collective, by the tuner plugin\n"
             "libnccl-tuner-dualpipe.so.",
    .commands = commands,
    .examples = "  dualpipe tune explain allreduce --ranks 16 --nodes 2 --links intra=450,inter=400\n"
                "  dualpipe tune explain --topology dgx-h100 --table cluster.csv\n"
                "  dualpipe tune fit own.txt ring/ll128=b.txt tree/ll=c.txt -o cluster.csv\n",
};

int run_tune(int argc, char **argv)
{
    return command_dispatch(&set, argc, argv);
}

/* ---- words ---------------------------------------------------------------------------------- */

const char *tune_cell_text(int algorithm, int protocol, char out[TUNE_CELL_LEN])
{
    snprintf(out, TUNE_CELL_LEN, "%s/%s", dp_name(DP_NAMES_ALGORITHM, algorithm),
             dp_name(DP_NAMES_PROTOCOL, protocol));
    return out;
}

int tune_find(enum dp_names names, int count, const char *name, size_t len)
{
    for (int i = 0; i < count; i++)
        if (strlen(dp_name(names, i)) == len && !strncmp(dp_name(names, i), name, len))
            return i;
    return -1;
}

/* ---- rules ----------------------------------------------------------------------------------- */

enum { SIZES_SHOWN = 3, SIZE_LEN = 96 };

static bool admits(const struct dp_tuning_range *range, int64_t number)
{
    return number >= range->least && number <= range->most;
}

/* "16 ranks", "2-8 nodes", "any number of ranks" */
static void put_range(const struct dp_tuning_range *range, const char *what, char *out, size_t room)
{
    if (range->least == range->most)
        snprintf(out, room, "%" PRId64 " %s%s", range->least, what, range->least == 1 ? "" : "s");
    else if (range->most == INT64_MAX && !range->least)
        snprintf(out, room, "any number of %ss", what);
    else if (range->most == INT64_MAX)
        snprintf(out, room, "%" PRId64 " %ss or more", range->least, what);
    else
        snprintf(out, room, "%" PRId64 "-%" PRId64 " %ss", range->least, range->most, what);
}

static bool is_size_of(const struct dp_tuning_rule *a, const struct dp_tuning_rule *b)
{
    return !memcmp(&a->ranks, &b->ranks, sizeof(a->ranks)) &&
           !memcmp(&a->nodes, &b->nodes, sizeof(a->nodes));
}

/* Whether an earlier rule about the same collective is for the same sizes. */
static bool is_repeated(const struct dp_tuning_table *table, size_t rule)
{
    for (size_t i = 0; i < rule; i++)
        if (table->rules[i].function == table->rules[rule].function &&
            is_size_of(&table->rules[i], &table->rules[rule]))
            return true;
    return false;
}

static void put_sizes(const struct dp_tuning_table *table, int function, FILE *to)
{
    char ranks[SIZE_LEN], nodes[SIZE_LEN];
    int shown = 0;

    for (size_t i = 0; i < table->count; i++) {
        const struct dp_tuning_rule *rule = &table->rules[i];
        if (rule->function != function || is_repeated(table, i))
            continue;
        if (shown++ == SIZES_SHOWN) {
            fputs(", ...", to);
            return;
        }
        put_range(&rule->ranks, "rank", ranks, sizeof(ranks));
        put_range(&rule->nodes, "node", nodes, sizeof(nodes));
        fprintf(to, "%s%s on %s", shown > 1 ? ", for " : "", ranks, nodes);
    }
}

void tune_warn_of_size(const struct dp_tuning_table *table, int function, int64_t ranks,
                       int64_t nodes, FILE *to)
{
    const char *name = dp_name(DP_NAMES_FUNCTION, function);
    size_t about = 0;

    for (size_t i = 0; i < table->count; i++) {
        const struct dp_tuning_rule *rule = &table->rules[i];
        if (rule->function != function)
            continue;
        if (admits(&rule->ranks, ranks) && admits(&rule->nodes, nodes))
            return;
        about++;
    }
    if (!about) {
        fprintf(to, "dualpipe: %s: no rule is about %s\n", table->name, name);
        return;
    }
    fprintf(to,
            "dualpipe: %s: no rule about %s is for %" PRId64 " ranks on %" PRId64
            " node%s; they are for ",
            table->name, name, ranks, nodes, nodes == 1 ? "" : "s");
    put_sizes(table, function, to);
    fputc('\n', to);
}

/* ---- clusters -------------------------------------------------------------------------------- */

/* From a cluster to the few numbers that the model of the tuner counts with. The first host stands for
 * all of them. */

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
        .ranks = dp_topology_count(t, DP_TOPO_GPU, -1),
        .nodes = dp_topology_domain_count(t),
        .has_nvls = has_nvls(t)};
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
