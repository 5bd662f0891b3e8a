/* SPDX-License-Identifier: Apache-2.0
 *
 * mlx5.h - what NVIDIA's adapters can beyond verbs: take what arrives in any order, and reach GPU
 * memory by a PCI function of their own (Data Direct). By libmlx5.so.1, if it is there and new
 * enough: rdma-core 54 knows both. Its numbers are written down here, as its header is rarely as
 * new.
 */
#ifndef DPN_VERBS_MLX5_H
#define DPN_VERBS_MLX5_H

#include <dualpipe/dualpipe.h>
#include <infiniband/verbs.h>

enum { DPN_MLX5_VENDOR = 0x02c9 };

/* mlx5dv_create_qp's; only the first two are of interest. */
struct dpn_mlx5_qp {
    uint64_t mask;
    uint32_t flags;
    uint64_t rest[3];
};

struct dpn_mlx5 {
    struct ibv_qp *(*create_qp)(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr,
                                struct dpn_mlx5_qp *own);
    /* 0 or an errno; the path begins after /sys. */
    int (*get_data_direct_sysfs_path)(struct ibv_context *context, char *path, size_t room);
    struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t len, uint64_t iova,
                                    int fd, int access, int own);
};

/* Filled by dpn_mlx5_load; each may be NULL. */
extern struct dpn_mlx5 dpn_mlx5;

/* Quietly; the caller has a lock. */
void dpn_mlx5_load(void);

/* A queue pair whose messages may arrive in any order. Both sides must have one. NULL with errno:
 * the adapter, the kernel or the library cannot. */
struct ibv_qp *dpn_mlx5_new_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);

/* The PCI function of Data Direct, under /sys, malloc'ed; NULL with errno: there is none. */
char *dpn_mlx5_find_direct(struct ibv_context *context);
/* A dma-buf, reached by that. NULL with errno. */
struct ibv_mr *dpn_mlx5_reg_direct(struct ibv_pd *pd, uint64_t offset, size_t len, uint64_t iova,
                                   int fd, unsigned access);

#endif
