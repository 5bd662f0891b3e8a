/* SPDX-License-Identifier: Apache-2.0
 *
 * remap.c - a machine as a guest on it sees it: the devices that were passed on, under the guest's
 * addresses, in the tree that they really hang in and that the guest is not shown.
 */
#include "base/fail.h"
#include "base/text.h"
#include "topology/build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct remap {
    const struct dp_topology *t;
    struct dp_topo_pci *pci; /* [nodes] as the guest knows them; not known: not passed on */
    const char **cpus;       /* [nodes] of NUMA nodes in the guest; NULL: as on the host */
    char *text;              /* of the map, cut into words */
};

static bool is_device(enum dp_topo_kind kind)
{
    return kind == DP_TOPO_GPU || kind == DP_TOPO_NIC;
}

/* The device that has this address in the guest already; -1: none. */
static int32_t find_taken(const struct remap *r, const struct dp_topo_pci *pci)
{
    for (int32_t i = 0; i < r->t->node_count; i++)
        if (r->pci[i].known && r->pci[i].domain == pci->domain && r->pci[i].bus == pci->bus &&
            r->pci[i].device == pci->device && r->pci[i].function == pci->function)
            return i;
    return -1;
}

static int read_pair(struct remap *r, int line, const char *what, const char *becomes)
{
    struct dp_topo_pci pci = {0};
    int32_t node;
    int err = dp_topology_find(r->t, what, &node);

    if (err)
        return err;
    if (r->t->nodes[node].kind == DP_TOPO_NUMA) {
        if (!*becomes || strspn(becomes, "0123456789,-") != strlen(becomes))
            return dp_fail(DP_EINVAL, "line %d of the map: '%s', expected CPUs such as 0-31", line,
                           becomes);
        r->cpus[node] = becomes;
        return 0;
    }
    if (!is_device(r->t->nodes[node].kind))
        return dp_fail(DP_EINVAL, "line %d of the map: %s is a %s, expected a GPU, a NIC or a NUMA node",
                       line, what, dp_topo_kind_name(r->t->nodes[node].kind));
    if (!dp_topo_parse_pci(becomes, &pci))
        return dp_fail(DP_EINVAL, "line %d of the map: '%s', expected an address such as 0001:00:00.0",
                       line, becomes);
    if (r->pci[node].known || find_taken(r, &pci) >= 0)
        return dp_fail(DP_EINVAL, "line %d of the map: %s or %s is there twice, expected each once",
                       line, what, becomes);
    r->pci[node] = pci;
    return 0;
}

/* Lines of two words; '#' begins a comment. */
static int read_map(struct remap *r)
{
    char *rest = r->text, *line;
    int err = 0;

    for (int number = 1; !err && (line = strsep(&rest, "\n")); number++) {
        char *words[3] = {NULL}, *word, *in_line = line;
        int count = 0;
        line[strcspn(line, "#\r")] = '\0';
        while (count < 3 && (word = strsep(&in_line, " \t")))
            if (*word)
                words[count++] = word;
        if (count == 2)
            err = read_pair(r, number, words[0], words[1]);
        else if (count)
            err = dp_fail(DP_EINVAL, "line %d of the map: expected two words, a device here and its "
                          "address in the guest", number);
    }
    return err;
}

/* What its driver calls a device in the guest, and how it numbers it, is not known. */
static void forget_names(struct dp_topo_builder *b)
{
    for (int32_t i = 0; i < b->t.node_count && !b->failed; i++)
        if (b->t.nodes[i].kind == DP_TOPO_GPU)
            b->t.nodes[i].os_index = b->t.nodes[i].memory_node = -1;
        else if (b->t.nodes[i].kind == DP_TOPO_NIC)
            b->t.nodes[i].name = 0;
    for (int32_t i = 0; i < b->t.port_count; i++)
        b->t.ports[i].rdma = b->t.ports[i].net = 0;
}

/* Bridges get addresses that no guest uses, so that none is taken for a device of it. */
static void name_bridges(struct remap *r)
{
    int32_t count = 0;

    for (int32_t i = 0; i < r->t->node_count; i++)
        if (r->t->nodes[i].kind == DP_TOPO_SWITCH || r->t->nodes[i].kind == DP_TOPO_ROOT) {
            r->pci[i] = (struct dp_topo_pci){.known = true, .domain = 0xffff - (uint32_t)count / 256,
                                             .bus = (uint8_t)(count % 256)};
            count++;
        }
}

static void apply(const struct remap *r, struct dp_topo_builder *b, int32_t *place)
{
    for (int32_t i = 0; i < r->t->node_count; i++)
        place[i] = !is_device(r->t->nodes[i].kind) || r->pci[i].known ? DP_TOPO_COPY
                                                                            : DP_TOPO_LEAVE;
    dp_topo_copy(b, r->t, -1, place);
    forget_names(b);
    for (int32_t i = 0; i < r->t->node_count && !b->failed; i++) {
        if (place[i] < 0)
            continue;
        uint32_t cpus = r->cpus[i] ? dp_topo_add_text(b, r->cpus[i]) : 0;
        struct dp_topo_node *n = dp_topo_node(b, place[i]);
        n->cpus = cpus ? cpus : n->cpus;
        if (r->pci[i].known) {
            n->pci.known = true;
            n->pci.domain = r->pci[i].domain;
            n->pci.bus = r->pci[i].bus;
            n->pci.device = r->pci[i].device;
            n->pci.function = r->pci[i].function;
        }
    }
}

int dp_topology_remap(const struct dp_topology *t, const char *map, struct dp_topology **out)
{
    size_t n = (size_t)t->node_count, len = strlen(map);
    int err = dp_utf8_begin(&map, &len, NULL);

    if (err)
        return err;
    struct remap r = {t, calloc(n, sizeof(*r.pci)), calloc(n, sizeof(*r.cpus)), strdup(map)};
    int32_t *place = calloc(n, sizeof(*place));
    struct dp_topo_builder b = {0};

    if (!r.pci || !r.cpus || !r.text || !place)
        err = dp_fail(DP_ENOMEM, "no memory to remap %zu nodes", n);
    if (!err && t->host_count != 1)
        err = dp_fail(DP_EINVAL, "a topology of %d hosts, expected the one that the guest runs on",
                      t->host_count);
    if (!err)
        err = read_map(&r);
    if (!err) {
        name_bridges(&r);
        apply(&r, &b, place);
        err = dp_topo_finish(&b, out);
    }
    free(r.pci);
    free(r.cpus);
    free(r.text);
    free(place);
    return err;
}
