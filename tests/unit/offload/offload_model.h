/* SPDX-License-Identifier: Apache-2.0
 *
 * offload_model.h - a small model for tests of offloading, and the same carried out in memory that is
 * there all the time, to compare with to the last bit.
 *
 * Two tensors cross every border: y [rows, width] and skip [rows, width]. The input is ids [rows, IDS]
 * of 64-bit integers, which have no gradient, and x [rows, width]; the output is [rows, 1].
 *
 *      mix      y = x + sum of table[id],  skip = x
 *      linear   y = y W + b,               skip
 *      drop     y = y where a random number says so, twice as large
 *      last     y w + sum of skip
 */
#ifndef DP_TESTS_OFFLOAD_MODEL_H
#define DP_TESTS_OFFLOAD_MODEL_H

#include <dualpipe/offload.h>

#include <string.h>

enum { OM_ROWS = 11, OM_WIDTH = 24, OM_IDS = 3, OM_TABLE = 7, OM_LAYERS = 8, OM_PARAMETERS = 10 };

struct om_data {
    int64_t ids[OM_ROWS * OM_IDS];
    float x[OM_ROWS * OM_WIDTH], y[OM_ROWS], gout[OM_ROWS], gin[OM_ROWS * OM_WIDTH];
};

struct om_model {
    struct dp_offload_layer layers[OM_LAYERS];
    struct dp_border input, inner, output;
    struct dp_parameter parameters[OM_PARAMETERS];
    DLTensor values[OM_PARAMETERS], grads[OM_PARAMETERS];
    float *value_data[OM_PARAMETERS], *grad_data[OM_PARAMETERS];
    int64_t shapes[OM_PARAMETERS][2];
    int32_t parameter_count;
    void (*sync)(void *stream); /* before a callback touches memory; NULL: not needed */
    void *(*reach)(const void *ptr); /* where the CPU finds device memory; NULL: there */
    int fail_layer;             /* whose forward fails; -1: none */
    DLDataType value_type, grad_type; /* of mixed precision */
};

/* exact: small whole numbers, whose sums are the same in every order. The linear layers 1 and 5 are tied
 * if `tied`; parameter 3 is frozen if `frozen`. */
void om_model_init(struct om_model *m, bool exact, bool tied, bool frozen);
/* Layers compute with values rounded to value_type, and round gradients to grad_type when they have added
 * a micro-batch to them; bits 0: they do not. So both in 16 bits and in float32 memory. */
void om_model_mix(struct om_model *m, DLDataType value_type, DLDataType grad_type);
void om_model_fini(struct om_model *m);
void om_data_init(struct om_data *d, uint64_t seed, bool exact);
size_t om_elements(const struct om_model *m, int32_t parameter);

/* One step in m's own memory: output, gin, and gradients added to m's. */
int om_resident_step(struct om_model *m, struct om_data *d, int32_t microbatches, uint64_t step,
                     uint64_t seed, bool training);
/* w -= g / 8, and g = 0. */
void om_update(const struct dp_parameter *parameters, int32_t count);

/* The tensors of a step on d, for the offload engine. */
struct om_tensors {
    DLTensor ids, x, y, gout, gin;
    int64_t ids_shape[2], x_shape[2], y_shape[2];
    const DLTensor *inputs[2];
    DLTensor *outputs[1], *gins[2];
    const DLTensor *gouts[1];
};
void om_tensors_init(struct om_tensors *t, struct om_data *d);

/* Of the model's parameters; NULL: there is none of that name. */
static inline const struct dp_parameter *om_parameter(const struct dp_parameter *parameters,
                                                      const char *name)
{
    for (int i = 0; i < OM_PARAMETERS; i++)
        if (!strcmp(parameters[i].name, name))
            return &parameters[i];
    return NULL;
}

#endif
