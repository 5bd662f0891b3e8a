/* SPDX-License-Identifier: Apache-2.0
 *
 * internal.h - what other layers of the library call of this one, and its users do not.
 */
#ifndef DP_SCHEDULE_INTERNAL_H
#define DP_SCHEDULE_INTERNAL_H

#include <dualpipe/schedule.h>

/* Give the schedule skip connections: its messages, frees and reduces are made anew, so that every
 * value is received, as a batch of its receiver, when it is sent, and waits there until it is
 * consumed; gradients likewise. A micro-batch may have been evicted or recomputed. DP_EINVAL with all
 * violations in one sentence: a stage that is not there, produced and consumed by one stage, consumed
 * before it is produced, produced or consumed twice in a namespace, consumed and never produced,
 * produced and never consumed; DP_ESTATE if it has skips; DP_ENOMEM. After an error only
 * dp_schedule_free is left to do. */
int dp_schedule_add_skips(struct dp_schedule *s, const struct dp_skip *skips, int count);
/* "gpipe", "1f1b", "zb1p", "dualpipe", "dualpipev", "interleaved", "zbv", "async", "user". */
const char *dp_schedule_kind_name(enum dp_schedule_kind kind);
/* "F", "RECV_F", ...: the names used in traces. */
const char *dp_op_kind_name(enum dp_op_kind kind);
/* "never", "except_last", "always"; parse: DP_EINVAL (A2) with the list otherwise. */
const char *dp_recompute_name(enum dp_recompute recompute);
const char *dp_rule_name(enum dp_rule rule); /* "deadlock"; no rule: "?" */

/* Same kind, counts and flags, same slots and group ranks, same ops. */
bool dp_schedule_equal(const struct dp_schedule *a, const struct dp_schedule *b);

#endif
