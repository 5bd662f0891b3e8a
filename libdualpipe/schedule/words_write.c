/* SPDX-License-Identifier: Apache-2.0
 *
 * words_write.c - a schedule as words: a line a rank, a word an op.
 *
 *      dualpipe P=4 M=8
 *      rank 0: |1| F0.0 sF0.0 c1 x0.0 F0.1 sF0.1 |2| c1 x0.1 F0.2 rF1.0 c1 F1.0 ...
 */
#include "schedule/form.h"

static void add_word(struct dp_text *t, char separator, const char *word)
{
    dp_text_add(t, &separator, 1);
    dp_text_adds(t, word);
}

static void add_map(struct dp_text *t, const struct dp_schedule *s, char separator)
{
    bool mapped = false;

    for (int rank = 0; rank < s->ranks; rank++)
        mapped |= s->group_rank[rank] != rank;
    if (mapped)
        add_word(t, separator, "map=");
    for (int rank = 0; mapped && rank < s->ranks; rank++)
        dp_text_addf(t, "%s%d", rank ? ":" : "", s->group_rank[rank]);
}

static void add_header(struct dp_text *t, const struct dp_schedule *s, char separator)
{
    dp_text_adds(t, dp_schedule_kind_name(s->kind));
    dp_text_addf(t, "%cP=%d%cM=%d", separator, s->ranks, separator, s->microbatches);
    if (s->kind == DP_SCHEDULE_USER && s->streams != 1)
        dp_text_addf(t, "%cstreams=%d", separator, s->streams);
    if (s->forward_only)
        add_word(t, separator, "forward_only");
    if (s->return_outputs)
        add_word(t, separator, "return_outputs");
    if (!s->overlap)
        add_word(t, separator, "no_overlap");
    add_map(t, s, separator);
    dp_text_adds(t, "\n");
}

/* Which stages a rank holds, where no builder knows it. */
static void add_holds(struct dp_text *t, const struct dp_schedule *s, int rank, char separator)
{
    dp_text_addf(t, "holds%c%d", separator, rank);
    for (int at = 0; at < s->slots_per_rank; at++) {
        const struct dp_slot *slot = dp_schedule_slot(s, rank, at);
        dp_text_addf(t, "%c%d", separator, slot->stage);
        if (slot->stream)
            dp_text_addf(t, "/%d", slot->stream);
    }
    dp_text_adds(t, "\n");
}

/* Write the word that begins at ops[0]; how many ops it took. */
static size_t add_op(struct dp_text *t, const struct dp_op *ops, char separator)
{
    char word[DP_OP_TEXT_LEN];

    add_word(t, separator, dp_op_text(ops[0], word));
    if (!ops[0].overlap)
        return 1;
    dp_text_adds(t, "&");
    dp_text_adds(t, dp_op_text(ops[1], word));
    return 2;
}

static void add_rank(struct dp_text *t, const struct dp_schedule *s, int rank, char separator)
{
    const struct dp_op *ops = dp_schedule_ops(s, rank);
    size_t count = dp_schedule_count(s, rank);
    uint32_t unit = 0;

    dp_text_addf(t, separator == ',' ? "rank,%d" : "rank %d:", rank);
    for (size_t i = 0; i < count;) {
        if (ops[i].unit != unit)
            dp_text_addf(t, "%c|%u|", separator, ops[i].unit);
        unit = ops[i].unit;
        i += add_op(t, ops + i, separator);
    }
    dp_text_adds(t, "\n");
}

void dp_write_words(const struct dp_schedule *s, char separator, struct dp_text *t)
{
    add_header(t, s, separator);
    for (int rank = 0; s->kind == DP_SCHEDULE_USER && rank < s->ranks; rank++)
        add_holds(t, s, rank, separator);
    for (int rank = 0; rank < s->ranks; rank++)
        add_rank(t, s, rank, separator);
}
