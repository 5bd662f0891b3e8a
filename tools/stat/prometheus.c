/* SPDX-License-Identifier: Apache-2.0
 *
 * prometheus.c - the text exposition format, version 0.0.4: all samples of a metric together, after
 * its HELP and TYPE.
 * https://prometheus.io/docs/instrumenting/exposition_formats/
 */
#include "stat/stat.h"

#include <dualpipe/dualpipe.h>

#include <string.h>

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

struct counter {
    enum dpn_stat_what what;
    const char *name, *help;
    double unit; /* of Prometheus in ours */
};
static const struct counter counters[] = {
    {DPN_STAT_MESSAGES, "messages", "Messages that are done.", 1},
    {DPN_STAT_BYTES, "bytes", "Bytes of those.", 1},
    {DPN_STAT_REQUESTS, "requests", "Requests begun; a group of receives is one.", 1},
    {DPN_STAT_FINISHED, "requests_finished", "Requests that are done.", 1},
    {DPN_STAT_STALLS, "stalls", "Times that a send waited for the receiver's clear-to-send.", 1},
    {DPN_STAT_STALL_NS, "stall_seconds", "How long such sends waited.", 1e9},
    {DPN_STAT_FULL, "full", "Times that all requests of a connection were in use.", 1},
    {DPN_STAT_RETRIES, "retries", "Messages, or parts of them, that were sent again.", 1},
    {DPN_STAT_FAILOVERS, "failovers",
     "Times that a way of a connection failed, and it went on over others.", 1},
    {DPN_STAT_ERRORS, "errors", "Calls that failed.", 1},
    {DPN_STAT_EAGER, "eager", "Messages that did not wait for their receive.", 1},
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
    const uint64_t n = p->devices[device].ways[way].counts[c->what];

    fprintf(to, "dualpipe_net_%s_total", c->name);
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

static void put_head(FILE *to, const char *name, const char *end, const char *help,
                     const char *type)
{
    fprintf(to, "# HELP dualpipe_net_%s%s %s\n# TYPE dualpipe_net_%s%s %s\n", name, end, help, name,
            end, type);
}

/* ---- the preload library's ------------------------------------------------------------------- */

static void put_preload(FILE *to, const struct stat_mapped *preload, enum dpo_counter counter)
{
    const char *name = dpo_counter_name(counter);

    fprintf(to, "# HELP dualpipe_preload_%s_total As `dualpipe stat --json` has it.\n", name);
    fprintf(to, "# TYPE dualpipe_preload_%s_total counter\n", name);
    for (int i = 0; i < preload->count; i++) {
        const struct stat_mapped_page *p = &preload->pages[i];
        const struct dpo_page *page = stat_preload_at(preload, i);
        fprintf(to, "dualpipe_preload_%s_total{pid=\"%lld\",process=\"", name,
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

    put_head(to, "connections", "", "Connections that are open.", "gauge");
    put_all(to, list, put_open, NULL);
    for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); i++) {
        put_head(to, counters[i].name, "_total", counters[i].help, "counter");
        put_all(to, list, put_counter, &counters[i]);
    }
    for (size_t i = 0; i < sizeof(histograms) / sizeof(histograms[0]); i++) {
        put_head(to, histograms[i].name, "", histograms[i].help, "histogram");
        put_all(to, list, put_histogram, &histograms[i]);
    }
    for (int c = 0; c < DPO_COUNTERS && preload->count; c++)
        put_preload(to, preload, (enum dpo_counter)c);
    stat_profile_prometheus(to, profiles);
    return fflush(to) || ferror(to) ? DP_EIO : 0;
}
