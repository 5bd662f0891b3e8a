/* SPDX-License-Identifier: Apache-2.0
 *
 * stat.c - the page of this process: made with its first connection, gone with its end.
 */
#include "nccl-plugin/net/stat.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/page_file.h"
#include "nccl-plugin/net/comm.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t last_number; /* under dp_page_lock, as all that changes the page but a counter */

static int64_t real_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * DP_NS_PER_S + t.tv_nsec;
}

/* ---- a file of its own ----------------------------------------------------------------------- */

/* Fused devices may be made later. */
static void list_devices(struct dpn_stat_page *p)
{
    const struct dpn_device *device;
    int count = 0;

    (void)dpn_net_devices(&count);
    for (int i = (int)p->device_count; i < count && i < DPN_STAT_DEVICES; i++)
        if (!dpn_net_device(i, &device)) {
            snprintf(p->devices[i].name, DPN_STAT_DEVICE_LEN, "%.*s", DPN_STAT_DEVICE_LEN - 1,
                     device->name);
            p->devices[i].speed_mbps = device->speed_mbps;
            p->device_count = (uint32_t)i + 1;
        }
}

static void fill_page(void *at)
{
    list_devices(at);
}

/* None in a child that was forked, whose own first connection makes it one. */
static struct dp_page owned = {
    .kind = &(const struct dp_page_kind){DPN_STAT_KIND, .fill = fill_page}};

/* ---- connections ----------------------------------------------------------------------------- */

static struct dpn_stat_connection *find_place(struct dpn_stat_page *page)
{
    for (int i = 0; i < DPN_STAT_CONNECTIONS; i++)
        if (!atomic_load_explicit(&page->connections[i].in_use, memory_order_relaxed))
            return &page->connections[i]; /* a low one: a reader looks at the first ones only */
    return NULL;
}

static void fill_connection(struct dpn_stat_connection *c, int dev, bool is_sender,
                            const char *transport, const char *peer)
{
    c->device = (uint32_t)dev;
    c->way = is_sender ? DPN_STAT_SEND : DPN_STAT_RECEIVE;
    c->number = ++last_number;
    c->opened_ns = real_ns();
    snprintf(c->transport, sizeof(c->transport), "%s", transport);
    snprintf(c->peer, sizeof(c->peer), "%s", peer);
    memset(&c->counters, 0, sizeof(c->counters));
}

static void take_place(struct dpn_stat_page *page, struct dpn_stat *stat, int dev, bool is_sender,
                       const char *transport, const char *peer)
{
    struct dpn_stat_connection *c = find_place(page);

    stat->is_private = !c;
    if (!c)
        c = calloc(1, sizeof(*c));
    if (!c)
        return;
    dp_page_begin_change(&page->head);
    if ((uint32_t)dev >= page->device_count)
        list_devices(page);
    fill_connection(c, dev, is_sender, transport, peer);
    atomic_store_explicit(&c->in_use, 1, memory_order_relaxed);
    if (!stat->is_private && c >= &page->connections[page->connection_count])
        page->connection_count = (uint32_t)(c - page->connections) + 1;
    dpn_stat_add(&page->opened, 1);
    dpn_stat_add(&page->left_out, stat->is_private);
    dp_page_end_change(&page->head);
    stat->on = c;
    stat->generation = owned.generation;
}

void dpn_stat_open(struct dpn_stat *stat, int dev, bool is_sender, const char *transport,
                   const char *peer)
{
    if (!dpn_options.stat || dev < 0 || dev >= DPN_STAT_DEVICES)
        return;
    pthread_mutex_lock(&dp_page_lock);
    struct dpn_stat_page *page = dp_page_ensure(&owned, true, dpn_options.stat_dir);
    if (page)
        take_place(page, stat, dev, is_sender, transport, peer);
    pthread_mutex_unlock(&dp_page_lock);
}

static void move_to_device(struct dpn_stat_page *page, const struct dpn_stat_connection *c)
{
    const dpn_stat_counter *from = c->counters.counts;
    dpn_stat_counter *to = page->devices[c->device].closed[c->way].counts;

    for (size_t i = 0; i < offsetof(struct dpn_stat_counters, rest) / sizeof(*to); i++)
        dpn_stat_add(&to[i], atomic_load_explicit(&from[i], memory_order_relaxed));
}

void dpn_stat_close(struct dpn_stat *stat)
{
    struct dpn_stat_connection *c = stat->on;

    if (!c)
        return;
    pthread_mutex_lock(&dp_page_lock);
    struct dpn_stat_page *page = owned.at;
    /* A child that was forked may close what it inherited. */
    if (page && stat->generation == owned.generation) {
        dp_page_begin_change(&page->head);
        move_to_device(page, c);
        atomic_store_explicit(&c->in_use, 0, memory_order_relaxed);
        if (stat->is_private)
            dpn_stat_add(&page->left_out, (uint64_t)-1);
        dp_page_end_change(&page->head);
    }
    pthread_mutex_unlock(&dp_page_lock);
    if (stat->is_private)
        free(c);
    *stat = (struct dpn_stat){0};
}
