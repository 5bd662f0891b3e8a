/* SPDX-License-Identifier: Apache-2.0
 *
 * net_classes.c - what messages between the stages of a pipeline suffer from gradients beside them:
 *
 *      net-classes [--messages N] [--size N] [--bulk N] PLUGIN.so
 *
 * Both flows leave device 0 for device 1, each over connections of its own, of which NCCL says what they
 * are for (setNetAttr): one for sends and receives, with a message of --size bytes (4096) at a time, and
 * --bulk of them (2; 0: none) for an all-reduce, always with 4 messages of 512 KiB on their way. Prints a
 * line: the median and the 90th percentile of the time from isend until the receiver has the message,
 * of N messages (200), in us, and what the others carried meanwhile, in MB/s.
 */
#include "net_pair.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BULK_MAX = 8, WINDOW = 4, BULK_BYTES = 512 << 10, WARM_UP = 20 };
enum { ALL_REDUCE = 1 << 4, SEND = 1 << 6, RECV = 1 << 7 }; /* a bit for each ncclFunc */

struct net_setup setup = {.connects_from = 0, .listens_on = 1};

struct bulk {
    struct pair pair;
    struct message sends[WINDOW], receives[WINDOW];
    double bytes; /* that have arrived */
};

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* ---- the gradients --------------------------------------------------------------------------- */

static void *context_for(uint32_t ops)
{
    void *ctx = net_init();

    must_succeed(setup.net->set_attr(ctx, ops));
    return ctx;
}

static void open_bulk(struct bulk *b, void *ctx)
{
    pair_open(&b->pair, ctx);
    for (int i = 0; i < WINDOW; i++) {
        b->sends[i] = message_send(b->pair.sender, BULK_BYTES, 1, 1);
        b->receives[i] = message_recv(b->pair.receiver, BULK_BYTES, 1);
    }
}

/* The next message takes the place of one that is done. */
static void poll_again(struct message *m)
{
    message_poll(m);
    if (m->done) {
        m->done = 0;
        m->req = NULL;
    }
}

static void poll_bulk(struct bulk *bulk, int count)
{
    for (int b = 0; b < count; b++)
        for (int i = 0; i < WINDOW; i++) {
            const bool was_asked = bulk[b].receives[i].req != NULL;
            poll_again(&bulk[b].sends[i]);
            poll_again(&bulk[b].receives[i]);
            if (was_asked && !bulk[b].receives[i].req)
                bulk[b].bytes += BULK_BYTES;
        }
}

/* ---- the stage's messages -------------------------------------------------------------------- */

static double send_one(struct pair *p, size_t size, struct bulk *bulk, int bulk_count)
{
    struct message m[2] = {message_recv(p->receiver, size, 2), message_send(p->sender, size, 2, 7)};

    while (!m[0].req) /* the receive is there before the message, as in a pipeline */
        message_poll(&m[0]);
    const double began_us = now_us();
    double arrived_us = 0;
    while (!m[0].done || !m[1].done) {
        must(in_time());
        message_poll(&m[1]);
        message_poll(&m[0]);
        if (m[0].done && arrived_us == 0)
            arrived_us = now_us();
        poll_bulk(bulk, bulk_count);
    }
    message_check(&m[0], 0, size, 7);
    message_free(&m[0]);
    message_free(&m[1]);
    return arrived_us - began_us;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void run(unsigned messages, size_t size, int bulk_count)
{
    static struct bulk bulk[BULK_MAX];
    double *us = calloc(messages, sizeof(*us)), bytes = 0;
    struct pair stage;

    must(us);
    pair_open(&stage, context_for(SEND | RECV));
    void *gradients = context_for(ALL_REDUCE);
    for (int i = 0; i < bulk_count; i++)
        open_bulk(&bulk[i], gradients);
    for (int i = 0; i < WARM_UP; i++)
        send_one(&stage, size, bulk, bulk_count);
    for (int i = 0; i < bulk_count; i++)
        bulk[i].bytes = 0;
    const double began_us = now_us();
    for (unsigned i = 0; i < messages; i++)
        us[i] = send_one(&stage, size, bulk, bulk_count);
    const double passed_us = now_us() - began_us;
    for (int i = 0; i < bulk_count; i++)
        bytes += bulk[i].bytes;
    qsort(us, messages, sizeof(*us), compare);
    printf("%.1f %.1f %.2f\n", us[messages / 2], us[messages * 9 / 10], bytes / passed_us);
    free(us);
}

/* ---- the command line ------------------------------------------------------------------------ */

int main(int argc, char **argv)
{
    unsigned messages = 200, bulk = 2;
    size_t size = 4096;

    for (; argc > 3 && !strncmp(argv[1], "--", 2); argc -= 2, argv += 2) {
        const unsigned value = (unsigned)strtoul(argv[2], NULL, 10);
        if (!strcmp(argv[1], "--messages"))
            messages = value;
        else if (!strcmp(argv[1], "--size"))
            size = value;
        else if (!strcmp(argv[1], "--bulk"))
            bulk = value;
    }
    if (argc != 2 || !messages || bulk > BULK_MAX) {
        fprintf(stderr, "usage: net-classes [--messages N] [--size N] [--bulk 0-%d] PLUGIN.so\n",
                BULK_MAX);
        return 2;
    }
    setup.library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    setup.net = setup.library ? net_caller_find(setup.library, NEWEST_VERSION) : NULL;
    if (!setup.net) {
        fprintf(stderr, "net-classes: %s\n", dlerror());
        return 2;
    }
    run(messages, size, (int)bulk);
    return 0;
}
