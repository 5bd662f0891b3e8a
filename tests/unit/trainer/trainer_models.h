/* SPDX-License-Identifier: Apache-2.0
 *
 * trainer_models.h - three small models for tests of the trainer, of layers
 *
 *      h = norm(x W + b);  y = x + relu(h) + what a skip brings
 *
 * where norm, the skips and the last layer's relu may be left out.
 */
#ifndef DP_TESTS_TRAINER_MODELS_H
#define DP_TESTS_TRAINER_MODELS_H

#include <dualpipe/batch_norm.h>
#include <dualpipe/device.h>
#include <dualpipe/model.h>

enum { MODEL_WIDTH = 6, MODEL_LAYERS = 8 };

enum model_kind {
    MODEL_MLP,   /* eight layers, one of which does not split its backward */
    MODEL_SKIPS, /* skips within a stage and between stages; a layer that is used twice */
    MODEL_TIED,  /* batch normalisation; the last layer's W is the first one's; cross-entropy */
    MODEL_KINDS
};

/* Where values and gradients were. */
struct test_range {
    const char *low, *high;
};

/* The process is killed in a call of that step. */
struct test_kill {
    uint64_t step;
    int calls; /* which of them, from 1; 0: none */
};

struct test_layer {
    bool norm, plain; /* plain: y = x W + b */
    const char *stash, *pop;
    struct test_kill *kill;  /* of all layers of a rank; NULL: none */
    struct test_range *seen; /* of all calls; NULL: not wanted */
    bool rounds;             /* calls have rounded values, or it aborts */
    struct dp_device *device; /* whose memory the tensors are in; NULL: the host */
    int (*waits)(void);       /* how often the host has waited in this step, expected 0; NULL: not asked */
    int fail_mb; /* forward fails at this micro-batch, counted from 1; 0: never */
};

struct test_model {
    struct dp_model model;
    struct dp_layer layers[MODEL_LAYERS];
    struct test_layer users[MODEL_LAYERS];
    struct dp_parameter_spec parameters[MODEL_LAYERS][4];
    const struct dp_layer *list[MODEL_LAYERS];
    struct dp_layer_skip skips[2];
    struct dp_border rows, labels;
    struct dp_batch_norm_config norm;
    const struct dp_loss_ops *loss; /* on a device: that of the host, which it carries out */
};

/* What it refers to is in *m, which must stay where it is. */
void test_model_init(struct test_model *m, enum model_kind kind);
/* Its layers and loss compute in the device's streams: a simulated one, whose memory the host reaches. */
void test_model_use_device(struct test_model *m, struct dp_device *device);

#endif
