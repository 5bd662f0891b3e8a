/* SPDX-License-Identifier: Apache-2.0
 *
 * json.c - a schedule in the trace schema: an event a line, keys in the order of recorded traces, so
 * that a file written here and a recorded one differ in `source` only. What a trace that is read
 * says about stages, peers and phases must be what the placement says.
 */
#include "base/fail.h"
#include "base/json.h"
#include "schedule/build.h"
#include "schedule/format.h"
#include "schedule/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A number that may be left out, but not be another one than this. */
static int check_int(const struct dp_json *at, const char *key, int right)
{
    struct dp_json in = dp_json_member(at, key);
    char what[16];

    if (!in.value || (json_is_integer(in.value) && json_integer_value(in.value) == right))
        return 0;
    snprintf(what, sizeof(what), "%d", right);
    return dp_json_expected(&in, what);
}

/* ---- the header ------------------------------------------------------------------------------ */

static int read_kind(const struct dp_json *file, enum dp_schedule_kind *kind)
{
    struct dp_json in = dp_json_member(file, "algo");

    if (!json_is_string(in.value))
        return dp_json_expected(&in, "the name of a schedule");
    if (dp_schedule_kind_find(json_string_value(in.value), kind))
        return dp_fail(DP_EINVAL, "algo: %s", dp_last_error());
    return 0;
}

static int read_spec(const struct dp_json *file, struct dp_draft *draft)
{
    struct dp_schedule_spec *spec = &draft->spec;
    bool overlap = true;
    int err = read_kind(file, &spec->kind);

    if (!err)
        err = dp_json_get_int(file, "P", 1, INT32_MAX, &spec->ranks);
    if (!err)
        err = dp_json_get_int(file, "M", 1, INT32_MAX, &spec->microbatches);
    if (!err)
        err = dp_json_get_bool(file, "forward_only", false, &spec->forward_only);
    if (!err)
        err = dp_json_get_bool(file, "return_outputs", false, &spec->return_outputs);
    if (!err)
        err = dp_json_get_bool(file, "overlap_hook", true, &overlap);
    if (!err && dp_json_member(file, "virtual_stages").value)
        err = dp_json_get_int(file, "virtual_stages", 1, DP_MAX_SLOTS, &spec->virtual_stages);
    if (!err && dp_json_member(file, "streams").value)
        err = dp_json_get_int(file, "streams", 1, 2, &draft->streams);
    if (!err && dp_json_member(file, "slack").value)
        err = dp_json_get_int(file, "slack", 0, 1, &spec->slack);
    spec->no_overlap = !overlap;
    return err;
}

/* Where in the list each rank stands: its member `rank`, or, without one, its position. */
static int read_order(const struct dp_json *ranks, int count, int *order)
{
    int err = 0;

    for (int rank = 0; rank < count; rank++)
        order[rank] = -1;
    for (int i = 0, rank; i < count && !err; i++) {
        struct dp_json at = dp_json_element(ranks, (size_t)i), in = dp_json_member(&at, "rank");
        rank = i;
        if (in.value)
            err = dp_json_get_int(&at, "rank", 0, count - 1, &rank);
        if (!err && order[rank] >= 0)
            err = dp_json_expected(&in, "each rank once");
        order[rank] = i;
    }
    return err;
}

/* The rank by which the communicator knows each rank; the same by default. */
static int read_group_ranks(const struct dp_json *ranks, int count, const int *order,
                            int *group_rank)
{
    int err = 0;

    for (int rank = 0; rank < count && !err; rank++) {
        struct dp_json at = dp_json_element(ranks, (size_t)order[rank]);
        group_rank[rank] = rank;
        if (dp_json_member(&at, "group_rank").value)
            err = dp_json_get_int(&at, "group_rank", 0, count - 1, &group_rank[rank]);
    }
    return err;
}

/* ---- the stages of each rank ----------------------------------------------------------------- */

static int read_slot(const struct dp_json *at, const struct dp_draft *draft, int number,
                     struct dp_slot *slot)
{
    int stages = (int)draft->first_slot[draft->spec.ranks] / draft->streams;
    int err = dp_json_get_int(at, "stage", 0, stages - 1, &slot->stage);

    slot->phase = slot->location = number;
    if (!err && dp_json_member(at, "stream").value)
        err = dp_json_get_int(at, "stream", 0, draft->streams - 1, &slot->stream);
    if (!err && dp_json_member(at, "location").value)
        err = dp_json_get_int(at, "location", 0, INT32_MAX, &slot->location);
    return err;
}

static int read_slots_of_rank(const struct dp_json *at, struct dp_draft *draft, int rank)
{
    size_t first = draft->first_slot[rank], count = draft->first_slot[rank + 1] - first;
    int err = 0;

    for (size_t i = 0; i < count && !err; i++) {
        struct dp_json slot = dp_json_element(at, i);
        err = read_slot(&slot, draft, (int)i, &draft->slots[first + i]);
    }
    return err;
}

/* How many each rank holds. */
static int count_slots(const struct dp_json *slots, struct dp_draft *draft)
{
    for (int rank = 0; rank < draft->spec.ranks; rank++) {
        struct dp_json at = dp_json_element(slots, (size_t)rank);
        size_t count = json_array_size(at.value);
        if (!json_is_array(at.value) || count > DP_MAX_SLOTS)
            return dp_json_expected(&at, "a list of at most 64 stages");
        draft->first_slot[rank + 1] = draft->first_slot[rank] + count;
    }
    return 0;
}

static int read_slots(const struct dp_json *slots, struct dp_draft *draft)
{
    int ranks = draft->spec.ranks, err;

    if ((int)json_array_size(slots->value) != ranks)
        return dp_json_expected(slots, "a list for each of P ranks");
    draft->first_slot = calloc((size_t)ranks + 1, sizeof(*draft->first_slot));
    if (!draft->first_slot)
        return dp_fail(DP_ENOMEM, "no memory for %d ranks", ranks);
    if ((err = count_slots(slots, draft)))
        return err;
    draft->slots = calloc(draft->first_slot[ranks] + 1, sizeof(*draft->slots));
    if (!draft->slots)
        return dp_fail(DP_ENOMEM, "no memory for the stages of %d ranks", ranks);
    for (int rank = 0; rank < ranks && !err; rank++) {
        struct dp_json at = dp_json_element(slots, (size_t)rank);
        err = read_slots_of_rank(&at, draft, rank);
    }
    return err;
}

/* ---- skips ----------------------------------------------------------------------------------- */

static int read_word(const struct dp_json *at, const char *key, bool may_be_empty,
                     char word[DP_SKIP_NAME_LEN])
{
    struct dp_json in = dp_json_member(at, key);
    const char *text = in.value ? json_string_value(in.value) : "";

    if (!text || !dp_skip_word(text, strlen(text), may_be_empty))
        return dp_json_expected(&in, "a name of letters, digits, '_', '.' and '-'");
    snprintf(word, DP_SKIP_NAME_LEN, "%s", text);
    return 0;
}

static int read_skip(const struct dp_json *at, struct dp_skip *skip)
{
    int err = read_word(at, "name", false, skip->name);

    if (!err)
        err = read_word(at, "namespace", true, skip->space);
    if (!err)
        err = dp_json_get_int(at, "from", 0, INT32_MAX, &skip->from);
    return err ? err : dp_json_get_int(at, "to", 0, INT32_MAX, &skip->to);
}

static int read_skips(const struct dp_json *file, struct dp_draft *draft)
{
    struct dp_json list = dp_json_member(file, "skips");
    const size_t count = json_array_size(list.value);
    int err = 0;

    if (!list.value)
        return 0;
    if (!json_is_array(list.value) || count > DP_MAX_SKIPS)
        return dp_json_expected(&list, "a list of at most 512 skips");
    for (size_t i = 0; i < count && !err; i++) {
        struct dp_json at = dp_json_element(&list, i);
        struct dp_skip skip = {.from = 0};
        err = read_skip(&at, &skip);
        if (!err)
            err = dp_draft_add_skip(draft, &skip);
    }
    return err;
}

/* ---- events ---------------------------------------------------------------------------------- */

struct rank_reader {
    struct dp_draft *draft;
    const struct dp_schedule *s;
    int rank;
};

/* mod and chunk; then the other members of the event must agree with the slot. */
static int read_slot_and_mb(const struct rank_reader *r, const struct dp_json *at, struct dp_op *op)
{
    int slots = dp_schedule_slot_count(r->s, r->rank), slot = 0, mb = 0, argument = 0;
    struct dp_json mod = dp_json_member(at, "mod");
    int err = slots ? dp_json_get_int(at, "mod", 0, slots - 1, &slot)
                    : dp_json_expected(&mod, "no op: the rank holds no stage");

    if (!err && dp_op_has_mb((enum dp_op_kind)op->kind))
        err = dp_json_get_int(at, "chunk", 0, r->s->mb_per_stream - 1, &mb);
    if (!err && dp_json_member(at, "argument").value)
        err = dp_json_get_int(at, "argument", 0,
                              dp_op_is_skip((enum dp_op_kind)op->kind) ? DP_MAX_ARGUMENT : 0, &argument);
    if (err)
        return err;
    op->slot = (uint8_t)slot;
    op->mb = (uint32_t)mb;
    op->flags |= dp_op_flags(0, (uint32_t)argument);
    const struct dp_slot *held = dp_schedule_slot(r->s, r->rank, slot);
    if (dp_op_is_skip((enum dp_op_kind)op->kind) && argument >= r->s->skip_count) {
        struct dp_json in = dp_json_member(at, "argument");
        return dp_json_expected(&in, "the number of a skip");
    }
    int peer = dp_op_peer(r->s, held, *op);
    err = check_int(at, "stage", dp_op_stage(r->s, held, *op));
    if (!err)
        err = check_int(at, "phase", held->phase);
    if (!err && (dp_op_is_message((enum dp_op_kind)op->kind) || op->kind == DP_OP_REDUCE ||
                 op->kind == DP_OP_REDUCE_WAIT))
        err = check_int(at, "peer", peer < 0 ? -1 : r->s->group_rank[peer]);
    return err;
}

static int read_half(const struct rank_reader *r, const struct dp_json *at, const char *key,
                     struct dp_op op)
{
    struct dp_json in = dp_json_member(at, key);
    int err = json_is_object(in.value) ? read_slot_and_mb(r, &in, &op)
                                       : dp_json_expected(&in, "a record of mod and chunk");

    if (!err)
        dp_op_list_add(&r->draft->ops, op);
    return err;
}

static int read_pair(const struct rank_reader *r, const struct dp_json *at, uint32_t unit)
{
    const uint16_t flags = dp_op_flags(unit, 0);
    int err = read_half(r, at, "f",
                        (struct dp_op){.kind = DP_OP_F, .flags = flags | DP_OP_OVERLAP});

    return err ? err : read_half(r, at, "b", (struct dp_op){.kind = DP_OP_B, .flags = flags});
}

static int read_op_kind(const struct dp_json *in, enum dp_op_kind *kind)
{
    const char *name = json_string_value(in->value);

    for (int k = DP_OP_F; name && k < DP_OP_KINDS; k++)
        if (!strcmp(name, dp_op_kind_name((enum dp_op_kind)k))) {
            *kind = (enum dp_op_kind)k;
            return 0;
        }
    return dp_json_expected(in, "one of F, B, I, W, FB, RECOMPUTE, RECV_F, RECV_B, SEND_F, SEND_B, "
                            "RECV_SKIP_F, RECV_SKIP_B, SEND_SKIP_F, SEND_SKIP_B, "
                            "COMMIT, FREE, EVICT, FETCH, REDUCE, REDUCE_WAIT");
}

static int read_single(const struct rank_reader *r, const struct dp_json *at,
                       const struct dp_json *name, uint32_t unit)
{
    struct dp_op op = {.flags = dp_op_flags(unit, 0)};
    enum dp_op_kind kind = DP_OP_NONE;
    int n = 0, err = read_op_kind(name, &kind);

    if (err)
        return err;
    op.kind = (uint8_t)kind;
    if (kind == DP_OP_COMMIT) {
        err = dp_json_get_int(at, "n", 0, DP_MAX_MB, &n);
        op.mb = (uint32_t)n;
    } else {
        err = read_slot_and_mb(r, at, &op);
    }
    if (!err)
        dp_op_list_add(&r->draft->ops, op);
    return err;
}

static int read_event(const struct rank_reader *r, const struct dp_json *at)
{
    struct dp_json name = dp_json_member(at, "op");
    int step = 0, err = 0;

    if (!json_is_object(at->value))
        return dp_json_expected(at, "an event");
    if (dp_json_member(at, "step").value)
        err = dp_json_get_int(at, "step", 0, DP_MAX_UNIT, &step);
    if (err)
        return err;
    if (json_is_string(name.value) && !strcmp(json_string_value(name.value), "FB"))
        return read_pair(r, at, (uint32_t)step);
    return read_single(r, at, &name, (uint32_t)step);
}

static int read_rank(struct dp_draft *draft, const struct dp_json *at, int rank)
{
    const struct rank_reader r = {draft, draft->s, rank};
    struct dp_json events;
    int err = dp_json_get_array(at, "events", &events);

    for (size_t i = 0; !err && i < json_array_size(events.value); i++) {
        struct dp_json event = dp_json_element(&events, i);
        err = read_event(&r, &event);
    }
    dp_draft_end_rank(draft, rank);
    return err;
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* What must be known before the events: ranks, slots, placement. */
static int place(const struct dp_json *file, const struct dp_json *ranks, struct dp_draft *draft,
                 const int *order, int *group_rank)
{
    struct dp_json slots = dp_json_member(file, "slots");
    int err = read_group_ranks(ranks, draft->spec.ranks, order, group_rank);

    if (err)
        return err;
    if ((err = dp_draft_map(draft, group_rank)))
        return dp_fail(err, "ranks: %s", dp_last_error());
    if (slots.value && dp_placed_by_file(draft->spec.kind))
        err = read_slots(&slots, draft);
    if (!err)
        err = read_skips(file, draft);
    if (!err && (err = dp_draft_place(draft)))
        err = dp_fail(err, "%s", dp_last_error());
    return err;
}

static int read_ranks(const struct dp_json *file, const struct dp_json *ranks,
                      struct dp_draft *draft)
{
    int count = draft->spec.ranks, err;
    int *order = calloc(2 * (size_t)count, sizeof(*order));

    if (!order)
        return dp_fail(DP_ENOMEM, "no memory for %d ranks", count);
    err = read_order(ranks, count, order);
    if (!err)
        err = place(file, ranks, draft, order, order + count);
    for (int rank = 0; rank < count && !err; rank++) {
        struct dp_json at = dp_json_element(ranks, (size_t)order[rank]);
        err = read_rank(draft, &at, rank);
    }
    free(order);
    return err;
}

static int read_file(const struct dp_json *file, struct dp_draft *draft)
{
    struct dp_json ranks;
    int err = json_is_object(file->value) ? read_spec(file, draft)
                                          : dp_json_expected(file, "a trace: {\"algo\": ...}");

    if (!err)
        err = dp_json_get_array(file, "ranks", &ranks);
    if (!err && json_array_size(ranks.value) != (size_t)draft->spec.ranks)
        err = dp_fail(DP_EINVAL, "ranks: a list of %zu, expected P, %d",
                      json_array_size(ranks.value), draft->spec.ranks);
    return err ? err : read_ranks(file, &ranks, draft);
}

int dp_read_json(const char *text, size_t len, struct dp_draft *draft)
{
    json_t *value;
    int err = dp_json_load(text, len, &value);

    if (err)
        return err;
    struct dp_json file = {.value = value};
    err = read_file(&file, draft);
    json_decref(value);
    return err;
}

/* ---- writing --------------------------------------------------------------------------------- */

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
        dp_text_addf(t, ", \"argument\": %u", dp_op_argument(op));
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

    dp_text_addf(t, "{\"step\": %u, \"op\": ", dp_op_unit(op));
    if (op.flags & DP_OP_OVERLAP) {
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
    return op.flags & DP_OP_OVERLAP ? 2 : 1;
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
