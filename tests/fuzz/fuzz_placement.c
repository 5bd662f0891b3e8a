/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_placement.c - any bytes read as a placement, by both readers: with the topology, and as a
 * process does without it. What the first takes comes back the same, and the second agrees with it.
 */
#include "fuzz.h"

#include <dualpipe/placement.h>

#include <stdlib.h>
#include <string.h>

/* The cluster that the seeds speak of. */
static const struct dp_topology *cluster(void)
{
    static struct dp_topology *t;

    if (!t)
        must(!dp_topology_new_synthetic("host:2 numa:1 gpu:2 nic:2 net=100Gb/s", &t));
    return t;
}

/* Every process has one worker, and every replica's map has each rank once. */
static void look_around(const struct dp_assignment *s)
{
    int *map = malloc((size_t)s->ranks * sizeof(*map));

    must(map && s->worker_count == s->ranks * s->replicas);
    for (int32_t w = 0; w < s->worker_count && w < 64; w++)
        must(dp_assignment_find(s, s->workers[w].process) == w);
    for (int replica = 0; replica < s->replicas && replica < 8; replica++) {
        int64_t sum = 0;
        must(!dp_assignment_map(s, replica, map));
        for (int32_t i = 0; i < s->ranks; i++)
            sum += map[i];
        must(sum == (int64_t)s->ranks * (s->ranks - 1) / 2);
    }
    for (int32_t i = 0; i < s->node_count; i++)
        must(strlen(dp_assignment_text(s, s->nodes[i].label)) < 256);
    free(map);
}

static void agree(const struct dp_placement *p, const struct dp_assignment *s)
{
    must(s->ranks == p->ranks && s->replicas == p->replicas && s->flow_count == p->flow_count);
    for (int32_t w = 0; w < s->worker_count; w++) {
        must(s->workers[w].process == p->workers[w].came_as);
        must(s->nodes[s->workers[w].gpu].id == p->workers[w].gpu);
        must(s->workers[w].nic_count == p->workers[w].nic_count);
    }
    for (int32_t i = 0; i < s->flow_count; i++) {
        must(s->flows[i].from == p->flows[i].from && s->flows[i].to == p->flows[i].to);
        must(s->flows[i].traffic_class == p->flows[i].traffic_class);
    }
}

static void read_with_topology(const char *text, size_t size)
{
    struct dp_placement *p, *back;
    struct dp_assignment *s;
    char *written;
    size_t len;

    if (dp_placement_read(text, size, cluster(), &p)) {
        must(*dp_last_error());
        return;
    }
    must(!dp_placement_write(p, cluster(), &written, &len));
    must(!dp_placement_read(written, len, cluster(), &back));
    must(!dp_assignment_read(written, len, "written", &s));
    agree(back, s);
    look_around(s);
    dp_assignment_free(s);
    dp_placement_free(back);
    dp_placement_free(p);
    free(written);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dp_assignment *s;

    read_with_topology((const char *)data, size);
    if (dp_assignment_read((const char *)data, size, "fuzz", &s)) {
        must(*dp_last_error());
        return 0;
    }
    look_around(s);
    dp_assignment_free(s);
    return 0;
}
