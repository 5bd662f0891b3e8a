/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_placement.c - any bytes read as a placement, as a process does without the topology.
 */
#include "fuzz.h"

#include <dualpipe/assignment.h>

#include <stdlib.h>
#include <string.h>

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
        must(strlen(dp_assignment_text(s, s->nodes[i].label)) < 4096);
    free(map);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dp_assignment *s;

    if (dp_assignment_read((const char *)data, size, "fuzz", &s)) {
        must(*dp_last_error());
        return 0;
    }
    look_around(s);
    dp_assignment_free(s);
    return 0;
}
