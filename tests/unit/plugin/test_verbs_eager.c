/* SPDX-License-Identifier: Apache-2.0
 *
 * test_verbs_eager.c - eager messages: which receive they are for, whatever the order of arrival;
 * reuse of slots in the receiver's ring; which receives write no CTS entry; and what happens to
 * messages when something fails.
 */
#include "verbs_pair.h"
#include "fake_fabric.h"

#include "nccl-plugin/verbs/device.h"

#include <time.h>

/* The buffers from which a pair sends, and into which it receives. */
struct both {
    struct pair pair;
    struct dpn_memory *from, *to;
};

static struct both connect_both(int type)
{
    struct both b = {.pair = pair_connect(0)};

    b.from = pair_reg(b.pair.sender, pair_from, NCCL_PTR_HOST);
    b.to = pair_reg(b.pair.receiver, pair_to, type);
    for (size_t i = 0; i < PAIR_BYTES; i++)
        pair_from[i] = (char)(i * 2654435761u >> 11);
    memset(pair_to, 0, PAIR_BYTES);
    return b;
}

static const struct dpn_verbs *sender_of(const struct both *b)
{
    return b->pair.sender->state;
}

static const struct dpn_verbs *receiver_of(const struct both *b)
{
    return b->pair.receiver->state;
}

/* [at, at + len) with this tag; NULL: the receiver is not ready. */
static struct dpn_request *try_send(struct both *b, size_t at, size_t len, int tag)
{
    struct dpn_request *req = NULL;

    assert_int_equal(dpn_net_isend(b->pair.sender, pair_from + at, len, tag, b->from, &req), 0);
    return req;
}

/* The same, repeated until the receiver is ready. */
static struct dpn_request *send_in_time(struct both *b, size_t at, size_t len, int tag)
{
    struct dpn_request *req = NULL;

    for (const int64_t began_ns = dp_now_ns(); !req; must_be_in_time(began_ns))
        req = try_send(b, at, len, tag);
    return req;
}

/* A message that does not wait, and has arrived when this returns. */
static void send_eager(struct both *b, size_t at, size_t len, int tag)
{
    struct dpn_request *req = try_send(b, at, len, tag);

    assert_non_null(req);
    pair_finish(req, NULL);
}

static struct dpn_request *receive(struct both *b, size_t at, size_t len, int tag)
{
    struct dpn_request *req = NULL;

    assert_int_equal(dpn_net_irecv(b->pair.receiver, 1, (void *[]){pair_to + at}, &len, &tag,
                                   &b->to, false, &req), 0);
    assert_non_null(req);
    return req;
}

static void must_have(size_t at, size_t from, size_t len)
{
    assert_memory_equal(pair_to + at, pair_from + from, len);
}

/* ---- which receive ----------------------------------------------------------------------------- */

CASE(a_short_message_does_not_wait_for_its_receive)
{
    struct both b = connect_both(NCCL_PTR_HOST);
    send_eager(&b, 0, 8192, 7);
    send_eager(&b, 9000, 0, 7);
    send_eager(&b, 10000, 1, 7);
    assert_null(try_send(&b, 0, 8193, 7)); /* too long for that */
    for (int i = 0; i < 3; i++)
        pair_finish(NULL, receive(&b, (size_t)i * 10000, 8192, 7));
    must_have(0, 0, 8192);
    must_have(20000, 10000, 1);
    assert_int_equal(pair_to[10000] | pair_to[20001] | pair_to[8192], 0);
    pair_end(&b.pair);
}

CASE(messages_of_one_tag_keep_their_order_however_they_travel)
{
    struct both b = connect_both(NCCL_PTR_HOST);
    struct dpn_request *recvs[3];

    send_eager(&b, 0, 100, 7);
    for (int i = 0; i < 3; i++)
        recvs[i] = receive(&b, (size_t)i * 1000, 1000, 7);
    /* The second and third know their buffers: the CTS entry of the first is taken already. */
    struct dpn_request *sends[] = {pair_send(&b.pair, b.from, pair_from + 1000, 200),
                                   pair_send(&b.pair, b.from, pair_from + 2000, 300)};
    pair_finish(recvs[2], sends[1]);
    pair_finish(recvs[1], sends[0]);
    pair_finish(recvs[0], NULL);
    for (size_t i = 0; i < 3; i++)
        must_have(i * 1000, i * 1000, (i + 1) * 100);
    pair_end(&b.pair);
}

/* A receive for it is in flight when it is sent, and between them one that is not for it. */
CASE(a_message_passes_receives_of_other_tags)
{
    struct both b = connect_both(NCCL_PTR_HOST);
    assert_true(fake_verbs.hold(true));
    struct dpn_request *other = receive(&b, 5000, 1000, 9), *own = receive(&b, 0, 1000, 7);
    struct dpn_request *send = try_send(&b, 0, 500, 7);
    assert_non_null(send);
    assert_true(fake_verbs.hold(false));
    pair_finish(own, send);
    must_have(0, 0, 500);
    pair_finish(other, send_in_time(&b, 5000, 600, 9));
    must_have(5000, 5000, 600);
    pair_end(&b.pair);
}

CASE(a_group_takes_what_came_before_it_by_tags)
{
    void *data[] = {pair_to, pair_to + 1000, pair_to + 2000, pair_to + 3000};
    const size_t sizes[] = {1000, 1000, 1000, 1000};
    const int tags[] = {1, 2, 3, 2};
    struct dpn_request *group = NULL, *last;

    struct both b = connect_both(NCCL_PTR_HOST);
    struct dpn_memory *memories[] = {b.to, b.to, b.to, b.to};
    send_eager(&b, 2000, 30, 3);
    send_eager(&b, 1000, 20, 2);
    send_eager(&b, 9000, 90, 9); /* for none of them */
    assert_int_equal(dpn_net_irecv(b.pair.receiver, 4, data, sizes, tags, memories, false, &group), 0);
    last = send_in_time(&b, 3000, 40, 2);
    pair_finish(last, NULL);
    last = send_in_time(&b, 0, 10, 1);
    pair_finish(last, group);
    for (size_t i = 0; i < 4; i++)
        must_have(i * 1000, i * 1000, (i + 1) * 10);
    pair_finish(NULL, receive(&b, 9000, 100, 9));
    must_have(9000, 9000, 90);
    pair_end(&b.pair);
}

/* ---- the ring ---------------------------------------------------------------------------------- */

/* Messages of this many bytes, for which there are `slots` slots. */
static void use_the_ring(size_t len, size_t slots)
{
    struct both b = connect_both(NCCL_PTR_HOST);

    for (int round = 0; round < 10; round++) {
        size_t sent = 0;
        struct dpn_request *req;
        while (sent <= slots && (req = try_send(&b, sent * len + (size_t)round, len, 7))) {
            pair_finish(req, NULL);
            sent++;
        }
        /* The CTS entry after the one that a message went to tells that its slot is free. */
        assert_true(sent <= slots && sent >= slots - (round > 0));
        for (size_t i = 0; i < sent; i++) {
            pair_finish(NULL, receive(&b, i * len, len, 7));
            must_have(i * len, i * len + (size_t)round, len);
        }
    }
    assert_true(sender_of(&b)->send.eager_sent > 9 * (slots - 1));
    pair_end(&b.pair);
}

CASE(the_ring_is_used_again_as_receives_come)
{
    use_the_ring(10, DPN_EAGER_SLOTS);
    use_the_ring(DPN_INLINE_MESSAGE_BYTES, DPN_EAGER_SLOTS);
    use_the_ring(DPN_INLINE_MESSAGE_BYTES + 1, DPN_LARGE_SLOTS);
    use_the_ring(8192, DPN_LARGE_SLOTS);
}

/* Inline and larger messages share one order. */
CASE(messages_of_all_lengths_share_the_ring)
{
    struct both b = connect_both(NCCL_PTR_HOST);
    for (size_t i = 0; i < 1000; i++) {
        const size_t len = i % 7 == 3 ? 105 + i : i % 110, at = i * 37;
        struct dpn_request *recv = i % 3 ? receive(&b, at, 2000, 7) : NULL;
        struct dpn_request *send = send_in_time(&b, at, len, 7);
        pair_finish(send, recv ? recv : receive(&b, at, 2000, 7));
        must_have(at, at, len);
    }
    assert_true(sender_of(&b)->send.eager_sent > 500);
    pair_end(&b.pair);
}

/* No slot becomes free while they are unmatched; a credit reports what became of later ones. */
CASE(unmatched_messages_do_not_delay_others)
{
    struct both b = connect_both(NCCL_PTR_HOST);
    send_eager(&b, 1000, 10, 9);
    send_eager(&b, 2000, 20, 9);
    for (size_t i = 0; i < 3 * DPN_EAGER_SLOTS; i++) {
        struct dpn_request *recv = receive(&b, i * 10, 10, 7), *send = NULL;
        const int64_t began_ns = dp_now_ns();
        for (bool done = false; !send || !done; must_be_in_time(began_ns)) {
            send = send ? send : try_send(&b, i * 10, 10, 7);
            if (!done)
                assert_int_equal(dpn_net_test(recv, &done, NULL), 0);
        }
        pair_finish(send, NULL);
        must_have(i * 10, i * 10, 10);
    }
    pair_finish(NULL, receive(&b, 1000, 10, 9));
    pair_finish(NULL, receive(&b, 2000, 2000, 9));
    must_have(1000, 1000, 10);
    must_have(2000, 2000, 20);
    struct dpn_request *last = receive(&b, 4000, 9000, 9);
    pair_finish(send_in_time(&b, 4000, 9000, 9), last);
    must_have(4000, 4000, 9000);
    pair_end(&b.pair);
}

CASE(without_it_every_message_waits)
{
    dpn_options.eager_bytes = 0;
    struct both b = connect_both(NCCL_PTR_HOST);
    assert_null(try_send(&b, 0, 0, 7));
    assert_null(try_send(&b, 0, 1, 7));
    struct dpn_request *recv = receive(&b, 0, 100, 7);
    pair_finish(pair_send(&b.pair, b.from, pair_from, 100), recv);
    must_have(0, 0, 100);
    pair_end(&b.pair);
    dpn_options.eager_bytes = 8192;
}

/* The memory of the last receive that was cleared to send decides whether the next message may be
 * eager. */
CASE(a_receiver_in_gpu_memory_has_messages_wait)
{
    dpn_options.eager_gpu = false;
    struct both b = connect_both(NCCL_PTR_HOST);
    struct dpn_memory *gpu, *host = b.to;
    dpn_verbs_state.ports.hcas[0].pointers |= NCCL_PTR_CUDA;
    gpu = pair_reg(b.pair.receiver, pair_to, NCCL_PTR_CUDA);
    assert_null(try_send(&b, 0, 100, 7)); /* the memory of the receives is not known yet */
    struct dpn_request *recv = receive(&b, 0, 9000, 7);
    pair_finish(send_in_time(&b, 0, 100, 7), recv);
    send_eager(&b, 100, 200, 7); /* into host memory */
    b.to = gpu;
    pair_finish(NULL, receive(&b, 100, 200, 7)); /* it was in flight: the device copies it */
    recv = receive(&b, 1000, 9000, 7);
    pair_finish(send_in_time(&b, 1000, 300, 7), recv);
    assert_null(try_send(&b, 2000, 300, 7));
    b.to = host;
    recv = receive(&b, 2000, 9000, 7);
    pair_finish(send_in_time(&b, 2000, 300, 7), recv);
    send_eager(&b, 3000, 300, 7);
    pair_finish(NULL, receive(&b, 3000, 300, 7));
    for (size_t i = 1; i < 4; i++)
        must_have(i * 1000, i * 1000, 300);
    must_have(0, 0, 300);
    pair_end(&b.pair);
    dpn_options.eager_gpu = true;
}

/* ---- delayed CTS entries --------------------------------------------------------------------- */

/* Under the lock: the watchdog may poll the connection just now. */
static uint32_t cts_sent(const struct both *b)
{
    pthread_mutex_lock(&b->pair.receiver->lock);
    const uint32_t sent = receiver_of(b)->recv.cts_sent;
    pthread_mutex_unlock(&b->pair.receiver->lock);
    return sent;
}

/* Number of delayed receives. */
static int delayed_receives(const struct both *b)
{
    pthread_mutex_lock(&b->pair.receiver->lock);
    const int delayed = __builtin_popcount(receiver_of(b)->recv.delayed);
    pthread_mutex_unlock(&b->pair.receiver->lock);
    return delayed;
}

/* Short messages into receives of this length; returns how often CTS entries were written for them.
 */
static unsigned exchange(struct both *b, unsigned count, size_t room)
{
    unsigned writes = 0;

    for (unsigned i = 0; i < count; i++) {
        const uint32_t sent = cts_sent(b);
        struct dpn_request *send = send_in_time(b, i * 10, 10, 7);
        pair_finish(send, receive(b, i * 10, room, 7));
        must_have(i * 10, i * 10, 10);
        writes += sent != cts_sent(b);
    }
    return writes;
}

CASE(short_messages_need_no_entry_each)
{
    struct both b = connect_both(NCCL_PTR_HOST);
    assert_true(exchange(&b, 80, 100) <= 80 / (DPN_EAGER_SLOTS / 2));
    struct dpn_request *longer = receive(&b, 0, 513, 7); /* too long for delayed CTS entries */
    assert_int_equal(delayed_receives(&b), 0);
    pair_finish(longer, send_in_time(&b, 0, 513, 7));
    pair_end(&b.pair);
}

CASE(delayed_entries_are_written_once_nothing_else_arrives)
{
    bool done = false;

    struct both b = connect_both(NCCL_PTR_HOST);
    struct dpn_request *recv = receive(&b, 0, 100, 7);
    assert_int_equal(delayed_receives(&b), 1);
    /* Even if there are few polls in that time. */
    for (int i = 0; i < 8; i++) {
        assert_int_equal(dpn_net_test(recv, &done, NULL), 0);
        nanosleep(&(const struct timespec){.tv_nsec = DPN_DELAY_NS}, NULL);
    }
    assert_int_equal(delayed_receives(&b), 0);
    pair_finish(recv, send_in_time(&b, 0, 100, 7));
    must_have(0, 0, 100);
    pair_end(&b.pair);
}

CASE(a_receive_of_a_long_message_releases_delayed_entries)
{
    struct both b = connect_both(NCCL_PTR_HOST);
    struct dpn_request *first = receive(&b, 0, 100, 7), *second = receive(&b, 1000, 9000, 7);
    assert_int_equal(delayed_receives(&b), 0);
    pair_finish(send_in_time(&b, 0, 100, 7), first);
    pair_finish(send_in_time(&b, 1000, 9000, 7), second);
    must_have(0, 0, 100);
    must_have(1000, 1000, 9000);
    pair_end(&b.pair);
}

/* NCCL's receives have the size of a step, whatever arrives. */
CASE(long_receives_wait_too_while_what_comes_is_short)
{
    struct both b = connect_both(NCCL_PTR_HOST);
    assert_int_equal(exchange(&b, 4, 9000), 4);
    assert_true(exchange(&b, 40, 9000) <= 40 / (DPN_EAGER_SLOTS / 2) + 1);
    struct dpn_request *recv = receive(&b, 0, 9000, 7);
    pair_finish(recv, send_in_time(&b, 0, 9000, 7)); /* after a while */
    must_have(0, 0, 9000);
    recv = receive(&b, 0, 9000, 7);
    assert_int_equal(delayed_receives(&b), 0);
    pair_finish(recv, send_in_time(&b, 0, 10, 7));
    pair_end(&b.pair);
}

/* ---- GPUs -------------------------------------------------------------------------------------- */

static void reach_gpus(int pointers)
{
    for (int i = 0; i < dpn_verbs_state.ports.hca_count; i++)
        dpn_verbs_state.ports.hcas[i].pointers = NCCL_PTR_HOST | pointers;
}

CASE(the_device_copies_what_is_for_a_gpu)
{
    reach_gpus(NCCL_PTR_CUDA);
    struct both b = connect_both(NCCL_PTR_CUDA);
    for (size_t i = 0; i < 40; i++) {
        send_eager(&b, i * 100, 100, 7);
        send_eager(&b, 0, 0, 7);
        pair_finish(NULL, receive(&b, i * 100, 8192, 7));
        pair_finish(NULL, receive(&b, 200000, 8192, 7));
    }
    must_have(0, 0, 4000);
    pair_end(&b.pair);
    reach_gpus(0);
}

/* The device copies short messages there, which costs a write as well. */
CASE(entries_of_receives_to_a_gpu_are_not_delayed)
{
    reach_gpus(NCCL_PTR_CUDA);
    struct both b = connect_both(NCCL_PTR_CUDA);
    struct dpn_request *recv = receive(&b, 0, 100, 7);
    assert_int_equal(delayed_receives(&b), 0);
    pair_finish(recv, send_in_time(&b, 0, 100, 7));
    pair_end(&b.pair);
    reach_gpus(0);
}

CASE(without_flushes_every_message_waits)
{
    reach_gpus(NCCL_PTR_CUDA);
    dpn_verbs_state.options.flushes = false;
    struct both b = connect_both(NCCL_PTR_CUDA);
    assert_null(try_send(&b, 0, 1, 7));
    pair_end(&b.pair);
    dpn_verbs_state.options.flushes = true;
    reach_gpus(0);
}

/* ---- failures -------------------------------------------------------------------------------- */

CASE(one_that_is_too_long_is_reported_on_both_sides)
{
    struct dpn_request *req = NULL;
    const int64_t began_ns = dp_now_ns();
    bool done = false;
    int size;

    struct both b = connect_both(NCCL_PTR_HOST);
    send_eager(&b, 0, 101, 7);
    req = receive(&b, 0, 100, 7);
    int err = 0;
    for (; !err; must_be_in_time(began_ns)) { /* its queue pairs are destroyed first */
        err = dpn_net_test(req, &done, &size);
        assert_false(done);
    }
    expect_error(err, DP_EMISMATCH, "101 bytes for a receive of 100 (tag 7)");
    assert_int_equal(pair_to[0], 0);
    err = 0;
    for (req = NULL; !err; must_be_in_time(began_ns))
        err = dpn_net_isend(b.pair.sender, pair_from, 9000, 7, b.from, &req);
    expect_error(err, DP_EMISMATCH, "send of 101 bytes (tag 7): the peer's receive has 100");
    pair_end(&b.pair);
}

/* The queue pair fails before the message has arrived; and after that, before the sender knows. */
CASE(a_failed_queue_pair_loses_and_duplicates_none)
{
    static const enum fake_verbs_arrival arrivals[] = {FAKE_ARRIVES_NEVER, FAKE_ARRIVES_BEFORE};

    struct both b = connect_both(NCCL_PTR_HOST);
    for (size_t i = 0; i < 6; i++) {
        struct ibv_qp *qp = pair_qp(b.pair.sender, 0);
        assert_true(fake_verbs.fail_send(qp, 1 + (int)i % 3, IBV_WC_RETRY_EXC_ERR, arrivals[i % 2]));
        struct dpn_request *sends[3], *recvs[3];
        for (size_t k = 0; k < 3; k++)
            sends[k] = pair_send(&b.pair, b.from, pair_from + i * 1000 + k * 100, 100);
        for (size_t k = 0; k < 3; k++)
            recvs[k] = receive(&b, k * 100, 100, 7);
        for (size_t k = 0; k < 3; k++)
            pair_finish(sends[k], recvs[k]);
        must_have(0, i * 1000, 300);
    }
    assert_int_equal(receiver_of(&b)->recv.eager_busy, 0);
    assert_int_equal(receiver_of(&b)->recv.eager_seen, sender_of(&b)->send.eager_sent);
    pair_end(&b.pair);
}

CASE(what_has_arrived_is_received_when_the_sender_has_closed)
{
    struct dpn_request *req = NULL;
    const int64_t began_ns = dp_now_ns();
    bool done = false;
    int err = 0;

    struct both b = connect_both(NCCL_PTR_HOST);
    send_eager(&b, 0, 100, 7);
    send_eager(&b, 100, 100, 7);
    assert_int_equal(dpn_net_deregister(b.pair.sender, b.from), 0);
    dpn_net_close(b.pair.sender);
    struct dpn_verbs *v = b.pair.receiver->state;
    for (int64_t gone_ns = 0; !gone_ns || dp_now_ns() - gone_ns < DP_NS_PER_S / 2;) {
        must_be_in_time(began_ns);
        pthread_mutex_lock(&b.pair.receiver->lock); /* the watchdog may poll, too */
        dpn_verbs_progress_all(v);
        gone_ns = v->peer_gone_ns;
        pthread_mutex_unlock(&b.pair.receiver->lock);
    }
    for (size_t i = 0; i < 2; i++)
        pair_finish(NULL, receive(&b, i * 100, 100, 7));
    must_have(0, 0, 200);
    /* And no more arrives. */
    for (; !err; must_be_in_time(began_ns)) {
        const size_t len = 1;
        if (!req)
            err = dpn_net_irecv(b.pair.receiver, 1, (void *[]){pair_to}, &len, (int[]){7}, &b.to, false,
                                &req);
        else
            err = dpn_net_test(req, &done, NULL);
        assert_false(done);
    }
    pair_end(&b.pair);
}

CASE(what_is_no_short_message_ends_the_connection)
{
    struct both b = connect_both(NCCL_PTR_HOST);
    struct dpn_verbs *v = b.pair.receiver->state;
    pthread_mutex_lock(&b.pair.receiver->lock);
    dpn_eager_take(&v->recv, 3, 100); /* nothing has arrived */
    const int error = v->q.error;
    pthread_mutex_unlock(&b.pair.receiver->lock);
    assert_int_equal(error, DP_EMISMATCH);
    pair_end(&b.pair);
}

/* The sender's report was in flight for long: only the last entries can be unread. A number that
 * was not made yet is an error. */
CASE(an_outdated_report_of_entries_read_is_accepted)
{
    const uint32_t made = 3 * DPN_CTS_ENTRIES;

    ENDED_BY(pair_end) struct pair p = pair_connect(0);
    struct dpn_verbs *v = p.receiver->state;
    pthread_mutex_lock(&p.receiver->lock);
    v->recv.cts_made = v->recv.cts_new = v->recv.cts_sent = made;
    dpn_cts_rewind(&v->recv, 0, made - DPN_CTS_ENTRIES - 1);
    const int old = v->q.error;
    const uint32_t sent = v->recv.cts_sent;
    dpn_cts_rewind(&v->recv, 0, made + 1);
    const int future = v->q.error;
    pthread_mutex_unlock(&p.receiver->lock);
    assert_int_equal(old, 0);
    assert_int_equal(sent, made - DPN_CTS_ENTRIES);
    assert_int_equal(future, DP_EMISMATCH);
}

RUN_CASES(pair_set_up, pair_tear_down)
