/* SPDX-License-Identifier: Apache-2.0
 *
 * event.c - asynchronous events of a context.
 */
#include "verbs_impl.h"

#include <errno.h>

static bool is_of_qp(enum ibv_event_type type)
{
    return type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR ||
           type == IBV_EVENT_QP_ACCESS_ERR;
}

EXPORT int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *out)
{
    struct fv_letter letter;

    if (fv_wait_letter(fv_context(c)->mailbox, c->async_fd, &letter))
        return -1;
    out->event_type = (enum ibv_event_type)letter.type;
    if (is_of_qp(out->event_type)) {
        struct fv_my_qp *q = (struct fv_my_qp *)(uintptr_t)letter.element;
        out->element.qp = &q->ib;
        pthread_mutex_lock(&q->ib.mutex);
        q->async_got++;
        pthread_mutex_unlock(&q->ib.mutex);
    } else if (out->event_type == IBV_EVENT_CQ_ERR) {
        struct fv_my_cq *q = (struct fv_my_cq *)(uintptr_t)letter.element;
        out->element.cq = &q->ib;
        pthread_mutex_lock(&q->ib.mutex);
        q->async_got++;
        pthread_mutex_unlock(&q->ib.mutex);
    } else {
        out->element.port_num = (int)letter.element;
    }
    return 0;
}

static void acknowledge(pthread_mutex_t *mutex, pthread_cond_t *cond, uint32_t *count)
{
    pthread_mutex_lock(mutex);
    ++*count;
    pthread_cond_broadcast(cond);
    pthread_mutex_unlock(mutex);
}

EXPORT void ibv_ack_async_event(struct ibv_async_event *e)
{
    struct ibv_qp *qp = e->element.qp;
    struct ibv_cq *cq = e->element.cq;

    if (is_of_qp(e->event_type))
        acknowledge(&qp->mutex, &qp->cond, &qp->events_completed);
    else if (e->event_type == IBV_EVENT_CQ_ERR)
        acknowledge(&cq->mutex, &cq->cond, &cq->async_events_completed);
}
