/* SPDX-License-Identifier: Apache-2.0
 *
 * chance.c - what befalls a work request, as the seed says or a test has ordered.
 */
#include "verbs_impl.h"

static void decide_error(const struct fv_my_qp *q, struct fv_send *s)
{
    static const struct {
        enum ibv_wc_status status;
        enum fake_verbs_arrival arrival;
    } all[] = {
        {IBV_WC_RETRY_EXC_ERR, FAKE_ARRIVES_NEVER}, {IBV_WC_RETRY_EXC_ERR, FAKE_ARRIVES_BEFORE},
        {IBV_WC_RETRY_EXC_ERR, FAKE_ARRIVES_AFTER}, {IBV_WC_REM_ACCESS_ERR, FAKE_ARRIVES_NEVER},
        {IBV_WC_WR_FLUSH_ERR, FAKE_ARRIVES_NEVER},
    };
    const unsigned which =
        fv_draw(FV_ERROR, q->ordinal, s->n, sizeof(all) / sizeof(all[0]));

    s->fault = all[which].status;
    s->arrival = all[which].arrival;
}

bool fv_move_gid(struct fv_port *port, int from, int to)
{
    if (from < 0 || to < 0 || from >= FV_GIDS || to >= FV_GIDS || !port->gids[from].used ||
        port->gids[to].used)
        return false;
    port->gids[to] = port->gids[from];
    port->gids[from].used = false;
    fv_post_port_event(port, IBV_EVENT_GID_CHANGE);
    return true;
}

static void shuffle_gids(struct fv_port *port, unsigned chance)
{
    int from = (int)(chance % FV_GIDS), to = 0;

    for (int i = 0; i < FV_GIDS && !port->gids[from].used; i++)
        from = (from + 1) % FV_GIDS;
    while (to < FV_GIDS && port->gids[to].used)
        to++;
    fv_move_gid(port, from, to);
}

void fv_kill_device(struct fv_device *d)
{
    d->is_dead = true;
    for (int i = 0; i < FV_MAILBOXES; i++)
        if (fv_is_mailbox_of(i, fv_me.pid, d->ib.name))
            fv_post_letter(i, IBV_EVENT_DEVICE_FATAL, 0);
    for (struct fv_my_qp *q = fv_me.qps; q; q = q->next)
        if (fv_context(q->ib.context)->device == d)
            fv_break(fv_shared(q));
}

void fv_tempt(struct fv_my_qp *q, struct fv_send *s)
{
    struct fv_qp *mine = fv_shared(q);
    struct fv_port *port = &fv->ports[mine->port];

    if (q->fail_at == s->n) {
        s->fault = q->fail_status;
        s->arrival = q->fail_arrival;
    }
    if (fv_strikes(FV_REORDER, q->ordinal, s->n))
        s->ready_tick = fv_me.tick + 1 + fv_draw(FV_REORDER, q->ordinal, s->n, 16);
    if (fv_strikes(FV_ERROR, q->ordinal, s->n))
        decide_error(q, s);
    if (fv_strikes(FV_PORT, q->ordinal, s->n))
        fv_plan_port_up(port, fv_port_ms());
    if (fv_strikes(FV_GID, q->ordinal, s->n))
        shuffle_gids(port, fv_draw(FV_GID, q->ordinal, s->n, FV_GIDS));
    if (fv_strikes(FV_QP, q->ordinal, s->n)) {
        fv_post_letter(mine->events, IBV_EVENT_QP_FATAL, mine->owner);
        fv_break(mine);
    }
    if (fv_strikes(FV_DEVICE, q->ordinal, s->n))
        fv_kill_device(fv_context(q->ib.context)->device);
}
