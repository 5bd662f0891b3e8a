/* SPDX-License-Identifier: Apache-2.0
 *
 * test_verbs_stall.c - neither side waits for ever: what a device has acknowledged and not
 * delivered is detected, by the sender of a message and by the writer of its CTS entry; and a side
 * whose connection ends reports the reason to its peer.
 */
#include "verbs_pair.h"
#include "fake_fabric.h"
#include "fork_at_rest.h"

#include "base/fail.h"

#include <time.h>

enum { RETRY_MS = 50 /* of the stand-in for a device */ };
enum { LEN = 20000 /* such a message waits for its CTS entry, which is not delayed */ };

struct both {
    struct pair pair;
    struct dpn_memory *from, *to;
    struct dpn_request *recv, *send;
};

/* For what follows. The watchdog, which reads it, holds the lock of the connection that it looks
 * at. */
static void set_timeout(const struct both *b, int timeout_s)
{
    pthread_mutex_lock(&b->pair.sender->lock);
    pthread_mutex_lock(&b->pair.receiver->lock);
    dpn_options.timeout_s = timeout_s;
    pthread_mutex_unlock(&b->pair.receiver->lock);
    pthread_mutex_unlock(&b->pair.sender->lock);
}

static struct both connect_both(int timeout_s)
{
    struct both b = {.pair = pair_connect(0)};

    b.from = pair_reg(b.pair.sender, pair_from, NCCL_PTR_HOST);
    b.to = pair_reg(b.pair.receiver, pair_to, NCCL_PTR_HOST);
    set_timeout(&b, timeout_s);
    return b;
}

static void end(struct both *b)
{
    set_timeout(b, 120);
    pair_end(&b->pair);
}

/* The device acknowledges the next work request and never carries it out. */
static void swallow_next(struct dpn_comm *comm)
{
    assert_true(fake_verbs.fail_send(pair_qp(comm, 0), 1, IBV_WC_SUCCESS, FAKE_ARRIVES_WITH_READ));
}

static int go_on_sending(struct both *b)
{
    bool done = false;
    int size;

    return b->send ? dpn_net_test(b->send, &done, &size)
                   : dpn_net_isend(b->pair.sender, pair_from, LEN, 7, b->from, &b->send);
}

/* Until the receive has failed, and the sender, if it is tested: why on both sides. */
static void both_must_fail(struct both *b, bool has_sent, int sender, const char *sender_why,
                           int receiver, const char *receiver_why)
{
    int errs[2] = {0}, size;
    bool done = false;

    WHILE_IN_TIME (!errs[0] || !errs[1]) {
        if (has_sent && !errs[0]) /* it has no request left: the watchdog polls */
            errs[0] = dpn_net_isend(b->pair.sender, pair_from, 9000, 7, b->from, &b->send);
        else if (!errs[0])
            errs[0] = go_on_sending(b);
        if (errs[0] && sender_why) {
            assert_int_equal(errs[0], sender);
            assert_non_null(strstr(dp_last_error(), sender_why));
            sender_why = NULL;
        }
        if (!errs[1])
            errs[1] = dpn_net_test(b->recv, &done, &size);
        assert_false(done);
        if (errs[1] && receiver_why) {
            assert_int_equal(errs[1], receiver);
            assert_non_null(strstr(dp_last_error(), receiver_why));
            receiver_why = NULL;
        }
    }
}

CASE(a_clear_to_send_that_never_comes_ends_the_connection)
{
    struct both b = connect_both(1);
    swallow_next(b.pair.receiver);
    b.recv = pair_receive(&b.pair, b.to, LEN);
    both_must_fail(&b, false, DP_ETIMEDOUT,
                   "the receiver has cleared more to send than has arrived here", DP_ECOMM,
                   "the peer has ended the connection: nothing has moved for 1 s");
    end(&b);
}

CASE(a_message_that_never_comes_ends_the_connection)
{
    struct both b = connect_both(1);
    b.recv = pair_receive(&b.pair, b.to, LEN);
    swallow_next(b.pair.sender);
    WHILE_IN_TIME (!b.send)
        assert_int_equal(go_on_sending(&b), 0);
    pair_finish(b.send, NULL);
    both_must_fail(&b, true, DP_ETIMEDOUT, "the receiver waits for a message that was sent",
                   DP_ECOMM, "the peer has ended the connection: nothing has moved for 1 s");
    end(&b);
}

/* A receiver may wait without limit. */
CASE(a_receive_that_nothing_is_sent_to_waits)
{
    const int64_t began_ns = dp_now_ns();
    bool done = false;
    int size;

    struct both b = connect_both(1);
    b.recv = pair_receive(&b.pair, b.to, LEN);
    while (dp_now_ns() - began_ns < 5 * DP_NS_PER_S / 2) {
        assert_int_equal(dpn_net_test(b.recv, &done, &size), 0);
        assert_false(done);
    }
    pair_finish(pair_send(&b.pair, b.from, pair_from, LEN), b.recv);
    end(&b);
}

static char log_text[1 << 14];

static void keep_log(void *none, enum dp_log_level level, const char *line)
{
    snprintf(log_text + strlen(log_text), sizeof(log_text) - strlen(log_text), "%s\n", line);
}

/* Begin to send as soon as the receiver has cleared it; the devices do no more than that. */
static void send_and_hold(struct both *b)
{
    const int64_t began_ns = dp_now_ns();

    for (;;) {
        assert_true(fake_verbs.hold(true));
        assert_int_equal(go_on_sending(b), 0);
        if (b->send)
            return;
        assert_true(fake_verbs.hold(false));
        must_be_in_time(began_ns);
    }
}

/* And neither log has to do with links: a write on its way fails as if the peer's port did not
 * answer. */
CASE(memory_that_is_deregistered_is_reported_to_the_peer)
{
    for (int on_its_way = 0; on_its_way < 2; on_its_way++) {
        struct both b = connect_both(120);
        int err = 0;
        b.recv = pair_receive(&b.pair, b.to, LEN);
        if (on_its_way)
            send_and_hold(&b);
        log_text[0] = '\0';
        dp_log_set(keep_log, NULL, DP_LOG_INFO);
        assert_int_equal(dpn_net_deregister(b.pair.receiver, b.to), 0);
        if (on_its_way) {
            assert_true(fake_verbs.hold(false));
            nanosleep(&(struct timespec){.tv_nsec = 3 * RETRY_MS * 1000000l},
                      NULL); /* so it has failed */
        }
        WHILE_IN_TIME (!err)
            err = go_on_sending(&b);
        dp_log_set(NULL, NULL, DP_LOG_DEFAULT);
        assert_int_equal(err, DP_ECOMM);
        assert_non_null(
            strstr(dp_last_error(), "the peer has ended the connection: memory was deregistered"));
        if (strstr(log_text, "switch"))
            fail_msg("the log is about a link: %s", log_text);
        end(&b);
    }
}

/* The adapter knows only the parent's memory. */
CASE(a_child_cannot_use_its_parents_connection)
{
    const size_t len = LEN;
    int status;

    struct both b = connect_both(120);
    fflush(NULL);
    const pid_t child = fork_at_rest();
    if (!child) {
        alarm(60);
        const int err = dpn_net_isend(b.pair.sender, pair_from, LEN, 7, b.from, &b.send);
        const bool is_named = strstr(dp_last_error(), "forked after the connection was made");
        _exit(err != DP_ECOMM || !is_named ||
              dpn_net_irecv(b.pair.receiver, 1, (void *[]){pair_to}, &len, (int[]){7}, &b.to, false,
                            &b.recv) != DP_ECOMM);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    b.recv = pair_receive(&b.pair, b.to, LEN);
    pair_finish(pair_send(&b.pair, b.from, pair_from, LEN), b.recv);
    end(&b);
}

RUN_CASES(pair_set_up, pair_tear_down)
