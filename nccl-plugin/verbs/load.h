/* SPDX-License-Identifier: Apache-2.0
 *
 * load.h - libibverbs.so.1, loaded at run time, so that the plugin works without it. Its functions
 * have their names without ibv_; what its header defines inline (ibv_poll_cq, ibv_post_send,
 * ibv_post_recv) needs no symbol. rdma-core 33 or newer.
 */
#ifndef DPN_VERBS_LOAD_H
#define DPN_VERBS_LOAD_H

#include <dualpipe/dualpipe.h>
#include <infiniband/verbs.h>

struct dpn_ibv {
    int (*fork_init)(void);
    int (*is_fork_initialized)(void); /* may be NULL */
    struct ibv_device **(*get_device_list)(int *count);
    void (*free_device_list)(struct ibv_device **list);
    const char *(*get_device_name)(struct ibv_device *device);
    struct ibv_context *(*open_device)(struct ibv_device *device);
    int (*close_device)(struct ibv_context *context);
    int (*query_device)(struct ibv_context *context, struct ibv_device_attr *out);
    int (*query_port)(struct ibv_context *context, uint8_t port, struct ibv_port_attr *out);
    ssize_t (*query_gid_table)(struct ibv_context *context, struct ibv_gid_entry *out, size_t room,
                               uint32_t flags, size_t entry_size);
    struct ibv_pd *(*alloc_pd)(struct ibv_context *context);
    int (*dealloc_pd)(struct ibv_pd *pd);
    struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *data, size_t len, int access);
    /* May be NULL: no relaxed ordering, no dma-bufs. */
    struct ibv_mr *(*reg_mr_iova2)(struct ibv_pd *pd, void *data, size_t len, uint64_t iova,
                                   unsigned access);
    struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t len, uint64_t iova,
                                    int fd, int access);
    int (*dereg_mr)(struct ibv_mr *mr);
    struct ibv_cq *(*create_cq)(struct ibv_context *context, int room, void *user,
                                struct ibv_comp_channel *channel, int vector);
    int (*destroy_cq)(struct ibv_cq *cq);
    struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
    int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
    int (*destroy_qp)(struct ibv_qp *qp);
    /* Both may be NULL: no enhanced connections. */
    int (*query_ece)(struct ibv_qp *qp, struct ibv_ece *out);
    int (*set_ece)(struct ibv_qp *qp, struct ibv_ece *ece);
    int (*get_async_event)(struct ibv_context *context, struct ibv_async_event *out);
    void (*ack_async_event)(struct ibv_async_event *event);
    const char *(*event_type_str)(enum ibv_event_type type);
    const char *(*wc_status_str)(enum ibv_wc_status status);
};

/* Filled by dpn_verbs_load. */
extern struct dpn_ibv dpn_ibv;

/* Fails without logging: DP_ENOENT, dp_last_error() says what is missing. The caller holds a lock.
 */
int dpn_verbs_load(void);

/* ---- features of NVIDIA's adapters beyond verbs ---------------------------------------------- */

/* Receiving messages in any order, and access to GPU memory through a PCI function of their own
 * (Data Direct). They need a libmlx5.so.1 that is new enough: rdma-core 54 has both. Its constants are
 * repeated here, since installed headers are rarely as new. */

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
