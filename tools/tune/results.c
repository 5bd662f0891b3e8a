/* SPDX-License-Identifier: Apache-2.0
 *
 * results.c - what NCCL's tests measured, as text or as JSON, becomes points.
 */
#include "tune/results.h"

#include "command.h"
#include "digest.h"
#include "files.h"

#include <dualpipe/options.h>

#include <jansson.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A measured size; run says the rest. */
struct tune_row {
    int line; /* 0: JSON */
    int64_t bytes;
    double us;
    const char *type, *op; /* NULL: not said */
};

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

/* A variable that the run was made with: NCCL_ALGO, NCCL_PROTO, NCCL_MIN_NCHANNELS. Others are left
 * alone, as is a run that is labelled. */
static int tune_run_variable(struct tune_run *run, const char *name, const char *value)
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

/* "all_reduce_perf", with or without directories; other programs leave the function unknown. */
static void tune_run_program(struct tune_run *run, const char *program)
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

static int tune_run_add(const struct tune_run *run, const struct tune_row *row, struct tune_results *r)
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

/* ---- as JSON --------------------------------------------------------------------------------- */

/* What NCCL's tests write with -J: {"args": ["./all_reduce_perf", ...], "env":
 * ["NCCL_ALGO=Ring", ...], "config": {"nthreads": 1, "ngpus": 1, "devices": [{"hostname": ...}]},
 * "results": [{"size": 1024, "out_of_place": {"time": 24.3, "nwrong": 0}, "in_place": ...}]}
 */
enum { OF_A_PROCESS_MAX = 1 << 16 }; /* threads, or GPUs */

static int read_environment(const json_t *env, struct tune_run *run)
{
    int status = 0;
    size_t i;
    const json_t *entry;
    char name[64];

    json_array_foreach (env, i, entry) {
        const char *text = json_string_value(entry), *equals = text ? strchr(text, '=') : NULL;
        if (!equals || (size_t)(equals - text) >= sizeof(name) || status)
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)(equals - text), text);
        status = tune_run_variable(run, name, equals + 1);
    }
    return status;
}

static const char *host_of(const json_t *devices, size_t i)
{
    const char *name = json_string_value(json_object_get(json_array_get(devices, i), "hostname"));

    return name ? name : "";
}

static bool is_new_host(const json_t *devices, size_t device)
{
    bool is_new = true;

    for (size_t i = 0; i < device && is_new; i++)
        is_new = strcmp(host_of(devices, device), host_of(devices, i));
    return is_new;
}

static int64_t number_of(const json_t *config, const char *key)
{
    json_int_t number = json_integer_value(json_object_get(config, key));

    return number > 0 && number <= OF_A_PROCESS_MAX ? number : 1;
}

/* One device is listed of every process, which has a rank for each of its threads and GPUs. */
static int read_config(const json_t *config, struct tune_run *run)
{
    const json_t *devices = json_object_get(config, "devices");
    int64_t ranks = (int64_t)json_array_size(devices), nodes = 0;

    for (size_t i = 0; i < json_array_size(devices); i++) {
        const json_t *device = json_array_get(devices, i);
        if (json_integer_value(json_object_get(device, "group")))
            return command_misused(
                "%s: a rank is in another group, expected all in one communicator", run->path);
        nodes += is_new_host(devices, i);
    }
    if (!run->ranks)
        run->ranks = ranks * number_of(config, "nthreads") * number_of(config, "ngpus");
    if (!run->nodes)
        run->nodes = nodes;
    return 0;
}

/* false: this half was not measured. */
static bool read_time(const json_t *half, double *us, double *wrong)
{
    const json_t *time = json_object_get(half, "time");

    if (!time)
        time = json_object_get(half, "cpu_time");
    *us = json_number_value(time);
    *wrong = json_number_value(json_object_get(half, "nwrong"));
    return *us > 0;
}

static int read_result(const json_t *result, struct tune_run *run, struct tune_results *r)
{
    static const char *const halves[] = {"out_of_place", "in_place"};
    const json_t *size = json_object_get(result, "size");
    double sum = 0, us, wrong;
    int times = 0;

    for (int i = 0; i < 2; i++) {
        if (!read_time(json_object_get(result, halves[i]), &us, &wrong))
            continue;
        if (wrong > 0)
            return command_misused("%s: %g results of size %lld are wrong, expected none",
                                   run->path, wrong, (long long)json_integer_value(size));
        sum += us;
        times++;
    }
    if (!json_is_integer(size) || !times)
        return command_misused("%s: a result without size or time, expected both", run->path);
    return tune_run_add(
        run,
        &(struct tune_row){.bytes = json_integer_value(size),
                           .us = sum / times,
                           .type = json_string_value(json_object_get(result, "type")),
                           .op = json_string_value(json_object_get(result, "redop"))},
        r);
}

static int read_all(const json_t *all, struct tune_run *run, struct tune_results *r)
{
    const json_t *results = json_object_get(all, "results");
    const char *program = json_string_value(json_array_get(json_object_get(all, "args"), 0));
    int status = read_environment(json_object_get(all, "env"), run);
    size_t i;
    const json_t *result;

    if (program)
        tune_run_program(run, program);
    status = status ? status : read_config(json_object_get(all, "config"), run);
    if (!json_is_array(results))
        return command_misused("%s: no \"results\", expected what NCCL's tests write with -J",
                               run->path);
    json_array_foreach (results, i, result)
        status = status ? status : read_result(result, run, r);
    return status;
}

int tune_read_json(const char *text, size_t len, struct tune_run *run, struct tune_results *r)
{
    json_error_t error;
    json_t *all = json_loadb(text, len, 0, &error);

    if (!all)
        return command_misused("%s:%d: %s", run->path, error.line, error.text);
    int status = read_all(all, run, r);
    json_decref(all);
    return status;
}

/* ---- as text --------------------------------------------------------------------------------- */

/* What NCCL's tests print:
 *
 *      # Collective test starting: all_reduce_perf
 *      #  Rank  0 Group  0 Pid  12345 on      node0 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
 *      #       size         count      type   redop    root     time   algbw   busbw #wrong     time ...
 *              1024           256     float     sum      -1    24.31    0.04    0.08      0    24.02 ...
 *
 * The line of names says which columns there are; the times out of place and in place both count.
 * Older ones have no first line, not all of the columns, and as the last of each half an error, the
 * largest deviation of a result, of which only the line "Out of bounds values" says whether it is too
 * large. mpirun and srun may put a name in front of every line. A row that lacks columns was cut.
 */
enum { FIELDS_MAX = 24, HOSTS_MAX = 4096, RANKS_MAX = 1 << 16 };

/* What columns may be; a timestamp is two words. */
enum column {
    SIZE, COUNT, TYPE, REDOP, ROOT, TIME, CPUTIME, ALGBW, BUSBW, WRONG, ERROR, TIMESTAMP, COLUMNS
};
static const char *const column_names[COLUMNS] = {
    "size",    "count", "type",  "redop",  "root",  "time",
    "cputime", "algbw", "busbw", "#wrong", "error", "timestamp",
};

struct reader {
    struct tune_run *run;
    struct tune_results *results;
    int line;
    enum column columns[FIELDS_MAX];
    int column_count;     /* 0: no line of names yet */
    int64_t ranks, nodes; /* seen so far */
    bool has_failed;
    struct tune_run assumed; /* what the user said */
    uint64_t hosts[HOSTS_MAX];
    bool has_rank[RANKS_MAX];
};

static void count_host(struct reader *r, const char *name)
{
    uint64_t h = digest_bytes(DIGEST_BEGIN, name, strcspn(name, " \t"));

    for (int64_t i = 0; i < r->nodes; i++)
        if (r->hosts[i] == h)
            return;
    if (r->nodes < HOSTS_MAX)
        r->hosts[r->nodes++] = h;
}

/* "#  Rank  0 ... on HOST device ..." */
static int read_device(struct reader *r, const char *line)
{
    const char *on = strstr(line, " on ");
    const char *group = strstr(line, " Group ");
    const long rank = strtol(strstr(line, " Rank ") + 6, NULL, 10);

    if (!on || !strstr(on, " device "))
        return 0;
    if (rank < 0 || rank >= RANKS_MAX || r->has_rank[rank])
        return command_misused(
            "%s:%d: rank %ld %s: processes that are not joined, expected tests that were "
            "built with MPI=1",
            r->run->path, r->line, rank,
            rank >= 0 && rank < RANKS_MAX ? "is there twice" : "cannot be");
    if (group && strtol(group + 7, NULL, 10))
        return command_misused(
            "%s:%d: rank %ld is in another group, expected all in one communicator", r->run->path,
            r->line, rank);
    r->has_rank[rank] = true;
    r->ranks++;
    count_host(r, on + 4 + strspn(on + 4, " \t"));
    return 0;
}

/* A list of devices begins, of this run or of another one behind it. */
static void forget_devices(struct reader *r)
{
    r->ranks = r->nodes = 0;
    memset(r->has_rank, 0, sizeof(r->has_rank));
    r->column_count = 0;
}

static int split(char *line, char *fields[FIELDS_MAX])
{
    int count = 0;
    char *rest = NULL;

    for (char *f = strtok_r(line, " \t\r", &rest); f && count < FIELDS_MAX;
         f = strtok_r(NULL, " \t\r", &rest))
        fields[count++] = f;
    return count;
}

/* The line of names has a "#" of its own in front. */
static int read_names(struct reader *r, char *line)
{
    char *fields[FIELDS_MAX];
    const int count = split(line, fields);

    for (int i = 1; i < count; i++) {
        int known = 0;
        while (known < COLUMNS && strcmp(fields[i], column_names[known]))
            known++;
        if (known == COLUMNS)
            return command_misused(
                "%s:%d: a column '%s', expected those of nccl-tests since 2.0: size, count, "
                "type, redop, root, time, algbw, busbw, #wrong",
                r->run->path, r->line, fields[i]);
        r->columns[i - 1] = (enum column)known;
    }
    r->column_count = count - 1;
    return 0;
}

static bool is_time(enum column column)
{
    return column == TIME || column == CPUTIME;
}

static int read_comment(struct reader *r, char *line)
{
    static const char bounds[] = "Out of bounds values : ";
    static const char *const titles[] = {"Collective test starting: ",
                                         "Collective test concluded: "};
    const char *outside = strstr(line, bounds);

    for (int i = 0; i < 2; i++) {
        const char *title = strstr(line, titles[i]);
        if (title && !i) /* another run may have been before */
            r->run->function = r->assumed.function;
        if (title)
            tune_run_program(r->run, title + strlen(titles[i]));
    }
    if (outside && strtol(outside + strlen(bounds), NULL, 10) > 0)
        return command_misused("%s:%d: %s results are wrong, expected none", r->run->path, r->line,
                               strtok(strstr(line, bounds) + strlen(bounds), " "));
    if (strstr(line, "Using devices"))
        forget_devices(r);
    if (strstr(line, " Rank "))
        return read_device(r, line);
    return strstr(line, "time") && strstr(line, " algbw ") ? read_names(r, line) : 0;
}

/* "... NCCL INFO NCCL_ALGO set by environment to Ring" */
static int read_log(struct reader *r, char *line)
{
    static const char says[] = " set by environment to ";
    char *name = strstr(line, "NCCL INFO NCCL_"), *value = strstr(line, says);

    if (!name || !value || value < name)
        return 0;
    *value = '\0';
    value += strlen(says);
    value[strcspn(value, " .\r")] = '\0';
    return tune_run_variable(r->run, name + strlen("NCCL INFO "), value);
}

/* The mean of both times; a column that says N/A has none. */
static int read_row(struct reader *r, char *line)
{
    char *fields[FIELDS_MAX], *end;
    const int count = split(line, fields);
    struct tune_row row = {.line = r->line};
    int times = 0;

    if (count != r->column_count + (r->columns[r->column_count - 1] == TIMESTAMP)) {
        fprintf(stderr, "%s:%d: %d columns, expected %d as in the line of names: passed over\n",
                r->run->path, r->line, count, r->column_count);
        return 0;
    }
    for (int i = 0; i < r->column_count; i++) {
        const double number = strtod(fields[i], &end);
        if (r->columns[i] == SIZE)
            row.bytes = strtoll(fields[i], NULL, 10);
        if (r->columns[i] == TYPE)
            row.type = fields[i];
        if (r->columns[i] == REDOP)
            row.op = fields[i];
        if (r->columns[i] == WRONG && number > 0)
            return command_misused("%s:%d: %s results are wrong, expected none", r->run->path,
                                   r->line, fields[i]);
        if (is_time(r->columns[i]) && number > 0 && !*end) {
            row.us += number;
            times++;
        }
    }
    if (!times)
        return command_misused("%s:%d: no time, expected it in the columns that the line of names says",
                               r->run->path, r->line);
    row.us /= times;
    r->run->ranks = r->assumed.ranks ? r->assumed.ranks : r->ranks;
    r->run->nodes = r->assumed.nodes ? r->assumed.nodes : r->nodes;
    return tune_run_add(r->run, &row, r->results);
}

/* "[1,0]<stdout>:" of mpirun --tag-output, "0: " of srun --label */
static char *skip_tag(char *line)
{
    char *end = *line == '[' ? strstr(line, ">:") : NULL;
    const size_t digits = strspn(line, "0123456789");

    if (digits && !strncmp(line + digits, ": ", 2))
        return line + digits + 2;
    return end ? end + 2 : line;
}

static int read_line(struct reader *r, char *line)
{
    line = skip_tag(line);
    line += strspn(line, " \t");
    if (*line == '#')
        return read_comment(r, line);
    if (strstr(line, "NCCL INFO"))
        return read_log(r, line);
    if (r->column_count && *line >= '0' && *line <= '9')
        return read_row(r, line);
    if (!r->has_failed && strstr(line, ": Test ") && (r->has_failed = strstr(line, " failure")))
        fprintf(stderr, "%s:%d: the test failed: %s; what it measured before counts\n",
                r->run->path, r->line, line);
    return 0;
}

int tune_read_text(char *text, struct tune_run *run, struct tune_results *results)
{
    struct reader *r = calloc(1, sizeof(*r));
    int status = 0;

    if (!r)
        return command_broke("no memory to read %s", run->path);
    r->run = run;
    r->assumed = *run;
    r->results = results;
    for (char *end; *text && !status; text = end) {
        end = text + strcspn(text, "\n");
        if (*end)
            *end++ = '\0';
        r->line++;
        status = read_line(r, text);
    }
    free(r);
    return status;
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
