/* SPDX-License-Identifier: Apache-2.0 */
#include "stat/stat.h"

#include <dualpipe/dualpipe.h>

#include <jansson.h>

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
        json_object_set_new(all, stat_what_name((enum dpn_stat_what)i),
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
