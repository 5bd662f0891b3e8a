/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "clock.h"
#include "draw/draw.h"
#include "stat/stat.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const struct dp_page_kind stat_profile_kind = {DPN_PROFILE_KIND};

static uint64_t get(const dpn_profile_counter *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* ---- communicators --------------------------------------------------------------------------- */

static void read_comm(const struct dpn_profile_comm *from, int place, struct stat_profile *out)
{
    struct stat_profile_comm *c = &out->comms[out->comm_count++];

    *c = (struct stat_profile_comm){.hash = from->hash,
                                    .place = place,
                                    .rank = from->rank,
                                    .ranks = from->ranks,
                                    .nodes = from->nodes};
    stat_text(from->name, c->name, sizeof(c->name));
    for (int i = 0; i < DPN_FUNCTIONS; i++) {
        c->calls[i] = get(&from->calls[i]);
        c->bytes[i] = get(&from->bytes[i]);
    }
}

static int find_comm(const struct stat_profile *p, unsigned place)
{
    for (int i = 0; i < p->comm_count; i++)
        if (p->comms[i].place == (int)place)
            return i;
    return STAT_PROFILE_UNKNOWN;
}

/* ---- flows ----------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    const struct stat_flow *x = a, *y = b;

    return x->comm != y->comm         ? (x->comm > y->comm) - (x->comm < y->comm)
           : x->is_send != y->is_send ? y->is_send - x->is_send
           : x->peer != y->peer       ? (x->peer > y->peer) - (x->peer < y->peer)
                                      : strcmp(x->rail, y->rail);
}

static void add_flow(const struct dpn_profile_flow *from, struct stat_flow *to)
{
    int64_t waiting = 0;

    to->channels++;
    to->bytes += get(&from->bytes);
    to->operations += get(&from->operations);
    to->chunks += get(&from->chunks);
    for (int i = 0; i < DPN_WAITS; i++) {
        const int64_t now = atomic_load_explicit(&from->waiting[i], memory_order_relaxed);
        to->wait_ns[i] += get(&from->wait_ns[i]);
        to->waiting[i] += now > 0 ? now : 0;
        waiting += now;
    }
    const int64_t still_ns =
        now_ns() - atomic_load_explicit(&from->changed_ns, memory_order_relaxed);
    if (waiting > 0 && still_ns > to->still_ns)
        to->still_ns = still_ns;
}

static void read_flow(const struct dpn_profile_page *page, const struct dpn_profile_flow *from,
                      uint64_t key, struct stat_profile *out)
{
    const uint32_t rail = atomic_load_explicit(&from->rail, memory_order_relaxed);
    struct stat_flow f = {.comm = find_comm(out, dpn_profile_key_comm(key)),
                          .peer = dpn_profile_key_peer(key),
                          .is_send = dpn_profile_key_is_send(key)};

    if (rail && rail <= DPN_PROFILE_RAILS)
        stat_text(page->rails[rail - 1], f.rail, sizeof(f.rail));
    add_flow(from, &f);
    if (atomic_load_explicit(&from->key, memory_order_acquire) == key)
        out->flows[out->flow_count++] = f; /* otherwise it has ended meanwhile */
}

static void merge(struct stat_flow *to, const struct stat_flow *from)
{
    to->channels += from->channels;
    to->bytes += from->bytes;
    to->operations += from->operations;
    to->chunks += from->chunks;
    for (int i = 0; i < DPN_WAITS; i++) {
        to->wait_ns[i] += from->wait_ns[i];
        to->waiting[i] += from->waiting[i];
    }
    if (from->still_ns > to->still_ns)
        to->still_ns = from->still_ns;
}

/* Channels of the same way, peer and rail become one. */
static void merge_all(struct stat_profile *p)
{
    int count = 0;

    qsort(p->flows, (size_t)p->flow_count, sizeof(*p->flows), compare);
    for (int i = 0; i < p->flow_count; i++)
        if (count && !compare(&p->flows[count - 1], &p->flows[i]))
            merge(&p->flows[count - 1], &p->flows[i]);
        else
            p->flows[count++] = p->flows[i];
    p->flow_count = count;
}

/* One moment of a page. */
static void read_profile(const struct dpn_profile_page *page, struct stat_profile *out)
{
    out->pid = page->head.pid;
    stat_text(page->head.command, out->command, sizeof(out->command));
    out->lost = get(&page->lost);
    out->comm_count = out->flow_count = 0;
    for (int i = 0; i < DPN_PROFILE_COMMS; i++)
        if (atomic_load_explicit(&page->comms[i].in_use, memory_order_acquire))
            read_comm(&page->comms[i], i, out);
    for (int i = 0; i < DPN_PROFILE_FLOWS; i++) {
        const uint64_t key = atomic_load_explicit(&page->flows[i].key, memory_order_acquire);
        if (key > 1)
            read_flow(page, &page->flows[i], key, out);
    }
    merge_all(out);
}

/* ---- what is shown of them ------------------------------------------------------------------- */

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
        read_profile((const void *)profiles->pages[i].head, p);
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
        read_profile((const void *)profiles->pages[i].head, p);
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

enum figure { BYTES, CHUNKS, WAITED, WAITING };

static const struct {
    const char *name, *type, *help;
} figures[] = {
    [BYTES] = {"bytes_total", "counter", "Bytes of NCCL over the network, by peer and rail."},
    [CHUNKS] = {"chunks_total", "counter", "Chunks of those."},
    [WAITED] = {"wait_seconds_total", "counter", "What chunks have waited for, added up."},
    [WAITING] = {"waiting", "gauge", "Chunks that wait now."},
};

/* One sample, or one for each thing that is waited for. */
static void put_flow(FILE *to, const struct stat_mapped_page *page, const struct stat_profile *p,
                     const struct stat_flow *f, enum figure figure)
{
    const int samples = figure >= WAITED ? DPN_WAITS : 1;

    for (int i = 0; i < samples; i++) {
        fprintf(to, "dualpipe_nccl_%s", figures[figure].name);
        put_labels(to, page, p, f);
        if (figure >= WAITED)
            fprintf(to, ",for=\"%s\"", dpn_wait_name((enum dpn_profile_wait)i));
        if (figure == WAITED)
            fprintf(to, "} %.9f\n", (double)f->wait_ns[i] / 1e9);
        else if (figure == WAITING)
            fprintf(to, "} %" PRId64 "\n", f->waiting[i]);
        else
            fprintf(to, "} %" PRIu64 "\n", figure == BYTES ? f->bytes : f->chunks);
    }
}

static void put_all(FILE *to, const struct stat_mapped *profiles, struct stat_profile *p,
                    enum figure figure)
{
    stat_put_head(to, "nccl", figures[figure].name, figures[figure].type, figures[figure].help);
    for (int i = 0; i < profiles->count; i++) {
        read_profile((const void *)profiles->pages[i].head, p);
        for (int f = 0; f < p->flow_count; f++)
            put_flow(to, &profiles->pages[i], p, &p->flows[f], figure);
    }
}

void stat_profile_prometheus(FILE *to, const struct stat_mapped *profiles)
{
    struct stat_profile *p = profiles->count ? malloc(sizeof(*p)) : NULL;

    for (int figure = BYTES; p && figure <= WAITING; figure++)
        put_all(to, profiles, p, (enum figure)figure);
    free(p);
}
