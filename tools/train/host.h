/* SPDX-License-Identifier: Apache-2.0
 *
 * host.h - a job whose steps are those of the library's trainer (dualpipe/trainer.h): what
 * the options mean to it, and the text as its batches. Collective: every rank calls the same functions.
 */
#ifndef DP_TRAIN_HOST_H
#define DP_TRAIN_HOST_H

#include "train/data.h"
#include "train/sample.h"
#include "train/settings.h"

#include <dualpipe/trainer.h>

/* The layouts of settings whose schedule was not made: dp_trainer_plan. */
int host_plan(const struct settings *s, enum dp_schedule_kind kind,
              const struct dp_trainer_machine *machine, struct dp_trainer_plan **out, int32_t *count);

/* Bytes that the pipeline ranks of settings that are complete will hold: dp_trainer_measure. */
int host_measure(const struct settings *s, size_t *rank_bytes);

/* Whether a checkpoint of `dualpipe train`, whose options are known by its text, has all that --resume
 * reads under the layout that was saved: dp_trainer_verify. */
int host_verify(const struct dp_checkpoint *c, const char *path,
                void (*fault)(void *user, const char *sentence), void *user);

struct host;
/* The settings and data must stay; comm is of all ranks, NULL: alone. joins_as: -1, or this rank was
 * started again, in the place of the one that had this number. Errors of dp_trainer_new and _join. */
int host_new(const struct settings *s, const struct data *data, struct dp_comm *comm, int joins_as,
             struct host **out);
void host_free(struct host *h); /* may be NULL */
struct dp_trainer *host_trainer(const struct host *h);

/* Step number `step`, from 0, by the training text; errors of dp_trainer_step. */
int host_step(struct host *h, uint64_t step, struct dp_trainer_result *result);
/* Mean loss over some held-out batches, always the same ones; errors of dp_trainer_evaluate. */
int host_evaluate(struct host *h, double *held_out);
/* Text of the model as it is now; on rank 0, elsewhere text stays as it is. */
int host_sample(struct host *h, const struct sample_spec *spec, uint8_t *text);

#endif
