/* SPDX-License-Identifier: Apache-2.0 */
#include <dualpipe/trace.h>

#include "base/fail.h"
#include "pipeline/recording.h"

#include <stdlib.h>
#include <string.h>

enum { CLOCK_ROUNDS = 32 };

/* What a rank sends: this, then its records. */
struct parcel {
    uint64_t step;
    int64_t begin_ns, end_ns, clock_offset_ns;
    uint64_t count, capacity;
    int32_t rank; /* pipeline rank */
    int32_t recorded;
};

/* All parcels, by group rank. */
struct parcels {
    char *bytes;
    size_t *offsets; /* [size + 1] */
    int size;
};

static struct parcel parcel_of(const struct parcels *all, int r)
{
    struct parcel parcel;
    memcpy(&parcel, all->bytes + all->offsets[r], sizeof(parcel));
    return parcel;
}

static struct dp_record record_of(const struct parcels *all, int r, size_t i)
{
    struct dp_record record;
    memcpy(&record, all->bytes + all->offsets[r] + sizeof(struct parcel) + i * sizeof(record),
           sizeof(record));
    return record;
}

/* ---- exchange ------------------------------------------------------------------------------- */

static int pipeline_rank(const struct dp_schedule *s, const struct dp_comm *comm)
{
    for (int r = 0; r < s->ranks && comm; r++)
        if (s->group_rank[r] == comm->rank)
            return r;
    return 0;
}

static size_t kept(const struct parcel *parcel)
{
    return parcel->count < parcel->capacity ? parcel->count : parcel->capacity;
}

static char *make_parcel(const struct dp_recorder *rec, const struct dp_schedule *s,
                         const struct dp_comm *comm, int64_t clock_offset_ns, size_t *len)
{
    struct parcel parcel = {.capacity = rec->capacity,
                            .rank = pipeline_rank(s, comm),
                            .recorded = rec->last >= 0,
                            .clock_offset_ns = clock_offset_ns};
    if (parcel.recorded) {
        const struct dp_recorded_step *step = &rec->steps[rec->last];
        parcel.step = step->step;
        parcel.begin_ns = step->begin_ns;
        parcel.end_ns = step->end_ns;
        parcel.count = step->count;
    }
    *len = sizeof(parcel) + kept(&parcel) * sizeof(struct dp_record);
    char *bytes = malloc(*len);
    if (!bytes)
        return NULL;
    memcpy(bytes, &parcel, sizeof(parcel));
    if (parcel.recorded)
        memcpy(bytes + sizeof(parcel), rec->records + (size_t)rec->last * rec->capacity,
               kept(&parcel) * sizeof(struct dp_record));
    return bytes;
}

static int exchange(struct dp_comm *comm, char *mine, size_t len, struct parcels *all)
{
    void *bytes;

    if (!comm || comm->size == 1) {
        all->bytes = mine;
        all->offsets[1] = len;
        return 0;
    }
    int err = dp_comm_allgatherv(comm, mine, len, &bytes, all->offsets);
    free(mine);
    all->bytes = err ? NULL : bytes;
    return err;
}

static int check_parcels(const struct parcels *all, const struct dp_comm *comm)
{
    struct parcel first = parcel_of(all, 0);

    for (int r = 0; r < all->size; r++) {
        int (*fail)(int, const char *, ...) = !comm || comm->rank == r ? dp_fail : dp_fail_quietly;
        struct parcel parcel = parcel_of(all, r);
        if (!parcel.recorded)
            return fail(DP_ESTATE, "rank %d has recorded no step", r);
        if (parcel.step != first.step)
            return fail(DP_ESTATE, "rank %d has recorded step %llu, rank 0 step %llu", r,
                        (unsigned long long)parcel.step, (unsigned long long)first.step);
        if (parcel.count > parcel.capacity)
            return fail(DP_ESTATE, "rank %d has recorded %llu ops, but its ring holds %llu", r,
                        (unsigned long long)parcel.count, (unsigned long long)parcel.capacity);
    }
    return 0;
}

/* ---- timeline ------------------------------------------------------------------------------- */

static struct dp_span make_span(const struct dp_schedule *s, const struct parcel *parcel,
                                const struct dp_record *record, int64_t zero_ns)
{
    const struct dp_op *op = dp_schedule_ops(s, parcel->rank) + record->index;
    int64_t shift = parcel->clock_offset_ns - zero_ns;

    return (struct dp_span){
        .start_ns = record->start_ns + shift,
        .end_ns = record->end_ns + shift,
        .rank = parcel->rank,
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

static int64_t earliest_begin(const struct parcels *all)
{
    int64_t zero_ns = INT64_MAX;

    for (int r = 0; r < all->size; r++) {
        struct parcel parcel = parcel_of(all, r);
        if (parcel.begin_ns + parcel.clock_offset_ns < zero_ns)
            zero_ns = parcel.begin_ns + parcel.clock_offset_ns;
    }
    return zero_ns;
}

static int make_timeline(const struct parcels *all, const struct dp_schedule *s,
                         struct dp_timeline *out)
{
    int64_t zero_ns = earliest_begin(all);
    struct dp_timeline t = {.ranks = s->ranks};
    size_t count = 0;

    for (int r = 0; r < all->size; r++)
        count += parcel_of(all, r).count;
    t.spans = malloc((count + 1) * sizeof(*t.spans));
    if (!t.spans)
        return dp_fail(DP_ENOMEM, "no memory for a timeline of %zu ops", count);
    for (int r = 0; r < all->size; r++) {
        struct parcel parcel = parcel_of(all, r);
        int64_t end_ns = parcel.end_ns + parcel.clock_offset_ns - zero_ns;
        if (end_ns > t.makespan_ns)
            t.makespan_ns = end_ns;
        for (size_t i = 0; i < parcel.count; i++) {
            struct dp_record record = record_of(all, r, i);
            t.spans[t.count++] = make_span(s, &parcel, &record, zero_ns);
        }
    }
    qsort(t.spans, t.count, sizeof(*t.spans), by_rank_and_start);
    *out = t;
    return 0;
}

int dp_recorder_gather(struct dp_recorder *rec, const struct dp_schedule *s, struct dp_comm *comm,
                       struct dp_timeline *out)
{
    struct parcels all = {.size = comm ? comm->size : 1};
    int64_t offset_ns = 0, error_ns;
    size_t len;
    int err = 0;

    if (!rec || !s || !out || all.size != s->ranks)
        return dp_fail(DP_EINVAL, "a recorder to gather: %d ranks, expected the schedule's %d",
                       all.size, s ? s->ranks : 0);
    if (comm && comm->size > 1)
        err = dp_comm_clock_offset(comm, CLOCK_ROUNDS, &offset_ns, &error_ns);
    if (err)
        return err;
    char *mine = make_parcel(rec, s, comm, offset_ns, &len);
    all.offsets = calloc((size_t)all.size + 1, sizeof(*all.offsets));
    if (!mine || !all.offsets) {
        free(mine);
        free(all.offsets);
        return dp_fail(DP_ENOMEM, "no memory to gather a recorded step");
    }
    err = exchange(comm, mine, len, &all);
    if (!err)
        err = check_parcels(&all, comm);
    if (!err && comm && comm->rank)
        *out = (struct dp_timeline){0};
    else if (!err)
        err = make_timeline(&all, s, out);
    free(all.bytes);
    free(all.offsets);
    return err;
}
