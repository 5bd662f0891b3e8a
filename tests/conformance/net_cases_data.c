/* SPDX-License-Identifier: Apache-2.0
 *
 * net_cases_data.c - messages: sizes, numbers, groups, tags.
 */
#include "net_cases.h"
#include "net_pair.h"

#include <string.h>

static void carry_every_size(void)
{
    static const size_t sizes[] = {0,    1,    7,    8,     39,    40,    41,      127,        128,
                                   4096, 8191, 8192, 8193,  65536, 65537, 1000003, 4194304 + 5};
    struct pair p;

    pair_open(&p, net_init());
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        pair_transfer(&p, sizes[i], i);
    pair_transfer(&p, setup.full ? (size_t)1 << 30 : (size_t)times(16) << 20, 99);
    pair_transfer(&p, 1, 100);
    pair_close(&p);
}

static void keep_32_requests_each_way(void)
{
    enum { N = 32 };
    struct message all[2 * N];
    struct pair p;

    pair_open(&p, net_init());
    for (int i = 0; i < N; i++) {
        all[i] = message_recv(p.receiver, 20000, 1);
        all[N + i] = message_send(p.sender, 20000, 1, (unsigned)i);
        message_poll(&all[i]);
        must(all[i].req);
    }
    messages_finish(all, 2 * N);
    for (int i = 0; i < N; i++)
        message_check(&all[i], 0, 20000, (unsigned)i);
    for (int i = 0; i < 2 * N; i++)
        message_free(&all[i]);
    pair_close(&p);
}

static int group_size(void)
{
    struct net_properties p;

    must_succeed(setup.net->properties(0, &p));
    must(p.max_recvs > 1);
    return p.max_recvs < 8 ? p.max_recvs : 8;
}

/* As many messages as NCCL ever has on one connection: all requests are groups as large as can be. */
static void keep_32_groups_of_receives(void)
{
    enum { N = 32, MOST = 8 };
    static struct message recvs[N], sends[N * MOST];
    struct pair p;

    pair_open(&p, net_init());
    const int n = group_size();
    for (int i = 0; i < N; i++) {
        recvs[i] = (struct message){.comm = p.receiver};
        for (int k = 0; k < n; k++)
            message_add_recv(&recvs[i], 3000, k);
        message_poll(&recvs[i]);
        must(recvs[i].req);
    }
    for (int i = 0; i < N * n; i++)
        sends[i] = message_send(p.sender, 3000, n - 1 - i % n, (unsigned)i);
    for (int next = 0, done = 0;
         done < N + N * n;) { /* in order; what is not done is asked again */
        must(in_time());
        done = 0;
        for (int i = 0; i < N * n && i <= next; i++) {
            message_poll(&sends[i]);
            next += i == next && sends[i].req;
            done += sends[i].done;
        }
        for (int i = 0; i < N; i++) {
            message_poll(&recvs[i]);
            done += recvs[i].done;
        }
    }
    for (int i = 0; i < N * n; i++)
        message_check(&recvs[i / n], n - 1 - i % n, 3000, (unsigned)i);
    for (int i = 0; i < N; i++)
        message_free(&recvs[i]);
    for (int i = 0; i < N * n; i++)
        message_free(&sends[i]);
    pair_close(&p);
}

static void say_try_again_instead_of_failing(void)
{
    enum { N = 100 };
    struct message recvs[N], sends[N];
    struct pair p;

    pair_open(&p, net_init());
    for (int i = 0; i < N; i++) {
        sends[i] = message_send(p.sender, 30000, 1, (unsigned)i);
        message_poll(&sends[i]); /* nobody receives yet */
        recvs[i] = message_recv(p.receiver, 30000, 1);
    }
    /* Retries keep the order: the next begins once the one before it has. */
    for (int next_send = 0, next_recv = 0, done = 0; done < 2 * N;) {
        must(in_time());
        done = 0;
        for (int i = 0; i < N; i++) {
            if (i <= next_send)
                message_poll(&sends[i]);
            if (i <= next_recv)
                message_poll(&recvs[i]);
            next_send += i == next_send && sends[i].req;
            next_recv += i == next_recv && recvs[i].req;
            done += recvs[i].done + sends[i].done;
        }
    }
    for (int i = 0; i < N; i++) {
        message_check(&recvs[i], 0, 30000, (unsigned)i);
        message_free(&recvs[i]);
        message_free(&sends[i]);
    }
    pair_close(&p);
}

static void tell_the_true_size_of_a_shorter_message(void)
{
    struct pair p;

    pair_open(&p, net_init());
    struct message both[2] = {message_recv(p.receiver, 100000, 1), message_send(p.sender, 777, 1, 5)};
    messages_finish(both, 2);
    message_check(&both[0], 0, 777, 5);
    for (size_t i = 777; i < 100000; i++)
        must(both[0].data[0][i] == 0x5a);
    message_free(&both[0]);
    message_free(&both[1]);
    pair_close(&p);
}

static void match_tags_within_a_group(void)
{
    struct pair p;

    pair_open(&p, net_init());
    const int n = group_size();
    for (int turn = 0; turn < n; turn++) {
        struct message all[9] = {{.comm = p.receiver}};
        for (int i = 0; i < n; i++)
            message_add_recv(&all[0], (size_t)(1000 * i), 10 + i);
        /* Another order in every turn. 5 has no divisor in common with any n up to 8 but 5. */
        const int step = n == 5 ? 2 : 5;
        for (int i = 0; i < n; i++) {
            const int k = (turn + step * i) % n;
            all[1 + i] = message_send(p.sender, (size_t)(1000 * k), 10 + k, (unsigned)(turn + k));
        }
        messages_finish(all, n + 1);
        for (int k = 0; k < n; k++)
            message_check(&all[0], k, (size_t)(1000 * k), (unsigned)(turn + k));
        for (int i = 0; i <= n; i++)
            message_free(&all[i]);
    }
    pair_close(&p);
}

/* Of two receives with the same tag the elder gets the first message, also when other messages
 * arrive in another order. A plugin that looks at one group at a time makes senders wait. */
static void give_the_oldest_receive_the_first_message(void)
{
    struct pair p;

    pair_open(&p, net_init());
    struct message all[] = {
        {.comm = p.receiver},           {.comm = p.receiver},
        message_send(p.sender, 50, 3, 3), message_send(p.sender, 50, 1, 1),
        message_send(p.sender, 50, 1, 11), message_send(p.sender, 50, 2, 2),
    };
    message_add_recv(&all[0], 100, 1);
    message_add_recv(&all[0], 100, 2);
    message_add_recv(&all[1], 100, 1);
    message_add_recv(&all[1], 100, 3);
    messages_finish(all, 6);
    message_check(&all[0], 0, 50, 1);
    message_check(&all[0], 1, 50, 2);
    message_check(&all[1], 0, 50, 11);
    message_check(&all[1], 1, 50, 3);
    for (int i = 0; i < 6; i++)
        message_free(&all[i]);
    pair_close(&p);
}

/* NCCL up to 2.19 hands over NULL. */
static void need_no_room_for_the_size_of_what_was_sent(void)
{
    struct pair p;
    int done = 0;

    pair_open(&p, net_init());
    for (unsigned turn = 0; turn < 3; turn++, done = 0) {
        struct message recv = message_recv(p.receiver, 30000, 1);
        struct message send = message_send(p.sender, 30000, 1, turn);
        for (message_poll(&recv); !send.req; message_poll(&send))
            must(in_time());
        while (!done || !recv.done) {
            must(in_time());
            if (!done)
                must_succeed(setup.net->test(send.req, &done, NULL));
            message_poll(&recv);
        }
        message_check(&recv, 0, 30000, turn);
        message_free(&recv);
        message_free(&send);
    }
    pair_close(&p);
}

static void use_requests_again_for_ever(void)
{
    struct pair p;

    pair_open(&p, net_init());
    for (unsigned i = 0; i < times(3000); i++)
        pair_transfer(&p, i % 300, i);
    pair_close(&p);
}

/* Of any size after any other, among receives that are not watched. */
static void carry_what_kernels_watch(void)
{
    static const size_t sizes[] = {16, 0, 65536, 100, 614400, 24, 128, 1000003, 2048, 7};
    enum { N = sizeof(sizes) / sizeof(sizes[0]) };
    struct message all[2 * N];
    struct pair p;

    pair_open(&p, net_init());
    for (unsigned i = 0; i < N; i++) {
        all[2 * i] = message_recv(p.receiver, sizes[i], 1);
        all[2 * i].is_watched = i % 3 != 0;
        all[2 * i + 1] = message_send(p.sender, sizes[i], 1, i);
    }
    for (int i = 0; i < 2 * N; i += 2) /* in order; what is not done is asked again */
        messages_finish(&all[i], 2);
    for (unsigned i = 0; i < N; i++)
        message_check(&all[2 * i], 0, sizes[i], i);
    for (int i = 0; i < 2 * N; i++)
        message_free(&all[i]);
    pair_close(&p);
}

static void wait_for_no_flush_of_host_memory(void)
{
    struct pair p;
    int size = 100, done = 0;
    void *req = NULL;

    pair_open(&p, net_init());
    struct message m = message_recv(p.receiver, 100, 1);
    must_succeed(setup.net->iflush(p.receiver, 1, (void **)m.data, &size, m.memories, &req));
    while (req && !done) {
        must(in_time());
        must_succeed(setup.net->test(req, &done, NULL));
    }
    message_free(&m);
    pair_close(&p);
}

const struct net_case net_data_cases[] = {
    {"carry every size", carry_every_size},
    {"keep 32 requests each way", keep_32_requests_each_way},
    {"keep 32 groups of receives", keep_32_groups_of_receives},
    {"say try again instead of failing", say_try_again_instead_of_failing},
    {"tell the true size of a shorter message", tell_the_true_size_of_a_shorter_message},
    {"match tags within a group", match_tags_within_a_group},
    {"give the oldest receive the first message", give_the_oldest_receive_the_first_message},
    {"need no room for the size of what was sent", need_no_room_for_the_size_of_what_was_sent},
    {"use requests again for ever", use_requests_again_for_ever},
    {"carry what kernels watch", carry_what_kernels_watch},
    {"wait for no flush of host memory", wait_for_no_flush_of_host_memory},
    {NULL, NULL},
};
