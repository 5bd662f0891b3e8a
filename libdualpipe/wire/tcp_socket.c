/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_socket.c - one socket of a TCP wire: its buffers, and a system call for each frame and each
 * look.
 */
#include "wire/tcp_wire.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/text.h"

#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

enum {
    /* Between processes of one host: what is under way stays in the cache. A network wants the
     * kernel's own choice. */
    LOCAL_BUFFER_BYTES = 1 << 20,
    /* Of several sockets, each takes what it can send soon and leaves the rest to the others. */
    UNSENT_BYTES = 2 * DP_TCP_PIECE
};

/* Between processes of one host there is no congestion. Of the ways to control it this one is in
 * every kernel, free to all users, and lets go at once what may go; others (BBR) would space it
 * out. */
static const char LOCAL_CONGESTION[] = "reno";

/* ---- buffers ------------------------------------------------------------------------------ */

/* Only what may be under way is limited. What the receiver takes is left to the kernel: with a
 * small buffer there it would offer less room than a segment is long, acknowledge late, and the
 * sender would wait for that. */
static void set_buffer(int fd, int bytes)
{
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

/* Where the system grants less (net.core.wmem_max), its own choice may become larger than that. */
static void set_local_buffer(int fd)
{
    int granted = 0;
    socklen_t len = sizeof(granted);

    set_buffer(fd, LOCAL_BUFFER_BYTES);
    getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &granted, &len);
#ifdef SO_BUF_LOCK
    const int unlock = 0;
    if (granted < LOCAL_BUFFER_BYTES)
        setsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &unlock, sizeof(unlock));
#endif
}

void dp_tcp_socket_tune(int fd, int64_t buffer_kib, bool is_one_of_several)
{
    const bool here = dp_tcp_stays_here(fd);
    const int one = 1, unsent = UNSENT_BYTES;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (is_one_of_several)
        setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent));
    if (here)
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, LOCAL_CONGESTION, strlen(LOCAL_CONGESTION));
    if (here && buffer_kib < 0)
        set_local_buffer(fd);
    else if (buffer_kib > 0)
        set_buffer(fd, (int)buffer_kib << 10);
}

/* ---- signs of life ------------------------------------------------------------------------ */

/* Not TCP_USER_TIMEOUT: it also ends a connection whose peer acknowledges every probe but has no room,
 * as the receiver is stopped or busy. */
void dp_tcp_socket_keep_alive(int fd, int64_t timeout_ns)
{
    enum { IDLE_S = 10, MOST_PROBES = 127 };
    const int on = 1, seconds = (int)(timeout_ns / DP_NS_PER_S) + 1;
    const int idle_s = seconds / 2 < IDLE_S ? (seconds + 1) / 2 : IDLE_S;
    const int interval_s = (idle_s + 1) / 2 + seconds / MOST_PROBES;
    const int probes = (seconds - idle_s) / interval_s + 1;

    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

/* One answer may be lost, and where there is no room the system asks the more seldom the longer it
 * takes: so two questions without an answer are waited for. */
void dp_tcp_socket_look(int fd, struct dp_tcp_life *out)
{
    struct tcp_info info = {.tcpi_state = TCP_CLOSE};
    socklen_t len = sizeof(info);
    int unacked = 0;

    getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len);
    ioctl(fd, SIOCOUTQ, &unacked);
    *out = (struct dp_tcp_life){.is_unanswered = info.tcpi_state == TCP_ESTABLISHED &&
                                                 (info.tcpi_probes > 1 || info.tcpi_retransmits > 1),
                                .silent_ns = info.tcpi_last_ack_recv * DP_NS_PER_MS,
                                .unacked_bytes = (unsigned)unacked,
                                .retransmissions = info.tcpi_total_retrans};
}

static void name_end(int fd, int (*name)(int, struct sockaddr *, socklen_t *),
                     char text[DP_SOCKADDR_TEXT])
{
    union dp_sockaddr end = {.any = {.sa_family = AF_UNSPEC}};
    socklen_t len = sizeof(end);

    snprintf(text, DP_SOCKADDR_TEXT, "?");
    if (!name(fd, &end.any, &len))
        dp_sockaddr_text(&end, text);
}

void dp_tcp_socket_ends(int fd, char text[DP_TCP_ENDS])
{
    char here[DP_SOCKADDR_TEXT], there[DP_SOCKADDR_TEXT];

    name_end(fd, getsockname, here);
    name_end(fd, getpeername, there);
    snprintf(text, DP_TCP_ENDS, "%s to %s", here, there);
}

bool dp_wire_tcp_tell(const struct dp_wire *wire, char *text, size_t room)
{
    const struct dp_tcp_wire *w = (const struct dp_tcp_wire *)wire;
    char ends[DP_TCP_ENDS];
    unsigned unacked_bytes = 0, retransmissions = 0;
    bool is_unanswered = false;
    struct dp_tcp_life life;

    for (int i = 0; i < w->count; i++) {
        dp_tcp_socket_look(dp_tcp_fd(&w->sockets[i]), &life);
        unacked_bytes += life.unacked_bytes;
        retransmissions += life.retransmissions;
        is_unanswered |= life.is_unanswered;
    }
    if (!*w->ends)
        dp_tcp_socket_ends(dp_tcp_fd(w->sockets), ends);
    dp_snprintf(text, room, "%s, %u bytes not acknowledged, %u retransmissions",
                *w->ends ? w->ends : ends, unacked_bytes, retransmissions);
    return is_unanswered;
}

void dp_tcp_describe(const struct dp_tcp_wire *w, int index, int error, char *text, size_t room)
{
    const bool is_network = !error || error == ETIMEDOUT || error == EHOSTUNREACH;
    char which[32] = "", facts[200] = "", silence[48];

    snprintf(silence, sizeof(silence), "no sign of life for %lld s",
             (long long)(w->timeout_ns / DP_NS_PER_S));
    if (w->count > 1)
        dp_snprintf(which, sizeof(which), "socket %d of %d: ", index + 1, w->count);
    if (is_network)
        dp_wire_tcp_tell(&w->base.wire, facts, sizeof(facts));
    dp_snprintf(text, room, "%s%s%s%s%s", which,
                !error || (error == ETIMEDOUT && w->timeout_ns) ? silence
                : error == EPIPE                                ? "the connection was closed"
                                                                : strerror(error),
                *facts ? " (" : "", facts, *facts ? ")" : "");
    /* What the peer does in consequence may come back over another connection, and be found first. */
    if (is_network)
        dp_log(DP_LOG_WARN, "tcp: %s", text);
}

/* ---- out ---------------------------------------------------------------------------------- */

/* Two pieces of memory for one call cost the kernel more than it does to copy a short one. */
static ssize_t send_short(struct dp_tcp_socket *s, char *room)
{
    const size_t part = dp_tcp_part(&s->out);

    memcpy(room, &s->out, sizeof(s->out));
    if (part)
        memcpy(room + sizeof(s->out), s->sending->buf + s->out.offset, part);
    return send(s->fd, room, sizeof(s->out) + part, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static ssize_t send_rest(struct dp_tcp_socket *s)
{
    const size_t header_sent = s->out_sent < sizeof(s->out) ? s->out_sent : sizeof(s->out);
    const size_t part_sent = s->out_sent - header_sent;
    struct iovec iov[2] = {
        {(char *)&s->out + header_sent, sizeof(s->out) - header_sent},
        {s->sending->buf + s->out.offset + part_sent, dp_tcp_part(&s->out) - part_sent},
    };
    const struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};

    return sendmsg(s->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t dp_tcp_socket_send(struct dp_tcp_socket *s, char *room)
{
    const bool is_short = !s->out_sent && dp_tcp_part(&s->out) <= DP_TCP_TOGETHER;
    const ssize_t n = is_short ? send_short(s, room) : send_rest(s);

    return n < 0 ? -errno : n;
}

/* ---- in ----------------------------------------------------------------------------------- */

int dp_tcp_socket_pull(struct dp_tcp_socket *s, char *buf, size_t len, size_t limit, size_t *n)
{
    if (s->ahead_at) {
        memmove(s->ahead, s->ahead + s->ahead_at, dp_tcp_ahead(s));
        s->ahead_end -= s->ahead_at;
        s->ahead_at = 0;
    }
    struct iovec iov[2] = {{buf, len}, {s->ahead + s->ahead_end, limit - s->ahead_end}};
    ssize_t got = len ? readv(s->fd, iov, 2)
                      : recv(s->fd, iov[1].iov_base, iov[1].iov_len, MSG_DONTWAIT);
    if (got < 0)
        return errno == EINTR ? DP_EAGAIN : -errno;
    if (!got)
        return -EPIPE;
    *n = (size_t)got < len ? (size_t)got : len;
    s->ahead_end += (size_t)got - *n;
    return 0;
}

size_t dp_tcp_socket_take(struct dp_tcp_socket *s, char *buf, size_t len)
{
    const size_t n = len < dp_tcp_ahead(s) ? len : dp_tcp_ahead(s);

    if (buf && n)
        memcpy(buf, s->ahead + s->ahead_at, n);
    s->ahead_at += n;
    return n;
}
