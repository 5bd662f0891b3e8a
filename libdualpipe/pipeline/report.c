/* SPDX-License-Identifier: Apache-2.0
 *
 * report.c - what a step was spent on, which ops were late, and which ranks and links hold the others up
 * (dp_watch): each step is compared within itself, like with like, so that no history is needed to
 * tell a slow rank from a large model.
 */
#include <dualpipe/trace.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/sized.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

/* ---- what it was, and could have been -------------------------------------------------------- */

/* An overlapped pair that was done as two calls counts at its F, where the simulator looks. */
static size_t cost_place(const struct dp_schedule *s, const struct dp_span *span)
{
    size_t at = s->first[span->rank] + span->index;
    bool second = span->index && span->op.kind == DP_OP_B && s->ops[at - 1].flags & DP_OP_OVERLAP;
    return second ? at - 1 : at;
}

static int simulate(const struct dp_timeline *t, const struct dp_schedule *s, unsigned flags,
                    struct dp_simulation *sim)
{
    int64_t *op_ns;
    struct dp_cost cost = {.f_ns = 0};

    if (t->ranks != s->ranks)
        return dp_fail(DP_EINVAL, "a timeline of %d ranks, expected the schedule's %d", t->ranks,
                       s->ranks);
    if (!(op_ns = calloc(s->first[s->ranks] + 1, sizeof(*op_ns))))
        return dp_fail(DP_ENOMEM, "no memory for the durations of %zu ops", s->first[s->ranks]);
    for (size_t i = 0; i < t->count; i++)
        op_ns[cost_place(s, &t->spans[i])] += t->spans[i].end_ns - t->spans[i].start_ns;
    cost.op_ns = op_ns;
    int err = dp_schedule_simulate(s, &cost, flags, sim);
    free(op_ns);
    return err;
}

int dp_trace_report_sized(const struct dp_timeline *t, const struct dp_schedule *s,
                          struct dp_trace_report *out, size_t size)
{
    struct dp_simulation sim;
    double busy_ns = 0;
    int err = simulate(t, s, 0, &sim);

    if (err)
        return err;
    struct dp_trace_report own = {.makespan_ns = t->makespan_ns, .simulated_ns = sim.makespan_ns};
    dp_simulation_fini(&sim);
    for (size_t i = 0; i < t->count; i++)
        busy_ns += (double)(t->spans[i].end_ns - t->spans[i].start_ns);
    const double whole_ns = (double)t->ranks * (double)t->makespan_ns;
    if (t->makespan_ns)
        own.bubble_ratio = (whole_ns - busy_ns) / whole_ns;
    dp_sized_give(out, size, &own, sizeof(own));
    return 0;
}

/* ---- ops that were late ---------------------------------------------------------------------- */

/* The span of `rank` that put out what `span` waited for, NULL: it is not among them. */
static const struct dp_span *find_sender(const struct dp_timeline *t, const struct dp_schedule *s,
                                         const struct dp_span *span, int rank)
{
    const struct dp_slot *slot = dp_schedule_slot(s, span->rank, (int)span->op.slot);
    const bool forward = span->op.kind == DP_OP_F;
    const int from = forward ? slot->prev_slot : slot->next_slot;

    for (size_t i = 0; i < t->count; i++) {
        const struct dp_span *sent = &t->spans[i];
        const struct dp_op op = !forward && sent->pair.kind != DP_OP_NONE ? sent->pair : sent->op;
        if (sent->rank == rank && op.mb == span->op.mb && (int)op.slot == from &&
            (op.kind == DP_OP_F) == forward && op.kind != DP_OP_W)
            return sent;
    }
    return NULL;
}

/* late_ns[count]: when each span began, after what it does on paper. */
static void compare_starts(const struct dp_timeline *t, const struct dp_schedule *s,
                           const struct dp_timeline *paper, int64_t *starts_ns, int64_t *late_ns)
{
    for (size_t i = 0; i < paper->count; i++)
        starts_ns[cost_place(s, &paper->spans[i])] = paper->spans[i].start_ns;
    for (size_t i = 0; i < t->count; i++) {
        const struct dp_span *span = &t->spans[i];
        const bool second = i && cost_place(s, span) == cost_place(s, span - 1);
        late_ns[i] = second ? late_ns[i - 1] : span->start_ns - starts_ns[cost_place(s, span)];
    }
}

/* Keep the latest, in order. */
static int keep(struct dp_late *out, int room, int count, struct dp_late late)
{
    int at = count < room ? count++ : room;

    while (at > 0 && out[at - 1].late_ns < late.late_ns) {
        if (at < room)
            out[at] = out[at - 1];
        at--;
    }
    if (at < room)
        out[at] = late;
    return count;
}

static int list_late(const struct dp_timeline *t, const struct dp_schedule *s,
                     const int64_t *late_ns, struct dp_late *out, int room)
{
    int count = 0;

    for (size_t i = 0; i < t->count; i++) {
        const struct dp_span *span = &t->spans[i];
        const bool is_first = !i || span[-1].rank != span->rank;
        const struct dp_span *sent =
            span->waited_for < 0 ? NULL : find_sender(t, s, span, span->waited_for);
        int64_t before_ns = is_first ? 0 : late_ns[i - 1];
        if (sent && late_ns[sent - t->spans] > before_ns)
            before_ns = late_ns[sent - t->spans];
        if (late_ns[i] > before_ns)
            count = keep(out, room, count, (struct dp_late){*span, late_ns[i] - before_ns,
                                                            sent ? span->waited_for : -1});
    }
    return count;
}

int dp_trace_late(const struct dp_timeline *t, const struct dp_schedule *s, struct dp_late *out,
                  int room, int *count)
{
    struct dp_simulation sim;
    int err = simulate(t, s, DP_SIMULATE_TIMELINE, &sim);

    *count = 0;
    if (err)
        return err;
    int64_t *starts_ns = calloc(s->first[s->ranks] + t->count + 1, sizeof(*starts_ns));
    if (starts_ns) {
        int64_t *late_ns = starts_ns + s->first[s->ranks] + 1;
        compare_starts(t, s, &sim.timeline, starts_ns, late_ns);
        *count = list_late(t, s, late_ns, out, room);
    } else {
        err = dp_fail(DP_ENOMEM, "no memory for the starts of %zu ops", s->first[s->ranks]);
    }
    free(starts_ns);
    dp_simulation_fini(&sim);
    return err;
}

/* ---- ranks and links that are slow ----------------------------------------------------------- */

static const double least_compute = 0.05, least_link = 0.02; /* of a step */
static const double least_link_ns =
    1e6;                          /* a receiver that shares its core wakes up as late as that */
static const double longer = 1.2; /* a step than the usual one: links are worth a look */
enum { BASE_STEPS = 16, LEAST_MESSAGES = 2 };

/* How often in a row something was slow, or was not, and what it is now. */
struct streak {
    int steps;
    bool slow; /* as it was said */
    struct dp_slow what;
};

struct dp_watch {
    const struct dp_schedule *s; /* NULL: each process holds all stages */
    int ranks, processes;
    struct streak *computes;    /* [processes] */
    struct streak *links;       /* [ranks * ranks] */
    double *scratch;            /* [processes, or ranks * ranks, the larger] */
    double step_ns[BASE_STEPS]; /* the last steps, a ring */
    uint64_t steps;
    int looks; /* steps that are still worth a look */
};

/* ---- numbers --------------------------------------------------------------------------------- */

static int by_size(const void *pa, const void *pb)
{
    const double a = *(const double *)pa, b = *(const double *)pb;

    return (a > b) - (a < b);
}

/* The lower one of two; sorts. */
static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof(*values), by_size);
    return count ? values[(count - 1) / 2] : 0;
}

static void count_step(struct streak *streak, bool is_slow, const struct dp_slow *what)
{
    if (is_slow)
        streak->what = *what;
    streak->steps = is_slow == streak->slow ? 0 : streak->steps + 1;
    if (streak->steps == DP_SLOW_STEPS) {
        streak->slow = is_slow;
        streak->steps = 0;
    }
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static bool holds(const struct dp_schedule *s, int rank, int stage)
{
    for (int i = 0; i < dp_schedule_slot_count(s, rank); i++)
        if (dp_schedule_slot(s, rank, i)->stage == stage)
            return true;
    return false;
}

static bool hold_the_same(const struct dp_schedule *s, int a, int b)
{
    const int count = dp_schedule_slot_count(s, a);

    if (!count || count != dp_schedule_slot_count(s, b))
        return false;
    for (int i = 0; i < count; i++)
        if (!holds(s, b, dp_schedule_slot(s, a, i)->stage))
            return false;
    return true;
}

static void watch_process(struct dp_watch *w, const struct dp_rank_pace *paces, int i,
                          double step_ns)
{
    const int ranks = w->ranks;
    struct dp_slow what = {
        .kind = DP_SLOW_COMPUTE, .rank = i, .peer = -1, .ns = paces[i].compute_ns};
    int others = 0;

    for (int k = 0; k < w->processes; k++)
        if (k != i && (k % ranks == i % ranks || hold_the_same(w->s, i % ranks, k % ranks))) {
            w->scratch[others++] = paces[k].compute_ns;
            what.peer = what.peer < 0 ? k : what.peer;
        }
    what.others_ns = median(w->scratch, others);
    const bool slow = others && what.others_ns > 0 && what.ns > DP_SLOW_RATIO * what.others_ns &&
                      what.ns - what.others_ns > least_compute * step_ns;
    count_step(&w->computes[i], slow, &what);
}

/* Worth a look are the first steps, and DP_SLOW_STEPS from one on that took longer. */
static bool is_worth_a_look(struct dp_watch *w, double step_ns)
{
    const int known = w->steps < BASE_STEPS ? (int)w->steps : BASE_STEPS;
    double sorted[BASE_STEPS];

    memcpy(sorted, w->step_ns, sizeof(sorted));
    if (known < DP_SLOW_STEPS || (!w->looks && step_ns > longer * median(sorted, known)))
        w->looks = DP_SLOW_STEPS;
    w->step_ns[w->steps++ % BASE_STEPS] = step_ns;
    const bool look = w->looks > 0;
    w->looks -= look;
    return look;
}

bool dp_watch_step(struct dp_watch *w, const struct dp_rank_pace *paces)
{
    double step_ns = 0;

    for (int i = 0; i < w->processes; i++)
        if (paces[i].step_ns > step_ns)
            step_ns = paces[i].step_ns;
    for (int i = 0; i < w->processes; i++)
        watch_process(w, paces, i, step_ns);
    return is_worth_a_look(w, step_ns) && w->s && w->ranks > 1;
}

/* ---- links ----------------------------------------------------------------------------------- */

/* The messages of a timeline that were waited for. */
struct messages {
    const struct dp_schedule *s;
    const struct dp_timeline *t;
    size_t *first;    /* [ranks + 1] a rank's spans */
    uint32_t *spans;  /* [2 * max_slots * mb_per_stream * ranks] of an F, of a B or I; UINT32_MAX */
    double *least_ns; /* [ranks * ranks] of all messages of a link */
    int *count;       /* [ranks * ranks] */
};

static bool is_backward(struct dp_op op)
{
    return op.kind == DP_OP_B || op.kind == DP_OP_I;
}

static uint32_t *place_of(const struct messages *m, int rank, int slot, uint32_t mb, bool backward)
{
    const size_t n = (size_t)m->s->mb_per_stream;
    const size_t at = ((size_t)rank * (size_t)m->s->max_slots + (size_t)slot) * n + mb;

    return &m->spans[2 * at + backward];
}

static void note_op(struct messages *m, uint32_t span, struct dp_op op)
{
    if (op.kind == DP_OP_F || is_backward(op))
        *place_of(m, m->t->spans[span].rank, (int)op.slot, op.mb, is_backward(op)) = span;
}

/* When the batch with the message of an op of this span was committed: as the last op before that
 * COMMIT ended. */
static int64_t committed_ns(const struct messages *m, uint32_t span, struct dp_op sent)
{
    const struct dp_span *at = &m->t->spans[span];
    const struct dp_op *ops = dp_schedule_ops(m->s, at->rank);
    const size_t count = dp_schedule_count(m->s, at->rank), end = m->first[at->rank + 1];
    const enum dp_op_kind kind = is_backward(sent) ? DP_OP_SEND_B : DP_OP_SEND_F;
    size_t i = at->index;

    while (i < count && (ops[i].kind != kind || ops[i].slot != sent.slot || ops[i].mb != sent.mb))
        i++;
    while (i < count && ops[i].kind != DP_OP_COMMIT)
        i++;
    size_t last = span;
    while (last + 1 < end && m->t->spans[last + 1].index < i)
        last++;
    return m->t->spans[last].end_ns;
}

/* The message that an op of `span` consumed, if it was that which the rank waited for. */
static void add_message(struct messages *m, const struct dp_span *span, struct dp_op op)
{
    if (op.kind != DP_OP_F && !is_backward(op))
        return;
    const struct dp_slot *slot = dp_schedule_slot(m->s, span->rank, (int)op.slot);
    const bool backward = is_backward(op);
    const int from = backward ? slot->next : slot->prev;
    if (from != span->waited_for || from == span->rank)
        return;
    const int from_slot = backward ? slot->next_slot : slot->prev_slot;
    const uint32_t made = *place_of(m, from, from_slot, op.mb, backward);
    if (made == UINT32_MAX)
        return;
    struct dp_op sent = m->t->spans[made].op;
    if (is_backward(sent) != backward || sent.slot != (uint32_t)from_slot || sent.mb != op.mb)
        sent = m->t->spans[made].pair;
    const double ns = (double)(span->start_ns - committed_ns(m, made, sent));
    const size_t link = (size_t)from * (size_t)m->s->ranks + (size_t)span->rank;
    if (!m->count[link]++ || ns < m->least_ns[link])
        m->least_ns[link] = ns;
}

static void collect(struct messages *m)
{
    const struct dp_timeline *t = m->t;

    for (size_t i = 0; i < t->count; i++) {
        note_op(m, (uint32_t)i, t->spans[i].op);
        note_op(m, (uint32_t)i, t->spans[i].pair);
        m->first[t->spans[i].rank + 1] = i + 1;
    }
    for (int rank = 0; rank < t->ranks; rank++) /* without any */
        if (m->first[rank + 1] < m->first[rank])
            m->first[rank + 1] = m->first[rank];
    for (size_t i = 0; i < t->count; i++)
        if (t->spans[i].waited_ns > 0 && t->spans[i].waited_for >= 0) {
            add_message(m, &t->spans[i], t->spans[i].op);
            add_message(m, &t->spans[i], t->spans[i].pair);
        }
}

static void watch_link(struct dp_watch *w, const struct messages *m, size_t link)
{
    const size_t ranks = (size_t)w->ranks;
    struct dp_slow what = {.kind = DP_SLOW_LINK,
                           .rank = (int32_t)(link / ranks),
                           .peer = (int32_t)(link % ranks),
                           .ns = m->least_ns[link]};
    int others = 0;

    for (size_t k = 0; k < ranks * ranks; k++)
        if (k != link && m->count[k] >= LEAST_MESSAGES)
            w->scratch[others++] = m->least_ns[k];
    what.others_ns = median(w->scratch, others);
    const bool slow = others && m->count[link] >= LEAST_MESSAGES &&
                      what.ns > DP_SLOW_LINK_RATIO * what.others_ns &&
                      what.ns - what.others_ns > least_link_ns &&
                      what.ns - what.others_ns > least_link * (double)m->t->makespan_ns;
    count_step(&w->links[link], slow, &what);
}

int dp_watch_links(struct dp_watch *w, const struct dp_timeline *t)
{
    const size_t ranks = (size_t)w->ranks;
    struct messages m = {.s = w->s, .t = t};
    int err = 0;

    if (!w->s || t->ranks != w->ranks)
        return dp_fail(DP_EINVAL, "a timeline of %d ranks, expected the schedule's %d", t->ranks,
                       w->s ? w->ranks : 0);
    const size_t places = 2 * ranks * (size_t)w->s->max_slots * (size_t)w->s->mb_per_stream;
    m.first = calloc(ranks + 1, sizeof(*m.first));
    m.spans = malloc((places + 1) * sizeof(*m.spans));
    m.least_ns = calloc(ranks * ranks, sizeof(*m.least_ns));
    m.count = calloc(ranks * ranks, sizeof(*m.count));
    if (m.first && m.spans && m.least_ns && m.count) {
        memset(m.spans, 0xff, places * sizeof(*m.spans));
        collect(&m);
        for (size_t link = 0; link < ranks * ranks; link++)
            watch_link(w, &m, link);
    } else {
        err = dp_fail(DP_ENOMEM, "no memory for the links of %d ranks", t->ranks);
    }
    free(m.first);
    free(m.spans);
    free(m.least_ns);
    free(m.count);
    return err;
}

/* ---- what is slow ---------------------------------------------------------------------------- */

int dp_watch_list(const struct dp_watch *w, struct dp_slow *out, int room)
{
    int count = 0;

    for (int i = 0; i < w->processes && count < room; i++)
        if (w->computes[i].slow)
            out[count++] = w->computes[i].what;
    for (int i = 0; i < w->ranks * w->ranks && count < room; i++)
        if (w->links[i].slow)
            out[count++] = w->links[i].what;
    return count;
}

const char *dp_slow_text(const struct dp_slow *slow, char *text, size_t room)
{
    if (slow->kind == DP_SLOW_COMPUTE)
        dp_snprintf(text, room,
                    "rank %d computes %.1f times as long as rank %d, which holds the same stages",
                    slow->rank, slow->ns / slow->others_ns, slow->peer);
    else
        dp_snprintf(text, room,
                    "the link from rank %d to rank %d: a message takes %.3g ms, those of others "
                    "%.3g ms",
                    slow->rank, slow->peer, slow->ns / DP_NS_PER_MS,
                    slow->others_ns / DP_NS_PER_MS);
    return text;
}

/* ---- making one ------------------------------------------------------------------------------ */

int dp_watch_new(const struct dp_schedule *s, int processes, struct dp_watch **out)
{
    const int ranks = s ? s->ranks : 1;
    if (processes < 1 || processes % ranks)
        return dp_fail(DP_EINVAL, "watching %d processes, expected a multiple of the schedule's %d",
                       processes, ranks);
    const size_t links = (size_t)ranks * (size_t)ranks;
    struct dp_watch *w = calloc(1, sizeof(*w));
    if (w) {
        *w = (struct dp_watch){.s = s, .ranks = ranks, .processes = processes};
        w->computes = calloc((size_t)processes, sizeof(*w->computes));
        w->links = calloc(links, sizeof(*w->links));
        w->scratch =
            calloc(links > (size_t)processes ? links : (size_t)processes, sizeof(*w->scratch));
    }
    if (!w || !w->computes || !w->links || !w->scratch) {
        dp_watch_free(w);
        return dp_fail(DP_ENOMEM, "no memory to watch %d processes", processes);
    }
    *out = w;
    return 0;
}

void dp_watch_free(struct dp_watch *w)
{
    if (!w)
        return;
    free(w->computes);
    free(w->links);
    free(w->scratch);
    free(w);
}
