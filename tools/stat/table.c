/* SPDX-License-Identifier: Apache-2.0 */
#include "stat/stat.h"

#include "draw/draw.h"

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
