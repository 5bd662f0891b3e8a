/* SPDX-License-Identifier: Apache-2.0
 *
 * print.c - what the net plugin and the preload library count: a table for people, JSON, and Prometheus.
 */
#include "draw/draw.h"
#include "stat/stat.h"

#include <dualpipe/dualpipe.h>
#include <jansson.h>
#include <string.h>

/* ---- numbers for people ---------------------------------------------------------------------- */

/* The place of a histogram below which, or in which, `share` of all are; -1: it is empty. */
static int place_of(const uint64_t *histogram, int places, double share)
{
    double all = 0, seen = 0;

    for (int i = 0; i < places; i++)
        all += (double)histogram[i];
    for (int i = 0; i < places && all > 0; i++) {
        seen += (double)histogram[i];
        if (seen >= share * all)
            return i;
    }
    return -1;
}

/* Sizes are powers of two more often than not: the least that the place has. */
static const char *size_text(const struct stat_counts *c, char *text, size_t len)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB"};
    const int place = place_of(c->sizes, DPN_STAT_SIZES, 0.5);

    if (place < 0)
        snprintf(text, len, "-");
    else if (place == 0)
        snprintf(text, len, "0");
    else
        snprintf(text, len, "%d %s", 1 << (place - 1) % 10, units[(place - 1) / 10]);
    return text;
}

/* The most that the place has. */
static const char *time_text(const struct stat_counts *c, double share, char *text, size_t len)
{
    const int place = place_of(c->times, DPN_STAT_TIMES, share);

    if (place < 0)
        snprintf(text, len, "-");
    else
        draw_time(INT64_C(1) << place, text, len);
    return text;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void print_head(const char *first)
{
    printf("%-24s %-7s %4s %10s %8s %7s %6s %6s %8s %6s %5s %5s %6s %7s %8s %8s\n", first, "",
           "open", "messages", "bytes", "GB/s", "flight", "stalls", "stalled", "full", "retry",
           "fails", "errors", "size", "time", "99 %");
}

/* A writer may have finished more by the time that we look at what it had begun. */
static unsigned long long in_flight(const uint64_t *n)
{
    const uint64_t begun = n[DPN_STAT_REQUESTS], finished = n[DPN_STAT_FINISHED];

    return begun > finished ? begun - finished : 0;
}

/* rate: GB/s; negative: not known. */
static void print_counts(const char *name, const char *way, int open, const struct stat_counts *c,
                         double rate)
{
    char bytes[16], stalled[32], size[16], time[32], worst[32], gain[16] = "-";
    const uint64_t *n = c->counts;

    if (rate >= 0)
        snprintf(gain, sizeof(gain), "%.3g", rate);
    printf("%-24s %-7s %4d %10llu %8s %7s %6llu %6llu %8s %6llu %5llu %5llu %6llu %7s %8s %8s\n",
           name, way, open, (unsigned long long)n[DPN_STAT_MESSAGES],
           stat_bytes_text((double)n[DPN_STAT_BYTES], bytes, sizeof(bytes)), gain, in_flight(n),
           (unsigned long long)n[DPN_STAT_STALLS],
           draw_time((int64_t)n[DPN_STAT_STALL_NS], stalled, sizeof(stalled)),
           (unsigned long long)n[DPN_STAT_FULL], (unsigned long long)n[DPN_STAT_RETRIES],
           (unsigned long long)n[DPN_STAT_FAILOVERS], (unsigned long long)n[DPN_STAT_ERRORS],
           size_text(c, size, sizeof(size)), time_text(c, 0.5, time, sizeof(time)),
           time_text(c, 0.99, worst, sizeof(worst)));
}

static const struct stat_process *find_process(const struct stat_list *list,
                                               const struct stat_process *wanted)
{
    for (int i = 0; list && i < list->count; i++)
        if (!strcmp(list->processes[i]->file, wanted->file))
            return list->processes[i];
    return NULL;
}

/* GB/s; negative: not known. */
static double rate(const struct stat_counts *now, const struct stat_counts *then, int64_t ns)
{
    return then && ns > 0
               ? (double)(now->counts[DPN_STAT_BYTES] - then->counts[DPN_STAT_BYTES]) / (double)ns
               : -1;
}

static void print_devices(const struct stat_process *p, const struct stat_process *before)
{
    const int64_t ns = before ? p->read_ns - before->read_ns : 0;

    for (int i = 0; i < p->device_count; i++)
        for (int way = 0; way < DPN_STAT_WAYS; way++) {
            const struct stat_device *d = &p->devices[i];
            const struct stat_counts *then =
                before && i < before->device_count ? &before->devices[i].ways[way] : NULL;
            if (d->open[way] || d->ways[way].counts[DPN_STAT_REQUESTS])
                print_counts(d->name, stat_way_name((uint32_t)way), d->open[way], &d->ways[way],
                             rate(&d->ways[way], then, ns));
        }
}

static const struct stat_connection *find_connection(const struct stat_process *p, uint32_t number)
{
    for (int i = 0; p && i < p->connection_count; i++)
        if (p->connections[i].number == number)
            return &p->connections[i];
    return NULL;
}

static void print_connections(const struct stat_process *p, const struct stat_process *before)
{
    const int64_t ns = before ? p->read_ns - before->read_ns : 0;

    for (int i = 0; i < p->connection_count; i++) {
        const struct stat_connection *c = &p->connections[i];
        const struct stat_connection *then = find_connection(before, c->number);
        char name[112];
        snprintf(name, sizeof(name), " %u %s %s", c->number, c->transport, c->peer);
        print_counts(name, stat_way_name(c->way), 1, &c->counted,
                     rate(&c->counted, then ? &then->counted : NULL, ns));
    }
}

static void print_process(const struct stat_process *p, const struct stat_process *before,
                          bool connections)
{
    printf("\nprocess %lld: %s\n", (long long)p->pid, p->command);
    print_head("device");
    print_devices(p, before);
    if (connections)
        print_connections(p, before);
    if (p->left_out)
        printf("%llu open connections have no place on its page: they count once they are closed\n",
               (unsigned long long)p->left_out);
}

void stat_print_table(const struct stat_list *list, const struct stat_list *before,
                      bool connections)
{
    printf("net plugin: %d process%s of this user count%s\n", list->count,
           list->count == 1 ? "" : "es", list->count == 1 ? "s" : "");
    for (int i = 0; i < list->count; i++)
        print_process(list->processes[i], find_process(before, list->processes[i]), connections);
    if (list->count)
        printf(
            "\nsize: median, rounded down to a power of two; time: median from isend or irecv to "
            "done, and\nwhat 99 %% keep, rounded up; stalls: sends that waited for the receiver; "
            "full: all requests in use\n");
    else
        printf("(the net plugin counts in processes that have DUALPIPE_NET_STAT=1)\n");
}

void stat_print_preload(const struct stat_mapped *preload)
{
    char text[256];

    for (int i = 0; i < preload->count; i++) {
        const struct dpo_page *page = stat_preload_at(preload, i);
        const struct stat_mapped one = {.count = 1, .pages = &preload->pages[i]};
        uint64_t counts[DPO_COUNTERS] = {0};
        char command[sizeof(page->head.command)];
        stat_preload_sum(&one, counts);
        stat_text(page->head.command, command, sizeof(command));
        printf("\nprocess %lld: %s\n  preload: %s\n", (long long)page->head.pid, command,
               stat_preload_text(counts, text, sizeof(text)));
    }
}

/* ---- for Prometheus -------------------------------------------------------------------------- */

/* The text exposition format, version 0.0.4: all samples of a metric together, after its HELP and TYPE.
 * https://prometheus.io/docs/instrumenting/exposition_formats/ */

/* ---- labels ---------------------------------------------------------------------------------- */

static void put_escaped(FILE *to, const char *text, size_t most)
{
    for (const char *end = text + most; text < end && *text; text++) {
        if (*text == '"' || *text == '\\')
            putc('\\', to);
        putc(*text, to);
    }
}

/* Without the brace at the end. */
static void put_labels(FILE *to, const struct stat_process *p, int device, int way)
{
    /* Containers share numbers of processes; the names of their pages differ. */
    fprintf(to, "{pid=\"%lld\",process=\"", (long long)p->pid);
    put_escaped(to, p->file, strcspn(p->file, "."));
    fputs("\",device=\"", to);
    put_escaped(to, p->devices[device].name, DPN_STAT_DEVICE_LEN);
    fprintf(to, "\",way=\"%s\"", stat_way_name((uint32_t)way));
}

/* ---- metrics --------------------------------------------------------------------------------- */

/* In the order of the page; timed_ns is the sum of a histogram. */
static const struct counter {
    const char *name, *total, *help; /* in JSON and for Prometheus */
    double unit;                     /* of Prometheus in ours */
} counters[DPN_STAT_WHATS] = {
    {"messages", "messages_total", "Messages that are done.", 1},
    {"bytes", "bytes_total", "Bytes of those.", 1},
    {"requests", "requests_total", "Requests begun; a group of receives is one.", 1},
    {"finished", "requests_finished_total", "Requests that are done.", 1},
    {"stalls", "stalls_total", "Times that a send waited for the receiver's clear-to-send.", 1},
    {"stall_ns", "stall_seconds_total", "How long such sends waited.", 1e9},
    {"full", "full_total", "Times that all requests of a connection were in use.", 1},
    {"retries", "retries_total", "Messages, or parts of them, that were sent again.", 1},
    {"failovers", "failovers_total",
     "Times that a way of a connection failed, and it went on over others.", 1},
    {"errors", "errors_total", "Calls that failed.", 1},
    {"timed_ns", NULL, NULL, 1},
    {"eager", "eager_total", "Messages that did not wait for their receive.", 1},
};

struct histogram {
    const char *name, *help;
    int places;
    double unit;
    enum dpn_stat_what sum;
};

/* What is put for every device of every process, both ways. */
typedef void put_fn(FILE *to, const struct stat_process *p, int device, int way,
                    const void *metric);

static void put_all(FILE *to, const struct stat_list *list, put_fn *put, const void *metric)
{
    for (int i = 0; i < list->count; i++)
        for (int d = 0; d < list->processes[i]->device_count; d++)
            for (int way = 0; way < DPN_STAT_WAYS; way++)
                put(to, list->processes[i], d, way, metric);
}

static void put_counter(FILE *to, const struct stat_process *p, int device, int way,
                        const void *metric)
{
    const struct counter *c = metric;
    const uint64_t n = p->devices[device].ways[way].counts[c - counters];

    fprintf(to, "dualpipe_net_%s", c->total);
    put_labels(to, p, device, way);
    if (c->unit == 1)
        fprintf(to, "} %llu\n", (unsigned long long)n);
    else
        fprintf(to, "} %.9f\n", (double)n / c->unit);
}

static void put_open(FILE *to, const struct stat_process *p, int device, int way,
                     const void *metric)
{
    (void)metric;
    fputs("dualpipe_net_connections", to);
    put_labels(to, p, device, way);
    fprintf(to, "} %d\n", p->devices[device].open[way]);
}

/* A place k has what is below 2^k, so at most 2^k - 1. */
static void put_histogram(FILE *to, const struct stat_process *p, int device, int way,
                          const void *metric)
{
    const struct histogram *h = metric;
    const struct stat_counts *c = &p->devices[device].ways[way];
    const uint64_t *places = h->unit == 1 ? c->sizes : c->times;
    uint64_t sum = 0;

    for (int k = 0; k < h->places; k++) {
        sum += places[k];
        if (k == h->places - 1)
            break; /* the last has all that are larger, too */
        fprintf(to, "dualpipe_net_%s_bucket", h->name);
        put_labels(to, p, device, way);
        fprintf(to, ",le=\"%.17g\"} %llu\n", (double)((UINT64_C(1) << k) - 1) / h->unit,
                (unsigned long long)sum);
    }
    fprintf(to, "dualpipe_net_%s_bucket", h->name);
    put_labels(to, p, device, way);
    fprintf(to, ",le=\"+Inf\"} %llu\n", (unsigned long long)sum);
    fprintf(to, "dualpipe_net_%s_count", h->name);
    put_labels(to, p, device, way);
    fprintf(to, "} %llu\ndualpipe_net_%s_sum", (unsigned long long)sum, h->name);
    put_labels(to, p, device, way);
    fprintf(to, "} %.17g\n", (double)c->counts[h->sum] / h->unit);
}

/* ---- the preload library's ------------------------------------------------------------------- */

static void put_preload(FILE *to, const struct stat_mapped *preload, enum dpo_counter counter)
{
    char name[64];

    snprintf(name, sizeof(name), "%s_total", dpo_counter_name(counter));
    stat_put_head(to, "preload", name, "counter", "As `dualpipe stat --json` has it.");
    for (int i = 0; i < preload->count; i++) {
        const struct stat_mapped_page *p = &preload->pages[i];
        const struct dpo_page *page = stat_preload_at(preload, i);
        fprintf(to, "dualpipe_preload_%s{pid=\"%lld\",process=\"", name,
                (long long)page->head.pid);
        put_escaped(to, p->file, strcspn(p->file, "."));
        fprintf(to, "\"} %llu\n", (unsigned long long)stat_preload_count(page, counter));
    }
}

int stat_print_prometheus(FILE *to, const struct stat_list *list,
                          const struct stat_mapped *preload,
                          const struct stat_mapped *profiles)
{
    static const struct histogram histograms[] = {
        {"message_size_bytes", "Sizes of messages.", DPN_STAT_SIZES, 1, DPN_STAT_BYTES},
        {"completion_seconds", "From isend or irecv to done, of a sample of the requests.",
         DPN_STAT_TIMES, 1e9, DPN_STAT_TIMED_NS},
    };

    stat_put_head(to, "net", "connections", "gauge", "Connections that are open.");
    put_all(to, list, put_open, NULL);
    for (int i = 0; i < DPN_STAT_WHATS; i++) {
        if (!counters[i].total)
            continue;
        stat_put_head(to, "net", counters[i].total, "counter", counters[i].help);
        put_all(to, list, put_counter, &counters[i]);
    }
    for (size_t i = 0; i < sizeof(histograms) / sizeof(histograms[0]); i++) {
        stat_put_head(to, "net", histograms[i].name, "histogram", histograms[i].help);
        put_all(to, list, put_histogram, &histograms[i]);
    }
    for (int c = 0; c < DPO_COUNTERS && preload->count; c++)
        put_preload(to, preload, (enum dpo_counter)c);
    stat_profile_prometheus(to, profiles);
    return fflush(to) || ferror(to) ? DP_EIO : 0;
}

/* ---- for programs ---------------------------------------------------------------------------- */

/* Places of a histogram that are not empty: "below", which none of them reaches. */
static json_t *json_histogram(const uint64_t *histogram, int places)
{
    json_t *all = json_array();

    for (int i = 0; i < places; i++)
        if (histogram[i])
            json_array_append_new(all, json_pack("{sI, sI}", "below", (json_int_t)1 << i, "count",
                                                 (json_int_t)histogram[i]));
    return all;
}

static json_t *json_counts(const struct stat_counts *c)
{
    json_t *all = json_object();

    for (int i = 0; i < DPN_STAT_WHATS; i++)
        json_object_set_new(all, counters[i].name,
                            json_integer((json_int_t)c->counts[i]));
    json_object_set_new(all, "size_bytes", json_histogram(c->sizes, DPN_STAT_SIZES));
    json_object_set_new(all, "completion_ns", json_histogram(c->times, DPN_STAT_TIMES));
    return all;
}

static json_t *json_device(const struct stat_device *d)
{
    json_t *j = json_pack("{ss, si}", "device", d->name, "speed_mbps", d->speed_mbps);

    for (int way = 0; way < DPN_STAT_WAYS; way++) {
        json_t *counts = json_counts(&d->ways[way]);
        json_object_set_new(counts, "open", json_integer(d->open[way]));
        json_object_set_new(j, stat_way_name((uint32_t)way), counts);
    }
    return j;
}

static json_t *json_connection(const struct stat_process *p, const struct stat_connection *c)
{
    json_t *j = json_counts(&c->counted);

    json_object_update_new(j, json_pack("{si, ss, ss, ss, ss, sI}", "number", (int)c->number,
                                        "device", p->devices[c->device].name, "way",
                                        stat_way_name(c->way), "transport", c->transport, "peer",
                                        c->peer, "opened_ns", (json_int_t)c->opened_ns));
    return j;
}

static json_t *json_process(const struct stat_process *p)
{
    json_t *devices = json_array(), *connections = json_array();

    for (int i = 0; i < p->device_count; i++)
        json_array_append_new(devices, json_device(&p->devices[i]));
    for (int i = 0; i < p->connection_count; i++)
        json_array_append_new(connections, json_connection(p, &p->connections[i]));
    return json_pack("{sI, ss, sI, sI, sI, sI, so, so}", "pid", (json_int_t)p->pid, "command",
                     p->command, "opened_ns", (json_int_t)p->opened_ns, "read_ns",
                     (json_int_t)p->read_ns, "opened", (json_int_t)p->opened, "left_out",
                     (json_int_t)p->left_out, "devices", devices, "connections", connections);
}

static json_t *json_preload(const struct dpo_page *page)
{
    char command[sizeof(page->head.command)];

    stat_text(page->head.command, command, sizeof(command));
    json_t *j = json_pack("{sI, ss}", "pid", (json_int_t)page->head.pid, "command", command);
    for (int c = 0; c < DPO_COUNTERS; c++)
        json_object_set_new(
            j, dpo_counter_name((enum dpo_counter)c),
            json_integer((json_int_t)stat_preload_count(page, (enum dpo_counter)c)));
    return j;
}

int stat_print_json(const struct stat_list *list, const struct stat_mapped *preload,
                    json_t *profiles, json_t *jobs)
{
    json_t *processes = json_array(), *preloads = json_array();
    bool whole = true; /* rather none than some that look like all */

    for (int i = 0; i < list->count; i++)
        whole &= !json_array_append_new(processes, json_process(list->processes[i]));
    for (int i = 0; i < preload->count; i++)
        whole &= !json_array_append_new(preloads, json_preload(stat_preload_at(preload, i)));
    json_t *all = json_pack("{ss, si, so, so, so, so}", "stat", "net", "format", STAT_FORMAT,
                            "processes", processes, "preload", preloads, "profiles", profiles, "jobs",
                            jobs);
    if (!all || !whole) {
        json_decref(all);
        return DP_ENOMEM;
    }
    int failed = json_dumpf(all, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(all);
    return failed || fflush(stdout) ? DP_EIO : 0;
}
