/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/verbs/load.h"

#include "base/dl.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct dpn_ibv dpn_ibv;

#define WANTED(name)   {"ibv_" #name, offsetof(struct dpn_ibv, name), false}
#define OPTIONAL(name) {"ibv_" #name, offsetof(struct dpn_ibv, name), true}

static const struct dp_dl_symbol symbols[] = {
    WANTED(fork_init),
    OPTIONAL(is_fork_initialized),
    WANTED(get_device_list),
    WANTED(free_device_list),
    WANTED(get_device_name),
    WANTED(open_device),
    WANTED(close_device),
    WANTED(query_device),
    WANTED(query_port),
    {"_ibv_query_gid_table", offsetof(struct dpn_ibv, query_gid_table), false},
    WANTED(alloc_pd),
    WANTED(dealloc_pd),
    WANTED(reg_mr),
    OPTIONAL(reg_mr_iova2),
    OPTIONAL(reg_dmabuf_mr),
    WANTED(dereg_mr),
    WANTED(create_cq),
    WANTED(destroy_cq),
    WANTED(create_qp),
    WANTED(modify_qp),
    WANTED(destroy_qp),
    OPTIONAL(query_ece),
    OPTIONAL(set_ece),
    WANTED(get_async_event),
    WANTED(ack_async_event),
    WANTED(event_type_str),
    WANTED(wc_status_str),
};

/* Without this a child process may write to pages that the device reads. Newer kernels copy such
 * pages for the child, and every registration would only cost more. */
static void prepare_for_fork(void)
{
    if (!dpn_ibv.is_fork_initialized || dpn_ibv.is_fork_initialized() != IBV_FORK_UNNEEDED)
        dpn_ibv.fork_init();
}

int dpn_verbs_load(void)
{
    static const char *const files[] = {"libibverbs.so.1", NULL};
    static void *handle; /* never closed: devices have threads of their own */

    if (handle)
        return 0;
    int err = dp_dl_open(files, symbols, sizeof(symbols) / sizeof(symbols[0]), &dpn_ibv, &handle);
    if (!err)
        prepare_for_fork();
    return err;
}

/* ---- features of NVIDIA's adapters beyond verbs ---------------------------------------------- */

struct dpn_mlx5 dpn_mlx5;

/* Values of rdma-core's mlx5dv.h. */
enum { MASK_HAS_FLAGS = 1 << 0, FLAG_ANY_ORDER = 1 << 7, ACCESS_DATA_DIRECT = 1 << 0 };

void dpn_mlx5_load(void)
{
    static const char *const files[] = {"libmlx5.so.1", NULL};
    static const struct dp_dl_symbol mlx5_symbols[] = {
        {"mlx5dv_create_qp", offsetof(struct dpn_mlx5, create_qp), true},
        {"mlx5dv_get_data_direct_sysfs_path",
         offsetof(struct dpn_mlx5, get_data_direct_sysfs_path), true},
        {"mlx5dv_reg_dmabuf_mr", offsetof(struct dpn_mlx5, reg_dmabuf_mr), true},
    };
    static void *handle; /* never closed, like libibverbs */

    if (!handle)
        dp_dl_open(files, mlx5_symbols, sizeof(mlx5_symbols) / sizeof(mlx5_symbols[0]), &dpn_mlx5,
                   &handle);
}

struct ibv_qp *dpn_mlx5_new_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    struct ibv_qp_init_attr_ex wanted = {
        .send_cq = attr->send_cq, .recv_cq = attr->recv_cq, .cap = attr->cap,
        .qp_type = attr->qp_type, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd,
    };
    struct dpn_mlx5_qp own = {.mask = MASK_HAS_FLAGS, .flags = FLAG_ANY_ORDER};

    errno = EOPNOTSUPP;
    struct ibv_qp *qp = dpn_mlx5.create_qp ? dpn_mlx5.create_qp(pd->context, &wanted, &own) : NULL;
    attr->cap = wanted.cap;
    return qp;
}

char *dpn_mlx5_find_direct(struct ibv_context *context)
{
    char path[PATH_MAX] = "/sys";
    const size_t at = strlen(path);

    errno = EOPNOTSUPP;
    if (!dpn_mlx5.get_data_direct_sysfs_path || !dpn_mlx5.reg_dmabuf_mr)
        return NULL;
    errno = dpn_mlx5.get_data_direct_sysfs_path(context, path + at, sizeof(path) - at);
    return errno ? NULL : strdup(path);
}

struct ibv_mr *dpn_mlx5_reg_direct(struct ibv_pd *pd, uint64_t offset, size_t len, uint64_t iova,
                                   int fd, unsigned access)
{
    return dpn_mlx5.reg_dmabuf_mr(pd, offset, len, iova, fd, (int)access, ACCESS_DATA_DIRECT);
}
