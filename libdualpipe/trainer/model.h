/* SPDX-License-Identifier: Apache-2.0
 *
 * model.h - a model that has been checked: whole names of its parameters, which of them are one, and how
 * its layers are cut into stages.
 */
#ifndef DP_TRAINER_MODEL_H
#define DP_TRAINER_MODEL_H

#include <dualpipe/model.h>
#include <dualpipe/schedule.h>
#include <dualpipe/trainer.h>

#include <string.h>

enum { MODEL_NAME = 160 };

/* A parameter of the model: of each use of a layer. */
struct model_parameter {
    char name[MODEL_NAME];
    const char *tied; /* whole name of the first of a group, which the first one has, too; else NULL */
    const struct dp_parameter_spec *spec;
    size_t elements, bytes;
};

struct model_info {
    struct dp_model model; /* layers and skips copied */
    const struct dp_layer **layers;
    struct dp_layer_skip *skips;
    int32_t *first;                     /* [layer_count + 1] of the parameters of each layer */
    struct model_parameter *parameters; /* [first[layer_count]] */
    double *costs; /* [layer_count] that were measured; NULL: by what layers say, or their size */
};

/* A member of a tied group other than the first: it is neither updated nor saved by itself. */
static inline bool model_is_copy(const char *name, const char *tied)
{
    return tied && strcmp(name, tied);
}

/* DP_EINVAL naming layer and member; DP_ENOMEM. */
int model_take(struct model_info *m, const struct dp_model *model);
void model_fini(struct model_info *m);

/* *out: [stages + 1] where each stage begins in the list of layers; the caller frees. */
int model_cut(const struct model_info *m, const struct dp_trainer_config *config,
              const struct dp_schedule *outline, int32_t **out);

/* A border of micro-batches of so many rows. */
void model_border(const struct dp_border *of_row, int64_t rows, struct dp_border *out);
void model_spec(const struct dp_tensor_spec *of_row, int64_t rows, struct dp_tensor_spec *out);
size_t model_spec_bytes(const struct dp_tensor_spec *spec);

/* A number that two models, or two ranks', have in common where they are the same. */
uint64_t model_digest(const struct model_info *m);

/* The initial value, in the host's memory. */
int model_fill(const struct model_info *m, int32_t parameter, uint64_t seed, DLTensor *value);

/* Which of the replicas of the model this is. A replica takes M / count of a step's micro-batches,
 * one after the other in the order of replicas. Zeroed: there is one. */
struct replica {
    int index, count;
    bool first; /* of those that live */
    bool apart; /* gradients are of the replica's own loss, not of its share in that of all */
};

#endif
