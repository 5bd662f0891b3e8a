/* SPDX-License-Identifier: Apache-2.0
 *
 * diff.c - `dualpipe topo diff A B`: in what two topologies differ: what one has and the other not,
 * links that became slower, ports that went down. Devices are the same if they have the same label.
 */
#include "command.h"
#include "commands.h"
#include "files.h"
#include "topo/topo.h"

#include <stdlib.h>
#include <string.h>

struct diff {
    const struct dp_topology *a, *b;
    int32_t found;
    FILE *to;
};

static void put(struct diff *d, const char *what, const char *topic, const char *was,
                const char *is)
{
    if (!strcmp(was, is))
        return;
    fprintf(d->to, "%s: %s: %s -> %s\n", what, topic, *was ? was : "none", *is ? is : "none");
    d->found++;
}

/* ---- labels, sorted ------------------------------------------------------------------------- */

struct labelled {
    char label[DP_TOPO_LABEL_LEN];
    int32_t node;
};

static int compare(const void *a, const void *b)
{
    return strcmp(((const struct labelled *)a)->label, ((const struct labelled *)b)->label);
}

static struct labelled *label_all(const struct dp_topology *t)
{
    struct labelled *list = malloc((size_t)t->node_count * sizeof(*list));

    for (int32_t i = 0; list && i < t->node_count; i++) {
        list[i].node = i;
        dp_topology_label(t, i, list[i].label);
        if (t->host_count == 1 && t->nodes[i].kind == DP_TOPO_HOST)
            snprintf(list[i].label, sizeof(list[i].label), "host"); /* whatever it is called */
    }
    if (list)
        qsort(list, (size_t)t->node_count, sizeof(*list), compare);
    return list;
}

/* ---- two nodes ------------------------------------------------------------------------------ */

static void diff_number(struct diff *d, const char *what, const char *topic, int64_t was,
                        int64_t is)
{
    char a[TOPO_WORD], b[TOPO_WORD];

    snprintf(a, sizeof(a), "%lld", (long long)was);
    snprintf(b, sizeof(b), "%lld", (long long)is);
    put(d, what, topic, a, b);
}

static void diff_text(struct diff *d, const char *what, const char *topic, uint32_t was,
                      uint32_t is)
{
    put(d, what, topic, dp_topology_text(d->a, was), dp_topology_text(d->b, is));
}

static void pci_text(const struct dp_topo_pci *p, char text[TOPO_WORD])
{
    text[0] = '\0';
    if (p->known)
        snprintf(text, TOPO_WORD, "%04x:%02x:%02x.%x", p->domain, p->bus, p->device, p->function);
}

static void diff_ports(struct diff *d, const char *what, int32_t x, int32_t y)
{
    int32_t first_a, first_b;
    int32_t count_a = dp_topology_ports(d->a, x, &first_a);
    int32_t count_b = dp_topology_ports(d->b, y, &first_b);
    char a[TOPO_WORD], b[TOPO_WORD];

    diff_number(d, what, "ports", count_a, count_b);
    for (int32_t i = 0; i < count_a && i < count_b; i++) {
        const struct dp_topo_port *p = &d->a->ports[first_a + i], *q = &d->b->ports[first_b + i];
        put(d, what, "rate", topo_port(p, a), topo_port(q, b));
        put(d, what, "state", p->up ? "up" : "down", q->up ? "up" : "down");
        diff_number(d, what, "MTU", p->mtu_bytes, q->mtu_bytes);
    }
}

/* Every link of a node downwards or sideways, as one text: other ends, what they are, rates. */
static char *links_text(const struct dp_topology *t, int32_t node)
{
    char *text = NULL, label[DP_TOPO_LABEL_LEN], link[TOPO_WORD], rate[TOPO_WORD];
    size_t len;
    FILE *f = open_memstream(&text, &len);

    if (!f)
        return NULL;
    for (int32_t k = t->first_around[node], n = 0; k < t->first_around[node + 1]; k++) {
        const struct dp_topo_link *l = &t->links[t->around[k]];
        if (l->b != node && l->kind != DP_TOPO_CPU && !dp_topo_is_gpu_link(l->kind))
            continue;
        fprintf(f, "%sto %s %s, %s", n++ ? "; " : "",
                dp_topology_label(t, dp_topology_across(t, t->around[k], node), label),
                topo_link(l, link), topo_rate(l, rate));
    }
    fclose(f);
    return text;
}

static void diff_links(struct diff *d, const char *what, int32_t x, int32_t y)
{
    char *was = links_text(d->a, x), *is = links_text(d->b, y);

    if (was && is)
        put(d, what, "links", was, is);
    free(was);
    free(is);
}

static void diff_node(struct diff *d, const char *what, int32_t x, int32_t y)
{
    const struct dp_topo_node *n = &d->a->nodes[x], *m = &d->b->nodes[y];
    char a[TOPO_WORD], b[TOPO_WORD];

    diff_text(d, what, "model", n->model, m->model);
    diff_text(d, what, "name", n->name, m->name);
    diff_text(d, what, "CPUs", n->cpus, m->cpus);
    diff_text(d, what, "UUID", n->uuid, m->uuid);
    put(d, what, "memory", topo_size(n->memory_bytes, a), topo_size(m->memory_bytes, b));
    pci_text(&n->pci, a);
    pci_text(&m->pci, b);
    put(d, what, "PCI address", a, b);
    if (n->kind == DP_TOPO_NIC)
        diff_ports(d, what, x, y);
    if (n->kind != DP_TOPO_RAIL && n->kind != DP_TOPO_SPINE)
        diff_links(d, what, x, y);
}

static void only_in(struct diff *d, const char *which, const struct dp_topology *t, int32_t node)
{
    char label[DP_TOPO_LABEL_LEN];

    fprintf(d->to, "only in %s: %s %s\n", which, dp_topology_label(t, node, label),
            dp_topology_text(t, t->nodes[node].model));
    d->found++;
}

/* ---- the command ---------------------------------------------------------------------------- */

static int diff_all(struct diff *d)
{
    struct labelled *a = label_all(d->a), *b = label_all(d->b);
    int32_t i = 0, k = 0;

    if (!a || !b) {
        free(a);
        free(b);
        return DP_ENOMEM;
    }
    while (i < d->a->node_count || k < d->b->node_count) {
        int order = i == d->a->node_count ? 1 : k == d->b->node_count ? -1 : compare(&a[i], &b[k]);
        if (order < 0)
            only_in(d, "the first", d->a, a[i++].node);
        else if (order > 0)
            only_in(d, "the second", d->b, b[k++].node);
        else {
            diff_node(d, a[i].label, a[i].node, b[k].node);
            i++, k++;
        }
    }
    free(a);
    free(b);
    return topo_finish(d->to);
}

static int run_diff(const char *output, struct diff *d)
{
    struct output out;
    int status = output_open(output, &out);

    if (status)
        return status;
    d->to = out.file;
    status = output_close(&out, diff_all(d));
    return status == EXIT_OK && d->found ? EXIT_FAILED : status;
}

int run_topo_diff(int argc, char **argv)
{
    static const struct arg args[] = {
        {"output", 'o', "FILE", "where to (default standard output)", ARG_STRING,
         .offset = offsetof(struct topo_args, output), .written = true},
    };
    const struct arg_group groups[] = {{"output", args, 1}, {0}};
    const struct usage usage = {
        .command = "dualpipe topo diff", .operands = "A B", .min_operands = 2, .max_operands = 2,
        .operand_files = true, .groups = groups,
        .about = "Print in what two topologies differ, a line each: devices that one lacks, links that\n"
                 "are slower, ports that are down. A and B are files as --topology takes them. Exit\n"
                 "status 1: they differ.",
        .examples = "  dualpipe topo diff yesterday.json today.json\n",
    };
    struct topo_args values = {.format = NULL};
    struct operands operands;
    struct dp_topology *a = NULL, *b = NULL;
    int status;

    if (!args_parse(&usage, argc, argv, &values, &operands, &status))
        return status;
    status = topo_load_file(operands.items[0], &a);
    if (!status)
        status = topo_load_file(operands.items[1], &b);
    if (!status)
        status = run_diff(values.output, &(struct diff){.a = a, .b = b});
    dp_topology_free(a);
    dp_topology_free(b);
    return status;
}
