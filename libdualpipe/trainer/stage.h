/* SPDX-License-Identifier: Apache-2.0
 *
 * stage.h - a stage of a pipeline as a run of layers: their parameters in one block of memory, and the
 * callbacks of a stage, which call those of its layers one after the other.
 *
 *      forward    in -> [layer a] -> between -> [layer a + 1] -> between -> ... -> out
 *
 * What is between two layers is in one of two buffers of the stage, or, where the layer behind it needs
 * its input later, in the save area of the micro-batch. Parameters that pass through the device
 * (streamed.h) are in pinned memory, those of the last layers may stay on it.
 */
#ifndef DP_TRAINER_STAGE_H
#define DP_TRAINER_STAGE_H

#include "trainer/model.h"
#include "trainer/place.h"
#include "trainer/streamed.h"

struct dp_batch_norm;

struct stage_layer {
    const struct dp_layer *layer;
    struct dp_border in, out;          /* of a micro-batch of the most rows */
    struct dp_save_bytes at;           /* where its save areas begin in those of the stage */
    size_t input_at;                   /* where its input is kept, in `whole`; NOT_KEPT: it is not */
    int32_t first;                     /* parameter of the stage's list */
    struct dp_batch_norm **norms;      /* [norm_count] */
};

/* A skip that begins and ends in the stage: value and gradient in the save area `whole`. */
struct stage_skip {
    const struct dp_layer_skip *skip;
    size_t value_at, gradient_at;
};

/* The least that a call of a layer took on the host: forward, backward, and weight where the backward is
 * split, of a micro-batch; of a step, the squares of its gradients and its update. */
enum { STAGE_FORWARD, STAGE_BACKWARD, STAGE_WEIGHT, STAGE_NORM, STAGE_UPDATE, STAGE_CALLS };
struct stage_times {
    int64_t ns[STAGE_CALLS];
};

struct stage {
    const struct model_info *model;
    int32_t stage, first_layer, layer_count;
    int64_t rows;                      /* the most of a micro-batch */
    uint64_t seed;
    struct place *place;               /* where its memory is */
    struct stage_layer *layers;        /* [layer_count] */
    struct stage_skip *skips;          /* [skip_count] */
    int32_t skip_count;
    int32_t parameter_count;
    struct dp_parameter *parameters;   /* [parameter_count] */
    struct dp_parameter *homes;        /* the same where they live: those, or in `home` */
    DLTensor *home_tensors;            /* [2 * parameter_count] values, then gradients */
    void *home;                        /* pinned, of the host; NULL: they live where they compute */
    int32_t *layer_of;                 /* [parameter_count] place in the model */
    DLTensor *values, *grads;          /* [parameter_count] */
    DLTensor *rounded;                 /* [parameter_count] copies of the values; NULL: none */
    void *memory, *between[2], *scratch;
    void *passing;                     /* pinned, of parameters that pass the device; NULL: none do */
    int32_t streamed_layers;           /* the first so many */
    int32_t streamed_parameters;       /* have these */
    struct dp_save_bytes save;
    bool no_split;
    bool bare;
    size_t memory_bytes, values_bytes; /* of all, of the values */
    size_t passing_bytes;
    struct stage_times *times;         /* [layer_count + 1] with the loss; NULL: not measured */
    struct streamed *streamed;         /* NULL: layers compute where their parameters live */
};

struct stage_config {
    bool bare;                         /* no memory, no values: to see what it takes */
    const struct model_info *model;
    int32_t stage, first_layer, end_layer;
    int64_t rows;
    int32_t microbatches;              /* of a step of all replicas, for norms */
    uint64_t seed;
    DLDataType dtype;                  /* of rounded values; zeroed: there are none */
    struct place *place;               /* it stays */
    bool away;                         /* parameters live in the host's memory, whatever the place */
    bool streams;
    int32_t first_kept;                /* but for layers from this one on */
};

/* Parameters begin from the seed, gradients zero. DP_ENOMEM; DP_EUNSUPPORTED for values that are not
 * rounded to dtype; errors of a fill. */
int stage_new(const struct stage_config *config, struct stage **out);
void stage_free(struct stage *stage);
/* As the pipeline takes it; the stage must stay. */
struct dp_stage stage_view(struct stage *stage);
/* Of parameters that live elsewhere: queue the values or gradients of now to where they compute. */
int stage_put(struct stage *stage, bool gradients);
/* And back, waiting; gradients are zero afterwards where they were. */
int stage_fetch(struct stage *stage, bool gradients);
/* Queued: the rounded values become those of now. */
int stage_round(struct stage *stage);
/* A call of layer i, or with i = layer_count of the loss, that began then: until what it has queued is
 * done. */
int stage_note_time(const struct stage *stage, int32_t i, int call, int64_t begun_ns);
/* The values of the largest layer that passes through the device. */
size_t stage_largest_bytes(const struct stage *stage);

#endif
