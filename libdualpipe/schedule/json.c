/* SPDX-License-Identifier: Apache-2.0
 *
 * json.c - a schedule in the trace schema: an event a line, keys in the order of recorded traces, so
 * that a file written here and a recorded one differ in `source` only.
 */
#include "schedule/build.h"
#include "schedule/format.h"

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
    int peer = dp_op_peer(s, slot, op);
    return peer < 0 ? -1 : s->group_rank[peer];
}

static void add_message(struct dp_text *t, const struct dp_schedule *s,
                        const struct dp_slot *slots, struct dp_op op)
{
    const struct dp_slot *slot = &slots[op.slot];

    dp_text_addf(t, "\"mod\": %u, \"chunk\": %u, \"peer\": %d, \"stage\": %d, \"phase\": %d",
                 op.slot, op.mb, peer_of(s, slot, op), dp_op_stage(s, slot, op), slot->phase);
    if (dp_op_is_skip((enum dp_op_kind)op.kind))
        dp_text_addf(t, ", \"argument\": %u", op.argument);
}

static void add_other(struct dp_text *t, const struct dp_schedule *s,
                      const struct dp_slot *slots, struct dp_op op)
{
    const struct dp_slot *slot = &slots[op.slot];

    if (op.kind == DP_OP_COMMIT)
        dp_text_addf(t, "\"n\": %u", op.mb);
    else if (dp_op_has_mb((enum dp_op_kind)op.kind))
        dp_text_addf(t, "\"mod\": %u, \"chunk\": %u, \"phase\": %d", op.slot, op.mb, slot->phase);
    else
        dp_text_addf(t, "\"mod\": %u, \"peer\": %d, \"stage\": %d, \"phase\": %d", op.slot,
                     peer_of(s, slot, op), slot->stage, slot->phase);
}

/* Write the event that begins at ops[0]. Returns how many ops it stands for. */
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

/* Which stages the ranks hold, of a schedule without a builder. */
static void add_slots(struct dp_text *t, const struct dp_schedule *s)
{
    dp_text_addf(t, "\"streams\": %d,\n\"slots\": [\n", s->streams);
    for (int rank = 0; rank < s->ranks; rank++) {
        dp_text_adds(t, "[");
        for (int at = 0; at < dp_schedule_slot_count(s, rank); at++) {
            const struct dp_slot *slot = dp_schedule_slot(s, rank, at);
            dp_text_addf(t, "%s{\"stage\": %d, \"stream\": %d", at ? ", " : "", slot->stage,
                         slot->stream);
            if (slot->location != at)
                dp_text_addf(t, ", \"location\": %d", slot->location);
            dp_text_adds(t, "}");
        }
        dp_text_adds(t, rank + 1 < s->ranks ? "],\n" : "]\n");
    }
    dp_text_adds(t, "],\n");
}

static void add_skips(struct dp_text *t, const struct dp_schedule *s)
{
    dp_text_adds(t, "\"skips\": [\n");
    for (int k = 0; k < s->skip_count; k++) {
        const struct dp_skip *skip = &s->skips[k];
        dp_text_addf(t, "{\"name\": \"%s\", ", skip->name);
        if (skip->space[0])
            dp_text_addf(t, "\"namespace\": \"%s\", ", skip->space);
        dp_text_addf(t, "\"from\": %d, \"to\": %d}%s\n", skip->from, skip->to,
                     k + 1 < s->skip_count ? "," : "");
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
    if (s->kind == DP_SCHEDULE_INTERLEAVED)
        dp_text_addf(t, "\"virtual_stages\": %d,\n", s->max_slots);
    if (s->slack)
        dp_text_addf(t, "\"slack\": %d,\n", s->slack);
    if (dp_placed_by_file(s->kind))
        add_slots(t, s);
    if (s->skip_count)
        add_skips(t, s);
    dp_text_adds(t, "\"ranks\": [\n");
    for (int rank = 0; rank < s->ranks; rank++)
        add_rank(t, s, rank);
    dp_text_adds(t, "]}\n");
}
