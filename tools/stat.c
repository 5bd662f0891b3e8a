/* SPDX-License-Identifier: Apache-2.0
 *
 * stat.c - `dualpipe stat`: what the net plugin and the preload library count in this user's
 * processes.
 */
#include "config.h"

#include "args.h"
#include "command.h"
#include "commands.h"
#include "output.h"
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

static int write_prometheus(const char *path, const struct stat_list *list,
                            const struct stat_preload *preload)
{
    struct output out;
    int status = output_open(path, &out);

    return status ? status : output_close(&out, stat_print_prometheus(out.file, list, preload));
}

static int show(const struct values *v, const struct stat_list *list,
                const struct stat_list *before, const struct stat_preload *preload)
{
    if (v->prometheus)
        return write_prometheus(v->prometheus, list, preload);
    if (v->json)
        return stat_print_json(list, preload) ? command_broke("cannot write JSON") : EXIT_OK;
    if (v->follow && isatty(STDOUT_FILENO))
        fputs("\033[H\033[2J", stdout); /* a clean screen */
    stat_print_table(list, before, v->connections);
    stat_print_preload(preload);
    fflush(stdout);
    return EXIT_OK;
}

static int look(const struct values *v, struct stat_list *last)
{
    struct stat_preload preload = {0};
    struct stat_list list;
    int status = stat_read(v->directory, &list);

    if (status)
        return status;
    stat_preload_hold(&preload, v->directory, NULL);
    status = show(v, &list, last, &preload);
    stat_preload_fini(&preload);
    stat_list_fini(last);
    *last = list;
    return status;
}

static int look_on(const struct values *v)
{
    struct stat_list last = {0};
    int status = v->follow ? watch_signals() : 0;

    if (!status)
        status = look(v, &last);
    while (v->follow && !status && wait_for_next(v->interval_ns))
        status = look(v, &last);
    if (!status && last.refused)
        status = EXIT_FAILED;
    stat_list_fini(&last);
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
     DPN_STAT_DIRECTORY "UID)", ARG_STRING, .offset = offsetof(struct values, directory)},
};
static const struct arg_group groups[] = {{"options", args, sizeof(args) / sizeof(args[0])}, {0}};
static const struct usage usage = {
    .command = "dualpipe stat",
    .about = "Show what the net plugin counts in this user's processes on this machine, while\n"
             "they run: messages, bytes, stalls, retries, failovers, how large messages are and\n"
             "how long they take. It counts where DUALPIPE_NET_STAT=1 is set. What the preload\n"
             "library counts is shown, too, where DUALPIPE_PRELOAD_STAT=1 is set: pinned memory\n"
             "and where it is, copies, and those that are staged.",
    .groups = groups,
    .examples = "  dualpipe stat\n"
                "  dualpipe stat --follow --connections\n"
                "  dualpipe stat --json | jq '.processes[].devices'\n"
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
