/* SPDX-License-Identifier: Apache-2.0
 *
 * json_write.c - a schedule in the trace schema: an event a line, keys in the order of recorded
 * traces, so that a file of ours and a recorded one differ in `source` only.
 */
#include "schedule/build.h"
#include "schedule/form.h"

static const char *yes_no(bool b)
{
    return b ? "true" : "false";
}

/* "mod": .. "phase": .. of a compute; what a trace calls mod and chunk is our slot and mb. */
static void add_compute(struct dp_text *t, const struct dp_slot *slots, struct dp_op op)
{
    dp_text_addf(t, "\"mod\": %u, \"stage\": %d, \"chunk\": %u, \"phase\": %d", op.slot,
                 slots[op.slot].stage, op.mb, slots[op.slot].phase);
}

static void add_pair(struct dp_text *t, const struct dp_slot *slots, const struct dp_op *f)
{
    dp_text_adds(t, "\"FB\", \"f\": {");
    add_compute(t, slots, f[0]);
    dp_text_adds(t, "}, \"b\": {");
    add_compute(t, slots, f[1]);
    dp_text_adds(t, "}");
}

/* Traces name peers by their rank in the communicator. */
static int peer_of(const struct dp_schedule *s, const struct dp_slot *slot, struct dp_op op)
{
    int peer = dp_op_peer(slot, op);
    return peer < 0 ? -1 : s->group_rank[peer];
}

static void add_message(struct dp_text *t, const struct dp_schedule *s,
                        const struct dp_slot *slots, struct dp_op op)
{
    const struct dp_slot *slot = &slots[op.slot];

    dp_text_addf(t, "\"mod\": %u, \"chunk\": %u, \"peer\": %d, \"stage\": %d, \"phase\": %d",
                 op.slot, op.mb, peer_of(s, slot, op), dp_op_stage(slot, op), slot->phase);
}

static void add_other(struct dp_text *t, const struct dp_schedule *s,
                      const struct dp_slot *slots, struct dp_op op)
{
    const struct dp_slot *slot = &slots[op.slot];

    if (op.kind == DP_OP_COMMIT)
        dp_text_addf(t, "\"n\": %u", op.mb);
    else if (op.kind == DP_OP_FREE)
        dp_text_addf(t, "\"mod\": %u, \"chunk\": %u, \"phase\": %d", op.slot, op.mb, slot->phase);
    else
        dp_text_addf(t, "\"mod\": %u, \"peer\": %d, \"stage\": %d, \"phase\": %d", op.slot,
                     peer_of(s, slot, op), slot->stage, slot->phase);
}

/* Write the event that begins at ops[0]; how many ops it took. */
static size_t add_event(struct dp_text *t, const struct dp_schedule *s,
                        const struct dp_slot *slots, const struct dp_op *ops)
{
    struct dp_op op = ops[0];

    dp_text_addf(t, "{\"step\": %u, \"op\": ", op.unit);
    if (op.overlap) {
        add_pair(t, slots, ops);
    } else {
        dp_text_addf(t, "\"%s\", ", dp_op_kind_name((enum dp_op_kind)op.kind));
        if (dp_op_is_compute((enum dp_op_kind)op.kind))
            add_compute(t, slots, op);
        else if (dp_op_is_message((enum dp_op_kind)op.kind))
            add_message(t, s, slots, op);
        else
            add_other(t, s, slots, op);
    }
    dp_text_adds(t, "}");
    return op.overlap ? 2 : 1;
}

static void add_rank(struct dp_text *t, const struct dp_schedule *s, int rank)
{
    const struct dp_op *ops = dp_schedule_ops(s, rank);
    size_t count = dp_schedule_count(s, rank);

    dp_text_addf(t, "{\"rank\": %d, ", rank);
    if (s->group_rank[rank] != rank)
        dp_text_addf(t, "\"group_rank\": %d, ", s->group_rank[rank]);
    dp_text_adds(t, "\"events\": [\n");
    for (size_t i = 0; i < count;) {
        i += add_event(t, s, dp_schedule_slot(s, rank, 0), ops + i);
        dp_text_adds(t, i < count ? ",\n" : "\n");
    }
    dp_text_adds(t, rank + 1 < s->ranks ? "]},\n" : "]}\n");
}

/* Which stages the ranks hold, where no builder knows it. */
static void add_slots(struct dp_text *t, const struct dp_schedule *s)
{
    dp_text_addf(t, "\"streams\": %d,\n\"slots\": [\n", s->streams);
    for (int i = 0; i < s->ranks * s->slots_per_rank; i++) {
        bool first = i % s->slots_per_rank == 0, last = (i + 1) % s->slots_per_rank == 0;
        dp_text_addf(t, "%s{\"stage\": %d, \"stream\": %d}%s", first ? "[" : "",
                     s->slots[i].stage, s->slots[i].stream, last ? "" : ", ");
        if (last)
            dp_text_adds(t, i + 1 < s->ranks * s->slots_per_rank ? "],\n" : "]\n");
    }
    dp_text_adds(t, "],\n");
}

void dp_write_json(const struct dp_schedule *s, struct dp_text *t)
{
    dp_text_addf(t, "{\n\"algo\": \"%s\",\n\"P\": %d,\n\"M\": %d,\n",
                 dp_schedule_kind_name(s->kind), s->ranks, s->microbatches);
    dp_text_addf(t, "\"forward_only\": %s,\n\"overlap_hook\": %s,\n\"return_outputs\": %s,\n",
                 yes_no(s->forward_only), yes_no(s->overlap), yes_no(s->return_outputs));
    dp_text_addf(t, "\"source\": \"dualpipe %s\",\n", dp_version());
    if (s->kind == DP_SCHEDULE_USER)
        add_slots(t, s);
    dp_text_adds(t, "\"ranks\": [\n");
    for (int rank = 0; rank < s->ranks; rank++)
        add_rank(t, s, rank);
    dp_text_adds(t, "]}\n");
}
