/* SPDX-License-Identifier: Apache-2.0
 *
 * early.c - weight parts that run before their place in the list, while a message is late.
 *
 *      list     I0 ...  B1  ...  W0        W0 reads what I0 left, and is due later
 *      run      I0 ...  (B1's gradient is late: W0)  B1  ...
 *
 * Only weight parts move, one before the other in the list's order, and none past anything else that
 * adds to the same gradients: sums have the list's bits, and messages the list's order.
 *
 * When is a message late? It is waited for longer than in any step before, by two weight parts: the
 * waits that the schedule has anyway, its bubble, are left alone, and so is jitter. A list is
 * tight: a weight part that leaves its place leaves a bubble there, and one that is still running
 * when the message comes costs time on every rank that waits for this one. What pays is a stall,
 * and one that has lasted for some time is likely to go on.
 *
 * A message may come right after a weight part has begun, which then makes its rank late by at most
 * that part, until the part's place in the list, where its time comes back. No other is begun in
 * that step. So of a rank whose messages come at the same times no op begins later than in the list
 * by more than one weight part, and its last one ends no later.
 */
#include "pipeline/steps.h"

#include "base/clock.h"
#include "base/fail.h"

#include <stdlib.h>
#include <time.h>

enum { SLEEP_NS = 20000, SPIN_NS = 100000, LATE_WEIGHTS = 2 };

struct dp_early {
    size_t count;      /* weight entries of the plan */
    uint32_t *weights; /* [count] their places in it */
    uint32_t *after;   /* [count] the entry that must have been carried out */
    int64_t *least_ns; /* [entries of the plan] the shortest wait of the steps so far; -1: none */
    int64_t weight_ns[DP_MAX_SLOTS]; /* the shortest weight part of a slot so far; 0: none */
    size_t next;       /* weights[next] is the first that has not been carried out in this step */
    bool guessed;      /* wrongly: a message came while a weight part ran early in this step */
    bool moved;        /* while the entry at hand was waited for */
};

/* ---- the table ------------------------------------------------------------------------------ */

/* Do both slots add to the same gradients? */
static bool share(const struct dp_pipeline *pipe, const struct dp_schedule *s, int a, int b)
{
    return dp_schedule_slot(s, pipe->rank, a)->location ==
           dp_schedule_slot(s, pipe->rank, b)->location;
}

static bool must_come_before(const struct dp_pipeline *pipe, const struct dp_schedule *s,
                             const struct dp_plan_op *op, const struct dp_plan_op *weight)
{
    if (op->kind == DP_PLAN_INPUT)
        return op->slot == weight->slot && op->mb == weight->mb;
    return (op->kind == DP_PLAN_BACKWARD || dp_plan_is_sum(op) || dp_plan_is_last(op)) &&
           share(pipe, s, op->slot, weight->slot);
}

static uint32_t find_after(const struct dp_pipeline *pipe, const struct dp_program *program,
                           uint32_t weight)
{
    const struct dp_plan_op *ops = program->plan.ops;
    uint32_t at = weight;

    while (at && !must_come_before(pipe, program->schedule, &ops[at - 1], &ops[weight]))
        at--;
    return at ? at - 1 : 0;
}

int dp_early_init(struct dp_pipeline *pipe, struct dp_program *program)
{
    const struct dp_plan *plan = &program->plan;
    struct dp_early *e;

    if (!pipe->config.early_weights || pipe->ordered || pipe->staged || program->driven)
        return 0;
    program->early = e = calloc(1, sizeof(*e));
    if (e) {
        e->weights = malloc(plan->count * sizeof(*e->weights) + 1);
        e->after = malloc(plan->count * sizeof(*e->after) + 1);
        e->least_ns = malloc(plan->count * sizeof(*e->least_ns) + 1);
    }
    if (!e || !e->weights || !e->after || !e->least_ns)
        return dp_fail(DP_ENOMEM, "no memory for %zu waits", plan->count);
    for (uint32_t i = 0; i < plan->count; i++) {
        e->least_ns[i] = -1;
        if (plan->ops[i].kind != DP_PLAN_WEIGHT)
            continue;
        e->after[e->count] = find_after(pipe, program, i);
        e->weights[e->count++] = i;
    }
    return 0;
}

void dp_early_fini(struct dp_program *program)
{
    struct dp_early *e = program->early;

    if (e) {
        free(e->weights);
        free(e->after);
        free(e->least_ns);
    }
    free(e);
    program->early = NULL;
}

void dp_early_begin(struct dp_early *e)
{
    if (e) {
        e->next = 0;
        e->guessed = false;
    }
}

/* ---- weight parts at their place ------------------------------------------------------------- */

bool dp_early_is_done(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    struct dp_early *e = pipe->early;

    if (!e || op->kind != DP_PLAN_WEIGHT)
        return false;
    if (e->next < e->count && pipe->plan.ops + e->weights[e->next] == op) {
        e->next++;
        return false;
    }
    return true;
}

void dp_early_note_weight(struct dp_pipeline *pipe, const struct dp_plan_op *op, int64_t took_ns)
{
    int64_t *shortest_ns = &pipe->early->weight_ns[op->slot];

    if (op->kind == DP_PLAN_WEIGHT && (!*shortest_ns || took_ns < *shortest_ns))
        *shortest_ns = took_ns > 0 ? took_ns : 1;
}

/* ---- and before it --------------------------------------------------------------------------- */

/* May the next weight part run before entry `now`? */
static const struct dp_plan_op *candidate(const struct dp_pipeline *pipe, size_t now)
{
    const struct dp_early *e = pipe->early;

    if (e->guessed || e->next == e->count || e->after[e->next] >= now || e->weights[e->next] < now)
        return NULL;
    return pipe->plan.ops + e->weights[e->next];
}

/* 0: all that the entry, or the pair, waits for is there. *peer: the rank of the first that is not. */
static int test_all(struct dp_pipeline *pipe, const struct dp_plan_op *op, int *peer)
{
    for (int half = 0; half <= op->pair; half++)
        for (uint32_t i = 0; i < op[half].waits; i++) {
            const struct dp_plan_wait *wait = &pipe->plan.waits[op[half].first_wait + i];
            int err = dp_comm_test(pipe->config.comm, &pipe->messages[wait->request].request);
            *peer = wait->peer;
            if (err)
                return err;
        }
    return 0;
}

static void back_off(int64_t since_ns)
{
    if (dp_now_ns() - since_ns > SPIN_NS)
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
}

/* Until the messages are there or late: DP_EAGAIN. */
static int wait_until_late(struct dp_pipeline *pipe, const struct dp_plan_op *op, int64_t limit_ns)
{
    const int64_t began_ns = dp_now_ns();
    int peer = -1, err = test_all(pipe, op, &peer);

    if (limit_ns > pipe->deadline_ns / 2)
        limit_ns = pipe->deadline_ns / 2;
    if (err != DP_EAGAIN)
        return err;
    dp_messages_show_wait(pipe, began_ns, peer);
    while (err == DP_EAGAIN && dp_now_ns() - began_ns < limit_ns) {
        back_off(began_ns);
        err = test_all(pipe, op, &peer);
    }
    dp_messages_show_wait(pipe, 0, peer);
    dp_messages_note_wait(pipe, dp_now_ns() - began_ns, peer);
    return err;
}

int dp_early_run(struct dp_pipeline *pipe, const struct dp_plan_op *op,
                 int (*run_weight)(struct dp_pipeline *pipe, const struct dp_plan_op *weight))
{
    struct dp_early *e = pipe->early;
    const size_t now = (size_t)(op - pipe->plan.ops);
    const struct dp_plan_op *weight = candidate(pipe, now);
    int peer, err;

    e->moved = false;
    if (e->least_ns[now] < 0 || !weight || !e->weight_ns[weight->slot])
        return 0;
    err = wait_until_late(pipe, op, e->least_ns[now] + LATE_WEIGHTS * e->weight_ns[weight->slot]);
    while (err == DP_EAGAIN && (weight = candidate(pipe, now))) {
        e->moved = true;
        e->next++;
        err = run_weight(pipe, weight);
        if (!err)
            err = test_all(pipe, op, &peer);
        e->guessed = !err;
    }
    return err == DP_EAGAIN ? 0 : err;
}

void dp_early_learn(struct dp_pipeline *pipe, const struct dp_plan_op *op)
{
    struct dp_early *e = pipe->early;
    int64_t *least_ns = &e->least_ns[op - pipe->plan.ops];

    if (!e->moved && (*least_ns < 0 || pipe->now.waited_ns < *least_ns))
        *least_ns = pipe->now.waited_ns;
}
