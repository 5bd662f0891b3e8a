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
#include <dualpipe/microbatch.h>
#include <dualpipe/schedule.h>

#include <dirent.h>
#include <jansson.h>
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

/* ---- vectors of later features -------------------------------------------------------------- */

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

static bool is_asyncpipe_events(const json_t *value)
{
    return all_have(value, KEYS("layers", "balance", "chunks", "events"));
}

static bool is_asyncpipe_partition(const json_t *value)
{
    return all_have(value, KEYS("layers", "balance", "correct_groups", "correct_invocations"));
}

static bool is_decent_adam(const json_t *value)
{
    return all_have(value, KEYS("opt", "accum_iter", "grads", "params"));
}

static bool is_decent_buckets(const json_t *value)
{
    return all_have(value, KEYS("numel", "bucket_mb", "buckets"));
}

static bool is_decent_dpsgd(const json_t *value)
{
    return all_have(value, KEYS("cfg", "ranks"));
}

static bool is_offload_split(const json_t *value)
{
    return all_have(value, KEYS("params_per_layer", "num_slices", "shards"));
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
    {"AsyncPipe event traces", is_asyncpipe_events, NULL},
    {"AsyncPipe partition vectors", is_asyncpipe_partition, NULL},
    {"decentralized Adam vectors", is_decent_adam, NULL},
    {"decentralized bucket vectors", is_decent_buckets, NULL},
    {"decentralized D-PSGD vectors", is_decent_dpsgd, NULL},
    {"offload split vectors", is_offload_split, NULL},
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
