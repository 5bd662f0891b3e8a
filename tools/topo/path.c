/* SPDX-License-Identifier: Apache-2.0
 *
 * path.c - `dualpipe topo path A B` and `nics`: the route between two nodes, and the NICs of each
 * GPU.
 */
#include "command.h"
#include "commands.h"
#include "text.h"
#include "topo/topo.h"

#include <stdlib.h>
#include <string.h>

static const struct arg format_args[] = {
    {"format", 'f', NULL, "what to write", ARG_CHOICE, .offset = offsetof(struct topo_args, format),
     .fallback = "text", .choices = args_text_or_json},
};
static const struct arg_group format_group = {"output", format_args, 1};

/* ---- path ----------------------------------------------------------------------------------- */

static void put_path_text(const struct dp_topology *t, const struct dp_topo_path *p, FILE *to)
{
    char label[DP_TOPO_LABEL_LEN], word[TOPO_WORD], rate[TOPO_WORD];

    fprintf(to, "%s", topo_class(p, word));
    if (p->class_ == DP_TOPO_NONE) {
        fprintf(to, ": no route\n");
        return;
    }
    if (p->bytes_per_ns > 0)
        fprintf(to, ", %.3g GB/s", p->bytes_per_ns);
    fprintf(to, ", about %.0f ns\n%s\n", p->latency_ns, dp_topology_label(t, p->nodes[0], label));
    for (int32_t i = 0; i < p->hops; i++) {
        const struct dp_topo_link *l = &t->links[p->links[i]];
        fprintf(to, "  |  %s, %s%s\n", topo_link(l, word), topo_rate(l, rate),
                p->links[i] == p->bottleneck ? "  <- the slowest" : "");
        fprintf(to, "%s\n", dp_topology_label(t, p->nodes[i + 1], label));
    }
}

static void put_path_json(const struct dp_topology *t, const struct dp_topo_path *p, FILE *to)
{
    char label[DP_TOPO_LABEL_LEN], word[TOPO_WORD];

    fprintf(to, "{\"class\": \"%s\", \"bytes_per_ns\": %.15g, \"latency_ns\": %.15g, \"nodes\": [",
            topo_class(p, word), p->bytes_per_ns, p->latency_ns);
    for (int32_t i = 0; i <= p->hops; i++) {
        fputs(i ? ", " : "", to);
        text_put_json(to, dp_topology_label(t, p->nodes[i], label));
    }
    fprintf(to, "], \"links\": [");
    for (int32_t i = 0; i < p->hops; i++)
        fprintf(to, "%s{\"kind\": \"%s\", \"bytes_per_ns\": %.15g, \"slowest\": %s}", i ? ", " : "",
                dp_name(DP_NAMES_LINK, t->links[p->links[i]].kind),
                t->links[p->links[i]].bytes_per_ns,
                p->links[i] == p->bottleneck ? "true" : "false");
    fprintf(to, "]}\n");
}

static int write_path(const void *values, const struct operands *operands,
                      const struct dp_topology *t, FILE *to)
{
    const struct topo_args *a = values;
    struct dp_topo_path p;
    int32_t from, end;
    int err = dp_topology_find(t, operands->items[0], &from);

    if (!err)
        err = dp_topology_find(t, operands->items[1], &end);
    if (!err)
        err = dp_topology_path(t, from, end, &p);
    if (err)
        return err;
    if (!strcmp(a->format, "json"))
        put_path_json(t, &p, to);
    else
        put_path_text(t, &p, to);
    return topo_finish(to);
}

int run_topo_path(int argc, char **argv)
{
    const struct arg_group groups[] = {topo_source_group, format_group, {0}};
    const struct usage usage = {
        .command = "dualpipe topo path", .operands = "A B", .min_operands = 2, .max_operands = 2,
        .groups = groups,
        .about = "Print the route that data takes from A to B, link by link, and the slowest of them.\n"
                 "A node is named as 'dualpipe topo show' names it (gpu0, nic3, numa1, node2/gpu0),\n"
                 "or by its device's name (mlx5_0, eth0), PCI address or UUID.",
        .examples = "  dualpipe topo path gpu0 mlx5_0 --synthetic dgx-h100\n"
                    "  dualpipe topo path node0/gpu1 node1/gpu1 --synthetic 'dgx-h100 host:2'\n"
                    "  dualpipe topo path numa0 eth0 --format json\n",
    };
    struct topo_args a = {.format = NULL};

    return topo_run(&usage, argc, argv, &a, write_path);
}

/* ---- nics ----------------------------------------------------------------------------------- */

enum { NICS_MAX = 64 };

static void put_nic(const struct dp_topology *t, int32_t nic, const struct dp_topo_path *p,
                    bool json, FILE *to)
{
    char label[DP_TOPO_LABEL_LEN], word[TOPO_WORD];

    if (!json) {
        fprintf(to, "%s %s", topo_nic(t, nic, label), topo_class(p, word));
        return;
    }
    fputs("{\"nic\": ", to);
    text_put_json(to, topo_nic(t, nic, label));
    fprintf(to, ", \"class\": \"%s\", \"bytes_per_ns\": %.15g}", topo_class(p, word),
            p->bytes_per_ns);
}

static void put_gpu(const struct dp_topology *t, int32_t gpu, bool json, bool is_first, FILE *to)
{
    char label[DP_TOPO_LABEL_LEN];

    dp_topology_label(t, gpu, label);
    if (!json) {
        fprintf(to, "%-12s  ", label);
        return;
    }
    fprintf(to, "%s{\"gpu\": ", is_first ? "" : ",\n");
    text_put_json(to, label);
    fputs(", \"nics\": [", to);
}

static int put_nics(const struct dp_topology *t, int32_t gpu, bool json, bool is_first, FILE *to)
{
    int32_t nics[NICS_MAX], count;
    int err = dp_topology_nics(t, gpu, nics, NICS_MAX, &count);

    if (err)
        return err;
    put_gpu(t, gpu, json, is_first, to);
    for (int32_t i = 0; i < count && !err; i++) {
        struct dp_topo_path p;
        err = dp_topology_path(t, gpu, nics[i], &p);
        fputs(i ? ", " : "", to);
        if (!err)
            put_nic(t, nics[i], &p, json, to);
    }
    fputs(json ? "]}" : count ? "\n" : "no NIC that is up\n", to);
    return err;
}

static int write_nics(const void *values, const struct operands *operands,
                      const struct dp_topology *t, FILE *to)
{
    const struct topo_args *a = values;
    bool json = !strcmp(a->format, "json"), is_first = true;
    int err = 0;

    (void)operands;
    fputs(json ? "[" : "", to);
    for (int32_t i = -1; !err && (i = dp_topology_next(t, DP_TOPO_GPU, -1, i + 1)) >= 0;
         is_first = false)
        err = put_nics(t, i, json, is_first, to);
    fputs(json ? "]\n" : is_first ? "no GPU is seen\n" : "", to);
    return err ? err : topo_finish(to);
}

int run_topo_nics(int argc, char **argv)
{
    const struct arg_group groups[] = {topo_source_group, format_group, {0}};
    const struct usage usage = {
        .command = "dualpipe topo nics", .groups = groups,
        .about = "Print for every GPU the NICs of its host that are up, the best first. GPUs that\n"
                 "share several equally near ones begin with different ones.",
        .examples = "  dualpipe topo nics --synthetic hgx-a100\n"
                    "  dualpipe topo nics --format json\n",
    };
    struct topo_args a = {.format = NULL};

    return topo_run(&usage, argc, argv, &a, write_nics);
}
