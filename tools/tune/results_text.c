/* SPDX-License-Identifier: Apache-2.0
 *
 * results_text.c - what NCCL's tests print:
 *
 *      # Collective test starting: all_reduce_perf
 *      #  Rank  0 Group  0 Pid  12345 on      node0 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
 *      #       size         count      type   redop    root     time   algbw   busbw #wrong     time ...
 *              1024           256     float     sum      -1    24.31    0.04    0.08      0    24.02 ...
 *
 * The line of names says which columns are times: out of place and in place, and both count. Older
 * ones have no first line, and mpirun may put a name in front of every line.
 */
#include "command.h"
#include "digest.h"
#include "tune/results.h"

#include <stdlib.h>
#include <string.h>

enum { FIELDS_MAX = 24, HOSTS_MAX = 4096 };

struct reader {
    struct tune_run *run;
    struct tune_results *results;
    int line;
    int times[2], time_count; /* the columns that are times */
    int64_t ranks, nodes;     /* seen so far */
    uint64_t hosts[HOSTS_MAX];
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
static void read_device(struct reader *r, const char *line)
{
    const char *on = strstr(line, " on ");

    if (!on || !strstr(on, " device "))
        return;
    r->ranks++;
    count_host(r, on + 4 + strspn(on + 4, " \t"));
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
static void read_names(struct reader *r, char *line)
{
    char *fields[FIELDS_MAX];
    int count = split(line, fields);

    r->time_count = 0;
    for (int i = 1; i < count && r->time_count < 2; i++)
        if (!strcmp(fields[i], "time") || !strcmp(fields[i], "cputime"))
            r->times[r->time_count++] = i - 1;
}

static int read_comment(struct reader *r, char *line)
{
    static const char *const titles[] = {"Collective test starting: ",
                                         "Collective test concluded: "};

    for (int i = 0; i < 2; i++) {
        const char *title = strstr(line, titles[i]);
        if (title)
            tune_run_program(r->run, title + strlen(titles[i]));
    }
    if (strstr(line, " Rank "))
        read_device(r, line);
    else if (strstr(line, " redop ") && strstr(line, "time"))
        read_names(r, line);
    return 0;
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
    int count = split(line, fields), times = 0;
    double sum = 0;

    for (int i = 0; i < r->time_count; i++) {
        double us = r->times[i] < count ? strtod(fields[r->times[i]], &end) : 0;
        if (!(us > 0) || *end)
            continue;
        if (r->times[i] + 3 < count && strtod(fields[r->times[i] + 3], NULL) > 0)
            return command_misused("%s:%d: %s results are wrong, expected none", r->run->path,
                                   r->line, fields[r->times[i] + 3]);
        sum += us;
        times++;
    }
    if (!times)
        return command_misused("%s:%d: no time, expected it in the columns that the line of names says",
                               r->run->path, r->line);
    r->run->ranks = r->run->ranks ? r->run->ranks : r->ranks;
    r->run->nodes = r->run->nodes ? r->run->nodes : r->nodes;
    return tune_run_add(r->run, r->line, strtoll(fields[0], NULL, 10), sum / times, r->results);
}

/* "[1,0]<stdout>:" of mpirun --tag-output */
static char *skip_tag(char *line)
{
    char *end = *line == '[' ? strstr(line, ">:") : NULL;

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
    if (r->time_count && *line >= '0' && *line <= '9')
        return read_row(r, line);
    return 0;
}

int tune_read_text(char *text, struct tune_run *run, struct tune_results *results)
{
    struct reader *r = calloc(1, sizeof(*r));
    int status = 0;

    if (!r)
        return command_broke("no memory to read %s", run->path);
    r->run = run;
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
