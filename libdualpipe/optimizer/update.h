/* SPDX-License-Identifier: Apache-2.0
 *
 * update.h - one sweep over a range of elements: mix, update, zero the gradient, copy out, round to 16
 * bits. The range is walked in blocks that stay in the first cache, so each array crosses memory once
 * however many of these are asked for. The optimizer over a list stands on it, and so does
 * whatever keeps its own state (offload).
 */
#ifndef DP_OPTIMIZER_UPDATE_H
#define DP_OPTIMIZER_UPDATE_H

#include "optimizer/kernels.h"
#include <dualpipe/optimizer.h>

/* The numbers of step t (from 1) for parameters of a group. */
struct dp_numbers dp_numbers_of(const struct dp_optimizer_config *config,
                                const struct dp_optimizer_group *group,
                                const struct dp_optimizer_step *step, int64_t t);

/* Arrays that dp_update_range needs beside values and gradients, by kind: 0 to DP_STATES. */
int dp_optimizer_states(const struct dp_optimizer_config *config);
/* What the state of a checkpoint calls them, and behind them the master of a 16-bit value. */
const char *dp_optimizer_state_name(const struct dp_optimizer_config *config, int array);

/* `count` elements. Types are float32, float64, bfloat16 or float16. State and master are float64
 * where the value is, float32 elsewhere. No two arrays overlap. */
struct dp_update_range {
    size_t count;
    DLDataType value_type, grad_type;
    void *value, *grad;
    float *master;          /* of 16-bit values; NULL otherwise */
    void *state[DP_STATES]; /* dp_optimizer_states of them */
    void *buffer;           /* of mixing, of value's type; NULL without */
};

/* Any thread. */
void dp_update_range(const struct dp_optimizer_config *config, const struct dp_numbers *numbers,
                     const struct dp_optimizer_step *step, const struct dp_update_range *range);

/* The same in the memory of a device, queued in a stream, without master, mixing and accumulation; the
 * kernel by dp_update_find: DP_EUNSUPPORTED naming kind and type. */
int dp_update_find(struct dp_device_stream *stream, const struct dp_optimizer_config *config,
                   DLDataType type, void **kernel);
int dp_update_queue(struct dp_device_stream *stream, void *kernel,
                    const struct dp_optimizer_config *config, const struct dp_numbers *numbers,
                    const struct dp_optimizer_step *step, const struct dp_update_range *range);

/* ---- parts that others use ------------------------------------------------------------------ */

/* Elements of a block: five arrays of float64 and a few buffers fit a first cache of 32 KiB. */
enum { DP_UPDATE_BLOCK = 512 };

/* x[count] of REAL (float64 if the type is, else float32) out of elements of a type, and back. */
void dp_real_load(DLDataType type, size_t count, const void *from, void *x, bool as_double);
void dp_real_store(DLDataType type, size_t count, void *to, const void *x, bool as_double);
/* Bytes of an element. */
size_t dp_real_bytes(DLDataType type);

/* ---- settings -------------------------------------------------------------------------------- */

/* What a dp_optimizer_config says, checked and resolved to groups. */

/* DP_EINVAL with the member that is wrong. */
int dp_optimizer_config_check(const struct dp_optimizer_config *config,
                              const struct dp_parameter *parameters, int32_t count);

/* DP_EINVAL with the number that is not finite, or of mixing. */
int dp_optimizer_step_check(const struct dp_optimizer_step *step);

/* The caller's groups, or two: without decay and with. */
int32_t dp_optimizer_group_count(const struct dp_optimizer_config *config);
struct dp_optimizer_group dp_optimizer_group_at(const struct dp_optimizer_config *config,
                                                int32_t group);
/* Of parameter `index` of the list. */
int32_t dp_optimizer_group_of(const struct dp_optimizer_config *config,
                              const struct dp_parameter *parameter, int32_t index);

#endif
