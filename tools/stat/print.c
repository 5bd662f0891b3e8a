/* SPDX-License-Identifier: Apache-2.0
 *
 * print.c - rows of any kind for programs: JSON, and Prometheus' text exposition format, version 0.0.4,
 * which has all samples of a metric together, after its HELP and TYPE.
 * https://prometheus.io/docs/instrumenting/exposition_formats/
 */
#include "stat/pages.h"

#include <inttypes.h>
#include <math.h>

const char *stat_bytes_text(double bytes, char *text, size_t len)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    size_t unit = 0;

    for (; bytes >= 1000 && unit + 1 < sizeof(units) / sizeof(units[0]); unit++)
        bytes /= 1000;
    snprintf(text, len, "%.3g %s", bytes, units[unit]);
    return text;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Places of a histogram that are not empty: "below", which none of them reaches. */
static json_t *json_histogram(const uint64_t *histogram, int places)
{
    json_t *all = json_array();

    for (int i = 0; i < places; i++)
        if (histogram[i])
            json_array_append_new(all, json_pack("{sI, sI}", "below", (json_int_t)1 << i, "count",
                                                 (json_int_t)histogram[i]));
    return all;
}

void stat_json_values(json_t *to, const struct stat_kind *kind, const struct stat_row *row, int first,
                      int last)
{
    const struct dp_page_column *c = kind->page->columns;

    for (int i = 0; i <= last; i += c->places, c++) {
        json_t *value = i < first                        ? NULL
                        : c->type == DP_PAGE_HISTOGRAM   ? json_histogram(&row->values[i], c->places)
                        : c->type != DP_PAGE_REAL        ? json_integer((json_int_t)row->values[i])
                        : isfinite(stat_real(row, i))    ? json_real(stat_real(row, i))
                                                         : NULL;
        if (value)
            json_object_set_new(to, c->name, value);
    }
}

/* ---- Prometheus ------------------------------------------------------------------------------ */

struct sample {
    FILE *to;
    const struct stat_kind *kind;
    const struct stat_metric *metric;
    const struct dp_page_column *column;
    double unit; /* of Prometheus in ours */
    const struct stat_page *page;
    const struct stat_row *row;
};

static void put_escaped(FILE *to, const char *text, size_t most)
{
    for (const char *end = text + most; text < end && *text; text++) {
        if (*text == '"' || *text == '\\')
            putc('\\', to);
        putc(*text, to);
    }
}

/* The name and its labels, without the brace at the end. */
static void put_name(const struct sample *s, const char *suffix)
{
    char comma = '{';

    fprintf(s->to, "dualpipe_%s_%s%s", s->kind->set, s->metric->name, suffix);
    if (s->kind->has_process) {
        /* Containers share numbers of processes; the names of their pages differ. */
        fprintf(s->to, "{pid=\"%" PRId64 "\",process=\"", s->page->pid);
        put_escaped(s->to, s->page->file, strcspn(s->page->file, "."));
        fputs("\"", s->to);
        comma = ',';
    }
    for (int i = 0; i < s->row->fields; i++)
        if (s->kind->labels[i]) {
            fprintf(s->to, "%c%s=\"", comma, s->kind->labels[i]);
            put_escaped(s->to, stat_field(s->row, i), STAT_TEXT);
            fputs("\"", s->to);
            comma = ',';
        }
}

/* A place k has what is below 2^k, so at most 2^k - 1; the last has all that are larger, too. */
static void put_histogram(const struct sample *s)
{
    const uint64_t *places = &s->row->values[s->metric->value];
    uint64_t sum = 0;

    for (int k = 0; k < s->column->places; k++) {
        sum += places[k];
        put_name(s, "_bucket");
        if (k < s->column->places - 1)
            fprintf(s->to, ",le=\"%.17g\"} %" PRIu64 "\n", (double)((UINT64_C(1) << k) - 1) / s->unit,
                    sum);
        else
            fprintf(s->to, ",le=\"+Inf\"} %" PRIu64 "\n", sum);
    }
    put_name(s, "_count");
    fprintf(s->to, "} %" PRIu64 "\n", sum);
    put_name(s, "_sum");
    fprintf(s->to, "} %.17g\n", (double)s->row->values[s->metric->sum] / s->unit);
}

static void put_value(const struct sample *s, int place)
{
    const int value = s->metric->value + place;
    const double real = stat_real(s->row, value);

    if (s->column->type == DP_PAGE_REAL && isnan(real))
        return;
    put_name(s, "");
    if (s->metric->place)
        fprintf(s->to, ",for=\"%s\"", s->metric->place(place));
    if (s->column->type == DP_PAGE_REAL)
        fprintf(s->to, "} %.17g\n", real / s->unit);
    else if (s->unit == 1)
        fprintf(s->to, "} %" PRIu64 "\n", s->row->values[value]);
    else
        fprintf(s->to, "} %.9f\n", (double)s->row->values[value] / s->unit);
}

static void put_samples(const struct sample *s)
{
    if (s->column->type == DP_PAGE_HISTOGRAM)
        put_histogram(s);
    else
        for (int place = 0; place < s->column->places; place++)
            put_value(s, place);
}

static void put_metric(struct sample *s, const struct stat_list *list)
{
    s->column = s->kind->page->columns;
    for (int at = 0; at < s->metric->value; s->column++)
        at += s->column->places;
    s->unit = !strcmp(s->column->unit, "ns") ? 1e9 : !strcmp(s->column->unit, "ms") ? 1e3 : 1;
    fprintf(s->to, "# HELP dualpipe_%s_%s %s\n# TYPE dualpipe_%s_%s %s\n", s->kind->set, s->metric->name,
            s->metric->help, s->kind->set, s->metric->name, s->metric->type);
    for (int i = 0; i < list->count; i++) {
        s->page = &list->pages[i];
        for (int r = 0; r < s->page->sums[0].count; r++) {
            s->row = &s->page->sums[0].list[r];
            put_samples(s);
        }
    }
}

void stat_prometheus(FILE *to, const struct stat_list *list)
{
    struct sample s = {.to = to, .kind = list->kind};

    for (int i = 0; i < list->kind->metric_count; i++) {
        s.metric = &list->kind->metrics[i];
        put_metric(&s, list);
    }
}
