/* SPDX-License-Identifier: Apache-2.0
 *
 * stat.c - `dualpipe stat`: what this user's training jobs do, and what the net plugin and the preload
 * library count in their processes.
 */
#include "config.h"

#include "args.h"
#include "command.h"
#include "commands.h"
#include "files.h"
#include "stat/stat.h"

#include <dualpipe/options.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

struct values {
    bool follow, connections, json;
    double interval_ns;
    const char *directory, *prometheus;
};

/* ---- again and again, until a signal --------------------------------------------------------- */

static int wake[2];

static void wake_up(int signal)
{
    (void)signal;
    if (write(wake[1], "", 1) < 0)
        return; /* full: it is awake */
}

/* A handler, as a thread of a library (BLAS has some) may be the one that gets the signal. */
static int watch_signals(void)
{
    const struct sigaction action = {.sa_handler = wake_up, .sa_flags = SA_RESTART};

    if (pipe2(wake, O_CLOEXEC | O_NONBLOCK))
        return command_broke("cannot make a pipe: %s", strerror(errno));
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    return 0;
}

/* false: it is time to end. */
static bool wait_for_next(double ns)
{
    struct pollfd fd = {.fd = wake[0], .events = POLLIN};

    poll(&fd, 1, (int)(ns / 1e6));
    return !fd.revents;
}

/* ---- one look -------------------------------------------------------------------------------- */

static const struct stat_kind *const kinds[] = {&stat_train, &stat_net, &stat_preload, &stat_profile};
enum { TRAIN, NET, PRELOAD, PROFILE, KINDS };

/* All that there is to see at a moment. */
struct seen {
    struct stat_list lists[KINDS];
};

static void seen_fini(struct seen *seen)
{
    for (int i = 0; i < KINDS; i++)
        stat_list_fini(&seen->lists[i]);
}

static int write_prometheus(const char *path, const struct seen *seen)
{
    struct output out;
    int status = output_open(path, &out);

    if (status)
        return status;
    for (int i = 0; i < KINDS; i++)
        if (i == NET || seen->lists[i].count)
            stat_prometheus(out.file, &seen->lists[i]);
    return output_close(&out, fflush(out.file) || ferror(out.file) ? DP_EIO : 0);
}

static int write_json(const struct seen *seen)
{
    json_t *all = json_pack("{ss, si, so, so, so, so}", "stat", "net", "format", STAT_FORMAT,
                            "processes", stat_net_json(&seen->lists[NET]), "preload",
                            stat_preload_json(&seen->lists[PRELOAD]), "profiles",
                            stat_profile_json(&seen->lists[PROFILE]), "jobs",
                            stat_jobs_json(&seen->lists[TRAIN]));
    const bool failed = !all || json_dumpf(all, stdout, JSON_INDENT(2));

    putchar('\n');
    json_decref(all);
    return failed || fflush(stdout) ? command_broke("cannot write JSON") : EXIT_OK;
}

static int show(const struct values *v, const struct seen *seen, const struct seen *before)
{
    if (v->prometheus)
        return write_prometheus(v->prometheus, seen);
    if (v->json)
        return write_json(seen);
    if (v->follow && isatty(STDOUT_FILENO))
        fputs("\033[H\033[2J", stdout); /* a clean screen */
    stat_net_print(&seen->lists[NET], &before->lists[NET], v->connections);
    stat_preload_print(&seen->lists[PRELOAD]);
    stat_profile_print(&seen->lists[PROFILE]);
    stat_jobs_print(&seen->lists[TRAIN]);
    fflush(stdout);
    return EXIT_OK;
}

static int look(const struct values *v, struct seen *last)
{
    struct seen seen = {0};
    int status = 0;

    for (int i = 0; i < KINDS && !status; i++)
        status = stat_read(kinds[i], v->directory, &seen.lists[i]);
    if (!status)
        status = show(v, &seen, last);
    seen_fini(last);
    *last = seen;
    return status;
}

static int look_on(const struct values *v)
{
    struct seen last = {0};
    int status = v->follow ? watch_signals() : 0;

    if (!status)
        status = look(v, &last);
    while (v->follow && !status && wait_for_next(v->interval_ns))
        status = look(v, &last);
    for (int i = 0; i < KINDS && !status; i++)
        status = last.lists[i].refused ? EXIT_FAILED : 0;
    seen_fini(&last);
    return status;
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Where the plugin writes, if the same variable says so here. */
static void take_directory(void *user, const struct dp_option_info *o)
{
    if (!strcmp(o->name, "DUALPIPE_NET_STAT_DIR") && o->value)
        *(const char **)user = o->value;
}

static const struct arg args[] = {
    {"follow", 'f', NULL, "again and again, until it is interrupted", ARG_FLAG,
     .offset = offsetof(struct values, follow)},
    {"interval", 0, "TIME", "from one look to the next", ARG_TIME,
     .offset = offsetof(struct values, interval_ns), .fallback = "1s", .min = 1e7, .max = 1e12},
    {"connections", 0, NULL, "a row for each connection, too", ARG_FLAG,
     .offset = offsetof(struct values, connections)},
    {"json", 0, NULL, "print JSON", ARG_FLAG, .offset = offsetof(struct values, json)},
    {"prometheus", 0, "FILE", "write Prometheus' text format; '-': to standard output", ARG_STRING,
     .offset = offsetof(struct values, prometheus), .written = true},
    {"dir", 0, "DIR", "where the counters are (default DUALPIPE_NET_STAT_DIR, or "
     DP_PAGE_DIRECTORY "UID)", ARG_STRING, .offset = offsetof(struct values, directory)},
};
static const struct arg_group groups[] = {{"options", args, sizeof(args) / sizeof(args[0])}, {0}};
static const struct usage usage = {
    .command = "dualpipe stat",
    .about = "Show what runs here of this user. Of training jobs (dualpipe train): step, loss,\n"
             "tokens/s, bubble, which rank waits for which, bytes, and ranks and links that hold\n"
             "the others up. Of NCCL jobs what the net plugin counts where DUALPIPE_NET_STAT=1 is\n"
             "set: messages, bytes, stalls, retries, failovers, how large messages are and how\n"
             "long they take; where DUALPIPE_PRELOAD_STAT=1 is set what the preload library\n"
             "counts: pinned memory and where it is, copies, and those that are staged; and where\n"
             "DUALPIPE_PROFILER_STAT=1 is set what NCCL's profiler counts: what a rank sends to which\n"
             "other, over which rail, and what it waits for.",
    .groups = groups,
    .examples = "  dualpipe stat\n"
                "  dualpipe stat --follow --connections\n"
                "  dualpipe stat --json | jq '.processes[].devices'\n"
                "  dualpipe stat --json | jq '.jobs[].ranks[] | {rank, waited_for}'\n"
                "  dualpipe stat --prometheus dualpipe.prom --follow --interval 15s\n",
};

int run_stat(int argc, char **argv)
{
    struct values v = {0};
    struct operands operands;
    int status;

    if (!args_parse(&usage, argc, argv, &v, &operands, &status))
        return status;
    if (v.json && v.prometheus)
        return command_misused("--json and --prometheus: expected one of them");
    if (!v.directory)
        dp_options_each(take_directory, &v.directory);
    return look_on(&v);
}
