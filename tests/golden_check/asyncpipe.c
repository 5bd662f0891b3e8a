/* SPDX-License-Identifier: Apache-2.0
 *
 * asyncpipe.c - partitions of AsyncPipe, and the events of its runs.
 */
#include "golden_check/golden.h"

#include <dualpipe/microbatch.h>
#include <dualpipe/partition.h>
#include <dualpipe/schedule.h>

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS_MAX 1024

/* "saRsB", a letter a layer, or a list of names: equal ones are one layer. In a list "r" is a new
 * layer every time (a ReLU). How many there are, or -1. */
static int read_layers(const json_t *value, int32_t ids[LAYERS_MAX])
{
    const char *letters = json_string_value(value);
    size_t count = letters ? strlen(letters) : json_array_size(value);

    if (count > LAYERS_MAX || (!letters && !json_is_array(value)))
        return -1;
    for (size_t i = 0; i < count; i++) {
        const char *name = json_string_value(json_array_get(value, i));
        ids[i] = (int32_t)i;
        for (size_t k = 0; k < i && ids[i] == (int32_t)i; k++) {
            const char *other = json_string_value(json_array_get(value, k));
            bool same = letters ? letters[i] == letters[k]
                                : name && other && !strcmp(name, other) && strcmp(name, "r");
            ids[i] = same ? ids[k] : ids[i];
        }
    }
    return (int)count;
}

/* The partition of a record with layers and balance. */
static int make_partition(const json_t *record, bool compat, struct dp_partition **out)
{
    static int32_t layers[LAYERS_MAX], balance[LAYERS_MAX];
    const json_t *list = json_object_get(record, "balance");
    int count = read_layers(json_object_get(record, "layers"), layers);
    size_t stages = json_array_size(list);

    if (count < 0 || stages > LAYERS_MAX)
        return DP_EINVAL;
    for (size_t i = 0; i < stages; i++)
        balance[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return dp_partition_new(&(struct dp_partition_spec){.layers = layers, .layer_count = count,
                                                        .balance = balance,
                                                        .stages = (int32_t)stages,
                                                        .compat = compat}, out);
}

/* "1@0", or null for none. */
static bool is_location(const json_t *value, struct dp_location at)
{
    char text[32];

    if (at.stage < 0)
        return json_is_null(value);
    snprintf(text, sizeof(text), "%d@%d", at.stage, at.index);
    return json_is_string(value) && !strcmp(json_string_value(value), text);
}

static bool is_number(const json_t *record, const char *key, int32_t number)
{
    const json_t *value = json_object_get(record, key);
    return json_is_integer(value) && json_integer_value(value) == number;
}

static bool same_groups(const json_t *list, const struct dp_partition *p)
{
    bool same = (int32_t)json_array_size(list) == p->group_count;

    for (int32_t i = 0; i < p->group_count && same; i++) {
        const json_t *record = json_array_get(list, (size_t)i);
        const struct dp_layer_group *g = &p->groups[i];
        same = is_number(record, "stage", g->at.stage) &&
               is_number(record, "index", g->at.index) &&
               golden_same(json_object_get(record, "layers"), p->positions + g->first, g->count);
    }
    return same;
}

static bool same_invocations(const json_t *list, const struct dp_partition *p)
{
    bool same = (int32_t)json_array_size(list) == p->invocation_count;

    for (int32_t i = 0; i < p->invocation_count && same; i++) {
        const json_t *record = json_array_get(list, (size_t)i);
        const struct dp_invocation *v = &p->invocations[i];
        same = is_number(record, "order", v->order) &&
               is_location(json_object_get(record, "this"), v->at) &&
               is_location(json_object_get(record, "source"), v->source) &&
               is_location(json_object_get(record, "dest"), v->dest);
    }
    return same;
}

/* Is the result under these keys ours? */
static bool partition_is_right(const json_t *record, const char *groups, const char *invocations,
                               bool compat)
{
    struct dp_partition *p;

    if (make_partition(record, compat, &p))
        return false;
    bool right = same_groups(json_object_get(record, groups), p) &&
                 same_invocations(json_object_get(record, invocations), p);
    dp_partition_free(p);
    return right;
}

/* What fairscale makes of it executes every entry of the list once and in order. */
static bool compat_is_correct(const json_t *record)
{
    struct dp_partition *both[2];
    bool same;

    if (make_partition(record, true, &both[0]))
        return false;
    if (make_partition(record, false, &both[1])) {
        dp_partition_free(both[0]);
        return false;
    }
    same = both[0]->invocation_count == both[1]->invocation_count;
    for (int32_t k = 0; k < both[0]->invocation_count && same; k++) {
        const struct dp_layer_group *a = &both[0]->groups[both[0]->invocations[k].group];
        const struct dp_layer_group *b = &both[1]->groups[both[1]->invocations[k].group];
        same = a->count == b->count &&
               !memcmp(both[0]->positions + a->first, both[1]->positions + b->first,
                       (size_t)a->count * sizeof(int32_t));
    }
    dp_partition_free(both[0]);
    dp_partition_free(both[1]);
    return same;
}

/* A record has both results, or the corrected one alone where fairscale had none. */
static bool check_one_partition(struct golden *g, size_t i, const json_t *record)
{
    const json_t *seed = json_object_get(record, "seed_groups");
    const json_t *correct = json_object_get(record, "seed_is_correct");

    if (!json_is_array(json_object_get(record, "correct_groups")))
        return FAIL(g, "record %zu: no correct_groups, expected a list", i);
    if (!partition_is_right(record, "correct_groups", "correct_invocations", false))
        return FAIL(g, "record %zu: the corrected partition is another one here", i);
    if (seed && !json_is_null(seed) &&
        !partition_is_right(record, "seed_groups", "seed_invocations", true))
        return FAIL(g, "record %zu: fairscale's partition is another one here", i);
    if (json_is_boolean(correct) && json_is_true(correct) != compat_is_correct(record))
        return FAIL(g, "record %zu: seed_is_correct is %s, not with us", i,
                    json_is_true(correct) ? "true" : "false");
    return true;
}

static bool check_asyncpipe_partition(struct golden *g)
{
    return golden_each(g, g->value, check_one_partition) &&
           PASS(g, "%zu partitions, corrected and as fairscale makes them",
                json_array_size(g->value));
}

/* The events of one rank, as lines, in the form of the file. */
struct events {
    char (*lines)[64];
    int *mbs; /* of each line */
    size_t count;
};

static void add_event(struct events *e, int mb, const char *fmt, ...) DP_PRINTF(3, 4);
static void add_event(struct events *e, int mb, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(e->lines[e->count], sizeof(e->lines[0]), fmt, args);
    va_end(args);
    e->mbs[e->count++] = mb;
}

/* A receive is an event where its message is consumed. */
static void add_consumed(struct events *e, const struct dp_slot *slot, int rank, struct dp_op op)
{
    int mb = (int)op.mb;

    if (op.kind == DP_OP_F && slot->prev >= 0 && slot->prev != rank)
        add_event(e, mb, "got<-%d Act mb%d order%d", slot->prev, mb, slot->stage);
    if (op.kind == DP_OP_B && slot->next >= 0 && slot->next != rank)
        add_event(e, mb, "got<-%d Gra mb%d order%d", slot->next, mb, slot->stage);
}

static void list_events(const struct dp_schedule *s, const struct dp_partition *p, int rank,
                        struct events *e)
{
    for (size_t i = 0; i < dp_schedule_count(s, rank); i++) {
        struct dp_op op = dp_schedule_ops(s, rank)[i];
        int mb = (int)op.mb;
        if (op.kind == DP_OP_COMMIT)
            continue;
        const struct dp_slot *slot = dp_schedule_slot(s, rank, (int)op.slot);
        struct dp_location at = p->invocations[slot->stage].at;
        add_consumed(e, slot, rank, op);
        if (op.kind == DP_OP_F)
            add_event(e, mb, "F order%d@%d@%d mb%d", slot->stage, at.stage, at.index, mb);
        if (op.kind == DP_OP_SEND_F)
            add_event(e, mb, "send->%d Act mb%d order%d", slot->next, mb, slot->stage + 1);
        if (op.kind == DP_OP_SEND_B)
            add_event(e, mb, "send->%d Gra mb%d order%d", slot->prev, mb, slot->stage - 1);
    }
}

/* A recorded event, without the number of tensors; false for one that is no op. */
static bool read_recorded(const json_t *value, char line[64], int *mb)
{
    const char *text = json_string_value(value), *at = text ? strstr(text, " mb") : NULL;

    if (!at)
        return false;
    snprintf(line, 64, "%s", text);
    char *tensors = strstr(line, " nt");
    if (tensors)
        *tensors = '\0';
    *mb = atoi(at + 3);
    return true;
}

/* The next line of the micro-batch from *at on. */
static const char *next_of_mb(const struct events *e, int mb, size_t *at)
{
    while (*at < e->count && e->mbs[*at] != mb)
        ++*at;
    return *at < e->count ? e->lines[(*at)++] : NULL;
}

/* Where each rank is visited once, a rank's events have one order. */
static bool same_sequence(const json_t *recorded, const struct events *ours)
{
    const json_t *value;
    size_t at = 0, i;

    json_array_foreach(recorded, i, value) {
        char line[64];
        int mb;
        if (!read_recorded(value, line, &mb))
            continue;
        if (at == ours->count || strcmp(ours->lines[at++], line))
            return false;
    }
    return at == ours->count;
}

/* How many micro-batches a rank that is not the last says that there were. */
static bool same_returned(const json_t *recorded, int mbs)
{
    static const char returned[] = "returned list len ";
    const json_t *value;
    size_t i;

    json_array_foreach(recorded, i, value) {
        const char *text = json_string_value(value);
        if (text && !strncmp(text, returned, strlen(returned)) &&
            atoi(text + strlen(returned)) != mbs)
            return false;
    }
    return true;
}

/* Otherwise the order of micro-batches depends on the arrival of messages; that within each does
 * not. */
static bool same_events(const json_t *recorded, const struct events *ours, int mbs)
{
    size_t count = 0;

    for (int mb = 0; mb < mbs; mb++) {
        size_t at = 0, i;
        const json_t *value;
        json_array_foreach(recorded, i, value) {
            char line[64];
            int its;
            if (!read_recorded(value, line, &its) || its != mb)
                continue;
            const char *expected = next_of_mb(ours, mb, &at);
            if (!expected || strcmp(expected, line))
                return false;
            count++;
        }
    }
    return count == ours->count;
}

static bool rank_is_right(const json_t *recorded, const struct dp_schedule *s,
                          const struct dp_partition *p, int rank)
{
    size_t most = 3 * dp_schedule_count(s, rank) + 1;
    struct events e = {calloc(most, sizeof(*e.lines)), calloc(most, sizeof(*e.mbs)), 0};
    bool right = e.lines && e.mbs;

    if (right) {
        list_events(s, p, rank, &e);
        right = same_returned(recorded, s->mb_per_stream) &&
                (p->invocation_count == p->stages ? same_sequence(recorded, &e)
                                                  : same_events(recorded, &e, s->mb_per_stream));
    }
    free(e.lines);
    free(e.mbs);
    return right;
}

/* On as many ranks as were recorded, of which the last may hold no stage. */
static struct dp_schedule *async_schedule(const json_t *record, const struct dp_partition *p)
{
    const int ranks = (int)json_array_size(json_object_get(record, "events"));
    static int64_t sizes[DP_MAX_MICROBATCHES];
    struct dp_schedule *s = NULL;
    int32_t mbs;

    if (dp_cut_sizes(DP_CUT_CHUNK, golden_integer(record, "batch"),
                     (int32_t)golden_integer(record, "chunks"), sizes, &mbs) ||
        dp_schedule_new(&(struct dp_schedule_spec){
                            .kind = DP_SCHEDULE_ASYNC, .ranks = ranks, .microbatches = mbs,
                            .forward_only = !json_is_true(json_object_get(record, "train")),
                            .partition = p}, &s))
        return NULL;
    return s;
}

static bool run_is_right(const json_t *record, const struct dp_partition *p)
{
    struct dp_schedule *s = async_schedule(record, p);
    const json_t *events = json_object_get(record, "events");
    bool right = s && !dp_schedule_check(s, NULL, NULL);

    for (int rank = 0; right && rank < s->ranks; rank++)
        right = rank_is_right(json_array_get(events, (size_t)rank), s, p, rank);
    dp_schedule_free(s);
    return right;
}

static bool check_one_run(struct golden *g, size_t i, const json_t *record)
{
    struct dp_partition *p;

    if (make_partition(record, true, &p))
        return FAIL(g, "record %zu: %s", i, dp_last_error());
    bool right = run_is_right(record, p);
    dp_partition_free(p);
    return right || FAIL(g, "record %zu: the schedule 'async' has other events", i);
}

static bool check_asyncpipe_events(struct golden *g)
{
    return golden_each(g, g->value, check_one_run) &&
           PASS(g, "%zu runs: every event in its order; with layers used again, within each "
                   "micro-batch", json_array_size(g->value));
}

static bool is_asyncpipe_events(const json_t *value)
{
    return golden_all_have(value, KEYS("layers", "balance", "chunks", "events"));
}

static bool is_asyncpipe_partition(const json_t *value)
{
    return golden_all_have(value, KEYS("layers", "balance")) && !is_asyncpipe_events(value);
}

const struct golden_kind golden_asyncpipe_events = {is_asyncpipe_events, check_asyncpipe_events};
const struct golden_kind golden_asyncpipe_partitions = {is_asyncpipe_partition,
                                                        check_asyncpipe_partition};
