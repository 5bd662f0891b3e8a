/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "stat/pages.h"

#include "command.h"
#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TRIES_AT_ONCE = 50, TRIES = 3000 };

const char *stat_way_name(uint32_t way)
{
    return way == DPN_STAT_SEND ? "send" : "receive";
}

const char *stat_bytes_text(double bytes, char *text, size_t len)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    size_t unit = 0;

    for (; bytes >= 1000 && unit + 1 < sizeof(units) / sizeof(units[0]); unit++)
        bytes /= 1000;
    snprintf(text, len, "%.3g %s", bytes, units[unit]);
    return text;
}

void stat_put_head(FILE *to, const char *set, const char *name, const char *type, const char *help)
{
    fprintf(to, "# HELP dualpipe_%s_%s %s\n# TYPE dualpipe_%s_%s %s\n", set, name, help, set, name,
            type);
}

/* ---- a moment of a page ---------------------------------------------------------------------- */

/* Both are numbers only, in the same order. */
enum { NUMBERS = sizeof(struct stat_counts) / sizeof(uint64_t) };
_Static_assert(offsetof(struct dpn_stat_counters, rest) == sizeof(struct stat_counts), "as the page");

static void add_counts(const struct dpn_stat_counters *from, struct stat_counts *to)
{
    const dpn_stat_counter *numbers = (const void *)from;
    uint64_t *sums = (void *)to;

    for (int i = 0; i < NUMBERS; i++)
        sums[i] += atomic_load_explicit(&numbers[i], memory_order_relaxed);
}

void stat_counts_add(const struct stat_counts *from, struct stat_counts *to)
{
    const uint64_t *numbers = (const void *)from;
    uint64_t *sums = (void *)to;

    for (int i = 0; i < NUMBERS; i++)
        sums[i] += numbers[i];
}

/* A text out of another process's memory: ended, UTF-8, as JSON and Prometheus want it, and without
 * what a terminal would obey. */
void stat_text(const char *from, char *to, size_t len)
{
    memcpy(to, from, len);
    to[len - 1] = '\0';
    for (int n; *to; to += n) {
        n = text_character(to);
        if (!n) {
            *to = '?';
            n = 1;
        }
    }
}

static void read_devices(const struct dpn_stat_page *page, struct stat_process *p)
{
    p->device_count = (int)page->device_count;
    for (int i = 0; i < p->device_count; i++) {
        struct stat_device *d = &p->devices[i];
        *d = (struct stat_device){.speed_mbps = page->devices[i].speed_mbps};
        stat_text(page->devices[i].name, d->name, sizeof(d->name));
        for (int way = 0; way < DPN_STAT_WAYS; way++)
            add_counts(&page->devices[i].closed[way], &d->ways[way]);
    }
}

/* false: what is there makes no sense. */
static bool read_connection(const struct dpn_stat_connection *c, struct stat_process *p)
{
    struct stat_connection *to = &p->connections[p->connection_count];

    *to = (struct stat_connection){
        .number = c->number, .device = c->device, .way = c->way, .opened_ns = c->opened_ns};
    if (to->device >= (uint32_t)p->device_count || to->way >= DPN_STAT_WAYS)
        return false;
    stat_text(c->transport, to->transport, sizeof(to->transport));
    stat_text(c->peer, to->peer, sizeof(to->peer));
    add_counts(&c->counters, &to->counted);
    p->devices[to->device].open[to->way]++;
    stat_counts_add(&to->counted, &p->devices[to->device].ways[to->way]);
    p->connection_count++;
    return true;
}

static bool read_once(const struct dpn_stat_page *page, struct stat_process *p)
{
    bool good =
        page->device_count <= DPN_STAT_DEVICES && page->connection_count <= DPN_STAT_CONNECTIONS;

    p->connection_count = 0;
    if (good)
        read_devices(page, p);
    for (uint32_t i = 0; good && i < page->connection_count; i++)
        if (atomic_load_explicit(&page->connections[i].in_use, memory_order_relaxed))
            good = read_connection(&page->connections[i], p);
    p->opened = atomic_load_explicit(&page->opened, memory_order_relaxed);
    p->left_out = atomic_load_explicit(&page->left_out, memory_order_relaxed);
    return good;
}

/* While connections come and go, again. */
const char *stat_page_read(const struct dpn_stat_page *page, struct stat_process *p)
{
    const struct timespec pause = {.tv_nsec = 1000000};

    for (int i = 0; i < TRIES; i++) {
        const uint64_t since = dp_page_changes(&page->head);
        const bool good = read_once(page, p);
        if (dp_page_is_steady(&page->head, since))
            return good ? NULL : "is damaged: it counts for a device that it does not have";
        if (i >= TRIES_AT_ONCE)
            nanosleep(&pause, NULL);
    }
    return "is being changed by a process that does not go on";
}

/* ---- a file ---------------------------------------------------------------------------------- */

static int by_number(const void *a, const void *b)
{
    const struct stat_connection *x = a, *y = b;

    return (x->number > y->number) - (x->number < y->number);
}

static int take(const char *directory, const char *file, const struct dpn_stat_page *page,
                struct stat_process *p)
{
    struct timespec now;
    const char *flaw = stat_page_read(page, p);

    if (flaw)
        return command_broke("%s/%s %s", directory, file, flaw);
    snprintf(p->file, sizeof(p->file), "%s", file);
    p->pid = page->head.pid;
    p->opened_ns = page->head.opened_ns;
    stat_text(page->head.command, p->command, sizeof(p->command));
    clock_gettime(CLOCK_REALTIME, &now);
    p->read_ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
    qsort(p->connections, (size_t)p->connection_count, sizeof(*p->connections), by_number);
    return 0;
}

struct stat_process *stat_process_new(void)
{
    struct stat_process *p = calloc(1, sizeof(*p));

    if (p)
        p->connections = calloc(DPN_STAT_CONNECTIONS, sizeof(*p->connections));
    if (p && p->connections)
        return p;
    free(p);
    return NULL;
}

void stat_process_free(struct stat_process *p)
{
    free(p->connections);
    free(p);
}

static int add(struct stat_list *list, struct stat_process *p)
{
    const size_t count = (size_t)list->count + 1;
    struct stat_process **more = realloc(list->processes, count * sizeof(*more));

    if (!more)
        return command_broke("no memory for %zu processes", count);
    list->processes = more;
    list->processes[list->count++] = p;
    return 0;
}

const struct dp_page_kind stat_net_kind = {DPN_STAT_KIND};

/* A page joins the list, unless it is damaged. */
static void read_page(const struct stat_mapped *m, int i, struct stat_list *list)
{
    struct stat_process *p = stat_process_new();
    int status = p ? take(m->directory, m->pages[i].file, (const void *)m->pages[i].head, p)
                   : command_broke("no memory for a process");

    if (!status)
        status = add(list, p);
    if (status && p)
        stat_process_free(p);
    list->refused += status > 0;
}

static int by_pid(const void *a, const void *b)
{
    const struct stat_process *x = *(struct stat_process *const *)a;
    const struct stat_process *y = *(struct stat_process *const *)b;

    return (x->pid > y->pid) - (x->pid < y->pid);
}

int stat_read(const char *directory, struct stat_list *out)
{
    struct stat_mapped m = {0};
    const int status = stat_map_all(&m, &stat_net_kind, directory);

    *out = (struct stat_list){.refused = m.refused};
    for (int i = 0; i < m.count; i++)
        read_page(&m, i, out);
    stat_mapped_fini(&m);
    if (out->count)
        qsort(out->processes, (size_t)out->count, sizeof(*out->processes), by_pid);
    return status;
}

void stat_list_fini(struct stat_list *list)
{
    for (int i = 0; i < list->count; i++)
        stat_process_free(list->processes[i]);
    free(list->processes);
    *list = (struct stat_list){0};
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* NULL: there is no place for one more. */
static struct stat_device *find_device(struct stat_sum *sum, const struct stat_device *like)
{
    for (int i = 0; i < sum->device_count; i++)
        if (!strcmp(sum->devices[i].name, like->name))
            return &sum->devices[i];
    if (sum->device_count == DPN_STAT_DEVICES)
        return NULL;
    struct stat_device *d = &sum->devices[sum->device_count++];
    *d = (struct stat_device){.speed_mbps = like->speed_mbps};
    snprintf(d->name, sizeof(d->name), "%s", like->name);
    return d;
}

int stat_pages_sum(const struct stat_mapped *m, struct stat_sum *out)
{
    struct stat_process *p = stat_process_new();
    int count = 0;

    for (int i = 0; p && i < m->count; i++) {
        if (stat_page_read((const void *)m->pages[i].head, p))
            continue;
        count++;
        for (int d = 0; d < p->device_count; d++) {
            struct stat_device *to = find_device(out, &p->devices[d]);
            for (int way = 0; to && way < DPN_STAT_WAYS; way++)
                stat_counts_add(&p->devices[d].ways[way], &to->ways[way]);
        }
    }
    if (p)
        stat_process_free(p);
    return count;
}

/* ---- the preload library's counters ---------------------------------------------------------- */

const struct dp_page_kind stat_preload_kind = {DPO_PAGE_KIND};

const struct dpo_page *stat_preload_at(const struct stat_mapped *p, int i)
{
    return (const void *)p->pages[i].head;
}

uint64_t stat_preload_count(const struct dpo_page *page, enum dpo_counter counter)
{
    return atomic_load_explicit(&page->counters[counter], memory_order_relaxed);
}

void stat_preload_sum(const struct stat_mapped *p, uint64_t counts[DPO_COUNTERS])
{
    for (int i = 0; i < p->count; i++)
        for (int c = 0; c < DPO_COUNTERS; c++)
            counts[c] += stat_preload_count(stat_preload_at(p, i), (enum dpo_counter)c);
}

/* ---- in words -------------------------------------------------------------------------------- */

const char *stat_preload_text(const uint64_t counts[DPO_COUNTERS], char *text, size_t len)
{
    const uint64_t known = counts[DPO_PAGES] - counts[DPO_PAGES_UNKNOWN];
    char pinned[16], up[16], down[16], staged[16];
    bool is_empty = true;

    for (int c = 0; c < DPO_COUNTERS; c++)
        is_empty &= !counts[c];
    if (is_empty)
        return "";
    snprintf(text, len,
             "pinned %s, %llu of %llu pages not on the nearest NUMA node; copied %s to the device, "
             "%s to the host; staged %s",
             stat_bytes_text((double)counts[DPO_PINNED_BYTES], pinned, sizeof(pinned)),
             (unsigned long long)(known - counts[DPO_PAGES_ON_NODE]), (unsigned long long)known,
             stat_bytes_text((double)counts[DPO_COPIES_TO_DEVICE_BYTES], up, sizeof(up)),
             stat_bytes_text((double)counts[DPO_COPIES_TO_HOST_BYTES], down, sizeof(down)),
             stat_bytes_text((double)(counts[DPO_STAGED_TO_DEVICE_BYTES] +
                                      counts[DPO_STAGED_TO_HOST_BYTES]),
                             staged, sizeof(staged)));
    return text;
}
