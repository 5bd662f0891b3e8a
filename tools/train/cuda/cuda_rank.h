/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_rank.h - what one rank has on its GPU: the kernels, its stages' memory, a step's batch and
 * losses, and the optimizer. With bf16 activations are bfloat16, and products use a bfloat16 copy of the
 * parameters, made anew for each step; parameters, gradients and the optimizer's state are float32.
 *
 * Work outside of callbacks is queued in the stream of the callbacks, too, so that nothing waits during
 * a step: not for the batch that is copied up, not for the optimizer. The host waits where it wants
 * numbers: losses and sums of squares, once at the end of a step, and checkpoints.
 */
#ifndef DP_TRAIN_CUDA_RANK_H
#define DP_TRAIN_CUDA_RANK_H

#include "train/cuda/blas.h"
#include "train/gpt.h"

#include <dualpipe/device.h>
#include <dualpipe/optimizer.h>
#include <dualpipe/schedule.h>

/* X(kernel) for those that there are once, Y(kernel) for those of each type of activations. */
#define CUDA_KERNELS(X, Y)                                                                         \
    X(adamw) X(adamw_set) X(attention_dkv_mma) X(attention_dq_mma) X(attention_forward_mma)        \
    X(columns_sum) X(squares) X(squares_sum) X(sum) X(to_bf16)                                     \
    Y(add) Y(attention_delta) Y(attention_dkv) Y(attention_dq) Y(attention_forward) Y(columns)     \
    Y(copy) Y(dropout) Y(embed_forward) Y(embed_positions) Y(embed_table) Y(entropy_backward)      \
    Y(entropy_forward) Y(gelu_backward) Y(gelu_forward) Y(norm_backward) Y(norm_forward)           \
    Y(product) Y(zero)

enum cuda_kernel {
#define CUDA_KERNEL_ID(name) KERNEL_##name,
    CUDA_KERNELS(CUDA_KERNEL_ID, CUDA_KERNEL_ID) CUDA_KERNEL_COUNT
#undef CUDA_KERNEL_ID
};

/* A run of a slot's parameters: a tensor, or a piece of one. */
struct cuda_part {
    const char *name;
    size_t offset, count; /* in the slot, in reals */
    size_t state;         /* where its state begins, in `first` and `second` */
    bool decays;
};

struct cuda_slot {
    struct gpt_stage *stage;
    int index, stages; /* which stage of how many */
    float *weights, *grads;  /* [params.count] */
    float *first, *second;   /* AdamW's state of all parts */
    struct cuda_part *parts; /* [part_count] what is updated: all tensors, or the pieces of a shard */
    size_t part_count;
    uint16_t *low;                           /* of the weights; NULL: float32 */
    void *scratch;
    uint64_t updates;
    struct dp_device_graph *squares, *update; /* NULL: not captured */
    bool squares_seen, update_seen;
};

struct cuda_rank {
    struct compute compute;
    struct dp_device *dev;
    struct dp_device_module *module;
    struct dp_device_stream *stream, *own_stream; /* of all work: its own until there is a pipeline */
    struct dp_device_stream *second; /* of backwards in overlapped pairs, */
    struct dp_device_event *event, *forked, *joined; /* between these two */
    void *kernels[CUDA_KERNEL_COUNT];
    struct blas *blas; /* NULL: the kernel product */
    struct cuda_graphs *graphs; /* cuda_graphs.h; NULL: none. The caller's */
    struct cuda_slot slots[DP_MAX_SLOTS];
    int slot_count, microbatches;
    float *row_losses;
    /* What the host wants to know of a step, on the device and where it is copied to: losses
     * [microbatches], then squares of each slot by part [DP_MAX_SLOTS][most_parts]. */
    double *numbers, *read_numbers;
    size_t most_parts; /* of a slot */
    bool has_squares[DP_MAX_SLOTS]; /* read_numbers are those of the gradients as they are now */
    double *parts;                  /* of a tensor's sum of squares */
    float *column_parts[2];         /* of sums over rows, in `stream` and in `second` */
    struct adamw_update *adamw;     /* of the update that is queued, on the device */
    void *bytes, *batch; /* a step's batch, on the device, and where it is copied from */
    size_t batch_bytes;
    int err; /* the first since compute.ops->error was called */
};

struct cuda_rank_config {
    const char *device; /* "cuda" or "cuda:N" */
    const void *image;  /* of the kernels */
    bool bf16;
    int microbatches; /* most losses of a step on this rank */
    struct gpt_config model;
    int model_microbatches; /* in a batch of all */
};

/* DP_ENODEV, DP_EIO, DP_ENOMEM and other errors of dualpipe/device.h; DP_EUNSUPPORTED for a head that is
 * wider than ATTENTION_DEPTH. */
int cuda_rank_new(const struct cuda_rank_config *config, struct cuda_rank **out);
/* Stages are freed before. r may be NULL. */
void cuda_rank_free(struct cuda_rank *r);

/* A stage with its memory on the GPU, begun from the seed. config.compute is &r->compute. */
int cuda_rank_add_stage(struct cuda_rank *r, const struct gpt_config *config, int stage, int stages,
                        struct gpt_stage **out);
/* cuda_warm.c: let all stages compute once, on zeros, and wait: needed where a step has NCCL's kernels
 * on the device, and after cuda_rank_use_stream, as cuBLASLt has a workspace for that stream and the
 * second one. Gradients are zero afterwards; borders and labels are those of the pipeline. */
int cuda_rank_warm(struct cuda_rank *r, const struct dp_border *borders,
                   const struct dp_border *labels);
/* Copy a step's batch up, and bring the parameters' copies up to date: *tokens and *labels point to
 * device memory until the next call. */
int cuda_rank_begin(struct cuda_rank *r, const uint8_t *tokens, size_t tokens_len,
                    const uint8_t *labels, size_t labels_len, uint8_t **on_tokens,
                    uint8_t **on_labels);
/* From now on queue all work in this stream, which lasts until the rank ends. */
int cuda_rank_use_stream(struct cuda_rank *r, struct dp_device_stream *stream);
/* Queue, at the end of a step, the copy of its losses, and with squares also sums of squares of all
 * slots' gradients. */
int cuda_rank_queue_numbers(struct cuda_rank *r, bool squares);
/* losses[count] of the step that has ended. */
void cuda_rank_losses(const struct cuda_rank *r, double *losses, int count);
/* Sums of squares of a slot's gradients, by part. Waits, unless they were queued in the step. */
int cuda_rank_squares(struct cuda_rank *r, int slot, double *squares);
/* AdamW on a slot; its gradients are zero afterwards. skip: nothing but that. */
int cuda_rank_update(struct cuda_rank *r, int slot, const struct dp_optimizer_config *config,
                     double rate, double scale, bool skip);
/* Wait for all that is queued. */
int cuda_rank_wait(struct cuda_rank *r);
/* Copy to or from device memory, and wait. */
int cuda_rank_copy(struct cuda_rank *r, void *to, const void *from, size_t bytes);

/* cuda_pair.c: gpt_stage_ops with an overlapped pair, of stages of one rank. */
extern const struct dp_stage_ops cuda_stage_ops;

/* compute_cuda.c: the table's filling. */
extern const struct compute_ops cuda_compute_ops;
/* Launch a kernel in a stream; blocks of threads. The first failure stays in r->err. */
struct cuda_grid {
    unsigned x, y, z, threads;
    size_t memory_bytes;
};
void cuda_rank_launch(struct cuda_rank *r, void *stream, enum cuda_kernel kernel,
                      struct cuda_grid grid, const void *args, size_t args_bytes);
/* A grid for that many elements. */
struct cuda_grid cuda_grid_of(uint64_t count);

#endif
