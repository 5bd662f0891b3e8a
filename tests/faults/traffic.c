/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: memfd_create */

#include "faults/traffic.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { WINDOW = 6, UNTOUCHED = 0xee };
/* One more than there are messages: for the receive of a next step, which nobody sends to. */
enum { AHEAD = PLAN_MESSAGES, PLACES };

struct flow;

/* A message here, or a group of receives; in memory of a GPU these are flushed before they are looked
 * at. */
struct item {
    void *req;
    bool is_flushed;
    int done, first, n;
    int sizes[PLAN_GROUP];
};

/* One direction of the connections: all of one comm. */
struct flow {
    const struct traffic *t;
    bool is_send, failed, closed;
    int sender, number; /* as the plan counts */
    void *listener, *comm, *memory;
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    unsigned char *bytes; /* PLACES times PLAN_BYTES */
    int fd;               /* that memory, as a buffer of a GPU; -1: of the host */
    bool left[PLACES]; /* nobody may write there any more */
    struct item items[PLAN_MESSAGES], ahead;
    int given, taken, count; /* items */
};

static bool says_all;
static time_t until;
static struct traffic_result *result;

__attribute__((format(printf, 5, 6)))
static void logger(ncclDebugLogLevel level, unsigned long flags, const char *file, int line,
                   const char *fmt, ...)
{
    va_list args;

    (void)flags;
    (void)file;
    (void)line;
    if (!says_all || level > NCCL_LOG_INFO)
        return;
    va_start(args, fmt);
    fprintf(stderr, "[%d] ", (int)getpid());
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
}

/* Only the first thing that is wrong counts. */
static void __attribute__((format(printf, 1, 2))) wrong(const char *fmt, ...)
{
    va_list args;

    if (result->wrong[0])
        return;
    va_start(args, fmt);
    vsnprintf(result->wrong, sizeof(result->wrong), fmt, args);
    va_end(args);
}

static bool in_time(const char *what)
{
    if (time(NULL) < until)
        return true;
    wrong("hangs while it should %s", what);
    return false;
}

/* ---- messages --------------------------------------------------------------------------------- */

static unsigned char *place(const struct flow *f, int message)
{
    return f->bytes + (size_t)message * PLAN_BYTES;
}

static struct plan_message planned(const struct flow *f, int message)
{
    return plan_message(f->t->plan, f->sender, f->number, message);
}

static void fill_all(struct flow *f)
{
    for (int i = 0; i < PLAN_MESSAGES && f->is_send; i++)
        plan_fill(f->t->plan, f->sender, f->number, i, place(f, i));
}

static void leave(struct flow *f, int message)
{
    if (!f->left[message])
        memset(place(f, message), UNTOUCHED, PLAN_BYTES);
    f->left[message] = true;
}

static bool all_are(const unsigned char *bytes, size_t len, int value)
{
    return !len || (bytes[0] == value && !memcmp(bytes, bytes + 1, len - 1));
}

static void check_untouched(const struct flow *f)
{
    for (int i = 0; i < PLACES; i++)
        if (!all_are(place(f, i), PLAN_BYTES, UNTOUCHED))
            wrong("message %d of connection %d was written to after it was done", i, f->number);
}

static void check_message(struct flow *f, int message, int size)
{
    const struct plan_message m = planned(f, message);
    unsigned char sent[PLAN_BYTES];

    plan_fill(f->t->plan, f->sender, f->number, message, sent);
    if (size != (int)m.size)
        wrong("message %d of connection %d has %d bytes, expected %zu", message, f->number, size,
              m.size);
    else if (memcmp(place(f, message), sent, m.size))
        wrong("message %d of connection %d is not what was sent", message, f->number);
    else if (!all_are(place(f, message) + m.room, PLAN_BYTES - m.room, 0))
        wrong("message %d of connection %d is written beyond its room", message, f->number);
}

static void plan_items(struct flow *f)
{
    for (int i = 0; i < PLAN_MESSAGES; i += f->items[f->count++].n)
        f->items[f->count] = (struct item){
            .first = i, .n = f->is_send ? 1 : plan_group(f->t->plan, f->sender, f->number, i)};
}

static ncclResult_t begin(struct flow *f, struct item *item)
{
    void *data[PLAN_GROUP], *memories[PLAN_GROUP];
    size_t sizes[PLAN_GROUP];
    int tags[PLAN_GROUP];

    for (int i = 0; i < item->n; i++) {
        const struct plan_message m = planned(f, item->first + i);
        data[i] = place(f, item->first + i);
        memories[i] = f->memory;
        sizes[i] = f->is_send ? m.size : m.room;
        tags[i] = m.tag;
    }
    if (f->is_send)
        return f->t->net->isend(f->comm, data[0], sizes[0], tags[0], memories[0], &item->req);
    return f->t->net->irecv(f->comm, item->n, data, sizes, tags, memories, &item->req);
}

static void finish(struct flow *f, struct item *item)
{
    for (int i = 0; i < item->n; i++) {
        if (!f->is_send)
            check_message(f, item->first + i, item->sizes[i]);
        leave(f, item->first + i);
        result->messages++;
    }
}

/* What is done is flushed: that is the next request of the item, or there is nothing to flush. */
static ncclResult_t flush(struct flow *f, struct item *item)
{
    void *data[PLAN_GROUP], *memories[PLAN_GROUP];

    for (int i = 0; i < item->n; i++) {
        data[i] = place(f, item->first + i);
        memories[i] = f->memory;
    }
    item->is_flushed = true;
    item->req = NULL;
    const ncclResult_t err = f->t->net->iflush(f->comm, item->n, data, item->sizes, memories,
                                               &item->req);
    item->done = !item->req;
    return err;
}

static ncclResult_t test(struct flow *f, struct item *item)
{
    int none[PLAN_GROUP];
    ncclResult_t err = f->t->net->test(item->req, &item->done,
                                       item->is_flushed ? none : item->sizes);

    if (!err && item->done && f->fd >= 0 && !f->is_send && !item->is_flushed)
        err = flush(f, item);
    return err;
}

/* NCCL tests the oldest only, and begins what there is room for. Returns whether it goes on. */
static bool move(struct flow *f)
{
    ncclResult_t err = ncclSuccess;

    while (!err && f->given < f->count && f->given - f->taken < WINDOW) {
        err = begin(f, &f->items[f->given]);
        if (!f->items[f->given].req)
            break;
        f->given++;
    }
    if (!err && f->taken < f->given) {
        struct item *oldest = &f->items[f->taken];
        err = test(f, oldest);
        if (!err && oldest->done) {
            finish(f, oldest);
            f->taken++;
        }
    }
    return !err;
}

/* A job goes on: who has received everything waits for what the next step brings, and so hears of a
 * sender that is not sure yet. Returns whether it goes on. */
static bool look_ahead(struct flow *f)
{
    void *data[] = {place(f, AHEAD)}, *memories[] = {f->memory};
    size_t sizes[] = {PLAN_BYTES};
    int tags[] = {0};
    ncclResult_t err;

    leave(f, AHEAD);
    if (!f->ahead.req)
        err = f->t->net->irecv(f->comm, 1, data, sizes, tags, memories, &f->ahead.req);
    else
        err = f->t->net->test(f->ahead.req, &f->ahead.done, f->ahead.sizes);
    if (!err && f->ahead.done)
        wrong("connection %d brings a message more", f->number);
    return !err && !f->ahead.done;
}

/* ---- connections ------------------------------------------------------------------------------ */

/* As NCCL does after an error: requests may be in flight. */
static void end_flow(struct flow *f)
{
    const struct net_caller *net = f->t->net;

    if (f->closed)
        return;
    f->closed = true;
    if (f->memory)
        net->dereg(f->comm, f->memory);
    for (int i = 0; i < PLACES; i++)
        leave(f, i);
    if (f->comm && f->is_send)
        net->close_send(f->comm);
    else if (f->comm)
        net->close_recv(f->comm);
    if (f->listener)
        net->close_listen(f->listener);
}

static void fail_flow(struct flow *f)
{
    f->failed = true;
    result->failed++;
    end_flow(f);
}

static const size_t MEMORY_BYTES = (size_t)PLACES * PLAN_BYTES;

static bool reaches_gpus(const struct flow *f, int dev)
{
    struct net_properties props;

    return f->t->plan->is_for_gpus && !f->t->net->properties(dev, &props) &&
           props.ptr_support & NCCL_PTR_DMABUF;
}

/* Any file stands for a dma-buf, see fakes/ibverbs. */
static void make_memory(struct flow *f, int dev)
{
    f->fd = reaches_gpus(f, dev) ? memfd_create("faults", MFD_CLOEXEC) : -1;
    if (f->fd >= 0 && ftruncate(f->fd, (off_t)MEMORY_BYTES))
        abort();
    f->bytes = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE,
                    f->fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, f->fd, 0);
    if (f->bytes == MAP_FAILED)
        abort();
}

static void free_memory(const struct flow *f)
{
    munmap(f->bytes, MEMORY_BYTES);
    if (f->fd >= 0)
        close(f->fd);
}

static ncclResult_t reg(struct flow *f)
{
    const struct net_caller *net = f->t->net;

    if (f->fd < 0)
        return net->reg(f->comm, f->bytes, MEMORY_BYTES, NCCL_PTR_HOST, &f->memory);
    return net->reg_file(f->comm, f->bytes, MEMORY_BYTES, NCCL_PTR_CUDA, 0, f->fd, &f->memory);
}

static void open_flow(struct flow *f, void *ctx, int dev)
{
    make_memory(f, dev);
    fill_all(f);
    plan_items(f);
    if (!f->is_send && f->t->net->listen(ctx, dev, f->handle, &f->listener))
        fail_flow(f);
}

/* Returns whether there is nothing more to do. */
static bool connect_flow(struct flow *f, void *ctx, int dev)
{
    const struct net_caller *net = f->t->net;

    if (f->failed || f->memory)
        return true;
    if (!f->comm && (f->is_send ? net->connect(ctx, dev, f->handle, &f->comm)
                                : net->accept(f->listener, &f->comm))) {
        fail_flow(f);
        return true;
    }
    if (!f->comm)
        return false;
    result->connected++;
    if (reg(f))
        fail_flow(f);
    return true;
}

/* ---- the other process ------------------------------------------------------------------------- */

static bool tell(const struct traffic *t, const void *bytes, size_t len)
{
    if (write(t->out, bytes, len) == (ssize_t)len)
        return true;
    wrong("cannot write to the other process");
    return false;
}

static bool hear(const struct traffic *t, void *bytes, size_t len)
{
    struct pollfd ready = {.fd = t->in, .events = POLLIN};

    for (size_t at = 0; at < len;) {
        if (poll(&ready, 1, 2 * t->limit_s * 1000) != 1) {
            wrong("the other process says nothing");
            return false;
        }
        const ssize_t n = read(t->in, (char *)bytes + at, len - at);
        if (n <= 0) {
            wrong("the other process is gone");
            return false;
        }
        at += (size_t)n;
    }
    return true;
}

/* ---- the whole --------------------------------------------------------------------------------- */

enum { FLOWS = 2 * PLAN_CONNECTIONS }; /* of one rank: first what it sends, then what it receives */

/* One rank's part. */
struct side {
    void *ctx;
    int devices, fused; /* fused: -1: none */
    struct flow flows[FLOWS];
};

static int device_of(const struct side *s, const struct flow *f)
{
    return s->fused >= 0 ? s->fused : f->number % s->devices;
}

/* Handles go from who listens to who connects. */
static void swap_handles(struct side *sides)
{
    for (int i = 0; i < 2 * PLAN_CONNECTIONS; i++) {
        const int rank = i / PLAN_CONNECTIONS, k = i % PLAN_CONNECTIONS;
        memcpy(sides[1 - rank].flows[k].handle, sides[rank].flows[PLAN_CONNECTIONS + k].handle,
               NCCL_NET_HANDLE_MAXSIZE);
    }
}

static bool exchange_handles(const struct traffic *t, struct side *sides)
{
    struct flow *flows = sides->flows;

    if (t->is_alone)
        swap_handles(sides);
    for (int i = 0; i < PLAN_CONNECTIONS && !t->is_alone; i++)
        if (!tell(t, flows[PLAN_CONNECTIONS + i].handle, NCCL_NET_HANDLE_MAXSIZE))
            return false;
    for (int i = 0; i < PLAN_CONNECTIONS && !t->is_alone; i++)
        if (!hear(t, flows[i].handle, NCCL_NET_HANDLE_MAXSIZE))
            return false;
    return true;
}

static bool connect_side(struct side *s)
{
    bool ready = true;

    for (int i = 0; i < FLOWS; i++)
        ready &= connect_flow(&s->flows[i], s->ctx, device_of(s, &s->flows[i]));
    return ready;
}

static bool move_side(struct side *s)
{
    bool ready = true;

    for (int i = 0; i < FLOWS; i++) {
        struct flow *f = &s->flows[i];
        const bool is_done = f->taken == f->count;
        if (f->failed || (is_done && f->is_send))
            continue;
        if (!(is_done ? look_ahead(f) : move(f)))
            fail_flow(f);
        ready &= is_done;
    }
    return ready;
}

/* Neither goes on before the other has come so far. */
static void meet(const struct traffic *t)
{
    char byte = 0;

    if (!t->is_alone && tell(t, &byte, 1))
        hear(t, &byte, 1);
}

/* The same, and what the other still wants from here is done in between. */
static void meet_at_work(const struct traffic *t, struct side *s)
{
    struct pollfd ready = {.fd = t->in, .events = POLLIN};
    char byte = 0;

    if (t->is_alone || !tell(t, &byte, 1))
        return;
    while (!poll(&ready, 1, 1) && in_time("wait for the other process"))
        move_side(s);
    hear(t, &byte, 1);
}

static void move_all(struct side *sides, int count, bool (*step)(struct side *), const char *what)
{
    for (bool ready = false; !ready && in_time(what);) {
        ready = true;
        for (int i = 0; i < count; i++)
            ready &= step(&sides[i]);
    }
}

/* Once per process, as NCCL does; where nothing can be fused, plain devices do. */
static int fuse_two(const struct traffic *t, int devices)
{
    static int fused = -1;
    const int both[] = {0, 1};

    setenv("NCCL_NET_FORCE_MERGE", "these", 0); /* which have no place on the PCI bus */
    if (t->plan->is_fused && fused < 0 && devices >= 2 && t->net->fuse(2, both, &fused))
        fused = -1;
    return fused;
}

static bool set_up(const struct traffic *t, int rank, struct side *s)
{
    if (t->net->init(&s->ctx, logger) || t->net->devices(&s->devices) || s->devices < 1) {
        wrong("has no device");
        return false;
    }
    s->fused = fuse_two(t, s->devices);
    for (int i = 0; i < FLOWS; i++) {
        struct flow *f = &s->flows[i];
        *f = (struct flow){.t = t, .is_send = i < PLAN_CONNECTIONS, .number = i % PLAN_CONNECTIONS};
        f->sender = f->is_send ? rank : 1 - rank;
        open_flow(f, s->ctx, device_of(s, f));
    }
    return true;
}

static void tear_down(const struct traffic *t, struct side *s)
{
    for (int i = 0; i < FLOWS; i++)
        end_flow(&s->flows[i]);
    t->net->finalize(s->ctx);
}

static void check_all(struct side *s)
{
    for (int i = 0; i < FLOWS; i++) {
        check_untouched(&s->flows[i]);
        free_memory(&s->flows[i]);
    }
}

void traffic_run(const struct traffic *t, struct traffic_result *out)
{
    static struct side sides[2];
    const int count = t->is_alone ? 2 : 1;

    *out = (struct traffic_result){.failed = 0};
    result = out;
    says_all = t->says_all;
    until = time(NULL) + t->limit_s;
    for (int i = 0; i < count; i++)
        if (!set_up(t, t->is_alone ? i : t->rank, &sides[i]))
            return;
    if (exchange_handles(t, sides)) {
        move_all(sides, count, connect_side, "connect");
        move_all(sides, count, move_side, "carry messages");
    }
    meet_at_work(t, sides);
    for (int i = 0; i < count; i++)
        tear_down(t, &sides[i]);
    meet(t); /* what is late has come now */
    for (int i = 0; i < count; i++)
        check_all(&sides[i]);
}
