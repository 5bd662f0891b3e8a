/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/base.h"

#include "wire/sockets.h"
#include "wire/tcp.h"

#include <stdarg.h>
#include <stdio.h>

static void push(struct dp_wire_queue *queue, struct dp_wire_request *req)
{
    *queue->end = req;
    queue->end = &req->next;
}

static struct dp_wire_base *of(struct dp_wire *wire)
{
    return (struct dp_wire_base *)wire;
}

static const struct dp_wire_base *of_const(const struct dp_wire *wire)
{
    return (const struct dp_wire_base *)wire;
}

/* false: the wire is broken, and the request is done. */
static bool start(struct dp_wire *wire, struct dp_wire_queue *queue, struct dp_wire_request *req)
{
    if (wire->error)
        req->status = wire->error;
    else
        push(queue, req);
    return !wire->error;
}

void dp_wire_isend(struct dp_wire *wire, uint64_t tag, const void *buf, size_t len,
                   struct dp_wire_request *req)
{
    *req = (struct dp_wire_request){
        .buf = (char *)buf, .len = len, .tag = tag, .status = DP_EAGAIN};
    if (start(wire, &of(wire)->sends, req))
        wire->ops->progress(wire);
}

void dp_wire_irecv(struct dp_wire *wire, void *buf, size_t room, struct dp_wire_request *req)
{
    *req = (struct dp_wire_request){.buf = buf, .len = room, .status = DP_EAGAIN};
    if (start(wire, &of(wire)->receives, req) && !wire->nothing_ahead)
        wire->ops->progress(wire);
}

void dp_wire_close(struct dp_wire *wire)
{
    if (wire)
        wire->ops->close(wire);
}

void dp_wire_expect(struct dp_wire *wire, bool expects)
{
    of(wire)->expects = expects;
}

bool dp_wire_is_sending(const struct dp_wire *wire)
{
    return of_const(wire)->sends.head;
}

bool dp_wire_is_busy(const struct dp_wire *wire)
{
    return of_const(wire)->sends.head || dp_wire_listens(of_const(wire));
}

/* A send that is not done yet found the wire full, and so will one that is too long for it. */
bool dp_wire_needs_progress(const struct dp_wire *wire)
{
    const struct dp_wire_base *base = of_const(wire);

    if (base->sends.head)
        return true;
    for (const struct dp_wire_request *req = base->receives.head; req; req = req->next)
        if (req->len > base->buffer_bytes)
            return true;
    return false;
}

unsigned dp_wire_moves(const struct dp_wire *wire)
{
    return of_const(wire)->moves;
}

bool dp_wire_check_fork(struct dp_wire_base *base)
{
    if (!base->wire.error && base->forks != dp_forks_passed)
        dp_wire_fail(
            &base->wire, DP_ECOMM,
            "this process was forked after the connection was made, which is its parent's");
    return !base->wire.error;
}

static void finish_all(struct dp_wire_queue *queue, int status)
{
    while (queue->head)
        dp_wire_finish_head(queue, status);
}

void dp_wire_fail_sends(struct dp_wire_base *base, const char *reason)
{
    if (!base->wire.why[0])
        snprintf(base->wire.why, sizeof(base->wire.why), "%s", reason);
    finish_all(&base->sends, DP_ECOMM);
}

void dp_wire_fail(struct dp_wire *wire, int error, const char *fmt, ...)
{
    va_list args;

    if (!wire->error) {
        wire->error = error;
        va_start(args, fmt);
        vsnprintf(wire->why, sizeof(wire->why), fmt, args);
        va_end(args);
    }
    of(wire)->skip = 0;
    wire->ops->quiesce(wire);
    finish_all(&of(wire)->sends, wire->error);
    finish_all(&of(wire)->receives, wire->error);
}

/* ---- wire options ---------------------------------------------------------------------------- */

static const struct dp_option table[] = {
    {"CMA", DP_OPTION_BOOL, "1",
     "copy messages of 64 KiB and more by cross-memory attach within a host, where the system "
     "allows it",
     offsetof(struct dp_wire_options, cma), .old_name = "DIRECT"},
    {"MEASURE", DP_OPTION_BOOL, "1",
     "of these, use cross-memory attach only where it is measured to be faster than shared memory",
     offsetof(struct dp_wire_options, measure), .choices = NULL},
    {"TCP_BUFFER", DP_OPTION_INT, "-1",
     "send buffer of a tcp connection, in KiB; 0: the kernel's choice; -1: 1024 within a host, "
     "else 0",
     offsetof(struct dp_wire_options, tcp_buffer_kib), .min = -1, .max = 1 << 20},
    {"TCP_SOCKETS", DP_OPTION_INT, "0",
     "sockets of a tcp connection, which long messages go over together; where both sides say how "
     "many, "
     "the smaller one; 0: 1 within a host, else 4 to 8 by the speed of the link",
     offsetof(struct dp_wire_options, tcp_sockets), .max = DP_TCP_SOCKETS_MAX},
};
const struct dp_option_area dp_wire_option_area = {"WIRE", table, sizeof(table) / sizeof(table[0])};
