/* SPDX-License-Identifier: Apache-2.0
 *
 * recorder.c - start and end of every op of the last steps, the same of all ranks in one place by one
 * clock, and how long a rank computed in a step, in a number that noise of single ops hardly moves.
 */
#include "comm/internal.h"
#include "pipeline/internal.h"
#include "pipeline/recorder.h"

#include "base/clock.h"
#include "base/fail.h"

#include <dualpipe/trace.h>

#include <stdlib.h>
#include <string.h>

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

/* ---- of all ranks ---------------------------------------------------------------------------- */

enum { CLOCK_ROUNDS = 32 };

/* A recorded step as a rank sends it: this, then its records. */
struct packed_step {
    uint64_t step;
    int64_t begin_ns, end_ns, clock_offset_ns;
    uint64_t count, capacity;
    int32_t rank; /* pipeline rank */
    int32_t recorded;
};

/* Those of all ranks, by group rank. */
struct packed_steps {
    char *bytes;
    size_t *offsets; /* [size + 1] */
    int size;
};

static struct packed_step packed_of(const struct packed_steps *all, int r)
{
    struct packed_step packed;
    memcpy(&packed, all->bytes + all->offsets[r], sizeof(packed));
    return packed;
}

static struct dp_record record_of(const struct packed_steps *all, int r, size_t i)
{
    struct dp_record record;
    memcpy(&record, all->bytes + all->offsets[r] + sizeof(struct packed_step) + i * sizeof(record),
           sizeof(record));
    return record;
}

/* ---- exchange ------------------------------------------------------------------------------- */

static int pipeline_rank(const struct dp_schedule *s, const struct dp_comm *comm)
{
    for (int r = 0; r < s->ranks && comm; r++)
        if (s->group_rank[r] == dp_comm_rank(comm))
            return r;
    return 0;
}

static size_t kept(const struct packed_step *packed)
{
    return packed->count < packed->capacity ? packed->count : packed->capacity;
}

static char *pack_step(const struct dp_recorder *rec, const struct dp_schedule *s,
                       const struct dp_comm *comm, int64_t clock_offset_ns, size_t *len)
{
    struct packed_step packed = {.capacity = rec->capacity,
                                 .rank = pipeline_rank(s, comm),
                                 .recorded = rec->last >= 0,
                                 .clock_offset_ns = clock_offset_ns};
    if (packed.recorded) {
        const struct dp_recorded_step *step = &rec->steps[rec->last];
        packed.step = step->step;
        packed.begin_ns = step->begin_ns;
        packed.end_ns = step->end_ns;
        packed.count = step->count;
    }
    *len = sizeof(packed) + kept(&packed) * sizeof(struct dp_record);
    char *bytes = malloc(*len);
    if (!bytes)
        return NULL;
    memcpy(bytes, &packed, sizeof(packed));
    if (packed.recorded)
        memcpy(bytes + sizeof(packed), rec->records + (size_t)rec->last * rec->capacity,
               kept(&packed) * sizeof(struct dp_record));
    return bytes;
}

static int exchange(struct dp_comm *comm, char *mine, size_t len, struct packed_steps *all)
{
    void *bytes;

    if (!comm || dp_comm_size(comm) == 1) {
        all->bytes = mine;
        all->offsets[1] = len;
        return 0;
    }
    int err = dp_comm_allgatherv(comm, mine, len, &bytes, all->offsets);
    free(mine);
    all->bytes = err ? NULL : bytes;
    return err;
}

static int check_packed(const struct packed_steps *all, const struct dp_comm *comm)
{
    struct packed_step first = packed_of(all, 0);

    for (int r = 0; r < all->size; r++) {
        int (*fail)(int, const char *, ...) =
            !comm || dp_comm_rank(comm) == r ? dp_fail : dp_fail_quietly;
        struct packed_step packed = packed_of(all, r);
        if (!packed.recorded)
            return fail(DP_ESTATE, "rank %d has recorded no step", r);
        if (packed.step != first.step)
            return fail(DP_ESTATE, "rank %d has recorded step %llu, rank 0 step %llu", r,
                        (unsigned long long)packed.step, (unsigned long long)first.step);
        if (packed.count > packed.capacity)
            return fail(DP_ESTATE, "rank %d has recorded %llu ops, but its ring holds %llu", r,
                        (unsigned long long)packed.count, (unsigned long long)packed.capacity);
    }
    return 0;
}

/* ---- timeline ------------------------------------------------------------------------------- */

static struct dp_span make_span(const struct dp_schedule *s, const struct packed_step *packed,
                                const struct dp_record *record, int64_t zero_ns)
{
    const struct dp_op *op = dp_schedule_ops(s, packed->rank) + record->index;
    int64_t shift = packed->clock_offset_ns - zero_ns;

    return (struct dp_span){
        .start_ns = record->start_ns + shift,
        .end_ns = record->end_ns + shift,
        .rank = packed->rank,
        .index = record->index,
        .op = op[0],
        .pair = record->pair ? op[1] : (struct dp_op){0},
        .waited_ns = record->waited_ns,
        .waited_for = record->waited_for,
    };
}

static int by_rank_and_start(const void *pa, const void *pb)
{
    const struct dp_span *a = pa, *b = pb;

    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    if (a->start_ns != b->start_ns)
        return a->start_ns < b->start_ns ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

static int64_t earliest_begin(const struct packed_steps *all)
{
    int64_t zero_ns = INT64_MAX;

    for (int r = 0; r < all->size; r++) {
        struct packed_step packed = packed_of(all, r);
        if (packed.begin_ns + packed.clock_offset_ns < zero_ns)
            zero_ns = packed.begin_ns + packed.clock_offset_ns;
    }
    return zero_ns;
}

static int make_timeline(const struct packed_steps *all, const struct dp_schedule *s,
                         struct dp_timeline *out)
{
    int64_t zero_ns = earliest_begin(all);
    struct dp_timeline t = {.ranks = s->ranks};
    size_t count = 0;

    for (int r = 0; r < all->size; r++)
        count += packed_of(all, r).count;
    t.spans = malloc((count + 1) * sizeof(*t.spans));
    if (!t.spans)
        return dp_fail(DP_ENOMEM, "no memory for a timeline of %zu ops", count);
    for (int r = 0; r < all->size; r++) {
        struct packed_step packed = packed_of(all, r);
        int64_t end_ns = packed.end_ns + packed.clock_offset_ns - zero_ns;
        if (end_ns > t.makespan_ns)
            t.makespan_ns = end_ns;
        for (size_t i = 0; i < packed.count; i++) {
            struct dp_record record = record_of(all, r, i);
            t.spans[t.count++] = make_span(s, &packed, &record, zero_ns);
        }
    }
    qsort(t.spans, t.count, sizeof(*t.spans), by_rank_and_start);
    *out = t;
    return 0;
}

int dp_recorder_gather(struct dp_recorder *rec, const struct dp_schedule *s, struct dp_comm *comm,
                       struct dp_timeline *out)
{
    struct packed_steps all = {.size = comm ? dp_comm_size(comm) : 1};
    int64_t offset_ns = 0, error_ns;
    size_t len;
    int err = 0;

    if (!rec || !s || !out || all.size != s->ranks)
        return dp_fail(DP_EINVAL, "a recorder to gather: %d ranks, expected the schedule's %d",
                       all.size, s ? s->ranks : 0);
    if (comm && dp_comm_size(comm) > 1)
        err = dp_comm_clock_offset(comm, CLOCK_ROUNDS, &offset_ns, &error_ns);
    if (err)
        return err;
    char *mine = pack_step(rec, s, comm, offset_ns, &len);
    all.offsets = calloc((size_t)all.size + 1, sizeof(*all.offsets));
    if (!mine || !all.offsets) {
        free(mine);
        free(all.offsets);
        return dp_fail(DP_ENOMEM, "no memory to gather a recorded step");
    }
    err = exchange(comm, mine, len, &all);
    if (!err)
        err = check_packed(&all, comm);
    if (!err && comm && dp_comm_rank(comm))
        *out = (struct dp_timeline){0};
    else if (!err)
        err = make_timeline(&all, s, out);
    free(all.bytes);
    free(all.offsets);
    return err;
}

/* ---- the pace of a rank ---------------------------------------------------------------------- */

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
