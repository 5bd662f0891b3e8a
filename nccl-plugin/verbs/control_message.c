/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/verbs/control_message.h"

#include "base/fail.h"
#include "nccl-plugin/net/options.h"

#include <string.h>

/* Which side receives a kind of message, and its length. */
static const struct {
    size_t len;
    bool by_sender, by_receiver;
    const char *name;
} kinds[] = {
    [DPN_HELLO] = {sizeof(struct dpn_hello), false, true, "hello"},
    [DPN_PLAN] = {sizeof(struct dpn_plan), true, false, "plan"},
    [DPN_OPEN] = {sizeof(struct dpn_open_qp), false, true, "open"},
    [DPN_OPENED] = {sizeof(struct dpn_opened_qp), true, false, "opened"},
    [DPN_READY] = {sizeof(struct dpn_ready), false, true, "ready"},
    [DPN_CLOSED_SENDER] = {sizeof(struct dpn_closed_sender), false, true, "closed"},
    [DPN_CLOSED_RECEIVER] = {sizeof(struct dpn_closed_receiver), true, false, "closed"},
    [DPN_REFUSED] = {sizeof(struct dpn_refused), false, true, "refused"},
    [DPN_RESUME] = {sizeof(struct dpn_resume), true, true, "resume"},
    [DPN_ACK] = {sizeof(struct dpn_resume), true, true, "ack"},
    [DPN_STALLED] = {sizeof(struct dpn_stalled), true, false, "stalled"},
    [DPN_FAILED] = {sizeof(struct dpn_failed), true, true, "failed"},
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

size_t dpn_control_len(uint64_t kind)
{
    return kind < KINDS ? kinds[kind].len : 0;
}

static bool is_text(const char *text, size_t len)
{
    return memchr(text, '\0', len) != NULL;
}

static bool are_ports(const struct dpn_port_info *ports, int count)
{
    if (count > DPN_MAX_RAILS)
        return false;
    for (int i = 0; i < count; i++)
        if (!is_text(ports[i].name, sizeof(ports[i].name)) || !ports[i].speed_mbps)
            return false;
    return true;
}

static bool is_gid(const struct dpn_gid *gid)
{
    return gid->type <= IBV_GID_TYPE_ROCE_V2;
}

static bool is_qp(const struct dpn_qp_info *qp)
{
    return qp->number < 1u << 24 && qp->psn < 1u << 24 && qp->mtu >= IBV_MTU_256 &&
           qp->mtu <= IBV_MTU_4096;
}

static bool is_hello(const struct dpn_hello *h)
{
    return h->port_count && are_ports(h->ports, h->port_count + h->other_count) && h->qps &&
           h->qps <= DPN_MAX_QPS && h->max_message && h->service_level < 16 &&
           h->subnet_bits <= 32 && h->eager_bytes <= DPN_MAX_EAGER &&
           h->traffic <= DPN_TRAFFIC_GRADIENT;
}

static bool is_plan(const struct dpn_plan *p)
{
    if (!is_text(p->reason, sizeof(p->reason)))
        return false;
    if (!p->agreed)
        return true;
    for (int i = 0; i < DPN_MAX_RAILS; i++)
        if (p->rail[i].sender >= DPN_MAX_RAILS)
            return false;
    return p->rails && are_ports(p->ports, p->rails) && p->qps_per_rail && p->max_message &&
           p->eager_bytes <= DPN_MAX_EAGER &&
           p->rails * p->qps_per_rail <= DPN_MAX_QPS;
}

static bool is_open(const struct dpn_open_qp *o)
{
    if (o->index >= DPN_MAX_QPS || o->gids.count < 0 || o->gids.count > DPN_MAX_GIDS)
        return false;
    for (int i = 0; i < o->gids.count; i++)
        if (!is_gid(&o->gids.list[i]))
            return false;
    return is_qp(&o->qp);
}

static bool is_opened(const struct dpn_opened_qp *o)
{
    return o->index < DPN_MAX_QPS && is_text(o->reason, sizeof(o->reason)) &&
           (!o->is_open || (is_qp(&o->qp) && is_gid(&o->sender) && is_gid(&o->receiver)));
}

static bool is_report(const struct dpn_closed_receiver *f)
{
    for (int i = 0; i < NCCL_NET_MAX_REQUESTS; i++)
        if (f->arrived[i].count > DPN_MAX_RECEIVES)
            return false;
    return f->index < DPN_MAX_QPS;
}

static bool makes_sense(uint64_t kind, const union dpn_control_body *t)
{
    switch ((enum dpn_control_kind)kind) {
    case DPN_HELLO:
        return is_hello(&t->hello);
    case DPN_PLAN:
        return is_plan(&t->plan);
    case DPN_OPEN:
        return is_open(&t->open);
    case DPN_OPENED:
        return is_opened(&t->opened);
    case DPN_READY:
        return t->ready.qps <= DPN_MAX_QPS;
    case DPN_CLOSED_SENDER:
        return t->closed_sender.index < DPN_MAX_QPS;
    case DPN_CLOSED_RECEIVER:
        return is_report(&t->closed_receiver);
    case DPN_REFUSED:
        return t->refused.slot < NCCL_NET_MAX_REQUESTS && t->refused.sub < DPN_MAX_RECEIVES;
    case DPN_RESUME:
    case DPN_ACK:
        return true;
    case DPN_STALLED:
        return is_report(&t->stalled.has);
    case DPN_FAILED:
        return is_text(t->failed.reason, sizeof(t->failed.reason));
    }
    return false;
}

int dpn_control_check(uint64_t kind, bool is_sender, const union dpn_control_body *body, size_t len)
{
    const bool known = dpn_control_len(kind) &&
                       (is_sender ? kinds[kind].by_sender : kinds[kind].by_receiver);

    if (!known)
        return dp_fail_quietly(DP_EMISMATCH,
                               "a control message of kind %llu, which a %s never receives",
                               (unsigned long long)kind, is_sender ? "sender" : "receiver");
    if (kind == DPN_HELLO && len >= sizeof(body->hello.version) &&
        body->hello.version != DPN_CONTROL_VERSION)
        return dp_fail_quietly(DP_EMISMATCH,
                               "version %u of dualpipe's verbs transport, expected %d",
                               body->hello.version, DPN_CONTROL_VERSION);
    if (len != kinds[kind].len)
        return dp_fail_quietly(DP_EMISMATCH, "the control message %s of %zu bytes, expected %zu",
                               kinds[kind].name, len, kinds[kind].len);
    if (!makes_sense(kind, body))
        return dp_fail_quietly(DP_EMISMATCH, "the control message %s with a value out of bounds",
                               kinds[kind].name);
    return 0;
}
