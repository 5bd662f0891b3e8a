/* SPDX-License-Identifier: Apache-2.0
 *
 * report.c - what a job has done. Every rank adds a line of JSON to a file, in one write; the first rank
 * says its own in words.
 *
 *      {"ended_ns": 1, "rank": 0, "size": 2, "host": "node0", "status": 0, "seconds": 1.5, ...}
 */
#include "config.h"

#include "run/run.h"

#include "command.h"
#include "nccl-plugin/net/stat_page.h"
#include "offload/preload/page.h"

#include <jansson.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- a rank's line --------------------------------------------------------------------------- */

static const struct {
    const char *name;
    bool is_sent;
    enum dpn_stat_value what;
} columns[] = {
    {"sent_bytes", true, DPN_STAT_BYTES},      {"sent_messages", true, DPN_STAT_MESSAGES},
    {"received_bytes", false, DPN_STAT_BYTES}, {"received_messages", false, DPN_STAT_MESSAGES},
    {"stalls", true, DPN_STAT_STALLS},         {"stall_ns", true, DPN_STAT_STALL_NS},
    {"sent_again", true, DPN_STAT_RETRIES},    {"failovers", true, DPN_STAT_FAILOVERS},
    {"errors", true, DPN_STAT_ERRORS},
};
enum { COLUMNS = sizeof(columns) / sizeof(columns[0]), DEVICE = 0, WAY };

static bool is_sent(const struct stat_row *row)
{
    return *stat_field(row, WAY) == 's';
}

/* Of a row of what was sent, what came in by the same device. */
static const struct stat_row *find_received(const struct stat_rows *rows, const struct stat_row *sent)
{
    for (int i = 0; i < rows->count; i++)
        if (!is_sent(&rows->list[i]) &&
            !strcmp(stat_field(&rows->list[i], DEVICE), stat_field(sent, DEVICE)))
            return &rows->list[i];
    return sent; /* of a page that is damaged */
}

static json_t *make_devices(const struct stat_rows *rows)
{
    json_t *list = json_array();

    for (int i = 0; i < rows->count; i++) {
        const struct stat_row *out = &rows->list[i];
        if (!is_sent(out))
            continue;
        json_t *one = json_pack("{s:s}", "name", stat_field(out, DEVICE));
        for (int c = 0; c < COLUMNS; c++) {
            const struct stat_row *row = columns[c].is_sent ? out : find_received(rows, out);
            json_object_set_new(one, columns[c].name,
                                json_integer((json_int_t)row->values[columns[c].what]));
        }
        json_array_append_new(list, one);
    }
    return list;
}

static json_t *make_preload(const struct stat_rows *preload)
{
    static const struct stat_row none;
    json_t *counts = json_object();

    stat_json_values(counts, &stat_preload, preload->count ? preload->list : &none, 0, dpo_values - 1);
    return counts;
}

static json_t *make_line(const struct dp_process *process, const struct run_outcome *o)
{
    const bool was_killed = WIFSIGNALED(o->how);
    struct timespec now;
    char host[256] = "";

    gethostname(host, sizeof(host) - 1);
    clock_gettime(CLOCK_REALTIME, &now);
    return json_pack(
        "{s:I, s:i, s:i, s:s, s:i, s:i, s:f, s:f, s:f, s:i, s:o, s:o}", "ended_ns",
        (json_int_t)(now.tv_sec * INT64_C(1000000000) + now.tv_nsec), "rank",
        process->rank < 0 ? 0 : process->rank, "size", process->size < 1 ? 1 : process->size, "host",
        host, "status",
        was_killed ? 0 : WEXITSTATUS(o->how), "signal", was_killed ? WTERMSIG(o->how) : 0,
        "seconds", o->seconds, "cpu_seconds", o->cpu_seconds, "most_bytes", o->most_bytes,
        "processes", o->processes, "devices", make_devices(&o->sent.sums[0]), "preload",
        make_preload(&o->preload.sums[0]));
}

static int add_line(const char *path, const json_t *line)
{
    char *text = json_dumps(line, JSON_REAL_PRECISION(9));
    const size_t len = text ? strlen(text) : 0;
    int status = 0;

    if (!text)
        return command_broke("no memory for a report");
    text[len] = '\n'; /* the place of the NUL */
    const int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, text, len + 1) != (ssize_t)len + 1)
        status = command_broke("cannot write %s: %s", path, strerror(errno));
    if (fd >= 0 && close(fd) && !status)
        status = command_broke("cannot write %s: %s", path, strerror(errno));
    free(text);
    return status;
}

/* ---- in words -------------------------------------------------------------------------------- */

static void say_end(const struct run_outcome *o)
{
    char memory[32];

    fprintf(stderr,
            "dualpipe: ended after %.2f s, %.2f s of CPU time, at most %s of memory in a process",
            o->seconds, o->cpu_seconds, stat_bytes_text(o->most_bytes, memory, sizeof(memory)));
    if (WIFSIGNALED(o->how))
        fprintf(stderr, "; killed by signal %d (%s)\n", WTERMSIG(o->how), strsignal(WTERMSIG(o->how)));
    else if (WEXITSTATUS(o->how))
        fprintf(stderr, "; exit status %d\n", WEXITSTATUS(o->how));
    else
        fputs("\n", stderr);
}

static void say_devices(const struct run_outcome *o)
{
    char sent[32], received[32];

    if (!o->processes)
        fputs("dualpipe: the net plugin was not used, or not in a process that could be seen\n",
              stderr);
    for (int i = 0; i < o->sent.sums[0].count; i++) {
        const struct stat_row *row = &o->sent.sums[0].list[i];
        const uint64_t *out = row->values, *in = find_received(&o->sent.sums[0], row)->values;
        if (!is_sent(row))
            continue;
        fprintf(stderr,
                "dualpipe: %s: sent %s in %llu messages, received %s in %llu; waited %.2f s for "
                "receivers, %llu sent again, %llu failovers, %llu errors\n",
                stat_field(row, DEVICE),
                stat_bytes_text((double)out[DPN_STAT_BYTES], sent, sizeof(sent)),
                (unsigned long long)out[DPN_STAT_MESSAGES],
                stat_bytes_text((double)in[DPN_STAT_BYTES], received, sizeof(received)),
                (unsigned long long)in[DPN_STAT_MESSAGES], (double)out[DPN_STAT_STALL_NS] / 1e9,
                (unsigned long long)out[DPN_STAT_RETRIES],
                (unsigned long long)out[DPN_STAT_FAILOVERS],
                (unsigned long long)out[DPN_STAT_ERRORS]);
    }
}

static void say_preload(const struct run_outcome *o, bool is_preloaded)
{
    char text[256];

    if (*stat_preload_text(&o->preload, text, sizeof(text)))
        fprintf(stderr, "dualpipe: %s\n", text);
    else if (is_preloaded)
        fputs("dualpipe: the preload library was not used: no process that could be seen called "
              "CUDA\n",
              stderr);
}

int run_report(const struct run_values *v, const struct dp_process *process,
               const struct run_settings *s, const struct run_outcome *outcome)
{
    json_t *line = v->report ? make_line(process, outcome) : NULL;
    int status = 0;

    if (v->report)
        status = line ? add_line(v->report, line) : command_broke("no memory for a report");
    json_decref(line);
    if (process->rank <= 0 && !v->quiet) {
        say_end(outcome);
        say_devices(outcome);
        say_preload(outcome, s->preload != NULL);
    }
    return status;
}
