/* SPDX-License-Identifier: Apache-2.0
 *
 * host.h - what the options mean to the library's trainer (dualpipe/trainer.h), and what it can say of a
 * job that has not begun.
 */
#ifndef DP_TRAIN_HOST_H
#define DP_TRAIN_HOST_H

#include "train/settings.h"

#include <dualpipe/trainer.h>

bool host_is_bf16(const struct settings *s);
/* layers_of_stage: room for [stages]. Rates are set step by step. */
struct dp_trainer_config host_config(const struct settings *s, int32_t *layers_of_stage);

/* The layouts of settings whose schedule was not made: dp_trainer_plan. */
int host_plan(const struct settings *s, enum dp_schedule_kind kind,
              const struct dp_trainer_machine *machine, struct dp_trainer_plan **out, int32_t *count);

/* Bytes that the pipeline ranks of settings that are complete will hold: dp_trainer_measure. */
int host_measure(const struct settings *s, size_t *rank_bytes);

/* Whether a checkpoint of `dualpipe train`, whose options are known by its text, has all that --resume
 * reads under the layout that was saved: dp_trainer_verify. */
int host_verify(const struct dp_checkpoint *c, const char *path,
                void (*fault)(void *user, const char *sentence), void *user);

#endif
