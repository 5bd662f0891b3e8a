/* SPDX-License-Identifier: Apache-2.0
 *
 * net_limits.c - what this machine could do: a line of shared memory, TCP over the loopback, and
 * one copy, each with both processes spinning and nothing else to do.
 */
#include "bench/net.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>

/* Each side writes a line of its own: how many messages it has put, or taken. */
struct line {
    _Atomic uint64_t count;
    char rest[120];
};
struct net_board {
    struct line lines[2];
};

static _Atomic uint64_t *count_of(struct net_side *s, int side)
{
    return &s->shared->board->lines[side].count;
}

/* Until the other side's count is at least that. */
static int await(struct net_side *s, uint64_t count)
{
    _Atomic uint64_t *theirs = count_of(s, 1 - s->side);
    int err = 0;

    while (!err && atomic_load_explicit(theirs, memory_order_acquire) < count)
        err = net_side_idle(s);
    net_side_moved(s);
    return err;
}

static void advance(struct net_side *s, uint64_t by)
{
    atomic_fetch_add_explicit(count_of(s, s->side), by, memory_order_release);
}

static uint64_t ours(struct net_side *s)
{
    return atomic_load_explicit(count_of(s, s->side), memory_order_relaxed);
}

static char *slot(struct net_side *s, size_t size, int at)
{
    return s->shared->memory + net_slot(s->room, size, 0, at);
}

/* ---- shared memory: in and out again --------------------------------------------------------- */

static int shm_ping_pong(struct net_side *s, size_t size, int times)
{
    int err = 0;

    for (int i = 0; i < times && !err; i++) {
        const uint64_t before = ours(s);
        if (s->side) {
            err = await(s, before + 1);
            memcpy(s->in, slot(s, size, 0), size);
        }
        memcpy(slot(s, size, s->side), s->out, size);
        advance(s, 1);
        if (!s->side && !err) {
            err = await(s, before + 1);
            memcpy(s->in, slot(s, size, 1), size);
        }
    }
    return err;
}

/* As many slots as fit, NET_WINDOW at most. */
static int shm_stream(struct net_side *s, size_t size, int connections, int times)
{
    const uint64_t slots = s->room / size < NET_WINDOW ? s->room / size : NET_WINDOW;
    const uint64_t base = ours(s);
    int err = 0;

    (void)connections;
    for (int i = 0; i < times && !err; i++) {
        if (s->side) {
            err = await(s, base + (uint64_t)i + 1);
            memcpy(s->in + net_slot(s->room, size, 0, i), slot(s, size, i), size);
        } else {
            err = (uint64_t)i < slots ? 0 : await(s, base + (uint64_t)i + 1 - slots);
            memcpy(slot(s, size, i), s->out + net_slot(s->room, size, 0, i), size);
        }
        advance(s, 1);
    }
    return err ? err : await(s, base + (uint64_t)times);
}

const struct net_way net_way_shm = {"shm", NULL, shm_ping_pong, shm_stream, NULL};

/* ---- one copy, cut over both cores ----------------------------------------------------------- */

static int memcpy_stream(struct net_side *s, size_t size, int connections, int times)
{
    const size_t half = size / 2, at = s->side ? half : 0, len = s->side ? size - half : half;
    const uint64_t base = ours(s);

    (void)connections;
    for (int i = 0; i < times; i++) {
        char *from = slot(s, size, i);
        memcpy(from + s->room + at, from + at, len);
        atomic_signal_fence(memory_order_seq_cst); /* or only the last copy would be left */
    }
    advance(s, 1);
    return await(s, base + 1);
}

const struct net_way net_way_memcpy = {"memcpy", NULL, NULL, memcpy_stream, NULL};

/* ---- TCP ------------------------------------------------------------------------------------- */

static int tcp_move(struct net_side *s, bool send_it, char *data, size_t size)
{
    const int fd = s->shared->tcp[s->side];

    while (size) {
        ssize_t len = send_it ? send(fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL)
                              : recv(fd, data, size, MSG_DONTWAIT);
        if (len == 0 || (len < 0 && errno != EAGAIN && errno != EINTR))
            return net_side_fail(s, DP_ECOMM, "the limit tcp: %s",
                                 len ? strerror(errno) : "the connection has ended");
        if (len > 0) {
            net_side_moved(s);
            data += len;
            size -= (size_t)len;
        } else if (net_side_idle(s)) {
            return DP_ETIMEDOUT;
        }
    }
    return 0;
}

static int tcp_ping_pong(struct net_side *s, size_t size, int times)
{
    int err = 0;

    for (int i = 0; i < 2 * times && !err; i++) {
        const bool send_it = i % 2 == s->side;
        err = tcp_move(s, send_it, send_it ? s->out : s->in, size);
    }
    return err;
}

static int tcp_stream(struct net_side *s, size_t size, int connections, int times)
{
    char *buffer = s->side ? s->in : s->out;
    int err = 0;

    (void)connections;
    for (int i = 0; i < times && !err; i++)
        err = tcp_move(s, !s->side, buffer + net_slot(s->room, size, 0, i), size);
    return err ? err : tcp_move(s, s->side, buffer, 1);
}

const struct net_way net_way_tcp = {"tcp", NULL, tcp_ping_pong, tcp_stream, NULL};
