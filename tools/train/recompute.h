/* SPDX-License-Identifier: Apache-2.0
 *
 * recompute.h - which forwards a run recomputes: --checkpoint says of which micro-batches,
 * --checkpoint-stages of which stages.
 */
#ifndef DP_TRAIN_RECOMPUTE_H
#define DP_TRAIN_RECOMPUTE_H

#include <dualpipe/schedule.h>

#include <stddef.h>

enum { STAGE_SET_MAX = 4096 };

/* Zeroed: nothing was said, so all stages. */
struct stage_set {
    bool any;
    int last; /* the largest of them */
    bool has[STAGE_SET_MAX];
};

/* "0,3,5-7", for ARG_PARSE. */
bool stage_set_parse(const char *text, void *member, char *why, size_t why_len);

/* The RECOMPUTEs of a schedule for training. mode: never, except_last, always. Errors of
 * dp_schedule_add_recomputes. */
int recompute_add(struct dp_schedule *s, const char *mode, const struct stage_set *stages);

#endif
