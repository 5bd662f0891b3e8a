/* SPDX-License-Identifier: Apache-2.0
 *
 * test_net_eager_wrong.c - messages of the net plugin over shm and tcp that arrive before their
 * receives, with a failure: one is too long, a peer closes, is killed, or breaks the protocol.
 */
#include "cmocka_all.h"
#include "eager_pair.h"

#include "base/clock.h"
#include "nccl-plugin/net/wire_transport.h"

/* ---- lengths and leaving --------------------------------------------------------------------- */

static int error_of(struct dpn_request *req)
{
    const int64_t began_ns = dp_now_ns();
    bool done = false;
    int err = 0;

    while (!err && !done) {
        err = dpn_net_test(req, &done, NULL);
        must_be_in_time(began_ns);
    }
    must(!done);
    return err;
}

/* Straight from the wire, and, with another message before it, from where it was kept. */
PART_CASE(both_sides_say_that_a_message_is_too_long, run_over_both(part))
{
    for (int is_kept = 0; is_kept < 2; is_kept++) {
        ENDED_BY(close_pair) struct pair p = connect_pair();
        struct dpn_request *send = send_eager(&p, 0, 100, 7);
        if (is_kept) {
            struct dpn_request *other = send_eager(&p, 0, 5, 8);
            receive_all(&p, 0, 0, 5, 8);
            finish(other, NULL);
        }
        memset(to, 0x5a, 200);
        struct dpn_request *recv = receive(&p, 0, 50, 7);
        must(error_of(recv) == DP_EMISMATCH);
        must(strstr(dp_last_error(), "the peer has 100 bytes for a receive of 50 (tag 7)"));
        must(error_of(send) == DP_EMISMATCH);
        must(strstr(dp_last_error(), "send of 100 bytes (tag 7): the peer's receive has 50"));
        for (int i = 50; i < 200; i++)
            must(to[i] == 0x5a);
    }
}

/* What was in flight is dropped: what has come may be received, the rest is an error. */
PART_CASE(what_a_sender_leaves_behind_is_received_or_an_error, run_over_both(part))
{
    enum { N = 10 };
    ENDED_BY(close_pair) struct pair p = connect_pair();

    for (int i = 0; i < N; i++)
        send_eager(&p, (size_t)i, 3000, i % 3);
    receive_all(&p, 0, 1, 3000, 1); /* the first of tag 0 is kept */
    dpn_net_close(p.sender);
    p.sender = NULL;
    bool lost = false;
    for (int i = 0; i < N + 1 && !lost; i++) {
        const size_t room = 3000;
        const int tag = i % 3;
        struct dpn_request *req = NULL;
        const int64_t began_ns = dp_now_ns();
        bool done = false;
        if (i == 1)
            continue;
        lost = dpn_net_irecv(p.receiver, 1, (void *[]){to}, &room, &tag, NULL, false, &req);
        while (!lost && !done) {
            lost = dpn_net_test(req, &done, NULL);
            must_be_in_time(began_ns);
        }
        must(lost || !memcmp(to, from + i, 3000));
    }
    must(lost); /* there were only N */
}

PART_CASE(a_receiver_that_leaves_fails_what_it_has_not_received, run_over_both(part))
{
    ENDED_BY(close_pair) struct pair p = connect_pair();
    struct dpn_request *read = send_eager(&p, 0, 8000, 7), *message = send_eager(&p, 0, 8000, 8),
                       *unread = send_eager(&p, 0, 8000, 9);

    struct dpn_request *recv = receive(&p, 0, 8000, 7);
    finish(recv, NULL);
    finish(read, NULL);
    dpn_net_close(p.receiver);
    p.receiver = NULL;
    must(error_of(message) == DP_ECOMM && error_of(unread) == DP_ECOMM);
}

/* The wire fails between the message's last byte and the test of its receive. */
PART_CASE(what_was_all_there_when_the_wire_failed_is_received, run_over_both(part))
{
    struct dpn_region region = {to + LIMIT, LIMIT, NCCL_PTR_HOST, -1, 0};
    struct dpn_request *other = NULL;
    struct dpn_memory *memory;
    const size_t room = LIMIT;
    bool done;

    if (strcmp(getenv("DUALPIPE_NET_WIRE"), "shm")) /* tcp may deliver it later */
        return;
    ENDED_BY(close_pair) struct pair p = connect_pair();
    must(!dpn_net_register(p.receiver, &region, &memory));
    struct dpn_request *recv = receive(&p, 0, LIMIT, 7), *send = send_in_time(&p, 0, LIMIT, 7);
    must(!dpn_net_irecv(p.receiver, 1, &region.data, &room, (int[]){8}, &memory, false, &other));
    must(!dpn_net_deregister(p.receiver, memory));
    must(is_done(recv, NULL) && !memcmp(to, from, LIMIT));
    must(dpn_net_test(other, &done, NULL) == DP_EABORTED);
    finish(send, NULL);
}

/* The child has the receiver, and is killed with messages unread. */
PART_CASE(a_receiver_that_dies_fails_them_all, run_over_both(part))
{
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    ENDED_BY(close_pair) struct pair p = {.net = NULL};
    int to_parent[2], status;

    must(!pipe(to_parent));
    const pid_t child = fork();
    must(child >= 0);
    if (!child) {
        int err = DP_EAGAIN;
        alarm(60);
        must(!dpn_net_init(logger, &p.net) && !dpn_net_listen(p.net, 0, handle, &p.listener));
        must(write(to_parent[1], handle, sizeof(handle)) == (ssize_t)sizeof(handle));
        while (err == DP_EAGAIN)
            err = dpn_net_accept(p.listener, &p.receiver);
        must(!err && write(to_parent[1], "", 1) == 1);
        for (;;)
            pause();
    }
    must(read(to_parent[0], handle, sizeof(handle)) == (ssize_t)sizeof(handle));
    must(!dpn_net_init(logger, &p.net));
    int err = DP_EAGAIN;
    while (err == DP_EAGAIN)
        err = dpn_net_connect(p.net, 0, handle, &p.sender);
    must(!err && read(to_parent[0], said, 1) == 1);
    struct dpn_request *sends[DPN_EAGER_COUNT];
    for (int i = 0; i < DPN_EAGER_COUNT; i++)
        sends[i] = send_eager(&p, 0, LIMIT / 4, i);
    must(!kill(child, SIGKILL) && waitpid(child, &status, 0) == child);
    for (int i = 0; i < DPN_EAGER_COUNT; i++)
        must(error_of(sends[i]) == DP_ECOMM);
}

/* ---- a peer that breaks the protocol -------------------------------------------------------- */

/* The other end is a bare wire. */
static struct dp_wire *connect_bare(struct pair *p)
{
    const int64_t began_ns = dp_now_ns();
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    struct dpn_addresses addresses;
    struct dp_wire *wire = NULL;

    must(!dpn_net_init(logger, &p->net) && !dpn_net_listen(p->net, 0, handle, &p->listener));
    must(!dpn_handle_read(handle, &addresses));
    for (int w = 0; w < DPN_WIRES && !wire; w++)
        if (addresses.present[w])
            must(!dpn_wires[w]->connect(&addresses.on[w], DPN_BY_WIRE, &wire));
    for (int err = DP_EAGAIN; err == DP_EAGAIN; err = dpn_net_accept(p->listener, &p->receiver)) {
        wire->ops->progress(wire);
        must_be_in_time(began_ns);
    }
    must(p->receiver);
    return wire;
}

/* As net/wire_transport.h has them. */
#define REFUSED ((uint64_t)1 << 63)
#define EAGER ((uint64_t)1 << 62)

/* What arrives for a receive of 100 bytes, tag 7. Returns the receiver's message. */
static const char *say_bare(const uint64_t *tags, const size_t *lens, int n)
{
    static char why[300];
    struct dp_wire_request sends[32];
    struct pair p = {.net = NULL};
    struct dp_wire *wire = connect_bare(&p);
    struct dpn_request *recv = receive(&p, 0, 100, 7);
    bool done = false;
    int err = 0;

    for (int i = 0; i < n; i++)
        dp_wire_isend(wire, tags[i], from, lens[i], &sends[i]);
    for (const int64_t began_ns = dp_now_ns(); !err && !done; must_be_in_time(began_ns)) {
        wire->ops->progress(wire);
        err = dpn_net_test(recv, &done, NULL);
    }
    snprintf(why, sizeof(why), "%s", err ? dp_last_error() : "done");
    dp_wire_close(wire);
    close_pair(&p);
    return why;
}

PART_CASE(a_peer_that_keeps_to_no_rule_ends_the_connection, run_over_both(part))
{
    uint64_t tags[DPN_EAGER_COUNT + 2];
    size_t lens[DPN_EAGER_COUNT + 2] = {0};

    for (int i = 0; i < DPN_EAGER_COUNT + 2; i++)
        tags[i] = EAGER | 8;
    tags[DPN_EAGER_COUNT] = 7;
    must(!strcmp(say_bare(tags, lens, DPN_EAGER_COUNT + 1), "done"));
    tags[DPN_EAGER_COUNT] = EAGER | 8;
    must(strstr(say_bare(tags, lens, DPN_EAGER_COUNT + 1), "there are 16 such messages"));
    must(strstr(say_bare((uint64_t[]){EAGER | 8}, (size_t[]){65537}, 1), "memory for 65537 bytes"));
    must(strstr(say_bare((uint64_t[]){8}, (size_t[]){1}, 1), "belongs to no receive"));
    must(strstr(say_bare((uint64_t[]){8}, (size_t[]){0}, 1), "belongs to no receive"));
    must(strstr(say_bare((uint64_t[]){7}, (size_t[]){101}, 1), "101 bytes for a receive of 100"));
    must(strstr(say_bare((uint64_t[]){EAGER | 7}, (size_t[]){200000}, 1), "200000 bytes for a"));
    must(strstr(say_bare((uint64_t[]){REFUSED | (uint64_t)1 << 62 | 7}, (size_t[]){0}, 1),
                "1073741824 bytes for a receive of 100"));
    must(strstr(say_bare((uint64_t[]){REFUSED | 8}, (size_t[]){0}, 1), "belongs to no receive"));
    must(strstr(say_bare((uint64_t[]){REFUSED | 7}, (size_t[]){10}, 1), "for a receive of 100"));
}
