/* SPDX-License-Identifier: Apache-2.0
 *
 * late.h - updates that are one step late (dp_trainer_config.delay_update): the gradients of a step are
 * used in the next one, and what that does is seen by the step after it.
 *
 *      step        k              k + 1          k + 2
 *      values      w              w              w'
 *      gradients   g of step k -> update -> w'
 */
#ifndef DP_TRAINER_LATE_H
#define DP_TRAINER_LATE_H

#include "trainer/engine.h"

#include <dualpipe/checkpoint.h>
#include <dualpipe/mixer.h>

/* The update that is due, and its gradients, which are like those of the parts. */
struct late {
    double state[4]; /* an update is due; its rate, its scale, it is skipped */
    int64_t shape;
    DLTensor tensor;              /* of state */
    void *block[DP_MAX_SLOTS];
    DLTensor *kept[DP_MAX_SLOTS]; /* [parameters]; data NULL of frozen ones */
};

/* *out is freed with late_free, which takes NULL. DP_ENOMEM. */
int late_new(const struct engine_part *parts, int count, struct late **out);
void late_free(struct late *l);

/* The gradients of all parts for those that are kept, and those here are kept. */
void late_swap(struct late *l, const struct engine_part *parts, int count);
bool late_is_due(const struct late *l);
struct dp_mixer_update late_due(const struct late *l);
/* What is kept now is to be used so; NULL: not at all. */
void late_set(struct late *l, const struct dp_mixer_update *how);

/* For checkpoints: "NAME/late" of each gradient that is kept, and late_name of late_state. */
extern const char late_name[], late_suffix[];
const DLTensor *late_state(struct late *l);
bool late_is_in(const struct dp_checkpoint *c);

#endif
