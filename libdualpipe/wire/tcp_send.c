/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_send.c - what each socket of a TCP wire sends next: socket 0 begins the messages, one after
 * the other; long ones are cut up, and each socket that has room gets the next piece.
 */
#include "wire/tcp_wire.h"

enum { EARLY = 2 }; /* sends of which pieces may go before socket 0 has begun them */

/* ---- what to send next -------------------------------------------------------------------- */

static bool is_long(const struct dp_tcp_wire *w, const struct dp_wire_request *req)
{
    return w->count > 1 && req->len >= DP_TCP_LONG;
}

/* NULL: there are not so many yet. */
static struct dp_wire_request *nth_send(const struct dp_tcp_wire *w, uint64_t number)
{
    struct dp_wire_request *req = w->base.sends.head;

    for (uint64_t n = w->done; req && n < number; n++)
        req = req->next;
    return req;
}

static void set_frame(struct dp_tcp_socket *s, struct dp_wire_request *req, uint64_t stripe,
                      size_t offset, size_t part)
{
    s->sending = req;
    s->out_sent = 0;
    s->out = (struct dp_tcp_frame){.magic = DP_TCP_MAGIC, .stripe = stripe, .len = req->len,
                                   .tag = req->tag, .offset = offset,
                                   .rest = req->len - offset - part};
}

static void next_to_cut(struct dp_tcp_wire *w, bool was_long)
{
    w->cut++;
    w->cut_offset = 0;
    w->cut_stripe += was_long;
}

static void set_piece(struct dp_tcp_wire *w, struct dp_tcp_socket *s, struct dp_wire_request *req)
{
    const size_t left = req->len - w->cut_offset, part = left < DP_TCP_PIECE ? left : DP_TCP_PIECE;

    set_frame(s, req, w->cut_stripe + 1, w->cut_offset, part);
    w->cut_offset += part;
    if (part == left)
        next_to_cut(w, true);
}

/* false: there is none. Socket 0 goes before the others, which go on with the next long message while
 * it is busy still, but not far. */
static bool cut_piece(struct dp_tcp_wire *w, struct dp_tcp_socket *s)
{
    const uint64_t end = s == w->sockets ? w->begun : w->begun + EARLY;

    while (w->cut < end) {
        struct dp_wire_request *req = nth_send(w, w->cut);
        if (!req)
            return false;
        if (is_long(w, req)) {
            set_piece(w, s, req);
            return true;
        }
        next_to_cut(w, false);
    }
    return false;
}

/* The next message's first frame; it may be that the others have taken all there was in it. */
static bool begin_message(struct dp_tcp_wire *w, struct dp_tcp_socket *s)
{
    struct dp_wire_request *req = nth_send(w, w->begun);

    if (!req)
        return false;
    const bool is_next_to_cut = w->cut == w->begun, is_striped = is_long(w, req);
    if (!is_striped)
        set_frame(s, req, 0, 0, req->len);
    else if (is_next_to_cut)
        set_piece(w, s, req);
    else
        set_frame(s, req, w->begun_stripe + 1, req->len, 0);
    if (!is_striped && is_next_to_cut)
        next_to_cut(w, false);
    w->begun++;
    w->begun_stripe += is_striped;
    return true;
}

static bool next_frame(struct dp_tcp_wire *w, struct dp_tcp_socket *s)
{
    return cut_piece(w, s) || (s == w->sockets && begin_message(w, s));
}

/* ---- sending ------------------------------------------------------------------------------ */

/* Those whose frames have all gone, in order. A send counts the bytes of its parts in `moved`. */
static void finish_sends(struct dp_tcp_wire *w)
{
    const struct dp_wire_request *head;

    while ((head = w->base.sends.head) && w->done < w->begun && head->moved == head->len &&
           w->sockets[0].sending != head) {
        dp_wire_finish_head(&w->base.sends, 0);
        w->done++;
    }
}

/* One call. false: the socket takes no more, or there is no more for it. */
static bool send_some(struct dp_tcp_wire *w, struct dp_tcp_socket *s)
{
    if (!s->sending && !next_frame(w, s))
        return false;
    const ssize_t n = dp_tcp_socket_send(s, w->together);
    if (n < 0) {
        if (n != -EAGAIN && n != -EINTR) {
            w->send_error = (int)-n;
            w->broken = (int)(s - w->sockets);
        }
        return false;
    }
    const size_t part = dp_tcp_part(&s->out);
    w->base.moves++;
    s->out_sent += (size_t)n;
    if (s->out_sent < sizeof(s->out) + part)
        return false;
    s->sending->moved += part;
    s->sending = NULL;
    finish_sends(w);
    return true;
}

void dp_tcp_send_all(struct dp_tcp_wire *w)
{
    bool more = true;

    for (int turn = 0; more && turn < DP_TCP_TURNS; turn += w->count) {
        more = false;
        for (int i = 0; i < w->count && w->base.sends.head && !w->send_error; i++)
            more |= send_some(w, &w->sockets[i]);
    }
    w->in_a_hurry = more && w->base.sends.head;
}
