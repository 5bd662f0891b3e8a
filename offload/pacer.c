/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/pacer.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/page_reader.h"
#include "nccl-plugin/net/stat_page.h"

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- pages of the net plugin --------------------------------------------------------------------- */

/* How many bytes the net plugin has moved over a network, in all processes of this user on this
 * machine: read out of the pages that it counts in (nccl-plugin/net/stat_page.h), without a system
 * call but once a second. */
enum { DEVICES = 32 };

struct dpo_network_pages {
    char directory[256];
    char devices[DEVICES][DPN_STAT_NAME_LEN];
    int device_count;
    struct dp_pages pages;
    uint64_t bytes;
    int64_t listed_ns; /* when the directory was last read; 0: never */
};

/* ---- a page ---------------------------------------------------------------------------------- */

/* Whether `name` is a word of `text`: "mlx5_1" of "mlx5_1+mlx5_2", not of "mlx5_10". */
static bool has_word(const char *text, const char *name)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    const size_t len = strlen(name);

    while (*text) {
        size_t word = strspn(text, letters);
        if (word == len && !memcmp(text, name, len))
            return true;
        text += word ? word : 1;
    }
    return false;
}

static bool counts(const struct dpo_network_pages *p, const struct dp_page_row *device)
{
    char name[DP_PAGE_LABEL];

    if (!p->device_count)
        return true;
    memcpy(name, device->label, sizeof(name));
    name[sizeof(name) - 1] = '\0';
    name[strcspn(name, "\t")] = '\0';
    for (int i = 0; i < p->device_count; i++)
        if (has_word(name, p->devices[i]))
            return true;
    return false;
}

/* The second word of its label is its transport. */
static bool is_within_host(const struct dp_page_row *row)
{
    const char *tab = memchr(row->label, '\t', DP_PAGE_LABEL - 5);

    return tab && !memcmp(tab, "\tshm\t", 5);
}

/* Of connections that are open: those that are closed had their share when they were. */
static uint64_t sum_of(const struct dpo_network_pages *p, const struct dp_page_mapped *page)
{
    uint64_t sum = 0;

    if (!page->columns[DPN_STAT_DEVICE].places || !page->columns[DPN_STAT_BYTES].places)
        return 0;
    for (uint32_t i = 0; i < dp_page_rows(page); i++) {
        const struct dp_page_row *row = dp_page_row_at(page, i);
        const uint64_t device =
            dp_page_use(row) > 1 ? dp_page_value(page, row, DPN_STAT_DEVICE, 0) : 0;
        if (device && device <= page->rows && !is_within_host(row) &&
            counts(p, dp_page_row_at(page, device - 1)))
            sum += dp_page_value(page, row, DPN_STAT_BYTES, 0);
    }
    return sum;
}

/* ---- the directory --------------------------------------------------------------------------- */

static void list_pages(struct dpo_network_pages *p)
{
    const int known = p->pages.count;

    dp_pages_map(&p->pages, &dpn_stat_kind, p->directory, NULL, NULL, NULL);
    for (int i = known; i < p->pages.count; i++)
        p->pages.list[i].seen = sum_of(p, &p->pages.list[i]);
    dp_pages_drop_unlisted(&p->pages);
}

/* Bytes sent and received since it was first asked, of all processes that it finds; never less than
 * before. Messages through memory of this host do not count. now_ns: of dp_now_ns. One thread at a
 * time. */
static uint64_t network_pages_bytes(struct dpo_network_pages *p, int64_t now_ns)
{
    if (!p->listed_ns || now_ns - p->listed_ns >= DP_NS_PER_S) {
        list_pages(p);
        p->listed_ns = now_ns;
    }
    for (int i = 0; i < p->pages.count; i++) {
        struct dp_page_mapped *page = &p->pages.list[i];
        const uint64_t bytes = sum_of(p, page);
        if (bytes > page->seen)
            p->bytes += bytes - page->seen;
        page->seen = bytes;
    }
    return p->bytes;
}

/* ---- new and free ---------------------------------------------------------------------------- */

/* directory: NULL, or DUALPIPE_NET_STAT_DIR. devices[count]: names of NICs as the plugin has them
 * ("mlx5_0", "eth0"), copied; those fused of several count for each of them. count 0: all. DP_ENOMEM. */
static int network_pages_new(const char *directory, const char *const *devices, int count,
                          struct dpo_network_pages **out)
{
    struct dpo_network_pages *p = calloc(1, sizeof(*p));

    if (!p)
        return dp_fail(DP_ENOMEM, "no memory for the counters of the net plugin");
    (void)dp_page_directory(directory, p->directory, sizeof(p->directory));
    for (; p->device_count < count && p->device_count < DEVICES; p->device_count++)
        snprintf(p->devices[p->device_count], DPN_STAT_NAME_LEN, "%s", devices[p->device_count]);
    *out = p;
    return 0;
}

/* p may be NULL. */
static void network_pages_free(struct dpo_network_pages *p)
{
    if (p)
        dp_pages_fini(&p->pages);
    free(p);
}

/* ---- the pace -------------------------------------------------------------------------------- */

struct dpo_pacer {
    double switch_bytes_per_s, least_bytes_per_s;
    int64_t window_ns;
    pthread_mutex_t lock; /* of all below */
    struct dpo_network_pages *network;
    bool looked; /* the next two are known */
    int64_t looked_ns;
    uint64_t bytes;                        /* of the network, then */
    double network_bytes_per_s;            /* in the window before; 0: it is idle */
    int64_t free_ns[DPO_PACER_DIRECTIONS]; /* when the chunk that passed last has had its time */
};

static void look(struct dpo_pacer *p, int64_t now_ns)
{
    if (p->looked && now_ns - p->looked_ns < p->window_ns)
        return;
    uint64_t bytes = network_pages_bytes(p->network, now_ns);
    if (p->looked)
        p->network_bytes_per_s =
            (double)(bytes - p->bytes) * DP_NS_PER_S / (double)(now_ns - p->looked_ns);
    p->bytes = bytes;
    p->looked_ns = now_ns;
    p->looked = true;
}

static double allowed_bytes_per_s(const struct dpo_pacer *p)
{
    double left = p->switch_bytes_per_s - p->network_bytes_per_s;

    return left > p->least_bytes_per_s ? left : p->least_bytes_per_s;
}

/* A chunk takes its time while the network is at work, whether that goes on or not. */
static bool pass(struct dpo_pacer *p, int direction, size_t bytes, int64_t now_ns)
{
    look(p, now_ns);
    if (p->network_bytes_per_s <= 0) {
        p->free_ns[direction] = now_ns;
        return true;
    }
    if (now_ns < p->free_ns[direction])
        return false;
    p->free_ns[direction] =
        now_ns + (int64_t)((double)bytes / allowed_bytes_per_s(p) * DP_NS_PER_S);
    return true;
}

bool dpo_pacer_pass_at(struct dpo_pacer *p, int direction, size_t bytes, int64_t now_ns)
{
    pthread_mutex_lock(&p->lock);
    bool may = pass(p, direction, bytes, now_ns);
    pthread_mutex_unlock(&p->lock);
    return may;
}

bool dpo_pacer_pass(struct dpo_pacer *p, int direction, size_t bytes)
{
    return dpo_pacer_pass_at(p, direction, bytes, dp_now_ns());
}

int dpo_pacer_new(const struct dpo_pacer_config *config, struct dpo_pacer **out)
{
    const double *rates[] = {&config->switch_bytes_per_s, &config->least_bytes_per_s};

    for (int i = 0; i < 2; i++)
        if (!isfinite(*rates[i]) || *rates[i] < 0)
            return dp_fail(DP_EINVAL, "pacer: a rate of %g bytes/s, expected a finite one from 0 on",
                           *rates[i]);
    if (config->window_ns < 0)
        return dp_fail(DP_EINVAL, "pacer: a window of %lld ns, expected one from 0 on",
                       (long long)config->window_ns);
    struct dpo_pacer *p = calloc(1, sizeof(*p));
    if (!p)
        return dp_fail(DP_ENOMEM, "no memory for a pacer");
    int err = network_pages_new(config->directory, config->devices, config->device_count,
                                    &p->network);
    if (err) {
        free(p);
        return err;
    }
    p->switch_bytes_per_s = config->switch_bytes_per_s;
    p->least_bytes_per_s = config->least_bytes_per_s > 0 ? config->least_bytes_per_s : 1e9;
    p->window_ns = config->window_ns ? config->window_ns : DP_NS_PER_MS;
    pthread_mutex_init(&p->lock, NULL);
    *out = p;
    return 0;
}

void dpo_pacer_free(struct dpo_pacer *p)
{
    if (!p)
        return;
    network_pages_free(p->network);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
