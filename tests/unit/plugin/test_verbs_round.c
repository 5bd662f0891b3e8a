/* SPDX-License-Identifier: Apache-2.0
 *
 * test_verbs_round.c - counters of an RDMA connection wrap: generations of a receive after 15 bits,
 * epochs of a queue pair and eager messages in immediates and CTS entries after 16, control
 * messages in tags after 28, all of them and CTS entries after 32. Messages arrive once, and in
 * order, while queue pairs and the control connection fail; and a message that a receive had when
 * its generation was half way round is not taken for lost. Failures are counted only while requests
 * are open.
 */
#include "verbs_pair.h"
#include "fake_fabric.h"

#include "nccl-plugin/verbs/device.h"

enum { SHORT = 100, LONG = 20000, QPS = 2 };

static struct dpn_memory *source, *target;

static void fill(char seed)
{
    for (size_t i = 0; i < LONG; i++)
        pair_from[i] = (char)(i * 2654435761u >> 11) + seed;
    memset(pair_to, 0, LONG);
}

/* A short message that arrives before its receive, or a long one, sent twice. */
static void transfer(struct pair *p, size_t len, char seed, bool twice)
{
    fill(seed);
    struct dpn_request *recv = len > SHORT ? pair_receive(p, target, len) : NULL;
    for (unsigned i = 0; i < QPS && twice; i++) {
        struct ibv_qp *qp = pair_qp(p->sender, i);
        if (qp)
            assert_true(fake_verbs.fail_send(qp, 1, IBV_WC_SUCCESS, FAKE_ARRIVES_TWICE));
    }
    struct dpn_request *send = pair_send(p, source, pair_from, len);
    if (recv) {
        pair_finish(send, recv);
    } else {
        pair_finish(send, NULL);
        pair_finish(NULL, pair_receive(p, target, len));
    }
    assert_memory_equal(pair_from, pair_to, len);
}

static void wait_for_qps(struct pair *p, unsigned epoch)
{
    const int64_t began_ns = dp_now_ns();

    do {
        must_be_in_time(began_ns);
        transfer(p, SHORT, 1, false);
        transfer(p, LONG, 2, false);
    } while (pair_qps_up(p->sender) != 3 || pair_qps_up(p->receiver) != 3 ||
             pair_epoch(p->sender, 0) != (uint16_t)epoch || pair_epoch(p->sender, 1) != (uint16_t)epoch);
}

static void wrap(uint32_t end, bool loses_messages)
{
    const uint32_t start = end - 3;

    dpn_verbs_state.first_count = start;
    struct pair p = pair_connect(0);
    source = pair_reg(p.sender, pair_from, NCCL_PTR_HOST);
    target = pair_reg(p.receiver, pair_to, NCCL_PTR_HOST);
    for (char i = 0; i < 12; i++) {
        transfer(&p, SHORT, i, i % 3 != 1);
        transfer(&p, LONG, i, i % 3 != 2);
    }
    for (unsigned i = 0; i < 4; i++) {
        wait_for_qps(&p, start + 1 + i);
        pair_lose(&p, i % QPS);
        transfer(&p, SHORT, 3, false);
        if (i == 1 && loses_messages)
            pair_reset(p.receiver);
        pair_lose(&p, 1 - i % QPS);
        transfer(&p, LONG, 4, false);
        if (i == 2 && loses_messages)
            pair_reset(p.sender);
    }
    wait_for_qps(&p, start + 5);
    pair_end(&p);
    dpn_verbs_state.first_count = 0;
}

CASE(uses_of_a_receive_go_round)
{
    wrap(DPN_GENERATIONS, false);
}

CASE(epochs_and_eager_messages_wrap)
{
    wrap(1u << 16, false);
}

CASE(the_numbers_in_tags_go_round)
{
    wrap(1u << 28, true);
}

CASE(numbers_become_negative)
{
    wrap(1u << 31, false);
}

CASE(all_numbers_go_round)
{
    wrap(0, true);
}

/* ---- wrapped half way ------------------------------------------------------------------------ */

/* A receive with two buffers. Returns the queue pair of the second one's message. */
static unsigned take_group(struct pair *p)
{
    struct dpn_request *recv = NULL, *second = NULL;

    assert_int_equal(dpn_net_irecv(p->receiver, 2, (void *[]){pair_to, pair_to + LONG},
                                   (size_t[]){LONG, LONG}, (int[]){7, 8},
                                   (struct dpn_memory *[]){target, target}, false, &recv), 0);
    struct dpn_request *first = pair_send(p, source, pair_from, LONG);
    while (!second)
        assert_int_equal(dpn_net_isend(p->sender, pair_from, LONG, 8, source, &second), 0);
    pair_finish(first, recv);
    pair_finish(second, NULL);
    const struct dpn_verbs *v = p->sender->state;
    assert_true(v->send.targets[0][1].is_done);
    return v->send.targets[0][1].qps[0];
}

static unsigned take_one(struct pair *p)
{
    transfer(p, LONG, 1, false);
    const struct dpn_verbs *v = p->sender->state;
    assert_true(v->send.targets[0][0].is_done);
    return v->send.targets[0][0].qps[0];
}

/* Without a message. */
static void look(struct dpn_comm *comm)
{
    struct dpn_verbs *v = comm->state;

    pthread_mutex_lock(&comm->lock);
    dpn_verbs_progress_all(v);
    assert_int_equal(v->q.error, 0);
    pthread_mutex_unlock(&comm->lock);
}

/* The receive is used again and again, then the queue pair of its message fails. */
static void use_and_lose(unsigned (*take)(struct pair *), size_t len)
{
    ENDED_BY(pair_end) struct pair p = pair_connect(0);

    source = pair_reg(p.sender, pair_from, NCCL_PTR_HOST);
    target = pair_reg(p.receiver, pair_to, NCCL_PTR_HOST);
    pair_transfer_until(&p, 3);
    const unsigned qp = take(&p);
    for (unsigned i = 0; i < DPN_GENERATIONS / 2 + 10; i++) {
        struct dpn_request *recv = len > SHORT ? pair_receive(&p, target, len) : NULL;
        pair_finish(pair_send(&p, source, pair_from, len), recv);
        if (!recv)
            pair_finish(NULL, pair_receive(&p, target, len));
    }
    const unsigned epoch = pair_epoch(p.sender, qp);
    const int64_t lost_ns = dp_now_ns();
    for (pair_lose(&p, qp); pair_epoch(p.sender, qp) == epoch; must_be_in_time(lost_ns)) {
        look(p.sender);
        look(p.receiver);
    }
    pair_transfer_until(&p, 3);
}

CASE(what_a_group_had_long_ago_is_not_missed)
{
    use_and_lose(take_group, LONG / 20);
}

CASE(what_a_receive_had_before_short_ones_is_not_missed)
{
    use_and_lose(take_one, SHORT);
}

/* ---- consecutive failures -------------------------------------------------------------------- */

static void let_it_try_again(struct dpn_comm *comm, unsigned qp)
{
    struct dpn_verbs *v = comm->state;

    pthread_mutex_lock(&comm->lock);
    if (v->q.qps[qp].retry_ns)
        v->q.qps[qp].retry_ns = 1;
    pthread_mutex_unlock(&comm->lock);
}

CASE(a_link_may_flap_while_nothing_is_to_be_done)
{
    ENDED_BY(pair_end) struct pair p = pair_connect(0);
    pair_transfer_until(&p, 3);
    for (int i = 0; i < 50; i++) {
        const int64_t began_ns = dp_now_ns();
        pair_lose(&p, 0);
        do {
            must_be_in_time(began_ns);
            let_it_try_again(p.sender, 0);
            look(p.sender);
            look(p.receiver);
        } while (pair_qps_up(p.sender) != 3 || pair_qps_up(p.receiver) != 3);
    }
    pair_transfer(&p, NCCL_PTR_HOST, -1);
}

static int set_up(void **state)
{
    setenv("NCCL_IB_QPS_PER_CONNECTION", "2", 1);
    return pair_set_up(state);
}

int main(void)
{
    return run_cases(set_up, pair_tear_down);
}
