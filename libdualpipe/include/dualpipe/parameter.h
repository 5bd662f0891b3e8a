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
    uint64_t reserved[2];
};

/* Of a sound parameter. */
static inline int64_t dp_parameter_elements(const struct dp_parameter *parameter)
{
    int64_t elements = 1;

    for (int32_t i = 0; i < parameter->value->ndim; i++)
        elements *= parameter->value->shape[i];
    return elements;
}

/* What a checkpoint holds and an optimizer has as its state: memory in use under a name. */
struct dp_named_tensor {
    const char *name;
    DLTensor tensor;
};

#ifdef __cplusplus
}
#endif
#endif
