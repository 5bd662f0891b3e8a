/* SPDX-License-Identifier: Apache-2.0
 *
 * golden_check.c - check every golden file of a directory: recorded traces and vectors that say
 * what other implementations did. What a file is, is told by its content.
 *
 *      golden-check [DIR]      DIR: by default the golden files of the tests
 *
 * Prints a line a file and the totals. Returns 1 if a file failed or there was none, 2 if it could
 * not look.
 */
#include "mixing/bucket.h"
#include <dualpipe/microbatch.h>
#include <dualpipe/mixer.h>
#include <dualpipe/mixing.h>
#include <dualpipe/offload.h>
#include <dualpipe/optimizer.h>
#include <dualpipe/partition.h>
#include <dualpipe/schedule.h>

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One file being checked. */
struct golden {
    const char *name;
    char *text;
    size_t len;
    json_t *value;
    char note[2048]; /* what was compared, or what is wrong */
};

enum verdict { PASSED, FAILED, SKIPPED };

#define NOTE(g, verdict, ...) (snprintf((g)->note, sizeof((g)->note), __VA_ARGS__), (verdict))

/* ---- DualPipe and DualPipeV traces ---------------------------------------------------------- */

static bool is_trace(const json_t *value)
{
    return json_is_string(json_object_get(value, "algo")) &&
           json_is_array(json_object_get(value, "ranks"));
}

/* The schedule that we build from the parameters of the recorded one. */
static struct dp_schedule *build_same(const struct dp_schedule *recorded)
{
    int *rank_map = calloc((size_t)recorded->ranks, sizeof(*rank_map));
    struct dp_schedule *s = NULL;

    for (int rank = 0; rank_map && rank < recorded->ranks; rank++)
        rank_map[recorded->group_rank[rank]] = rank;
    if (!rank_map || dp_schedule_new(&(struct dp_schedule_spec){
                                         .kind = recorded->kind,
                                         .ranks = recorded->ranks,
                                         .microbatches = recorded->microbatches,
                                         .forward_only = recorded->forward_only,
                                         .return_outputs = recorded->return_outputs,
                                         .no_overlap = !recorded->overlap,
                                         .rank_map = rank_map,
                                     }, &s))
        s = NULL;
    free(rank_map);
    return s;
}

static struct dp_op op_at(const struct dp_schedule *s, int rank, size_t index)
{
    return index < dp_schedule_count(s, rank) ? dp_schedule_ops(s, rank)[index]
                                              : (struct dp_op){.kind = DP_OP_NONE};
}

static enum verdict tell_first_difference(struct golden *g, const struct dp_schedule *recorded,
                                          const struct dp_schedule *ours)
{
    char theirs_text[DP_OP_TEXT_LEN], ours_text[DP_OP_TEXT_LEN];

    for (int rank = 0; rank < recorded->ranks; rank++)
        for (size_t i = 0; i <= dp_schedule_count(recorded, rank); i++) {
            struct dp_op theirs = op_at(recorded, rank, i), mine = op_at(ours, rank, i);
            if (memcmp(&theirs, &mine, sizeof(mine)))
                return NOTE(g, FAILED, "rank %d, op %zu: recorded was |%u| %s, we build |%u| %s",
                            rank, i, theirs.unit, dp_op_text(theirs, theirs_text), mine.unit,
                            dp_op_text(mine, ours_text));
        }
    return NOTE(g, FAILED, "the ops are the same, the ranks or slots are not");
}

/* A pair is one event and two ops. */
static size_t count_events(const struct dp_schedule *s)
{
    size_t events = 0;

    for (size_t i = 0; i < s->first[s->ranks]; i++)
        events += !s->ops[i].overlap;
    return events;
}

static size_t count_recorded_events(const json_t *value)
{
    size_t events = 0, i;
    const json_t *rank;

    json_array_foreach(json_object_get(value, "ranks"), i, rank)
        events += json_array_size(json_object_get(rank, "events"));
    return events;
}

static enum verdict compare_traces(struct golden *g, const struct dp_schedule *recorded,
                                   const struct dp_schedule *ours)
{
    struct dp_finding finding;

    if (count_events(recorded) != count_recorded_events(g->value))
        return NOTE(g, FAILED, "%zu events, of which no trace can be made",
                    count_recorded_events(g->value));
    if (!dp_schedule_equal(recorded, ours))
        return tell_first_difference(g, recorded, ours);
    if (dp_schedule_check(ours, NULL, &finding))
        return NOTE(g, FAILED, "breaks the %s rule: %s", dp_rule_name(finding.rule), finding.text);
    return NOTE(g, PASSED, "%s P=%d M=%d, all %zu events", dp_schedule_kind_name(ours->kind),
                ours->ranks, ours->microbatches, count_events(ours));
}

static enum verdict check_trace(struct golden *g)
{
    struct dp_schedule *recorded, *ours;
    enum verdict verdict;

    if (dp_schedule_read(g->text, g->len, DP_FORMAT_JSON, &recorded))
        return NOTE(g, FAILED, "%s", dp_last_error());
    ours = build_same(recorded);
    verdict = ours ? compare_traces(g, recorded, ours) : NOTE(g, FAILED, "%s", dp_last_error());
    dp_schedule_free(recorded);
    dp_schedule_free(ours);
    return verdict;
}

/* ---- micro-batch sizes --------------------------------------------------------------------- */

static bool is_chunk_sizes(const json_t *value)
{
    static const char *const names[] = {"size", "chunks", "tensor_split_sizes", "chunk_sizes"};
    const json_t *columns = json_object_get(value, "columns");
    bool same = json_array_size(columns) == 4 && json_is_array(json_object_get(value, "rows"));

    for (size_t i = 0; i < 4 && same; i++) {
        const char *name = json_string_value(json_array_get(columns, i));
        same = name && !strcmp(name, names[i]);
    }
    return same;
}

static bool same_sizes(const json_t *list, const int64_t *sizes, int32_t count)
{
    bool same = json_is_array(list) && (int32_t)json_array_size(list) == count;

    for (int32_t i = 0; i < count && same; i++) {
        const json_t *size = json_array_get(list, (size_t)i);
        same = json_is_integer(size) && json_integer_value(size) == sizes[i];
    }
    return same;
}

static bool row_is_right(const json_t *row, int64_t *sizes)
{
    int64_t extent = json_integer_value(json_array_get(row, 0));
    int32_t count = (int32_t)json_integer_value(json_array_get(row, 1)), made;

    return !dp_split_sizes(extent, count, sizes) &&
           same_sizes(json_array_get(row, 2), sizes, count) &&
           !dp_chunk_sizes(extent, count, sizes, &made) &&
           same_sizes(json_array_get(row, 3), sizes, made);
}

static bool row_is_sound(const json_t *row)
{
    const json_t *size = json_array_get(row, 0), *chunks = json_array_get(row, 1);

    return json_array_size(row) == 4 && json_is_integer(size) && json_is_integer(chunks) &&
           json_integer_value(size) >= 0 && json_integer_value(chunks) >= 1 &&
           json_integer_value(chunks) <= DP_MAX_MICROBATCHES;
}

static enum verdict check_chunk_sizes(struct golden *g)
{
    static int64_t sizes[DP_MAX_MICROBATCHES];
    const json_t *rows = json_object_get(g->value, "rows"), *row;
    size_t i;

    if (!json_array_size(rows))
        return NOTE(g, FAILED, "no rows");
    json_array_foreach(rows, i, row) {
        if (!row_is_sound(row))
            return NOTE(g, FAILED, "row %zu is not size, chunks and two lists", i);
        if (!row_is_right(row, sizes))
            return NOTE(g, FAILED, "row %zu: %lld rows in %lld chunks are cut otherwise by us", i,
                        (long long)json_integer_value(json_array_get(row, 0)),
                        (long long)json_integer_value(json_array_get(row, 1)));
    }
    return NOTE(g, PASSED, "both rules, all %zu rows", i);
}

/* ---- AsyncPipe ------------------------------------------------------------------------------- */

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
        const json_t *layers = json_object_get(record, "layers");
        const struct dp_layer_group *g = &p->groups[i];
        same = is_number(record, "stage", g->at.stage) &&
               is_number(record, "index", g->at.index) &&
               (int32_t)json_array_size(layers) == g->count;
        for (int32_t k = 0; k < g->count && same; k++)
            same = json_integer_value(json_array_get(layers, (size_t)k)) ==
                   p->positions[g->first + k];
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
static enum verdict check_one_partition(struct golden *g, size_t i, const json_t *record)
{
    const json_t *seed = json_object_get(record, "seed_groups");
    const json_t *correct = json_object_get(record, "seed_is_correct");

    if (!json_is_array(json_object_get(record, "correct_groups")))
        return NOTE(g, FAILED, "record %zu: no correct_groups, expected a list", i);
    if (!partition_is_right(record, "correct_groups", "correct_invocations", false))
        return NOTE(g, FAILED, "record %zu: the corrected partition is another one here", i);
    if (seed && !json_is_null(seed) &&
        !partition_is_right(record, "seed_groups", "seed_invocations", true))
        return NOTE(g, FAILED, "record %zu: fairscale's partition is another one here", i);
    if (json_is_boolean(correct) && json_is_true(correct) != compat_is_correct(record))
        return NOTE(g, FAILED, "record %zu: seed_is_correct is %s, not with us", i,
                    json_is_true(correct) ? "true" : "false");
    return PASSED;
}

static enum verdict check_asyncpipe_partition(struct golden *g)
{
    enum verdict verdict = PASSED;
    const json_t *record;
    size_t i;

    json_array_foreach(g->value, i, record)
        if ((verdict = check_one_partition(g, i, record)) != PASSED)
            return verdict;
    return NOTE(g, PASSED, "%zu partitions, corrected and as fairscale makes them", i);
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

    if (dp_chunk_sizes(json_integer_value(json_object_get(record, "batch")),
                       (int32_t)json_integer_value(json_object_get(record, "chunks")), sizes,
                       &mbs) ||
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

static enum verdict check_asyncpipe_events(struct golden *g)
{
    const json_t *record;
    size_t i;

    json_array_foreach(g->value, i, record) {
        struct dp_partition *p;
        if (make_partition(record, true, &p))
            return NOTE(g, FAILED, "record %zu: %s", i, dp_last_error());
        bool right = run_is_right(record, p);
        dp_partition_free(p);
        if (!right)
            return NOTE(g, FAILED, "record %zu: the schedule 'async' has other events", i);
    }
    return NOTE(g, PASSED, "%zu runs: every event in its order; with layers used again, within each "
                "micro-batch", i);
}

/* ---- mixing graphs --------------------------------------------------------------------------- */

static bool is_topologies(const json_t *value)
{
    return json_is_array(json_object_get(value, "valid")) &&
           json_is_array(json_object_get(value, "constructor"));
}

static int build_graph(const json_t *record, struct dp_graph **out)
{
    return dp_graph_new(
        &(struct dp_graph_spec){
            .name = json_string_value(json_object_get(record, "topology")),
            .workers = (int)json_integer_value(json_object_get(record, "world")),
            .local = (int)json_integer_value(json_object_get(record, "local_world")),
        },
        out);
}

static bool same_group(const struct dp_graph *g, int64_t t, const json_t *recorded)
{
    const json_t *ranks = json_object_get(recorded, "ranks"), *rank;
    int first = (int)json_integer_value(json_array_get(ranks, 0));
    const struct dp_mix_group *group;
    bool same = first >= 0 && first < g->workers && (group = dp_graph_group(g, t, first)) &&
                group->count == (int32_t)json_array_size(ranks) &&
                group->self == json_number_value(json_object_get(recorded, "weight"));
    size_t i;

    if (same)
        json_array_foreach(ranks, i, rank)
            same = same && g->members[group->first + i] == json_integer_value(rank);
    return same;
}

/* Every recorded group is ours, and there are as many. */
static bool same_step(const struct dp_graph *g, int32_t t, const json_t *recorded)
{
    bool same = json_array_size(recorded) == g->rounds[t].group_count;
    const json_t *group;
    size_t i;

    json_array_foreach(recorded, i, group)
        same = same && same_group(g, t, group);
    return same;
}

static bool same_sigma(const struct dp_graph *g, int32_t steps, const json_t *recorded)
{
    double sigma;

    return json_is_number(recorded) && !dp_graph_contraction(g, 0, steps, &sigma) &&
           fabs(sigma - json_number_value(recorded)) <= 2e-9;
}

static enum verdict check_graph(struct golden *g, const json_t *record, const struct dp_graph *ours)
{
    const json_t *steps = json_object_get(record, "steps");
    const json_t *sigma = json_object_get(record, "sigma_prefix");

    if (ours->period != json_integer_value(json_object_get(record, "period")) ||
        json_array_size(steps) != (size_t)ours->period)
        return NOTE(g, FAILED, "%s of %d: our period is %d", ours->name, ours->workers, ours->period);
    for (int32_t t = 0; t < ours->period; t++) {
        if (!same_step(ours, t, json_array_get(steps, (size_t)t)))
            return NOTE(g, FAILED, "%s of %d: step %d is another one with us", ours->name,
                        ours->workers, t);
        if (sigma && !same_sigma(ours, t + 1, json_array_get(sigma, (size_t)t)))
            return NOTE(g, FAILED, "%s of %d: another contraction after %d steps", ours->name,
                        ours->workers, t + 1);
    }
    return PASSED;
}

static enum verdict check_valid(struct golden *g, const json_t *list)
{
    const json_t *record;
    struct dp_graph *ours;
    size_t i;

    json_array_foreach(list, i, record) {
        if (build_graph(record, &ours))
            return NOTE(g, FAILED, "%s", dp_last_error());
        enum verdict verdict = check_graph(g, record, ours);
        dp_graph_free(ours);
        if (verdict != PASSED)
            return verdict;
    }
    return PASSED;
}

static enum verdict check_constructor(struct golden *g, const json_t *list)
{
    const json_t *record;
    struct dp_graph *ours;
    size_t i;

    json_array_foreach(list, i, record) {
        const char *result = json_string_value(json_object_get(record, "result"));
        const char *name = json_string_value(json_object_get(record, "topology"));
        bool wanted = result && !strcmp(result, "constructs"), built = !build_graph(record, &ours);
        if (built)
            dp_graph_free(ours);
        if (built != wanted)
            return NOTE(g, FAILED, "%s of %lld: recorded was '%s', with us it %s", name ? name : "?",
                        (long long)json_integer_value(json_object_get(record, "world")),
                        result ? result : "?", built ? "constructs" : "does not");
    }
    return PASSED;
}

static enum verdict check_topologies(struct golden *g)
{
    const json_t *valid = json_object_get(g->value, "valid");
    const json_t *constructor = json_object_get(g->value, "constructor");
    enum verdict verdict = check_valid(g, valid);

    if (verdict == PASSED)
        verdict = check_constructor(g, constructor);
    return verdict != PASSED ? verdict
                             : NOTE(g, PASSED, "%zu graphs, %zu constructors",
                                    json_array_size(valid), json_array_size(constructor));
}

/* Is it a list of records that all have these keys? */
static bool all_have(const json_t *value, const char *const *keys)
{
    const json_t *record;
    size_t i;

    if (!json_array_size(value))
        return false;
    json_array_foreach(value, i, record)
        for (const char *const *key = keys; *key; key++)
            if (!json_object_get(record, *key))
                return false;
    return true;
}

#define KEYS(...) (const char *const[]){__VA_ARGS__, NULL}

/* ---- buckets of decentralized training ---------------------------------------------------------- */

enum { ITEMS_MAX = 4096 };

static bool is_decent_buckets(const json_t *value)
{
    return all_have(value, KEYS("numel", "bucket_mb", "buckets"));
}

/* What a record says, in the words of the cutter. false: more than this program holds. */
struct bucket_case {
    int32_t count, traced;
    struct dp_bucket_item items[ITEMS_MAX];
    int32_t trace[ITEMS_MAX];
};

static bool read_bucket_case(const json_t *record, struct bucket_case *c)
{
    const json_t *numel = json_object_get(record, "numel"), *trace = json_object_get(record, "trace");
    const char *dtype = json_string_value(json_object_get(record, "dtype"));
    const int bytes = dtype && !strcmp(dtype, "float64") ? 8
                      : dtype && !strcmp(dtype, "float32") ? 4 : 2;
    const json_t *item;
    size_t i;

    c->count = (int32_t)json_array_size(numel);
    c->traced = (int32_t)json_array_size(trace);
    if (c->count > ITEMS_MAX || c->traced > c->count)
        return false;
    json_array_foreach(numel, i, item)
        c->items[i] = (struct dp_bucket_item){json_integer_value(item), 0, bytes};
    json_array_foreach(trace, i, item) {
        c->trace[i] = (int32_t)json_integer_value(item);
        if (c->trace[i] < 0 || c->trace[i] >= c->count)
            return false;
    }
    return true;
}

static bool same_buckets(const json_t *record, const struct dp_buckets *ours)
{
    const json_t *buckets = json_object_get(record, "buckets"), *bucket;
    const json_t *lengths = json_object_get(record, "block_numel");
    bool same = json_array_size(buckets) == (size_t)ours->count;
    size_t i;

    json_array_foreach(buckets, i, bucket) {
        const struct dp_bucket_cut *cut = &ours->cuts[i];
        same = same && json_array_size(bucket) == (size_t)cut->count &&
               json_integer_value(json_array_get(lengths, i)) == cut->block_elements;
        for (int32_t k = 0; same && k < cut->count; k++)
            same = json_integer_value(json_array_get(bucket, (size_t)k)) ==
                   ours->order[cut->first + k];
    }
    return same;
}

static bool bucket_case_is_right(const json_t *record)
{
    static struct bucket_case c;
    struct dp_buckets ours;
    const struct dp_bucket_rule rule = {
        json_number_value(json_object_get(record, "bucket_mb")) * 1024 * 1024, true};

    if (!read_bucket_case(record, &c) ||
        dp_buckets_cut(&rule, c.items, c.count, c.trace, c.traced, &ours))
        return false;
    bool right = same_buckets(record, &ours);
    dp_buckets_fini(&ours);
    return right;
}

static enum verdict check_decent_buckets(struct golden *g)
{
    const json_t *record;
    size_t i;

    json_array_foreach(g->value, i, record)
        if (!bucket_case_is_right(record))
            return NOTE(g, FAILED, "record %zu is cut otherwise by us", i);
    return NOTE(g, PASSED, "all %zu lists of parameters", json_array_size(g->value));
}

/* ---- decentralized SGD ------------------------------------------------------------------------- */

/* A record is one run of several workers, who are threads here. */
enum { WORKERS_MAX = 64, TENSORS_MAX = 64 };

struct worker {
    pthread_t thread;
    struct dp_comm *comm;
    const struct dp_graph *graph;
    const json_t *cfg, *recorded;
    double tolerance; /* of sums that another order rounds otherwise; 0: bit for bit */
    char wrong[256];  /* "": as recorded */
    int32_t count;
    struct dp_parameter parameters[TENSORS_MAX];
    DLTensor values[TENSORS_MAX], grads[TENSORS_MAX];
    int64_t sizes[TENSORS_MAX];
    char names[TENSORS_MAX][16];
};

static bool is_decent_dpsgd(const json_t *value)
{
    return all_have(value, KEYS("cfg", "ranks"));
}

static void worker_is_wrong(struct worker *w, const char *what, int t)
{
    if (!*w->wrong)
        snprintf(w->wrong, sizeof(w->wrong), "%s of iteration %d%s%s", what, t,
                 dp_comm_aborted(w->comm, NULL) ? ": " : "",
                 dp_comm_aborted(w->comm, NULL) ? dp_last_error() : "");
}

static bool near(double a, double b, double tolerance)
{
    return a == b || fabs(a - b) <= tolerance * fmax(1, fmax(fabs(a), fabs(b)));
}

static bool same_values(const struct worker *w, const json_t *recorded, double tolerance)
{
    bool same = json_array_size(recorded) == (size_t)w->count;

    for (int32_t i = 0; i < w->count && same; i++) {
        const json_t *list = json_array_get(recorded, (size_t)i);
        const double *x = w->values[i].data;
        same = json_array_size(list) == (size_t)w->sizes[i];
        for (int64_t k = 0; k < w->sizes[i] && same; k++)
            same = near(x[k], json_number_value(json_array_get(list, (size_t)k)), tolerance);
    }
    return same;
}

static void read_values(const json_t *recorded, DLTensor *tensors, int32_t count, bool add)
{
    for (int32_t i = 0; i < count; i++)
        for (int64_t k = 0; k < tensors[i].shape[0]; k++) {
            const json_t *list = json_array_get(recorded, (size_t)i);
            double *x = (double *)tensors[i].data + k;
            *x = (add ? *x : 0) + json_number_value(json_array_get(list, (size_t)k));
        }
}

static bool describe_parameters(struct worker *w)
{
    const json_t *sizes = json_object_get(w->cfg, "sizes");

    w->count = (int32_t)json_array_size(sizes);
    if (w->count > TENSORS_MAX)
        return false;
    for (int32_t i = 0; i < w->count; i++) {
        w->sizes[i] = json_integer_value(json_array_get(sizes, (size_t)i));
        w->values[i] = (DLTensor){.device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLFloat, 64, 1},
                                  .shape = &w->sizes[i]};
        w->grads[i] = w->values[i];
        w->values[i].data = calloc((size_t)w->sizes[i], sizeof(double));
        w->grads[i].data = calloc((size_t)w->sizes[i], sizeof(double));
        snprintf(w->names[i], sizeof(w->names[i]), "p%d", i);
        w->parameters[i] = (struct dp_parameter){.name = w->names[i], .value = &w->values[i],
                                                 .grad = &w->grads[i]};
    }
    return true;
}

static void compare_buckets(struct worker *w, const struct dp_mixer *mixer)
{
    const json_t *buckets = json_object_get(w->recorded, "buckets");
    const json_t *lengths = json_object_get(w->recorded, "block_numel");
    bool same = json_array_size(buckets) == (size_t)dp_mixer_bucket_count(mixer);

    for (int32_t b = 0; same && b < dp_mixer_bucket_count(mixer); b++) {
        const json_t *bucket = json_array_get(buckets, (size_t)b);
        const int32_t *parameters;
        int64_t elements;
        int32_t count = dp_mixer_bucket(mixer, b, &parameters, &elements);
        same = json_array_size(bucket) == (size_t)count &&
               json_integer_value(json_array_get(lengths, (size_t)b)) == elements;
        for (int32_t i = 0; same && i < count; i++)
            same = json_integer_value(json_array_get(bucket, (size_t)i)) == parameters[i];
    }
    if (!same)
        worker_is_wrong(w, "buckets", 1);
}

static int run_iteration(struct worker *w, struct dp_mixer *mixer, size_t t)
{
    const json_t *seen = json_object_get(w->recorded, "params_seen_by_forward"), *i;
    const json_t *grads = json_object_get(w->recorded, "grads");
    size_t k;
    int err = dp_mixer_forward(mixer, true);

    if (err)
        return err;
    if (!same_values(w, json_array_get(seen, t), w->tolerance))
        worker_is_wrong(w, "parameters", (int)t);
    read_values(json_array_get(grads, t), w->grads, w->count, true);
    json_array_foreach(json_object_get(w->recorded, "trace"), k, i)
        err = err ? err : dp_mixer_ready(mixer, (int32_t)json_integer_value(i));
    return err ? err : dp_mixer_step(mixer);
}

static int run_iterations(struct worker *w, struct dp_mixer *mixer)
{
    const size_t steps = (size_t)json_integer_value(json_object_get(w->cfg, "steps"));
    const json_t *average = json_object_get(w->recorded, "global_avg");
    struct dp_mixer_average what = {.distance = true};
    int err = 0;

    for (size_t t = 0; t < steps && !err; t++)
        err = run_iteration(w, mixer, t);
    if (err)
        return err;
    compare_buckets(w, mixer);
    if (!same_values(w, json_object_get(w->recorded, "params_after_last_backward"), w->tolerance))
        worker_is_wrong(w, "parameters", (int)steps);
    if ((err = dp_mixer_average(mixer, &what)))
        return err;
    if (average && !same_values(w, average, 1e-14))
        worker_is_wrong(w, "average", (int)steps);
    if (!near(what.l2, json_number_value(json_object_get(w->recorded, "d2c")), 1e-13))
        worker_is_wrong(w, "distance to the average", (int)steps);
    return 0;
}

static double cfg_number(const struct worker *w, const char *key)
{
    return json_number_value(json_object_get(w->cfg, key));
}

static void run_mixer(struct worker *w)
{
    const struct dp_mixer_config config = {
        .parameters = w->parameters,
        .count = w->count,
        .optimizer = dp_optimizer_defaults(DP_OPTIMIZER_SGD),
        .rate = cfg_number(w, "lr"),
        .graph = w->graph,
        .comm = w->comm,
        .bucket_bytes = cfg_number(w, "bucket_mb") * 1024 * 1024,
        .separate = json_is_false(json_object_get(w->cfg, "view")),
        .factor = cfg_number(w, "af"),
        .clip_norm = cfg_number(w, "clip"),
        .compat = true,
    };
    struct dp_mixer *mixer = NULL;
    int err = dp_mixer_new(&config, &mixer);

    if (!err)
        err = run_iterations(w, mixer);
    if (err && !*w->wrong)
        snprintf(w->wrong, sizeof(w->wrong), "%s", dp_last_error());
    dp_mixer_free(mixer);
}

static void *run_worker(void *arg)
{
    struct worker *w = arg;
    const json_t *seen = json_object_get(w->recorded, "params_seen_by_forward");

    if (describe_parameters(w)) {
        read_values(json_array_get(seen, 0), w->values, w->count, false);
        run_mixer(w);
    } else {
        snprintf(w->wrong, sizeof(w->wrong), "more than %d parameters", TENSORS_MAX);
    }
    for (int32_t i = 0; i < w->count && i < TENSORS_MAX; i++) {
        free(w->values[i].data);
        free(w->grads[i].data);
    }
    dp_comm_close(w->comm);
    return NULL;
}

static double tolerance_of(const json_t *cfg, const struct dp_graph *g)
{
    bool pairs = json_number_value(json_object_get(cfg, "clip")) == 0 &&
                 json_number_value(json_object_get(cfg, "af")) == 1;

    for (size_t i = 0; i < g->group_count; i++)
        pairs = pairs && g->groups[i].count <= 2;
    return pairs ? 0 : 4e-15;
}

static enum verdict run_workers(struct golden *g, size_t record, const json_t *cfg,
                                const json_t *ranks, const struct dp_graph *graph)
{
    static struct worker workers[WORKERS_MAX];
    struct dp_comm *comms[WORKERS_MAX];
    const int count = graph->workers;
    enum verdict verdict = PASSED;

    if (dp_comm_threads_new(count, comms))
        return NOTE(g, FAILED, "%s", dp_last_error());
    for (int i = 0; i < count; i++) {
        workers[i] = (struct worker){.comm = comms[i], .graph = graph, .cfg = cfg,
                                     .recorded = json_array_get(ranks, (size_t)i),
                                     .tolerance = tolerance_of(cfg, graph)};
        pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]);
    }
    for (int i = 0; i < count; i++)
        pthread_join(workers[i].thread, NULL);
    for (int i = 0; i < count && verdict == PASSED; i++)
        if (*workers[i].wrong)
            verdict = NOTE(g, FAILED, "run %zu, worker %d: %s", record, i, workers[i].wrong);
    return verdict;
}

static enum verdict check_run(struct golden *g, size_t number, const json_t *record)
{
    const json_t *cfg = json_object_get(record, "cfg"), *ranks = json_object_get(record, "ranks");
    const char *name = json_string_value(json_object_get(cfg, "topo"));
    const int world = (int)json_integer_value(json_object_get(cfg, "world"));
    struct dp_graph *graph;

    if (world > WORKERS_MAX || json_array_size(ranks) != (size_t)world)
        return NOTE(g, FAILED, "run %zu: %d workers, %zu are recorded", number, world,
                    json_array_size(ranks));
    if (dp_graph_new(
            &(struct dp_graph_spec){
                .name = name,
                .workers = world,
                .local = (int)json_integer_value(json_object_get(cfg, "local")),
            },
            &graph))
        return NOTE(g, FAILED, "%s", dp_last_error());
    enum verdict verdict = run_workers(g, number, cfg, ranks, graph);
    dp_graph_free(graph);
    return verdict;
}

static enum verdict check_decent_dpsgd(struct golden *g)
{
    const json_t *record;
    size_t i;

    json_array_foreach(g->value, i, record) {
        enum verdict verdict = check_run(g, i, record);
        if (verdict != PASSED)
            return verdict;
    }
    return NOTE(g, PASSED, "all %zu runs", json_array_size(g->value));
}

/* ---- vectors of later features -------------------------------------------------------------- */

static bool is_asyncpipe_events(const json_t *value)
{
    return all_have(value, KEYS("layers", "balance", "chunks", "events"));
}

static bool is_asyncpipe_partition(const json_t *value)
{
    return all_have(value, KEYS("layers", "balance")) && !is_asyncpipe_events(value);
}

static bool is_decent_adam(const json_t *value)
{
    return all_have(value, KEYS("opt", "accum_iter", "grads", "params"));
}

enum { ADAM_MAX = 256 };

/* A list of numbers; their count, or 0 if it is none or has too many. */
static size_t numbers(const json_t *list, double *out)
{
    size_t i, count = json_array_size(list);
    const json_t *number;

    if (count > ADAM_MAX)
        return 0;
    json_array_foreach(list, i, number) {
        if (!json_is_number(number))
            return 0;
        out[i] = json_number_value(number);
    }
    return count;
}

static double number_of(const json_t *record, const char *key)
{
    return json_number_value(json_object_get(record, key));
}

static bool adam_kind(const char *name, enum dp_optimizer_kind *out)
{
    static const char *const names[] = {"SGD", "Adam", "AdamW", "AccumAdam", "AccumAdamW"};

    for (int i = 0; name && i < DP_OPTIMIZER_KINDS; i++)
        if (!strcmp(name, names[i])) {
            *out = (enum dp_optimizer_kind)i;
            return true;
        }
    return false;
}

/* All steps of one record. Differences of a few units in the last place of the largest value that the
 * parameter had are none; exact counts those that are the same bits. */
static enum verdict replay_adam(struct golden *g, size_t index, const json_t *record,
                                struct dp_optimizer *optimizer, double *x, double *grads,
                                size_t count, size_t *exact, size_t *total)
{
    const json_t *all_grads = json_object_get(record, "grads");
    const json_t *all_params = json_object_get(record, "params");
    double expected[ADAM_MAX], largest[ADAM_MAX];

    for (size_t i = 0; i < count; i++)
        largest[i] = fmax(fabs(x[i]), 0x1p-10);
    if (!json_array_size(all_grads) || json_array_size(all_grads) != json_array_size(all_params))
        return NOTE(g, FAILED, "record %zu: not as many gradients as parameters", index);
    for (size_t t = 0; t < json_array_size(all_grads); t++) {
        if (numbers(json_array_get(all_grads, t), grads) != count ||
            numbers(json_array_get(all_params, t), expected) != count)
            return NOTE(g, FAILED, "record %zu, step %zu: not %zu numbers", index, t, count);
        if (dp_optimizer_step(optimizer, &(struct dp_optimizer_step){
                                             .rate = number_of(record, "lr"), .scale = 1}))
            return NOTE(g, FAILED, "record %zu: %s", index, dp_last_error());
        for (size_t i = 0; i < count; i++) {
            largest[i] = fmax(largest[i], fabs(expected[i]));
            if (!(fabs(x[i] - expected[i]) <= 8 * 0x1p-53 * largest[i]))
                return NOTE(g, FAILED, "record %zu, step %zu: parameter %zu is %.17g by us, %.17g there",
                            index, t, i, x[i], expected[i]);
            *exact += x[i] == expected[i];
            *total += 1;
        }
    }
    return PASSED;
}

static enum verdict check_adam_record(struct golden *g, size_t index, const json_t *record,
                                      size_t *exact, size_t *total)
{
    double x[ADAM_MAX], grads[ADAM_MAX];
    const json_t *betas = json_object_get(record, "betas");
    int64_t count = (int64_t)numbers(json_object_get(record, "p0"), x);
    DLTensor value = {.data = x, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLFloat, 64, 1},
                      .shape = &count};
    DLTensor grad = value;
    const struct dp_parameter parameter = {.name = "p", .value = &value, .grad = &grad};
    struct dp_optimizer_config config;
    struct dp_optimizer *optimizer;
    enum dp_optimizer_kind kind;
    enum verdict verdict;

    grad.data = grads;
    if (!count || !adam_kind(json_string_value(json_object_get(record, "opt")), &kind))
        return NOTE(g, FAILED, "record %zu: an optimizer that is not known here, or no p0", index);
    config = dp_optimizer_defaults(kind);
    config.beta1 = json_number_value(json_array_get(betas, 0));
    config.beta2 = json_number_value(json_array_get(betas, 1));
    config.epsilon = number_of(record, "eps");
    config.weight_decay = number_of(record, "weight_decay");
    config.accumulation = (int32_t)number_of(record, "accum_iter");
    if (dp_optimizer_new(&config, &parameter, 1, &optimizer))
        return NOTE(g, FAILED, "record %zu: %s", index, dp_last_error());
    verdict = replay_adam(g, index, record, optimizer, x, grads, (size_t)count, exact, total);
    dp_optimizer_free(optimizer);
    return verdict;
}

static enum verdict check_decent_adam(struct golden *g)
{
    size_t i, exact = 0, total = 0;
    enum verdict verdict = PASSED;
    const json_t *record;

    json_array_foreach(g->value, i, record) {
        verdict = check_adam_record(g, i, record, &exact, &total);
        if (verdict != PASSED)
            return verdict;
    }
    return NOTE(g, PASSED, "all %zu records; of %zu numbers %zu to the last bit",
                json_array_size(g->value), total, exact);
}

/* ---- shards of an offloaded model ----------------------------------------------------------- */

static bool is_offload_split(const json_t *value)
{
    return all_have(value, KEYS("params_per_layer", "num_slices", "shards"));
}

/* Whether the lists are of the layers first[k] to first[k + 1] - 1. */
static bool same_shards(const json_t *lists, const int32_t *first, int32_t shards)
{
    bool same = (int32_t)json_array_size(lists) == shards;

    for (int32_t k = 0; k < shards && same; k++) {
        const json_t *list = json_array_get(lists, (size_t)k), *layer;
        size_t i;
        same = (int32_t)json_array_size(list) == first[k + 1] - first[k];
        json_array_foreach(list, i, layer)
            same = same && json_integer_value(layer) == first[k] + (int32_t)i;
    }
    return same;
}

enum { MOST_LAYERS = 4096 };

static bool offload_split_is_right(const json_t *record)
{
    static int64_t sizes[MOST_LAYERS];
    static int32_t first[MOST_LAYERS + 1];
    const json_t *layers = json_object_get(record, "params_per_layer"), *size;
    json_int_t slices = json_integer_value(json_object_get(record, "num_slices"));
    int32_t count = (int32_t)json_array_size(layers), shards;
    size_t i;

    if (count > MOST_LAYERS || slices > MOST_LAYERS)
        return false;
    json_array_foreach(layers, i, size)
        sizes[i] = json_integer_value(size);
    return !dp_offload_split(DP_OFFLOAD_SPLIT_COMPAT, sizes, count, (int32_t)slices, first,
                             &shards) &&
           same_shards(json_object_get(record, "shards"), first, shards);
}

static enum verdict check_offload_split(struct golden *g)
{
    const json_t *record;
    size_t i;

    json_array_foreach(g->value, i, record)
        if (!offload_split_is_right(record))
            return NOTE(g, FAILED, "record %zu: the shards differ, or it is not sound", i);
    return NOTE(g, PASSED, "all %zu splits", json_array_size(g->value));
}

/* ---- files --------------------------------------------------------------------------------- */

/* All kinds of golden files. check NULL: the feature is not there yet. */
static const struct kind {
    const char *name;
    bool (*is)(const json_t *value);
    enum verdict (*check)(struct golden *g);
} kinds[] = {
    {"schedule traces", is_trace, check_trace},
    {"micro-batch sizes", is_chunk_sizes, check_chunk_sizes},
    {"mixing graphs", is_topologies, check_topologies},
    {"AsyncPipe event traces", is_asyncpipe_events, check_asyncpipe_events},
    {"AsyncPipe partition vectors", is_asyncpipe_partition, check_asyncpipe_partition},
    {"decentralized Adam vectors", is_decent_adam, check_decent_adam},
    {"decentralized bucket vectors", is_decent_buckets, check_decent_buckets},
    {"decentralized D-PSGD vectors", is_decent_dpsgd, check_decent_dpsgd},
    {"offload split vectors", is_offload_split, check_offload_split},
};

static bool read_whole(FILE *f, struct golden *g)
{
    long size;

    if (fseek(f, 0, SEEK_END) || (size = ftell(f)) < 0 || fseek(f, 0, SEEK_SET))
        return false;
    g->text = malloc((size_t)size + 1);
    g->len = (size_t)size;
    return g->text && fread(g->text, 1, g->len, f) == g->len;
}

static bool load(struct golden *g)
{
    json_error_t error;
    FILE *f = fopen(g->name, "rb");
    bool read = f && read_whole(f, g);
    if (f)
        fclose(f);
    if (!read)
        return NOTE(g, false, "cannot be read");
    g->value = json_loadb(g->text, g->len, JSON_REJECT_DUPLICATES, &error);
    if (!g->value)
        return NOTE(g, false, "line %d: %s", error.line, error.text);
    return true;
}

static enum verdict check_value(struct golden *g)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (!kinds[i].is(g->value))
            continue;
        return kinds[i].check ? kinds[i].check(g)
                              : NOTE(g, SKIPPED, "%s are not yet covered", kinds[i].name);
    }
    return NOTE(g, FAILED, "of no kind that is known here");
}

static enum verdict check_file(const char *name)
{
    static const char *const words[] = {"passed", "failed", "skipped"};
    struct golden g = {.name = name};
    enum verdict verdict = load(&g) ? check_value(&g) : FAILED;

    printf("%s: %s: %s\n", words[verdict], name, g.note);
    json_decref(g.value);
    free(g.text);
    return verdict;
}

static int is_json(const struct dirent *entry)
{
    size_t len = strlen(entry->d_name);
    return len > 5 && !strcmp(entry->d_name + len - 5, ".json");
}

static void quiet(void *user, enum dp_log_level level, const char *line)
{
    (void)user, (void)level, (void)line; /* the line of the file says it */
}

static int check_directory(const char *dir)
{
    struct dirent **entries;
    int counts[3] = {0}, count = -1;

    if (!chdir(dir))
        count = scandir(".", &entries, is_json, alphasort);
    if (count < 0) {
        fprintf(stderr, "golden-check: '%s' cannot be read, expected a directory\n", dir);
        return 2;
    }
    for (int i = 0; i < count; i++) {
        counts[check_file(entries[i]->d_name)]++;
        free(entries[i]);
    }
    free(entries);
    if (!count)
        printf("'%s' has no golden file (*.json)\n", dir);
    printf("%d passed, %d failed, %d skipped\n", counts[PASSED], counts[FAILED], counts[SKIPPED]);
    return counts[FAILED] || !count;
}

int main(int argc, char **argv)
{
    const char *data = getenv("DP_TEST_DATA");

    if (argc > 2 || (argc < 2 && (!data || chdir(data)))) {
        fprintf(stderr, "usage: golden-check DIR\n");
        return 2;
    }
    dp_log_set(quiet, NULL, DP_LOG_ERROR);
    return check_directory(argc == 2 ? argv[1] : "golden");
}
