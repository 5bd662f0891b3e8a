/* SPDX-License-Identifier: Apache-2.0
 *
 * json_read.c - read the trace schema (see json_write.c). What a trace says about stages, peers and
 * phases must be what the placement says; so a file that was read agrees with it in every field.
 */
#include "base/fail.h"
#include "base/json.h"
#include "schedule/build.h"
#include "schedule/form.h"

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

/* ---- the header ---------------------------------------------------------------------------- */

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
    if (!err && dp_json_member(file, "streams").value)
        err = dp_json_get_int(file, "streams", 1, 2, &draft->streams);
    spec->no_overlap = !overlap;
    return err;
}

/* Where in the list each rank stands: rank says, or else its place does. */
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

/* The rank by which the communicator knows each rank; the same where nothing is said. */
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

/* ---- who holds what ------------------------------------------------------------------------ */

static int read_slot(const struct dp_json *at, const struct dp_draft *draft, int number,
                     struct dp_slot *slot)
{
    int stages = draft->spec.ranks * draft->slots_per_rank / draft->streams;
    int err = dp_json_get_int(at, "stage", 0, stages - 1, &slot->stage);

    slot->phase = number;
    if (!err && dp_json_member(at, "stream").value)
        err = dp_json_get_int(at, "stream", 0, draft->streams - 1, &slot->stream);
    return err;
}

static int read_slots_of_rank(const struct dp_json *at, struct dp_draft *draft, int rank)
{
    int count = (int)json_array_size(at->value), err = 0;

    if (!json_is_array(at->value) || count != draft->slots_per_rank)
        return dp_json_expected(at, "as many stages as the other ranks hold, and at most 16");
    for (int i = 0; i < count && !err; i++) {
        struct dp_json slot = dp_json_element(at, (size_t)i);
        err = read_slot(&slot, draft, i, &draft->slots[rank * count + i]);
    }
    return err;
}

static int read_slots(const struct dp_json *slots, struct dp_draft *draft)
{
    struct dp_json first = dp_json_element(slots, 0);
    int ranks = draft->spec.ranks, err = 0;

    if ((int)json_array_size(slots->value) != ranks)
        return dp_json_expected(slots, "a list for each of P ranks");
    draft->slots_per_rank = (int)json_array_size(first.value);
    if (draft->slots_per_rank < 1 || draft->slots_per_rank > DP_MAX_SLOTS)
        return dp_json_expected(&first, "a list of 1 to 16 stages");
    draft->slots = calloc((size_t)ranks * (size_t)draft->slots_per_rank, sizeof(*draft->slots));
    if (!draft->slots)
        return dp_fail(DP_ENOMEM, "no memory for the stages of %d ranks", ranks);
    for (int rank = 0; rank < ranks && !err; rank++) {
        struct dp_json at = dp_json_element(slots, (size_t)rank);
        err = read_slots_of_rank(&at, draft, rank);
    }
    return err;
}

/* ---- events -------------------------------------------------------------------------------- */

struct rank_reader {
    struct dp_draft *draft;
    const struct dp_schedule *s;
    int rank;
};

/* mod and chunk; then what else the event says of the slot must be so. */
static int read_slot_and_mb(const struct rank_reader *r, const struct dp_json *at, struct dp_op *op)
{
    int slot = 0, mb = 0, err = dp_json_get_int(at, "mod", 0, r->s->slots_per_rank - 1, &slot);

    if (!err && op->kind != DP_OP_REDUCE)
        err = dp_json_get_int(at, "chunk", 0, r->s->mb_per_stream - 1, &mb);
    if (err)
        return err;
    op->slot = (uint32_t)slot;
    op->mb = (uint32_t)mb;
    const struct dp_slot *held = dp_schedule_slot(r->s, r->rank, slot);
    int peer = dp_op_peer(held, *op);
    err = check_int(at, "stage", dp_op_stage(held, *op));
    if (!err)
        err = check_int(at, "phase", held->phase);
    if (!err && (dp_op_is_message((enum dp_op_kind)op->kind) || op->kind == DP_OP_REDUCE))
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
    int err = read_half(r, at, "f", (struct dp_op){.kind = DP_OP_F, .unit = unit, .overlap = 1});

    return err ? err : read_half(r, at, "b", (struct dp_op){.kind = DP_OP_B, .unit = unit});
}

static int read_op_kind(const struct dp_json *in, enum dp_op_kind *kind)
{
    const char *name = json_string_value(in->value);

    for (int k = DP_OP_F; name && k < DP_OP_KINDS; k++)
        if (!strcmp(name, dp_op_kind_name((enum dp_op_kind)k))) {
            *kind = (enum dp_op_kind)k;
            return 0;
        }
    return dp_json_expected(in, "one of F, B, I, W, FB, RECV_F, RECV_B, SEND_F, SEND_B, COMMIT, "
                            "FREE, REDUCE");
}

static int read_single(const struct rank_reader *r, const struct dp_json *at,
                       const struct dp_json *name, uint32_t unit)
{
    struct dp_op op = {.unit = unit};
    enum dp_op_kind kind = DP_OP_NONE;
    int n = 0, err = read_op_kind(name, &kind);

    if (err)
        return err;
    op.kind = kind;
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
        err = dp_json_get_int(at, "step", 0, 15, &step);
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

/* ---- all of it ----------------------------------------------------------------------------- */

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
    if (slots.value && draft->spec.kind == DP_SCHEDULE_USER)
        err = read_slots(&slots, draft);
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
