/* SPDX-License-Identifier: Apache-2.0
 *
 * pace.c - how long a rank computed in a step, in a number that noise of single ops hardly moves.
 */
#include <dualpipe/trace.h>

#include "base/fail.h"
#include "pipeline/recording.h"

#include <stdlib.h>

/* One recorded op. Equal keys: the same work. */
struct timed {
    uint64_t key;
    int64_t ns;
};

static uint64_t key_of(const struct dp_schedule *s, int rank, struct dp_op op)
{
    return op.kind ? ((uint64_t)op.kind << 24) +
                         (uint64_t)dp_schedule_slot(s, rank, (int)op.slot)->stage
                   : 0;
}

static int by_key_and_time(const void *pa, const void *pb)
{
    const struct timed *a = pa, *b = pb;

    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    return (a->ns > b->ns) - (a->ns < b->ns);
}

/* For each key its number times its lower quartile, which ops that were preempted do not move. */
static double sum_of_quartiles(struct timed *ops, size_t count)
{
    double sum = 0;

    qsort(ops, count, sizeof(*ops), by_key_and_time);
    for (size_t first = 0, end; first < count; first = end) {
        for (end = first; end < count && ops[end].key == ops[first].key;)
            end++;
        sum += (double)(end - first) * (double)ops[first + (end - first - 1) / 4].ns;
    }
    return sum;
}

/* Sums run with others' help: they are not this rank's pace. */
static bool is_compute(struct dp_op op)
{
    return op.kind != DP_OP_REDUCE && op.kind != DP_OP_REDUCE_WAIT;
}

static void add_wait(const struct dp_record *r, int64_t *waited_ns, struct dp_rank_pace *out)
{
    out->waited_ns += (double)r->waited_ns;
    if (r->waited_for < 0)
        return;
    waited_ns[r->waited_for] += r->waited_ns;
    if ((double)waited_ns[r->waited_for] > out->waited_for_ns) {
        out->waited_for = r->waited_for;
        out->waited_for_ns = (double)waited_ns[r->waited_for];
    }
}

static void sum_up(const struct dp_recorder *rec, const struct dp_schedule *s, int rank,
                   struct timed *ops, int64_t *waited_ns, struct dp_rank_pace *out)
{
    const struct dp_recorded_step *step = &rec->steps[rec->last];
    const struct dp_record *records = rec->records + (size_t)rec->last * rec->capacity;
    const struct dp_op *list = dp_schedule_ops(s, rank);
    size_t count = 0;

    *out =
        (struct dp_rank_pace){.waited_for = -1, .step_ns = (double)(step->end_ns - step->begin_ns)};
    for (size_t i = 0; i < step->count; i++) {
        const struct dp_record *r = &records[i];
        const struct dp_op op = list[r->index],
                           pair = r->pair ? list[r->index + 1] : (struct dp_op){0};
        add_wait(r, waited_ns, out);
        out->busy_ns += (double)(r->end_ns - r->start_ns);
        if (is_compute(op))
            ops[count++] = (struct timed){key_of(s, rank, op) << 32 | key_of(s, rank, pair),
                                          r->end_ns - r->start_ns};
    }
    out->compute_ns = sum_of_quartiles(ops, count);
}

int dp_recorder_pace(const struct dp_recorder *rec, const struct dp_schedule *s, int rank,
                     struct dp_rank_pace *out)
{
    if (rec->last < 0)
        return dp_fail(DP_ESTATE, "rank %d has recorded no step", rank);
    const size_t count = rec->steps[rec->last].count;
    if (count > rec->capacity)
        return dp_fail(DP_ESTATE, "rank %d has recorded %zu ops, but its ring holds %zu", rank,
                       count, rec->capacity);
    struct timed *ops = malloc((count + 1) * sizeof(*ops));
    int64_t *waited_ns = calloc((size_t)s->ranks, sizeof(*waited_ns));
    int err = 0;
    if (ops && waited_ns)
        sum_up(rec, s, rank, ops, waited_ns, out);
    else
        err = dp_fail(DP_ENOMEM, "no memory for a step of %zu ops", count);
    free(ops);
    free(waited_ns);
    return err;
}
