/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/verbs/load.h"

#include "base/dl.h"

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
