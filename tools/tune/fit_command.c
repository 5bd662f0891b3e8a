/* SPDX-License-Identifier: Apache-2.0
 *
 * fit_command.c - `dualpipe tune fit`: outputs of NCCL's tests become a table for the tuner.
 */
#include "command.h"
#include "commands.h"
#include "files.h"
#include "topo/topo.h"
#include "tune/results.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a table of JSON ------------------------------------------------------------------------- */

/* All that rules have, in the order in which it comes. */
static json_t *list_columns(const json_t *rules)
{
    json_t *columns = json_object(), *rule;
    size_t i;

    json_array_foreach (rules, i, rule)
        json_object_update_missing(columns, rule);
    return columns;
}

/* false: it is no text of a column. */
static bool put_value(const json_t *value, FILE *to)
{
    char *text = NULL;
    bool is_one = true;

    if (!value || json_is_null(value))
        fputs("any", to);
    else if (json_is_string(value))
        is_one = !strpbrk(json_string_value(value), ",#\n") && fputs(json_string_value(value), to) >= 0;
    else if ((text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17))))
        is_one = !strpbrk(text, "[{") && fputs(text, to) >= 0;
    free(text);
    return is_one;
}

static int put_rules(const char *path, const json_t *rules, FILE *to)
{
    json_t *columns = list_columns(rules), *rule, *unused;
    const char *key, *between = "";
    int status = 0;
    size_t i;

    json_object_foreach (columns, key, unused) {
        fprintf(to, "%s%s", between, key);
        between = ",";
    }
    json_array_foreach (rules, i, rule) {
        between = "\n";
        json_object_foreach (columns, key, unused) {
            fputs(between, to);
            between = ",";
            if (!status && !put_value(json_object_get(rule, key), to))
                status = command_misused("%s: rules[%zu].%s: expected a string without commas, a "
                                         "number, true, false or null", path, i, key);
        }
    }
    json_decref(columns);
    return status;
}

static int convert_rules(const char *path, const json_t *all, struct dp_tuning_table **out)
{
    const json_t *rules = json_object_get(all, "rules");
    char *text = NULL, name[4096];
    size_t len;

    if (json_integer_value(json_object_get(all, "dualpipe_tuning")) != 1 || !json_is_array(rules))
        return command_misused("%s: expected a table of the tuner as JSON, {\"dualpipe_tuning\": 1, "
                               "\"rules\": [...]}", path);
    FILE *to = open_memstream(&text, &len);
    int status = to ? put_rules(path, rules, to) : command_broke("no memory for %s", path);
    if (to && fclose(to) && !status)
        status = command_broke("no memory for %s", path);
    snprintf(name, sizeof(name), "%s, as lines of text", path);
    const int err = status ? 0 : dp_tuning_table_read(text, len, name, out);
    free(text);
    return err ? command_failed(err) : status;
}

/* A table of an older release, as JSON. 0, else an EXIT_ value; the sentence has been printed. */
static int read_json_table(const char *path, struct dp_tuning_table **out)
{
    json_error_t error;
    size_t len;
    char *text = input_read(path, INPUT_MOST, &len);

    if (!text)
        return command_misused("%s: %s", path, input_error(errno));
    json_t *all = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    int status = all ? convert_rules(path, all, out)
                     : command_misused("%s:%d: %s", path, error.line, error.text);
    json_decref(all);
    free(text);
    return status;
}

struct values {
    int64_t ranks, nodes;
    double gain;
    const char *collective, *convert, *output;
};

/* The sizes of one collective in one communicator: sizes[first .. end). */
struct place {
    size_t first, end;
};

static bool next_place(const struct tune_fit *fit, struct place *at)
{
    at->first = at->end;
    while (at->end < fit->count && tune_is_same_place(fit->sizes[at->first].points,
                                                      fit->sizes[at->end].points))
        at->end++;
    return at->first < at->end;
}

static double default_us(const struct tune_size *size)
{
    return tune_point_us(&size->points[0]);
}

/* ---- the table and what it is worth ---------------------------------------------------------- */

static int write_table(const struct dp_tuning_table *table, const char *path)
{
    struct output out;
    char *text;
    size_t len;
    int err = dp_tuning_table_write(table, &text, &len);

    if (err)
        return command_failed(err);
    int status = output_open(path, &out);
    if (!status)
        status = output_close(&out, fwrite(text, 1, len, out.file) == len ? 0 : DP_EIO);
    free(text);
    return status;
}

/* On standard error, as the table may go to standard output. */
static void say_gain(const struct tune_fit *fit, const struct place *at)
{
    const struct tune_point *p = fit->sizes[at->first].points;
    size_t changed = 0;
    double most = 0;

    for (size_t i = at->first; i < at->end; i++) {
        double share = 1 - tune_point_us(fit->sizes[i].choice) / default_us(&fit->sizes[i]);
        changed += fit->sizes[i].choice != fit->sizes[i].points;
        most = share > most ? share : most;
    }
    fprintf(stderr, "%s, %lld ranks on %lld node%s: %zu of %zu sizes changed",
            dp_name(DP_NAMES_FUNCTION, p->function), (long long)p->ranks, (long long)p->nodes,
            p->nodes == 1 ? "" : "s", changed, at->end - at->first);
    fprintf(stderr, changed ? ", up to %.0f %% less time\n" : "\n", 100 * most);
}

/* A file that cannot be written does not cost the figures. */
static int report(const struct tune_fit *fit, const struct values *v)
{
    struct place at = {0, 0};
    int status = write_table(fit->table, v->output);

    while (next_place(fit, &at))
        say_gain(fit, &at);
    if (fit->without_default)
        fprintf(stderr, "%zu sizes left out: NCCL's own choice was not measured there\n",
                fit->without_default);
    return status;
}

/* ---- the command ---------------------------------------------------------------------------- */

static const char *const collectives[] = {"broadcast",     "reduce",    "allgather",
                                          "reducescatter", "allreduce", NULL};

#define AT(member) .offset = offsetof(struct values, member)
static const struct arg read_args[] = {
    {"collective", 0, NULL, "of outputs that do not say it", ARG_CHOICE, AT(collective),
     .choices = collectives},
    {"ranks", 'n', "N", "instead of what the outputs say", ARG_INT, AT(ranks), .min = 1,
     .max = 1 << 20},
    {"nodes", 'N', "N", "the same", ARG_INT, AT(nodes), .min = 1, .max = 1 << 20},
};
static const struct arg write_args[] = {
    {"gain", 0, "PERCENT", "change NCCL's choice only for so much less time", ARG_REAL, AT(gain),
     .fallback = "3", .max = 99},
    {"output", 'o', "FILE", "write the table there", ARG_STRING, AT(output), .written = true},
    {"convert", 0, "FILE", "instead of fitting: a table as JSON, of an older release, as text",
     ARG_STRING, AT(convert)},
};

static int fit_all(const struct values *v, const struct operands *operands)
{
    struct tune_run assumed = {.function = -1, .ranks = v->ranks, .nodes = v->nodes,
                               .algorithm = DP_TUNING_DEFAULT, .protocol = DP_TUNING_DEFAULT};
    struct tune_results results = {0};
    struct tune_fit fit = {0};
    int status = 0;

    if (v->collective)
        assumed.function = tune_find(DP_NAMES_FUNCTION, DP_TUNING_FUNCTIONS, v->collective,
                                     strlen(v->collective));
    for (int i = 0; i < operands->count && !status; i++)
        status = tune_results_read(operands->items[i], &assumed, &results);
    if (!status)
        status = tune_fit(&results, v->gain / 100, &fit);
    if (!status)
        status = report(&fit, v);
    tune_fit_fini(&fit);
    tune_results_fini(&results);
    return status;
}

static int convert(const struct values *v)
{
    struct dp_tuning_table *table = NULL;
    int status = read_json_table(v->convert, &table);

    if (!status)
        status = write_table(table, v->output);
    dp_tuning_table_free(table);
    return status;
}

int run_tune_fit(int argc, char **argv)
{
    const struct arg_group groups[] = {
        ARG_GROUP("what was measured", read_args), ARG_GROUP("the table", write_args), {0}
    };
    const struct usage usage = {
        .command = "dualpipe tune fit", .operands = "[RESULTS...]", .operand_files = true,
        .groups = groups,
        .about = "Turn outputs of NCCL's tests, text or JSON (-J), into a table for the tuner. One\n"
                 "run must be NCCL's own choice; the others were made to take another one, with\n"
                 "NCCL_ALGO and NCCL_PROTO. JSON says which; text does with NCCL_DEBUG=INFO, or\n"
                 "say it: ring/ll128=FILE, or ring/ll128/8=FILE with 8 channels.",
        .examples = "  dualpipe tune fit own.txt ring/ll128=b.txt tree/ll=c.txt -o cluster.csv\n"
                    "  dualpipe tune fit own.json ring.json tree.json -o cluster.csv\n"
                    "  dualpipe tune fit --collective allgather -n 16 -N 2 own.txt ring/ll=b.txt\n",
    };
    struct operands operands;
    struct values v;
    int status;

    if (!args_parse(&usage, argc, argv, &v, &operands, &status))
        return status;
    if (!v.convert == !operands.count)
        return command_misused("'dualpipe tune fit' needs RESULTS..., or --convert FILE alone; "
                               "'dualpipe tune fit --help' explains");
    return v.convert ? convert(&v) : fit_all(&v, &operands);
}
