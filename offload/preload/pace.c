/* SPDX-License-Identifier: Apache-2.0 */
#include "offload/preload/pace.h"

#include "base/clock.h"
#include "offload/pacer.h"
#include "offload/preload/state.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { NICS = 16 };
static const size_t chunk_bytes = (size_t)4 << 20;

static struct dpo_pacer *pacer; /* NULL: none could be made */
static const struct dpo_preload_options *asked;

/* The words of a list, in a copy of it that stays. */
static int split(const char *list, const char *out[NICS])
{
    char *rest = list ? strdup(list) : NULL;
    int count = 0;

    for (char *word; count < NICS && (word = strsep(&rest, ","));)
        if (*word)
            out[count++] = word;
    return count;
}

static void make_pacer(void)
{
    const char *nics[NICS];
    const struct dpo_pacer_config config = {
        .directory = asked->stat_dir && *asked->stat_dir ? asked->stat_dir : NULL,
        .device_count = split(asked->pace_nics, nics),
        .devices = nics,
        .switch_bytes_per_s = 1e6 * (double)asked->pace_mbs,
    };

    if (dpo_pacer_new(&config, &pacer))
        pacer = NULL; /* said once */
}

/* In the stream: until the chunk may go, and no longer than it takes at a tenth of the least rate.
 */
static void await_turn(void *user)
{
    const uintptr_t chunk = (uintptr_t)user; /* bytes, and the direction */
    const int64_t until_ns = dp_now_ns() + (int64_t)(chunk / 2) * 10;
    const struct timespec pause = {.tv_nsec = 50 * DP_NS_PER_US};

    while (!dpo_pacer_pass(pacer, (int)(chunk % 2), chunk / 2) && dp_now_ns() < until_ns)
        nanosleep(&pause, NULL);
}

bool dpo_pace(const struct dpo_preload_options *options, const struct dpo_driver *driver,
              const struct dpo_copy *copy, int direction)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    bool is_good = copy->bytes >= 2 * chunk_bytes;

    if (!is_good)
        return false;
    asked = options; /* the same for all */
    pthread_once(&once, make_pacer);
    is_good = pacer != NULL;
    for (size_t at = 0, len; is_good && at < copy->bytes; at += len) {
        len = copy->bytes - at < chunk_bytes ? copy->bytes - at : chunk_bytes;
        void *turn = (void *)(2 * len + (direction == DPO_COPY_TO_HOST));
        is_good = !driver->launch(copy->stream, await_turn, turn) &&
                  !driver->copy(copy->to + at, copy->from + at, len, copy->stream);
    }
    if (is_good && copy->is_synchronous)
        is_good = !driver->stream_synchronize(copy->stream);
    dpo_count(DPO_PACED, is_good);
    dpo_count(DPO_PACED_BYTES, is_good ? copy->bytes : 0);
    return is_good;
}
