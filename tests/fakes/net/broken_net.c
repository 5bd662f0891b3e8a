/* SPDX-License-Identifier: Apache-2.0
 *
 * broken_net.c - a net plugin with one fault: another plugin (BROKEN_NET_PLUGIN), but for what
 * BROKEN_NET says. The programs that try plugins must find it out.
 *
 *      no-devices   it has none
 *      one-receive  it takes no groups of receives
 *      unfilled     of the properties it leaves out whether receives must be flushed
 *      flips        a bit of what is received
 *      grows        a received message is a byte longer than it was
 *      late         writes to a message once more after it was done
 *      loses        the fifth message
 *      doubles      the fifth message
 *      unordered    of receives that NCCL's kernels watch, flags are there long before the rest
 */
#include "nccl-plugin/nccl_abi.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern struct ncclNet_v11 ncclNetPlugin_v11;
extern struct ncclNet_v12 ncclNetPlugin_v12;
__attribute__((visibility("default"))) struct ncclNet_v11 ncclNetPlugin_v11;
__attribute__((visibility("default"))) struct ncclNet_v12 ncclNetPlugin_v12;

static const struct ncclNet_v12 *real;

static bool is(const char *fault)
{
    const char *said = getenv("BROKEN_NET");

    return said && !strcmp(said, fault);
}

/* ---- receives that are under way ------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    void *req;
    unsigned char *data;
} receives[1024];
static unsigned char *finished; /* of the last message that was done */

static void remember(void *req, void *data)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; req && i < sizeof(receives) / sizeof(receives[0]); i++)
        if (!receives[i].req || receives[i].req == req) {
            receives[i].req = req;
            receives[i].data = data;
            break;
        }
    pthread_mutex_unlock(&lock);
}

/* Where the message of a receive is; NULL: it was a send. */
static unsigned char *forget(const void *req)
{
    unsigned char *data = NULL;

    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof(receives) / sizeof(receives[0]); i++)
        if (receives[i].req == req) {
            data = receives[i].data;
            receives[i].req = NULL;
        }
    pthread_mutex_unlock(&lock);
    return data;
}

/* ---- receives that show their flags early ---------------------------------------------------- */

/* A request of our own: the real one's memory, which nobody watches, and whose it is. */
struct held {
    void *req;
    char *bytes, *data;
    int size, looks; /* once received */
};
static struct held held[256];

enum { LINE = 128, WORD = 8, LOOKS = 3000 };

static struct held *is_held(void *request)
{
    uintptr_t at = (uintptr_t)request, first = (uintptr_t)held;

    return at >= first && at < first + sizeof(held) ? request : NULL;
}

static ncclResult_t receive_held(void *comm, void **data, size_t *sizes, int *tags, void **mhandles,
                                 void **phandles, void **request)
{
    struct held *h = held;

    while (h->bytes)
        h++;
    h->bytes = malloc(sizes[0] + 1);
    h->data = data[0];
    h->looks = 0;
    h->req = NULL;
    ncclResult_t result =
        real->irecv(comm, 1, (void **)&h->bytes, sizes, tags, mhandles, phandles, &h->req);
    *request = h->req ? h : NULL;
    if (!h->req) {
        free(h->bytes);
        h->bytes = NULL;
    }
    return result;
}

static void show_flags(const struct held *h)
{
    for (int at = LINE - WORD; at < h->size; at += LINE)
        memcpy(h->data + at, h->bytes + at, WORD);
}

static ncclResult_t test_held(struct held *h, int *done, int *sizes)
{
    ncclResult_t result = ncclSuccess;
    int received = 0;

    *done = 0;
    if (!h->looks) {
        result = real->test(h->req, &received, &h->size);
        if (received)
            show_flags(h);
        h->looks = received ? LOOKS : 0;
        return result;
    }
    if (--h->looks)
        return result;
    memcpy(h->data, h->bytes, (size_t)h->size);
    free(h->bytes);
    h->bytes = NULL;
    *sizes = h->size;
    *done = 1;
    return result;
}

/* ---- what is broken -------------------------------------------------------------------------- */

static ncclResult_t no_devices(int *count)
{
    ncclResult_t result = real->devices(count);

    *count = 0;
    return result;
}

static ncclResult_t one_receive(int dev, struct ncclNetProperties_v12 *props)
{
    ncclResult_t result = real->getProperties(dev, props);

    props->maxRecvs = 1;
    return result;
}

static ncclResult_t unfilled(int dev, struct ncclNetProperties_v12 *props)
{
    const int before = props->forceFlush;
    ncclResult_t result = real->getProperties(dev, props);

    props->forceFlush = before;
    return result;
}

static ncclResult_t receive(void *comm, int n, void **data, size_t *sizes, int *tags,
                            void **mhandles, void **phandles, void **request)
{
    if (is("unordered") && (uintptr_t)*request == NCCL_NET_OPTIONAL_RECV_COMPLETION)
        return receive_held(comm, data, sizes, tags, mhandles, phandles, request);
    ncclResult_t result = real->irecv(comm, n, data, sizes, tags, mhandles, phandles, request);

    remember(*request, sizes[0] ? data[0] : NULL);
    return result;
}

static void spoil(unsigned char *data, int *sizes)
{
    if (is("flips") && sizes[0])
        data[sizes[0] / 2] ^= 0x10;
    if (is("grows"))
        sizes[0]++;
    if (is("late") && finished)
        *finished ^= 1;
    finished = data;
}

static ncclResult_t test(void *request, int *done, int *sizes)
{
    if (is_held(request))
        return test_held(request, done, sizes);
    if (request == &finished) { /* the message that is lost */
        *done = 1;
        return ncclSuccess;
    }
    ncclResult_t result = real->test(request, done, sizes);
    unsigned char *data = *done ? forget(request) : NULL;
    if (data)
        spoil(data, sizes);
    return result;
}

static ncclResult_t send(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                         void **request)
{
    static int count;

    if (is("loses") && count == 4) {
        count++;
        *request = &finished;
        return ncclSuccess;
    }
    ncclResult_t result = real->isend(comm, data, size, tag, mhandle, phandle, request);
    if (result || !*request || ++count != 5 || !is("doubles"))
        return result;
    void *again = NULL;
    while (!result && !again)
        result = real->isend(comm, data, size, tag, mhandle, phandle, &again);
    return result;
}

__attribute__((constructor)) static void load(void)
{
    const char *file = getenv("BROKEN_NET_PLUGIN");
    void *library = file ? dlopen(file, RTLD_NOW | RTLD_LOCAL) : NULL;

    real = library ? dlsym(library, "ncclNetPlugin_v12") : NULL;
    if (!real) {
        fprintf(stderr, "broken_net: BROKEN_NET_PLUGIN=%s: no plugin\n", file ? file : "");
        return;
    }
    const struct ncclNet_v11 *real_v11 = dlsym(library, "ncclNetPlugin_v11");
    if (real_v11) {
        ncclNetPlugin_v11 = *real_v11;
        ncclNetPlugin_v11.irecv = receive;
        ncclNetPlugin_v11.isend = send;
        ncclNetPlugin_v11.test = test;
    }
    ncclNetPlugin_v12 = *real;
    ncclNetPlugin_v12.irecv = receive;
    ncclNetPlugin_v12.isend = send;
    ncclNetPlugin_v12.test = test;
    if (is("no-devices"))
        ncclNetPlugin_v12.devices = no_devices;
    if (is("one-receive"))
        ncclNetPlugin_v12.getProperties = one_receive;
    if (is("unfilled"))
        ncclNetPlugin_v12.getProperties = unfilled;
}
