/* SPDX-License-Identifier: Apache-2.0
 *
 * results_text.c - what NCCL's tests print:
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
#include "command.h"
#include "digest.h"
#include "tune/results.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
