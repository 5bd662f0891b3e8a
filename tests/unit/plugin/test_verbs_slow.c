/* SPDX-License-Identifier: Apache-2.0
 *
 * test_verbs_slow.c - a device that takes long for what is no message: to make, change or destroy a
 * queue pair, to register memory. No send, receive or test waits for it, of this connection or of
 * others.
 */
#include "verbs_pair.h"
#include "fake_fabric.h"

#include "nccl-plugin/verbs/device.h"

#include <pthread.h>

enum { LEN = 64, MESSAGES = 10 /* go through while the device is at work */ };

/* A connection with a message that is begun as soon as the one before is done. */
struct stream {
    struct pair pair;
    struct dpn_memory *from, *to;
    struct dpn_request *send, *recv;
    int count;
};

static struct stream open_stream(int dev)
{
    struct stream s = {.pair = pair_connect(dev)};

    s.from = pair_reg(s.pair.sender, pair_from, NCCL_PTR_HOST);
    s.to = pair_reg(s.pair.receiver, pair_to, NCCL_PTR_HOST);
    return s;
}

static void step_one(struct dpn_request **req)
{
    bool done = false;

    if (*req)
        assert_int_equal(dpn_net_test(*req, &done, NULL), 0);
    *req = done ? NULL : *req;
}

static void step(struct stream *s)
{
    const size_t len = LEN;

    if (!s->send && !s->recv) {
        assert_int_equal(dpn_net_irecv(s->pair.receiver, 1, (void *[]){pair_to}, &len, (int[]){7},
                                       &s->to, false, &s->recv), 0);
        assert_int_equal(dpn_net_isend(s->pair.sender, pair_from, LEN, 7, s->from, &s->send), 0);
        s->count++;
    } else if (!s->send) { /* the sender had no queue pair */
        assert_int_equal(dpn_net_isend(s->pair.sender, pair_from, LEN, 7, s->from, &s->send), 0);
    }
    step_one(&s->send);
    step_one(&s->recv);
}

/* A step that is not over yet may have sent, and not received. */
static void finish(struct stream *s)
{
    WHILE_IN_TIME (s->recv) {
        step_one(&s->send);
        step_one(&s->recv);
        if (s->recv && !s->send)
            assert_int_equal(dpn_net_isend(s->pair.sender, pair_from, LEN, 7, s->from, &s->send),
                             0);
    }
    pair_end(&s->pair);
}

static unsigned is_up(const struct stream *s)
{
    return pair_qps_up(s->pair.sender) & pair_qps_up(s->pair.receiver);
}

/* Every call of the function by either side is held until messages have gone over the other
 * connection: had this thread waited for it, it would have been for ever. */
static void reconnect_while(const char *function)
{
    struct stream lost = open_stream(0), other = open_stream(0);
    const unsigned epoch = pair_epoch(lost.pair.sender, 0);
    int held = 0, until = 0;

    assert_true(fake_verbs.hold_call(function));
    pthread_mutex_lock(&lost.pair.sender->lock);
    struct dpn_verbs *v = lost.pair.sender->state;
    dpn_qp_fail(&v->q, &v->q.qps[0], "test", "pulled", "");
    pthread_mutex_unlock(&lost.pair.sender->lock);
    WHILE_IN_TIME (pair_epoch(lost.pair.sender, 0) == epoch || !is_up(&lost)) {
        step(&lost);
        step(&other);
        if (!fake_verbs.held_calls()) {
            until = other.count + MESSAGES;
        } else if (other.count >= until) {
            fake_verbs.pass_calls();
            until = other.count + MESSAGES;
            held++;
        }
    }
    assert_true(held > 0);
    assert_true(fake_verbs.hold_call(NULL));
    finish(&lost);
    finish(&other);
}

CASE(nobody_waits_while_a_queue_pair_is_connected_again)
{
    reconnect_while("ibv_modify_qp");
}

CASE(nobody_waits_while_a_queue_pair_is_destroyed)
{
    reconnect_while("ibv_destroy_qp");
}

/* Test a request that is not done as long as the device is at work. */
static void test_while_held(struct dpn_request *req)
{
    const int64_t began_ns = dp_now_ns();
    bool done = false;

    for (int tests = 0; tests < 100;) {
        must_be_in_time(began_ns);
        const int held = fake_verbs.held_calls();
        assert_int_equal(dpn_net_test(req, &done, NULL), 0);
        assert_false(done);
        tests += held > 0;
    }
    assert_true(fake_verbs.hold_call(NULL));
}

/* The error is reported only once the device cannot write any more. */
CASE(an_error_waits_for_the_device_and_nobody_for_the_error)
{
    bool done = false;
    int err = 0;

    struct stream s = open_stream(0);
    struct dpn_request *recv = pair_receive(&s.pair, s.to, PAIR_BYTES);
    assert_true(fake_verbs.hold_call("ibv_destroy_qp"));
    const int64_t began_ns = dp_now_ns();
    pthread_mutex_lock(&s.pair.receiver->lock);
    dpn_verbs_fail(s.pair.receiver->state, DP_EIO, "a test wants it");
    pthread_mutex_unlock(&s.pair.receiver->lock);
    test_while_held(recv);
    for (; !err; must_be_in_time(began_ns)) {
        err = dpn_net_test(recv, &done, NULL);
        assert_false(done);
    }
    assert_int_equal(err, DP_EIO);
    assert_null(((struct dpn_verbs *)s.pair.receiver->state)->q.qps[0].ibv);
    pair_end(&s.pair);
}

/* ---- registration ---------------------------------------------------------------------------- */

static _Alignas(4096) char other_bytes[PAIR_BYTES];
static atomic_bool is_registered;

static void *register_slowly(void *comm)
{
    struct dpn_memory *memory = NULL;
    const struct dpn_region region = {other_bytes, PAIR_BYTES, NCCL_PTR_HOST, -1, 0};
    int err = dpn_net_register(comm, &region, &memory);

    if (!err)
        err = dpn_net_deregister(comm, memory);
    atomic_store(&is_registered, true);
    return err ? comm : NULL;
}

static void register_while(const char *function)
{
    pthread_t thread;
    void *failed;
    int until = 0;

    struct stream s = open_stream(0);
    atomic_store(&is_registered, false);
    assert_true(fake_verbs.hold_call(function));
    assert_int_equal(pthread_create(&thread, NULL, register_slowly, s.pair.receiver), 0);
    WHILE_IN_TIME (!fake_verbs.held_calls() || s.count < until) {
        if (!fake_verbs.held_calls())
            until = s.count + MESSAGES;
        step(&s);
    }
    assert_false(atomic_load(&is_registered));
    assert_true(fake_verbs.hold_call(NULL));
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_null(failed);
    finish(&s);
}

CASE(nobody_waits_for_a_registration)
{
    register_while("ibv_reg_mr");
}

CASE(nobody_waits_for_a_deregistration)
{
    register_while("ibv_dereg_mr");
}

/* ---- flushes --------------------------------------------------------------------------------- */

CASE(nobody_waits_for_the_queue_pair_that_flushes)
{
    struct dpn_request *req = NULL;
    struct dpn_net *context;
    const int size = PAIR_BYTES;
    bool done = false;

    assert_int_equal(dpn_net_init(NULL, &context), 0);
    dpn_verbs_state.ports.hcas[0].pointers |= NCCL_PTR_CUDA;
    struct pair p = pair_connect(0);
    struct dpn_memory *memory = pair_transfer(&p, NCCL_PTR_CUDA, -1);
    struct ibv_qp *loop = ((struct dpn_verbs *)p.receiver->state)->q.rails[0].loop.qp;
    assert_true(fake_verbs.fail_send(loop, 1, IBV_WC_GENERAL_ERR, FAKE_ARRIVES_NEVER));
    assert_true(fake_verbs.hold_call("ibv_modify_qp"));
    const int64_t began_ns = dp_now_ns();
    assert_int_equal(dpn_net_iflush(p.receiver, 1, (void *[]){pair_to}, &size, &memory, &req), 0);
    assert_non_null(req);
    test_while_held(req);
    while (!done) {
        must_be_in_time(began_ns);
        assert_int_equal(dpn_net_test(req, &done, NULL), 0);
    }
    pair_end(&p);
    dpn_verbs_state.ports.hcas[0].pointers = NCCL_PTR_HOST;
    dpn_net_finalize(context);
}

RUN_CASES(pair_set_up, pair_tear_down)
