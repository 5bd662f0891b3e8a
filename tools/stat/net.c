/* SPDX-License-Identifier: Apache-2.0
 *
 * net.c - what the net plugin and the preload library count.
 */
#include "draw/draw.h"
#include "nccl-plugin/net/stat_page.h"
#include "offload/preload/page.h"
#include "stat/stat.h"

#include <stdlib.h>

enum { DEVICE, WAY, NUMBER, TRANSPORT, PEER, CONNECTION_FIELDS, DEVICE_FIELDS = NUMBER };

static const struct stat_metric metrics[] = {
    {"connections", "gauge", "Connections that are open.", DPN_STAT_OPEN},
    {"messages_total", "counter", "Messages that are done.", DPN_STAT_MESSAGES},
    {"bytes_total", "counter", "Bytes of those.", DPN_STAT_BYTES},
    {"requests_total", "counter", "Requests begun; a group of receives is one.", DPN_STAT_REQUESTS},
    {"requests_finished_total", "counter", "Requests that are done.", DPN_STAT_FINISHED},
    {"stalls_total", "counter", "Times that a send waited for the receiver's clear-to-send.",
     DPN_STAT_STALLS},
    {"stall_seconds_total", "counter", "How long such sends waited.", DPN_STAT_STALL_NS},
    {"full_total", "counter", "Times that all requests of a connection were in use.", DPN_STAT_FULL},
    {"retries_total", "counter", "Messages, or parts of them, that were sent again.", DPN_STAT_RETRIES},
    {"failovers_total", "counter",
     "Times that a way of a connection failed, and it went on over others.", DPN_STAT_FAILOVERS},
    {"errors_total", "counter", "Calls that failed.", DPN_STAT_ERRORS},
    {"eager_total", "counter", "Messages that did not wait for their receive.", DPN_STAT_EAGER},
    {"message_size_bytes", "histogram", "Sizes of messages.", DPN_STAT_SIZE, DPN_STAT_BYTES},
    {"completion_seconds", "histogram", "From isend or irecv to done, of a sample of the requests.",
     DPN_STAT_TIME, DPN_STAT_TIMED_NS},
};

#define METRIC(id, name, unit, type, places)                                                       \
    {name "_total", "counter", "As `dualpipe stat --json` has it.", id},
static const struct stat_metric preload_metrics[] = {DPO_COUNTER_LIST(METRIC)};
#undef METRIC

/* By device and way, open and closed connections; and the open ones. */
const struct stat_kind stat_net = {
    .page = &dpn_stat_kind, .fields = {DEVICE_FIELDS, CONNECTION_FIELDS}, .set = "net",
    .has_process = true, .labels = {"device", "way"}, .metrics = metrics,
    .metric_count = sizeof(metrics) / sizeof(metrics[0])};

const struct stat_kind stat_preload = {
    .page = &dpo_kind, .set = "preload", .has_process = true, .metrics = preload_metrics,
    .metric_count = dpo_values};

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
static const char *size_text(const uint64_t *n, char *text, size_t len)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB"};
    const int place = place_of(&n[DPN_STAT_SIZE], DPN_STAT_SIZES, 0.5);

    if (place < 0)
        snprintf(text, len, "-");
    else if (place == 0)
        snprintf(text, len, "0");
    else
        snprintf(text, len, "%d %s", 1 << (place - 1) % 10, units[(place - 1) / 10]);
    return text;
}

/* The most that the place has. */
static const char *time_text(const uint64_t *n, double share, char *text, size_t len)
{
    const int place = place_of(&n[DPN_STAT_TIME], DPN_STAT_TIMES, share);

    if (place < 0)
        snprintf(text, len, "-");
    else
        draw_time(INT64_C(1) << place, text, len);
    return text;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* A writer may have finished more by the time that we look at what it had begun. */
static unsigned long long in_flight(const uint64_t *n)
{
    const uint64_t begun = n[DPN_STAT_REQUESTS], finished = n[DPN_STAT_FINISHED];

    return begun > finished ? begun - finished : 0;
}

/* then: the same at the last look, so many ns ago; or NULL. */
static void print_row(const char *name, const struct stat_row *row, const struct stat_row *then,
                      int64_t ns)
{
    char bytes[16], stalled[32], size[16], time[32], worst[32], gain[16] = "-";
    const uint64_t *n = row->values;

    if (then && ns > 0)
        snprintf(gain, sizeof(gain), "%.3g",
                 (double)(n[DPN_STAT_BYTES] - then->values[DPN_STAT_BYTES]) / (double)ns);
    printf("%-24s %-7s %4d %10llu %8s %7s %6llu %6llu %8s %6llu %5llu %5llu %6llu %7s %8s %8s\n",
           name, stat_field(row, WAY), (int)n[DPN_STAT_OPEN], (unsigned long long)n[DPN_STAT_MESSAGES],
           stat_bytes_text((double)n[DPN_STAT_BYTES], bytes, sizeof(bytes)), gain, in_flight(n),
           (unsigned long long)n[DPN_STAT_STALLS],
           draw_time((int64_t)n[DPN_STAT_STALL_NS], stalled, sizeof(stalled)),
           (unsigned long long)n[DPN_STAT_FULL], (unsigned long long)n[DPN_STAT_RETRIES],
           (unsigned long long)n[DPN_STAT_FAILOVERS], (unsigned long long)n[DPN_STAT_ERRORS],
           size_text(n, size, sizeof(size)), time_text(n, 0.5, time, sizeof(time)),
           time_text(n, 0.99, worst, sizeof(worst)));
}

static void print_process(const struct stat_page *p, const struct stat_page *before, bool connections)
{
    const int64_t ns = before ? p->read_ns - before->read_ns : 0;
    unsigned long long left_out = 0;

    printf("\nprocess %lld: %s\n", (long long)p->pid, p->command);
    printf("%-24s %-7s %4s %10s %8s %7s %6s %6s %8s %6s %5s %5s %6s %7s %8s %8s\n", "device", "",
           "open", "messages", "bytes", "GB/s", "flight", "stalls", "stalled", "full", "retry",
           "fails", "errors", "size", "time", "99 %");
    for (int i = 0; i < p->sums[0].count; i++) {
        const struct stat_row *row = &p->sums[0].list[i];
        left_out += row->values[DPN_STAT_LEFT_OUT];
        if (row->values[DPN_STAT_OPEN] || row->values[DPN_STAT_REQUESTS])
            print_row(stat_field(row, DEVICE), row, stat_find(before ? &before->sums[0] : NULL, row),
                      ns);
    }
    for (int i = 0; connections && i < p->sums[1].count; i++) {
        const struct stat_row *row = &p->sums[1].list[i];
        char name[112];
        snprintf(name, sizeof(name), " %s %s %s", stat_field(row, NUMBER), stat_field(row, TRANSPORT),
                 stat_field(row, PEER));
        print_row(name, row, stat_find(before ? &before->sums[1] : NULL, row), ns);
    }
    if (left_out)
        printf("%llu open connections have no place on its page: they count once they are closed\n",
               left_out);
}

static const struct stat_page *find_process(const struct stat_list *list, const struct stat_page *like)
{
    for (int i = 0; i < list->count; i++)
        if (!strcmp(list->pages[i].file, like->file))
            return &list->pages[i];
    return NULL;
}

void stat_net_print(const struct stat_list *list, const struct stat_list *before, bool connections)
{
    printf("net plugin: %d process%s of this user count%s\n", list->count,
           list->count == 1 ? "" : "es", list->count == 1 ? "s" : "");
    for (int i = 0; i < list->count; i++)
        print_process(&list->pages[i], find_process(before, &list->pages[i]), connections);
    if (list->count)
        printf(
            "\nsize: median, rounded down to a power of two; time: median from isend or irecv to "
            "done, and\nwhat 99 %% keep, rounded up; stalls: sends that waited for the receiver; "
            "full: all requests in use\n");
    else
        printf("(the net plugin counts in processes that have DUALPIPE_NET_STAT=1)\n");
}

/* ---- for programs ---------------------------------------------------------------------------- */

static json_t *json_counts(const struct stat_row *row)
{
    json_t *j = json_object();

    stat_json_values(j, &stat_net, row, DPN_STAT_OPEN, DPN_STAT_TIME);
    return j;
}

/* Rows of a device follow each other, one for each way. */
static void add_device(json_t *devices, const struct stat_row *row)
{
    json_t *last = json_array_get(devices, json_array_size(devices) - 1);
    const char *known = json_string_value(json_object_get(last, "device"));

    if (!known || strcmp(known, stat_field(row, DEVICE)) != 0) {
        last = json_pack("{ss}", "device", stat_field(row, DEVICE));
        stat_json_values(last, &stat_net, row, DPN_STAT_SPEED_MBPS, DPN_STAT_SPEED_MBPS);
        json_array_append_new(devices, last);
    }
    json_object_set_new(last, stat_field(row, WAY), json_counts(row));
}

static json_t *json_connection(const struct stat_row *row)
{
    json_t *j = json_counts(row);

    json_object_del(j, "open");
    json_object_update_new(
        j, json_pack("{sI, ss, ss, ss, ss, sI}", "number", (json_int_t)atoll(stat_field(row, NUMBER)),
                     "device", stat_field(row, DEVICE), "way", stat_field(row, WAY), "transport",
                     stat_field(row, TRANSPORT), "peer", stat_field(row, PEER), "opened_ns",
                     (json_int_t)row->values[DPN_STAT_OPENED_NS]));
    return j;
}

static json_t *json_process(const struct stat_page *p)
{
    json_t *devices = json_array(), *connections = json_array();
    uint64_t opened = 0, left_out = 0;

    for (int i = 0; i < p->sums[0].count; i++) {
        opened += p->sums[0].list[i].values[DPN_STAT_OPENED];
        left_out += p->sums[0].list[i].values[DPN_STAT_LEFT_OUT];
        add_device(devices, &p->sums[0].list[i]);
    }
    for (int i = 0; i < p->sums[1].count; i++)
        json_array_append_new(connections, json_connection(&p->sums[1].list[i]));
    return json_pack("{sI, ss, sI, sI, sI, sI, so, so}", "pid", (json_int_t)p->pid, "command",
                     p->command, "opened_ns", (json_int_t)p->opened_ns, "read_ns",
                     (json_int_t)p->read_ns, "opened", (json_int_t)opened, "left_out",
                     (json_int_t)left_out, "devices", devices, "connections", connections);
}

json_t *stat_net_json(const struct stat_list *list)
{
    json_t *all = json_array();

    for (int i = 0; i < list->count; i++)
        json_array_append_new(all, json_process(&list->pages[i]));
    return all;
}

/* ---- the preload library --------------------------------------------------------------------- */

const char *stat_preload_text(const struct stat_page *preload, char *text, size_t len)
{
    const uint64_t *n = preload->sums[0].count ? preload->sums[0].list[0].values : NULL;
    char pinned[16], up[16], down[16], staged[16];
    bool is_empty = true;

    for (int c = 0; n && c < dpo_values; c++)
        is_empty &= !n[c];
    if (is_empty)
        return "";
    const uint64_t known = n[DPO_PAGES] - n[DPO_PAGES_UNKNOWN];
    snprintf(text, len,
             "pinned %s, %llu of %llu pages not on the nearest NUMA node; copied %s to the device, "
             "%s to the host; staged %s",
             stat_bytes_text((double)n[DPO_PINNED_BYTES], pinned, sizeof(pinned)),
             (unsigned long long)(known - n[DPO_PAGES_ON_NODE]), (unsigned long long)known,
             stat_bytes_text((double)n[DPO_COPIES_TO_DEVICE_BYTES], up, sizeof(up)),
             stat_bytes_text((double)n[DPO_COPIES_TO_HOST_BYTES], down, sizeof(down)),
             stat_bytes_text((double)(n[DPO_STAGED_TO_DEVICE_BYTES] + n[DPO_STAGED_TO_HOST_BYTES]),
                             staged, sizeof(staged)));
    return text;
}

void stat_preload_print(const struct stat_list *list)
{
    char text[256];

    for (int i = 0; i < list->count; i++)
        printf("\nprocess %lld: %s\n  preload: %s\n", (long long)list->pages[i].pid,
               list->pages[i].command,
               stat_preload_text(&list->pages[i], text, sizeof(text)));
}

json_t *stat_preload_json(const struct stat_list *list)
{
    json_t *all = json_array();

    for (int i = 0; i < list->count; i++) {
        const struct stat_page *p = &list->pages[i];
        json_t *j = json_pack("{sI, ss}", "pid", (json_int_t)p->pid, "command", p->command);
        if (p->sums[0].count)
            stat_json_values(j, &stat_preload, &p->sums[0].list[0], 0, dpo_values - 1);
        json_array_append_new(all, j);
    }
    return all;
}
