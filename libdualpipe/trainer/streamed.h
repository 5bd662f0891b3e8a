/* SPDX-License-Identifier: Apache-2.0
 *
 * streamed.h - the parameters of a rank live on the host, and pass over the device layer by layer while
 * its stages compute.
 *
 *      device   [values of a layer] [of another] ...   [gradients of a layer] [of another]
 *
 * All windows are as large as the largest layer needs. While a layer computes, the values of the one
 * that came next in the last step are on their way. A layer's gradients come up before it adds to them,
 * so that they are added up in the order in which they are on the device, and go down when another
 * layer's come, or when they are to be read (streamed_settle).
 */
#ifndef DP_TRAINER_STREAMED_H
#define DP_TRAINER_STREAMED_H

#include "trainer/place.h"

#include <dualpipe/model.h>

struct streamed;

struct streamed_config {
    int32_t layers;       /* so many, */
    size_t largest_bytes; /* whose values take this at most (streamed_bytes) */
    DLDataType rounds;    /* layers get copies of their values in this type, too; bits 0: they do not */
    size_t budget_bytes;  /* as many values at once as fit, and not less than as few as will do */
    size_t uses;          /* layers that are called in a step, at most */
};
/* On the device of a place. DP_ENOMEM. */
int streamed_new(struct place *place, const struct streamed_config *config, struct streamed **out);
/* What as few as will do take. */
size_t streamed_least(size_t largest_bytes, DLDataType rounds);
void streamed_free(struct streamed *st);
/* In a window: the values of a layer whose parameters are these. */
size_t streamed_bytes(const DLTensor *values, int32_t count);

/* Before a step: values on the host may be others than those in windows. */
void streamed_begin(struct streamed *st, bool training);
/* Before and after a layer's callback: its values and gradients in windows in place of those on the
 * host. A list of values is known by its place, gradients by their memory. */
int streamed_enter(struct streamed *st, struct dp_layer_call *call, int32_t count);
int streamed_leave(struct streamed *st);
/* All gradients are on the host; where compute is queued, once what is queued now is done. */
int streamed_settle(struct streamed *st);
/* Since it was made: copies at work, and the thread that computes waiting for them. */
void streamed_times(const struct streamed *st, int64_t *up_ns, int64_t *down_ns, int64_t *wait_ns);

#endif
