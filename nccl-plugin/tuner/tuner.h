/* SPDX-License-Identifier: Apache-2.0
 *
 * tuner.h - what all versions of the tuner share: a communicator's tuner, and a question of NCCL's
 * put to it.
 *
 *      NCCL                  versions.c                       tuner.c            dualpipe/tuning.h
 *      ncclTunerPlugin_vN -> arguments of that version -> what NCCL allows -> rules, table
 *
 * All ranks of a communicator must give the same answer, or they hang. So an answer depends on what
 * NCCL guarantees to be equal on all ranks, and on the options and the table, which the user keeps
 * equal. The table is read when a communicator is made, never later.
 */
#ifndef DPN_TUNER_H
#define DPN_TUNER_H

#include "nccl-plugin/nccl_abi.h"

#include <stdbool.h>

struct dpn_tuner;

/* Channels that a communicator can have: up to NCCL 2.24, and later. Version 4 serves both. */
enum { DPN_CHANNELS_MAX_V1 = 32, DPN_CHANNELS_MAX_V5 = 64 };

struct dpn_tuner_config {
    size_t ranks, nodes; /* 0: NCCL does not say which communicator it will ask for */
    ncclDebugLogger_t logger;
    /* There are costs to a question, so that the model can tell what NCCL would take. */
    bool has_costs;
    const struct ncclTunerConstants_v5 *constants; /* NCCL's own, or NULL */
};

/* Messages go to the logger from now on. What is wrong with the options or the table is said there,
 * and leaves the choice to NCCL; with DUALPIPE_TUNER_STRICT it is an error. Also DP_ENOMEM. */
int dpn_tuner_open(const struct dpn_tuner_config *config, struct dpn_tuner **out);
void dpn_tuner_close(struct dpn_tuner *tuner); /* NULL is fine */

struct dpn_tuner_question {
    ncclFunc_t function;
    size_t bytes;
    float *costs; /* us, [algorithms][protocols]; below 0: may not be chosen */
    int algorithms, protocols;
    bool is_registered;
    int pipe_ops; /* NCCL's numPipeOps */
    int channels_max; /* what any communicator of this version of NCCL may have */
};

/* The cell that is chosen becomes 0, which NCCL takes; cells below zero stay as they are. *channels
 * is written only if there is something to say about it. */
void dpn_tuner_choose(const struct dpn_tuner *tuner, const struct dpn_tuner_question *question,
                      int *channels);

/* Whether the options name a table, which may have rules for chunks. */
bool dpn_tuner_has_table(const struct dpn_tuner *tuner);

/* *chunk is written only if there is something to say about it. */
void dpn_tuner_chunk(const struct dpn_tuner *tuner, ncclFunc_t function, size_t bytes,
                     int algorithm, int protocol, size_t *chunk);

/* For versions 1 and 2 (what may be chosen there is worked out here). Both of *algorithm and
 * *protocol are written, or none. */
void dpn_tuner_choose_without_costs(const struct dpn_tuner *tuner, ncclFunc_t function,
                                    size_t bytes, int pipe_ops, bool has_collnet, bool has_nvls,
                                    int *algorithm, int *protocol, int *channels);

#endif
