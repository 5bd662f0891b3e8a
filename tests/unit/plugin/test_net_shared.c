/* SPDX-License-Identifier: Apache-2.0
 *
 * test_net_shared.c - a program with libdualpipe.so and the net plugin, which contains a
 * libdualpipe of its own: the plugin uses the direct path for memory that the library shares. Both
 * are loaded with dlopen and RTLD_LOCAL, as languages other than C do.
 */
#include "config.h" /* the library's name */

#include "cmocka_all.h"

#include "nccl-plugin/net/caller.h"

#include <dualpipe/memory.h>

#include <dlfcn.h>
#include <inttypes.h>
#include <time.h>

enum { BYTES = 4 << 20 };

static const struct net_caller *net;
static int (*shared_alloc)(size_t bytes, int numa_node, void **out);
static int (*shared_free)(void *ptr);

static void *load(const char *name)
{
    const char *top = getenv("DP_TOP_BUILDDIR");
    char path[4096];

    snprintf(path, sizeof(path), "%s/%s", top ? top : ".", name);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fail_msg("%s", dlerror());
    return library;
}

/* ---- mappings -------------------------------------------------------------------------------- */

struct mapping {
    uintptr_t begin, end;
    unsigned long inode;
};

static bool read_mapping(FILE *maps, struct mapping *out)
{
    char line[4500];

    return fgets(line, sizeof(line), maps) &&
           sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %lu", &out->begin, &out->end,
                  &out->inode) == 3;
}

/* How much of the address space leads to the file that is at this place. */
static size_t mapped_bytes(const void *at)
{
    struct mapping m;
    unsigned long inode = 0;
    size_t bytes = 0;

    FILE *maps = fopen("/proc/self/maps", "re");
    assert_non_null(maps);
    while (read_mapping(maps, &m))
        if (m.begin <= (uintptr_t)at && (uintptr_t)at < m.end)
            inode = m.inode;
    rewind(maps);
    while (read_mapping(maps, &m))
        bytes += inode && m.inode == inode ? m.end - m.begin : 0;
    fclose(maps);
    return bytes;
}

/* ---- a connection ------------------------------------------------------------------------------ */

struct ends {
    void *ctx, *listener, *sender, *receiver;
};

static void must_be_in_time(time_t began)
{
    assert_true(time(NULL) - began < 60);
}

static struct ends open_ends(void)
{
    struct ends e = {.ctx = NULL};
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    const time_t began = time(NULL);

    assert_int_equal(net->init(&e.ctx, NULL), ncclSuccess);
    assert_int_equal(net->listen(e.ctx, 0, handle, &e.listener), ncclSuccess);
    while (!e.sender || !e.receiver) {
        must_be_in_time(began);
        if (!e.sender)
            assert_int_equal(net->connect(e.ctx, 0, handle, &e.sender), ncclSuccess);
        if (!e.receiver)
            assert_int_equal(net->accept(e.listener, &e.receiver), ncclSuccess);
    }
    return e;
}

static void close_ends(struct ends *e)
{
    assert_int_equal(net->close_send(e->sender), ncclSuccess);
    assert_int_equal(net->close_recv(e->receiver), ncclSuccess);
    assert_int_equal(net->close_listen(e->listener), ncclSuccess);
    assert_int_equal(net->finalize(e->ctx), ncclSuccess);
}

static void transfer(struct ends *e, char *from, char *to)
{
    void *from_memory, *to_memory, *send = NULL, *recv = NULL, *data = to;
    size_t size = BYTES;
    int tag = 7, sent = 0, received = 0, got;
    const time_t began = time(NULL);

    for (size_t i = 0; i < BYTES; i++)
        from[i] = (char)(i * 2654435761u >> 13);
    memset(to, 0, BYTES);
    assert_int_equal(net->reg(e->sender, from, BYTES, NCCL_PTR_HOST, &from_memory), ncclSuccess);
    assert_int_equal(net->reg(e->receiver, to, BYTES, NCCL_PTR_HOST, &to_memory), ncclSuccess);
    while (!sent || !received) {
        must_be_in_time(began);
        if (!recv)
            assert_int_equal(net->irecv(e->receiver, 1, &data, &size, &tag, &to_memory, &recv), ncclSuccess);
        if (!send)
            assert_int_equal(net->isend(e->sender, from, BYTES, tag, from_memory, &send), ncclSuccess);
        if (send && !sent)
            assert_int_equal(net->test(send, &sent, &got), ncclSuccess);
        if (recv && !received)
            assert_int_equal(net->test(recv, &received, &got), ncclSuccess);
    }
    assert_memory_equal(from, to, BYTES);
    assert_int_equal(net->dereg(e->sender, from_memory), ncclSuccess);
    assert_int_equal(net->dereg(e->receiver, to_memory), ncclSuccess);
}

/* ---- cases ------------------------------------------------------------------------------------- */

static void load_libdualpipe(void)
{
    void *library = load("libdualpipe/.libs/" LIBDUALPIPE_SONAME);

    shared_alloc = (int (*)(size_t, int, void **))dlsym(library, "dp_shared_alloc");
    shared_free = (int (*)(void *))dlsym(library, "dp_shared_free");
    assert_true(shared_alloc && shared_free);
}

/* The library comes when the plugin has carried something already. */
CASE(memory_that_the_program_shares_is_shared_by_the_plugin)
{
    char *const plain = malloc(BYTES);
    void *shared;

    struct ends e = open_ends();
    char *const more = malloc(BYTES);
    transfer(&e, plain, more);
    free(more);
    load_libdualpipe();
    for (int is_target = 0; is_target < 2; is_target++) {
        assert_int_equal(shared_alloc(BYTES, -1, &shared), 0);
        assert_int_equal(mapped_bytes(shared), BYTES);
        if (is_target)
            transfer(&e, plain, shared);
        else
            transfer(&e, shared, plain);
        assert_int_equal(mapped_bytes(shared), 2 * BYTES); /* the peer has it, too */
        assert_int_equal(shared_free(shared), 0);
    }
    close_ends(&e);
    free(plain);
}

/* Freed, and something else is there now. */
CASE(what_is_freed_is_forgotten)
{
    enum { TIMES = 8 };
    char *const plain = malloc(BYTES);

    struct ends e = open_ends();
    for (int i = 0; i < TIMES; i++) {
        void *memory;
        if (i % 2)
            memory = aligned_alloc(2 << 20, BYTES);
        else
            assert_int_equal(shared_alloc(BYTES, -1, &memory), 0);
        assert_non_null(memory);
        transfer(&e, memory, plain);
        transfer(&e, plain, memory);
        if (i % 2)
            free(memory);
        else
            assert_int_equal(shared_free(memory), 0);
    }
    close_ends(&e);
    free(plain);
}

static int set_up(void **state)
{
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("NCCL_IB_DISABLE", "1", 1);
    setenv("DUALPIPE_NET_WIRE", "shm", 1);
    setenv("DUALPIPE_WIRE_MEASURE", "0", 1);
    net = net_caller_find(load("nccl-plugin/.libs/libnccl-net-dualpipe.so"), NEWEST_VERSION);
    return net ? 0 : -1;
}

RUN_CASES(set_up, NULL)
