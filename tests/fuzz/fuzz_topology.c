/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_topology.c - any bytes read as a topology: JSON, XML of NCCL and of hwloc, the text of nvidia-smi or
 * a description. What can be
 * read passes the checker, comes back the same from JSON, and has ways between its nodes; any bytes
 * as the map of a guest.
 */
#include "fuzz.h"
#include "../same_topology.h"

#include "topology/build.h"

#include <stdlib.h>
#include <string.h>

static void write_and_read_back(const struct dp_topology *t)
{
    struct dp_topology *back;
    char *text;
    size_t len;

    must(!dp_topology_write(t, DP_TOPOLOGY_JSON, &text, &len));
    must(!dp_topology_read(text, len, DP_TOPOLOGY_JSON, &back));
    must(is_same_topology(t, back));
    dp_topology_free(back);
    free(text);
}

/* The way there is as wide as the way back. */
static void search(const struct dp_topology *t)
{
    for (int32_t i = 0; i < t->node_count && i < 12; i++)
        for (int32_t k = i; k < t->node_count && k < 12; k++) {
            struct dp_topo_path there, back;
            must(!dp_topology_path(t, i, k, &there) && !dp_topology_path(t, k, i, &back));
            must(there.bytes_per_ns == back.bytes_per_ns && there.class_ == back.class_);
        }
}

/* Numbers that multiply to a cluster are not what is looked for here. */
static bool is_small(const uint8_t *data, size_t size)
{
    double product = 1;

    for (size_t i = 0; i < size; i++) {
        double number = 0;
        for (; i < size && data[i] >= '0' && data[i] <= '9'; i++)
            number = 10 * number + (data[i] - '0');
        product *= i && number > 1 ? number : 1;
    }
    return product < 1e15 && size < 4096;
}

/* It takes a process each time. Its own fuzzer would find other faults of hwloc than those that end the
 * child. */
static bool is_for_hwloc(const uint8_t *data, size_t size)
{
    static const char begin[] = "<?xml";
    static unsigned turn;

    return size > sizeof(begin) && !memcmp(data, begin, sizeof(begin) - 1) && turn++ % 8 == 0;
}

static void use(const uint8_t *data, size_t size, enum dp_topology_format format)
{
    struct dp_topology *t;

    if (dp_topology_read((const char *)data, size, format, &t)) {
        must(*dp_last_error());
        return;
    }
    must(!dp_topo_check(t));
    if (t->node_count < 400) {
        write_and_read_back(t);
        search(t);
    }
    dp_topology_free(t);
}

static void remap(const uint8_t *data, size_t size)
{
    struct dp_topology *t, *guest;
    char *map = malloc(size + 1);

    memcpy(map, data, size);
    map[size] = '\0';
    must(!dp_topology_new_synthetic("numa:2 gpu:2 nic:1", &t));
    if (!dp_topology_remap(t, map, &guest))
        dp_topology_free(guest);
    dp_topology_free(t);
    free(map);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    use(data, size, DP_TOPOLOGY_JSON);
    use(data, size, DP_TOPOLOGY_NCCL_XML);
    use(data, size, DP_TOPOLOGY_NVIDIA_SMI);
    if (is_for_hwloc(data, size))
        use(data, size, DP_TOPOLOGY_HWLOC_XML);
    if (is_small(data, size))
        use(data, size, DP_TOPOLOGY_SYNTHETIC);
    remap(data, size);
    return 0;
}
