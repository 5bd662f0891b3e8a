/* SPDX-License-Identifier: Apache-2.0 */
#include "tune/results.h"

#include "command.h"
#include "files.h"

#include <dualpipe/options.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { FILE_MAX = 64 << 20, CHANNELS_MAX = 64 };

/* ---- points --------------------------------------------------------------------------------- */

static bool is_same(const struct tune_point *a, const struct tune_point *b)
{
    return a->function == b->function && a->ranks == b->ranks && a->nodes == b->nodes &&
           a->bytes == b->bytes && a->algorithm == b->algorithm && a->protocol == b->protocol &&
           a->channels == b->channels;
}

static int add_point(struct tune_results *r, const struct tune_point *point)
{
    r->measured++;
    for (size_t i = 0; i < r->count; i++)
        if (is_same(&r->points[i], point)) {
            r->points[i].sum_us += point->sum_us;
            r->points[i].count++;
            return 0;
        }
    if (r->count == r->capacity) {
        size_t capacity = 2 * r->capacity + 64;
        struct tune_point *points = realloc(r->points, capacity * sizeof(*points));
        if (!points)
            return command_broke("no memory for %zu measurements", capacity);
        r->points = points;
        r->capacity = capacity;
    }
    r->points[r->count++] = *point;
    return 0;
}

static int compare_numbers(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

static int by_place(const void *x, const void *y)
{
    const struct tune_point *a = x, *b = y;
    const int64_t facts[][2] = {
        {a->nodes, b->nodes},         {a->ranks, b->ranks},       {a->function, b->function},
        {a->bytes, b->bytes},         {a->algorithm, b->algorithm}, {a->protocol, b->protocol},
        {a->channels, b->channels},
    };
    int order = 0;

    for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]) && !order; i++)
        order = compare_numbers(facts[i][0], facts[i][1]);
    return order;
}

void tune_results_sort(struct tune_results *r)
{
    if (r->count)
        qsort(r->points, r->count, sizeof(*r->points), by_place);
}

void tune_results_fini(struct tune_results *r)
{
    free(r->points);
    *r = (struct tune_results){0};
}

/* ---- what a run says of itself --------------------------------------------------------------- */

/* "NVLSTree" and "nvls_tree" are the same. */
static bool is_same_word(const char *a, const char *b)
{
    while (*a && *b) {
        if (*a == '_' || *b == '_') {
            a += *a == '_';
            b += *b == '_';
        } else if (strncasecmp(a++, b++, 1)) {
            return false;
        }
    }
    return !*a && !*b;
}

static int find_word(enum dp_names names, int count, const char *word)
{
    for (int i = 0; i < count; i++)
        if (is_same_word(dp_name(names, i), word))
            return i;
    return -1;
}

static int set_choice(const struct tune_run *run, const char *name, const char *value,
                      enum dp_names names, int count, int *out)
{
    int found = find_word(names, count, value);

    if (found < 0)
        return command_misused("%s: %s=%s is not one choice; say which one it is, as in "
                               "ring/simple=%s", run->path, name, value, run->path);
    *out = found;
    return 0;
}

/* As NCCL takes it: at most CHANNELS_MAX, and what is no number above 0 counts for nothing. */
static int count_channels(const char *value)
{
    const long channels = strtol(value, NULL, 10);

    return channels < 0 ? 0 : channels > CHANNELS_MAX ? CHANNELS_MAX : (int)channels;
}

int tune_run_variable(struct tune_run *run, const char *name, const char *value)
{
    if (run->is_labelled)
        return 0;
    if (!strcmp(name, "NCCL_ALGO"))
        return set_choice(run, name, value, DP_NAMES_ALGORITHM, DP_TUNING_ALGORITHMS,
                          &run->algorithm);
    if (!strcmp(name, "NCCL_PROTO"))
        return set_choice(run, name, value, DP_NAMES_PROTOCOL, DP_TUNING_PROTOCOLS,
                          &run->protocol);
    if (!strcmp(name, "NCCL_MIN_NCHANNELS"))
        run->channels = count_channels(value);
    return 0;
}

void tune_run_program(struct tune_run *run, const char *program)
{
    static const char *const programs[DP_TUNING_FUNCTIONS] = {
        "broadcast_perf", "reduce_perf", "all_gather_perf", "reduce_scatter_perf",
        "all_reduce_perf"};
    const char *slash = strrchr(program, '/'), *name = slash ? slash + 1 : program;

    for (int i = 0; i < DP_TUNING_FUNCTIONS && run->function < 0; i++)
        if (!strncmp(name, programs[i], strlen(programs[i])))
            run->function = i;
}

static int check_run(const struct tune_run *run)
{
    if (run->function < 0)
        return command_misused("%s does not say which collective it is; expected one of NCCL's tests "
                               "that the tuner is asked about, or --collective", run->path);
    if (!run->ranks)
        return command_misused("%s does not say how many ranks took part; expected its list of "
                               "devices, or --ranks", run->path);
    if (run->ranks == 1)
        return command_misused(
            "%s is of one rank, which sends nothing; expected two at least. Processes that "
            "should have joined need tests that were built with MPI=1",
            run->path);
    if ((run->algorithm < 0) != (run->protocol < 0))
        return command_misused("%s: NCCL_ALGO or NCCL_PROTO alone is not one choice, expected both, or "
                               "as in ring/simple=%s", run->path, run->path);
    return 0;
}

static bool is_or_becomes(char known[TUNE_CELL_LEN], const char *word)
{
    if (!*known && word)
        snprintf(known, TUNE_CELL_LEN, "%s", word);
    return !word || !strncmp(known, word, TUNE_CELL_LEN - 1);
}

/* Times of other types and operations are no alternatives. */
static int check_operation(const struct tune_run *run, const struct tune_row *row,
                           struct tune_results *r)
{
    struct tune_operation *known = &r->operations[run->function];

    if (is_or_becomes(known->type, row->type) && is_or_becomes(known->op, row->op))
        return 0;
    return command_misused("%s:%d: %s of %s, %s; expected %s, %s as in what was read before",
                           run->path, row->line, dp_name(DP_NAMES_FUNCTION, run->function),
                           row->type ? row->type : "?", row->op ? row->op : "?", known->type,
                           known->op);
}

int tune_run_add(const struct tune_run *run, const struct tune_row *row, struct tune_results *r)
{
    int status = check_run(run);

    if (!status)
        status = check_operation(run, row, r);
    if (status)
        return status;
    if (row->bytes < 0 || !(row->us > 0) || row->us > 1e12)
        return command_misused("%s:%d: a size of %lld bytes in %g us, expected what can be",
                               run->path, row->line, (long long)row->bytes, row->us);
    return row->bytes ? add_point(r, &(struct tune_point){run->function, run->ranks,
                                                          run->nodes ? run->nodes : 1, row->bytes,
                                                          run->algorithm, run->protocol,
                                                          run->channels, row->us, 1})
                      : 0;
}

/* ---- files ---------------------------------------------------------------------------------- */

/* "ring/simple/8" -> run. False: it is none. */
static bool parse_label(const char *text, size_t len, struct tune_run *run)
{
    char algorithm[TUNE_CELL_LEN], protocol[TUNE_CELL_LEN], copy[2 * TUNE_CELL_LEN];
    int channels = 0, used = 0;

    if (len >= sizeof(copy))
        return false;
    snprintf(copy, sizeof(copy), "%.*s", (int)len, text);
    run->is_labelled = true;
    if (!strcmp(copy, "default"))
        return true;
    int parts = sscanf(copy, "%31[a-zA-Z0-9_]/%31[a-zA-Z0-9_]%n/%d%n", algorithm, protocol, &used,
                       &channels, &used);
    if (parts < 2 || (size_t)used != len || channels < 0 || channels > CHANNELS_MAX)
        return false;
    run->algorithm = find_word(DP_NAMES_ALGORITHM, DP_TUNING_ALGORITHMS, algorithm);
    run->protocol = find_word(DP_NAMES_PROTOCOL, DP_TUNING_PROTOCOLS, protocol);
    run->channels = channels;
    return run->algorithm >= 0 && run->protocol >= 0;
}

/* malloc'ed, with a NUL. */
static int read_file(const char *path, char **out, size_t *len)
{
    *out = input_read(path, FILE_MAX, len);
    if (*out)
        return 0;
    if (errno == EFBIG)
        return command_misused("%s: more than %d MiB, expected an output of NCCL's tests", path,
                               FILE_MAX >> 20);
    return command_misused("%s: %s", path, strerror(errno));
}

static struct tune_run run_of(const char *operand, const struct tune_run *assumed)
{
    struct tune_run run = *assumed, labelled = *assumed;
    const char *equals = strchr(operand, '=');

    run.path = operand;
    if (equals && parse_label(operand, (size_t)(equals - operand), &labelled)) {
        labelled.path = equals + 1;
        return labelled;
    }
    return run;
}

int tune_results_read(const char *operand, const struct tune_run *assumed, struct tune_results *r)
{
    struct tune_run run = run_of(operand, assumed);
    size_t len, before = r->measured;
    char *text;
    int status = read_file(run.path, &text, &len);

    if (status)
        return status;
    if (dp_check_utf8(text, len, run.path))
        status = EXIT_USAGE;
    else if (text[strspn(text, " \t\r\n")] == '{')
        status = tune_read_json(text, len, &run, r);
    else
        status = tune_read_text(text, &run, r);
    free(text);
    if (!status && r->measured == before)
        status = command_misused("%s: no measurement, expected an output of NCCL's tests", run.path);
    return status;
}
