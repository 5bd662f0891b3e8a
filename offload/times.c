/* SPDX-License-Identifier: Apache-2.0
 *
 * times.c - how long compute, copies and updates are at work, by stamps in the order of each stream.
 */
#include "offload/state.h"

#include "base/clock.h"

void dpo_stamp_begin(void *user)
{
    struct dpo_meter *meter = user;

    meter->begun_ns = dp_now_ns();
}

/* The reader comes after an event of the stream; atomic for readers without one. */
void dpo_stamp_end(void *user)
{
    struct dpo_meter *meter = user;

    atomic_fetch_add_explicit(&meter->busy_ns, dp_now_ns() - meter->begun_ns, memory_order_relaxed);
}

/* The host computes in the calling thread. */
static int stamp(struct dp_offload *o, int meter, void (*fn)(void *user))
{
    if (!o->config.measure)
        return 0;
    if (meter != DPO_COMPUTE || !o->host)
        return dp_device_call(meter == DPO_COMPUTE ? o->compute : o->update, fn, &o->meters[meter]);
    fn(&o->meters[meter]);
    return 0;
}

int dpo_meter_begin(struct dp_offload *o, int meter)
{
    return stamp(o, meter, dpo_stamp_begin);
}

int dpo_meter_end(struct dp_offload *o, int meter)
{
    return stamp(o, meter, dpo_stamp_end);
}

int64_t dpo_meter_busy_ns(const struct dp_offload *o, int meter)
{
    return atomic_load_explicit(&o->meters[meter].busy_ns, memory_order_relaxed);
}
