/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_graphs.c - callbacks as CUDA graphs. All that a callback queues follows from where its
 * tensors, save area and gradients are, and the pipeline's plan puts them in the same places in
 * every step; without dropout, whose masks differ, it is the same work. The first time it is queued
 * kernel by kernel, which also lets cuBLASLt choose its algorithms; the second time it is captured,
 * and from then on launched as one graph. Losses stay as they are.
 */
#include "train/cuda/cuda_rank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KINDS = 4 }; /* forward, two backwards, weight */

struct entry {
    struct compute_key key; /* of NULL: free */
    struct dp_device_graph *graph; /* NULL: seen once */
};

struct cuda_graphs {
    struct entry *entries;
    size_t mask; /* room - 1, a power of two less one; never full */
    size_t count;
    bool off; /* something could not be captured */
};

int cuda_graphs_new(size_t callbacks, struct cuda_graphs **out)
{
    struct cuda_graphs *g = calloc(1, sizeof(*g));
    size_t room = 64;

    while (room < 2 * KINDS * callbacks)
        room *= 2;
    if (g)
        g->entries = calloc(room, sizeof(*g->entries));
    if (!g || !g->entries) {
        free(g);
        return DP_ENOMEM;
    }
    g->mask = room - 1;
    *out = g;
    return 0;
}

void cuda_graphs_free(struct cuda_graphs *g)
{
    if (!g)
        return;
    for (size_t i = 0; i <= g->mask; i++)
        dp_device_graph_free(g->entries[i].graph);
    free(g->entries);
    free(g);
}

static uint64_t hash(const struct compute_key *key)
{
    uint64_t words[sizeof(*key) / sizeof(uint64_t)], h = 1;

    memcpy(words, key, sizeof(words));
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        h = (h ^ words[i]) * UINT64_C(0x9E3779B97F4A7C15), h ^= h >> 29;
    return h;
}

/* The entry of a key, or a free one; NULL: half of them are taken. */
static struct entry *find(struct cuda_graphs *g, const struct compute_key *key)
{
    for (size_t i = (size_t)hash(key);; i++) {
        struct entry *e = &g->entries[i & g->mask];
        if (!e->key.of)
            return g->count <= g->mask / 2 ? e : NULL;
        if (!memcmp(&e->key, key, sizeof(*key)))
            return e;
    }
}

/* ---- callbacks ----------------------------------------------------------------------------- */

/* What is captured is not done: it is launched afterwards, or queued after all. */
static int capture(struct dp_device_stream *stream, int (*queue_all)(void *arg), void *arg,
                   struct dp_device_graph **out)
{
    int err = dp_device_capture_begin(stream);

    if (err)
        return err;
    err = queue_all(arg);
    int end = dp_device_capture_end(stream, out);
    if (err && !end) {
        dp_device_graph_free(*out);
        *out = NULL;
    }
    return err ? err : end;
}

static void say_off(struct cuda_graphs *g)
{
    g->off = true;
    fprintf(stderr, "dualpipe: warning: no CUDA graphs: %s; kernels are launched one by one\n",
            dp_last_error());
}

int cuda_graphs_carry_out(struct cuda_rank *r, void *native, const struct compute_key *key,
                          bool is_static, int (*queue_all)(void *arg), void *arg)
{
    struct cuda_graphs *g = r->graphs;
    struct entry *e = g && !g->off && is_static ? find(g, key) : NULL;
    struct dp_device_stream *stream = NULL;

    if (!e)
        return queue_all(arg);
    if (!e->key.of) {
        e->key = *key;
        g->count++;
        return queue_all(arg);
    }
    int err = dp_device_stream_wrap(r->dev, native, &stream);
    if (!err && !e->graph && capture(stream, queue_all, arg, &e->graph)) {
        say_off(g);
        err = queue_all(arg);
    } else if (!err) {
        err = dp_device_graph_launch(e->graph, stream);
    }
    dp_device_stream_free(stream);
    return err;
}
