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
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t last_number; /* under dp_page_lock, as all that changes the page but a counter */

static int64_t real_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * DP_NS_PER_S + t.tv_nsec;
}

/* ---- devices --------------------------------------------------------------------------------- */

static const char *const way_names[] = {"receive", "send"};

/* None in a child that was forked, whose own first connection makes it one. */
static struct dp_page owned = {.kind = &dpn_stat_kind};

__attribute__((format(printf, 3, 4)))
static void name_row(struct dpn_stat_row *row, uint64_t use, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    memset(row->label, 0, sizeof(row->label));
    vsnprintf(row->label, sizeof(row->label), fmt, args);
    va_end(args);
    atomic_store_explicit(&row->use, use, memory_order_release);
}

void dpn_stat_name_device(int dev, const char *name, int speed_mbps)
{
    if (!dpn_options.stat || dev >= DPN_STAT_DEVICES)
        return;
    pthread_mutex_lock(&dp_page_lock);
    struct dpn_stat_page *page = dp_page_ensure(&owned, true, dpn_options.stat_dir);
    for (int i = 0; i < DPN_STAT_WAYS && page; i++) {
        struct dpn_stat_row *row = &page->rows[DPN_STAT_WAYS * dev + i];
        if (dp_page_get(&row->use))
            continue;
        dp_page_set(&row->values[DPN_STAT_SPEED_MBPS], (uint64_t)speed_mbps);
        name_row(row, 2 + (uint64_t)(row - page->rows), "%.*s\t%s", DPN_STAT_DEVICE_LEN - 1, name,
                 way_names[i]);
    }
    pthread_mutex_unlock(&dp_page_lock);
}

/* ---- connections ----------------------------------------------------------------------------- */

static struct dpn_stat_row *find_place(struct dpn_stat_page *page)
{
    for (int i = DPN_STAT_FIRST_CONNECTION; i < DPN_STAT_FIRST_CONNECTION + DPN_STAT_CONNECTIONS; i++)
        if (!dp_page_get(&page->rows[i].use))
            return &page->rows[i]; /* a low one: readers look at the first ones only */
    return NULL;
}

static void take_place(struct dpn_stat_page *page, struct dpn_stat *stat, const char *transport,
                       const char *peer)
{
    struct dpn_stat_row *c = find_place(page), *device = &page->rows[stat->row];

    stat->is_private = !c;
    if (!c)
        c = aligned_alloc(_Alignof(struct dpn_stat_row), sizeof(*c));
    if (!c)
        return;
    dp_page_begin_change(&page->head);
    memset(c, 0, sizeof(*c));
    dp_page_set(&c->values[DPN_STAT_DEVICE], (uint64_t)stat->row + 1);
    dp_page_set(&c->values[DPN_STAT_OPENED_NS], (uint64_t)real_ns());
    dp_page_set(&c->values[DPN_STAT_OPEN], 1);
    last_number++;
    name_row(c, DPN_STAT_FIRST_CONNECTION + 1 + last_number, "%llu\t%.15s\t%.*s",
             (unsigned long long)last_number, transport, DPN_STAT_NAME_LEN - 1, peer);
    if (!stat->is_private && (uint64_t)(c - page->rows) >= dp_page_get(&page->head.used_rows))
        dp_page_set(&page->head.used_rows, (uint64_t)(c - page->rows) + 1);
    dp_page_add(&device->values[DPN_STAT_OPENED], 1);
    dp_page_add(&device->values[DPN_STAT_LEFT_OUT], stat->is_private);
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
    stat->is_sender = is_sender;
    stat->row = DPN_STAT_WAYS * dev + (is_sender ? DPN_STAT_SEND : DPN_STAT_RECEIVE);
    if (page)
        take_place(page, stat, transport, peer);
    pthread_mutex_unlock(&dp_page_lock);
}

void dpn_stat_close(struct dpn_stat *stat)
{
    struct dpn_stat_row *c = stat->on;

    if (!c)
        return;
    pthread_mutex_lock(&dp_page_lock);
    struct dpn_stat_page *page = owned.at;
    /* A child that was forked may close what it inherited. */
    if (page && stat->generation == owned.generation) {
        dp_page_begin_change(&page->head);
        struct dpn_stat_row *device = &page->rows[stat->row];
        for (int i = DPN_STAT_MESSAGES; i < dpn_stat_values; i++)
            dp_page_add(&device->values[i], dp_page_get(&c->values[i]));
        dp_page_set(&c->use, 0);
        dp_page_add(&device->values[DPN_STAT_LEFT_OUT], -(uint64_t)stat->is_private);
        dp_page_end_change(&page->head);
    }
    pthread_mutex_unlock(&dp_page_lock);
    if (stat->is_private)
        free(c);
    *stat = (struct dpn_stat){0};
}
