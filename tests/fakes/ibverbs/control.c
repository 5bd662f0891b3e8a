/* SPDX-License-Identifier: Apache-2.0
 *
 * control.c - what a test asks of the stand-in.
 */
#include "verbs_impl.h"

#include <string.h>

static struct fv_device *find_device(const char *name)
{
    for (int i = 0; i < fv_me.device_count; i++)
        if (!strcmp(fv_me.devices[i].ib.name, name))
            return &fv_me.devices[i];
    return NULL;
}

static struct fv_port *find_port(const char *device, int port)
{
    const struct fv_device *d = find_device(device);

    return d && port >= 1 && port <= d->port_count ? &fv->ports[d->ports[port - 1]] : NULL;
}

static bool set_port(const char *device, int number, bool up)
{
    struct fv_port *port = find_port(device, number);

    if (!port)
        return false;
    fv_lock();
    if (port->up != up)
        fv_post_port_event(port, up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
    port->up = up;
    port->up_again_ns = 0;
    fv_progress();
    fv_unlock();
    return true;
}

static bool move_gid(const char *device, int number, int from, int to)
{
    struct fv_port *port = find_port(device, number);

    if (!port)
        return false;
    fv_lock();
    const bool done = fv_move_gid(port, from, to);
    fv_unlock();
    return done;
}

static bool set_lid(const char *device, int number, int lid)
{
    struct fv_port *port = find_port(device, number);

    if (!port || port->link_layer == IBV_LINK_LAYER_ETHERNET)
        return false;
    fv_lock();
    port->lid = lid;
    fv_post_port_event(port, IBV_EVENT_LID_CHANGE);
    fv_unlock();
    return true;
}

static bool kill_device(const char *device)
{
    struct fv_device *d = find_device(device);

    if (!d)
        return false;
    fv_lock();
    fv_kill_device(d);
    fv_progress();
    fv_unlock();
    return true;
}

static bool fail_send(struct ibv_qp *ib, int n, enum ibv_wc_status status,
                      enum fake_verbs_arrival arrival)
{
    struct fv_my_qp *q = (struct fv_my_qp *)(void *)ib;

    fv_lock();
    q->fail_at = q->posted + (uint64_t)n;
    q->fail_status = status;
    q->fail_arrival = arrival;
    fv_unlock();
    return n > 0;
}

static bool hold(bool held)
{
    if (!fv)
        return false;
    fv_lock();
    fv_me.held = held;
    fv_progress();
    fv_unlock();
    return true;
}

static bool hold_qp(struct ibv_qp *ib, bool held)
{
    fv_lock();
    ((struct fv_my_qp *)(void *)ib)->held = held;
    fv_progress();
    fv_unlock();
    return true;
}

static int alive(void)
{
    if (!fv)
        return 0;
    fv_lock();
    const int n = fv_me.alive;
    fv_unlock();
    return n;
}

static int waiting(void)
{
    return atomic_load(&fv_me.waiting);
}

EXPORT const struct fake_verbs fake_verbs = {
    .set_port = set_port,
    .move_gid = move_gid,
    .set_lid = set_lid,
    .kill_device = kill_device,
    .fail_send = fail_send,
    .fail_call = fv_fail_call,
    .hold_call = fv_hold_call,
    .held_calls = fv_held_calls,
    .pass_calls = fv_pass_calls,
    .hold = hold,
    .hold_qp = hold_qp,
    .alive = alive,
    .waiting = waiting,
};
