/* SPDX-License-Identifier: Apache-2.0
 *
 * pytorch.c - the lists of torch.distributed.pipelining, read and written: a row a rank, a cell an
 * action, empty while the rank waits.
 *
 *      0F0     forward of stage 0 on micro-batch 0      0B0   full backward
 *      0I0     backward for the input                   0W0   weight part
 *      (0F7;7B3)OVERLAP_F_B                             a forward and a backward, overlapped
 *      0SEND_F0 1RECV_F0 1SEND_B0 0RECV_B0              messages
 *      0UNSHARD 0RESHARD 0REDUCE_GRAD                   of sharded parameters
 *
 * A rank's slots are the stages that its row computes, in their order. Messages are looked at and
 * not taken over: dp_schedule_add_messages places them anew, so that they pass the checker. Actions
 * of sharded parameters have no meaning here and are passed over.
 *
 * Older lists call the parts of a backward B and W, and all of it BW. There a B that has a W of the
 * same stage and micro-batch is the input's part.
 *
 * Source: torch/distributed/pipelining/schedules.py, _Action and _load_csv.
 */
#include "base/array.h"
#include "base/fail.h"
#include "schedule/build.h"
#include "schedule/format.h"
#include "schedule/internal.h"

#include <stdlib.h>
#include <string.h>

static const char pair_name[] = "OVERLAP_F_B";

enum what { COMPUTE, MESSAGE, PASSED_OVER };

/* A name that begins with another stands before it. */
static const struct action_name {
    const char *name;
    enum what what;
    enum dp_op_kind kind; /* of a message: the compute that it belongs to */
} action_names[] = {
    {"SEND_F", MESSAGE, DP_OP_F},
    {"RECV_F", MESSAGE, DP_OP_F},
    {"SEND_B", MESSAGE, DP_OP_B},
    {"RECV_B", MESSAGE, DP_OP_B},
    {"UNSHARD", PASSED_OVER, DP_OP_NONE},
    {"RESHARD", PASSED_OVER, DP_OP_NONE},
    {"REDUCE_GRAD", PASSED_OVER, DP_OP_NONE},
    {"BW", COMPUTE, DP_OP_B},
    {"F", COMPUTE, DP_OP_F},
    {"B", COMPUTE, DP_OP_B},
    {"I", COMPUTE, DP_OP_I},
    {"W", COMPUTE, DP_OP_W},
};

struct action {
    enum what what;
    enum dp_op_kind kind;
    bool whole; /* BW */
    bool pair;  /* the first of two that overlap */
    uint32_t stage, mb;
    int cell;   /* its place in the row, from 1 */
};

/* The actions of a row, and its stages in order. */
struct row {
    struct action *actions;
    size_t count, room;
    uint32_t stages[DP_MAX_SLOTS];
    int held;
    size_t computes;
    int line;
};

struct reader {
    const char *at, *end;
    struct row *rows;
    size_t count, room;
    size_t blank; /* rows without an action at the end */
};

/* ---- cells ----------------------------------------------------------------------------------- */

struct cell {
    const char *text;
    size_t len;
    int line, number;
};

static int bad(const struct cell *c, const char *expected)
{
    return dp_fail(DP_EINVAL, "line %d, cell %d: '%.*s', expected %s", c->line, c->number,
                   c->len > 40 ? 40 : (int)c->len, c->text, expected);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Without blanks, and without the quotation marks that some programs put around a cell. */
static struct cell trimmed(struct cell c)
{
    while (c.len && is_blank(*c.text))
        c.text++, c.len--;
    while (c.len && is_blank(c.text[c.len - 1]))
        c.len--;
    if (c.len > 1 && *c.text == '"' && c.text[c.len - 1] == '"')
        c.text++, c.len -= 2;
    return c;
}

static bool take_number(struct cell *c, uint32_t most, uint32_t *out)
{
    uint64_t value = 0;
    size_t digits = 0;

    for (; digits < c->len && c->text[digits] >= '0' && c->text[digits] <= '9'; digits++)
        if ((value = 10 * value + (uint64_t)(c->text[digits] - '0')) > most)
            return false;
    c->text += digits;
    c->len -= digits;
    *out = (uint32_t)value;
    return digits > 0;
}

static const struct action_name *take_name(struct cell *c)
{
    for (size_t i = 0; i < sizeof(action_names) / sizeof(action_names[0]); i++) {
        const size_t len = strlen(action_names[i].name);
        if (c->len < len || memcmp(c->text, action_names[i].name, len))
            continue;
        c->text += len;
        c->len -= len;
        return &action_names[i];
    }
    return NULL;
}

static int hold_stage(struct row *r, uint32_t stage, const struct cell *c)
{
    int at = 0;

    while (at < r->held && r->stages[at] < stage)
        at++;
    if (at < r->held && r->stages[at] == stage)
        return 0;
    if (r->held == DP_MAX_SLOTS)
        return dp_fail(DP_EINVAL, "line %d, cell %d: stage %u besides %d others, expected no more on "
                       "one rank", c->line, c->number, stage, r->held);
    memmove(r->stages + at + 1, r->stages + at, (size_t)(r->held - at) * sizeof(*r->stages));
    r->stages[at] = stage;
    r->held++;
    return 0;
}

static int add_action(struct row *r, const struct cell *whole, struct action action)
{
    struct action *more =
        dp_array_grow(r->actions, &r->room, r->count + 1, sizeof(*r->actions));

    if (!more)
        return dp_fail(DP_ENOMEM, "no memory for the actions of line %d", whole->line);
    r->actions = more;
    r->actions[r->count++] = action;
    if (action.what != COMPUTE)
        return 0;
    r->computes++;
    return hold_stage(r, action.stage, whole);
}

/* "0F0"; pair: it is the first of two. */
static int read_action(struct row *r, const struct cell *whole, struct cell c, bool pair)
{
    static const char expected[] = "an action such as 0F0, 0I1, 0W1, 1B2, 1RECV_F0 or "
                                   "(0F7;7B3)OVERLAP_F_B";
    struct action a = {.pair = pair, .cell = whole->number};
    const struct action_name *name = NULL;

    c = trimmed(c);
    if (take_number(&c, INT32_MAX, &a.stage))
        name = take_name(&c);
    if (!name)
        return bad(whole, expected);
    a.what = name->what;
    a.kind = name->kind;
    a.whole = !strcmp(name->name, "BW");
    const bool numbered = take_number(&c, DP_MAX_MB, &a.mb);
    if (c.len || (!numbered && a.what != PASSED_OVER))
        return bad(whole, expected);
    return a.what == PASSED_OVER ? 0 : add_action(r, whole, a);
}

/* "(0F7;7B3)OVERLAP_F_B" */
static int read_pair(struct row *r, const struct cell *whole)
{
    static const char expected[] = "a forward and a backward, as (0F7;7B3)OVERLAP_F_B";
    const char *close = memchr(whole->text, ')', whole->len);
    const char *middle = memchr(whole->text, ';', whole->len);
    const size_t before = r->count;

    if (!close || !middle || middle > close)
        return bad(whole, expected);
    const size_t left = (size_t)(whole->text + whole->len - close - 1);
    if (left != sizeof(pair_name) - 1 || memcmp(close + 1, pair_name, left))
        return bad(whole, expected);
    struct cell first = {whole->text + 1, (size_t)(middle - whole->text - 1), 0, 0};
    struct cell second = {middle + 1, (size_t)(close - middle - 1), 0, 0};
    int err = read_action(r, whole, first, true);
    if (!err)
        err = read_action(r, whole, second, false);
    if (!err && (r->count != before + 2 || r->actions[before].kind != DP_OP_F ||
                 r->actions[before + 1].kind != DP_OP_B ||
                 r->actions[before].what != COMPUTE || r->actions[before + 1].what != COMPUTE))
        err = bad(whole, expected);
    return err;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static int slot_of(const struct row *r, uint32_t stage)
{
    int at = 0;

    while (at < r->held && r->stages[at] != stage)
        at++;
    return at;
}

/* What a rank computes of each (slot, mb), as bits of 1 << kind. A micro-batch has at least one
 * compute, so there are fewer of them than computes. */
struct seen {
    uint8_t *bits;
    size_t mbs;
};

enum { SEEN_F = 1, SEEN_B = 2, SEEN_I = 4, SEEN_W = 8 };

static uint8_t bit_of(const struct action *a)
{
    return a->kind == DP_OP_F   ? SEEN_F
           : a->kind == DP_OP_B ? SEEN_B
           : a->kind == DP_OP_I ? SEEN_I
                                : SEEN_W;
}

static int fail_action(const struct row *r, const struct action *a, const char *expected)
{
    return dp_fail(DP_EINVAL, "line %d, cell %d: micro-batch %u of stage %u, expected %s", r->line,
                   a->cell, a->mb, a->stage, expected);
}

static int mark(const struct row *r, struct seen *seen)
{
    seen->mbs = r->computes;
    seen->bits = calloc((size_t)r->held * seen->mbs + 1, 1);
    if (!seen->bits)
        return dp_fail(DP_ENOMEM, "no memory for the actions of line %d", r->line);
    for (size_t i = 0; i < r->count; i++) {
        const struct action *a = &r->actions[i];
        if (a->mb >= seen->mbs)
            return fail_action(r, a, "a number below that of the row's computes");
        if (a->what == COMPUTE)
            seen->bits[(size_t)slot_of(r, a->stage) * seen->mbs + a->mb] |= bit_of(a);
    }
    return 0;
}

/* Messages belong to computes of the row; a B beside a W is the input's part. */
static int check_row(struct row *r)
{
    struct seen seen = {0};
    int err = mark(r, &seen);

    for (size_t i = 0; i < r->count && !err; i++) {
        struct action *a = &r->actions[i];
        const int slot = slot_of(r, a->stage);
        const uint8_t is = slot < r->held ? seen.bits[(size_t)slot * seen.mbs + a->mb] : 0;
        if (a->what == MESSAGE && !(is & (a->kind == DP_OP_F ? SEEN_F : SEEN_B | SEEN_I)))
            err = fail_action(r, a, "a message of what this rank computes");
        if (a->what == COMPUTE && a->kind == DP_OP_B && !a->whole && is & SEEN_W)
            a->kind = DP_OP_I;
    }
    free(seen.bits);
    return err;
}

static int add_row(struct reader *r, int line)
{
    struct row *more = dp_array_grow(r->rows, &r->room, r->count + 1, sizeof(*r->rows));

    if (!more)
        return dp_fail(DP_ENOMEM, "no memory for %zu ranks", r->count + 1);
    r->rows = more;
    r->rows[r->count++] = (struct row){.line = line};
    return 0;
}

static int read_row(struct reader *r, const char *line_end, int line)
{
    int err = add_row(r, line);

    if (err)
        return err;
    for (int number = 1; !err && r->at <= line_end; number++) {
        const char *comma = memchr(r->at, ',', (size_t)(line_end - r->at));
        const char *end = comma ? comma : line_end;
        struct row *row = &r->rows[r->count - 1];
        const struct cell c =
            trimmed((struct cell){r->at, (size_t)(end - r->at), line, number});
        if (c.len)
            err = *c.text == '(' ? read_pair(row, &c) : read_action(row, &c, c, false);
        r->at = end + 1;
    }
    if (!err)
        err = check_row(&r->rows[r->count - 1]);
    r->blank = r->rows[r->count - 1].count ? 0 : r->blank + 1;
    return err;
}

static int read_rows(struct reader *r)
{
    int err = 0;

    for (int line = 1; r->at < r->end && !err; line++) {
        const char *line_end = memchr(r->at, '\n', (size_t)(r->end - r->at));
        line_end = line_end ? line_end : r->end;
        err = read_row(r, line_end, line);
        r->at = line_end + 1;
    }
    r->count -= r->blank; /* empty lines at the end are no ranks */
    if (!err && !r->count)
        err = dp_fail(DP_EINVAL, "no action in it, expected a row for each rank, as 0F0,0F1,,0B0");
    return err;
}

/* ---- the schedule ---------------------------------------------------------------------------- */

static void describe(const struct reader *r, struct dp_schedule_spec *spec)
{
    uint32_t most = 0;

    *spec = (struct dp_schedule_spec){
        .kind = DP_SCHEDULE_USER, .ranks = (int)r->count, .forward_only = true};
    for (size_t i = 0; i < r->count; i++)
        for (size_t k = 0; k < r->rows[i].count; k++) {
            const struct action *a = &r->rows[i].actions[k];
            if (a->what != COMPUTE)
                continue;
            most = a->mb > most ? a->mb : most;
            spec->forward_only &= a->kind == DP_OP_F;
        }
    spec->microbatches = (int)most + 1;
}

static int place(const struct reader *r, struct dp_draft *draft)
{
    size_t slots = 0;

    for (size_t i = 0; i < r->count; i++)
        slots += (size_t)r->rows[i].held;
    draft->first_slot = calloc(r->count + 1, sizeof(*draft->first_slot));
    draft->slots = calloc(slots + 1, sizeof(*draft->slots));
    if (!draft->first_slot || !draft->slots)
        return dp_fail(DP_ENOMEM, "no memory for %zu ranks", r->count);
    for (size_t i = 0; i < r->count; i++) {
        const size_t first = draft->first_slot[i];
        for (int at = 0; at < r->rows[i].held; at++)
            draft->slots[first + (size_t)at] =
                (struct dp_slot){.stage = (int32_t)r->rows[i].stages[at], .phase = at,
                                 .location = at};
        draft->first_slot[i + 1] = first + (size_t)r->rows[i].held;
    }
    int err = dp_draft_place(draft);
    return err ? dp_fail(err, "%s", dp_last_error()) : 0;
}

static void add_ops(const struct row *r, struct dp_draft *draft)
{
    for (size_t i = 0; i < r->count; i++) {
        const struct action *a = &r->actions[i];
        if (a->what == COMPUTE)
            dp_op_list_add(&draft->ops,
                           (struct dp_op){.kind = (uint8_t)a->kind,
                                          .flags = a->pair && a[1].kind == DP_OP_B
                                                       ? DP_OP_OVERLAP : 0,
                                          .slot = (uint8_t)slot_of(r, a->stage),
                                          .mb = a->mb});
    }
}

int dp_read_pytorch(const char *text, size_t len, struct dp_draft *draft)
{
    struct reader r = {.at = text, .end = text + len};
    int err = read_rows(&r);

    if (!err) {
        describe(&r, &draft->spec);
        err = place(&r, draft);
    }
    for (size_t i = 0; i < r.count && !err; i++) {
        add_ops(&r.rows[i], draft);
        dp_draft_end_rank(draft, (int)i);
    }
    for (size_t i = 0; i < r.count + r.blank; i++)
        free(r.rows[i].actions);
    free(r.rows);
    return err;
}

/* ---- writing --------------------------------------------------------------------------------- */

#define WHAT_HOLDS_IT "text, json and csv hold every schedule"

/* What the format has no word for. */
static int check_writable(const struct dp_schedule *s)
{
    if (s->streams != 1)
        return dp_fail(DP_EUNSUPPORTED, "a schedule of two streams in PyTorch's format, expected one: "
                       "there a stage is on one rank; " WHAT_HOLDS_IT);
    if (s->skip_count)
        return dp_fail(DP_EUNSUPPORTED, "skip connections in PyTorch's format, expected none; "
                       WHAT_HOLDS_IT);
    for (size_t i = 0; i < s->first_slot[s->ranks]; i++) {
        const size_t first = s->first_slot[dp_schedule_rank_of(s, i)];
        if (s->slots[i].location != (int32_t)(i - first))
            return dp_fail(DP_EUNSUPPORTED, "stages that share parameters in PyTorch's format, "
                           "expected each to have its own; " WHAT_HOLDS_IT);
    }
    for (size_t i = 0; i < s->first[s->ranks]; i++) {
        const enum dp_op_kind kind = (enum dp_op_kind)s->ops[i].kind;
        if (kind == DP_OP_RECOMPUTE || kind == DP_OP_EVICT || kind == DP_OP_FETCH)
            return dp_fail(DP_EUNSUPPORTED,
                           "%s in PyTorch's format, expected F, B, I and W; " WHAT_HOLDS_IT,
                           dp_op_kind_name(kind));
    }
    return 0;
}

static void add_compute(struct dp_text *t, const struct dp_schedule *s, int rank, struct dp_op op)
{
    dp_text_addf(t, "%d%s%u", dp_schedule_slot(s, rank, op.slot)->stage,
                 dp_op_kind_name((enum dp_op_kind)op.kind), op.mb);
}

static void write_rank(struct dp_text *t, const struct dp_schedule *s, int rank)
{
    const struct dp_op *ops = dp_schedule_ops(s, rank);
    const size_t count = dp_schedule_count(s, rank);
    bool any = false;

    for (size_t i = 0; i < count; i++) {
        if (!dp_op_is_compute((enum dp_op_kind)ops[i].kind))
            continue;
        dp_text_adds(t, any ? "," : "");
        any = true;
        dp_text_adds(t, ops[i].flags & DP_OP_OVERLAP ? "(" : "");
        add_compute(t, s, rank, ops[i]);
        if (!(ops[i].flags & DP_OP_OVERLAP))
            continue;
        dp_text_adds(t, ";");
        add_compute(t, s, rank, ops[++i]);
        dp_text_addf(t, ")%s", pair_name);
    }
    dp_text_adds(t, "\n");
}

/* A row is that of a rank of the communicator. */
int dp_write_pytorch(const struct dp_schedule *s, struct dp_text *t)
{
    int err = check_writable(s);

    for (int group = 0; group < s->ranks && !err; group++)
        for (int rank = 0; rank < s->ranks; rank++)
            if (s->group_rank[rank] == group)
                write_rank(t, s, rank);
    return err;
}
