/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/recorder.h"

#include "base/clock.h"
#include "base/fail.h"
#include "pipeline/recording.h"

#include <stdlib.h>

int dp_recorder_new(size_t ops, int steps, struct dp_recorder **out)
{
    if (steps < 1)
        return dp_fail(DP_EINVAL, "recorder: %d steps, expected at least 1", steps);
    struct dp_recorder *rec = calloc(1, sizeof(*rec));
    if (rec)
        rec->steps = calloc((size_t)steps, sizeof(*rec->steps));
    if (rec && rec->steps)
        rec->records = calloc(ops * (size_t)steps + 1, sizeof(*rec->records));
    if (!rec || !rec->records) {
        dp_recorder_free(rec);
        return dp_fail(DP_ENOMEM, "recorder: no memory for %d steps of %zu ops", steps, ops);
    }
    rec->capacity = ops;
    rec->step_count = steps;
    rec->current = -1;
    rec->last = -1;
    rec->on = true;
    *out = rec;
    return 0;
}

void dp_recorder_free(struct dp_recorder *rec)
{
    if (!rec)
        return;
    free(rec->records);
    free(rec->steps);
    free(rec);
}

void dp_recorder_enable(struct dp_recorder *rec, bool on)
{
    rec->on = on;
}

void dp_recorder_show(struct dp_recorder *rec, struct dp_live *live)
{
    rec->live = live;
}

struct dp_live *dp_recorder_live(const struct dp_recorder *rec)
{
    return rec ? rec->live : NULL;
}

bool dp_recorder_enabled(const struct dp_recorder *rec)
{
    return rec && rec->on;
}

void dp_recorder_begin(struct dp_recorder *rec, uint64_t step)
{
    rec->current = (rec->last + 1) % rec->step_count;
    rec->steps[rec->current] = (struct dp_recorded_step){.step = step, .begin_ns = dp_now_ns()};
}

void dp_recorder_add(struct dp_recorder *rec, const struct dp_record *record)
{
    struct dp_recorded_step *step = &rec->steps[rec->current];

    if (step->count < rec->capacity)
        rec->records[(size_t)rec->current * rec->capacity + step->count] = *record;
    step->count++;
}

void dp_recorder_end(struct dp_recorder *rec)
{
    rec->steps[rec->current].end_ns = dp_now_ns();
    rec->last = rec->current;
    rec->current = -1;
}
