/* SPDX-License-Identifier: Apache-2.0
 *
 * json_read.c - read the trace schema (see json_write.c). What a trace says about stages, peers and
 * phases must be what the placement says; so a file that was read agrees with it in every field.
 */
#include "base/fail.h"
#include "schedule/build.h"
#include "schedule/form.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A value and the way to it, which is spelled out only when something is wrong there. */
struct place {
    const json_t *value;
    const struct place *parent; /* NULL: the file */
    const char *key;            /* NULL: element `index` of a list */
    size_t index;
};

static struct place member(const struct place *at, const char *key)
{
    return (struct place){json_object_get(at->value, key), at, key, 0};
}

static struct place element(const struct place *at, size_t index)
{
    return (struct place){json_array_get(at->value, index), at, NULL, index};
}

/* ranks[0].events[7].chunk */
static void add_path(struct dp_text *t, const struct place *at)
{
    if (!at->parent)
        return;
    add_path(t, at->parent);
    if (at->key)
        dp_text_addf(t, "%s%s", t->len ? "." : "", at->key);
    else
        dp_text_addf(t, "[%zu]", at->index);
}

/* "PATH: what stands there, expected ..." */
static int expected(const struct place *at, const char *what)
{
    char *is = at->value ? json_dumps(at->value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    struct dp_text path = {0};
    int err;

    add_path(&path, at);
    err = dp_fail(DP_EINVAL, "%s: %.60s, expected %s", path.len ? path.data : "the file",
                  is ? is : "not there", what);
    dp_text_fini(&path);
    free(is);
    return err;
}

static int get_int(const struct place *at, const char *key, int least, int most, int *out)
{
    struct place in = member(at, key);
    char what[64];
    json_int_t value = json_integer_value(in.value);

    if (!json_is_integer(in.value) || value < least || value > most) {
        snprintf(what, sizeof(what), "a whole number from %d to %d", least, most);
        return expected(&in, what);
    }
    *out = (int)value;
    return 0;
}

/* A number that may be left out, but not be another one than this. */
static int check_int(const struct place *at, const char *key, int right)
{
    struct place in = member(at, key);
    char what[16];

    if (!in.value || (json_is_integer(in.value) && json_integer_value(in.value) == right))
        return 0;
    snprintf(what, sizeof(what), "%d", right);
    return expected(&in, what);
}

static int get_bool(const struct place *at, const char *key, bool absent, bool *out)
{
    struct place in = member(at, key);

    if (in.value && !json_is_boolean(in.value))
        return expected(&in, "true or false");
    *out = in.value ? json_is_true(in.value) : absent;
    return 0;
}

static int get_array(const struct place *at, const char *key, struct place *out)
{
    *out = member(at, key);
    return json_is_array(out->value) ? 0 : expected(out, "a list");
}

/* ---- the header ---------------------------------------------------------------------------- */

static int read_kind(const struct place *file, enum dp_schedule_kind *kind)
{
    struct place in = member(file, "algo");

    if (!json_is_string(in.value))
        return expected(&in, "the name of a schedule");
    if (dp_schedule_kind_find(json_string_value(in.value), kind))
        return dp_fail(DP_EINVAL, "algo: %s", dp_last_error());
    return 0;
}

static int read_spec(const struct place *file, struct dp_draft *draft)
{
    struct dp_schedule_spec *spec = &draft->spec;
    bool overlap = true;
    int err = read_kind(file, &spec->kind);

    if (!err)
        err = get_int(file, "P", 1, INT32_MAX, &spec->ranks);
    if (!err)
        err = get_int(file, "M", 1, INT32_MAX, &spec->microbatches);
    if (!err)
        err = get_bool(file, "forward_only", false, &spec->forward_only);
    if (!err)
        err = get_bool(file, "return_outputs", false, &spec->return_outputs);
    if (!err)
        err = get_bool(file, "overlap_hook", true, &overlap);
    if (!err && member(file, "streams").value)
        err = get_int(file, "streams", 1, 2, &draft->streams);
    spec->no_overlap = !overlap;
    return err;
}

/* Where in the list each rank stands: rank says, or else its place does. */
static int read_order(const struct place *ranks, int count, int *order)
{
    int err = 0;

    for (int rank = 0; rank < count; rank++)
        order[rank] = -1;
    for (int i = 0, rank; i < count && !err; i++) {
        struct place at = element(ranks, (size_t)i), in = member(&at, "rank");
        rank = i;
        if (in.value)
            err = get_int(&at, "rank", 0, count - 1, &rank);
        if (!err && order[rank] >= 0)
            err = expected(&in, "each rank once");
        order[rank] = i;
    }
    return err;
}

/* The rank by which the communicator knows each rank; the same where nothing is said. */
static int read_group_ranks(const struct place *ranks, int count, const int *order,
                            int *group_rank)
{
    int err = 0;

    for (int rank = 0; rank < count && !err; rank++) {
        struct place at = element(ranks, (size_t)order[rank]);
        group_rank[rank] = rank;
        if (member(&at, "group_rank").value)
            err = get_int(&at, "group_rank", 0, count - 1, &group_rank[rank]);
    }
    return err;
}

/* ---- who holds what ------------------------------------------------------------------------ */

static int read_slot(const struct place *at, const struct dp_draft *draft, int number,
                     struct dp_slot *slot)
{
    int stages = draft->spec.ranks * draft->slots_per_rank / draft->streams;
    int err = get_int(at, "stage", 0, stages - 1, &slot->stage);

    slot->phase = number;
    if (!err && member(at, "stream").value)
        err = get_int(at, "stream", 0, draft->streams - 1, &slot->stream);
    return err;
}

static int read_slots_of_rank(const struct place *at, struct dp_draft *draft, int rank)
{
    int count = (int)json_array_size(at->value), err = 0;

    if (!json_is_array(at->value) || count != draft->slots_per_rank)
        return expected(at, "as many stages as the other ranks hold, and at most 16");
    for (int i = 0; i < count && !err; i++) {
        struct place slot = element(at, (size_t)i);
        err = read_slot(&slot, draft, i, &draft->slots[rank * count + i]);
    }
    return err;
}

static int read_slots(const struct place *slots, struct dp_draft *draft)
{
    struct place first = element(slots, 0);
    int ranks = draft->spec.ranks, err = 0;

    if ((int)json_array_size(slots->value) != ranks)
        return expected(slots, "a list for each of P ranks");
    draft->slots_per_rank = (int)json_array_size(first.value);
    if (draft->slots_per_rank < 1 || draft->slots_per_rank > DP_MAX_SLOTS)
        return expected(&first, "a list of 1 to 16 stages");
    draft->slots = calloc((size_t)ranks * (size_t)draft->slots_per_rank, sizeof(*draft->slots));
    if (!draft->slots)
        return dp_fail(DP_ENOMEM, "no memory for the stages of %d ranks", ranks);
    for (int rank = 0; rank < ranks && !err; rank++) {
        struct place at = element(slots, (size_t)rank);
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
static int read_slot_and_mb(const struct rank_reader *r, const struct place *at, struct dp_op *op)
{
    int slot = 0, mb = 0, err = get_int(at, "mod", 0, r->s->slots_per_rank - 1, &slot);

    if (!err && op->kind != DP_OP_REDUCE)
        err = get_int(at, "chunk", 0, r->s->mb_per_stream - 1, &mb);
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

static int read_half(const struct rank_reader *r, const struct place *at, const char *key,
                     struct dp_op op)
{
    struct place in = member(at, key);
    int err = json_is_object(in.value) ? read_slot_and_mb(r, &in, &op)
                                       : expected(&in, "a record of mod and chunk");

    if (!err)
        dp_op_list_add(&r->draft->ops, op);
    return err;
}

static int read_pair(const struct rank_reader *r, const struct place *at, uint32_t unit)
{
    int err = read_half(r, at, "f", (struct dp_op){.kind = DP_OP_F, .unit = unit, .overlap = 1});

    return err ? err : read_half(r, at, "b", (struct dp_op){.kind = DP_OP_B, .unit = unit});
}

static int read_op_kind(const struct place *in, enum dp_op_kind *kind)
{
    const char *name = json_string_value(in->value);

    for (int k = DP_OP_F; name && k < DP_OP_KINDS; k++)
        if (!strcmp(name, dp_op_kind_name((enum dp_op_kind)k))) {
            *kind = (enum dp_op_kind)k;
            return 0;
        }
    return expected(in, "one of F, B, I, W, FB, RECV_F, RECV_B, SEND_F, SEND_B, COMMIT, FREE, "
                        "REDUCE");
}

static int read_single(const struct rank_reader *r, const struct place *at,
                       const struct place *name, uint32_t unit)
{
    struct dp_op op = {.unit = unit};
    enum dp_op_kind kind = DP_OP_NONE;
    int n = 0, err = read_op_kind(name, &kind);

    if (err)
        return err;
    op.kind = kind;
    if (kind == DP_OP_COMMIT) {
        err = get_int(at, "n", 0, DP_MAX_MB, &n);
        op.mb = (uint32_t)n;
    } else {
        err = read_slot_and_mb(r, at, &op);
    }
    if (!err)
        dp_op_list_add(&r->draft->ops, op);
    return err;
}

static int read_event(const struct rank_reader *r, const struct place *at)
{
    struct place name = member(at, "op");
    int step = 0, err = 0;

    if (!json_is_object(at->value))
        return expected(at, "an event");
    if (member(at, "step").value)
        err = get_int(at, "step", 0, 15, &step);
    if (err)
        return err;
    if (json_is_string(name.value) && !strcmp(json_string_value(name.value), "FB"))
        return read_pair(r, at, (uint32_t)step);
    return read_single(r, at, &name, (uint32_t)step);
}

static int read_rank(struct dp_draft *draft, const struct place *at, int rank)
{
    const struct rank_reader r = {draft, draft->s, rank};
    struct place events;
    int err = get_array(at, "events", &events);

    for (size_t i = 0; !err && i < json_array_size(events.value); i++) {
        struct place event = element(&events, i);
        err = read_event(&r, &event);
    }
    dp_draft_end_rank(draft, rank);
    return err;
}

/* ---- all of it ----------------------------------------------------------------------------- */

/* What must be known before the events: ranks, slots, placement. */
static int place(const struct place *file, const struct place *ranks, struct dp_draft *draft,
                 const int *order, int *group_rank)
{
    struct place slots = member(file, "slots");
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

static int read_ranks(const struct place *file, const struct place *ranks, struct dp_draft *draft)
{
    int count = draft->spec.ranks, err;
    int *order = calloc(2 * (size_t)count, sizeof(*order)), *group_rank = order + count;

    if (!order)
        return dp_fail(DP_ENOMEM, "no memory for %d ranks", count);
    err = read_order(ranks, count, order);
    if (!err)
        err = place(file, ranks, draft, order, group_rank);
    for (int rank = 0; rank < count && !err; rank++) {
        struct place at = element(ranks, (size_t)order[rank]);
        err = read_rank(draft, &at, rank);
    }
    free(order);
    return err;
}

static int read_file(const struct place *file, struct dp_draft *draft)
{
    struct place ranks;
    int err = json_is_object(file->value) ? read_spec(file, draft)
                                          : expected(file, "a trace: {\"algo\": ...}");

    if (!err)
        err = get_array(file, "ranks", &ranks);
    if (!err && json_array_size(ranks.value) != (size_t)draft->spec.ranks)
        err = dp_fail(DP_EINVAL, "ranks: a list of %zu, expected P, %d",
                      json_array_size(ranks.value), draft->spec.ranks);
    return err ? err : read_ranks(file, &ranks, draft);
}

int dp_read_json(const char *text, size_t len, struct dp_draft *draft)
{
    json_error_t error;
    json_t *value = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    struct place file = {.value = value};
    int err;

    if (!value)
        return dp_fail(DP_EINVAL, "line %d, column %d: %s; expected JSON", error.line,
                       error.column, error.text);
    err = read_file(&file, draft);
    json_decref(value);
    return err;
}
