/* SPDX-License-Identifier: Apache-2.0
 *
 * report.c - what a job has done. Every rank adds a line of JSON to one file, in one write; the
 * first rank reads those of the others that come in time, which takes one machine or a shared file
 * system.
 *
 *      {"ended_ns": 1, "rank": 0, "size": 2, "host": "node0", "status": 0, "seconds": 1.5, ...}
 */
#include "config.h"

#include "run/run.h"

#include "command.h"

#include <jansson.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { OTHERS_S = 5, LOOK_MS = 50, NAMED_MAX = 8, PAIRS_MAX = 64, PAIR_BYTES_MIN = 1 << 20 };

static int64_t clock_ns(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* ---- a rank's line --------------------------------------------------------------------------- */

static const struct {
    const char *name;
    enum dpn_stat_way way;
    enum dpn_stat_what what;
} columns[] = {
    {"sent_bytes", DPN_STAT_SEND, DPN_STAT_BYTES},
    {"sent_messages", DPN_STAT_SEND, DPN_STAT_MESSAGES},
    {"received_bytes", DPN_STAT_RECEIVE, DPN_STAT_BYTES},
    {"received_messages", DPN_STAT_RECEIVE, DPN_STAT_MESSAGES},
    {"stalls", DPN_STAT_SEND, DPN_STAT_STALLS},
    {"stall_ns", DPN_STAT_SEND, DPN_STAT_STALL_NS},
    {"sent_again", DPN_STAT_SEND, DPN_STAT_RETRIES},
    {"failovers", DPN_STAT_SEND, DPN_STAT_FAILOVERS},
    {"errors", DPN_STAT_SEND, DPN_STAT_ERRORS},
};
enum { COLUMNS = sizeof(columns) / sizeof(columns[0]) };

static json_t *make_devices(const struct stat_sum *sum)
{
    json_t *list = json_array();

    for (int i = 0; i < sum->device_count; i++) {
        const struct stat_device *d = &sum->devices[i];
        json_t *one = json_pack("{s:s}", "name", d->name);
        for (int c = 0; c < COLUMNS; c++)
            json_object_set_new(
                one, columns[c].name,
                json_integer((json_int_t)d->ways[columns[c].way].counts[columns[c].what]));
        json_array_append_new(list, one);
    }
    return list;
}

static json_t *make_preload(const struct run_outcome *o)
{
    json_t *counts = json_object();

    for (int c = 0; c < DPO_COUNTERS; c++)
        json_object_set_new(counts, dpo_counter_name((enum dpo_counter)c),
                            json_integer((json_int_t)o->preload[c]));
    return counts;
}

/* Those with enough bytes to say something, up to a number. */
static json_t *make_pairs(const struct stat_pairs *p)
{
    json_t *list = json_array();

    for (int i = 0; i < p->pair_count && json_array_size(list) < PAIRS_MAX; i++) {
        const struct stat_pair *pair = &p->pairs[i];
        if (pair->bytes >= PAIR_BYTES_MIN && pair->ns > 0)
            json_array_append_new(list,
                                  json_pack("{s:s, s:s, s:s, s:f, s:f}", "peer", pair->peer,
                                            "device", pair->device, "transport", pair->transport,
                                            "bytes", pair->bytes, "gbs", pair->bytes / pair->ns));
    }
    return list;
}

/* By which a peer is known to be this host. */
static json_t *make_addresses(void)
{
    struct ifaddrs *all = NULL;
    json_t *list = json_array();
    char text[INET6_ADDRSTRLEN];

    for (struct ifaddrs *a = getifaddrs(&all) ? NULL : all; a; a = a->ifa_next) {
        const int family = a->ifa_addr ? a->ifa_addr->sa_family : AF_UNSPEC;
        const void *at =
            family == AF_INET    ? (const void *)&((struct sockaddr_in *)a->ifa_addr)->sin_addr
            : family == AF_INET6 ? (const void *)&((struct sockaddr_in6 *)a->ifa_addr)->sin6_addr
                                 : NULL;
        if (at && !(a->ifa_flags & IFF_LOOPBACK) && inet_ntop(family, at, text, sizeof(text)))
            json_array_append_new(list, json_string(text));
    }
    freeifaddrs(all);
    return list;
}

static json_t *make_line(const struct dp_process *process, const struct run_outcome *o)
{
    const bool was_killed = WIFSIGNALED(o->how);
    char host[256] = "";

    gethostname(host, sizeof(host) - 1);
    return json_pack(
        "{s:I, s:i, s:i, s:s, s:i, s:i, s:f, s:f, s:f, s:i, s:o, s:o, s:o, s:o}", "ended_ns",
        (json_int_t)clock_ns(CLOCK_REALTIME), "rank", process->rank < 0 ? 0 : process->rank, "size",
        process->size < 1 ? 1 : process->size, "host", host, "status",
        was_killed ? 0 : WEXITSTATUS(o->how), "signal", was_killed ? WTERMSIG(o->how) : 0,
        "seconds", o->seconds, "cpu_seconds", o->cpu_seconds, "most_bytes", o->most_bytes,
        "processes", o->processes, "devices", make_devices(&o->sent), "preload", make_preload(o),
        "pairs", make_pairs(&o->pairs), "addresses", make_addresses());
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

/* ---- all ranks' ------------------------------------------------------------------------------ */

/* The last line of each rank that ended since began_ns: an array by rank, null where there is none.
 * Lines of other runs, and what is no such line, are passed over. */
static json_t *read_lines(const char *path, int size, int64_t began_ns, int *count)
{
    json_t *ranks = json_array();
    FILE *file = fopen(path, "re");
    char *text = NULL;
    size_t room = 0;

    for (int i = 0; i < size; i++)
        json_array_append_new(ranks, json_null());
    *count = 0;
    while (file && getline(&text, &room, file) > 0) {
        json_t *line = json_loads(text, 0, NULL);
        const json_int_t rank = json_integer_value(json_object_get(line, "rank"));
        const bool counts = line && rank >= 0 && rank < size &&
                            json_integer_value(json_object_get(line, "size")) == size &&
                            json_integer_value(json_object_get(line, "ended_ns")) >= began_ns;
        if (counts) {
            *count += json_is_null(json_array_get(ranks, (size_t)rank));
            json_array_set(ranks, (size_t)rank, line);
        }
        json_decref(line);
    }
    free(text);
    if (file)
        fclose(file);
    return ranks;
}

static json_t *await_lines(const char *path, int size, int64_t began_ns, int *count)
{
    const int64_t until_ns = clock_ns(CLOCK_MONOTONIC) + OTHERS_S * INT64_C(1000000000);
    const struct timespec look = {.tv_nsec = LOOK_MS * 1000000l};
    json_t *ranks = read_lines(path, size, began_ns, count);

    while (*count < size && clock_ns(CLOCK_MONOTONIC) < until_ns) {
        nanosleep(&look, NULL);
        json_decref(ranks);
        ranks = read_lines(path, size, began_ns, count);
    }
    return ranks;
}

/* ---- in words -------------------------------------------------------------------------------- */

static double number(const json_t *object, const char *name)
{
    return json_number_value(json_object_get(object, name));
}

static void say_end(const json_t *line)
{
    const int signal = (int)number(line, "signal"), status = (int)number(line, "status");
    char memory[32];

    fprintf(stderr,
            "dualpipe: ended after %.2f s, %.2f s of CPU time, at most %s of memory in a process",
            number(line, "seconds"), number(line, "cpu_seconds"),
            stat_bytes_text(number(line, "most_bytes"), memory, sizeof(memory)));
    if (signal)
        fprintf(stderr, "; killed by signal %d (%s)\n", signal, strsignal(signal));
    else if (status)
        fprintf(stderr, "; exit status %d\n", status);
    else
        fputs("\n", stderr);
}

/* Devices of all ranks, by name. */
static json_t *sum_devices(const json_t *ranks)
{
    json_t *sums = json_object(), *line, *device;
    size_t r, d;

    json_array_foreach(ranks, r, line)
        json_array_foreach(json_object_get(line, "devices"), d, device)
    {
        const char *name = json_string_value(json_object_get(device, "name"));
        json_t *sum = name ? json_object_get(sums, name) : NULL;
        if (name && !sum && !json_object_set_new(sums, name, sum = json_object()))
            sum = json_object_get(sums, name);
        for (int c = 0; sum && c < COLUMNS; c++)
            json_object_set_new(
                sum, columns[c].name,
                json_real(number(sum, columns[c].name) + number(device, columns[c].name)));
    }
    return sums;
}

static void say_devices(const json_t *ranks, int processes)
{
    json_t *sums = sum_devices(ranks), *d;
    const char *name;
    char sent[32], received[32];

    if (!processes)
        fputs("dualpipe: the net plugin was not used, or not in a process that could be seen\n",
              stderr);
    json_object_foreach(sums, name, d)
        fprintf(stderr,
                "dualpipe: %s: sent %s in %.0f messages, received %s in %.0f; waited %.2f s for "
                "receivers, %.0f sent again, %.0f failovers, %.0f errors\n",
                name, stat_bytes_text(number(d, "sent_bytes"), sent, sizeof(sent)),
                number(d, "sent_messages"),
                stat_bytes_text(number(d, "received_bytes"), received, sizeof(received)),
                number(d, "received_messages"), number(d, "stall_ns") / 1e9,
                number(d, "sent_again"), number(d, "failovers"), number(d, "errors"));
    json_decref(sums);
}

/* What the preload library has counted on all ranks, and on which rank most pages are misplaced. */
static void say_preload(const json_t *ranks, bool is_preloaded)
{
    uint64_t sums[DPO_COUNTERS] = {0}, most = 0;
    size_t r, worst = 0;
    json_t *line;
    char text[256];

    json_array_foreach(ranks, r, line)
    {
        const json_t *counts = json_object_get(line, "preload");
        uint64_t own[DPO_COUNTERS];
        for (int c = 0; c < DPO_COUNTERS; c++) {
            own[c] = (uint64_t)number(counts, dpo_counter_name((enum dpo_counter)c));
            sums[c] += own[c];
        }
        const uint64_t missed = own[DPO_PAGES] - own[DPO_PAGES_UNKNOWN] - own[DPO_PAGES_ON_NODE];
        worst = missed > most ? r : worst;
        most = missed > most ? missed : most;
    }
    if (!*stat_preload_text(sums, text, sizeof(text))) {
        if (is_preloaded)
            fputs("dualpipe: the preload library was not used: no process that could be seen called "
                  "CUDA\n",
                  stderr);
        return;
    }
    fprintf(stderr, "dualpipe: %s", text);
    if (most && json_array_size(ranks) > 1)
        fprintf(stderr, "; most misplaced on rank %zu, %llu pages", worst,
                (unsigned long long)most);
    fputs("\n", stderr);
}

/* The rank that has this address, if one has; otherwise the address. */
static const char *name_peer(const json_t *ranks, const char *peer, char *text, size_t len)
{
    json_t *line, *address;
    size_t r, a, rank = 0;
    int found = 0;

    json_array_foreach(ranks, r, line)
        json_array_foreach(json_object_get(line, "addresses"), a,
                           address) if (strstr(peer, json_string_value(address)))
    {
        found++;
        rank = r;
    }
    if (found == 1)
        snprintf(text, len, "rank %zu (%s)", rank, peer);
    else
        snprintf(text, len, "%s", peer);
    return text;
}

/* Of all pairs that sent enough, the one whose messages took longest for their bytes. */
static void say_slowest(const json_t *ranks)
{
    const json_t *slowest = NULL;
    json_t *line, *pair;
    size_t r, i, rank = 0, count = 0;
    double most = 0;
    char peer[128];

    json_array_foreach(ranks, r, line) json_array_foreach(json_object_get(line, "pairs"), i, pair)
    {
        const double gbs = number(pair, "gbs");
        count++;
        most = gbs > most ? gbs : most;
        if (!slowest || gbs < number(slowest, "gbs")) {
            slowest = pair;
            rank = r;
        }
    }
    if (count > 1)
        fprintf(stderr,
                "dualpipe: slowest of %zu pairs: rank %zu to %s over %s (%s), %.3g GB/s a message; "
                "the fastest %.3g\n",
                count, rank,
                name_peer(ranks, json_string_value(json_object_get(slowest, "peer")), peer,
                          sizeof(peer)),
                json_string_value(json_object_get(slowest, "device")),
                json_string_value(json_object_get(slowest, "transport")), number(slowest, "gbs"),
                most);
}

static void say_missing(const json_t *ranks, int count, const char *path)
{
    const int missing = (int)json_array_size(ranks) - count;
    int named = 0;
    json_t *line;
    size_t r;

    if (!missing)
        return;
    fprintf(stderr, "dualpipe: no line in %s within %d s of rank", path, OTHERS_S);
    json_array_foreach(ranks, r, line) if (json_is_null(line) && named < NAMED_MAX)
        fprintf(stderr, "%s %zu",
                named++       ? ","
                : missing > 1 ? "s"
                              : "",
                r);
    fputs(missing > NAMED_MAX ? ", ...\n" : "\n", stderr);
}

/* Ranks beside each other: the first and the last to end, and the one that waited longest. */
static void say_ranks(const json_t *ranks, int count)
{
    double least_s = 0, most_s = 0, longest_ns = 0;
    size_t r, d, waiter = 0, failed = 0;
    json_t *line, *device;
    bool is_first = true;

    json_array_foreach(ranks, r, line)
    {
        double waited_ns = 0;
        if (json_is_null(line))
            continue;
        json_array_foreach(json_object_get(line, "devices"), d, device) waited_ns +=
            number(device, "stall_ns");
        if (waited_ns > longest_ns) {
            longest_ns = waited_ns;
            waiter = r;
        }
        const double s = number(line, "seconds");
        least_s = is_first || s < least_s ? s : least_s;
        most_s = s > most_s ? s : most_s;
        failed += number(line, "status") != 0 || number(line, "signal") != 0;
        is_first = false;
    }
    fprintf(stderr, "dualpipe: %d of %zu ranks, %.2f to %.2f s, %zu failed", count,
            json_array_size(ranks), least_s, most_s, failed);
    if (longest_ns > 0)
        fprintf(stderr, "; rank %zu waited longest for receivers, %.2f s", waiter,
                longest_ns / 1e9);
    fputs("\n", stderr);
}

int run_report(const struct run_values *v, const struct dp_process *process,
               const struct run_settings *s, const struct run_outcome *outcome)
{
    json_t *own = make_line(process, outcome), *ranks;
    const int size = process->size < 1 || !v->report ? 1 : process->size;
    int count = 1, status = 0;

    if (!own)
        return command_broke("no memory for a report");
    if (v->report)
        status = add_line(v->report, own);
    if (process->rank <= 0 && !v->quiet) {
        ranks = size > 1 && !status ? await_lines(v->report, size, outcome->began_ns, &count)
                                    : json_pack("[O]", own);
        say_end(own);
        if (size > 1 && !status)
            say_ranks(ranks, count);
        say_devices(ranks, outcome->processes);
        say_slowest(ranks);
        say_preload(ranks, s->preload != NULL);
        if (size > 1 && !status)
            say_missing(ranks, count, v->report);
        json_decref(ranks);
    }
    json_decref(own);
    return status;
}
