/* SPDX-License-Identifier: Apache-2.0
 *
 * text.c - text and CSV, written and read: lines of tokens between blanks or commas; '#' begins a
 * comment.
 *
 *      KIND P=4 M=8 [streams=2] [forward_only] [return_outputs] [no_overlap] [slack=1]
 *           [map=0:2:1:3]
 *      skip enc/a 0 3       a skip connection: namespace/name or name, from stage, to stage
 *      holds 0: 0 3/1 4@0   stages of rank 0's slots, /1: of stream 1, @0: with the parameters of
 *                           location 0; only for kinds user and async
 *      rank 0: |1| F0.0 sF0.0 c1 F0.3&B1.1 ...
 *      ... goes on, as long as a line begins with an op
 */
#include "base/fail.h"
#include "schedule/build.h"
#include "schedule/format.h"
#include "schedule/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct token {
    const char *text;
    int len;
};

struct reader {
    const char *at, *end;   /* what is left of the text */
    const char *line_end;   /* what is left of the line: at .. line_end */
    int line;               /* its number, from 1 */
    struct dp_draft *draft;
    int held;               /* ranks whose stages have been read */
    int rank;               /* whose ops are being read; -1: none yet */
    uint32_t unit;
};

#define BAD(r, ...) dp_fail_at((r)->line, __VA_ARGS__)
#define EXPECTED(r, w, what)                                                                       \
    BAD((r), "'%.*s', expected %s", (w).len > 40 ? 40 : (w).len, (w).text, what)

static int dp_fail_at(int line, const char *fmt, ...) DP_PRINTF(2, 3);

static int dp_fail_at(int line, const char *fmt, ...)
{
    char sentence[512];
    va_list args;

    va_start(args, fmt);
    vsnprintf(sentence, sizeof(sentence), fmt, args);
    va_end(args);
    return dp_fail(DP_EINVAL, "line %d: %s", line, sentence);
}

/* Add the line to the last error. */
static int fail_here(const struct reader *r, int err)
{
    return dp_fail(err, "line %d: %s", r->line, dp_last_error());
}

/* ---- lines and tokens ------------------------------------------------------------------------ */

static bool next_line(struct reader *r)
{
    if (r->line && r->line_end == r->end)
        return false;
    r->at = r->line ? r->line_end + 1 : r->at;
    r->line_end = memchr(r->at, '\n', (size_t)(r->end - r->at));
    if (!r->line_end)
        r->line_end = r->end;
    r->line++;
    return true;
}

static bool separates(char c)
{
    return c == ' ' || c == ',' || c == '\t' || c == '\r';
}

static bool next_token(struct reader *r, struct token *w)
{
    while (r->at < r->line_end && separates(*r->at))
        r->at++;
    w->text = r->at;
    while (r->at < r->line_end && !separates(*r->at) && *r->at != '#')
        r->at++;
    w->len = (int)(r->at - w->text);
    return w->len > 0;
}

static bool token_is(struct token w, const char *text)
{
    return (size_t)w.len == strlen(text) && !memcmp(w.text, text, (size_t)w.len);
}

/* Take a number off the front of w; false if there is none, or one past `most`. */
static bool take_number(struct token *w, uint32_t most, uint32_t *number)
{
    uint64_t value = 0;
    int digits = 0;

    for (; digits < w->len && w->text[digits] >= '0' && w->text[digits] <= '9'; digits++)
        if ((value = 10 * value + (uint64_t)(w->text[digits] - '0')) > most)
            return false;
    w->text += digits;
    w->len -= digits;
    *number = (uint32_t)value;
    return digits > 0;
}

static bool take_text(struct token *w, const char *text)
{
    size_t len = strlen(text);

    if ((size_t)w->len < len || memcmp(w->text, text, len))
        return false;
    w->text += len;
    w->len -= (int)len;
    return true;
}

/* ---- the header ------------------------------------------------------------------------------ */

static int read_kind(struct reader *r, struct token w)
{
    char name[32] = "";

    memcpy(name, w.text, (size_t)w.len < sizeof(name) ? (size_t)w.len : sizeof(name) - 1);
    int err = dp_schedule_kind_find(name, &r->draft->spec.kind);
    return err ? fail_here(r, err) : 0;
}

/* map=2:0:1, the group rank of each pipeline rank; P comes before it. */
static int read_map(struct reader *r, struct token w)
{
    struct token whole = w;
    uint32_t ranks = (uint32_t)r->draft->spec.ranks, group;
    int *group_rank = calloc(ranks + 1, sizeof(*group_rank)), err = 0;

    if (!group_rank)
        return dp_fail(DP_ENOMEM, "no memory for %u ranks", ranks);
    for (uint32_t rank = 0; rank < ranks && !err; rank++)
        if ((rank && !take_text(&w, ":")) || !take_number(&w, INT32_MAX, &group))
            err = EXPECTED(r, whole, "a rank for each of P, with ':' between them");
        else
            group_rank[rank] = (int)group;
    if (!err && (w.len || !ranks))
        err = EXPECTED(r, whole, "P before it, and as many ranks");
    if (!err && (err = dp_draft_map(r->draft, group_rank)))
        err = fail_here(r, err);
    free(group_rank);
    return err;
}

static int read_count(struct reader *r, struct token w, int *count)
{
    struct token whole = w;
    uint32_t number;

    if (!take_number(&w, INT32_MAX, &number) || w.len)
        return EXPECTED(r, whole, "a whole number");
    *count = (int)number;
    return 0;
}

static int read_attribute(struct reader *r, struct token w)
{
    struct dp_schedule_spec *spec = &r->draft->spec;

    if (take_text(&w, "P="))
        return spec->rank_map ? EXPECTED(r, w, "P before map") : read_count(r, w, &spec->ranks);
    if (take_text(&w, "M="))
        return read_count(r, w, &spec->microbatches);
    if (take_text(&w, "streams="))
        return read_count(r, w, &r->draft->streams);
    if (take_text(&w, "v="))
        return read_count(r, w, &spec->virtual_stages);
    if (take_text(&w, "slack="))
        return read_count(r, w, &spec->slack);
    if (take_text(&w, "map="))
        return spec->rank_map ? EXPECTED(r, w, "one map") : read_map(r, w);
    if (token_is(w, "forward_only"))
        spec->forward_only = true;
    else if (token_is(w, "return_outputs"))
        spec->return_outputs = true;
    else if (token_is(w, "no_overlap"))
        spec->no_overlap = true;
    else
        return EXPECTED(r, w, "P=, M=, v=, streams=, slack=, map=, forward_only, return_outputs or "
                              "no_overlap");
    return 0;
}

static int read_header(struct reader *r)
{
    struct dp_draft *draft = r->draft;
    struct token w;
    int err;

    do
        if (!next_line(r))
            return BAD(r, "the end, expected a schedule's kind, P= and M=");
    while (!next_token(r, &w));
    err = read_kind(r, w);
    while (!err && next_token(r, &w))
        err = read_attribute(r, w);
    if (err)
        return err;
    if (draft->spec.ranks < 1)
        return BAD(r, "P=%d, expected the number of ranks", draft->spec.ranks);
    if (draft->streams < 1 || draft->streams > 2)
        return BAD(r, "streams=%d, expected 1 or 2", draft->streams);
    /* A rank has a line: refuse a number of ranks that the text has no room for. */
    if (draft->spec.ranks > r->end - r->at)
        return BAD(r, "P=%d, expected as many lines below", draft->spec.ranks);
    return 0;
}

/* ---- the stages of each rank ----------------------------------------------------------------- */

static int read_stage(struct reader *r, struct token w, int rank, int at)
{
    struct dp_draft *draft = r->draft;
    struct token whole = w;
    uint32_t stage, stream = 0, location = (uint32_t)at;

    if (!take_number(&w, INT32_MAX, &stage) ||
        (take_text(&w, "/") && !take_number(&w, 1, &stream)) ||
        (take_text(&w, "@") && !take_number(&w, INT32_MAX, &location)) || w.len)
        return EXPECTED(r, whole, "a stage, stage/stream or stage@location");
    if (at >= DP_MAX_SLOTS)
        return BAD(r, "rank %d holds stage %u besides %d others, expected no more", rank, stage,
                   at);
    size_t count = draft->first_slot[rank] + (size_t)at;
    struct dp_slot *slots = realloc(draft->slots, (count + 1) * sizeof(*slots));
    if (!slots)
        return dp_fail(DP_ENOMEM, "no memory for the stages of %d ranks", rank);
    draft->slots = slots;
    slots[count] =
        (struct dp_slot){.stage = (int32_t)stage, .stream = (int32_t)stream, .phase = at,
                         .location = (int32_t)location};
    return 0;
}

/* "0:" or "0" */
static int read_rank_number(struct reader *r, int rank)
{
    struct token w, whole;
    uint32_t number;

    if (!next_token(r, &w))
        return BAD(r, "the line ends, expected 'rank %d:'", rank);
    whole = w;
    if (!take_number(&w, INT32_MAX, &number) || (take_text(&w, ":"), w.len) || (int)number != rank)
        return BAD(r, "'%.*s', expected rank %d", whole.len > 40 ? 40 : whole.len, whole.text,
                   rank);
    return 0;
}

static int new_first_slot(struct dp_draft *draft)
{
    draft->first_slot = calloc((size_t)draft->spec.ranks + 1, sizeof(*draft->first_slot));
    return draft->first_slot ? 0 : dp_fail(DP_ENOMEM, "no memory for %d ranks", draft->spec.ranks);
}

static int read_holds(struct reader *r, int rank)
{
    struct token w;
    int at = 0, err = read_rank_number(r, rank);

    if (!err && rank >= r->draft->spec.ranks)
        err = BAD(r, "rank %d, expected no more than %d", rank, r->draft->spec.ranks);
    if (!err && !r->draft->first_slot)
        err = new_first_slot(r->draft);
    while (!err && next_token(r, &w))
        err = read_stage(r, w, rank, at++);
    if (!err)
        r->draft->first_slot[rank + 1] = r->draft->first_slot[rank] + (size_t)at;
    return err;
}

/* ---- skips ----------------------------------------------------------------------------------- */

static bool copy_word(const char *text, int len, bool may_be_empty, char word[DP_SKIP_NAME_LEN])
{
    if (!dp_skip_word(text, (size_t)len, may_be_empty))
        return false;
    memcpy(word, text, (size_t)len);
    return true;
}

/* "name" or "namespace/name". */
static int read_title(struct reader *r, struct dp_skip *skip)
{
    struct token w;

    if (!next_token(r, &w))
        return BAD(r, "the line ends, expected 'skip NAME FROM TO'");
    const char *slash = memchr(w.text, '/', (size_t)w.len);
    const int space = slash ? (int)(slash - w.text) : 0, name = slash ? space + 1 : 0;
    if (copy_word(w.text, space, true, skip->space) &&
        copy_word(w.text + name, w.len - name, false, skip->name))
        return 0;
    return EXPECTED(r, w, "a name, or namespace/name, of letters, digits, '_', '.' and '-'");
}

static int read_end_of_skip(struct reader *r, int32_t *stage)
{
    struct token w, whole;
    uint32_t number;

    if (!next_token(r, &w))
        return BAD(r, "the line ends, expected 'skip NAME FROM TO'");
    whole = w;
    if (!take_number(&w, INT32_MAX, &number) || w.len)
        return EXPECTED(r, whole, "a stage");
    *stage = (int32_t)number;
    return 0;
}

static int read_skip(struct reader *r)
{
    struct dp_skip skip = {.from = 0};
    struct token w;
    int err = read_title(r, &skip);

    if (!err)
        err = read_end_of_skip(r, &skip.from);
    if (!err)
        err = read_end_of_skip(r, &skip.to);
    if (!err && next_token(r, &w))
        err = EXPECTED(r, w, "the end of the line");
    return err ? err : dp_draft_add_skip(r->draft, &skip);
}

/* ---- ops ------------------------------------------------------------------------------------- */

/* The kind whose letters w begins with; of two that do, the one with more letters. */
static bool take_kind(struct token *w, enum dp_op_kind *kind)
{
    size_t longest = 0;

    for (int k = DP_OP_F; k < DP_OP_KINDS; k++) {
        const char *letters = dp_op_token((enum dp_op_kind)k);
        size_t len = strlen(letters);
        if (len > longest && (size_t)w->len >= len && !memcmp(w->text, letters, len)) {
            longest = len;
            *kind = (enum dp_op_kind)k;
        }
    }
    w->text += longest;
    w->len -= (int)longest;
    return longest > 0;
}

/* Take "F0.3", "c4", "R1", "ev0.3" off the front of w. */
static bool take_op(struct token *w, struct dp_op *op)
{
    enum dp_op_kind kind = DP_OP_NONE;
    uint32_t slot = 0, mb = 0, argument = 0;

    if (!take_kind(w, &kind))
        return false;
    if (kind != DP_OP_COMMIT && !take_number(w, DP_MAX_SLOTS - 1, &slot))
        return false;
    if (dp_op_has_mb(kind) && !take_text(w, "."))
        return false;
    if ((dp_op_has_mb(kind) || kind == DP_OP_COMMIT) && !take_number(w, DP_MAX_MB, &mb))
        return false;
    if (dp_op_is_skip(kind) && take_text(w, ":") &&
        !take_number(w, DP_MAX_ARGUMENT, &argument))
        return false;
    *op = (struct dp_op){.kind = (uint8_t)kind, .slot = (uint8_t)slot, .mb = mb,
                         .flags = dp_op_flags(0, argument)};
    return true;
}

/* Does the schedule have the slot and the micro-batch that the op names? */
static int check_op(struct reader *r, struct token whole, struct dp_op op)
{
    const struct dp_schedule *s = r->draft->s;

    if (dp_op_is_skip((enum dp_op_kind)op.kind) && (int)dp_op_argument(op) >= s->skip_count)
        return BAD(r, "'%.*s', expected the number of one of %d skips", whole.len, whole.text,
                   s->skip_count);
    int slots = dp_schedule_slot_count(s, r->rank);

    if (op.kind != DP_OP_COMMIT && !slots)
        return BAD(r, "'%.*s', expected no op: rank %d holds no stage", whole.len, whole.text,
                   r->rank);
    if (op.kind != DP_OP_COMMIT && (int)op.slot >= slots)
        return BAD(r, "'%.*s', expected slot 0 to %d", whole.len, whole.text, slots - 1);
    if (op.kind != DP_OP_COMMIT && (int)op.mb >= s->mb_per_stream)
        return BAD(r, "'%.*s', expected micro-batch 0 to %d", whole.len, whole.text,
                   s->mb_per_stream - 1);
    op.flags |= dp_op_flags(r->unit, 0);
    dp_op_list_add(&r->draft->ops, op);
    return 0;
}

static int read_unit(struct reader *r, struct token w)
{
    struct token whole = w;

    take_text(&w, "|");
    if (!take_number(&w, DP_MAX_UNIT, &r->unit) || !token_is(w, "|"))
        return EXPECTED(r, whole, "a section of the list, |0| to |63|");
    return 0;
}

static int read_op(struct reader *r, struct token w)
{
    struct token whole = w;
    struct dp_op first, second;
    bool pair = false;

    if (w.text[0] == '|')
        return read_unit(r, w);
    bool good = take_op(&w, &first);
    if (good && (pair = take_text(&w, "&")))
        good = first.kind == DP_OP_F && take_op(&w, &second) && second.kind == DP_OP_B;
    if (!good || w.len)
        return EXPECTED(r, whole, "an op such as F0.3, rB1.2, c4, R1 or F0.3&B1.1");
    first.flags |= pair ? DP_OP_OVERLAP : 0;
    int err = check_op(r, whole, first);
    return err || !pair ? err : check_op(r, whole, second);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int place(struct reader *r)
{
    if (r->held && r->held < r->draft->spec.ranks)
        return BAD(r, "ranks, expected 'holds %d:' first", r->held);
    int err = dp_draft_place(r->draft);
    return err ? fail_here(r, err) : 0;
}

/* The first line of a rank: its number. The first one of all ends the placement. */
static int begin_rank(struct reader *r)
{
    int err = r->rank < 0 ? place(r) : 0;

    if (!err)
        err = read_rank_number(r, r->rank + 1);
    if (err)
        return err;
    if (++r->rank >= r->draft->s->ranks)
        return BAD(r, "rank %d, expected no more than %d ranks", r->rank, r->draft->s->ranks);
    r->unit = 0;
    return 0;
}

static int read_ops(struct reader *r)
{
    struct token w;
    int err = 0;

    while (!err && next_token(r, &w))
        err = read_op(r, w);
    dp_draft_end_rank(r->draft, r->rank);
    return err;
}

static int read_line(struct reader *r)
{
    const char *start = r->at;
    struct token w;
    int err = 0;

    if (!next_token(r, &w))
        return 0;
    if (token_is(w, "skip"))
        return r->rank < 0 ? read_skip(r) : EXPECTED(r, w, "only before the ranks");
    if (token_is(w, "holds")) {
        if (r->rank >= 0 || !dp_placed_by_file(r->draft->spec.kind))
            return EXPECTED(r, w, "only before the ranks of a schedule of kind user or "
                            "async");
        return read_holds(r, r->held++);
    }
    if (token_is(w, "rank"))
        err = begin_rank(r);
    else if (r->rank < 0)
        err = EXPECTED(r, w, "'rank 0:'");
    else
        r->at = start;
    return err ? err : read_ops(r);
}

int dp_read_text(const char *text, size_t len, struct dp_draft *draft)
{
    struct reader r = {.at = text, .end = text + len, .draft = draft, .rank = -1};
    int err = read_header(&r);

    while (!err && next_line(&r))
        err = read_line(&r);
    if (!err && (!draft->s || r.rank + 1 < draft->s->ranks))
        err = BAD(&r, "the end, expected 'rank %d:'", r.rank + 1);
    return err;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void add_token(struct dp_text *t, char separator, const char *token)
{
    dp_text_add(t, &separator, 1);
    dp_text_adds(t, token);
}

static void add_map(struct dp_text *t, const struct dp_schedule *s, char separator)
{
    bool mapped = false;

    for (int rank = 0; rank < s->ranks; rank++)
        mapped |= s->group_rank[rank] != rank;
    if (mapped)
        add_token(t, separator, "map=");
    for (int rank = 0; mapped && rank < s->ranks; rank++)
        dp_text_addf(t, "%s%d", rank ? ":" : "", s->group_rank[rank]);
}

static void add_header(struct dp_text *t, const struct dp_schedule *s, char separator)
{
    dp_text_adds(t, dp_schedule_kind_name(s->kind));
    dp_text_addf(t, "%cP=%d%cM=%d", separator, s->ranks, separator, s->microbatches);
    if (dp_placed_by_file(s->kind) && s->streams != 1)
        dp_text_addf(t, "%cstreams=%d", separator, s->streams);
    if (s->kind == DP_SCHEDULE_INTERLEAVED)
        dp_text_addf(t, "%cv=%d", separator, s->max_slots);
    if (s->forward_only)
        add_token(t, separator, "forward_only");
    if (s->return_outputs)
        add_token(t, separator, "return_outputs");
    if (!s->overlap)
        add_token(t, separator, "no_overlap");
    if (s->slack)
        dp_text_addf(t, "%cslack=%d", separator, s->slack);
    add_map(t, s, separator);
    dp_text_adds(t, "\n");
}

/* Which stages a rank holds, of a schedule without a builder. */
static void add_holds(struct dp_text *t, const struct dp_schedule *s, int rank, char separator)
{
    dp_text_addf(t, "holds%c%d", separator, rank);
    for (int at = 0; at < dp_schedule_slot_count(s, rank); at++) {
        const struct dp_slot *slot = dp_schedule_slot(s, rank, at);
        dp_text_addf(t, "%c%d", separator, slot->stage);
        if (slot->stream)
            dp_text_addf(t, "/%d", slot->stream);
        if (slot->location != at)
            dp_text_addf(t, "@%d", slot->location);
    }
    dp_text_adds(t, "\n");
}

/* Write the token that begins at ops[0]. Returns how many ops it stands for. */
static size_t add_op(struct dp_text *t, const struct dp_op *ops, char separator)
{
    char text[DP_OP_TEXT_LEN];

    add_token(t, separator, dp_op_text(ops[0], text));
    if (!(ops[0].flags & DP_OP_OVERLAP))
        return 1;
    dp_text_adds(t, "&");
    dp_text_adds(t, dp_op_text(ops[1], text));
    return 2;
}

static void add_rank(struct dp_text *t, const struct dp_schedule *s, int rank, char separator)
{
    const struct dp_op *ops = dp_schedule_ops(s, rank);
    size_t count = dp_schedule_count(s, rank);
    uint32_t unit = 0;

    dp_text_addf(t, separator == ',' ? "rank,%d" : "rank %d:", rank);
    for (size_t i = 0; i < count;) {
        if (dp_op_unit(ops[i]) != unit)
            dp_text_addf(t, "%c|%u|", separator, dp_op_unit(ops[i]));
        unit = dp_op_unit(ops[i]);
        i += add_op(t, ops + i, separator);
    }
    dp_text_adds(t, "\n");
}

static void add_skip(struct dp_text *t, const struct dp_skip *skip, char separator)
{
    dp_text_addf(t, "skip%c%s%s%s%c%d%c%d\n", separator, skip->space, skip->space[0] ? "/" : "",
                 skip->name, separator, skip->from, separator, skip->to);
}

void dp_write_text(const struct dp_schedule *s, char separator, struct dp_text *t)
{
    add_header(t, s, separator);
    for (int k = 0; k < s->skip_count; k++)
        add_skip(t, &s->skips[k], separator);
    for (int rank = 0; dp_placed_by_file(s->kind) && rank < s->ranks; rank++)
        add_holds(t, s, rank, separator);
    for (int rank = 0; rank < s->ranks; rank++)
        add_rank(t, s, rank, separator);
}
