/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fake_ibverbs_faults.c - the simulated libibverbs fails at random, reproducibly by its seed,
 * and never in a way that hardware does not.
 *
 * Each run is a process: a message is striped over several queue pairs, again and again. It leaves
 * the result of every work request, by queue pair.
 */
#include "cmocka_all.h"
#include "unit/plugin/fake_fabric.h"

enum { PAIRS = 4, ROUNDS = 40, SHARE = 256 };

struct results {
    int done[PAIRS];
    unsigned char status[PAIRS][ROUNDS];
    bool any_order; /* a queue pair was overtaken by another that was given its share later */
};

static struct end from[PAIRS], to[PAIRS];
static struct card cards[PAIRS];

static void check(bool so, const char *what)
{
    if (so)
        return;
    fprintf(stderr, "not so: %s\n", what);
    _exit(99);
}

static void connect_pairs(void)
{
    for (int i = 0; i < PAIRS; i++) {
        end_open(&from[i], i % 2, 3);
        end_open(&to[i], i % 2, 3);
        ends_connect(&from[i], &to[i]);
        cards[i] = end_card(&to[i]);
    }
}

static void post_share(int pair, int round)
{
    struct request r;
    const size_t at = (size_t)round * SHARE;

    memset(from[pair].data + at, round + 1, SHARE);
    request_init(&r, &from[pair], IBV_WR_RDMA_WRITE, at, SHARE, &cards[pair]);
    r.wr.wr_id = (uint64_t)round;
    check(!end_post(&from[pair], &r), "a post is taken");
}

/* What is reported as done is there. */
static void take(struct results *out, int pair, const struct ibv_wc *wc)
{
    check(wc->wr_id == (uint64_t)out->done[pair], "a queue pair completes in order");
    out->status[pair][out->done[pair]++] = (unsigned char)wc->status;
    const char *bytes = to[pair].data + wc->wr_id * SHARE;
    if (wc->status != IBV_WC_SUCCESS)
        return;
    for (int i = 0; i < SHARE; i++)
        check(bytes[i] == (char)(wc->wr_id + 1), "what is done has arrived");
}

static void collect(struct results *out)
{
    int left = PAIRS * ROUNDS;

    while (left)
        for (int i = 0; i < PAIRS; i++) {
            struct ibv_wc wc;
            const int n = ibv_poll_cq(from[i].cq, 1, &wc);
            check(n >= 0, "a poll succeeds");
            if (n)
                take(out, i, &wc);
            left -= n;
            for (int k = 0; k < i; k++)
                out->any_order |= out->done[k] < out->done[i];
        }
}

static void run(int results)
{
    struct results out = {.any_order = false};

    alarm(60);
    fabric_begin();
    connect_pairs();
    for (int round = 0; round < ROUNDS; round++)
        for (int pair = 0; pair < PAIRS; pair++)
            post_share(pair, round);
    collect(&out);
    for (int i = 0; i < PAIRS; i++) {
        end_close(&from[i]);
        end_close(&to[i]);
    }
    check(!fake_verbs.alive(), "all is given back");
    fabric_end();
    check(write(results, &out, sizeof(out)) == sizeof(out), "the results are told");
}

static struct results run_with(const char *faults)
{
    struct results out = {.any_order = false};
    int ends[2], status;

    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (!child) {
        setenv("FAKE_VERBS_FAULTS", faults, 1);
        setenv("FAKE_VERBS_RETRY_MS", "5", 1);
        run(ends[1]);
        _exit(0);
    }
    close(ends[1]);
    const ssize_t n = read(ends[0], &out, sizeof(out));
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(n, sizeof(out));
    return out;
}

static int count(const struct results *r, enum ibv_wc_status status)
{
    int n = 0;

    for (int i = 0; i < PAIRS; i++)
        for (int k = 0; k < ROUNDS; k++)
            n += r->status[i][k] == status;
    return n;
}

CASE(without_faults_all_succeeds)
{
    const struct results r = run_with("");

    assert_int_equal(count(&r, IBV_WC_SUCCESS), PAIRS * ROUNDS);
}

CASE(queue_pairs_overtake_each_other)
{
    const struct results r = run_with("seed=1 reorder=300 ack=300 short=300");

    assert_int_equal(count(&r, IBV_WC_SUCCESS), PAIRS * ROUNDS);
    assert_true(r.any_order);
}

CASE(after_an_error_all_is_flushed)
{
    const struct results r = run_with("seed=3 error=50");
    int failed = 0;

    for (int i = 0; i < PAIRS; i++) {
        int k = 0;
        while (k < ROUNDS && r.status[i][k] == IBV_WC_SUCCESS)
            k++;
        failed += k < ROUNDS;
        for (k++; k < ROUNDS; k++)
            assert_int_equal(r.status[i][k], IBV_WC_WR_FLUSH_ERR);
    }
    assert_true(failed > 0);
}

CASE(the_same_seed_gives_the_same_results)
{
    int differ = 0;

    for (int seed = 0; seed < 5; seed++) {
        char faults[80];
        snprintf(faults, sizeof(faults), "seed=%d reorder=100 ack=100 error=20 qp=5", seed);
        const struct results once = run_with(faults), twice = run_with(faults);
        assert_memory_equal(once.status, twice.status, sizeof(once.status));
        const struct results other = run_with("seed=1000 error=20 qp=5");
        differ += memcmp(once.status, other.status, sizeof(once.status)) != 0;
    }
    assert_true(differ > 0);
}

CASE(at_most_so_many_grave_faults)
{
    const struct results r = run_with("seed=5 error=1000 most=1");

    int broken = 0;
    for (int i = 0; i < PAIRS; i++)
        broken += r.status[i][ROUNDS - 1] != IBV_WC_SUCCESS;
    assert_int_equal(broken, 1);
}

CASE(a_port_that_goes_down_comes_back)
{
    const struct results r = run_with("seed=7 port=20 port_ms=1 most=2");

    assert_int_equal(count(&r, IBV_WC_SUCCESS) + count(&r, IBV_WC_RETRY_EXC_ERR) +
                         count(&r, IBV_WC_WR_FLUSH_ERR),
                     PAIRS * ROUNDS);
}

CASE(a_device_dies)
{
    const struct results r = run_with("seed=7 device=20 most=1");

    assert_true(count(&r, IBV_WC_WR_FLUSH_ERR) > 0);
    assert_true(count(&r, IBV_WC_SUCCESS) > 0);
}

/* The registrations of a run fail, until one does not. */
CASE(registrations_fail_by_chance)
{
    int status;

    const pid_t child = fork();
    if (!child) {
        struct end e;
        int failures = 0;
        setenv("FAKE_VERBS_FAULTS", "seed=2 reg=300", 1);
        fabric_begin();
        end_open(&e, 0, 3);
        for (int i = 0; i < 50; i++) {
            struct ibv_mr *mr = ibv_reg_mr(e.pd, e.data, 100, 0);
            failures += !mr && (errno == ENOMEM || errno == EINVAL);
            if (mr)
                ibv_dereg_mr(mr);
        }
        end_close(&e);
        fabric_end();
        _exit(failures > 0 && failures < 50 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}
