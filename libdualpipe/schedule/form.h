/* SPDX-License-Identifier: Apache-2.0
 *
 * form.h - the written forms of a schedule: one writer and one reader each.
 */
#ifndef DP_SCHEDULE_FORM_H
#define DP_SCHEDULE_FORM_H

#include "base/text.h"
#include <dualpipe/schedule.h>

void dp_write_json(const struct dp_schedule *s, struct dp_text *t);

#endif
