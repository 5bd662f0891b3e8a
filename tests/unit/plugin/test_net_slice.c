/* SPDX-License-Identifier: Apache-2.0
 *
 * When a thread that waits gets shorter slices of the scheduler, and when it has them no more.
 */
#include "config.h"

#include "base/clock.h"
#include "cmocka_all.h"
#include "nccl-plugin/net/comm.h"
#include "nccl-plugin/options.h"
#include "nccl-plugin/net/slice.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define SHORT_NS (100 * DP_NS_PER_US)

/* What happens to a thread between two looks at it, 4 ms apart. */
struct tick {
    int64_t cpu_us;
    long slept, switched;
};
static const struct tick among_hogs = {20, 0, 2};
static const struct tick among_hogs_with_short_slices = {400, 0, 20};
static const struct tick among_pollers = {2000, 0, 400};
static const struct tick on_its_own = {4000, 0, 0};
static const struct tick in_and_out_of_sleep = {20, 1, 2};
static const struct tick standing_still = {1000, 0, 0};

enum { ENOUGH = 6, TOO_FEW = 5 }; /* of 20 ms, with the first, which only begins */

static void go_on(struct dpn_slice_sample *sample, const struct tick *tick)
{
    sample->now_ns += 4 * DP_NS_PER_MS;
    sample->cpu_ns += tick->cpu_us * DP_NS_PER_US;
    sample->slept += tick->slept;
    sample->switched += tick->switched;
}

static bool judge(struct dpn_slice_watch *watch, const struct tick *tick, int count)
{
    struct dpn_slice_sample sample = watch->last;
    bool is_short = watch->is_short;

    for (int i = 0; i < count; i++) {
        go_on(&sample, tick);
        is_short = dpn_slice_judge(watch, &sample);
    }
    return is_short;
}

CASE(beside_threads_that_compute_slices_become_short)
{
    struct dpn_slice_watch watch = {0};

    assert_false(judge(&watch, &among_hogs, TOO_FEW));
    assert_true(judge(&watch, &among_hogs, 1));
}

CASE(nothing_else_makes_them_short)
{
    const struct tick *const ticks[] = {&among_pollers, &on_its_own, &in_and_out_of_sleep,
                                        &standing_still};

    for (size_t i = 0; i < sizeof(ticks) / sizeof(ticks[0]); i++) {
        struct dpn_slice_watch watch = {0};
        assert_false(judge(&watch, ticks[i], 10 * ENOUGH));
    }
}

CASE(they_stay_short_while_the_others_are_there)
{
    struct dpn_slice_watch watch = {0};

    assert_true(judge(&watch, &among_hogs, ENOUGH));
    assert_true(judge(&watch, &among_hogs_with_short_slices, 10 * ENOUGH));
    assert_true(judge(&watch, &in_and_out_of_sleep, 10 * ENOUGH));
    assert_false(judge(&watch, &on_its_own, ENOUGH));
}

/* ---- of a thread ----------------------------------------------------------------------------- */

static void handle(struct dpn_slice_sample *sample, const struct tick *tick)
{
    for (int i = 0; i < ENOUGH; i++) {
        go_on(sample, tick);
        dpn_slice_apply(sample);
    }
}

/* cmocka's asserts are for the thread that runs a test. */
static void run_in_thread(void *(*run)(void *), void *arg)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, run, arg), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

struct seen {
    int64_t default_ns, among_hogs_ns, alone_ns;
    int policy_before, policy_after, nice_before, nice_after;
};

static int nice_here(void)
{
    return getpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid));
}

static void *go_among_hogs_and_leave(void *arg)
{
    struct seen *seen = arg;
    struct dpn_slice_sample sample = {0};

    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 3);
    seen->default_ns = dpn_slice_get_ns();
    seen->policy_before = sched_getscheduler(0);
    seen->nice_before = nice_here();
    handle(&sample, &among_hogs);
    seen->among_hogs_ns = dpn_slice_get_ns();
    seen->policy_after = sched_getscheduler(0);
    seen->nice_after = nice_here();
    handle(&sample, &on_its_own);
    seen->alone_ns = dpn_slice_get_ns();
    return NULL;
}

static void need_slices(void)
{
    if (dpn_slice_get_ns() <= SHORT_NS)
        skip_because("this kernel has no slices of a thread's own, or short ones already");
    if (!dpn_slice_set_ns(dpn_slice_get_ns()))
        skip_because("this process may not set its slices");
}

CASE(a_thread_gets_short_slices_and_its_own_again)
{
    struct seen seen;

    need_slices();
    dpn_options.slice_us = SHORT_NS / DP_NS_PER_US;
    run_in_thread(go_among_hogs_and_leave, &seen);
    assert_int_equal(seen.among_hogs_ns, SHORT_NS);
    assert_int_equal(seen.alone_ns, seen.default_ns);
    assert_int_equal(seen.policy_after, seen.policy_before);
    assert_int_equal(seen.nice_before, 3);
    assert_int_equal(seen.nice_after, 3);
}

CASE(with_the_option_at_0_it_keeps_its_own)
{
    struct seen seen;

    need_slices();
    dpn_options.slice_us = 0;
    run_in_thread(go_among_hogs_and_leave, &seen);
    assert_int_equal(seen.among_hogs_ns, seen.default_ns);
}

CASE(the_main_thread_keeps_its_own)
{
    const int64_t default_ns = dpn_slice_get_ns();
    struct dpn_slice_sample sample = {0};

    dpn_options.slice_us = SHORT_NS / DP_NS_PER_US;
    handle(&sample, &among_hogs);
    assert_int_equal(dpn_slice_get_ns(), default_ns);
}

static void *be_of_another_kind(void *arg)
{
    const struct sched_param none = {0};
    bool *has_slices = arg;

    *has_slices = !sched_setscheduler(0, SCHED_BATCH, &none) &&
                  (dpn_slice_get_ns() || dpn_slice_set_ns(SHORT_NS));
    return NULL;
}

CASE(a_thread_of_another_kind_is_left_alone)
{
    bool has_slices = true;

    run_in_thread(be_of_another_kind, &has_slices);
    assert_false(has_slices);
}
