/* SPDX-License-Identifier: Apache-2.0 */
#include "train/cuda/cuda_rank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 256, DEVICE_NAME = 32 };

void cuda_rank_launch(struct cuda_rank *r, void *stream, enum cuda_kernel kernel,
                      struct cuda_grid grid, const void *args, size_t args_bytes)
{
    if (!r->err)
        r->err = dp_device_launch(r->dev, &(struct dp_device_launch){
                                              .kernel = r->kernels[kernel],
                                              .stream = stream,
                                              .blocks = {grid.x, grid.y, grid.z},
                                              .threads = grid.threads,
                                              .memory_bytes = grid.memory_bytes,
                                              .args = args,
                                              .args_bytes = args_bytes,
                                          });
}

/* ---- graphs ---------------------------------------------------------------------------------- */

/* Callbacks as CUDA graphs. All that a callback queues follows from where its tensors, save area and
 * gradients are, and the pipeline's plan puts them in the same places in every step; without dropout,
 * whose masks differ, it is the same work. The first time it is queued kernel by kernel, which also
 * lets cuBLASLt choose its algorithms; the second time it is captured, and from then on launched as one
 * graph. Losses stay as they are. */

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

static int cuda_graphs_new(size_t callbacks, struct cuda_graphs **out)
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

static void cuda_graphs_free(struct cuda_graphs *g)
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

/* ---- the device ------------------------------------------------------------------------------ */

/* Hardware queues for all streams; and, where ranks share a GPU, a name of a host for each, as NCCL
 * refuses two of a host on one GPU. What the environment says already stays. */
static void prepare_nccl(const struct cuda_rank_config *c, bool shared)
{
    char host[32];

    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    snprintf(host, sizeof(host), "dualpipe-%d", c->rank);
    if (shared)
        setenv("NCCL_HOSTID", host, 0);
}

/* What was asked for, or, where that is "cuda" without a number, the GPU whose number is that of the
 * process among those of its host (of the job, if no launcher told it), over and over again where there
 * are fewer GPUs. */
static int choose_device(const struct cuda_rank_config *c, char name[static DEVICE_NAME])
{
    struct dp_process process;
    int count = 1;

    snprintf(name, DEVICE_NAME, "%s", c->device);
    if (c->nccl) /* counting devices begins CUDA */
        prepare_nccl(c, false);
    bool shared = c->ranks > 1;
    if (!strcmp(c->device, "cuda")) {
        int err = dp_process_from_env(&process);
        if (!err)
            err = dp_device_cuda_count(&count);
        if (err)
            return err;
        const bool told = process.local_rank >= 0 && process.local_size > 0;
        snprintf(name, DEVICE_NAME, "cuda:%d", (told ? process.local_rank : c->rank) % count);
        shared = (told ? process.local_size : c->ranks) > count;
    }
    if (c->nccl)
        prepare_nccl(c, shared);
    return 0;
}

/* ---- making it ------------------------------------------------------------------------------- */

static int find_kernels(struct cuda_rank *r)
{
#define ONE(name)  {#name, #name},
#define BOTH(name) {#name "_f32", #name "_bf16"},
    static const char *const names[][2] = {CUDA_KERNELS(ONE, BOTH)};
#undef ONE
#undef BOTH
    int err = 0;

    for (int i = 0; i < CUDA_KERNEL_COUNT && !err; i++)
        err = dp_device_kernel_find(r->module, names[i][r->compute.size == 2], &r->kernels[i]);
    return err;
}

/* Without it the kernel `product` does the same, slowly. */
static void open_blas(struct cuda_rank *r, bool bf16)
{
    const int err = blas_open(r->dev, bf16, &r->blas);

    if (err)
        fprintf(stderr, "dualpipe: warning: %s; matrix products are computed by a slow kernel of "
                        "dualpipe's own\n",
                err == DP_ENOENT ? "no cuBLASLt: expected libcublasLt.so.13 or libcublasLt.so.12"
                                 : "cuBLASLt does not start");
}

static int alloc(struct cuda_rank *r, size_t count, float **out)
{
    void *memory;
    const int err = dp_device_alloc(r->dev, DP_MEMORY_DEVICE, count * sizeof(float), &memory);

    if (!err)
        *out = memory;
    return err;
}

static int alloc_all(struct cuda_rank *r, const struct gpt_config *m)
{
    const size_t inner = MLP_FACTOR * (size_t)m->width;
    const size_t widest = inner > GPT_BYTES ? inner : GPT_BYTES; /* of what has a bias */
    int err = alloc(r, (size_t)m->batch * (size_t)m->context, &r->row_losses);

    for (int i = 0; i < 2 && !err; i++)
        err = alloc(r, 2 * COLUMN_PARTS * widest, &r->column_parts[i]);
    return err;
}

static int open_all(struct cuda_rank *r, const struct cuda_rank_config *config)
{
    char name[DEVICE_NAME];
    int err = choose_device(config, name);

    if (!err)
        err = dp_device_open(name, &r->dev);
    if (err)
        return err;
    r->compute = (struct compute){.ops = &cuda_compute_ops,
                                  .size = config->bf16 ? 2 : sizeof(float),
                                  .align = ALIGNMENT,
                                  .device = r,
                                  .dl = dp_device_dl(r->dev)};
    err = dp_device_module_new(r->dev, config->image, &r->module);
    if (!err)
        err = find_kernels(r);
    if (!err)
        err = dp_device_stream_new(r->dev, DP_PRIORITY_NORMAL, &r->stream);
    if (!err)
        open_blas(r, config->bf16);
    if (!err && config->callbacks)
        err = cuda_graphs_new(config->callbacks, &r->graphs);
    return err ? err : alloc_all(r, &config->model);
}

int cuda_rank_new(const struct cuda_rank_config *config, struct cuda_rank **out)
{
    struct cuda_rank *r = calloc(1, sizeof(*r));

    if (!r)
        return DP_ENOMEM;
    int err = open_all(r, config);
    if (err)
        cuda_rank_free(r);
    else
        *out = r;
    return err;
}

void cuda_rank_free(struct cuda_rank *r)
{
    if (!r)
        return;
    cuda_graphs_free(r->graphs);
    blas_close(r->blas);
    float *const all[] = {r->row_losses, r->column_parts[0], r->column_parts[1]};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]) && r->dev; i++)
        dp_device_free(r->dev, DP_MEMORY_DEVICE, all[i]);
    dp_device_stream_free(r->stream);
    dp_device_module_free(r->module);
    dp_device_close(r->dev);
    free(r);
}
