/* SPDX-License-Identifier: Apache-2.0 */
#include "net_pair.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void must_be(bool so, const char *what, const char *file, int line)
{
    if (so)
        return;
    const char *name = strrchr(file, '/');
    printf("%s:%d: not so: %s\n", name ? name + 1 : file, line, what);
    fflush(stdout);
    _exit(1);
}

unsigned times(unsigned n)
{
    return setup.quick ? n / 10 : n;
}

bool in_time(void)
{
    static time_t began;
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!began)
        began = now.tv_sec;
    return now.tv_sec - began < (setup.full ? 200 : 100);
}

void net_logger(ncclDebugLogLevel level, unsigned long flags, const char *file, int line,
                const char *fmt, ...)
{
    va_list args;

    (void)flags;
    (void)file;
    (void)line;
    if (level > NCCL_LOG_INFO || !getenv("NET_CONFORMANCE_LOG"))
        return;
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    putchar('\n');
}

static void *contexts[8];
enum { CONTEXTS = sizeof(contexts) / sizeof(contexts[0]) };

void *net_init(void)
{
    void *ctx = NULL;
    int count = 0, at = 0;

    must_succeed(setup.net->init(&ctx, net_logger));
    must_succeed(setup.net->devices(&count));
    must(count >= 1);
    while (contexts[at])
        must(++at < CONTEXTS);
    contexts[at] = ctx;
    return ctx;
}

void net_finalize(void *ctx)
{
    for (int i = 0; i < CONTEXTS; i++)
        if (contexts[i] == ctx)
            contexts[i] = NULL;
    must_succeed(setup.net->finalize(ctx));
}

void net_finalize_all(void)
{
    for (int i = 0; i < CONTEXTS; i++)
        if (contexts[i])
            net_finalize(contexts[i]);
}

/* ---- pairs --------------------------------------------------------------------------------- */

void pair_connect(struct pair *p)
{
    while (!p->sender || !p->receiver) {
        must(in_time());
        if (!p->sender)
            must_succeed(setup.net->connect(p->ctx, setup.connects_from, p->handle, &p->sender));
        if (!p->receiver)
            must_succeed(setup.net->accept(p->listener, &p->receiver));
    }
}

void pair_open(struct pair *p, void *ctx)
{
    *p = (struct pair){.ctx = ctx};
    must_succeed(setup.net->listen(ctx, setup.listens_on, p->handle, &p->listener));
    must(p->listener);
    pair_connect(p);
}

void pair_close(struct pair *p)
{
    must_succeed(setup.net->close_send(p->sender));
    must_succeed(setup.net->close_recv(p->receiver));
    must_succeed(setup.net->close_listen(p->listener));
}

/* ---- messages ------------------------------------------------------------------------------ */

static unsigned char byte_of(size_t i, unsigned seed)
{
    uint64_t x = (i + 1) * UINT64_C(0x9e3779b97f4a7c15) + seed * UINT64_C(0xbf58476d1ce4e5b9);

    return (unsigned char)(x >> 56);
}

static char *allocate(void *comm, size_t size, void **memory)
{
    char *data = malloc(size ? size : 1);

    must(data);
    must_succeed(setup.net->reg(comm, data, size ? size : 1, NCCL_PTR_HOST, memory));
    return data;
}

struct message message_send(void *comm, size_t size, int tag, unsigned seed)
{
    struct message m = {.comm = comm, .is_send = true, .n = 1, .sizes = {size}, .tags = {tag}};

    m.data[0] = allocate(comm, size, &m.memories[0]);
    for (size_t i = 0; i < size; i++)
        m.data[0][i] = (char)byte_of(i, seed);
    return m;
}

void message_add_recv(struct message *m, size_t size, int tag)
{
    m->data[m->n] = allocate(m->comm, size, &m->memories[m->n]);
    m->sizes[m->n] = size;
    m->tags[m->n] = tag;
    memset(m->data[m->n], 0x5a, size);
    m->n++;
}

struct message message_recv(void *comm, size_t size, int tag)
{
    struct message m = {.comm = comm};

    message_add_recv(&m, size, tag);
    return m;
}

ncclResult_t message_try(struct message *m)
{
    if (m->done)
        return ncclSuccess;
    if (m->req)
        return setup.net->test(m->req, &m->done, m->got);
    if (m->is_watched)
        m->req = (void *)(uintptr_t)NCCL_NET_OPTIONAL_RECV_COMPLETION;
    if (m->is_send)
        return setup.net->isend(m->comm, m->data[0], m->sizes[0], m->tags[0], m->memories[0],
                                &m->req);
    return setup.net->irecv(m->comm, m->n, (void **)m->data, m->sizes, m->tags, m->memories,
                            &m->req);
}

void message_poll(struct message *m)
{
    must_succeed(message_try(m));
}

void messages_finish(struct message *all, int count)
{
    for (int done = 0; done < count;) {
        must(in_time());
        done = 0;
        for (int i = 0; i < count; i++) {
            message_poll(&all[i]);
            done += all[i].done;
        }
    }
}

void message_check(const struct message *m, int at, size_t size, unsigned seed)
{
    must(m->got[at] == (int)size);
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)m->data[at][i] != byte_of(i, seed))
            must(!"the bytes that were sent");
}

void message_free(struct message *m)
{
    for (int i = 0; i < m->n; i++)
        must_succeed(setup.net->dereg(m->comm, m->memories[i]));
    message_drop(m);
}

void message_drop(struct message *m)
{
    for (int i = 0; i < m->n; i++)
        free(m->data[i]);
}

void pair_transfer(struct pair *p, size_t size, unsigned seed)
{
    struct message both[2] = {message_recv(p->receiver, size, 3),
                              message_send(p->sender, size, 3, seed)};

    messages_finish(both, 2);
    message_check(&both[0], 0, size, seed);
    message_free(&both[0]);
    message_free(&both[1]);
}
