/* SPDX-License-Identifier: Apache-2.0
 *
 * net_cases_life.c - devices, connections, threads, processes, loading and unloading.
 */
#include "fork_at_rest.h"
#include "net_cases.h"
#include "net_pair.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Every member has been written: the caller had other bytes there. */
static void check_properties(const struct net_properties *p, int dev)
{
    must(p->name && *p->name);
    must(p->ptr_support & NCCL_PTR_HOST);
    must(!(p->ptr_support & ~(NCCL_PTR_HOST | NCCL_PTR_CUDA | NCCL_PTR_DMABUF)));
    must(p->speed > 0);
    must(p->port >= 0 && p->port < 256);
    must(p->latency_us >= 0 && p->latency_us < 1e6f);
    must(p->max_comms > 0);
    must(p->max_recvs > 1);
    must(p->reg_is_global == 0 || p->reg_is_global == 1);
    must(p->force_flush == 0 || p->force_flush == 1);
    must(p->device_type == NCCL_NET_DEVICE_HOST && !p->device_version);
    if (setup.net->version >= 9) {
        must(p->member_count == 1 && p->first_member == dev);
        must(p->max_p2p_bytes > 0 && p->max_p2p_bytes <= NCCL_MAX_NET_SIZE_BYTES);
        must(p->max_coll_bytes > 0 && p->max_coll_bytes <= NCCL_MAX_NET_SIZE_BYTES);
    }
    if (setup.net->version >= 11)
        must(p->max_multi_request >= 1);
    must(p->rail >= NCCL_NET_ID_UNDEF && p->plane >= NCCL_NET_ID_UNDEF);
}

static void offer_sound_devices(void)
{
    const char *names[32];
    int count = 0, again = 0;

    net_init();
    must_succeed(setup.net->devices(&count));
    must(count >= 1 && count <= 32);
    must_succeed(setup.net->devices(&again));
    must(again == count);
    for (int i = 0; i < count; i++) {
        struct net_properties p;
        must_succeed(setup.net->properties(i, &p));
        check_properties(&p, i);
        for (int k = 0; k < i; k++)
            must(strcmp(names[k], p.name));
        names[i] = p.name;
    }
    struct net_properties p;
    must(setup.net->properties(count, &p) != ncclSuccess);
    must(setup.net->properties(-1, &p) != ncclSuccess);
}

static void connect_to_themselves_in_one_thread(void)
{
    void *ctx = net_init();
    struct pair p[10];

    for (int i = 0; i < 10; i++)
        pair_open(&p[i], ctx);
    for (int i = 9; i >= 0; i--) {
        pair_transfer(&p[i], 5000, (unsigned)i);
        pair_close(&p[i]);
    }
    net_finalize(ctx);
}

static void connect_before_anybody_accepts(void)
{
    struct pair p = {.ctx = net_init()};

    must_succeed(setup.net->listen(p.ctx, 0, p.handle, &p.listener));
    for (int i = 0; i < 100; i++)
        must_succeed(setup.net->connect(p.ctx, 0, p.handle, &p.sender));
    pair_connect(&p);
    pair_transfer(&p, 100, 1);
    pair_close(&p);
}

static void accept_several_peers_on_one_listener(void)
{
    struct pair a, b;

    pair_open(&a, net_init());
    b = a;
    b.sender = b.receiver = NULL;
    pair_connect(&b);
    pair_transfer(&b, 3000, 1);
    pair_transfer(&a, 3000, 2);
    must_succeed(setup.net->close_send(b.sender));
    must_succeed(setup.net->close_recv(b.receiver));
    pair_transfer(&a, 3000, 3);
    pair_close(&a);
}

/* ---- loading --------------------------------------------------------------------------------- */

static void live_through_finalize_without_a_context(void)
{
    must_succeed(setup.net->finalize(NULL));
    net_init();
    must_succeed(setup.net->finalize(NULL));
}

static void be_loaded_twice_and_again(void)
{
    void *ctx = net_init();
    void *second = dlopen(setup.file, RTLD_NOW | RTLD_LOCAL);
    struct pair p;

    must(second);
    must(net_caller_find(second, setup.net->version));
    pair_open(&p, ctx);
    dlclose(second);
    pair_transfer(&p, 100, 1);
    pair_close(&p);
    net_finalize(ctx);
    dlclose(setup.library);
    setup.library = dlopen(setup.file, RTLD_NOW | RTLD_LOCAL);
    must(setup.library);
    must(net_caller_find(setup.library, setup.net->version));
    pair_open(&p, net_init());
    pair_transfer(&p, 100, 2);
    pair_close(&p);
}

/* NCCL keeps the pointers, also when it has unloaded the plugin. */
static void keep_names_for_the_life_of_the_process(void)
{
    struct net_properties before, after;
    char name[256];
    void *ctx = net_init();

    must_succeed(setup.net->properties(0, &before));
    must(strlen(before.name) < sizeof(name));
    strcpy(name, before.name);
    net_finalize(ctx);
    dlclose(setup.library);
    must(!strcmp(before.name, name));
    setup.library = dlopen(setup.file, RTLD_NOW | RTLD_LOCAL);
    must(setup.library && net_caller_find(setup.library, setup.net->version));
    net_init();
    must_succeed(setup.net->properties(0, &after));
    must(!strcmp(before.name, name) && !strcmp(after.name, name));
}

static void hear_what_connections_are_for(void)
{
    enum { ALL_REDUCE = 1 << 4, SEND = 1 << 6, RECV = 1 << 7 };
    static const uint32_t ops[] = {0, ALL_REDUCE, SEND | RECV, UINT32_MAX, 1u << 31, 0};
    void *ctx = net_init();
    struct pair p;

    must_succeed(setup.net->set_attr(NULL, SEND));
    for (unsigned i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        must_succeed(setup.net->set_attr(ctx, ops[i]));
        pair_open(&p, ctx);
        must_succeed(setup.net->set_attr(ctx, ops[i] ^ RECV)); /* another operation over the same */
        pair_transfer(&p, 1000, i);
        pair_close(&p);
    }
}

static void have_a_context_for_each_communicator(void)
{
    void *first = net_init(), *second = net_init();
    struct pair a, b;

    pair_open(&a, first);
    pair_open(&b, second);
    pair_transfer(&a, 100, 1);
    pair_close(&a);
    net_finalize(first);
    pair_transfer(&b, 100, 2);
    pair_close(&b);
    net_finalize(second);
}

/* ---- threads --------------------------------------------------------------------------------- */

/* Like a proxy thread: its own connection, and the devices again and again. */
static void *talk(void *ctx)
{
    struct net_properties properties;
    struct pair p;

    pair_open(&p, ctx);
    for (unsigned i = 0; i < times(200); i++) {
        must_succeed(setup.net->properties(0, &properties));
        pair_transfer(&p, 10 * i, i);
    }
    pair_close(&p);
    return NULL;
}

static void serve_several_threads(void)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    void *ctx = net_init();

    must(in_time());
    for (int i = 0; i < THREADS; i++)
        must(!pthread_create(&threads[i], NULL, talk, ctx));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    net_finalize(ctx);
}

struct registering {
    void *comm;
    atomic_bool stop;
};

static void *register_and_deregister(void *user)
{
    struct registering *r = user;
    static char bytes[4096];

    while (!atomic_load(&r->stop)) {
        void *memory = NULL;
        must_succeed(setup.net->reg(r->comm, bytes, sizeof(bytes), NCCL_PTR_HOST, &memory));
        must_succeed(setup.net->dereg(r->comm, memory));
    }
    return NULL;
}

static void register_memory_while_messages_travel(void)
{
    pthread_t threads[2];
    struct pair p;

    pair_open(&p, net_init());
    struct registering r[2] = {{.comm = p.sender}, {.comm = p.receiver}};
    for (int i = 0; i < 2; i++)
        must(!pthread_create(&threads[i], NULL, register_and_deregister, &r[i]));
    for (unsigned i = 0; i < times(300); i++)
        pair_transfer(&p, 1000, i);
    for (int i = 0; i < 2; i++) {
        atomic_store(&r[i].stop, true);
        pthread_join(threads[i], NULL);
    }
    pair_close(&p);
}

/* ---- processes ------------------------------------------------------------------------------- */

static void read_all(int fd, void *bytes, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = read(fd, (char *)bytes + at, len - at);
        must(n > 0);
        at += (size_t)n;
    }
}

/* One process of two, after the fork: listens, connects to the other, and speaks both ways. */
static void be_one_of_two(int in, int out)
{
    struct pair p = {.ctx = net_init()};
    char mine[NCCL_NET_HANDLE_MAXSIZE];

    must_succeed(setup.net->listen(p.ctx, 0, mine, &p.listener));
    must(write(out, mine, sizeof(mine)) == sizeof(mine));
    read_all(in, p.handle, sizeof(p.handle));
    pair_connect(&p);
    for (unsigned i = 0; i < times(100); i++)
        pair_transfer(&p, 20 * i * i, i);
    /* Nobody leaves before the other has everything. */
    must(write(out, "x", 1) == 1);
    read_all(in, mine, 1);
    pair_close(&p);
    net_finalize(p.ctx);
}

static void run_two_processes(void)
{
    int to_child[2], to_parent[2], status;

    must(!pipe(to_child) && !pipe(to_parent));
    pid_t child = fork_at_rest();
    must(child >= 0);
    if (!child) {
        alarm(120);
        be_one_of_two(to_child[0], to_parent[1]);
        _exit(0); /* what the parent has open is not the child's */
    }
    be_one_of_two(to_parent[0], to_child[1]);
    must(waitpid(child, &status, 0) == child && !status);
}

static void speak_between_two_processes(void)
{
    run_two_processes();
}

static void work_in_a_child_of_a_process_that_used_it(void)
{
    struct pair p;

    pair_open(&p, net_init());
    pair_transfer(&p, 100, 1);
    run_two_processes();
    pair_transfer(&p, 100, 2);
    pair_close(&p);
}

const struct net_case net_life_cases[] = {
    {"offer sound devices", offer_sound_devices},
    {"connect to themselves in one thread", connect_to_themselves_in_one_thread},
    {"connect before anybody accepts", connect_before_anybody_accepts},
    {"accept several peers on one listener", accept_several_peers_on_one_listener},
    {"live through finalize without a context", live_through_finalize_without_a_context},
    {"be loaded twice and again", be_loaded_twice_and_again},
    {"keep names for the life of the process", keep_names_for_the_life_of_the_process},
    {"have a context for each communicator", have_a_context_for_each_communicator},
    {"hear what connections are for", hear_what_connections_are_for},
    {"serve several threads", serve_several_threads},
    {"register memory while messages travel", register_memory_while_messages_travel},
    {"speak between two processes", speak_between_two_processes},
    {"work in a child of a process that used it", work_in_a_child_of_a_process_that_used_it},
    {NULL, NULL},
};
