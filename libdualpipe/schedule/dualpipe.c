/* SPDX-License-Identifier: Apache-2.0
 *
 * dualpipe.c - DualPipe and DualPipeV: one table of phases, two placements.
 *
 * Both feed micro-batches from two sides into an arm of H ranks that ends at a turning point. In
 * DualPipe the sides are two streams through P = 2H ranks, and the second half of the ranks runs
 * the mirror image; in DualPipeV (H = P) they are one stream's way down and its way back. A rank
 * names its slots by *phase*: phase 0 comes from its own end and goes to the turning point, phase 1
 * comes back from there.
 *
 *      h  place of the rank on its arm, 0 .. H-1; H-1 is the turning rank
 *      d  = H - 1 - h, ranks between this one and the turning rank
 *      N  micro-batches of a phase
 *
 * Patterns are strings of
 *      rF0 sF0 rB0 sB0   post the receive or send of phase 0's next activation or gradient; nothing
 *                        where the stage before or after is not there, or on this rank
 *      c                 commit what was posted, if anything was
 *      F0 B0 I0          forward, backward, backward for the input only, of phase 0's next mb
 *      W                 the weight part of the oldest I of both slots
 *      X01               F0 and B1, overlapped
 *
 * The order of messages is part of the algorithm: the k-th send on a link meets the k-th receive
 * without tags, and no two ranks wait for each other, because every pattern keeps this order.
 *
 * Source: DeepSeek-V3 technical report; the steps of DeepSeek's DualPipe implementation, whose
 * recorded traces (tests/data/golden) the table reproduces event for event.
 */
#include "base/fail.h"
#include "schedule/build.h"

#include <string.h>

/* Which ranks a pattern is for, and how often it is repeated. */
enum ranks { ALL, TURNING, OTHER };
enum times {
    ONCE,
    D,
    TWO_D, /* 2d */
    H,     /* h */
    H_1,   /* h + 1 */
    BULK,  /* N - 2H + h */
    HALF,  /* half of h + 1, rounded down */
    ODD    /* 1 if h + 1 is odd, else 0 */
};

static const struct pattern {
    int unit;
    enum ranks ranks;
    enum times times;
    const char *text;
} phase_table[] = {
    /* Fill the way to the turning point. */
    {1, ALL, TWO_D, "rF0 c F0 sF0"},
    {2, ALL, ONCE, "rF0"},
    {2, OTHER, H_1, "c F0 rF0 rF1 c F1 sF1 sF0"},
    {2, TURNING, H, "c F0 sF0 rF0 rF1 c F1 sF1"},
    {2, TURNING, ONCE, "c F0 sF0 rF0 rF1 c F1"}, /* its sF1 waits for step 4 */
    /* First gradients: send them on before doing the weights. */
    {3, ALL, D, "rB1 c I1 sB1 rF1 c W c F1 sF1"},
    /* The steady state: two overlapped pairs. */
    {4, TURNING, ONCE, "c F0 sF1 rB1 c B1 sF0 sB1  rF1 rB0 c X10 sF1 sB0"},
    {4, OTHER, ONCE, "rB1 c X01 sF0 sB1  rF1 rB0 c X10 sF1 sB0"}, /* its rF0 was in step 2 */
    {4, ALL, BULK, "rF0 rB1 c X01 sF0 sB1  rF1 rB0 c X10 sF1 sB0"},
    /* Drain: forwards end, */
    {5, ALL, D, "rB1 c B1 sB1  rF1 rB0 c X10 sF1 sB0"},
    /* then 2(h+1) backwards, the second half of which put their weights off, */
    {6, ALL, HALF, "rB1 c B1 sB1  rB0 c B0 sB0"},
    {6, ALL, ODD, "rB1 c B1 sB1  rB0 c I0 sB0"},
    {6, ALL, HALF, "rB1 c I1 sB1  rB0 c I0 sB0"},
    /* and the weights fill what is left. */
    {7, ALL, D, "c W rB0 c I0 sB0"},
    {8, ALL, H_1, "c W"},
    {8, ALL, ONCE, "c"},
};

/* One op of a pattern compiled for a rank; ops that this rank has no use for are left out. */
struct step {
    struct dp_op op; /* mb: counter's value is added */
    int counter;     /* next mb of ...; -1: none */
};
enum { STEPS_MAX = 16, OPS_MAX = 2 * STEPS_MAX /* of a repetition, frees included */ };

/* Counters of the next mb, one a phase each. B and I share one. */
enum { NEXT_F = 0, NEXT_B = 2, NEXT_RECV_F = 4, NEXT_RECV_B = 6, NEXT_SEND_F = 8,
       NEXT_SEND_B = 10, COUNTERS = 12 };

struct emitter {
    const struct dp_rank_view *view;
    struct dp_op_list *out;
    uint32_t next[COUNTERS];
    uint32_t posted;        /* messages since the last commit */
    size_t oldest_sent, sent; /* activations among them: where the oldest stands, how many */
    size_t oldest, waiting; /* I's that wait for their W: where the oldest stands, how many */
};

static int arm_length(const struct dp_schedule *s)
{
    return s->streams == 2 ? s->ranks / 2 : s->ranks;
}

static int place_on_arm(const struct dp_rank_view *view)
{
    int mirror = view->s->ranks - 1 - view->rank;
    return view->s->streams == 2 && mirror < view->rank ? mirror : view->rank;
}

static int repeats(const struct emitter *e, enum times times)
{
    int h = place_on_arm(e->view), arm = arm_length(e->view->s), d = arm - 1 - h;

    switch (times) {
    case ONCE:
        return 1;
    case D:
        return d;
    case TWO_D:
        return 2 * d;
    case H:
        return h;
    case H_1:
        return h + 1;
    case BULK:
        return e->view->s->mb_per_stream - 2 * arm + h;
    case HALF:
        return (h + 1) / 2;
    case ODD:
        return (h + 1) % 2;
    }
    return 0;
}

static uint32_t slot_of_phase(const struct dp_rank_view *view, int phase)
{
    return view->slots[0].phase == phase ? 0 : 1;
}

/* What a token stands for, but for X, which is an F and a B. */
static const struct token {
    const char *text; /* without its phase */
    enum dp_op_kind kind;
    int counter;      /* of phase 0, that of phase 1 is the next; -1: none */
    enum { NONE, PREV, NEXT } needs; /* on another rank, the stage before, or after */
    bool trains;      /* emitted only when training */
} tokens[] = {
    {"rF", DP_OP_RECV_F, NEXT_RECV_F, PREV, false},
    {"rB", DP_OP_RECV_B, NEXT_RECV_B, NEXT, true},
    {"sF", DP_OP_SEND_F, NEXT_SEND_F, NEXT, false},
    {"sB", DP_OP_SEND_B, NEXT_SEND_B, PREV, true},
    {"c", DP_OP_COMMIT, -1, NONE, false},
    {"F", DP_OP_F, NEXT_F, NONE, false},
    {"B", DP_OP_B, NEXT_B, NONE, true},
    {"I", DP_OP_I, NEXT_B, NONE, true},
    {"W", DP_OP_W, -1, NONE, true},
};

static bool is_of_use(const struct dp_rank_view *view, const struct token *token, uint32_t slot)
{
    if (token->trains && view->s->forward_only)
        return false;
    if (token->needs == PREV)
        return dp_slot_has_remote_prev(&view->slots[slot], view->rank);
    return token->needs == NONE || dp_slot_has_remote_next(&view->slots[slot], view->rank);
}

/* Append the op of one token. Returns how many ops that is: 0 if this rank has no use for it. */
static int compile_token(const struct emitter *e, const char *text, struct step *steps)
{
    const struct token *token = tokens;

    while (strncmp(text, token->text, strlen(token->text)))
        token++;
    int phase = text[strlen(token->text)] == '1';
    uint32_t slot = token->counter < 0 ? 0 : slot_of_phase(e->view, phase);
    if (!is_of_use(e->view, token, slot))
        return 0;
    *steps = (struct step){{.kind = token->kind, .slot = slot},
                           token->counter < 0 ? -1 : token->counter + phase};
    return 1;
}

static int compile_pair(const struct emitter *e, const char *token, struct step *steps)
{
    bool training = !e->view->s->forward_only;
    const char f[] = {'F', token[1], 0}, b[] = {'B', token[2], 0};

    compile_token(e, f, steps);
    steps[0].op.flags = training && e->view->s->overlap ? DP_OP_OVERLAP : 0;
    return 1 + compile_token(e, b, steps + 1);
}

static int compile(const struct emitter *e, const struct pattern *pattern, struct step *steps)
{
    int count = 0;

    for (const char *t = pattern->text; *t; t += strcspn(t, " "), t += strspn(t, " "))
        count += *t == 'X' ? compile_pair(e, t, steps + count)
                           : compile_token(e, t, steps + count);
    for (int i = 0; i < count; i++)
        steps[i].op.flags |= dp_op_flags((uint32_t)pattern->unit, 0);
    return count;
}

/* An activation that was sent is not needed once its message is committed: as dp_add_frees has it. */
static void emit_frees(struct emitter *e, uint32_t unit)
{
    for (size_t at = e->oldest_sent; e->sent; at++) {
        struct dp_op op = e->out->ops[at];
        if (op.kind != DP_OP_SEND_F)
            continue;
        op.kind = DP_OP_FREE;
        op.flags = dp_op_flags(unit, 0);
        dp_op_list_put(e->out, op);
        e->sent--;
    }
}

static void emit_commit(struct emitter *e, struct dp_op op)
{
    if (!e->posted)
        return;
    op.mb = e->posted;
    dp_op_list_put(e->out, op);
    e->posted = 0;
    emit_frees(e, dp_op_unit(op));
}

/* W takes the oldest I of the rank, which is the oldest of its slot too: the next one in the list
 * after that of the last W. */
static void emit_weight(struct emitter *e, struct dp_op op)
{
    const struct dp_op *ops = e->out->ops;

    while (ops[e->oldest].kind != DP_OP_I)
        e->oldest++;
    op.slot = ops[e->oldest].slot;
    op.mb = ops[e->oldest].mb;
    dp_op_list_put(e->out, op);
    e->oldest++;
    e->waiting--;
}

static void emit_step(struct emitter *e, const struct step *step)
{
    struct dp_op op = step->op;

    if (op.kind == DP_OP_COMMIT) {
        emit_commit(e, op);
    } else if (op.kind == DP_OP_W) {
        emit_weight(e, op);
    } else {
        if (op.kind == DP_OP_I && !e->waiting++)
            e->oldest = e->out->count;
        e->posted += dp_op_is_message(op.kind);
        if (op.kind == DP_OP_SEND_F && e->view->frees && !e->sent++)
            e->oldest_sent = e->out->count;
        op.mb = e->next[step->counter]++;
        dp_op_list_put(e->out, op);
    }
}

/* Write the `length` ops before `to` again, `times` times, each time one micro-batch later. Ops are
 * added up as integers of 64 bits, which is several times as fast as emitting them one by one. */
static void write_later(struct dp_op *to, size_t length, int times)
{
    const struct dp_op one_mb = {.mb = 1};
    uint64_t later[OPS_MAX] = {0}, op;

    for (size_t i = 0; i < length; i++)
        if (to[i - length].kind != DP_OP_COMMIT)
            memcpy(&later[i], &one_mb, sizeof(later[i]));
    for (; times > 0; times--, to += length)
        for (size_t i = 0; i < length; i++) {
            memcpy(&op, &to[i - length], sizeof(op));
            op += later[i];
            memcpy(&to[i], &op, sizeof(op));
        }
}

/* From the third time on, a repetition is the one before it, one micro-batch later: a pattern has
 * every kind of op once. (That does not hold for a W, which depends on the weight queue.) */
static void replay(struct emitter *e, const struct step *steps, int count, int times,
                   size_t length)
{
    write_later(e->out->ops + e->out->count, length, times);
    if (e->oldest_sent >= e->out->count - length)
        e->oldest_sent += (size_t)times * length;
    e->out->count += (size_t)times * length;
    for (int i = 0; i < count; i++)
        if (steps[i].counter >= 0)
            e->next[steps[i].counter] += (uint32_t)times;
}

static void emit(struct emitter *e, const struct pattern *pattern)
{
    struct step steps[STEPS_MAX];
    int count = compile(e, pattern, steps), times = repeats(e, pattern->times);
    bool replays = !strpbrk(pattern->text, "IW");

    /* Frees are of sends of this pattern, or of the one before it. */
    if (!dp_op_list_reserve(e->out, (size_t)count * (size_t)times * (1 + e->view->frees) + STEPS_MAX))
        return;
    for (int done = 0; done < times; done++) {
        size_t before = e->out->count;
        for (int i = 0; i < count; i++)
            emit_step(e, &steps[i]);
        if (done == 1 && replays) {
            replay(e, steps, count, times - 2, e->out->count - before);
            break;
        }
    }
}

/* ---- slack ------------------------------------------------------------------------------------ */

/* The order with slack, computes only; lockstep.c adds the messages. While the way back is still
 * empty, a rank computes d + 1 forwards of phase 0 beside as many backwards of phase 1, where the phase
 * table has I and W only. In the steady state a pair then consumes what its neighbour has sent a pair
 * before the last one:
 *
 *      n1 = 2d + 1   F0
 *      n2 = 2h + 1   F0 F1
 *      n3 = 2d + 1   X01 F1
 *      then          X01 X10    until no forward is left, and B1 B0 until no backward is,
 *                               the last H backwards as I
 *
 * Neighbours h and h + 1 exchange what they make pair by pair. From a pair of h, by way of a pair of
 * h + 1 and back to a pair of h, are two messages and four pairs: 4 F&B + 2L for a latency L. Without
 * slack h carries out four pairs from the one to the other, so that every L shows; with slack it carries
 * out six, which hides an L up to F&B. Fewer activation sets cannot do it: the two pairs more are
 * micro-batches that have begun and have not come back, at every border.
 *
 * What has no micro-batch left is left out, so that it holds for any M from 2P. */
static bool forward_is_left(const struct emitter *e, int phase)
{
    return e->next[NEXT_F + phase] < (uint32_t)e->view->s->mb_per_stream;
}

/* Backwards of forwards that have been done. */
static bool backward_is_left(const struct emitter *e, int phase)
{
    return e->next[NEXT_B + phase] < e->next[NEXT_F + phase];
}

static void add_compute(struct emitter *e, enum dp_op_kind kind, int phase, uint16_t flags)
{
    const int counter = (kind == DP_OP_F ? NEXT_F : NEXT_B) + phase;

    if (kind == DP_OP_I && !e->waiting++)
        e->oldest = e->out->count;
    dp_op_list_add(e->out, (struct dp_op){.kind = (uint8_t)kind,
                                          .slot = slot_of_phase(e->view, phase),
                                          .flags = flags, .mb = e->next[counter]++});
}

static void add_forward(struct emitter *e, int phase, uint32_t unit)
{
    if (forward_is_left(e, phase))
        add_compute(e, DP_OP_F, phase, dp_op_flags(unit, 0));
}

static void add_pair(struct emitter *e, int forward, int backward, uint32_t unit)
{
    const bool both = forward_is_left(e, forward) && backward_is_left(e, backward);

    if (both)
        add_compute(e, DP_OP_F, forward,
                    dp_op_flags(unit, 0) | (e->view->s->overlap ? DP_OP_OVERLAP : 0));
    else
        add_forward(e, forward, unit);
    if (backward_is_left(e, backward))
        add_compute(e, DP_OP_B, backward, dp_op_flags(unit, 0));
}

static void add_weights_above(struct emitter *e, size_t most, uint32_t unit)
{
    while (e->waiting > most && dp_op_list_reserve(e->out, 1))
        emit_weight(e, (struct dp_op){.kind = DP_OP_W, .flags = dp_op_flags(unit, 0)});
}

static void drain_with_slack(struct emitter *e, int arm, size_t most_waiting)
{
    const int left = 2 * e->view->s->mb_per_stream - (int)(e->next[NEXT_B] + e->next[NEXT_B + 1]);

    for (int done = 0, phase = 1; done < left && !e->out->failed; phase = !phase) {
        if (!backward_is_left(e, phase))
            continue;
        if (done >= left - arm)
            add_weights_above(e, most_waiting - 1, 7);
        add_compute(e, done++ < left - arm ? DP_OP_B : DP_OP_I, phase,
                    dp_op_flags(6, 0));
    }
    add_weights_above(e, 0, 8);
}

static void write_with_slack(struct emitter *e)
{
    const int h = place_on_arm(e->view), arm = arm_length(e->view->s), d = arm - 1 - h;

    for (int i = 0; i < 2 * d + 1; i++)
        add_forward(e, 0, 1);
    for (int i = 0; i < 2 * (2 * h + 1); i++)
        add_forward(e, i % 2, 2);
    for (int i = 0; i < 2 * d + 1; i++) {
        add_pair(e, 0, 1, 3);
        add_forward(e, 1, 3);
    }
    while ((forward_is_left(e, 0) || forward_is_left(e, 1)) && !e->out->failed) {
        add_pair(e, 0, 1, 4);
        add_pair(e, 1, 0, 4);
    }
    drain_with_slack(e, arm, (size_t)h + 1);
}

/* ---- a rank ----------------------------------------------------------------------------------- */

static void write_rank(const struct dp_rank_view *view, struct dp_op_list *out)
{
    struct emitter e = {.view = view, .out = out};

    if (view->s->slack && !view->s->forward_only) {
        write_with_slack(&e);
        return;
    }
    enum ranks here = place_on_arm(view) == arm_length(view->s) - 1 ? TURNING : OTHER;

    for (size_t i = 0; i < sizeof(phase_table) / sizeof(phase_table[0]); i++)
        if (phase_table[i].ranks == ALL || phase_table[i].ranks == here)
            emit(&e, &phase_table[i]);
}

/* Save areas live from F to B or W; the bound is reached, not merely kept. */
static int max_activations(const struct dp_rank_view *view)
{
    return (view->s->slack ? 4 : 2) * arm_length(view->s) + 1;
}

static int max_weight_queue(const struct dp_rank_view *view)
{
    return place_on_arm(view) + 1;
}

static int check_count(const struct dp_schedule_spec *spec)
{
    if (spec->microbatches < 2 * spec->ranks)
        return dp_fail_quietly(DP_EINVAL, "microbatches: %d, expected at least %d, twice the ranks",
                               spec->microbatches, 2 * spec->ranks);
    return 0;
}

static int check_dualpipe(const struct dp_schedule_spec *spec)
{
    if (spec->ranks % 2)
        return dp_fail_quietly(DP_EINVAL, "ranks: %d, expected an even number for dualpipe",
                               spec->ranks);
    if (spec->microbatches % 2)
        return dp_fail_quietly(DP_EINVAL, "microbatches: %d, expected an even number for dualpipe",
                               spec->microbatches);
    return check_count(spec);
}

/* Slot 0 holds stream 0, which goes up the ranks, slot 1 stream 1, which goes down. */
static void place_dualpipe(const struct dp_schedule_spec *spec, int rank, struct dp_slot *slots)
{
    int ranks = spec->ranks;
    int second = rank >= ranks / 2, mirror = ranks - 1 - rank;
    int above = rank + 1 < ranks ? rank + 1 : -1;

    slots[0] = (struct dp_slot){.stage = rank, .stream = 0, .phase = second,
                                .prev = rank - 1, .prev_slot = 0, .next = above, .next_slot = 0,
                                .mirror = mirror, .mirror_slot = 1};
    slots[1] = (struct dp_slot){.stage = mirror, .stream = 1, .phase = 1 - second, .location = 1,
                                .prev = above, .prev_slot = 1, .next = rank - 1, .next_slot = 1,
                                .mirror = mirror, .mirror_slot = 0};
}

/* Slot 0 holds the way down the ranks, slot 1 the way back up; the last rank turns round. */
void dp_place_v(const struct dp_schedule_spec *spec, int rank, struct dp_slot *slots)
{
    int ranks = spec->ranks;
    bool turns = rank == ranks - 1;
    int below = turns ? rank : rank + 1;

    slots[0] = (struct dp_slot){.stage = rank, .phase = 0,
                                .prev = rank - 1, .prev_slot = 0,
                                .next = below, .next_slot = turns, .mirror = -1};
    slots[1] = (struct dp_slot){.stage = 2 * ranks - 1 - rank, .phase = 1, .location = 1,
                                .prev = below, .prev_slot = !turns,
                                .next = rank - 1, .next_slot = 1, .mirror = -1};
}

const struct dp_builder dp_build_dualpipe = {
    .name = "dualpipe",
    .slots_per_rank = 2,
    .stages_per_rank = 1,
    .streams = 2,
    .posts_messages = true,
    .has_slack = true,
    .check = check_dualpipe,
    .place = place_dualpipe,
    .write = write_rank,
    .max_activations = max_activations,
    .max_weight_queue = max_weight_queue,
};

const struct dp_builder dp_build_dualpipev = {
    .name = "dualpipev",
    .slots_per_rank = 2,
    .stages_per_rank = 2,
    .streams = 1,
    .posts_messages = true,
    .has_slack = true,
    .check = check_count,
    .place = dp_place_v,
    .write = write_rank,
    .max_activations = max_activations,
    .max_weight_queue = max_weight_queue,
};
