/* SPDX-License-Identifier: Apache-2.0
 *
 * parameter.h - the parameters of a model: a list of named tensors with their gradients. Pipelines,
 * optimizers, norms, mixing, offload and checkpoints all take this one list.
 *
 * Names are logical: every rank that holds a copy of a parameter gives it the same name, wherever it
 * lies, so that copies can be compared, counted once, and found again under another layout.
 *
 * Ownership: the list, its strings and its tensors belong to the caller. What takes a list says how
 * long it needs it; the values and gradients are used in place.
 */
#ifndef DUALPIPE_PARAMETER_H
#define DUALPIPE_PARAMETER_H

#include <dlpack/dlpack.h>
#include <dualpipe/dualpipe.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dp_parameter_flag {
    DP_PARAMETER_FROZEN = 1,  /* never updated; has no gradient */
    DP_PARAMETER_NO_DECAY = 2 /* no weight decay (biases, gains of norms) */
};

struct dp_parameter {
    const char *name; /* logical name: the same on every rank that holds a copy */
    const char *tied; /* group of tied parameters, or NULL. Its members hold equal values and are one
                       * parameter of the model, used in several places. */
    uint32_t flags;   /* of enum dp_parameter_flag */
    DLTensor *value;  /* float32, float64, bfloat16 or float16 */
    DLTensor *grad;   /* NULL if frozen; shape, strides and device of value, one of its four types
                       * but not always the same one (float32 beside bfloat16). Optimizers, mixers and
                       * sums over replicas look at data and byte_offset in each step anew, so that a
                       * gradient may move in between. */
};

/* Whether the list is sound: names that are there and distinct, known flags, values of the four
 * types that fill one block of memory without gaps (any order of the dimensions, so that
 * channels-last tensors pass), gradients that fit them, tied parameters of one type and shape.
 * DP_EINVAL with the parameter's name and what is wrong; DP_ENOMEM. An empty list is sound. */
DP_PUBLIC int dp_parameters_check(const struct dp_parameter *parameters, int32_t count);

/* Of a sound parameter. */
DP_PUBLIC int64_t dp_parameter_elements(const struct dp_parameter *parameter);

/* What a checkpoint holds and an optimizer has as its state: memory in use under a name. */
struct dp_named_tensor {
    const char *name;
    DLTensor tensor;
};

#ifdef __cplusplus
}
#endif
#endif
