/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_rank.h - what computes the model on the GPU of one rank: its kernels, and what they need beside
 * what a layer is told (compute.h). With bf16 activations are bfloat16, and products read bfloat16
 * copies of the parameters.
 */
#ifndef DP_TRAIN_CUDA_RANK_H
#define DP_TRAIN_CUDA_RANK_H

#include "train/cuda/kernels.h"
#include "train/gpt_layers.h"

#include <dualpipe/comm.h>
#include <dualpipe/device.h>

/* X(kernel) for those that there are once, Y(kernel) for those of each type of activations. */
#define CUDA_KERNELS(X, Y)                                                                         \
    X(attention_dkv_mma) X(attention_dq_mma) X(attention_forward_mma) X(columns_sum) X(sum)        \
    Y(add) Y(attention_delta) Y(attention_dkv) Y(attention_dq) Y(attention_forward) Y(columns)     \
    Y(copy) Y(dropout) Y(embed_forward) Y(embed_positions) Y(embed_table) Y(entropy_backward)      \
    Y(entropy_forward) Y(gelu_backward) Y(gelu_forward) Y(norm_backward) Y(norm_forward)           \
    Y(product) Y(zero)

enum cuda_kernel {
#define CUDA_KERNEL_ID(name) KERNEL_##name,
    CUDA_KERNELS(CUDA_KERNEL_ID, CUDA_KERNEL_ID) CUDA_KERNEL_COUNT
#undef CUDA_KERNEL_ID
};

struct cuda_rank {
    struct compute compute;
    struct dp_device *dev;
    struct dp_device_module *module;
    struct dp_device_stream *stream; /* of all work, but for backwards beside a forward */
    void *kernels[CUDA_KERNEL_COUNT];
    struct blas *blas;          /* NULL: the kernel product */
    struct cuda_graphs *graphs; /* NULL: kernels are launched one by one */
    float *row_losses;
    float *column_parts[2];     /* of sums over rows, in `stream` and beside it */
    int err;                    /* the first since compute.ops->error was called */
};

struct cuda_rank_config {
    const char *device; /* "cuda": each rank one of its own, if there are enough; or "cuda:N" */
    int rank, ranks;    /* of all processes */
    bool nccl;          /* messages go by it */
    const void *image;  /* of the kernels */
    bool bf16;
    struct gpt_config model;
    size_t callbacks;   /* of a kind in a step, which become CUDA graphs; 0: none do */
};

/* Before CUDA begins in this process. DP_ENODEV, DP_EIO, DP_ENOMEM and other errors of
 * dualpipe/device.h. */
int cuda_rank_new(const struct cuda_rank_config *config, struct cuda_rank **out);
void cuda_rank_free(struct cuda_rank *r); /* may be NULL */

/* compute_cuda.c: the table's filling. */
extern const struct compute_ops cuda_compute_ops;
/* Launch a kernel in a stream; blocks of threads. The first failure stays in r->err. */
struct cuda_grid {
    unsigned x, y, z, threads;
    size_t memory_bytes;
};
void cuda_rank_launch(struct cuda_rank *r, void *stream, enum cuda_kernel kernel,
                      struct cuda_grid grid, const void *args, size_t args_bytes);

/* compute_ops.carry_out, in a stream. */
int cuda_graphs_carry_out(struct cuda_rank *r, void *native, const struct compute_key *key,
                          bool is_static, int (*queue)(void *arg), void *arg);

/* blas.c: matrix products by cuBLASLt, which is loaded at run time (libcublasLt.so.13 or .12). The
 * device is to stay. DP_ENOENT where there is no such library, with the reason; DP_EIO. */
int blas_open(struct dp_device *dev, bool bf16, struct blas **out);
void blas_close(struct blas *b);
/* The product of product_args, queued in the stream (a CUstream), one of two at most. DP_EUNSUPPORTED
 * where cuBLASLt has no algorithm for this shape at this alignment: nothing is queued; DP_EIO. */
int blas_product(struct blas *b, const struct product_args *p, void *stream);

/* image.c: the kernels as nvcc compiled them into this program, a fatbin; NULL: configure found no
 * nvcc. */
extern const void *const cuda_image;

#endif
