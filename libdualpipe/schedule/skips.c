/* SPDX-License-Identifier: Apache-2.0
 *
 * skips.c - skip connections of a schedule: are they declared right, where do they begin and end,
 * and the messages that they need.
 *
 *      stage     0    1    2    3         values     0 ------> 2, 1 ------------> 3
 *      skips     a----------'             gradients  2 ------> 0, 3 ------------> 1
 *                     b---------'
 */
#include "base/fail.h"
#include "schedule/build.h"

#include <dualpipe/partition.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the declaration ------------------------------------------------------------------------- */

/* All that is wrong, as one sentence; what there is no room for is counted. */
struct violations {
    const char *unit; /* what from and to count: "stage", "layer" */
    int units;
    char text[800];
    size_t len;
    int count, left_out;
};

static void add(struct violations *v, const char *fmt, ...) DP_PRINTF(2, 3);

static void add(struct violations *v, const char *fmt, ...)
{
    char one[256];
    va_list args;

    va_start(args, fmt);
    vsnprintf(one, sizeof(one), fmt, args);
    va_end(args);
    v->count++;
    if (v->len + strlen(one) + 3 > sizeof(v->text))
        v->left_out++;
    else
        v->len += (size_t)snprintf(v->text + v->len, sizeof(v->text) - v->len, "%s%s",
                                   v->len ? "; " : "", one);
}

enum { TITLE_LEN = 2 * DP_SKIP_NAME_LEN + 4 };

/* 'space/name', as texts have it. */
static const char *title_of(const struct dp_skip *skip, char title[TITLE_LEN])
{
    snprintf(title, TITLE_LEN, "'%s%s%s'", skip->space, skip->space[0] ? "/" : "", skip->name);
    return title;
}

bool dp_skip_word(const char *word, size_t len, bool may_be_empty)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789_.-";
    bool good = len < DP_SKIP_NAME_LEN && (len || may_be_empty);

    for (size_t i = 0; i < len && good; i++)
        good = word[i] && strchr(allowed, word[i]);
    return good;
}

static bool is_word(const char word[DP_SKIP_NAME_LEN], bool may_be_empty)
{
    const size_t len = strnlen(word, DP_SKIP_NAME_LEN);
    return len < DP_SKIP_NAME_LEN && dp_skip_word(word, len, may_be_empty);
}

static void check_one(struct violations *v, const struct dp_skip *skip)
{
    char title[TITLE_LEN];

    title_of(skip, title);
    if (skip->from >= v->units || skip->from < -1)
        add(v, "%s: produced by %s %d, expected 0 to %d", title, v->unit, skip->from, v->units - 1);
    if (skip->to >= v->units || skip->to < -1)
        add(v, "%s: consumed by %s %d, expected 0 to %d", title, v->unit, skip->to, v->units - 1);
    if (skip->from == -1)
        add(v, "%s: consumed by %s %d and never produced", title, v->unit, skip->to);
    if (skip->to == -1)
        add(v, "%s: produced by %s %d and never consumed", title, v->unit, skip->from);
    if (skip->from < 0 || skip->to < 0)
        return;
    if (skip->from == skip->to)
        add(v, "%s: produced and consumed by %s %d", title, v->unit, skip->to);
    if (skip->from > skip->to)
        add(v, "%s: consumed by %s %d before %s %d produces it", title, v->unit, skip->to, v->unit,
            skip->from);
}

/* Two of one name in one namespace. */
static void check_two(struct violations *v, const struct dp_skip *a, const struct dp_skip *b)
{
    char title[TITLE_LEN];

    if (strcmp(a->name, b->name) || strcmp(a->space, b->space))
        return;
    title_of(a, title);
    if (a->from >= 0 && b->from >= 0)
        add(v, "%s: produced twice, by %ss %d and %d (a name is used once in a namespace)", title,
            v->unit, a->from, b->from);
    if (a->to >= 0 && b->to >= 0)
        add(v, "%s: consumed twice, by %ss %d and %d", title, v->unit, a->to, b->to);
}

static int check(const struct dp_skip *skips, int count, int units, const char *unit)
{
    struct violations v = {.unit = unit, .units = units};

    if (count < 0 || count > DP_MAX_SKIPS || (count && !skips))
        return dp_fail_quietly(DP_EINVAL, "skips: %d at %p, expected 0 to %d", count,
                               (const void *)skips, DP_MAX_SKIPS);
    for (int i = 0; i < count; i++)
        if (!is_word(skips[i].name, false) || !is_word(skips[i].space, true))
            return dp_fail_quietly(DP_EINVAL, "skip %d: expected a name, and a namespace or none, of "
                                   "at most %d letters, digits, '_', '.' and '-'", i,
                                   DP_SKIP_NAME_LEN - 1);
    for (int i = 0; i < count; i++)
        check_one(&v, &skips[i]);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < i; k++)
            check_two(&v, &skips[k], &skips[i]);
    if (!v.count)
        return 0;
    char more[32] = "";
    if (v.left_out)
        snprintf(more, sizeof(more), "; and %d more", v.left_out);
    return dp_fail_quietly(DP_EINVAL, "skips: %d violation%s: %s%s", v.count,
                           v.count > 1 ? "s" : "", v.text, more);
}

/* ---- of layers ------------------------------------------------------------------------------- */

/* The invocation that executes entry `layer` of the list; -1: none. */
static int32_t invocation_of(const struct dp_partition *p, int32_t layer)
{
    int32_t first = 0;

    for (int32_t k = 0; k < p->invocation_count; k++) {
        const int32_t end = first + p->groups[p->invocations[k].group].count;
        if (layer < end)
            return k;
        first = end;
    }
    return -1;
}

int dp_skips_of_layers(const struct dp_partition *p, const struct dp_skip *layers, int count,
                       struct dp_skip *out, int *out_count)
{
    int err = check(layers, count, p->layer_count, "layer"), made = 0;

    for (int i = 0; i < count && !err; i++) {
        struct dp_skip skip = layers[i];
        skip.from = invocation_of(p, layers[i].from);
        skip.to = invocation_of(p, layers[i].to);
        if (skip.from < 0 || skip.to < 0)
            err = dp_fail_quietly(DP_EINVAL, "skip %d: layer %d is not executed by the partition", i,
                                  skip.to < 0 ? layers[i].to : layers[i].from);
        else if (skip.from != skip.to)
            out[made++] = skip;
    }
    if (err)
        return dp_fail(err, "%s", dp_last_error());
    *out_count = made;
    return 0;
}

/* ---- where they begin and end ---------------------------------------------------------------- */

static void note_slot(const struct dp_schedule *s, int rank, int at, struct dp_skip_ends *ends)
{
    const struct dp_slot *slot = dp_schedule_slot(s, rank, at);

    for (int k = 0; k < s->skip_count; k++) {
        struct dp_skip_ends *e = &ends[slot->stream * s->skip_count + k];
        if (s->skips[k].from == slot->stage) {
            e->from = rank;
            e->from_slot = at;
        }
        if (s->skips[k].to == slot->stage) {
            e->to = rank;
            e->to_slot = at;
        }
    }
}

static void find_ends(const struct dp_schedule *s, struct dp_skip_ends *ends)
{
    for (int rank = 0; rank < s->ranks; rank++)
        for (int at = 0; at < dp_schedule_slot_count(s, rank); at++)
            note_slot(s, rank, at, ends);
}

int dp_schedule_take_skips(struct dp_schedule *s, const struct dp_skip *skips, int count)
{
    const size_t n = (size_t)(count > 0 ? count : 0);
    int err = check(skips, count, s->stages, "stage");

    if (err || !count)
        return err;
    s->skips = malloc(n * sizeof(*s->skips));
    s->skip_ends = calloc(n * (size_t)s->streams, sizeof(*s->skip_ends));
    if (!s->skips || !s->skip_ends)
        return dp_fail_quietly(DP_ENOMEM, "no memory for %d skips", count);
    memcpy(s->skips, skips, n * sizeof(*s->skips));
    s->skip_count = count;
    find_ends(s, s->skip_ends);
    return 0;
}

int dp_skips_check_ends(const struct dp_schedule *s)
{
    const size_t n = (size_t)s->skip_count * (size_t)s->streams;
    int err = check(s->skips, s->skip_count, s->stages, "stage");

    if (err || !n)
        return err;
    struct dp_skip_ends *ends = calloc(n, sizeof(*ends));
    if (!ends)
        return dp_fail(DP_ENOMEM, "no memory to check %d skips", s->skip_count);
    find_ends(s, ends);
    if (memcmp(ends, s->skip_ends, n * sizeof(*ends)))
        err = dp_fail_quietly(DP_EINVAL, "skips: their ends are not where their stages are");
    free(ends);
    return err;
}

bool dp_skips_equal(const struct dp_schedule *a, const struct dp_schedule *b)
{
    bool equal = a->skip_count == b->skip_count;

    for (int k = 0; k < a->skip_count && equal; k++)
        equal = !strcmp(a->skips[k].name, b->skips[k].name) &&
                !strcmp(a->skips[k].space, b->skips[k].space) &&
                a->skips[k].from == b->skips[k].from && a->skips[k].to == b->skips[k].to;
    return equal;
}
