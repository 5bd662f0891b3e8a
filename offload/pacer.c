/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/pacer.h"

#include "base/clock.h"
#include "base/fail.h"
#include "offload/network_pages.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

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
    uint64_t bytes = dpo_network_pages_bytes(p->network, now_ns);
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
    int err = dpo_network_pages_new(config->directory, config->devices, config->device_count,
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
    dpo_network_pages_free(p->network);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
