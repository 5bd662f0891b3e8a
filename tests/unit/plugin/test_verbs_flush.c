/* SPDX-License-Identifier: Apache-2.0
 *
 * test_verbs_flush.c - data for a GPU is flushed by the devices that have written it and by no
 * others, and flushes and copies survive a queue pair or a device that fails meanwhile.
 */
#include "verbs_pair.h"
#include "fake_fabric.h"

#include "nccl-plugin/verbs/device.h"

/* Messages to host memory until both sides use these queue pairs, a bit mask. */
static void transfer_until(struct pair *p, unsigned qps)
{
    WHILE_IN_TIME (pair_qps_up(p->sender) != qps || pair_qps_up(p->receiver) != qps)
        pair_transfer(p, NCCL_PTR_HOST, -1);
}

/* A connection over fake0 and fake1, which access GPU memory and are fused in the context. */
static struct pair connect_over_both(struct dpn_net **context)
{
    assert_int_equal(dpn_net_init(NULL, context), 0);
    for (int i = 0; i < dpn_verbs_state.ports.hca_count; i++)
        dpn_verbs_state.ports.hcas[i].pointers |= NCCL_PTR_CUDA;
    struct pair p = pair_connect(pair_fuse_both());
    transfer_until(&p, 3);
    return p;
}

static void end(struct pair *p, struct dpn_net *context)
{
    pair_end(p);
    dpn_net_finalize(context);
}

struct loop {
    uint32_t written, flushed;
    uint16_t epoch;
    struct ibv_qp *qp;
};

/* Under the lock: the watchdog may poll the connection meanwhile. */
static struct loop loop_of(struct pair *p, int rail)
{
    pthread_mutex_lock(&p->receiver->lock);
    const struct dpn_loop *l = &((struct dpn_verbs *)p->receiver->state)->q.rails[rail].loop;
    const struct loop loop = {l->written, l->flushed, l->epoch, l->qp};
    pthread_mutex_unlock(&p->receiver->lock);
    return loop;
}

static int unflushed(struct pair *p, int rail)
{
    const struct loop loop = loop_of(p, rail);

    return (int)(loop.written - loop.flushed);
}

static struct dpn_request *flush(struct pair *p, struct dpn_memory *memory)
{
    struct dpn_request *req = NULL;
    const int size = PAIR_BYTES;

    assert_int_equal(dpn_net_iflush(p->receiver, 1, (void *[]){pair_to}, &size, &memory, &req), 0);
    return req;
}

static void everything_must_be_flushed(struct pair *p)
{
    for (int r = 0; r < 2; r++)
        assert_int_equal(unflushed(p, r), 0);
}

/* To the GPU, of a length that takes one rail. */
static struct dpn_memory *transfer_one_stripe(struct pair *p)
{
    struct dpn_memory *source = pair_reg(p->sender, pair_from, NCCL_PTR_HOST);
    struct dpn_memory *target = pair_reg(p->receiver, pair_to, NCCL_PTR_CUDA);
    struct dpn_request *recv = pair_receive(p, target, 20000);

    pair_finish(pair_send(p, source, pair_from, 20000), recv);
    assert_memory_equal(pair_from, pair_to, 20000);
    return target;
}

/* ---- which rails ------------------------------------------------------------------------------- */

CASE(only_rails_that_have_written_are_read_over)
{
    struct dpn_net *context;

    struct pair p = connect_over_both(&context);
    struct dpn_memory *memory = pair_transfer(&p, NCCL_PTR_CUDA, -1);
    pair_finish(flush(&p, memory), NULL);
    everything_must_be_flushed(&p);
    assert_null(flush(&p, memory)); /* nothing has arrived since */
    memory = transfer_one_stripe(&p);
    const bool by_first = unflushed(&p, 0) > 0;
    assert_int_equal(unflushed(&p, by_first), 0);
    struct dpn_request *req = flush(&p, memory);
    assert_non_null(req);
    assert_int_equal(((struct dpn_flush *)req)->rails, by_first ? 1 : 2);
    pair_finish(req, NULL);
    end(&p, context);
}

/* Two at once: the second may not be done before the read of the first has completed. */
CASE(a_flush_waits_for_the_read_of_another)
{
    struct dpn_net *context;

    struct pair p = connect_over_both(&context);
    struct dpn_memory *memory = pair_transfer(&p, NCCL_PTR_CUDA, -1);
    assert_true(fake_verbs.hold(true));
    struct dpn_request *first = flush(&p, memory), *second = flush(&p, memory);
    assert_non_null(second);
    assert_true(fake_verbs.hold(false));
    pair_finish(first, second);
    end(&p, context);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* As an event does; only a test can undo it. */
static void set_dead(struct pair *p, int rail, bool dead)
{
    const struct dpn_verbs *v = p->receiver->state;

    atomic_store(&v->q.rails[rail].port->hca->is_dead, dead);
}

CASE(a_dead_device_is_not_asked_to_flush)
{
    struct dpn_net *context;

    struct pair p = connect_over_both(&context);
    pair_finish(flush(&p, pair_transfer(&p, NCCL_PTR_CUDA, -1)), NULL);
    set_dead(&p, 1, true);
    transfer_until(&p, 1);
    for (int i = 0; i < 20; i++) {
        struct dpn_request *req = flush(&p, pair_transfer(&p, NCCL_PTR_CUDA, -1));
        assert_non_null(req);
        pair_finish(req, NULL);
    }
    set_dead(&p, 1, false);
    end(&p, context);
}

CASE(a_flush_goes_on_over_a_new_queue_pair)
{
    struct dpn_net *context;

    struct pair p = connect_over_both(&context);
    for (int i = 0; i < 6; i++) {
        struct dpn_memory *memory = pair_transfer(&p, NCCL_PTR_CUDA, -1);
        const uint16_t epoch = loop_of(&p, i % 2).epoch;
        assert_true(fake_verbs.fail_send(loop_of(&p, i % 2).qp, 1, IBV_WC_RETRY_EXC_ERR,
                                         FAKE_ARRIVES_NEVER));
        struct dpn_request *one = flush(&p, memory), *two = flush(&p, memory);
        pair_finish(one, two);
        assert_int_equal(loop_of(&p, i % 2).epoch, epoch + 1);
        everything_must_be_flushed(&p);
    }
    end(&p, context);
}

/* No other device can tell whether its writes have arrived. */
CASE(a_device_that_dies_before_its_flush_ends_the_connection)
{
    struct dpn_net *context;
    bool done = false;
    int err = 0, size;

    struct pair p = connect_over_both(&context);
    struct dpn_memory *memory = pair_transfer(&p, NCCL_PTR_CUDA, -1);
    assert_true(fake_verbs.hold(true));
    struct dpn_request *req = flush(&p, memory);
    assert_non_null(req);
    set_dead(&p, 1, true);
    WHILE_IN_TIME (!err) {
        err = dpn_net_test(req, &done, &size);
        assert_false(done);
    }
    expect_error(err, DP_EIO, "fake1 has failed, and with it what it wrote to the GPU");
    assert_true(fake_verbs.hold(false));
    set_dead(&p, 1, false);
    end(&p, context);
}

/* ---- copies ------------------------------------------------------------------------------------ */

/* A short message that arrives before its receive. */
static void copy_short(struct pair *p, size_t at)
{
    struct dpn_memory *source = pair_reg(p->sender, pair_from, NCCL_PTR_HOST);
    struct dpn_memory *target = pair_reg(p->receiver, pair_to, NCCL_PTR_CUDA);

    memset(pair_to, 0, 1000);
    pair_finish(pair_send(p, source, pair_from + at, 1000), NULL);
    struct dpn_request *recv = pair_receive(p, target, 1000);
    pair_finish(NULL, recv);
    assert_memory_equal(pair_from + at, pair_to, 1000);
    pair_finish(flush(p, target), NULL);
    everything_must_be_flushed(p);
}

CASE(a_copy_goes_on_by_another_device)
{
    struct dpn_net *context;

    struct pair p = connect_over_both(&context);
    for (size_t i = 0; i < 5; i++) {
        assert_true(fake_verbs.fail_send(loop_of(&p, 0).qp, 1, IBV_WC_RETRY_EXC_ERR,
                                         FAKE_ARRIVES_NEVER));
        copy_short(&p, 1000 * i);
        pair_finish(flush(&p, pair_transfer(&p, NCCL_PTR_CUDA, -1)), NULL);
    }
    set_dead(&p, 0, true);
    copy_short(&p, 0);
    set_dead(&p, 0, false);
    end(&p, context);
}

/* Its copy may still be carried out, so another copy may not complete the receive. */
CASE(a_loop_that_cannot_be_destroyed_ends_the_connection)
{
    const int64_t began_ns = dp_now_ns();
    struct dpn_net *context;
    bool done = false;
    int err = 0, size;

    struct pair p = connect_over_both(&context);
    struct dpn_memory *source = pair_reg(p.sender, pair_from, NCCL_PTR_HOST);
    struct dpn_memory *target = pair_reg(p.receiver, pair_to, NCCL_PTR_CUDA);
    assert_true(
        fake_verbs.fail_send(loop_of(&p, 0).qp, 1, IBV_WC_RETRY_EXC_ERR, FAKE_ARRIVES_NEVER));
    assert_true(fake_verbs.fail_call("ibv_destroy_qp", 1, EBUSY));
    pair_finish(pair_send(&p, source, pair_from, 1000), NULL);
    struct dpn_request *recv = pair_receive(&p, target, 1000);
    for (; !err; must_be_in_time(began_ns)) {
        err = dpn_net_test(recv, &done, &size);
        assert_false(done);
    }
    assert_int_equal(err, DP_EIO);
    assert_non_null(
        strstr(dp_last_error(), "fake0: the loopback queue pair, which had failed (copy to"));
    end(&p, context);
}

CASE(a_copy_waits_for_the_only_device)
{
    struct dpn_net *context;

    assert_int_equal(dpn_net_init(NULL, &context), 0);
    for (int i = 0; i < dpn_verbs_state.ports.hca_count; i++)
        dpn_verbs_state.ports.hcas[i].pointers |= NCCL_PTR_CUDA;
    struct pair p = pair_connect(0);
    pair_transfer(&p, NCCL_PTR_HOST, -1);
    for (size_t i = 0; i < 5; i++) {
        assert_true(fake_verbs.fail_send(loop_of(&p, 0).qp, 1, IBV_WC_RETRY_EXC_ERR,
                                         FAKE_ARRIVES_NEVER));
        copy_short(&p, 1000 * i);
    }
    end(&p, context);
}

/* An acknowledged write may still be on its way to the memory. */
CASE(a_copy_is_done_only_when_it_is_placed)
{
    struct dpn_net *context;

    assert_int_equal(dpn_net_init(NULL, &context), 0);
    for (int i = 0; i < dpn_verbs_state.ports.hca_count; i++)
        dpn_verbs_state.ports.hcas[i].pointers |= NCCL_PTR_CUDA;
    struct pair p = pair_connect(0);
    struct dpn_memory *source = pair_reg(p.sender, pair_from, NCCL_PTR_HOST);
    struct dpn_memory *target = pair_reg(p.receiver, pair_to, NCCL_PTR_CUDA);
    for (size_t i = 0; i < 100; i++) {
        pair_from[i] = (char)(i + 1);
        pair_to[i] = 0;
    }
    assert_true(fake_verbs.fail_send(loop_of(&p, 0).qp, 1, IBV_WC_SUCCESS, FAKE_ARRIVES_WITH_READ));
    pair_finish(pair_send(&p, source, pair_from, 100), NULL);
    pair_finish(NULL, pair_receive(&p, target, 100));
    assert_memory_equal(pair_from, pair_to, 100);
    assert_null(flush(&p, target)); /* the read has flushed it */
    end(&p, context);
}

RUN_CASES(pair_set_up, pair_tear_down)
