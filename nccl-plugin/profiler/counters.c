/* SPDX-License-Identifier: Apache-2.0
 *
 * counters.c - a flow is found by hashing its key, without a lock; it is made and ended under one.
 */
#include "config.h"

#include "nccl-plugin/profiler/counters.h"

#include "nccl-plugin/options.h"
#include "nccl-plugin/profiler/profiler.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { KEY_NEVER, KEY_ENDED, NO_FLOW, PROBES = 64 }; /* the last: of a row that is none */

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
static struct dp_page owned = {.kind = &dpn_profile_kind, .own = &own, .at = &own};

static inline struct dpn_profile_row *get_rows(void)
{
    return ((struct dpn_profile_page *)owned.at)->rows;
}

void dpn_counters_lost(void)
{
    atomic_fetch_add_explicit(&get_rows()[DPN_PROFILE_COMMS].values[DPN_PROFILE_LOST], 1,
                              memory_order_relaxed);
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

/* A row gets its label, and all its values begin anew; the one of the `use` before has ended. */
static void begin_row(struct dpn_profile_row *row, const char *label)
{
    memset(row->label, 0, sizeof(row->label));
    snprintf(row->label, sizeof(row->label), "%s", label);
    for (int i = 0; i < dpn_profile_values; i++)
        dp_page_set(&row->values[i], 0);
}

static void show_row(struct dpn_profile_row *row, uint64_t use)
{
    atomic_store_explicit(&row->use, use, memory_order_release);
}

/* Rows that are always there. */
static void begin_page(struct dpn_profile_row *rows)
{
    if (dp_page_get(&rows[DPN_PROFILE_COMMS].use))
        return;
    snprintf(rows[DPN_PROFILE_COMMS].label, DP_PAGE_LABEL, "%016x\t" DPN_PROFILE_OTHERS "\t-1", 0);
    show_row(&rows[DPN_PROFILE_COMMS], UINT64_MAX); /* shown last */
    show_row(&rows[DPN_PROFILE_FIRST_RAIL], NO_FLOW + DPN_PROFILE_FIRST_RAIL);
}

static uint64_t opened; /* communicators, ever */

unsigned dpn_counters_open(const struct dpn_profiled *like)
{
    const struct dpn_profiler_options *o = dpn_profiler_options();
    char label[DP_PAGE_LABEL];
    unsigned i = 0;

    pthread_mutex_lock(&dp_page_lock);
    (void)dp_page_ensure(&owned, o->stat, o->stat_dir);
    begin_page(get_rows());
    while (i < DPN_PROFILE_COMMS && dp_page_get(&get_rows()[i].use))
        i++;
    if (i < DPN_PROFILE_COMMS) {
        struct dpn_profile_row *row = &get_rows()[i];
        snprintf(label, sizeof(label), "%016" PRIx64 "\t%s\t%d", like->hash, like->name, like->rank);
        begin_row(row, label);
        dp_page_set(&row->values[DPN_PROFILE_RANKS], (uint64_t)like->ranks);
        dp_page_set(&row->values[DPN_PROFILE_NODES], (uint64_t)like->nodes);
        show_row(row, ++opened * DPN_PROFILE_FIRST_FLOW + i);
    }
    pthread_mutex_unlock(&dp_page_lock);
    return i;
}

struct dpn_profile_row *dpn_counters_comm(unsigned comm)
{
    return comm < DPN_PROFILE_COMMS ? &get_rows()[comm] : NULL;
}

static uint64_t key_of(const struct dpn_profile_row *f)
{
    return atomic_load_explicit(&f->use, memory_order_acquire);
}

void dpn_counters_close(unsigned comm)
{
    if (comm >= DPN_PROFILE_COMMS)
        return;
    pthread_mutex_lock(&dp_page_lock);
    struct dpn_profile_row *flows = get_rows() + DPN_PROFILE_FIRST_FLOW;
    for (struct dpn_profile_row *f = flows; f < flows + DPN_PROFILE_FLOWS; f++)
        if (key_of(f) > KEY_ENDED && dpn_profile_key_comm(key_of(f)) == comm)
            dp_page_set(&f->use, KEY_ENDED);
    dp_page_set(&get_rows()[comm].use, 0);
    pthread_mutex_unlock(&dp_page_lock);
}

/* ---- flows ----------------------------------------------------------------------------------- */

static struct dpn_profile_row *flow_at(uint64_t key, unsigned probe)
{
    const uint64_t hash = key * UINT64_C(0x9e3779b97f4a7c15) >> 32;

    return &get_rows()[DPN_PROFILE_FIRST_FLOW + (hash + probe) % DPN_PROFILE_FLOWS];
}

static struct dpn_profile_row *find_flow(uint64_t key)
{
    for (unsigned i = 0; i < PROBES; i++) {
        struct dpn_profile_row *f = flow_at(key, i);
        const uint64_t has = key_of(f);
        if (has == key)
            return f;
        if (has == KEY_NEVER)
            return NULL;
    }
    return NULL;
}

static void begin_flow(struct dpn_profile_row *f, uint64_t key)
{
    char label[32];

    snprintf(label, sizeof(label), "%d\t%s", dpn_profile_key_peer(key),
             dpn_profile_key_is_send(key) ? "send" : "receive");
    begin_row(f, label);
    dp_page_set(&f->values[DPN_PROFILE_COMM], dpn_profile_key_comm(key) + 1);
    dp_page_set(&f->values[DPN_PROFILE_RAIL], DPN_PROFILE_FIRST_RAIL + 1);
    dp_page_set(&f->values[DPN_PROFILE_CHANNELS], 1);
    show_row(f, key);
}

static struct dpn_profile_row *make_flow(uint64_t key)
{
    struct dpn_profile_row *f;

    pthread_mutex_lock(&dp_page_lock);
    f = find_flow(key);
    for (unsigned i = 0; !f && i < PROBES; i++)
        if (key_of(flow_at(key, i)) <= KEY_ENDED) {
            f = flow_at(key, i);
            begin_flow(f, key);
        }
    pthread_mutex_unlock(&dp_page_lock);
    return f;
}

struct dpn_profile_row *dpn_counters_flow(uint64_t key)
{
    struct dpn_profile_row *f = find_flow(key);

    return f ? f : make_flow(key);
}

void dpn_counters_each(unsigned comm, void (*call)(const struct dpn_profile_row *flow, void *user),
                       void *user)
{
    const struct dpn_profile_row *flows = get_rows() + DPN_PROFILE_FIRST_FLOW;

    for (const struct dpn_profile_row *f = flows; f < flows + DPN_PROFILE_FLOWS; f++)
        if (key_of(f) > KEY_ENDED && dpn_profile_key_comm(key_of(f)) == comm)
            call(f, user);
}

/* ---- rails ----------------------------------------------------------------------------------- */

const char *dpn_counters_rail(uint64_t rail)
{
    return rail ? get_rows()[rail - 1].label : "";
}

/* Its row, or the first that has no rail; DPN_PROFILE_FIRST_FLOW: all have others. */
static uint64_t find_rail(const char *name)
{
    uint64_t i = DPN_PROFILE_FIRST_RAIL + 1;

    while (i < DPN_PROFILE_FIRST_FLOW && key_of(&get_rows()[i]) &&
           strcmp(get_rows()[i].label, name) != 0)
        i++;
    return i;
}

static uint64_t make_rail(const char *name)
{
    char label[DPN_PROFILE_RAIL_LEN];

    dpn_counters_name(label, sizeof(label), name);
    pthread_mutex_lock(&dp_page_lock);
    uint64_t rail = find_rail(label);
    if (rail == DPN_PROFILE_FIRST_FLOW) {
        rail = DPN_PROFILE_FIRST_RAIL;
    } else if (!key_of(&get_rows()[rail])) {
        begin_row(&get_rows()[rail], label);
        show_row(&get_rows()[rail], NO_FLOW + rail);
    }
    pthread_mutex_unlock(&dp_page_lock);
    return rail;
}

void dpn_counters_set_rail(struct dpn_profile_row *flow, const char *name)
{
    const uint64_t has = dp_page_get(&flow->values[DPN_PROFILE_RAIL]);

    if (has != DPN_PROFILE_FIRST_RAIL + 1 && !strcmp(get_rows()[has - 1].label, name))
        return;
    uint64_t rail = find_rail(name);
    if (rail == DPN_PROFILE_FIRST_FLOW || !key_of(&get_rows()[rail]))
        rail = make_rail(name);
    dp_page_set(&flow->values[DPN_PROFILE_RAIL], rail + 1);
}
