/* SPDX-License-Identifier: Apache-2.0
 *
 * net_report.c - the figures of `dualpipe bench net` as a table or as JSON.
 */
#include "bench/net.h"

#include <jansson.h>

#include <stdio.h>

enum { FORMAT = 1 }; /* of the JSON; man dualpipe-bench describes it */

/* What is told of a test: figure `at` of its case. */
struct measure {
    const char *what;
    bool is_stream;
    int at;
};
static const struct measure measures[] = {
    {"latency", false, 0}, {"bandwidth", true, 0}, {"rate", true, 1},
};
enum { MEASURES = sizeof(measures) / sizeof(measures[0]) };

static const struct net_result *find(const struct net_report *r, const struct net_test *t,
                                     int contender)
{
    for (int i = 0; i < r->result_count; i++)
        if (r->results[i].test == t && r->results[i].contender == contender)
            return &r->results[i];
    return NULL;
}

/* ---- a table --------------------------------------------------------------------------------- */

static void print_contenders(const struct net_report *r)
{
    for (int i = 0; i < r->contender_count; i++) {
        const struct net_contender *c = &r->contenders[i];
        printf("%s  %s v%d, device %s (%d Mbit/s): %s%s\n", c->label, c->facts.plugin,
               c->facts.version, c->facts.device, c->facts.speed_mbps, c->assignments, c->file);
    }
    if (r->host_count > 1)
        printf("between two machines; load is that of the first\n");
}

static void print_head(const struct net_report *r, const struct measure *m, const char *unit,
                       int connections)
{
    char title[48];

    snprintf(title, sizeof(title), m->is_stream ? "%s, %s, %d connection%s" : "%s, %s", m->what,
             unit, connections, connections == 1 ? "" : "s");
    printf("\n%-36s", title);
    for (int i = 0; i < r->contender_count; i++)
        printf(" %9s", r->contenders[i].label);
    printf("  %3s %5s\n", "of", "load");
}

static bool print_row(const struct net_report *r, const struct measure *m, const struct net_test *t)
{
    int fewest = BENCH_SAMPLES_MAX;
    double load = 0;
    bool noisy = false;
    char size[24];

    bench_size_text(t->size, size, sizeof(size));
    printf("%36s", size);
    for (int i = 0; i < r->contender_count; i++) {
        const struct net_result *one = find(r, t, i);
        const struct bench_case *c = one->measured;
        printf(" %9.4g", c->figures[m->at].median);
        fewest = c->count < fewest ? c->count : fewest;
        load = c->background > load ? c->background : load;
        noisy |= c->noisy;
    }
    printf("  %3d %5.2f%s\n", fewest, load, noisy ? " (!)" : "");
    return noisy;
}

static void print_table(const struct net_report *r)
{
    bool noisy = false;

    print_contenders(r);
    for (int k = 0; k < MEASURES; k++) {
        const struct measure *m = &measures[k];
        int connections = 0;
        for (int i = 0; i < r->test_count; i++) {
            const struct net_test *t = &r->tests[i];
            if (t->is_stream != m->is_stream)
                continue;
            if (t->connections != connections)
                print_head(r, m, m->is_stream ? m->at ? "million/s" : "GB/s" : "us one way",
                           t->connections);
            connections = t->connections;
            noisy |= print_row(r, m, t);
        }
    }
    printf("\nmedians; of: samples that count; load: cores busy with other work in the worst of "
           "them\n");
    if (noisy)
        printf("(!) too few samples with less than %g cores of other work: do not trust these\n",
               BENCH_QUIET_CORES);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *json_contender(const struct net_contender *c)
{
    return json_pack("{ss, ss, ss, ss, ss, si, ss, si, si}", "contender", c->label, "kind",
                     "plugin", "file", c->file, "environment", c->assignments, "plugin",
                     c->facts.plugin, "abi", c->facts.version, "device", c->facts.device,
                     "device_number", c->facts.device_number, "speed_mbps", c->facts.speed_mbps);
}

static json_t *json_result(const struct net_report *r, const struct net_result *one, int at)
{
    json_t *j = bench_json_figure(one->measured, at);

    json_object_update_new(
        j, json_pack("{ss, sI, si}", "contender", r->contenders[one->contender].label, "size_bytes",
                     (json_int_t)one->test->size, "connections", one->test->connections));
    return j;
}

static void print_json(const struct net_report *r)
{
    json_t *contenders = json_array(), *figures = json_array();

    for (int i = 0; i < r->contender_count; i++)
        json_array_append_new(contenders, json_contender(&r->contenders[i]));
    for (int i = 0; i < r->result_count; i++)
        for (int k = 0; k < r->results[i].measured->figure_count; k++)
            json_array_append_new(figures, json_result(r, &r->results[i], k));
    json_t *all = json_pack("{ss, si, si, so, so}", "bench", "net", "format", FORMAT, "hosts",
                            r->host_count, "contenders", contenders, "figures", figures);
    json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(all);
}

void net_print(const struct net_report *r)
{
    if (r->values->common.json)
        print_json(r);
    else
        print_table(r);
}
