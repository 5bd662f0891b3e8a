/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_rank.h - what one rank has on its GPU: the kernels, its stages' memory, a step's batch and
 * losses, and the optimizer. With bf16 activations are bfloat16, and products use a bfloat16 copy of the
 * parameters, made anew for each step; parameters, gradients and the optimizer's state are float32.
 *
 * All work outside of callbacks is in a stream of its own, and waited for; in a callback nothing waits.
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
    X(adamw) X(squares) X(squares_sum) X(sum) X(to_bf16)                                           \
    Y(add) Y(attention_delta) Y(attention_dkv) Y(attention_dq) Y(attention_forward) Y(columns)     \
    Y(copy) Y(dropout) Y(embed_forward) Y(embed_positions) Y(embed_table) Y(entropy_backward)      \
    Y(entropy_forward) Y(gelu_backward) Y(gelu_forward) Y(norm_backward) Y(norm_forward)           \
    Y(product) Y(zero)

enum cuda_kernel {
#define CUDA_KERNEL_ID(name) KERNEL_##name,
    CUDA_KERNELS(CUDA_KERNEL_ID, CUDA_KERNEL_ID) CUDA_KERNEL_COUNT
#undef CUDA_KERNEL_ID
};

struct cuda_saved;
struct cuda_slot {
    struct gpt_stage *stage;
    int index, stages; /* which stage of how many */
    float *weights, *grads, *first, *second; /* [params.count] */
    uint16_t *low;                           /* of the weights; NULL: float32 */
    void *scratch;
    uint64_t updates;
    struct cuda_saved *saved; /* NULL: no checkpoint was written or read */
};

struct cuda_rank {
    struct compute compute;
    struct dp_device *dev;
    struct dp_device_module *module;
    struct dp_device_stream *stream;
    struct dp_device_event *event;
    void *kernels[CUDA_KERNEL_COUNT];
    struct blas *blas; /* NULL: the kernel product */
    struct cuda_slot slots[DP_MAX_SLOTS];
    int slot_count, microbatches;
    float *row_losses;
    double *losses, *squares; /* [microbatches]; of one stage by tensor, then parts of a tensor */
    void *bytes, *pinned;     /* batch; what is copied up or down */
    size_t batch_bytes, pinned_bytes;
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
/* Copy a step's batch up, and bring the parameters' copies up to date: *tokens and *labels point to
 * device memory until the next call. */
int cuda_rank_begin(struct cuda_rank *r, const uint8_t *tokens, size_t tokens_len,
                    const uint8_t *labels, size_t labels_len, uint8_t **on_tokens,
                    uint8_t **on_labels);
/* losses[count] of the step that has ended. */
int cuda_rank_losses(struct cuda_rank *r, double *losses, int count);
/* Sums of squares of a slot's gradients, by tensor. */
int cuda_rank_squares(struct cuda_rank *r, int slot, double *squares);
/* AdamW on a slot; its gradients are zero afterwards. skip: nothing but that. */
int cuda_rank_update(struct cuda_rank *r, int slot, const struct dp_optimizer_config *config,
                     double rate, double scale, bool skip);
/* cuda_saved.c: a slot's values, as a stage in the host's memory, and AdamW's state, as they are now;
 * they last as long as the rank. They are written to a checkpoint, or read from one and restored. */
int cuda_rank_saved(struct cuda_rank *r, int slot, const struct dp_optimizer_config *config,
                    const struct gpt_stage **values, struct dp_optimizer **state);
int cuda_rank_restore(struct cuda_rank *r, int slot);
void cuda_saved_free(struct cuda_saved *saved);
/* Copy to or from device memory, and wait. */
int cuda_rank_copy(struct cuda_rank *r, void *to, const void *from, size_t bytes);

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
