/* SPDX-License-Identifier: Apache-2.0
 *
 * show.c - `dualpipe topo show`: a tree of every kind of host, what joins its devices besides, the
 * fabric, and what could not be seen.
 */
#include "command.h"
#include "commands.h"
#include "topo/topo.h"

#include <inttypes.h>
#include <stdlib.h>

struct show {
    const struct dp_topology *t;
    const struct topo_hosts *hosts;
    FILE *to;
};

/* ---- nodes ---------------------------------------------------------------------------------- */

static void put_text(const struct show *s, const char *before, uint32_t text)
{
    if (text)
        fprintf(s->to, "%s%s", before, dp_topology_text(s->t, text));
}

static void put_pci(const struct show *s, const struct dp_topo_node *n)
{
    if (n->pci.known && n->kind == DP_TOPO_ROOT)
        fprintf(s->to, "  PCI %04" PRIx32 ":%02x", n->pci.domain, n->pci.bus);
    else if (n->pci.known)
        fprintf(s->to, "  %04" PRIx32 ":%02x:%02x.%x", n->pci.domain, n->pci.bus, n->pci.device,
                n->pci.function);
}

/* The link to what it stands in. */
static void put_uplink(const struct show *s, int32_t node)
{
    const struct dp_topo_link *l = dp_topology_uplink(s->t, node);
    char link[TOPO_WORD], rate[TOPO_WORD];

    if (l)
        fprintf(s->to, "  %s, %s", topo_link(l, link), topo_rate(l, rate));
}

static void put_ports(const struct show *s, int32_t nic)
{
    const struct dp_topology *t = s->t;
    int32_t first, count = dp_topology_ports(t, nic, &first);
    char word[TOPO_WORD];

    for (int32_t i = first; i < first + count; i++) {
        const struct dp_topo_port *p = &t->ports[i];
        fputs("  port", s->to);
        if (p->number)
            fprintf(s->to, " %d", p->number);
        putc(':', s->to);
        put_text(s, " ", p->rdma);
        put_text(s, " ", p->net);
        fprintf(s->to, " %s %s", topo_port(p, word), p->up ? "up" : "down");
        put_text(s, " in ", p->subnet);
        if (p->rail >= 0)
            put_text(s, " ", t->nodes[p->rail].name);
    }
}

static void put_numa(const struct show *s, const struct dp_topo_node *n)
{
    char word[TOPO_WORD];

    if (n->package >= 0)
        fprintf(s->to, "  socket %d", n->package);
    put_text(s, "  CPUs ", n->cpus);
    if (!n->cpus)
        fprintf(s->to, n->memory_bytes ? "  no CPUs" : "  CPUs not known");
    if (n->memory_bytes)
        fprintf(s->to, "  %s", topo_size(n->memory_bytes, word));
    if (n->cache_bytes)
        fprintf(s->to, "  cache %s", topo_size(n->cache_bytes, word));
}

static void put_node(const struct show *s, int32_t node, int depth)
{
    const struct dp_topo_node *n = &s->t->nodes[node];
    char word[TOPO_WORD];

    fprintf(s->to, "%*s%s%d", 2 * depth, "", dp_name(DP_NAMES_NODE, n->kind), n->index);
    if (n->kind == DP_TOPO_NUMA)
        put_numa(s, n);
    put_text(s, "  ", n->model);
    put_pci(s, n);
    if (n->kind == DP_TOPO_GPU && n->memory_bytes)
        fprintf(s->to, "  %s", topo_size(n->memory_bytes, word));
    if (n->memory_node >= 0)
        fprintf(s->to, "  memory: the kernel's NUMA node %d", n->memory_node);
    put_uplink(s, node);
    if (n->kind == DP_TOPO_NIC)
        put_ports(s, node);
    fputc('\n', s->to);
}

static int depth_of(const struct dp_topology *t, int32_t node)
{
    int depth = 0;

    while ((node = t->nodes[node].parent) >= 0)
        depth++;
    return depth;
}

/* ---- links besides the tree ----------------------------------------------------------------- */

static bool is_aside(const struct dp_topo_link *l)
{
    return l->kind == DP_TOPO_CPU || dp_topo_is_gpu_link(l->kind) || l->kind == DP_TOPO_C2C;
}

static void put_aside(const struct show *s, int32_t host)
{
    const struct dp_topology *t = s->t;
    char a[DP_TOPO_LABEL_LEN], b[DP_TOPO_LABEL_LEN], link[TOPO_WORD], rate[TOPO_WORD];

    for (int32_t n = host; n < t->nodes[host].end; n++)
        for (int32_t k = t->first_around[n]; k < t->first_around[n + 1]; k++) {
            const struct dp_topo_link *l = &t->links[t->around[k]];
            if (l->a == n && is_aside(l))
                fprintf(s->to, "  %s = %s  %s, %s\n", dp_topology_label(t, l->a, a),
                        dp_topology_label(t, l->b, b), topo_link(l, link), topo_rate(l, rate));
        }
}

/* ---- hosts, fabric, notes ------------------------------------------------------------------- */

static void put_count(const struct show *s, int32_t host, enum dp_topo_kind kind, const char *one)
{
    int32_t count = dp_topology_count(s->t, kind, host);

    fprintf(s->to, ", %d %s%s", count, one, count == 1 ? "" : "s");
}

static void put_host(const struct show *s, int32_t number)
{
    const struct dp_topology *t = s->t;
    int32_t host = s->hosts->nodes[number];
    const struct dp_topo_node *n = &t->nodes[host];

    topo_hosts_put(t, s->hosts, number, s->to);
    fprintf(s->to, ": %s", n->model ? dp_topology_text(t, n->model) : "CPU not known");
    put_count(s, host, DP_TOPO_NUMA, "NUMA node");
    put_count(s, host, DP_TOPO_GPU, "GPU");
    put_count(s, host, DP_TOPO_NIC, "NIC");
    fputc('\n', s->to);
    for (int32_t i = host + 1; i < n->end; i++)
        put_node(s, i, depth_of(t, i));
    put_aside(s, host);
}

/* NVSwitches of several hosts. Their links stand in the order of the hosts. */
static void put_domains(const struct show *s)
{
    const struct dp_topology *t = s->t;
    char label[DP_TOPO_LABEL_LEN], rate[TOPO_WORD];

    for (int32_t i = -1; (i = dp_topology_next(t, DP_TOPO_NVSWITCH, -1, i + 1)) >= 0;) {
        int32_t gpus = t->first_around[i + 1] - t->first_around[i], hosts = 0, last = -1;
        if (t->nodes[i].host >= 0 || !gpus)
            continue;
        for (int32_t k = t->first_around[i]; k < t->first_around[i + 1]; k++) {
            int32_t host = t->nodes[dp_topology_across(t, t->around[k], i)].host;
            hosts += host != last;
            last = host;
        }
        fprintf(s->to, "%s: joins %d GPUs of %d hosts, %s for each", dp_topology_label(t, i, label),
                gpus, hosts, topo_rate(&t->links[t->around[t->first_around[i]]], rate));
        put_text(s, ", domain ", t->nodes[i].name);
        fputc('\n', s->to);
    }
}

static void put_fabric(const struct show *s)
{
    const struct dp_topology *t = s->t;
    char rate[TOPO_WORD];

    put_domains(s);
    for (int32_t i = -1; (i = dp_topology_next(t, DP_TOPO_RAIL, -1, i + 1)) >= 0;) {
        int32_t ports = 0;
        for (int32_t k = t->first_around[i]; k < t->first_around[i + 1]; k++)
            ports += t->links[t->around[k]].b == i;
        fprintf(s->to, "%s: %d ports", dp_topology_text(t, t->nodes[i].name), ports);
        for (int32_t k = t->first_around[i]; k < t->first_around[i + 1]; k++) {
            const struct dp_topo_link *l = &t->links[t->around[k]];
            if (l->a == i)
                fprintf(s->to, ", %s to %s", topo_rate(l, rate),
                        dp_topology_text(t, t->nodes[l->b].name));
        }
        fputc('\n', s->to);
    }
}

static void put_notes(const struct show *s)
{
    for (int32_t i = 0; i < s->t->note_count; i++)
        fprintf(s->to, "%s: %s\n", s->t->notes[i].kind == DP_TOPO_MISSING ? "not seen" : "assumed",
                dp_topology_text(s->t, s->t->notes[i].text));
}

static int write_tree(const void *values, const struct operands *operands,
                      const struct dp_topology *t, FILE *to)
{
    struct show s = {t, topo_hosts_compare(t), to};

    (void)values, (void)operands;
    if (!s.hosts)
        return DP_ENOMEM;
    for (int32_t i = 0; i < t->host_count; i++)
        if (s.hosts->first[i] == i)
            put_host(&s, i);
    put_fabric(&s);
    put_notes(&s);
    free((void *)s.hosts);
    return topo_finish(to);
}

int run_topo_show(int argc, char **argv)
{
    const struct arg_group groups[] = {topo_source_group, {0}};
    const struct usage usage = {
        .command = "dualpipe topo show", .groups = groups,
        .about = "Print hosts as trees: NUMA nodes, PCI roots and switches, GPUs and NICs, each with\n"
                 "its link upwards. Hosts that are alike are printed once. \"~\" stands before a rate\n"
                 "that no interface reports and that is the usual one of such a link.",
        .examples = "  dualpipe topo\n"
                    "  dualpipe topo show --synthetic dgx-h100\n"
                    "  dualpipe topo show --sysfs captured/\n",
    };
    struct topo_args a = {.format = NULL};

    return topo_run(&usage, argc, argv, &a, write_tree);
}
