/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: RUSAGE_THREAD */

#include "nccl-plugin/net/slice.h"

#include "base/clock.h"
#include "base/fail.h"
#include "nccl-plugin/net/comm.h"
#include "nccl-plugin/options.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- whether ------------------------------------------------------------------------------- */

#define JUDGED_NS (20 * DP_NS_PER_MS)
/* Until a thread that gave its core up has it back. Beside others that compute 1.5 ms were
 * measured, 0.15 to 1 ms with short slices, up to 0.2 ms where many only poll. */
#define LONG_NS  (500 * DP_NS_PER_US)
#define SHORT_NS (50 * DP_NS_PER_US)

/* Without a switch it was the whole machine that stood still. */
static bool is_held_up(const struct dpn_slice_watch *w)
{
    const int64_t a_switch_ns = w->is_short ? SHORT_NS : LONG_NS;
    const int64_t share = w->is_short ? 16 : 4;

    return w->switched && w->away_ns >= w->switched * a_switch_ns &&
           w->away_ns * share >= w->polled_ns;
}

bool dpn_slice_judge(struct dpn_slice_watch *w, const struct dpn_slice_sample *s)
{
    const int64_t ns = s->now_ns - w->last.now_ns;

    if (w->last.now_ns && s->slept == w->last.slept) {
        w->polled_ns += ns;
        w->away_ns += ns - (s->cpu_ns - w->last.cpu_ns);
        w->switched += s->switched - w->last.switched;
    }
    w->last = *s;
    if (w->polled_ns < JUDGED_NS)
        return w->is_short;
    w->is_short = is_held_up(w);
    w->polled_ns = w->away_ns = w->switched = 0;
    return w->is_short;
}

/* ---- how ----------------------------------------------------------------------------------- */

/* The kernel's struct sched_attr as it was at first; sched_setattr(2). */
struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns; /* of SCHED_OTHER the slice, since 6.12; 0 before */
    uint64_t deadline_ns, period_ns;
};

static bool get(struct attributes *a)
{
    return !syscall(SYS_sched_getattr, 0, a, sizeof(*a), 0) && a->policy == SCHED_OTHER;
}

int64_t dpn_slice_get_ns(void)
{
    struct attributes a = {0};

    return get(&a) ? (int64_t)a.runtime_ns : 0;
}

bool dpn_slice_set_ns(int64_t ns)
{
    struct attributes a = {0};

    if (!get(&a))
        return false;
    a.size = sizeof(a);
    a.runtime_ns = (uint64_t)ns;
    return !syscall(SYS_sched_setattr, 0, &a, 0);
}

/* ---- a thread ------------------------------------------------------------------------------ */

static _Thread_local struct {
    long tick; /* what the clock that costs little (5 ns) last said */
    unsigned skip, skips;
    bool is_known, is_left_alone;
    int64_t default_ns;
    struct dpn_slice_watch watch;
} here;

static int64_t short_ns(void)
{
    return dpn_options.slice_us * DP_NS_PER_US;
}

static struct dpn_slice_sample take_sample(void)
{
    struct timespec cpu = {0};
    struct rusage used = {0};

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    getrusage(RUSAGE_THREAD, &used);
    return (struct dpn_slice_sample){.now_ns = dp_now_ns(),
                                     .cpu_ns = cpu.tv_sec * DP_NS_PER_S + cpu.tv_nsec,
                                     .slept = used.ru_nvcsw, .switched = used.ru_nivcsw};
}

static bool is_main_thread(void)
{
    return getpid() == syscall(SYS_gettid);
}

static void learn(void)
{
    here.is_known = true;
    here.default_ns = dpn_slice_get_ns();
    here.is_left_alone = !short_ns() || here.default_ns <= short_ns() || is_main_thread();
}

static void say_once(void)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;

    if (!atomic_flag_test_and_set(&said))
        dp_log(DP_LOG_INFO, "a thread of NCCL's waits for its core among others that compute: its "
               "slices are %d us now (DUALPIPE_NET_SLICE)", (int)dpn_options.slice_us);
}

static void change(bool to_short)
{
    here.is_left_alone = !dpn_slice_set_ns(to_short ? short_ns() : here.default_ns);
    if (to_short && !here.is_left_alone)
        say_once();
}

void dpn_slice_apply(const struct dpn_slice_sample *sample)
{
    const bool was_short = here.watch.is_short;

    if (!here.is_known)
        learn();
    if (!here.is_left_alone && dpn_slice_judge(&here.watch, sample) != was_short)
        change(!was_short);
}

/* The clock goes on once a tick of the system (1 to 10 ms), and is looked at less and less often
 * until then. */
void dpn_slice_waited(void)
{
    enum { MOST_SKIPS = 31 };
    struct timespec now;

    if (here.skip) {
        here.skip--;
        return;
    }
    if (here.is_left_alone)
        return;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    if (now.tv_nsec == here.tick) {
        here.skips = here.skips < MOST_SKIPS ? 2 * here.skips + 1 : MOST_SKIPS;
        here.skip = here.skips;
        return;
    }
    here.tick = now.tv_nsec;
    here.skips = 0;
    const struct dpn_slice_sample sample = take_sample();
    dpn_slice_apply(&sample);
}
