/* SPDX-License-Identifier: Apache-2.0
 *
 * path.c - which port is reached from which, and by what address.
 */
#include "verbs_impl.h"

#include <string.h>

bool fv_ports_meet(const struct fv_port *a, const struct fv_port *b)
{
    return a->up && b->up && a->net == b->net && a->link_layer == b->link_layer;
}

static bool is_v4(const union ibv_gid *g)
{
    static const uint8_t begin[12] = {[10] = 0xff, [11] = 0xff};

    return !memcmp(g->raw, begin, sizeof(begin));
}

static bool is_link_local(const union ibv_gid *g)
{
    return g->raw[0] == 0xfe && (g->raw[1] & 0xc0) == 0x80;
}

/* A packet from one entry is understood at another only if it is of the same kind. The default
 * prefix of InfiniBand's subnets looks link-local, and routers know it. */
static bool are_alike(const struct fv_gid *a, const struct fv_gid *b)
{
    return a->type == b->type && a->vlan == b->vlan && is_v4(&a->gid) == is_v4(&b->gid) &&
           (a->type == IBV_GID_TYPE_IB || is_link_local(&a->gid) == is_link_local(&b->gid));
}

bool fv_knows_gid(const struct fv_port *port, const union ibv_gid *gid, const struct fv_gid *from)
{
    for (int i = 0; i < FV_GIDS; i++)
        if (port->gids[i].used && !memcmp(&port->gids[i].gid, gid, sizeof(*gid)) &&
            are_alike(&port->gids[i], from))
            return true;
    return false;
}

/* Without a global header a packet stays in its subnet, which the first GID tells; no entry: one
 * for all. */
static bool finds(const struct fv_qp *from, const struct fv_port *port)
{
    const struct fv_gid *a = &fv->ports[from->port].gids[0], *b = &port->gids[0];

    if (from->is_global)
        return fv_knows_gid(port, &from->dgid, &from->sgid);
    return from->dlid == port->lid && !memcmp(a->gid.raw, b->gid.raw, 8);
}

bool fv_reaches(const struct fv_qp *from, const struct fv_qp *to)
{
    const struct fv_port *a = &fv->ports[from->port];

    if (!to->used || to->port < 0)
        return false;
    const struct fv_port *b = &fv->ports[to->port];
    if (from->is_global != to->is_global || (from->is_global && from->sgid.type != to->sgid.type))
        return false;
    return fv_ports_meet(a, b) && finds(from, b) && finds(to, a);
}
