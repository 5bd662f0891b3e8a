/* SPDX-License-Identifier: Apache-2.0
 *
 * profile_print.c - in words, in JSON, and for Prometheus.
 */
#include "config.h"

#include "stat/profile.h"

#include "draw/draw.h"
#include "stat/pages.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- a table --------------------------------------------------------------------------------- */

/* "for its peer, 3 chunks, 1.2 s" of what waits now; "-". */
static const char *waiting_text(const struct stat_flow *f, char *text, size_t len)
{
    int most = 0;
    char still[32];

    for (int i = 1; i < DPN_WAITS; i++)
        if (f->waiting[i] > f->waiting[most])
            most = i;
    if (f->waiting[most] <= 0)
        return "-";
    snprintf(text, len, "%s, %" PRId64 " chunk%s, %s", dpn_wait_name((enum dpn_profile_wait)most),
             f->waiting[most], f->waiting[most] == 1 ? "" : "s",
             draw_time(f->still_ns, still, sizeof(still)));
    return text;
}

static void print_flow(const struct stat_flow *f)
{
    char bytes[16], waits[DPN_WAITS][32], now[96];

    for (int i = 0; i < DPN_WAITS; i++)
        draw_time((int64_t)f->wait_ns[i], waits[i], sizeof(waits[i]));
    printf("  %-8s %6d %-24s %8s %9" PRIu64 " %9s %9s %9s %9s  %s\n", f->is_send ? "to" : "from",
           f->peer, *f->rail ? f->rail : "-", stat_bytes_text((double)f->bytes, bytes, sizeof(bytes)),
           f->chunks, waits[DPN_WAIT_GPU], waits[DPN_WAIT_PEER], waits[DPN_WAIT_NETWORK],
           waits[DPN_WAIT_FLUSH], waiting_text(f, now, sizeof(now)));
}

static void print_calls(const struct stat_profile_comm *c)
{
    const char *comma = ":";
    char bytes[16];

    for (int i = 0; i < DPN_FUNCTIONS; i++)
        if (c->calls[i]) {
            printf("%s %" PRIu64 " %s of %s", comma, c->calls[i],
                   dpn_function_name((enum dpn_function)i),
                   stat_bytes_text((double)c->bytes[i], bytes, sizeof(bytes)));
            comma = ",";
        }
}

static void print_flows(const struct stat_profile *p, int comm)
{
    bool is_first = true;

    for (int i = 0; i < p->flow_count; i++) {
        if (p->flows[i].comm != comm)
            continue;
        if (is_first && comm == STAT_PROFILE_UNKNOWN)
            printf("messages of other processes, which go through this one\n");
        if (is_first)
            printf("  %-8s %6s %-24s %8s %9s %9s %9s %9s %9s  %s\n", "", "rank", "rail", "bytes",
                   "chunks", "gpu", "peer", "network", "flush", "waits now");
        print_flow(&p->flows[i]);
        is_first = false;
    }
}

static void print_profile(const struct stat_profile *p)
{
    printf("\nprocess %" PRId64 ": %s\n", p->pid, p->command);
    for (int i = 0; i < p->comm_count; i++) {
        const struct stat_profile_comm *c = &p->comms[i];
        printf("communicator %016" PRIx64 "%s%s, rank %d of %d", c->hash, *c->name ? " " : "",
               c->name, c->rank, c->ranks);
        print_calls(c);
        printf("\n");
        print_flows(p, i);
    }
    print_flows(p, STAT_PROFILE_UNKNOWN);
    if (p->lost)
        printf("%" PRIu64 " events had no place and are not counted\n", p->lost);
}

void stat_profile_print(const struct stat_mapped *profiles)
{
    struct stat_profile *p = profiles->count ? malloc(sizeof(*p)) : NULL;

    for (int i = 0; p && i < profiles->count; i++) {
        stat_profile_read((const void *)profiles->pages[i].head, p);
        print_profile(p);
    }
    if (p)
        printf("\ngpu, peer, network, flush: what chunks have waited for, all of them added up; "
               "several are in\nflight at once. peer: a sender for the receiver, a receiver for data\n");
    free(p);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *json_flow(const struct stat_flow *f)
{
    json_t *waits = json_object(), *now = json_object();

    for (int i = 0; i < DPN_WAITS; i++) {
        const char *name = dpn_wait_name((enum dpn_profile_wait)i);
        json_object_set_new(waits, name, json_integer((json_int_t)f->wait_ns[i]));
        json_object_set_new(now, name, json_integer((json_int_t)f->waiting[i]));
    }
    return json_pack("{ss, si, ss, si, sI, sI, sI, so, so, sI}", "way", f->is_send ? "send" : "receive",
                     "peer", f->peer, "rail", f->rail, "channels", f->channels, "bytes",
                     (json_int_t)f->bytes, "operations", (json_int_t)f->operations, "chunks",
                     (json_int_t)f->chunks, "wait_ns", waits, "waiting", now, "still_ns",
                     (json_int_t)f->still_ns);
}

static json_t *json_flows(const struct stat_profile *p, int comm)
{
    json_t *all = json_array();

    for (int i = 0; i < p->flow_count; i++)
        if (p->flows[i].comm == comm)
            json_array_append_new(all, json_flow(&p->flows[i]));
    return all;
}

static json_t *json_comm(const struct stat_profile *p, int i)
{
    const struct stat_profile_comm *c = &p->comms[i];
    json_t *functions = json_object();
    char hash[20];

    for (int f = 0; f < DPN_FUNCTIONS; f++)
        if (c->calls[f])
            json_object_set_new(functions, dpn_function_name((enum dpn_function)f),
                                json_pack("[I, I]", (json_int_t)c->calls[f], (json_int_t)c->bytes[f]));
    snprintf(hash, sizeof(hash), "%016" PRIx64, c->hash);
    return json_pack("{ss, ss, si, si, si, so, so}", "comm", hash, "name", c->name, "rank", c->rank,
                     "ranks", c->ranks, "nodes", c->nodes, "functions", functions, "flows",
                     json_flows(p, i));
}

static json_t *json_profile(const struct stat_profile *p)
{
    json_t *comms = json_array();

    for (int i = 0; i < p->comm_count; i++)
        json_array_append_new(comms, json_comm(p, i));
    return json_pack("{sI, ss, sI, so, so}", "pid", (json_int_t)p->pid, "command", p->command, "lost",
                     (json_int_t)p->lost, "communicators", comms, "other_flows",
                     json_flows(p, STAT_PROFILE_UNKNOWN));
}

json_t *stat_profile_json(const struct stat_mapped *profiles)
{
    struct stat_profile *p = malloc(sizeof(*p));
    json_t *all = p ? json_array() : NULL;

    for (int i = 0; all && i < profiles->count; i++) {
        stat_profile_read((const void *)profiles->pages[i].head, p);
        if (json_array_append_new(all, json_profile(p))) {
            json_decref(all);
            all = NULL;
        }
    }
    free(p);
    return all;
}

/* ---- Prometheus ------------------------------------------------------------------------------ */

static void put_labels(FILE *to, const struct stat_mapped_page *page, const struct stat_profile *p,
                       const struct stat_flow *f)
{
    const struct stat_profile_comm *c =
        f->comm == STAT_PROFILE_UNKNOWN ? NULL : &p->comms[f->comm];

    fprintf(to,
            "{pid=\"%" PRId64 "\",process=\"%.*s\",comm=\"%016" PRIx64
            "\",rank=\"%d\",peer=\"%d\",way=\"%s\",rail=\"%s\"",
            p->pid, (int)strcspn(page->file, "."), page->file, c ? c->hash : 0, c ? c->rank : -1,
            f->peer, f->is_send ? "send" : "receive", f->rail);
}

typedef void put_fn(FILE *to, const struct stat_mapped_page *page, const struct stat_profile *p,
                    const struct stat_flow *f);

static void put_bytes(FILE *to, const struct stat_mapped_page *page, const struct stat_profile *p,
                      const struct stat_flow *f)
{
    fputs("dualpipe_nccl_bytes_total", to);
    put_labels(to, page, p, f);
    fprintf(to, "} %" PRIu64 "\n", f->bytes);
}

static void put_chunks(FILE *to, const struct stat_mapped_page *page, const struct stat_profile *p,
                       const struct stat_flow *f)
{
    fputs("dualpipe_nccl_chunks_total", to);
    put_labels(to, page, p, f);
    fprintf(to, "} %" PRIu64 "\n", f->chunks);
}

static void put_waits(FILE *to, const struct stat_mapped_page *page, const struct stat_profile *p,
                      const struct stat_flow *f)
{
    for (int i = 0; i < DPN_WAITS; i++) {
        fputs("dualpipe_nccl_wait_seconds_total", to);
        put_labels(to, page, p, f);
        fprintf(to, ",for=\"%s\"} %.9f\n", dpn_wait_name((enum dpn_profile_wait)i),
                (double)f->wait_ns[i] / 1e9);
    }
}

static void put_waiting(FILE *to, const struct stat_mapped_page *page, const struct stat_profile *p,
                        const struct stat_flow *f)
{
    for (int i = 0; i < DPN_WAITS; i++) {
        fputs("dualpipe_nccl_waiting", to);
        put_labels(to, page, p, f);
        fprintf(to, ",for=\"%s\"} %" PRId64 "\n", dpn_wait_name((enum dpn_profile_wait)i),
                f->waiting[i]);
    }
}

static void put_all(FILE *to, const struct stat_mapped *profiles, struct stat_profile *p, put_fn *put)
{
    for (int i = 0; i < profiles->count; i++) {
        stat_profile_read((const void *)profiles->pages[i].head, p);
        for (int f = 0; f < p->flow_count; f++)
            put(to, &profiles->pages[i], p, &p->flows[f]);
    }
}

void stat_profile_prometheus(FILE *to, const struct stat_mapped *profiles)
{
    static const struct {
        const char *name, *type, *help;
        put_fn *put;
    } metrics[] = {
        {"bytes_total", "counter", "Bytes of NCCL over the network, by peer and rail.", put_bytes},
        {"chunks_total", "counter", "Chunks of those.", put_chunks},
        {"wait_seconds_total", "counter", "What chunks have waited for, added up.", put_waits},
        {"waiting", "gauge", "Chunks that wait now.", put_waiting},
    };
    struct stat_profile *p = profiles->count ? malloc(sizeof(*p)) : NULL;

    for (size_t i = 0; p && i < sizeof(metrics) / sizeof(metrics[0]); i++) {
        fprintf(to, "# HELP dualpipe_nccl_%s %s\n# TYPE dualpipe_nccl_%s %s\n", metrics[i].name,
                metrics[i].help, metrics[i].name, metrics[i].type);
        put_all(to, profiles, p, metrics[i].put);
    }
    free(p);
}
