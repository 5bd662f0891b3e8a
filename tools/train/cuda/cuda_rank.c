/* SPDX-License-Identifier: Apache-2.0 */
#include "train/cuda/cuda_rank.h"

#include "clock.h"
#include "train/cuda/cuda_graphs.h"
#include "train/cuda/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BLOCKS = 4096, SQUARE_BLOCKS = 256, SUM_THREADS = 256, ALIGNMENT = 256 };

/* ---- work in a stream of its own ------------------------------------------------------------ */

int cuda_rank_wait(struct cuda_rank *r)
{
    int err = r->err;

    r->err = 0;
    if (!err)
        err = dp_device_event_record(r->event, r->stream);
    return err ? err : dp_device_event_wait(r->event, device_timeout_ns);
}

int cuda_rank_copy(struct cuda_rank *r, void *to, const void *from, size_t bytes)
{
    int err = dp_device_copy(r->stream, to, from, bytes);

    return err ? err : cuda_rank_wait(r);
}

struct cuda_grid cuda_grid_of(uint64_t count)
{
    const uint64_t blocks = (count + BLOCK_THREADS - 1) / BLOCK_THREADS;

    return (struct cuda_grid){(unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS), 1, 1,
                              BLOCK_THREADS, 0};
}

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

/* In the rank's own stream. */
#define LAUNCH(r, kernel, grid, args)                                                              \
    cuda_rank_launch(r, dp_device_stream_native((r)->stream), KERNEL_##kernel, grid, &(args),      \
                     sizeof(args))

/* ---- a step -------------------------------------------------------------------------------- */

static void copy_down_precision(struct cuda_rank *r)
{
    for (int i = 0; i < r->slot_count; i++) {
        const struct cuda_slot *s = &r->slots[i];
        const struct elements_args args = {s->stage->params.count, s->weights, s->low};
        if (s->low)
            LAUNCH(r, to_bf16, cuda_grid_of(args.count), args);
    }
}

int cuda_rank_use_stream(struct cuda_rank *r, struct dp_device_stream *stream)
{
    const int err = cuda_rank_wait(r);

    if (!err)
        r->stream = stream;
    return err;
}

/* The batch of the step before has been copied up: that step has ended. */
int cuda_rank_begin(struct cuda_rank *r, const uint8_t *tokens, size_t tokens_len,
                    const uint8_t *labels, size_t labels_len, uint8_t **on_tokens,
                    uint8_t **on_labels)
{
    if (tokens_len + labels_len > r->batch_bytes)
        return DP_EINVAL;
    memcpy(r->batch, tokens, tokens_len);
    memcpy((char *)r->batch + tokens_len, labels, labels_len);
    int err = dp_device_copy(r->stream, r->bytes, r->batch, tokens_len + labels_len);
    if (err)
        return err;
    copy_down_precision(r);
    memset(r->has_squares, 0, sizeof(r->has_squares));
    *on_tokens = r->bytes;
    *on_labels = *on_tokens + tokens_len;
    err = r->err;
    r->err = 0;
    return err;
}

/* ---- numbers ------------------------------------------------------------------------------- */

static size_t squares_at(const struct cuda_rank *r, int slot)
{
    return (size_t)r->microbatches + (size_t)slot * r->most_parts;
}

static void queue_squares(struct cuda_rank *r, int slot)
{
    const struct cuda_slot *s = &r->slots[slot];
    const size_t memory = SUM_THREADS * sizeof(double);

    for (size_t i = 0; i < s->part_count; i++) {
        const struct cuda_part *part = &s->parts[i];
        struct cuda_grid grid = cuda_grid_of(part->count);
        grid.x = grid.x < SQUARE_BLOCKS ? grid.x : SQUARE_BLOCKS;
        grid.memory_bytes = memory;
        struct squares_args args = {part->count, s->grads + part->offset, r->parts};
        LAUNCH(r, squares, grid, args);
        double *sum = r->numbers + squares_at(r, slot) + i;
        args = (struct squares_args){grid.x, (const float *)sum, r->parts};
        LAUNCH(r, squares_sum, ((struct cuda_grid){1, 1, 1, SUM_THREADS, memory}), args);
    }
}

static int queue_copy(struct cuda_rank *r, size_t first, size_t count)
{
    return dp_device_copy(r->stream, r->read_numbers + first, r->numbers + first,
                          count * sizeof(double));
}

int cuda_rank_queue_numbers(struct cuda_rank *r, bool squares)
{
    const size_t used = squares ? squares_at(r, r->slot_count) : (size_t)r->microbatches;

    for (int i = 0; i < r->slot_count; i++) {
        if (squares)
            cuda_graphs_run(r, queue_squares, i, &r->slots[i].squares, &r->slots[i].squares_seen);
        r->has_squares[i] = squares;
    }
    return queue_copy(r, 0, used);
}

void cuda_rank_losses(const struct cuda_rank *r, double *losses, int count)
{
    memcpy(losses, r->read_numbers, (size_t)count * sizeof(*losses));
}

/* ---- the optimizer ------------------------------------------------------------------------- */

int cuda_rank_squares(struct cuda_rank *r, int slot, double *squares)
{
    const size_t count = r->slots[slot].part_count, at = squares_at(r, slot);
    int err = 0;

    if (!r->has_squares[slot]) {
        queue_squares(r, slot);
        err = queue_copy(r, at, count);
        if (!err)
            err = cuda_rank_wait(r);
    }
    r->has_squares[slot] = false;
    if (!err)
        memcpy(squares, r->read_numbers + at, count * sizeof(double));
    return err;
}

/* The same in every update: what differs is where r->adamw points. */
static void queue_update(struct cuda_rank *r, int slot)
{
    const struct cuda_slot *s = &r->slots[slot];

    for (size_t i = 0; i < s->part_count; i++) {
        const struct cuda_part *part = &s->parts[i];
        const struct adamw_args args = {
            .count = part->count, .decays = part->decays, .update = r->adamw,
            .value = s->weights + part->offset, .grad = s->grads + part->offset,
            .first = s->first + part->state, .second = s->second + part->state};
        LAUNCH(r, adamw, cuda_grid_of(args.count), args);
    }
}

int cuda_rank_update(struct cuda_rank *r, int slot, const struct dp_optimizer_config *config,
                     double rate, double scale, bool skip)
{
    struct cuda_slot *s = &r->slots[slot];
    const size_t bytes = s->stage->params.count * sizeof(float);

    if (skip)
        return dp_device_zero(r->stream, s->grads, bytes);
    s->updates++;
    const struct adamw_set_args set = {
        {.rate = (float)rate, .decay = (float)config->weight_decay, .beta1 = (float)config->beta1,
         .beta2 = (float)config->beta2, .epsilon = (float)config->epsilon,
         .correct1 = (float)(1 - pow(config->beta1, (double)s->updates)),
         .correct2 = (float)(1 - pow(config->beta2, (double)s->updates)), .scale = (float)scale},
        r->adamw};
    LAUNCH(r, adamw_set, ((struct cuda_grid){1, 1, 1, WARP_LANES, 0}), set);
    cuda_graphs_run(r, queue_update, slot, &s->update, &s->update_seen);
    const int err = r->err;
    r->err = 0;
    return err;
}

/* ---- memory -------------------------------------------------------------------------------- */

static int alloc_zeroed(struct cuda_rank *r, size_t bytes, void *out)
{
    void *memory;
    int err = dp_device_alloc(r->dev, DP_MEMORY_DEVICE, bytes, &memory);

    if (err)
        return err;
    *(void **)out = memory;
    return dp_device_zero(r->stream, memory, bytes);
}

static int draw(struct cuda_rank *r, struct cuda_slot *s, uint64_t seed)
{
    const struct params *p = &s->stage->params;
    float *host = malloc(p->count * sizeof(*host));

    if (!host)
        return DP_ENOMEM;
    params_draw(p, seed, host);
    int err = cuda_rank_copy(r, s->weights, host, p->count * sizeof(*host));
    free(host);
    return err;
}

static int list_tensors(struct cuda_slot *s)
{
    const struct params *p = &s->stage->params;

    s->parts = calloc(p->tensors_len + 1, sizeof(*s->parts));
    if (!s->parts)
        return DP_ENOMEM;
    s->part_count = p->tensors_len;
    for (size_t i = 0; i < p->tensors_len; i++) {
        const struct tensor *t = &p->tensors[i];
        s->parts[i] = (struct cuda_part){.name = s->stage->parameters[i].name,
                                         .offset = t->offset,
                                         .count = tensor_count(t),
                                         .state = t->offset,
                                         .decays = t->rows > 1};
    }
    return 0;
}

int cuda_rank_add_stage(struct cuda_rank *r, const struct gpt_config *config, int stage, int stages,
                        struct gpt_stage **out)
{
    struct cuda_slot *s = &r->slots[r->slot_count];
    const struct gpt_stage_size size = gpt_stage_size(config, stage, stages);
    const size_t count = size.param_count, bytes = count * sizeof(float);
    int err = gpt_stage_new_bare(config, stage, stages, &s->stage);

    if (err)
        return err;
    *out = s->stage;
    s->index = stage;
    s->stages = stages;
    r->slot_count++;
    err = list_tensors(s);
    if (!err)
        err = alloc_zeroed(r, bytes, &s->weights);
    if (!err)
        err = alloc_zeroed(r, bytes, &s->grads);
    if (!err)
        err = alloc_zeroed(r, bytes, &s->first);
    if (!err)
        err = alloc_zeroed(r, bytes, &s->second);
    if (!err && r->compute.size == 2)
        err = alloc_zeroed(r, count * sizeof(uint16_t), &s->low);
    if (!err)
        err = alloc_zeroed(r, size.scratch_bytes, &s->scratch);
    if (!err)
        err = draw(r, s, config->seed);
    if (!err)
        gpt_stage_set_memory(s->stage, s->weights, s->grads, s->scratch);
    return err;
}

/* For the squares of so many parts of a slot. */
static int make_numbers(struct cuda_rank *r, size_t most_parts)
{
    void *numbers = NULL;

    dp_device_free(r->dev, DP_MEMORY_DEVICE, r->numbers);
    dp_device_free(r->dev, DP_MEMORY_PINNED, r->read_numbers);
    r->numbers = r->read_numbers = NULL;
    r->most_parts = most_parts;
    const size_t bytes = squares_at(r, DP_MAX_SLOTS) * sizeof(double);
    int err = alloc_zeroed(r, bytes, &r->numbers);
    if (!err)
        err = dp_device_alloc(r->dev, DP_MEMORY_PINNED, bytes, &numbers);
    r->read_numbers = numbers;
    return err;
}

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

static int alloc_all(struct cuda_rank *r, const struct cuda_rank_config *config)
{
    const struct gpt_config *m = &config->model;
    const size_t tokens = (size_t)m->batch * (size_t)m->context;
    const size_t inner = MLP_FACTOR * (size_t)m->width;
    const size_t widest = inner > GPT_BYTES ? inner : GPT_BYTES; /* of what has a bias */

    r->batch_bytes = 2 * tokens * (size_t)config->model_microbatches;
    int err = alloc_zeroed(r, tokens * sizeof(float), &r->row_losses);
    if (!err)
        err = make_numbers(r, ((size_t)m->layers + 2) * MAX_TENSORS);
    if (!err)
        err = alloc_zeroed(r, SQUARE_BLOCKS * sizeof(double), &r->parts);
    for (int i = 0; i < 2 && !err; i++)
        err = alloc_zeroed(r, 2 * COLUMN_PARTS * widest * sizeof(float), &r->column_parts[i]);
    if (!err)
        err = alloc_zeroed(r, sizeof(*r->adamw), &r->adamw);
    if (!err)
        err = alloc_zeroed(r, r->batch_bytes, &r->bytes);
    return err ? err : dp_device_alloc(r->dev, DP_MEMORY_PINNED, r->batch_bytes, &r->batch);
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

static int open_all(struct cuda_rank *r, const struct cuda_rank_config *config)
{
    int err = dp_device_open(config->device, &r->dev);

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
        err = dp_device_stream_new(r->dev, DP_PRIORITY_NORMAL, &r->own_stream);
    r->stream = r->own_stream;
    if (!err)
        err = dp_device_stream_new(r->dev, DP_PRIORITY_NORMAL, &r->second);
    if (!err)
        err = dp_device_event_new(r->dev, &r->event);
    if (!err)
        err = dp_device_event_new(r->dev, &r->forked);
    if (!err)
        err = dp_device_event_new(r->dev, &r->joined);
    if (!err)
        open_blas(r, config->bf16);
    return err ? err : alloc_all(r, config);
}

int cuda_rank_new(const struct cuda_rank_config *config, struct cuda_rank **out)
{
    struct cuda_rank *r = calloc(1, sizeof(*r));

    if (!r)
        return DP_ENOMEM;
    r->microbatches = config->microbatches;
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
    blas_close(r->blas);
    for (int i = 0; i < r->slot_count; i++) {
        struct cuda_slot *s = &r->slots[i];
        dp_device_graph_free(s->squares);
        dp_device_graph_free(s->update);
        free(s->parts);
        void *const all[] = {s->weights, s->grads, s->first, s->second, s->low, s->scratch};
        for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++)
            dp_device_free(r->dev, DP_MEMORY_DEVICE, all[k]);
    }
    if (r->dev) {
        void *const all[] = {r->row_losses, r->numbers, r->parts, r->adamw, r->bytes,
                             r->column_parts[0], r->column_parts[1]};
        for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++)
            dp_device_free(r->dev, DP_MEMORY_DEVICE, all[k]);
        dp_device_free(r->dev, DP_MEMORY_PINNED, r->read_numbers);
        dp_device_free(r->dev, DP_MEMORY_PINNED, r->batch);
    }
    dp_device_event_free(r->joined);
    dp_device_event_free(r->forked);
    dp_device_event_free(r->event);
    dp_device_stream_free(r->second);
    dp_device_stream_free(r->own_stream);
    dp_device_module_free(r->module);
    dp_device_close(r->dev);
    free(r);
}
