/* SPDX-License-Identifier: Apache-2.0
 *
 * Events of the trace-event format: M names a process or thread, X is a bar with start and
 * duration, s and f are the two ends of an arrow (each bound to the bar that encloses its time), C
 * is a counter's new value. Times are in microseconds, with three digits for the nanoseconds.
 */
#include <dualpipe/trace.h>

#include "base/fail.h"
#include "base/text.h"
#include "schedule/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_SPAN UINT32_MAX

struct writer {
    const struct dp_timeline *t;
    const struct dp_schedule *s;
    struct dp_text text;
    uint32_t *forwards, *backwards; /* [ranks * slots * mb_per_stream] the span of that compute */
    uint64_t arrows;
};

struct live {
    int activations, queue;
};

static const struct dp_slot *slot_of(const struct writer *w, int rank, uint32_t slot)
{
    return dp_schedule_slot(w->s, rank, (int)slot);
}

/* ---- names ---------------------------------------------------------------------------------- */

static void begin_event(struct writer *w)
{
    dp_text_adds(&w->text, ",\n");
}

static void add_time(struct writer *w, const char *name, int64_t ns)
{
    dp_text_addf(&w->text, "\"%s\":%s%lld.%03lld", name, ns < 0 ? "-" : "",
                 (long long)(llabs(ns) / 1000), (long long)(llabs(ns) % 1000));
}

static void write_name(struct writer *w, const char *what, int pid, int tid, const char *name)
{
    begin_event(w);
    dp_text_addf(&w->text, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,", what, pid, tid);
    dp_text_addf(&w->text, "\"args\":{\"name\":\"%s\"}}", name);
}

static void write_order(struct writer *w, const char *what, int pid, int tid, int index)
{
    begin_event(w);
    dp_text_addf(&w->text, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,", what, pid, tid);
    dp_text_addf(&w->text, "\"args\":{\"sort_index\":%d}}", index);
}

static void write_names(struct writer *w, int rank)
{
    char name[64];

    snprintf(name, sizeof(name), "rank %d", rank);
    write_name(w, "process_name", rank, 0, name);
    write_order(w, "process_sort_index", rank, 0, rank);
    for (int slot = 0; slot < dp_schedule_slot_count(w->s, rank); slot++) {
        snprintf(name, sizeof(name), "slot %d: stage %d", slot,
                 dp_schedule_slot(w->s, rank, slot)->stage);
        write_name(w, "thread_name", rank, slot, name);
        write_order(w, "thread_sort_index", rank, slot, slot);
    }
    write_name(w, "thread_name", rank, w->s->max_slots, "waiting");
    write_order(w, "thread_sort_index", rank, w->s->max_slots, w->s->max_slots);
}

/* ---- bars ----------------------------------------------------------------------------------- */

static const char *category(enum dp_op_kind kind)
{
    switch (kind) {
    case DP_OP_F:
        return "forward";
    case DP_OP_B:
        return "backward";
    case DP_OP_I:
        return "input gradient";
    case DP_OP_W:
        return "weight gradient";
    case DP_OP_RECOMPUTE:
        return "recompute";
    default:
        return "reduce";
    }
}

static void write_bar(struct writer *w, const struct dp_span *span, struct dp_op op, bool paired)
{
    enum dp_op_kind kind = (enum dp_op_kind)op.kind;

    begin_event(w);
    dp_text_addf(&w->text, "{\"ph\":\"X\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%u,", category(kind),
                 span->rank, op.slot);
    add_time(w, "ts", span->start_ns);
    dp_text_adds(&w->text, ",");
    add_time(w, "dur", span->end_ns - span->start_ns);
    if (kind == DP_OP_REDUCE || kind == DP_OP_REDUCE_WAIT)
        dp_text_addf(&w->text, ",\"name\":\"%s\",\"args\":{", dp_op_kind_name(kind));
    else
        dp_text_addf(&w->text, ",\"name\":\"%s%u\",\"args\":{\"micro-batch\":%u,",
                     dp_op_kind_name(kind), op.mb, op.mb);
    dp_text_addf(&w->text, "\"stage\":%d,\"op\":%u,\"section\":%u,\"overlapped\":%s}}",
                 slot_of(w, span->rank, op.slot)->stage, span->index, dp_op_unit(op),
                 paired ? "true" : "false");
}

static void write_wait(struct writer *w, const struct dp_span *span)
{
    if (span->waited_ns <= 0 || span->waited_for < 0)
        return;
    begin_event(w);
    dp_text_addf(&w->text, "{\"ph\":\"X\",\"cat\":\"wait\",\"pid\":%d,\"tid\":%d,", span->rank,
                 w->s->max_slots);
    add_time(w, "ts", span->start_ns - span->waited_ns);
    dp_text_adds(&w->text, ",");
    add_time(w, "dur", span->waited_ns);
    dp_text_addf(&w->text, ",\"name\":\"for rank %d\"}", span->waited_for);
}

static void write_counter(struct writer *w, int rank, int64_t ns, const char *name, int value)
{
    begin_event(w);
    dp_text_addf(&w->text, "{\"ph\":\"C\",\"pid\":%d,\"name\":\"%s\",", rank, name);
    add_time(w, "ts", ns);
    dp_text_addf(&w->text, ",\"args\":{\"count\":%d}}", value);
}

/* An activation set lives from the start of F, or of its RECOMPUTE, to the end of B or W, a weight
 * part from the end of I to the start of W. */
static void count_op(struct writer *w, const struct dp_span *span, struct dp_op op,
                     struct live *live)
{
    bool frees = op.kind == DP_OP_B || op.kind == DP_OP_W ||
                 (op.kind == DP_OP_F && w->s->forward_only);

    if ((op.kind == DP_OP_F && !(op.flags & DP_OP_RECOMPUTED)) || op.kind == DP_OP_RECOMPUTE)
        write_counter(w, span->rank, span->start_ns, "live activation sets", ++live->activations);
    if (op.kind == DP_OP_W)
        write_counter(w, span->rank, span->start_ns, "weight queue", --live->queue);
    if (op.kind == DP_OP_I)
        write_counter(w, span->rank, span->end_ns, "weight queue", ++live->queue);
    if (frees)
        write_counter(w, span->rank, span->end_ns, "live activation sets", --live->activations);
}

/* ---- arrows --------------------------------------------------------------------------------- */

static size_t place(const struct writer *w, int rank, uint32_t slot, uint32_t mb)
{
    size_t at = w->s->first_slot[rank] + slot;
    return at * (size_t)w->s->mb_per_stream + mb;
}

static void note_compute(struct writer *w, uint32_t i, struct dp_op op)
{
    size_t at = place(w, w->t->spans[i].rank, op.slot, op.mb);

    if (op.kind == DP_OP_F)
        w->forwards[at] = i;
    else if (op.kind == DP_OP_B || op.kind == DP_OP_I)
        w->backwards[at] = i;
}

static void write_arrow_end(struct writer *w, const char *phase, int rank, int slot, int64_t ns,
                            const char *what)
{
    begin_event(w);
    dp_text_addf(&w->text, "{\"ph\":\"%s\",\"cat\":\"message\",\"name\":\"%s\",\"id\":%llu,", phase,
                 what, (unsigned long long)w->arrows);
    dp_text_addf(&w->text, "\"pid\":%d,\"tid\":%d,", rank, slot);
    add_time(w, "ts", ns);
    dp_text_adds(&w->text, *phase == 'f' ? ",\"bp\":\"e\"}" : "}");
}

/* From the producer, just before its end, to the start of the consumer. */
static void write_arrow(struct writer *w, uint32_t producer, int from_slot,
                        const struct dp_span *consumer, int to_slot, const char *what)
{
    if (producer == NO_SPAN)
        return;
    const struct dp_span *from = &w->t->spans[producer];
    int64_t leaves_ns = from->end_ns > from->start_ns ? from->end_ns - 1 : from->start_ns;

    write_arrow_end(w, "s", from->rank, from_slot, leaves_ns, what);
    write_arrow_end(w, "f", consumer->rank, to_slot, consumer->start_ns, what);
    w->arrows++;
}

static void write_arrow_to(struct writer *w, const struct dp_span *span, struct dp_op op)
{
    const struct dp_slot *slot = slot_of(w, span->rank, op.slot);

    if (op.kind == DP_OP_F && slot->prev >= 0 && slot->prev != span->rank)
        write_arrow(w, w->forwards[place(w, slot->prev, (uint32_t)slot->prev_slot, op.mb)],
                    slot->prev_slot, span, (int)op.slot, "activation");
    if ((op.kind == DP_OP_B || op.kind == DP_OP_I) && slot->next >= 0 && slot->next != span->rank)
        write_arrow(w, w->backwards[place(w, slot->next, (uint32_t)slot->next_slot, op.mb)],
                    slot->next_slot, span, (int)op.slot, "gradient");
}

/* ---- together ------------------------------------------------------------------------------- */

static void write_spans(struct writer *w, struct live *live)
{
    for (size_t i = 0; i < w->t->count; i++) {
        const struct dp_span *span = &w->t->spans[i];
        bool paired = span->pair.kind != DP_OP_NONE;
        write_wait(w, span);
        write_bar(w, span, span->op, paired);
        count_op(w, span, span->op, &live[span->rank]);
        write_arrow_to(w, span, span->op);
        if (!paired)
            continue;
        write_bar(w, span, span->pair, true);
        count_op(w, span, span->pair, &live[span->rank]);
        write_arrow_to(w, span, span->pair);
    }
}

static void note_computes(struct writer *w, size_t count)
{
    memset(w->forwards, 0xFF, count * sizeof(*w->forwards));
    memset(w->backwards, 0xFF, count * sizeof(*w->backwards));
    for (uint32_t i = 0; i < w->t->count; i++) {
        note_compute(w, i, w->t->spans[i].op);
        if (w->t->spans[i].pair.kind != DP_OP_NONE)
            note_compute(w, i, w->t->spans[i].pair);
    }
}

int dp_timeline_write_perfetto(const struct dp_timeline *t, const struct dp_schedule *s,
                               char **json, size_t *len)
{
    size_t count = s->first_slot[s->ranks] * (size_t)s->mb_per_stream;
    struct writer w = {.t = t, .s = s};
    struct live *live = calloc((size_t)s->ranks, sizeof(*live));
    int err;

    w.forwards = malloc(count * sizeof(*w.forwards));
    w.backwards = malloc(count * sizeof(*w.backwards));
    if (!live || !w.forwards || !w.backwards) {
        err = dp_fail(DP_ENOMEM, "no memory to write a timeline of %zu ops", t->count);
    } else {
        note_computes(&w, count);
        dp_text_addf(&w.text, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"schedule\":\"%s\","
                              "\"ranks\":%d,\"micro-batches\":%d},\"traceEvents\":[\n",
                     dp_schedule_kind_name(s->kind), s->ranks, s->microbatches);
        dp_text_addf(&w.text, "{\"ph\":\"M\",\"name\":\"trace_name\",\"pid\":0,\"tid\":0,"
                              "\"args\":{\"name\":\"dualpipe\"}}");
        for (int rank = 0; rank < s->ranks; rank++)
            write_names(&w, rank);
        write_spans(&w, live);
        dp_text_adds(&w.text, "\n]}\n");
        err = dp_text_take(&w.text, json, len);
    }
    free(live);
    free(w.forwards);
    free(w.backwards);
    return err;
}
