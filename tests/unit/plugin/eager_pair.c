/* SPDX-License-Identifier: Apache-2.0
 *
 * eager_pair.c - see eager_pair.h.
 */
#include "eager_pair.h"

#include "cmocka_all.h"

#include "base/clock.h"

static const char *const wires[] = {"shm", "tcp"};

char said[4096];
char from[BYTES], to[BYTES];

void logger(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *fmt,
            ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(said, sizeof(said), fmt, args);
    va_end(args);
}

void must_be(bool so, const char *what, const char *file, int line)
{
    if (so)
        return;
    printf("%s: %s, line %d: not so: %s\nlast error: %s\nthe plugin said: %s\n",
           file, getenv("DUALPIPE_NET_WIRE"), line, what, dp_last_error(), said);
    fflush(stdout);
    _exit(1);
}

void must_be_in_time(int64_t since_ns)
{
    must(dp_now_ns() - since_ns < 60 * DP_NS_PER_S);
}

void run_over_both(void (*run)(void))
{
    for (size_t i = 0; i < sizeof(wires) / sizeof(wires[0]); i++) {
        int status;
        fflush(stdout);
        const pid_t child = fork();
        if (!child) {
            alarm(100);
            setenv("NCCL_SOCKET_IFNAME", "lo", 1);
            setenv("NCCL_IB_DISABLE", "1", 1);
            setenv("DUALPIPE_NET_WIRE", wires[i], 1);
            run();
            exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
}

struct pair connect_pair(void)
{
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    struct pair p = {.net = NULL};

    must(!dpn_net_init(logger, &p.net) && !dpn_net_listen(p.net, 0, handle, &p.listener));
    WHILE_IN_TIME (!p.sender || !p.receiver) {
        int err = p.sender ? 0 : dpn_net_connect(p.net, 0, handle, &p.sender);
        must(!err || err == DP_EAGAIN);
        err = p.receiver ? 0 : dpn_net_accept(p.listener, &p.receiver);
        must(!err || err == DP_EAGAIN);
    }
    for (size_t i = 0; i < BYTES; i++)
        from[i] = (char)(i * 2654435761u >> 11);
    memset(to, 0, BYTES);
    return p;
}

void close_pair(struct pair *p)
{
    dpn_net_close(p->sender);
    dpn_net_close(p->receiver);
    dpn_net_close_listener(p->listener);
    dpn_net_finalize(p->net);
}

struct dpn_request *try_send(struct pair *p, size_t at, size_t len, int tag)
{
    struct dpn_request *req = NULL;

    must(!dpn_net_isend(p->sender, from + at, len, tag, NULL, &req));
    return req;
}

struct dpn_request *send_eager(struct pair *p, size_t at, size_t len, int tag)
{
    struct dpn_request *req = try_send(p, at, len, tag);

    must(req);
    return req;
}

struct dpn_request *receive(struct pair *p, size_t at, size_t room, int tag)
{
    struct dpn_request *req = NULL;

    must(!dpn_net_irecv(p->receiver, 1, (void *[]){to + at}, &room, &tag, NULL, false, &req));
    must(req);
    return req;
}

bool is_done(struct dpn_request *req, int *sizes)
{
    bool done;

    must(!dpn_net_test(req, &done, sizes));
    return done;
}

void finish(struct dpn_request *req, int *sizes)
{
    for (const int64_t began_ns = dp_now_ns(); !is_done(req, sizes);)
        must_be_in_time(began_ns);
}

void finish_both(struct dpn_request *a, struct dpn_request *b)
{
    for (const int64_t began_ns = dp_now_ns(); a || b; must_be_in_time(began_ns)) {
        a = a && is_done(a, NULL) ? NULL : a;
        b = b && is_done(b, NULL) ? NULL : b;
    }
}

struct dpn_request *send_in_time(struct pair *p, size_t at, size_t len, int tag)
{
    struct dpn_request *req = NULL;

    for (const int64_t began_ns = dp_now_ns(); !req; must_be_in_time(began_ns))
        req = try_send(p, at, len, tag);
    return req;
}

void receive_all(struct pair *p, size_t at, size_t src, size_t len, int tag)
{
    int size = -1;

    memset(to + at, 0x5a, len + 1);
    finish(receive(p, at, len, tag), &size);
    must(size == (int)len && !memcmp(to + at, from + src, len) && to[at + len] == 0x5a);
}
