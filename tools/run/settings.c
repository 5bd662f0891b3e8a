/* SPDX-License-Identifier: Apache-2.0
 *
 * settings.c - which variables the job gets, and what there is to say of each.
 */
#include "config.h"

#include "run/run.h"

#include "command.h"

#include <dualpipe/assignment.h>

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void add(struct run_settings *s, const char *name, const char *value)
{
    s->list[s->count++] = (struct run_setting){.name = name, .value = value};
}

void run_say(struct run_settings *s, const char *part, const char *fmt, ...)
{
    struct run_part *p = &s->parts[s->part_count];
    va_list args;

    if (s->part_count == RUN_PARTS_MAX)
        return;
    s->part_count++;
    p->name = part;
    va_start(args, fmt);
    vsnprintf(p->words, sizeof(p->words), fmt, args);
    va_end(args);
}

/* ---- what is to be set ----------------------------------------------------------------------- */

/* A table with a mistake is better found here than by every rank. */
static int add_table(const char *path, struct run_settings *s)
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

static void say_placement(const struct dp_assignment *assignment, struct run_settings *s)
{
    int flows = 0;

    for (int32_t i = 0; i < assignment->flow_count; i++)
        flows += assignment->flows[i].nic_from >= 0;
    run_say(
        s, "placement",
        "%s: %d workers (%d x %d), the NICs of %d flows, links of %g GB/s within a host and %g out "
        "of it",
        assignment->name, assignment->worker_count, assignment->replicas, assignment->ranks, flows,
        assignment->intra_gbs, assignment->inter_gbs);
}

static int add_placement(const char *path, struct run_settings *s)
{
    struct dp_assignment *assignment;
    int err = dp_assignment_load(path, &assignment);

    if (err) {
        command_failed(err);
        return EXIT_USAGE;
    }
    say_placement(assignment, s);
    dp_assignment_free(assignment);
    s->placement = realpath(path, NULL);
    if (!s->placement)
        return command_broke("%s: %s", path, strerror(errno));
    add(s, "DUALPIPE_PLACEMENT", s->placement);
    return 0;
}

static int add_links(const struct run_values *v, struct run_settings *s)
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
static bool is_ours(const char *variable)
{
    const char *set = getenv(variable);

    return !set || !*set || strstr(set, "dualpipe");
}

static void say_plugin(struct run_settings *s, const char *part, const char *variable, const char *path)
{
    if (is_ours(variable))
        run_say(s, part, "%s", path);
    else
        run_say(s, part, "not used: %s=%s", variable, getenv(variable));
}

/* A sanitizer must be loaded before anything else, so a library built with one cannot be preloaded.
 */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool can_preload = false;
#else
static const bool can_preload = true;
#endif

/* As execvp finds it. */
static bool find_program(const char *command, char *path, size_t room)
{
    const char *dir = getenv("PATH");

    if (strchr(command, '/'))
        return snprintf(path, room, "%s", command) < (int)room;
    for (; dir && *dir; dir += strcspn(dir, ":"), dir += *dir == ':')
        if (snprintf(path, room, "%.*s/%s", (int)strcspn(dir, ":"), dir, command) < (int)room &&
            !access(path, X_OK))
            return true;
    return false;
}

/* The program's file names the library of a sanitizer among those that it needs. A command that starts
 * others, as a shell does, is not looked into. */
static bool needs_sanitizer(const char *command)
{
    static const char *const names[] = {"libasan.so", "libtsan.so"};
    char path[4096];
    struct stat there;
    const bool there_is = command && find_program(command, path, sizeof(path));
    const int fd = there_is ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    const bool regular = fd >= 0 && !fstat(fd, &there) && S_ISREG(there.st_mode) && there.st_size > 4;
    const size_t len = regular ? (size_t)there.st_size : 0;
    char *file = regular ? mmap(NULL, len, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    bool found = false;

    if (fd >= 0)
        close(fd);
    if (file == MAP_FAILED)
        return false;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && !memcmp(file, "\177ELF", 4); i++)
        found = found || memmem(file, len, names[i], strlen(names[i]));
    munmap(file, len);
    return found;
}

/* Behind those that are preloaded already, whose functions stay the first. Not there: not built as
 * a shared library, which is no reason not to run. */
static int add_preload(const struct run_values *v, const char *command, struct run_settings *s)
{
    const char *set = getenv("LD_PRELOAD");
    char path[PLUGIN_PATH_LEN];
    const char *why = v->no_preload                         ? "--no-preload"
                      : !can_preload                        ? "it is built with a sanitizer"
                      : !plugin_path(PRELOAD_LIBRARY, path) ? "it is not installed"
                      : set && strstr(set, PRELOAD_LIBRARY) ? "it is in LD_PRELOAD already"
                      : set && strstr(set, "san.so")        ? NULL
                      : needs_sanitizer(command)
                          ? "the command is built with a sanitizer, which must be loaded first; it goes "
                            "behind one in LD_PRELOAD: LD_PRELOAD=$(gcc -print-file-name=libasan.so)"
                          : NULL;

    if (why) {
        run_say(s, "preload", "not added: %s", why);
        return 0;
    }
    const size_t len = strlen(path) + (set ? strlen(set) : 0) + 2;
    s->preload = malloc(len);
    if (!s->preload)
        return command_broke("no memory for a path");
    snprintf(s->preload, len, "%s%s%s", set ? set : "", set && *set ? ":" : "", path);
    add(s, "LD_PRELOAD", s->preload);
    s->list[s->count - 1].adds = true;
    if (!v->no_bind)
        add(s, "DUALPIPE_PRELOAD_BIND", "1");
    if (!v->exec && (!v->quiet || v->report) && !getenv("DUALPIPE_PRELOAD_STAT"))
        add(s, "DUALPIPE_PRELOAD_STAT", "1"); /* for the report */
    if (getenv("DUALPIPE_NET_STAT_DIR") && !getenv("DUALPIPE_PRELOAD_STAT_DIR"))
        add(s, "DUALPIPE_PRELOAD_STAT_DIR", getenv("DUALPIPE_NET_STAT_DIR"));
    run_say(s, "preload", "%s%s", path,
            getenv("DUALPIPE_PRELOAD_STAGE")
                ? ""
                : "; pageable copies stay CUDA's (DUALPIPE_PRELOAD_STAGE=1 stages them)");
    return 0;
}

static int missing(const char *file)
{
    return command_broke("%s is neither beside this program nor where it was to be installed",
                         file);
}

/* NCCL 2.27 to 2.29 forget a plugin's name when they let go of it. */
static void add_net(const struct run_values *v, struct run_settings *s)
{
    if (v->no_net) {
        run_say(s, "net plugin", "not used: --no-net");
        return;
    }
    add(s, "NCCL_NET_PLUGIN", s->plugin);
    if (is_ours("NCCL_NET_PLUGIN"))
        add(s, "NCCL_NET", "dualpipe");
    add(s, "NCCL_NET_PLUGIN_REF_COUNT", "1");
    if (!v->exec && !getenv("DUALPIPE_NET_STAT"))
        add(s, "DUALPIPE_NET_STAT", "1"); /* for the report */
    say_plugin(s, "net plugin", is_ours("NCCL_NET_PLUGIN") ? "NCCL_NET" : "NCCL_NET_PLUGIN", s->plugin);
}

/* Without a table and a model the tuner would change nothing, so NCCL is not given one. */
static int add_tuner(const struct run_values *v, struct run_settings *s)
{
    const bool is_asked = v->table || v->links || tune_has_source(&v->source);
    int status = 0;

    if (v->no_tuner && is_asked)
        return command_misused("--no-tuner goes with no --table, --links or --topology");
    if (v->no_tuner ||
        (!is_asked && !getenv("DUALPIPE_TUNER_TABLE") && !getenv("DUALPIPE_TUNER_LINKS"))) {
        run_say(s, "tuner", "not used: %s",
                v->no_tuner ? "--no-tuner"
                            : "no --table, --links or --topology; NCCL chooses by itself");
        return 0;
    }
    if (!plugin_path(TUNER_PLUGIN, s->tuner))
        return missing(s->tuner);
    add(s, "NCCL_TUNER_PLUGIN", s->tuner);
    if (v->table)
        status = add_table(v->table, s);
    if (!status && (v->links || tune_has_source(&v->source)))
        status = add_links(v, s);
    say_plugin(s, "tuner", "NCCL_TUNER_PLUGIN", s->tuner);
    return status;
}

/* A file is made now: a folder that is not there is better found here than by every rank. */
static int make_file(const char *path, char **absolute)
{
    FILE *file = fopen(path, "a");

    if (!file)
        return command_broke("%s: %s", path, strerror(errno));
    fclose(file);
    *absolute = realpath(path, NULL);
    return *absolute ? 0 : command_broke("%s: %s", path, strerror(errno));
}

static int add_traffic(const char *path, struct run_settings *s)
{
    const int status = make_file(path, &s->traffic);

    if (!status)
        add(s, "DUALPIPE_PROFILER_TRAFFIC", s->traffic);
    return status;
}

/* With a trace the events of the network are counted, too, and the net plugin names the rails. */
static int add_trace(const struct run_values *v, struct run_settings *s)
{
    const int status = make_file(v->trace, &s->trace);

    if (status)
        return status;
    add(s, "DUALPIPE_PROFILER_TRACE", s->trace);
    if (!getenv("DUALPIPE_PROFILER_STAT"))
        add(s, "DUALPIPE_PROFILER_STAT", "1");
    if (getenv("DUALPIPE_NET_STAT_DIR") && !getenv("DUALPIPE_PROFILER_STAT_DIR"))
        add(s, "DUALPIPE_PROFILER_STAT_DIR", getenv("DUALPIPE_NET_STAT_DIR"));
    if (!v->no_net && !getenv("DUALPIPE_NET_PROFILE"))
        add(s, "DUALPIPE_NET_PROFILE", "1");
    return 0;
}

static int add_profiler(const struct run_values *v, struct run_settings *s)
{
    int status = 0;

    if (!v->traffic && !v->trace) {
        run_say(s, "profiler", "not used: no --traffic or --trace");
        return 0;
    }
    if (v->traffic)
        status = add_traffic(v->traffic, s);
    if (!status && v->trace)
        status = add_trace(v, s);
    if (status)
        return status;
    if (!plugin_path(PROFILER_PLUGIN, s->profiler))
        return missing(PROFILER_PLUGIN);
    add(s, "NCCL_PROFILER_PLUGIN", s->profiler);
    run_say(s, "profiler", "%s, to %s%s%s", s->profiler, v->traffic ? s->traffic : "",
            v->traffic && v->trace ? " and " : "", v->trace ? s->trace : "");
    return 0;
}

/* It is written when the job is over. */
static int check_report(const char *path)
{
    char *absolute = NULL;
    const int status = make_file(path, &absolute);

    free(absolute);
    return status;
}

int run_settings_choose(const struct run_values *v, const char *command, struct run_settings *s)
{
    if (!plugin_path(NET_PLUGIN, s->plugin))
        return missing(s->plugin);
    add_net(v, s);
    int status = add_tuner(v, s);
    if (!status)
        status = add_profiler(v, s);
    if (!status)
        status = add_preload(v, command, s);
    if (!status && v->report)
        status = check_report(v->report);
    if (!v->placement && getenv("DUALPIPE_PLACEMENT"))
        run_say(s, "placement", "%s, as it was set before", getenv("DUALPIPE_PLACEMENT"));
    else if (!v->placement)
        run_say(s, "placement", "not used: no --placement");
    else if (!status)
        status = add_placement(v->placement, s);
    return status;
}

void run_settings_fini(struct run_settings *s)
{
    free(s->table);
    free(s->placement);
    free(s->preload);
    free(s->traffic);
    free(s->trace);
}
