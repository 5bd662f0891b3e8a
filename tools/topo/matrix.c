/* SPDX-License-Identifier: Apache-2.0
 *
 * matrix.c - `dualpipe topo matrix`: how near every GPU and NIC of a host is to every other and to
 * every NUMA node, as `nvidia-smi topo -m` prints it; how wide the route is; and what limits it.
 */
#include "command.h"
#include "commands.h"
#include "text.h"
#include "topo/topo.h"

#include <stdlib.h>
#include <string.h>

/* What a row begins with, a cell, and what is usual behind a row. */
enum { LABEL_COLUMNS = 8, CELL_COLUMNS = 7, AFFINITY_COLUMNS = 16 };

struct matrix_args {
    struct topo_args common;
    const char *host;
    bool limits;
};

/* Devices across and down; of one host, or of two. */
struct table {
    const struct dp_topology *t;
    int32_t *rows, *columns; /* each with room for all nodes */
    int row_count, column_count;
    FILE *to;
};

static int table_init(struct table *m, const struct dp_topology *t, FILE *to)
{
    const size_t room = (size_t)t->node_count;
    int32_t *both = malloc(2 * room * sizeof(*both));

    *m = (struct table){.t = t, .rows = both, .columns = both ? both + room : NULL, .to = to};
    return both ? 0 : DP_ENOMEM;
}

static void table_fini(struct table *m)
{
    free(m->rows);
}

static void collect(const struct dp_topology *t, int32_t host, enum dp_topo_kind kind,
                    int32_t *list, int *count)
{
    for (int32_t i = host; (i = dp_topology_next(t, kind, host, i + 1)) >= 0;)
        list[(*count)++] = i;
}

/* ---- a table -------------------------------------------------------------------------------- */

/* Within a table of one host the host's name says nothing. */
static const char *short_label(const struct dp_topology *t, int32_t node, char text[TOPO_WORD])
{
    snprintf(text, TOPO_WORD, "%s%d", dp_name(DP_NAMES_NODE, t->nodes[node].kind), t->nodes[node].index);
    return text;
}

static const char *cell_class(const struct dp_topology *t, const struct dp_topo_path *p,
                              char text[TOPO_WORD])
{
    (void)t;
    return topo_class(p, text);
}

static const char *cell_rate(const struct dp_topology *t, const struct dp_topo_path *p,
                             char text[TOPO_WORD])
{
    bool is_assumed = p->bottleneck >= 0 && t->links[p->bottleneck].flags & DP_TOPO_RATE_ASSUMED;

    if (p->class_ == DP_TOPO_SELF || p->class_ == DP_TOPO_NONE)
        snprintf(text, TOPO_WORD, "%s", dp_name(DP_NAMES_PATH, p->class_));
    else if (p->bytes_per_ns > 0)
        snprintf(text, TOPO_WORD, "%s%.3g", is_assumed ? "~" : "", p->bytes_per_ns);
    else
        snprintf(text, TOPO_WORD, "?");
    return text;
}

typedef const char *(*cell_fn)(const struct dp_topology *t, const struct dp_topo_path *p,
                               char text[TOPO_WORD]);

/* The numbers and names of the CPUs next to a device, as nvidia-smi has them behind each row. */
static void put_affinity(const struct table *m, int32_t node)
{
    const struct dp_topology *t = m->t;

    node = dp_topology_above(t, node, DP_TOPO_NUMA);
    if (node < 0)
        return;
    if (t->nodes[node].os_index < 0)
        fputs("  ?", m->to);
    else
        fprintf(m->to, "  %d", t->nodes[node].os_index);
    fprintf(m->to, "  %s", dp_topology_text(t, t->nodes[node].cpus));
}

/* Columns from `first` on, to `end`. */
static int put_panel(const struct table *m, const char *title, cell_fn cell, int first, int end,
                     bool with_affinity)
{
    char word[TOPO_WORD];

    fprintf(m->to, "%-*s", LABEL_COLUMNS, title);
    for (int k = first; k < end; k++)
        fprintf(m->to, " %6s", short_label(m->t, m->columns[k], word));
    fputs(with_affinity ? "  NUMA and CPUs\n" : "\n", m->to);
    for (int i = 0; i < m->row_count; i++) {
        fprintf(m->to, "%-*s", LABEL_COLUMNS, short_label(m->t, m->rows[i], word));
        for (int k = first; k < end; k++) {
            struct dp_topo_path p;
            int err = dp_topology_path(m->t, m->rows[i], m->columns[k], &p);
            if (err)
                return err;
            fprintf(m->to, " %6s", cell(m->t, &p, word));
        }
        if (with_affinity)
            put_affinity(m, m->rows[i]);
        fputc('\n', m->to);
    }
    return 0;
}

/* Where the table is wider than the terminal, some columns at a time. */
static int put_table(const struct table *m, const char *title, cell_fn cell, bool with_affinity)
{
    const int most = fold_columns(m->to, LABEL_COLUMNS),
              beside = with_affinity ? AFFINITY_COLUMNS : 0,
              room = (most - LABEL_COLUMNS - beside) / CELL_COLUMNS, step = room > 1 ? room : 1;
    int err = 0;

    for (int first = 0; first < m->column_count && !err; first += step) {
        const int left = m->column_count - first, end = first + (left < step ? left : step);
        if (first)
            fputc('\n', m->to);
        err = put_panel(m, title, cell, first, end, with_affinity && end == m->column_count);
    }
    return err;
}

/* Each pair once, with the link that limits it. */
static int put_limits(const struct table *m)
{
    char a[DP_TOPO_LABEL_LEN], b[DP_TOPO_LABEL_LEN], word[TOPO_WORD], link[TOPO_WORD],
        rate[TOPO_WORD];

    fputs("\nthe slowest link of each route\n", m->to);
    for (int i = 0; i < m->row_count; i++)
        for (int k = 0; k < m->column_count; k++) {
            struct dp_topo_path p;
            if (m->rows[i] >= m->columns[k] && m->t->nodes[m->columns[k]].kind != DP_TOPO_NUMA)
                continue;
            int err = dp_topology_path(m->t, m->rows[i], m->columns[k], &p);
            if (err)
                return err;
            if (p.bottleneck < 0)
                continue;
            const struct dp_topo_link *l = &m->t->links[p.bottleneck];
            fprintf(m->to, "  %-8s", short_label(m->t, m->rows[i], word));
            fprintf(m->to, " %-8s", short_label(m->t, m->columns[k], word));
            fprintf(m->to, " %-5s %s to %s: %s, %s\n", topo_class(&p, word),
                    dp_topology_label(m->t, l->a, a), dp_topology_label(m->t, l->b, b),
                    topo_link(l, link), topo_rate(l, rate));
        }
    return 0;
}

/* ---- hosts ---------------------------------------------------------------------------------- */

static void fill(struct table *m, int32_t rows_host, int32_t columns_host)
{
    collect(m->t, rows_host, DP_TOPO_GPU, m->rows, &m->row_count);
    collect(m->t, columns_host, DP_TOPO_GPU, m->columns, &m->column_count);
    if (rows_host != columns_host)
        return;
    collect(m->t, rows_host, DP_TOPO_NIC, m->rows, &m->row_count);
    collect(m->t, rows_host, DP_TOPO_NIC, m->columns, &m->column_count);
    collect(m->t, rows_host, DP_TOPO_NUMA, m->columns, &m->column_count);
    if (!m->row_count)
        collect(m->t, rows_host, DP_TOPO_NUMA, m->rows, &m->row_count);
}

/* The classes, then the rates. */
static int put_both(const struct table *m, bool with_affinity)
{
    int err = put_table(m, "", cell_class, with_affinity);

    fputc('\n', m->to);
    return err ? err : put_table(m, "GB/s", cell_rate, false);
}

static int put_host(const struct dp_topology *t, int32_t host, bool limits, FILE *to)
{
    char word[TOPO_WORD];
    struct table m;

    if (table_init(&m, t, to))
        return DP_ENOMEM;
    fill(&m, host, host);
    int err = put_both(&m, true);
    if (!err && limits)
        err = put_limits(&m);
    for (int i = 0; i < m.row_count && !err; i++)
        if (t->nodes[m.rows[i]].kind == DP_TOPO_NIC && t->nodes[m.rows[i]].name)
            fprintf(to, "%s%s: %s\n", i && t->nodes[m.rows[i - 1]].kind == DP_TOPO_NIC ? "" : "\n",
                    short_label(t, m.rows[i], word), dp_topology_text(t, t->nodes[m.rows[i]].name));
    table_fini(&m);
    return err;
}

static int put_between(const struct dp_topology *t, int32_t a, int32_t b, FILE *to)
{
    char label[DP_TOPO_LABEL_LEN];
    struct table m;
    int err = table_init(&m, t, to);

    if (err)
        return err;
    fill(&m, a, b);
    if (m.row_count && m.column_count) {
        fprintf(to, "\n%s (rows) to ", dp_topology_label(t, a, label));
        fprintf(to, "%s\n", dp_topology_label(t, b, label));
        err = put_both(&m, false);
    }
    table_fini(&m);
    return err;
}

static const char legend[] =
    "NV# NVLinks  XGMI# of AMD  C2C chip to chip  PIX one PCI switch  PXB several  PHB PCI root\n"
    "NODE two roots  SYS two NUMA nodes  NET one rail  NET* over the spine\n"
    "- no route  ~ assumed  ? not known";

static int put_all(const struct dp_topology *t, bool limits, FILE *to)
{
    struct topo_hosts *h = topo_hosts_compare(t);
    int err = h ? 0 : DP_ENOMEM;

    for (int32_t i = 0; i < t->host_count && !err; i++) {
        if (h->first[i] != i)
            continue;
        if (t->host_count > 1) {
            fputs(i ? "\n" : "", to);
            topo_hosts_put(t, h, i, to);
            fputs("\n", to);
        }
        err = put_host(t, h->nodes[i], limits, to);
    }
    if (!err && t->host_count > 1)
        err = put_between(t, h->nodes[0], h->nodes[1], to);
    free(h);
    return err;
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static int put_json_cell(const struct table *m, int32_t a, int32_t b, bool is_first)
{
    char label[DP_TOPO_LABEL_LEN], word[TOPO_WORD];
    struct dp_topo_path p;
    int err = dp_topology_path(m->t, a, b, &p);

    if (err)
        return err;
    fprintf(m->to, "%s{\"a\": ", is_first ? "" : ",\n");
    text_put_json(m->to, dp_topology_label(m->t, a, label));
    fputs(", \"b\": ", m->to);
    text_put_json(m->to, dp_topology_label(m->t, b, label));
    fprintf(m->to,
            ", \"class\": \"%s\", \"bytes_per_ns\": %.15g, \"latency_ns\": %.15g, \"slowest\": ",
            topo_class(&p, word), p.bytes_per_ns, p.latency_ns);
    if (p.bottleneck < 0)
        fputs("null}", m->to);
    else
        fprintf(m->to, "%d}", p.bottleneck);
    return 0;
}

static int put_json_host(const struct dp_topology *t, int32_t host, bool *is_first, FILE *to)
{
    struct table m;
    int err = table_init(&m, t, to);

    if (err)
        return err;
    fill(&m, host, host);
    for (int r = 0; r < m.row_count; r++)
        for (int c = 0; c < m.column_count && !err; c++, *is_first = false)
            err = put_json_cell(&m, m.rows[r], m.columns[c], *is_first);
    table_fini(&m);
    return err;
}

/* host: only this one; -1: one of each kind. */
static int put_json(const struct dp_topology *t, int32_t host, FILE *to)
{
    struct topo_hosts *h = topo_hosts_compare(t);
    bool is_first = true;
    int err = h ? 0 : DP_ENOMEM;

    fputs("[", to);
    for (int32_t i = 0; i < t->host_count && !err; i++)
        if (host < 0 ? h->first[i] == i : h->nodes[i] == host)
            err = put_json_host(t, h->nodes[i], &is_first, to);
    fputs("]\n", to);
    free(h);
    return err;
}

/* ---- the command ---------------------------------------------------------------------------- */

static int write_matrix(const void *values, const struct operands *operands,
                        const struct dp_topology *t, FILE *to)
{
    const struct matrix_args *a = values;
    const bool json = !strcmp(a->common.format, "json");
    int32_t host;
    int err = topo_find_host(t, a->host, &host);

    (void)operands;
    if (!err && json)
        err = put_json(t, a->host ? host : -1, to);
    else if (!err)
        err = a->host ? put_host(t, host, a->limits, to) : put_all(t, a->limits, to);
    if (!err && !json) {
        fputc('\n', to);
        fold_paragraph(to, legend);
    }
    return err ? err : topo_finish(to);
}

#define AT(member) .offset = offsetof(struct matrix_args, member)

static const struct arg args[] = {
    {"format", 'f', NULL, "what to write", ARG_CHOICE, AT(common.format), .fallback = "text",
     .choices = args_text_or_json},
    {"host", 0, "NAME", "of this host only (default: of each kind of host)", ARG_STRING, AT(host)},
    {"limits", 'l', NULL, "also print the slowest link of each route", ARG_FLAG, AT(limits)},
};

int run_topo_matrix(int argc, char **argv)
{
    const struct arg_group groups[] = {topo_source_group, ARG_GROUP("output", args), {0}};
    const struct usage usage = {
        .command = "dualpipe topo matrix", .groups = groups,
        .about = "Print how near every GPU and NIC is to every other and to every NUMA node, in the\n"
                 "classes of 'nvidia-smi topo -m', and how many GB/s the route carries. Hosts that are\n"
                 "alike are printed once; of several, the routes from the first to the second, too.",
        .examples = "  dualpipe topo matrix\n"
                    "  dualpipe topo matrix --synthetic pcie-server --limits\n"
                    "  dualpipe topo matrix --synthetic 'dgx-h100 host:2'\n",
    };
    struct matrix_args a = {.host = NULL};

    return topo_run(&usage, argc, argv, &a, write_matrix);
}
