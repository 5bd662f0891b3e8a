/* SPDX-License-Identifier: Apache-2.0
 *
 * device.c - devices, contexts, ports and their tables.
 */
#include "verbs_impl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#undef ibv_query_port

struct fv_process fv_me;

static uint64_t to_be64(uint64_t x)
{
    return (uint64_t)htonl((uint32_t)x) << 32 | htonl((uint32_t)(x >> 32));
}

/* ---- the list -------------------------------------------------------------------------------- */

/* The objects of the parent are not the child's, and neither is its thread. */
static void begin_child(void)
{
    fv_me.pid = getpid();
    fv_me.qps = NULL;
    fv_me.alive = 0;
    fv_me.held = false;
    atomic_store(&fv_me.waiting, 0);
}

static void find_devices(void)
{
    fv_me.pid = getpid();
    fv_faults_read();
    pthread_atfork(NULL, NULL, begin_child);
    if (fv_join())
        fv_me.device_count = fv_devices_read(fv_me.devices);
}

EXPORT struct ibv_device **ibv_get_device_list(int *count)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, find_devices);
    struct ibv_device **list = calloc((size_t)fv_me.device_count + 1, sizeof(*list));
    if (!list)
        return NULL;
    for (int i = 0; i < fv_me.device_count; i++)
        list[i] = &fv_me.devices[i].ib;
    if (count)
        *count = fv_me.device_count;
    return list;
}

EXPORT void ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

EXPORT const char *ibv_get_device_name(struct ibv_device *d)
{
    return d->name;
}

EXPORT int ibv_get_device_index(struct ibv_device *d)
{
    return (int)((struct fv_device *)(void *)d - fv_me.devices);
}

EXPORT __be64 ibv_get_device_guid(struct ibv_device *d)
{
    return to_be64(((struct fv_device *)(void *)d)->guid);
}

/* ---- what there is to ask -------------------------------------------------------------------- */

static const struct fv_port *find_port(struct ibv_context *c, unsigned number)
{
    const struct fv_device *d = fv_context(c)->device;

    return number >= 1 && number <= (unsigned)d->port_count ? &fv->ports[d->ports[number - 1]] : NULL;
}

EXPORT int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *out)
{
    const struct fv_device *d = fv_context(c)->device;

    *out = (struct ibv_device_attr){
        .fw_ver = "1.0",
        .node_guid = to_be64(d->guid),
        .sys_image_guid = to_be64(d->guid),
        .max_mr_size = UINT64_MAX,
        .page_size_cap = 4096,
        .max_qp = (int)d->qps,
        .max_qp_wr = (int)d->wrs,
        .device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_PORT_ACTIVE_EVENT,
        .max_sge = FV_SGES,
        .max_sge_rd = FV_SGES,
        .max_cq = FV_CQS,
        .max_cqe = (int)d->cqes,
        .max_mr = (int)d->mrs,
        .max_pd = 1 << 15,
        .max_qp_rd_atom = 16,
        .max_res_rd_atom = 1 << 14,
        .max_qp_init_rd_atom = 16,
        .atomic_cap = IBV_ATOMIC_NONE,
        .max_pkeys = 1,
        .local_ca_ack_delay = 15,
        .phys_port_cnt = (uint8_t)d->port_count,
    };
    return d->is_dead ? EIO : 0;
}

static int query_device_ex(struct ibv_context *c, const struct ibv_query_device_ex_input *input,
                           struct ibv_device_attr_ex *out, size_t len)
{
    (void)input;
    if (len < sizeof(struct ibv_device_attr))
        return EINVAL;
    memset(out, 0, len);
    if (len >= sizeof(*out))
        out->phys_port_cnt_ex = (uint32_t)fv_context(c)->device->port_count;
    return ibv_query_device(c, &out->orig_attr);
}

/* Lanes and the code of their speed that make so many Gbit/s, or the next less. */
static void encode_speed(int gbps, uint8_t *width, uint8_t *speed)
{
    static const struct {
        int gbps;
        uint8_t width, speed;
    } all[] = {{2, 1, 1},    {10, 2, 1},  {25, 1, 32},  {40, 2, 4},  {50, 1, 64},
               {56, 2, 16}, {100, 2, 32}, {200, 2, 64}, {400, 2, 128}, {800, 4, 128}};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i].gbps <= gbps || !i) {
            *width = all[i].width;
            *speed = all[i].speed;
        }
}

static int query_port(struct ibv_context *c, uint8_t number, struct ibv_port_attr *out, size_t len)
{
    const struct fv_port *p = find_port(c, number);
    struct ibv_port_attr a = {0};

    if (!p)
        return EINVAL;
    fv_lock();
    a = (struct ibv_port_attr){
        .state = p->up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN,
        .phys_state = p->up ? 5 : 3, /* link up, disabled */
        .max_mtu = p->mtu,
        .active_mtu = p->mtu,
        .gid_tbl_len = FV_GIDS,
        .pkey_tbl_len = 1,
        .max_msg_sz = 1u << 31,
        .lid = (uint16_t)p->lid,
        .max_vl_num = 1,
        .link_layer = (uint8_t)p->link_layer,
        .flags = p->needs_grh ? IBV_QPF_GRH_REQUIRED : 0,
    };
    encode_speed(p->gbps, &a.active_width, &a.active_speed);
    fv_unlock();
    if (p->link_layer == IBV_LINK_LAYER_ETHERNET)
        a.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
    memcpy(out, &a, len < sizeof(a) ? len : sizeof(a));
    return fv_context(c)->device->is_dead ? EIO : 0;
}

/* The structure that libibverbs 1.1 had ends before the flags. */
EXPORT int ibv_query_port(struct ibv_context *c, uint8_t number, struct _compat_ibv_port_attr *out)
{
    return query_port(c, number, (struct ibv_port_attr *)(void *)out,
                      offsetof(struct ibv_port_attr, port_cap_flags2));
}

EXPORT int _ibv_query_gid_ex(struct ibv_context *c, uint32_t port, uint32_t index,
                             struct ibv_gid_entry *out, uint32_t flags, size_t len)
{
    const struct fv_port *p = find_port(c, port);

    if (flags)
        return EOPNOTSUPP;
    if (!p || index >= FV_GIDS || len < sizeof(*out))
        return EINVAL;
    fv_lock();
    const struct fv_gid g = p->gids[index];
    fv_unlock();
    if (!g.used)
        return ENODATA;
    *out = (struct ibv_gid_entry){.gid = g.gid,
                                  .gid_index = index,
                                  .port_num = port,
                                  .gid_type = g.type,
                                  .ndev_ifindex = (uint32_t)g.ifindex};
    return 0;
}

/* The size of the room is passed to the kernel in 16 bits. */
EXPORT ssize_t _ibv_query_gid_table(struct ibv_context *c, struct ibv_gid_entry *out, size_t room,
                                    uint32_t flags, size_t len)
{
    const struct fv_device *d = fv_context(c)->device;
    struct ibv_gid_entry entry;
    size_t count = 0;

    if (room * len > UINT16_MAX)
        return -EINVAL;
    for (unsigned port = 1; port <= (unsigned)d->port_count; port++)
        for (unsigned i = 0; i < FV_GIDS; i++) {
            if (_ibv_query_gid_ex(c, port, i, &entry, flags, len))
                continue;
            if (count == room)
                return -EINVAL;
            out[count++] = entry;
        }
    return (ssize_t)count;
}

EXPORT int ibv_query_gid(struct ibv_context *c, uint8_t port, int index, union ibv_gid *out)
{
    struct ibv_gid_entry e = {0};
    int err = _ibv_query_gid_ex(c, port, (uint32_t)index, &e, 0, sizeof(e));

    if (err && err != ENODATA) {
        errno = err;
        return -1;
    }
    *out = e.gid; /* an empty entry is all zeros */
    return 0;
}

EXPORT int ibv_query_pkey(struct ibv_context *c, uint8_t port, int index, __be16 *pkey)
{
    if (!find_port(c, port) || index) {
        errno = EINVAL;
        return -1;
    }
    *pkey = 0xffff;
    return 0;
}

EXPORT int ibv_get_pkey_index(struct ibv_context *c, uint8_t port, __be16 pkey)
{
    return find_port(c, port) && pkey == 0xffff ? 0 : -1;
}

/* ---- contexts -------------------------------------------------------------------------------- */

static int no_srq(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    (void)srq;
    *bad = wr;
    return EOPNOTSUPP;
}

EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    struct fv_device *d = (struct fv_device *)(void *)device;
    const int err = fv_call_error("ibv_open_device");
    struct fv_my_context *c = err ? NULL : calloc(1, sizeof(*c));

    if (!c) {
        errno = err ? err : ENOMEM;
        return NULL;
    }
    c->device = d;
    c->verbs.sz = sizeof(c->verbs);
    c->verbs.query_port = query_port;
    c->verbs.query_device_ex = query_device_ex;
    struct ibv_context *ib = &c->verbs.context;
    ib->device = device;
    ib->cmd_fd = -1;
    ib->num_comp_vectors = 1;
    ib->abi_compat = __VERBS_ABI_IS_EXTENDED;
    ib->ops.poll_cq = fv_poll;
    ib->ops.req_notify_cq = fv_req_notify;
    ib->ops.post_send = fv_post_send;
    ib->ops.post_recv = fv_post_recv;
    ib->ops.post_srq_recv = no_srq;
    pthread_mutex_init(&ib->mutex, NULL);
    fv_lock();
    c->mailbox = fv_mailbox_open(fv_host(), device->name, &ib->async_fd);
    fv_me.alive += c->mailbox >= 0;
    fv_unlock();
    if (c->mailbox < 0) {
        free(c);
        return NULL;
    }
    return ib;
}

EXPORT int ibv_close_device(struct ibv_context *ib)
{
    struct fv_my_context *c = fv_context(ib);

    fv_lock();
    fv_mailbox_close(c->mailbox, ib->async_fd);
    fv_me.alive--;
    fv_unlock();
    pthread_mutex_destroy(&ib->mutex);
    free(c);
    return 0;
}

EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *c)
{
    const int err = fv_call_error("ibv_alloc_pd");
    struct fv_my_pd *pd = err ? NULL : calloc(1, sizeof(*pd));

    if (!pd) {
        errno = err ? err : ENOMEM;
        return NULL;
    }
    pd->ib.context = c;
    fv_lock();
    pd->id = fv->serial++;
    fv_me.alive++;
    fv_unlock();
    return &pd->ib;
}

EXPORT int ibv_dealloc_pd(struct ibv_pd *ib)
{
    struct fv_my_pd *pd = (struct fv_my_pd *)(void *)ib;

    fv_lock();
    const bool busy = pd->users > 0;
    fv_me.alive -= !busy;
    fv_unlock();
    if (busy)
        return EBUSY;
    free(pd);
    return 0;
}

static bool fork_is_safe;

EXPORT int ibv_fork_init(void)
{
    fork_is_safe = true;
    return 0;
}

EXPORT enum ibv_fork_status ibv_is_fork_initialized(void)
{
    return fork_is_safe ? IBV_FORK_ENABLED : IBV_FORK_DISABLED;
}
