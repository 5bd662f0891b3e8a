/* SPDX-License-Identifier: Apache-2.0
 *
 * run.c - `dualpipe run -- COMMAND`: a job as it is, with NCCL's net and tuner plugins and the
 * preload library of this program. It sets variables and becomes the command.
 */
#include "command.h"
#include "commands.h"
#include "plugin_path.h"
#include "tune/tune.h"

#include <dualpipe/assignment.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_CANNOT_RUN = 126, EXIT_NOT_FOUND = 127, SETTINGS_MAX = 12 };

struct values {
    struct tune_source source;
    const char *table, *links, *placement, *traffic;
    bool no_net, no_tuner, no_preload, only_prints;
};

struct setting {
    const char *name, *value;
};

/* What is to be set, and the memory that it needs. */
struct settings {
    size_t count;
    struct setting list[SETTINGS_MAX];
    char *table, *placement, *preload, *traffic;
    char plugin[PLUGIN_PATH_LEN], tuner[PLUGIN_PATH_LEN], profiler[PLUGIN_PATH_LEN];
    char links[DP_TUNING_LINKS_LEN];
};

static void add(struct settings *s, const char *name, const char *value)
{
    s->list[s->count++] = (struct setting){name, value};
}

/* ---- what is to be set ----------------------------------------------------------------------- */

/* A table with a mistake is better found here than by every rank. */
static int add_table(const char *path, struct settings *s)
{
    struct dp_tuning_table *table;
    int err = dp_tuning_table_load(path, &table);

    if (err)
        return command_failed(err);
    dp_tuning_table_free(table);
    s->table = realpath(path, NULL); /* the command may go elsewhere */
    if (!s->table)
        return command_broke("%s: %s", path, strerror(errno));
    add(s, "DUALPIPE_TUNER_TABLE", s->table);
    return 0;
}

/* What it is used for is told, as a job does not say much. */
static void say_placement(const struct dp_assignment *assignment)
{
    int flows = 0;

    for (int32_t i = 0; i < assignment->flow_count; i++)
        flows += assignment->flows[i].nic_from >= 0;
    fprintf(stderr,
            "dualpipe: placement %s: %d workers (%d x %d), the NICs of %d flows, links of %g "
            "GB/s within a host and %g out of it\n",
            assignment->name, assignment->worker_count, assignment->replicas, assignment->ranks,
            flows, assignment->intra_gbs, assignment->inter_gbs);
}

static int add_placement(const char *path, struct settings *s)
{
    struct dp_assignment *assignment;
    int err = dp_assignment_load(path, &assignment);

    if (err) {
        command_failed(err);
        return EXIT_USAGE;
    }
    say_placement(assignment);
    dp_assignment_free(assignment);
    s->placement = realpath(path, NULL);
    if (!s->placement)
        return command_broke("%s: %s", path, strerror(errno));
    add(s, "DUALPIPE_PLACEMENT", s->placement);
    return 0;
}

static int add_links(const struct values *v, struct settings *s)
{
    struct tune_place place;

    if (v->links && tune_has_source(&v->source))
        return command_misused("--links and --topology: expected one of the two");
    if (tune_has_source(&v->source)) {
        int status = tune_read_topology(&v->source, &place);
        if (status)
            return status;
    } else {
        int err = dp_tuning_links_parse(v->links, &place.links);
        if (err)
            return command_failed(err);
    }
    add(s, "DUALPIPE_TUNER_LINKS", dp_tuning_links_text(&place.links, s->links));
    return 0;
}

/* What the user has set stays; with another plugin no net would have our name. */
static bool is_our_net(const char *set)
{
    return !set || !*set || strstr(set, "dualpipe");
}

/* A sanitizer must be loaded before anything else, so a library built with one cannot be preloaded. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool can_preload = false;
#else
static const bool can_preload = true;
#endif

/* Behind those that are preloaded already, whose functions stay the first. Not there: not built as
 * a shared library, which is no reason not to run. */
static int add_preload(struct settings *s)
{
    const char *set = getenv("LD_PRELOAD");
    char path[PLUGIN_PATH_LEN];

    if (!can_preload || !plugin_path(PRELOAD_LIBRARY, path) || (set && strstr(set, PRELOAD_LIBRARY)))
        return 0;
    const size_t len = strlen(path) + (set ? strlen(set) : 0) + 2;
    s->preload = malloc(len);
    if (!s->preload)
        return command_broke("no memory for a path");
    snprintf(s->preload, len, "%s%s%s", set ? set : "", set && *set ? ":" : "", path);
    add(s, "LD_PRELOAD", s->preload);
    return 0;
}

/* Without a table and a model the tuner would change nothing, so NCCL is not given one. */
static int add_tuner(const struct values *v, struct settings *s)
{
    const bool is_asked = v->table || v->links || tune_has_source(&v->source);
    int status = 0;

    if (v->no_tuner)
        return is_asked ? command_misused("--no-tuner goes with no --table, --links or --topology")
                        : 0;
    if (!is_asked && !getenv("DUALPIPE_TUNER_TABLE") && !getenv("DUALPIPE_TUNER_LINKS"))
        return 0;
    if (!plugin_path(TUNER_PLUGIN, s->tuner))
        return command_broke("%s is neither beside this program nor where it was to be installed",
                             s->tuner);
    add(s, "NCCL_TUNER_PLUGIN", s->tuner);
    if (v->table)
        status = add_table(v->table, s);
    if (!status && (v->links || tune_has_source(&v->source)))
        status = add_links(v, s);
    return status;
}

/* Its file is made now: a folder that is not there is better found here than by every rank. */
static int add_traffic(const char *path, struct settings *s)
{
    FILE *file = fopen(path, "a");

    if (!file)
        return command_broke("%s: %s", path, strerror(errno));
    fclose(file);
    s->traffic = realpath(path, NULL);
    if (!s->traffic)
        return command_broke("%s: %s", path, strerror(errno));
    if (!plugin_path(PROFILER_PLUGIN, s->profiler))
        return command_broke("%s is neither beside this program nor where it was to be installed",
                             PROFILER_PLUGIN);
    add(s, "NCCL_PROFILER_PLUGIN", s->profiler);
    add(s, "DUALPIPE_PROFILER_TRAFFIC", s->traffic);
    return 0;
}

/* NCCL 2.27 to 2.29 forget a plugin's name when they let go of it. */
static int choose(const struct values *v, struct settings *s)
{
    const char *plugin = s->plugin;
    int status = 0;

    if (!plugin_path(NET_PLUGIN, s->plugin))
        return command_broke("%s is neither beside this program nor where it was to be installed",
                             plugin);
    if (!v->no_preload && (status = add_preload(s)))
        return status;
    if (!v->no_net) {
        add(s, "NCCL_NET_PLUGIN", plugin);
        if (is_our_net(getenv("NCCL_NET_PLUGIN")))
            add(s, "NCCL_NET", "dualpipe");
        add(s, "NCCL_NET_PLUGIN_REF_COUNT", "1");
    }
    if (v->placement && (status = add_placement(v->placement, s)))
        return status;
    if (v->traffic && (status = add_traffic(v->traffic, s)))
        return status;
    return add_tuner(v, s);
}

/* ---- setting and becoming -------------------------------------------------------------------- */

/* In quotes, as a shell takes it. */
static void print_quoted(const char *value)
{
    putchar('\'');
    for (; *value; value++)
        fputs(*value == '\'' ? "'\\''" : (char[]){*value, '\0'}, stdout);
    putchar('\'');
}

static void print_settings(const struct settings *s)
{
    for (size_t i = 0; i < s->count; i++) {
        printf("export %s=", s->list[i].name);
        print_quoted(s->list[i].value);
        putchar('\n');
    }
}

/* What the user has set already is the user's wish. */
static int apply(const struct settings *s)
{
    for (size_t i = 0; i < s->count; i++) {
        const char *set = getenv(s->list[i].name);
        const bool adds = s->list[i].value == s->preload; /* to what was set */
        if (set && !adds && strcmp(set, s->list[i].value))
            fprintf(stderr, "dualpipe: %s=%s stays, it was set before\n", s->list[i].name, set);
        else if (setenv(s->list[i].name, s->list[i].value, 1))
            return command_broke("cannot set %s: %s", s->list[i].name, strerror(errno));
    }
    return 0;
}

static int become(char **command)
{
    execvp(command[0], command);
    int err = errno;
    command_broke("cannot run %s: %s", command[0], strerror(err));
    return err == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN;
}

static int run(const struct values *v, const struct operands *operands)
{
    struct settings s = {0};
    int status = choose(v, &s);

    if (!status && v->only_prints)
        print_settings(&s);
    else if (!status && !operands->count)
        status = command_misused("no command to run, expected one behind --");
    else if (!status && !(status = apply(&s)))
        status = become(operands->items);
    free(s.table);
    free(s.placement);
    free(s.preload);
    free(s.traffic);
    return status;
}

/* ---- the command ----------------------------------------------------------------------------- */

#define AT(member) .offset = offsetof(struct values, member)
static const struct arg args[] = {
    {"table", 'T', "FILE", "rules for the tuner", ARG_STRING, AT(table), .min = 0},
    {"links", 'l', "LINKS", "for its cost model: as in intra=450,inter=400", ARG_STRING, AT(links),
     .min = 0},
    {"topology", 't', "FILE", "of topo json, to work the links out from", ARG_STRING,
     AT(source.topology), .min = 0},
    {"synthetic", 's', "STR", "the same from a description in a few words", ARG_STRING,
     AT(source.synthetic), .min = 0},
    {"sysfs", 0, "DIR", "the same from a machine whose /sys was captured below DIR", ARG_STRING,
     AT(source.sysfs), .min = 0},
    {"placement", 0, "FILE", "of topo place: for ranks, the net plugin and the tuner", ARG_STRING,
     AT(placement), .min = 0},
    {"traffic", 0, "FILE", "add to it what every rank sends to whom, for topo place --traffic",
     ARG_STRING, AT(traffic), .min = 0},
    {"no-net", 0, NULL, "leave the network to NCCL", ARG_FLAG, AT(no_net), .min = 0},
    {"no-tuner", 0, NULL, "leave the choice of algorithms to NCCL", ARG_FLAG, AT(no_tuner),
     .min = 0},
    {"no-preload", 0, NULL, "leave CUDA's pinned memory where CUDA puts it", ARG_FLAG,
     AT(no_preload), .min = 0},
    {"print", 'p', NULL, "only print what would be set, for a shell", ARG_FLAG, AT(only_prints),
     .min = 0},
};

int run_run(int argc, char **argv)
{
    const struct arg_group groups[] = {
        {"what the job gets", args, sizeof(args) / sizeof(args[0])},
        {0},
    };
    const struct usage usage = {
        .command = "dualpipe run",
        .operands = "[-- COMMAND [ARGUMENT...]]",
        .about = "Run a job that uses NCCL, as it is, with the net and the tuner plugin and the\n"
                 "preload library: set NCCL's variables and LD_PRELOAD, and become the command.\n"
                 "What is set already stays. Ranks on other machines need the same, so it goes\n"
                 "behind mpirun or srun.",
        .groups = groups,
        .examples =
            "  dualpipe run -- python train.py\n"
            "  mpirun -np 16 dualpipe run --table cluster.csv -- all_reduce_perf -b 1K -e 1G\n"
            "  dualpipe run --no-net --synthetic dgx-h100 --print\n",
    };
    struct operands operands;
    struct values v;
    int status;

    if (!args_parse(&usage, argc, argv, &v, &operands, &status))
        return status;
    return run(&v, &operands);
}
