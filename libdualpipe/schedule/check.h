/* SPDX-License-Identifier: Apache-2.0
 *
 * check.h - the checker's parts: rules of one rank's list, rules between ranks.
 */
#ifndef DP_SCHEDULE_CHECK_H
#define DP_SCHEDULE_CHECK_H

#include <dualpipe/schedule.h>

#include <string.h>

struct dp_checker {
    const struct dp_schedule *s;
    struct dp_finding *finding;
    bool has_frees;       /* all or none: a schedule that uses them does so throughout */
    bool has_reduces;     /* so far; the same of slots that have a mirror */
    bool lacks_reduce;    /* so far: the first such slot is */
    int lacking_rank, lacking_slot;
    int max_activations, max_weight_queue; /* of the rank being checked; -1: no bound */
    size_t mbs;      /* per stream */
    uint32_t *marks; /* [max_slots * mbs], of one rank in turn */
    uint8_t *skip_marks; /* [streams * skips * mbs], the same of skips */
};

/* Record what is wrong at index of the rank's list (its count: the end), and return
 * DP_EINVAL. The sentence goes on after "rank 1, op 7 (sF0.3): ". */
int dp_check_found(struct dp_checker *c, enum dp_rule rule, int rank, size_t index,
                   const char *fmt, ...) DP_PRINTF(5, 6);

/* Each returns 0, DP_EINVAL with the finding filled in, or DP_ENOMEM. In this order: each relies on
 * those before. */
int dp_check_shape(struct dp_checker *c);
int dp_check_rank_once(struct dp_checker *c, int rank);  /* SHAPE of ops, ONCE */
int dp_check_rank_order(struct dp_checker *c, int rank); /* COMMIT DEPENDENCY WEIGHT ACTIVATION */
int dp_check_links(struct dp_checker *c);                /* FIFO, DEADLOCK */

/* check_skips.c, for both of these. The list as a set: an op of a skip, whose fields are right; are all
 * there? */
int dp_check_skip_once(struct dp_checker *c, int rank, size_t index, struct dp_op op);
int dp_check_skips_complete(struct dp_checker *c, int rank);
/* The list as a sequence: a receive has been committed; an F, B or I: has it what it reads? */
void dp_check_skip_came(struct dp_checker *c, int rank, struct dp_op op);
int dp_check_skips_came(struct dp_checker *c, int rank, size_t index, struct dp_op op);
void dp_check_clear_skips(struct dp_checker *c);

/* Can every op be looked up without harm? DP_EINVAL, logged, if not. Needs a right placement. */
int dp_check_sound(const struct dp_schedule *s);

static inline uint32_t *dp_check_mark(const struct dp_checker *c, uint32_t slot, uint32_t mb)
{
    return &c->marks[slot * c->mbs + mb];
}
static inline void dp_check_clear_marks(struct dp_checker *c)
{
    memset(c->marks, 0, (size_t)c->s->max_slots * c->mbs * sizeof(*c->marks));
    dp_check_clear_skips(c);
}

#endif
