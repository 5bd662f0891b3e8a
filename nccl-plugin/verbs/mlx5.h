/* SPDX-License-Identifier: Apache-2.0
 *
 * mlx5.h - features of NVIDIA's adapters beyond verbs: receiving messages in any order, and access
 * to GPU memory through a PCI function of their own (Data Direct). They need a libmlx5.so.1 that is
 * new enough: rdma-core 54 has both. Its constants are repeated here, since installed headers are
 * rarely as new.
 */
#ifndef DPN_VERBS_MLX5_H
#define DPN_VERBS_MLX5_H

#include <dualpipe/dualpipe.h>
#include <infiniband/verbs.h>

enum { DPN_MLX5_VENDOR = 0x02c9 };

/* struct mlx5dv_qp_init_attr; only the first two members are used. */
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

/* Does not log; the caller holds a lock. */
void dpn_mlx5_load(void);

/* A queue pair whose messages may arrive in any order. Both sides must have one. NULL with errno:
 * the adapter, the kernel or the library does not support it. */
struct ibv_qp *dpn_mlx5_new_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);

/* The path under /sys of the Data Direct PCI function, malloc'ed; NULL with errno: there is none.
 */
char *dpn_mlx5_find_direct(struct ibv_context *context);
/* Register a dma-buf for access by that function. NULL with errno. */
struct ibv_mr *dpn_mlx5_reg_direct(struct ibv_pd *pd, uint64_t offset, size_t len, uint64_t iova,
                                   int fd, unsigned access);

#endif
