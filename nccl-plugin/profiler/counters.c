/* SPDX-License-Identifier: Apache-2.0
 *
 * counters.c - a flow is found by hashing its key, without a lock; it is made and ended under one.
 */
#include "config.h"

#include "nccl-plugin/profiler/counters.h"

#include "base/page_file.h"
#include "nccl-plugin/options.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { KEY_NEVER, KEY_ENDED, PROBES = 64 };

/* ---- options --------------------------------------------------------------------------------- */

static struct dpn_profiler_options options;

/* A bad option is said once; NCCL goes on, and nothing is written. */
static void read_options(void)
{
    if (dp_options_read(&dpn_profiler_option_area, &options))
        options = (struct dpn_profiler_options){0};
}

const struct dpn_profiler_options *dpn_profiler_options(void)
{
    static pthread_once_t is_read = PTHREAD_ONCE_INIT;

    pthread_once(&is_read, read_options);
    return &options;
}

/* ---- the page -------------------------------------------------------------------------------- */

static struct dpn_profile_page own; /* without a file */
static struct dp_page owned = {
    .kind = &(const struct dp_page_kind){DPN_PROFILE_KIND}, .own = &own, .at = &own};

static inline struct dpn_profile_page *get_page(void)
{
    return owned.at;
}

void dpn_counters_lost(void)
{
    atomic_fetch_add_explicit(&get_page()->lost, 1, memory_order_relaxed);
}

/* ---- communicators --------------------------------------------------------------------------- */

void dpn_counters_name(char *to, unsigned len, const char *name)
{
    unsigned n = 0;

    for (; name && *name && n < len - 1; name++)
        if (*name >= ' ' && *name < 127 && *name != '"' && *name != '\\')
            to[n++] = *name;
    to[n] = '\0';
}

static bool is_free(const struct dpn_profile_comm *c)
{
    return !atomic_load_explicit(&c->in_use, memory_order_relaxed);
}

static void fill_comm(struct dpn_profile_comm *c, const struct dpn_profile_comm *like)
{
    c->rank = like->rank;
    c->ranks = like->ranks;
    c->nodes = like->nodes;
    c->hash = like->hash;
    memcpy(c->name, like->name, sizeof(c->name));
    for (int i = 0; i < DPN_FUNCTIONS; i++) {
        atomic_store_explicit(&c->calls[i], 0, memory_order_relaxed);
        atomic_store_explicit(&c->bytes[i], 0, memory_order_relaxed);
    }
    atomic_store_explicit(&c->in_use, 1, memory_order_release);
}

unsigned dpn_counters_open(const struct dpn_profile_comm *like)
{
    const struct dpn_profiler_options *o = dpn_profiler_options();
    unsigned i = 0;

    pthread_mutex_lock(&dp_page_lock);
    (void)dp_page_ensure(&owned, o->stat, o->stat_dir);
    while (i < DPN_PROFILE_COMMS && !is_free(&get_page()->comms[i]))
        i++;
    if (i < DPN_PROFILE_COMMS)
        fill_comm(&get_page()->comms[i], like);
    pthread_mutex_unlock(&dp_page_lock);
    return i;
}

struct dpn_profile_comm *dpn_counters_comm(unsigned comm)
{
    return comm < DPN_PROFILE_COMMS ? &get_page()->comms[comm] : NULL;
}

static uint64_t key_of(const struct dpn_profile_flow *f)
{
    return atomic_load_explicit(&f->key, memory_order_acquire);
}

void dpn_counters_close(unsigned comm)
{
    if (comm >= DPN_PROFILE_COMMS)
        return;
    pthread_mutex_lock(&dp_page_lock);
    struct dpn_profile_flow *flows = get_page()->flows;
    for (struct dpn_profile_flow *f = flows; f < flows + DPN_PROFILE_FLOWS; f++)
        if (key_of(f) > KEY_ENDED && dpn_profile_key_comm(key_of(f)) == comm)
            atomic_store_explicit(&f->key, KEY_ENDED, memory_order_relaxed);
    atomic_store_explicit(&get_page()->comms[comm].in_use, 0, memory_order_relaxed);
    pthread_mutex_unlock(&dp_page_lock);
}

/* ---- flows ----------------------------------------------------------------------------------- */

static struct dpn_profile_flow *flow_at(uint64_t key, unsigned probe)
{
    const uint64_t hash = key * UINT64_C(0x9e3779b97f4a7c15) >> 32;

    return &get_page()->flows[(hash + probe) % DPN_PROFILE_FLOWS];
}

static struct dpn_profile_flow *find_flow(uint64_t key)
{
    for (unsigned i = 0; i < PROBES; i++) {
        struct dpn_profile_flow *f = flow_at(key, i);
        const uint64_t has = key_of(f);
        if (has == key)
            return f;
        if (has == KEY_NEVER)
            return NULL;
    }
    return NULL;
}

static void clear_flow(struct dpn_profile_flow *f)
{
    dpn_profile_counter *const counters[] = {&f->bytes, &f->operations, &f->chunks};

    for (int i = 0; i < 3; i++)
        atomic_store_explicit(counters[i], 0, memory_order_relaxed);
    for (int i = 0; i < DPN_WAITS; i++) {
        atomic_store_explicit(&f->wait_ns[i], 0, memory_order_relaxed);
        atomic_store_explicit(&f->waiting[i], 0, memory_order_relaxed);
    }
    atomic_store_explicit(&f->changed_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&f->rail, 0, memory_order_relaxed);
}

static struct dpn_profile_flow *make_flow(uint64_t key)
{
    struct dpn_profile_flow *f;

    pthread_mutex_lock(&dp_page_lock);
    f = find_flow(key);
    for (unsigned i = 0; !f && i < PROBES; i++)
        if (key_of(flow_at(key, i)) <= KEY_ENDED) {
            f = flow_at(key, i);
            clear_flow(f);
            atomic_store_explicit(&f->key, key, memory_order_release);
        }
    pthread_mutex_unlock(&dp_page_lock);
    return f;
}

struct dpn_profile_flow *dpn_counters_flow(uint64_t key)
{
    struct dpn_profile_flow *f = find_flow(key);

    return f ? f : make_flow(key);
}

void dpn_counters_each(unsigned comm, void (*call)(const struct dpn_profile_flow *flow, void *user),
                       void *user)
{
    const struct dpn_profile_flow *flows = get_page()->flows;

    for (const struct dpn_profile_flow *f = flows; f < flows + DPN_PROFILE_FLOWS; f++)
        if (key_of(f) > KEY_ENDED && dpn_profile_key_comm(key_of(f)) == comm)
            call(f, user);
}

/* ---- rails ----------------------------------------------------------------------------------- */

const char *dpn_counters_rail(uint32_t rail)
{
    return rail && rail <= DPN_PROFILE_RAILS ? get_page()->rails[rail - 1] : "";
}

/* 0: not known yet. */
static uint32_t find_rail(const char *name)
{
    const uint32_t count = atomic_load_explicit(&get_page()->rail_count, memory_order_acquire);

    for (uint32_t i = 0; i < count; i++)
        if (!strcmp(get_page()->rails[i], name))
            return i + 1;
    return 0;
}

static uint32_t make_rail(const char *name)
{
    pthread_mutex_lock(&dp_page_lock);
    const uint32_t count = atomic_load_explicit(&get_page()->rail_count, memory_order_relaxed);
    uint32_t rail = find_rail(name);
    if (!rail && count < DPN_PROFILE_RAILS) {
        dpn_counters_name(get_page()->rails[count], DPN_PROFILE_RAIL_LEN, name);
        atomic_store_explicit(&get_page()->rail_count, count + 1, memory_order_release);
        rail = count + 1;
    }
    pthread_mutex_unlock(&dp_page_lock);
    return rail;
}

void dpn_counters_set_rail(struct dpn_profile_flow *flow, const char *name)
{
    const uint32_t has = atomic_load_explicit(&flow->rail, memory_order_relaxed);

    if (has && !strcmp(get_page()->rails[has - 1], name))
        return;
    const uint32_t rail = find_rail(name);
    atomic_store_explicit(&flow->rail, rail ? rail : make_rail(name), memory_order_relaxed);
}
