/* SPDX-License-Identifier: Apache-2.0
 *
 * Weight parts that run while a message is late: what is late is made so by ranks that wait for each
 * other, not by the clock.
 */
#include "pipeline_case.h"

#include "base/clock.h"
#include "comm/comm_ops.h"
#include "pipeline/plan.h"
#include <dualpipe/trace.h>

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

static const int64_t deadline_ns = INT64_C(20000000000);

enum { STEPS = 3, LATE_STEP = 1 };

static const char list[] = "user P=2 M=3\n"
                           "holds 0: 0\n"
                           "holds 1: 1\n"
                           "rank 0: F0.0 F0.1 F0.2 I0.0 I0.1 I0.2 W0.0 W0.1 W0.2\n"
                           "rank 1: F0.0 B0.0 F0.1 B0.1 F0.2 B0.2\n";

static struct dp_schedule *read_list(void)
{
    struct dp_schedule *s = NULL;

    if (dp_schedule_read(list, strlen(list), DP_FORMAT_TEXT, &s))
        fail_msg("%s", dp_last_error());
    return s;
}

struct trial {
    bool early;
    atomic_bool weight_ran; /* stage 0's of micro-batch 0, in the step that is late */
    char order[64];         /* of stage 0's backwards in that step */
    _Atomic size_t used;
    struct dp_comm *_Atomic first; /* rank 0's, of threads: what it does can be read */
    struct dp_timeline timeline; /* of that step */
};

static void note(struct trial *t, char kind, int mb)
{
    size_t at = t->used;

    t->order[at] = kind;
    t->order[at + 1] = (char)('0' + mb);
    t->order[at + 2] = ' ';
    t->used = at + 3;
}

/* After that weight part, rank 0 waits for the gradient, and says so. */
static bool is_waiting(struct trial *t)
{
    const uint64_t doing = atomic_load(t->first->doing);

    return doing >> 60 == DP_PLAN_INPUT + 1 && (doing & DP_MAX_MB) == 1;
}

/* Stage 1 keeps the gradient of micro-batch 1 back until stage 0 has done a weight part. */
static int hold_back(void *user, const struct dp_stage_call *call, const char *what)
{
    struct trial *t = user;
    const int64_t until_ns = dp_now_ns() + deadline_ns / 2;

    if (call->step != LATE_STEP)
        return 0;
    if (call->stage == 0 && strcmp(what, "forward")) {
        note(t, *what == 'w' ? 'W' : 'I', call->mb);
        if (*what == 'w')
            t->weight_ran = true;
    }
    if (call->stage != 1 || call->mb != 1 || strcmp(what, "backward") || !t->early)
        return 0;
    while (!t->weight_ran || !is_waiting(t))
        if (dp_now_ns() > until_ns)
            return dp_callback_error(DP_ETIMEDOUT, "while the gradient was late, %s",
                                     t->weight_ran ? "the weight part was still said to run"
                                                   : "no weight part ran");
        else
            sched_yield();
    return 0;
}

static _Thread_local struct dp_recorder *the_recorder;

static void edit(void *user, int rank, struct dp_pipeline_config *config)
{
    const struct trial *t = user;

    (void)rank;
    config->early_weights = t->early;
    config->recorder = the_recorder;
}

static int run_rank(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    struct trial *t = job->user;
    struct dp_timeline timeline;
    struct job_rank r;

    if (dp_comm_rank(comm) == 0)
        t->first = comm;
    CHECK(!dp_recorder_new(200, 2, &the_recorder));
    CHECK(!job_rank_open(&r, job, comm));
    for (int step = 0; step < STEPS; step++) {
        CHECK(!job_rank_step(&r));
        if (step != LATE_STEP)
            continue;
        CHECK(!dp_recorder_gather(the_recorder, job->schedule, comm, &timeline));
        if (dp_comm_rank(comm) == 0)
            t->timeline = timeline;
    }
    job_rank_close(&r);
    dp_recorder_free(the_recorder);
    return 0;
}

static void run_trial(struct trial *t)
{
    struct dp_schedule *s = read_list();
    struct job job = job_make(s);

    job.fixed_order = true;
    job.edit = edit;
    job.before = hold_back;
    job.user = t;
    case_run(&job, deadline_ns, run_rank, STEPS - 1); /* gradients to the last bit */
    dp_schedule_free(s);
}

/* Where the timeline has stage 0's op. */
static size_t place_of(const struct dp_timeline *t, enum dp_op_kind kind, uint32_t mb)
{
    size_t at = 0;

    while (at < t->count && (t->spans[at].rank || t->spans[at].op.kind != kind ||
                             t->spans[at].op.mb != mb))
        at++;
    assert_true(at < t->count);
    return at;
}

static void a_weight_part_runs_while_a_gradient_is_late(void **state)
{
    (void)state;
    struct trial t = {.early = true};

    run_trial(&t);
    assert_memory_equal(t.order, "I0 W0 ", 6);
    assert_true(place_of(&t.timeline, DP_OP_W, 0) < place_of(&t.timeline, DP_OP_I, 1));
    assert_true(place_of(&t.timeline, DP_OP_W, 0) < place_of(&t.timeline, DP_OP_W, 1));
    assert_true(place_of(&t.timeline, DP_OP_W, 1) < place_of(&t.timeline, DP_OP_W, 2));
    dp_timeline_fini(&t.timeline);
}

static void without_the_option_the_list_is_the_order(void **state)
{
    (void)state;
    struct trial t = {.early = false};

    run_trial(&t);
    assert_string_equal(t.order, "I0 I1 I2 W0 W1 W2 ");
    dp_timeline_fini(&t.timeline);
}

/* Ranks that are late at random: whatever moves, gradients are those of the sequential loop. */
static int dawdle(void *user, const struct dp_stage_call *call, const char *what)
{
    static atomic_uint sink;
    const uint32_t draw = (uint32_t)(call->stage * 7919 + call->mb * 104729 + *what * 31 +
                                     (int)call->step * 1299709);

    (void)user;
    for (uint32_t i = 0; i < draw * 2654435761u >> 18; i++) /* up to 0.1 ms */
        atomic_store_explicit(&sink, i, memory_order_relaxed);
    return 0;
}

static int train(struct dp_comm *comm, void *arg)
{
    return case_train(comm, arg, 4);
}

static void gradients_are_the_same_to_the_last_bit_under_every_schedule(void **state)
{
    (void)state;
    static struct trial t = {.early = true};

    for (int kind = DP_SCHEDULE_GPIPE; kind < DP_SCHEDULE_KINDS; kind++)
        for (int ranks = 2; ranks <= 4; ranks += 2) {
            struct dp_schedule *s = case_schedule((struct dp_schedule_spec){
                .kind = kind, .ranks = ranks, .microbatches = 8, .mirror_reduce = true});
            struct job job = job_make(s);
            job.fixed_order = true;
            job.edit = edit;
            job.before = dawdle;
            job.user = &t;
            case_run(&job, deadline_ns, train, 3);
            dp_schedule_free(s);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_weight_part_runs_while_a_gradient_is_late),
        cmocka_unit_test(without_the_option_the_list_is_the_order),
        cmocka_unit_test(gradients_are_the_same_to_the_last_bit_under_every_schedule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
