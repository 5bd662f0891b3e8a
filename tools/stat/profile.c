/* SPDX-License-Identifier: Apache-2.0
 *
 * profile.c - what the profiler plugin counts: how much each rank sends to which, waiting for what.
 */
#include "config.h"

#include "draw/draw.h"
#include "nccl-plugin/profiler/page.h"
#include "stat/stat.h"

#include <inttypes.h>
#include <stdlib.h>

enum { COMM, NAME, RANK, PEER, WAY, RAIL, FLOW_FIELDS, COMM_FIELDS = PEER };

static const char *wait_name(int wait)
{
    return dpn_wait_name((enum dpn_profile_wait)wait);
}

/* Since when no chunk has gone on counts for a channel where some wait; they come on many threads. */
static void settle(struct stat_row *row)
{
    int64_t waiting = 0;

    for (int i = DPN_PROFILE_WAITING; i < DPN_PROFILE_WAITING + DPN_WAITS; i++) {
        waiting += (int64_t)row->values[i];
        if ((int64_t)row->values[i] < 0)
            row->values[i] = 0;
    }
    if (waiting <= 0)
        row->values[DPN_PROFILE_STILL_NS] = 0;
}

static const struct stat_metric metrics[] = {
    {"bytes_total", "counter", "Bytes of NCCL over the network, by peer and rail.", DPN_PROFILE_BYTES},
    {"chunks_total", "counter", "Chunks of those.", DPN_PROFILE_CHUNKS},
    {"wait_seconds_total", "counter", "What chunks have waited for, added up.", DPN_PROFILE_WAIT_NS,
     .place = wait_name},
    {"waiting", "gauge", "Chunks that wait now.", DPN_PROFILE_WAITING, .place = wait_name},
};

/* By peer, way and rail; and by communicator. */
const struct stat_kind stat_profile = {
    .page = &dpn_profile_kind, .fields = {FLOW_FIELDS, COMM_FIELDS}, .settle = settle, .set = "nccl",
    .has_process = true, .labels = {"comm", NULL, "rank", "peer", "way", "rail"}, .metrics = metrics,
    .metric_count = sizeof(metrics) / sizeof(metrics[0])};

/* Of messages of other processes, which go through this one (PXN). */
static bool is_others(const struct stat_row *comm)
{
    return !strcmp(stat_field(comm, NAME), DPN_PROFILE_OTHERS) && !strcmp(stat_field(comm, RANK), "-1");
}

/* ---- a table --------------------------------------------------------------------------------- */

/* "for its peer, 3 chunks, 1.2 s" of what waits now; "-". */
static const char *waiting_text(const struct stat_row *f, char *text, size_t len)
{
    const int64_t *waiting = (const int64_t *)&f->values[DPN_PROFILE_WAITING];
    int most = 0;
    char still[32];

    for (int i = 1; i < DPN_WAITS; i++)
        if (waiting[i] > waiting[most])
            most = i;
    if (waiting[most] <= 0)
        return "-";
    snprintf(text, len, "%s, %" PRId64 " chunk%s, %s", wait_name(most), waiting[most],
             waiting[most] == 1 ? "" : "s",
             draw_time((int64_t)f->values[DPN_PROFILE_STILL_NS], still, sizeof(still)));
    return text;
}

static void print_flow(const struct stat_row *f)
{
    char bytes[16], waits[DPN_WAITS][32], now[96];
    const char *rail = stat_field(f, RAIL);

    for (int i = 0; i < DPN_WAITS; i++)
        draw_time((int64_t)f->values[DPN_PROFILE_WAIT_NS + i], waits[i], sizeof(waits[i]));
    printf("  %-8s %6s %-24s %8s %9" PRIu64 " %9s %9s %9s %9s  %s\n",
           *stat_field(f, WAY) == 's' ? "to" : "from", stat_field(f, PEER), *rail ? rail : "-",
           stat_bytes_text((double)f->values[DPN_PROFILE_BYTES], bytes, sizeof(bytes)),
           f->values[DPN_PROFILE_CHUNKS], waits[DPN_WAIT_GPU], waits[DPN_WAIT_PEER],
           waits[DPN_WAIT_NETWORK], waits[DPN_WAIT_FLUSH], waiting_text(f, now, sizeof(now)));
}

static void print_comm(const struct stat_row *c)
{
    const char *name = stat_field(c, NAME), *comma = ":";
    char bytes[16];

    printf("communicator %s%s%s, rank %s of %" PRIu64, stat_field(c, COMM), *name ? " " : "", name,
           stat_field(c, RANK), c->values[DPN_PROFILE_RANKS]);
    for (int i = 0; i < DPN_FUNCTIONS; i++)
        if (c->values[DPN_PROFILE_CALLS + i]) {
            printf("%s %" PRIu64 " %s of %s", comma, c->values[DPN_PROFILE_CALLS + i],
                   dpn_function_name((enum dpn_function)i),
                   stat_bytes_text((double)c->values[DPN_PROFILE_CALLS_BYTES + i], bytes,
                                   sizeof(bytes)));
            comma = ",";
        }
    printf("\n");
}

static void print_flows(const struct stat_page *p, const struct stat_row *comm)
{
    const char *head = is_others(comm) ? "messages of other processes, which go through this one\n" : "";

    for (int i = 0; i < p->sums[0].count; i++) {
        if (!stat_is_part(&p->sums[0].list[i], comm))
            continue;
        if (head)
            printf("%s  %-8s %6s %-24s %8s %9s %9s %9s %9s %9s  %s\n", head, "", "rank", "rail", "bytes",
                   "chunks", "gpu", "peer", "network", "flush", "waits now");
        print_flow(&p->sums[0].list[i]);
        head = NULL;
    }
}

static void print_profile(const struct stat_page *p)
{
    printf("\nprocess %" PRId64 ": %s\n", p->pid, p->command);
    for (int i = 0; i < p->sums[1].count; i++) {
        const struct stat_row *c = &p->sums[1].list[i];
        if (!is_others(c))
            print_comm(c);
        print_flows(p, c);
        if (c->values[DPN_PROFILE_LOST])
            printf("%" PRIu64 " events had no place and are not counted\n", c->values[DPN_PROFILE_LOST]);
    }
}

void stat_profile_print(const struct stat_list *list)
{
    for (int i = 0; i < list->count; i++)
        print_profile(&list->pages[i]);
    if (list->count)
        printf("\ngpu, peer, network, flush: what chunks have waited for, all of them added up; "
               "several are in\nflight at once. peer: a sender for the receiver, a receiver for data\n");
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *json_waits(const uint64_t *values)
{
    json_t *all = json_object();

    for (int i = 0; i < DPN_WAITS; i++)
        json_object_set_new(all, wait_name(i), json_integer((json_int_t)values[i]));
    return all;
}

static json_t *json_flows(const struct stat_page *p, const struct stat_row *comm)
{
    json_t *all = json_array();

    for (int i = 0; i < p->sums[0].count; i++) {
        const struct stat_row *f = &p->sums[0].list[i];
        if (!stat_is_part(f, comm))
            continue;
        json_t *j = json_pack("{ss, sI, ss}", "way", stat_field(f, WAY), "peer",
                              (json_int_t)atoll(stat_field(f, PEER)), "rail", stat_field(f, RAIL));
        stat_json_values(j, &stat_profile, f, DPN_PROFILE_CHANNELS, DPN_PROFILE_CHUNKS);
        json_object_set_new(j, "wait_ns", json_waits(&f->values[DPN_PROFILE_WAIT_NS]));
        json_object_set_new(j, "waiting", json_waits(&f->values[DPN_PROFILE_WAITING]));
        stat_json_values(j, &stat_profile, f, DPN_PROFILE_STILL_NS, DPN_PROFILE_STILL_NS);
        json_array_append_new(all, j);
    }
    return all;
}

static json_t *json_comm(const struct stat_page *p, const struct stat_row *c)
{
    json_t *functions = json_object();

    for (int f = 0; f < DPN_FUNCTIONS; f++)
        if (c->values[DPN_PROFILE_CALLS + f])
            json_object_set_new(functions, dpn_function_name((enum dpn_function)f),
                                json_pack("[I, I]", (json_int_t)c->values[DPN_PROFILE_CALLS + f],
                                          (json_int_t)c->values[DPN_PROFILE_CALLS_BYTES + f]));
    return json_pack("{ss, ss, sI, sI, sI, so, so}", "comm", stat_field(c, COMM), "name",
                     stat_field(c, NAME), "rank", (json_int_t)atoll(stat_field(c, RANK)), "ranks",
                     (json_int_t)c->values[DPN_PROFILE_RANKS], "nodes",
                     (json_int_t)c->values[DPN_PROFILE_NODES], "functions", functions, "flows",
                     json_flows(p, c));
}

json_t *stat_profile_json(const struct stat_list *list)
{
    json_t *all = json_array();

    for (int i = 0; i < list->count; i++) {
        const struct stat_page *p = &list->pages[i];
        json_t *comms = json_array(), *others = json_array();
        uint64_t lost = 0;
        for (int c = 0; c < p->sums[1].count; c++)
            if (!is_others(&p->sums[1].list[c])) {
                json_array_append_new(comms, json_comm(p, &p->sums[1].list[c]));
            } else {
                json_decref(others);
                others = json_flows(p, &p->sums[1].list[c]);
                lost = p->sums[1].list[c].values[DPN_PROFILE_LOST];
            }
        json_array_append_new(all, json_pack("{sI, ss, sI, so, so}", "pid", (json_int_t)p->pid,
                                             "command", p->command, "lost", (json_int_t)lost,
                                             "communicators", comms, "other_flows", others));
    }
    return all;
}
