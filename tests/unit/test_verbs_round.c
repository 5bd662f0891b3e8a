/* SPDX-License-Identifier: Apache-2.0
 *
 * test_verbs_round.c - what a connection over RDMA counts goes round: uses of a receive after 15 bits,
 * lives of a lane and short messages in immediates and lines after 16, words in tags after 28, all of
 * them and lines after 32. Messages arrive once, and in order, while lanes and the control connection
 * are lost.
 */
#include "unit/verbs_pair.h"
#include "fake_fabric.h"

#include "nccl-plugin/verbs/verbs_state.h"

#include <stdlib.h>
#include <string.h>

enum { SHORT = 100, LONG = 20000, LANES = 2 };

static struct dpn_memory *source, *target;

static void fill(char seed)
{
    for (size_t i = 0; i < LONG; i++)
        pair_from[i] = (char)(i * 2654435761u >> 11) + seed;
    memset(pair_to, 0, LONG);
}

/* A short message that comes before its receive, or a long one, which comes twice. */
static void transfer(struct pair *p, size_t len, char seed, bool twice)
{
    fill(seed);
    struct dpn_request *recv = len > SHORT ? pair_receive(p, target, len) : NULL;
    for (unsigned i = 0; i < LANES && twice; i++) {
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

static void wait_for_lanes(struct pair *p, unsigned epoch)
{
    const int64_t began_ns = dp_now_ns();

    do {
        must_be_in_time(began_ns);
        transfer(p, SHORT, 1, false);
        transfer(p, LONG, 2, false);
    } while (pair_lanes_up(p->sender) != 3 || pair_lanes_up(p->receiver) != 3 ||
             pair_epoch(p->sender, 0) != (uint16_t)epoch || pair_epoch(p->sender, 1) != (uint16_t)epoch);
}

static void go_round(uint32_t end, bool loses_words)
{
    const uint32_t start = end - 3;

    dpn_verbs_state.count_from = start;
    struct pair p = pair_connect(0);
    source = pair_reg(p.sender, pair_from, NCCL_PTR_HOST);
    target = pair_reg(p.receiver, pair_to, NCCL_PTR_HOST);
    for (char i = 0; i < 12; i++) {
        transfer(&p, SHORT, i, i % 3 != 1);
        transfer(&p, LONG, i, i % 3 != 2);
    }
    for (unsigned i = 0; i < 4; i++) {
        wait_for_lanes(&p, start + 1 + i);
        pair_lose(&p, i % LANES);
        transfer(&p, SHORT, 3, false);
        if (i == 1 && loses_words)
            pair_reset(p.receiver);
        pair_lose(&p, 1 - i % LANES);
        transfer(&p, LONG, 4, false);
        if (i == 2 && loses_words)
            pair_reset(p.sender);
    }
    wait_for_lanes(&p, start + 5);
    pair_end(&p);
    dpn_verbs_state.count_from = 0;
}

static void uses_of_a_receive_go_round(void **state)
{
    (void)state;
    go_round(DPN_GENERATIONS, false);
}

static void lives_and_short_messages_go_round(void **state)
{
    (void)state;
    go_round(1u << 16, false);
}

static void the_numbers_in_tags_go_round(void **state)
{
    (void)state;
    go_round(1u << 28, true);
}

static void numbers_become_negative(void **state)
{
    (void)state;
    go_round(1u << 31, false);
}

static void all_numbers_go_round(void **state)
{
    (void)state;
    go_round(0, true);
}

static int set_up(void **state)
{
    setenv("NCCL_IB_QPS_PER_CONNECTION", "2", 1);
    return pair_set_up(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uses_of_a_receive_go_round),
        cmocka_unit_test(lives_and_short_messages_go_round),
        cmocka_unit_test(the_numbers_in_tags_go_round),
        cmocka_unit_test(numbers_become_negative),
        cmocka_unit_test(all_numbers_go_round),
    };
    return cmocka_run_group_tests(tests, set_up, pair_tear_down);
}
