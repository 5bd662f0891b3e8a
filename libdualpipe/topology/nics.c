/* SPDX-License-Identifier: Apache-2.0
 *
 * nics.c - which NICs a GPU should use, best first. As in NCCL the rate of the whole route comes
 * first, that of the port included.
 */
#include "base/fail.h"
#include "topology/build.h"

#include <dualpipe/topology.h>

#include <stdlib.h>

struct candidate {
    int32_t nic, turn;
    enum dp_topo_class class_;
    double bytes_per_ns;
    int kind; /* the fabric, and one of the following: only those of one kind take turns */
};
enum { NOT_RDMA = 4, WIRELESS = 8 }; /* the latter come last of all */

static int compare(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    if (x->kind / WIRELESS != y->kind / WIRELESS)
        return x->kind - y->kind;
    if (x->bytes_per_ns != y->bytes_per_ns)
        return x->bytes_per_ns > y->bytes_per_ns ? -1 : 1;
    if (x->class_ != y->class_)
        return x->class_ < y->class_ ? -1 : 1;
    return x->kind != y->kind ? x->kind - y->kind : x->turn - y->turn;
}

static struct candidate candidate_of(const struct dp_topology *t, int32_t nic,
                                     const struct dp_topo_path *path, const struct dp_topo_port *p)
{
    const double rate = dp_topo_port_rate(p), width = path->bytes_per_ns;

    return (struct candidate){
        .nic = nic, .class_ = path->class_, .bytes_per_ns = width > 0 && width < rate ? width : rate,
        .kind = (int)p->fabric + (p->rdma ? 0 : NOT_RDMA) + (dp_topo_is_wireless(t, p) ? WIRELESS : 0),
    };
}

/* By its best port. A NIC without a port that is up is of no use; one without ports says nothing. */
static bool is_usable(const struct dp_topology *t, int32_t nic, const struct dp_topo_path *path,
                      struct candidate *out)
{
    int32_t first, count = dp_topology_ports(t, nic, &first);
    bool found = !count;

    *out = candidate_of(t, nic, path,
                        &(struct dp_topo_port){.nic = nic, .fabric = DP_TOPO_FABRIC_UNKNOWN});
    for (int32_t i = first; i < first + count; i++) {
        const struct candidate c = candidate_of(t, nic, path, &t->ports[i]);
        if (t->ports[i].up && (!found || compare(&c, out) < 0))
            *out = c;
        found |= t->ports[i].up;
    }
    return found;
}

static int collect(const struct dp_topology *t, int32_t gpu, struct candidate *list, int32_t *count)
{
    int32_t host = t->nodes[gpu].host;
    int err = 0;

    *count = 0;
    for (int32_t nic = host; !err && (nic = dp_topology_next(t, DP_TOPO_NIC, host, nic + 1)) >= 0;) {
        struct dp_topo_path path;
        err = dp_topology_path(t, gpu, nic, &path);
        if (!err && path.class_ != DP_TOPO_NONE)
            *count += is_usable(t, nic, &path, &list[*count]);
    }
    return err;
}

/* Equal ones in turn: the run of them that begins at `first` starts with number `index`. */
static void take_turns(struct candidate *list, int32_t count, int32_t index)
{
    for (int32_t first = 0, end; first < count; first = end) {
        for (end = first + 1; end < count && list[end].class_ == list[first].class_ &&
                              list[end].kind == list[first].kind &&
                              list[end].bytes_per_ns == list[first].bytes_per_ns;)
            end++;
        int32_t run = end - first;
        for (int32_t i = 0; i < run; i++)
            list[first + i].turn = (i - index % run + run) % run;
    }
}

int dp_topology_nics(const struct dp_topology *t, int32_t gpu, int32_t *nics, int32_t max,
                     int32_t *count)
{
    struct candidate *list;
    int32_t found;
    int err;

    if (gpu < 0 || gpu >= t->node_count || t->nodes[gpu].kind != DP_TOPO_GPU)
        return dp_fail(DP_EINVAL, "node %d, expected a GPU", gpu);
    list = malloc((size_t)(t->nodes[t->nodes[gpu].host].end - t->nodes[gpu].host) * sizeof(*list));
    if (!list)
        return dp_fail(DP_ENOMEM, "no memory for the NICs of a GPU");
    err = collect(t, gpu, list, &found);
    if (!err) {
        for (int32_t i = 0; i < found; i++)
            list[i].turn = list[i].nic;
        qsort(list, (size_t)found, sizeof(*list), compare);
        take_turns(list, found, t->nodes[gpu].index);
        qsort(list, (size_t)found, sizeof(*list), compare);
        *count = found < max ? found : max;
        for (int32_t i = 0; i < *count; i++)
            nics[i] = list[i].nic;
    }
    free(list);
    return err;
}
