/* SPDX-License-Identifier: Apache-2.0
 *
 * segments.c - the best order of two lists of segments on two resources.
 *
 * Draw list a along x and list b along y, by time. Where segments of both need one resource there is an
 * obstacle, a rectangle. An order is a way from (0, 0) to the far corner that goes diagonally while
 * both run, and straight along an obstacle while one waits; the shortest way is the best order.
 *
 *       b ^  . . . ____ .      A way that meets an obstacle passes it by its upper left corner (b's
 *         |  . . .|////|.      segment first) or by its lower right one (a's first). So all turns are at
 *         |  ____ |////|.      corners, points where both lists are between two segments, and the
 *         | |////|/   . .      distance from one to another is the longer of the two lists' times.
 *         | |////|. . . .
 *         +--------------> a
 *
 * A stage of segments has its callbacks here, and the two threads or streams that carry a pair out.
 *
 *      this thread     F0 ----> B1 ----> F2      each takes the segments of its resource in the order
 *       worker          B0 ----> F1 ----> B2      found, as soon as those before in their list are done
 */
#include <dualpipe/segments.h>

#include "base/clock.h"
#include "base/fail.h"
#include "pipeline/setup.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "a has done i segments, b has done j". */
struct node {
    int64_t at_ns;
    int16_t from_a, from_b; /* where the shortest way to it comes from */
};

struct lists {
    const struct dp_segment *segments[2];
    int count[2];
    int64_t end_ns[2][DP_SEGMENTS_MAX + 1]; /* [list][k]: of k segments one after the other */
    struct node nodes[DP_SEGMENTS_MAX + 1][DP_SEGMENTS_MAX + 1];
};

const char *dp_resource_name(enum dp_resource resource)
{
    return resource == DP_RESOURCE_COMPUTE         ? "compute"
           : resource == DP_RESOURCE_COMMUNICATION ? "communication"
                                                   : "none";
}

static int take_list(struct lists *l, int list, const struct dp_segment *segments, int count)
{
    if (count < 0 || count > DP_SEGMENTS_MAX)
        return dp_fail(DP_EINVAL, "list %d: %d segments, expected 0 to %d", list, count,
                       DP_SEGMENTS_MAX);
    l->segments[list] = segments;
    l->count[list] = count;
    l->end_ns[list][0] = 0;
    for (int k = 0; k < count; k++) {
        const struct dp_segment *s = &segments[k];
        if (s->cost_ns < 0 || s->cost_ns > INT64_MAX / (4 * DP_SEGMENTS_MAX))
            return dp_fail(DP_EINVAL, "list %d, segment %d: a cost of %lld ns, expected 0 to %lld",
                           list, k, (long long)s->cost_ns,
                           (long long)(INT64_MAX / (4 * DP_SEGMENTS_MAX)));
        if ((unsigned)s->resource >= DP_RESOURCES)
            return dp_fail(DP_EINVAL, "list %d, segment %d: resource %d, expected compute or "
                                      "communication", list, k, (int)s->resource);
        /* None takes no time at all: else two could start at once in two orders. */
        l->end_ns[list][k + 1] = l->end_ns[list][k] + (s->cost_ns ? s->cost_ns : 1);
    }
    return 0;
}

static void reach(struct lists *l, int from_a, int from_b, int a, int b)
{
    const int64_t da = l->end_ns[0][a] - l->end_ns[0][from_a];
    const int64_t db = l->end_ns[1][b] - l->end_ns[1][from_b];
    const int64_t at_ns = l->nodes[from_a][from_b].at_ns + (da > db ? da : db);

    if (at_ns < l->nodes[a][b].at_ns)
        l->nodes[a][b] = (struct node){at_ns, (int16_t)from_a, (int16_t)from_b};
}

/* Run both from there until one wants what the other uses, and go on by either corner. */
static void walk(struct lists *l, int from_a, int from_b)
{
    const int64_t zero_a = l->end_ns[0][from_a], zero_b = l->end_ns[1][from_b];
    int a = from_a, b = from_b;

    while (a < l->count[0] && b < l->count[1]) {
        if (l->segments[0][a].resource == l->segments[1][b].resource) {
            reach(l, from_a, from_b, a, b + 1);
            reach(l, from_a, from_b, a + 1, b);
            return;
        }
        const int64_t a_ends = l->end_ns[0][a + 1] - zero_a, b_ends = l->end_ns[1][b + 1] - zero_b;
        a += a_ends <= b_ends;
        b += b_ends <= a_ends;
    }
    reach(l, from_a, from_b, l->count[0], l->count[1]);
}

static void find_ways(struct lists *l)
{
    for (int a = 0; a <= l->count[0]; a++)
        for (int b = 0; b <= l->count[1]; b++)
            l->nodes[a][b].at_ns = INT64_MAX;
    l->nodes[0][0] = (struct node){0};
    for (int a = 0; a <= l->count[0]; a++)
        for (int b = 0; b <= l->count[1]; b++)
            if (l->nodes[a][b].at_ns < INT64_MAX)
                walk(l, a, b);
}

/* Both run without a pause from one corner of the way to the next. */
static int place_leg(const struct lists *l, const struct node *to, int a, int b,
                     struct dp_segment_place *places)
{
    const int from[2] = {to->from_a, to->from_b}, end[2] = {a, b};
    const int64_t at_ns = l->nodes[from[0]][from[1]].at_ns;
    int count = 0;

    for (int list = 0; list < 2; list++)
        for (int k = from[list]; k < end[list]; k++)
            places[count++] = (struct dp_segment_place){
                list, k, at_ns + l->end_ns[list][k] - l->end_ns[list][from[list]]};
    return count;
}

static int by_start(const void *pa, const void *pb)
{
    const struct dp_segment_place *a = pa, *b = pb;

    if (a->start_ns != b->start_ns)
        return a->start_ns < b->start_ns ? -1 : 1;
    return a->list - b->list;
}

int dp_segments_order(const struct dp_segment *a, int a_count, const struct dp_segment *b,
                      int b_count, struct dp_segment_place *places, int64_t *makespan_ns)
{
    struct lists l;
    int err = take_list(&l, 0, a, a_count), count = 0;

    if (!err)
        err = take_list(&l, 1, b, b_count);
    if (err)
        return err;
    find_ways(&l);
    *makespan_ns = l.nodes[a_count][b_count].at_ns;
    for (int i = a_count, j = b_count; i || j;) {
        const struct node *to = &l.nodes[i][j];
        count += place_leg(&l, to, i, j, places + count);
        i = to->from_a;
        j = to->from_b;
    }
    qsort(places, (size_t)count, sizeof(*places), by_start);
    return 0;
}

/* ---- stages of segments ---------------------------------------------------------------------- */

enum { SPIN_NS = 50000, PAIRS_KEPT = 8, LISTS = 2 };

/* The order of a pair of stages, as long as it is of these lists. */
struct pair_order {
    const struct dp_segment *forward, *backward; /* NULL: none is kept here */
    int counts[2];
    uint64_t keys[2 * DP_SEGMENTS_MAX];    /* of the segments that it was made of */
    int of_resource[DP_RESOURCES];         /* how many there are */
    struct dp_segment_place places[DP_RESOURCES][2 * DP_SEGMENTS_MAX];
};

/* Those that were looked for last. */
struct known_orders {
    struct pair_order kept[PAIRS_KEPT];
    unsigned next;
};

/* A pair under way. */
struct pair_run {
    const struct pair_order *order;
    struct dp_segmented_stage *stages[2]; /* of the forward, of the backward */
    struct dp_segment_call calls[2];
    atomic_int done[2]; /* segments of each list: what they wrote is seen with the number */
    atomic_int err;     /* of the first that failed: no other begins */
    char why[128];      /* what it said */
};

struct dp_segment_worker {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* any of the numbers that a thread waits for */
    atomic_uint given, taken; /* runs handed to the thread, and ended by it */
    atomic_bool quit;
    struct pair_run run;
    struct known_orders orders;
};

struct dp_segment_streams {
    struct dp_device_stream *of[DP_RESOURCES]; /* compute is the pipeline's */
    struct dp_device_event *listed[LISTS];     /* the last segment of a list that another stream needs */
    struct dp_device_event *edge;              /* where one stream begins or ends with the other */
    struct known_orders orders;
};

/* ---- one segment after the other ------------------------------------------------------------- */

static const struct dp_segment *list_of(const struct dp_segmented_stage *s, int list)
{
    return list ? s->backward : s->forward;
}

static int run_segment(struct dp_segmented_stage *s, int list, int index,
                       const struct dp_segment_call *call)
{
    int64_t *time_ns = s->times_ns ? s->times_ns + (list ? s->forward_count : 0) + index : NULL;
    const int64_t began_ns = time_ns ? dp_now_ns() : 0;
    int err = list_of(s, list)[index].run(s->user, call);

    if (time_ns && !err) {
        const int64_t took_ns = dp_now_ns() - began_ns;
        if (!*time_ns || took_ns < *time_ns)
            *time_ns = took_ns > 0 ? took_ns : 1;
    }
    return err;
}

static int forward(void *user, const struct dp_stage_call *call, const DLTensor *in, DLTensor *out)
{
    struct dp_segmented_stage *s = user;
    const struct dp_segment_call c = {.stage = call, .in = in, .out = out};
    int err = 0;

    for (int k = 0; k < s->forward_count && !err; k++)
        err = run_segment(s, 0, k, &c);
    return err;
}

static int backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                    DLTensor *gin, enum dp_backward_mode mode)
{
    struct dp_segmented_stage *s = user;
    const struct dp_segment_call c = {.stage = call, .gout = gout, .gin = gin};
    int err = 0;

    for (int k = 0; k < s->backward_count && !err; k++)
        if (mode == DP_BACKWARD_FULL || !s->backward[k].weight)
            err = run_segment(s, 1, k, &c);
    return err;
}

static int weight(void *user, const struct dp_stage_call *call)
{
    struct dp_segmented_stage *s = user;
    const struct dp_segment_call c = {.stage = call};
    int err = 0;

    for (int k = 0; k < s->backward_count && !err; k++)
        if (s->backward[k].weight)
            err = run_segment(s, 1, k, &c);
    return err;
}

/* ---- the order of a pair --------------------------------------------------------------------- */

/* What the order depends on: lists may have changed, or others lie where they were. */
static uint64_t key_of(const struct dp_segment *s)
{
    return (uint64_t)s->cost_ns * DP_RESOURCES + (uint64_t)s->resource;
}

static bool is_order_of(const struct pair_order *o, const struct dp_segmented_stage *f,
                        const struct dp_segmented_stage *b)
{
    if (o->forward != f->forward || o->backward != b->backward ||
        o->counts[0] != f->forward_count || o->counts[1] != b->backward_count)
        return false;
    for (int k = 0; k < f->forward_count; k++)
        if (o->keys[k] != key_of(&f->forward[k]))
            return false;
    for (int k = 0; k < b->backward_count; k++)
        if (o->keys[f->forward_count + k] != key_of(&b->backward[k]))
            return false;
    return true;
}

static int make_order(struct pair_order *o, const struct dp_segmented_stage *f,
                      const struct dp_segmented_stage *b)
{
    struct dp_segment_place places[2 * DP_SEGMENTS_MAX];
    int64_t makespan_ns;
    int err = dp_segments_order(f->forward, f->forward_count, b->backward, b->backward_count, places,
                                &makespan_ns);

    if (err)
        return err;
    *o = (struct pair_order){.forward = f->forward,
                             .backward = b->backward,
                             .counts = {f->forward_count, b->backward_count}};
    for (int k = 0; k < f->forward_count; k++)
        o->keys[k] = key_of(&f->forward[k]);
    for (int k = 0; k < b->backward_count; k++)
        o->keys[f->forward_count + k] = key_of(&b->backward[k]);
    for (int i = 0; i < f->forward_count + b->backward_count; i++) {
        const struct dp_segmented_stage *s = places[i].list ? b : f;
        const enum dp_resource r = list_of(s, places[i].list)[places[i].index].resource;
        o->places[r][o->of_resource[r]++] = places[i];
    }
    return 0;
}

static int find_order(struct known_orders *orders, const struct dp_segmented_stage *f,
                      const struct dp_segmented_stage *b, const struct pair_order **out)
{
    for (int i = 0; i < PAIRS_KEPT; i++)
        if (is_order_of(&orders->kept[i], f, b)) {
            *out = &orders->kept[i];
            return 0;
        }
    *out = &orders->kept[orders->next];
    int err = make_order(&orders->kept[orders->next], f, b);
    orders->next = (orders->next + !err) % PAIRS_KEPT;
    return err;
}

/* ---- two threads ------------------------------------------------------------------------------ */

static void wake_others(struct dp_segment_worker *w)
{
    pthread_mutex_lock(&w->lock);
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

/* Wait until is_there(w, arg): a wake-up takes longer than many segments do, so look on for a while
 * first. A segment is the user's code, which ends in its own time, as a callback does. */
static void wait_until(struct dp_segment_worker *w,
                       bool (*is_there)(struct dp_segment_worker *, int), int arg)
{
    const int64_t until_ns = dp_now_ns() + SPIN_NS;

    while (dp_now_ns() < until_ns)
        if (is_there(w, arg))
            return;
    pthread_mutex_lock(&w->lock);
    while (!is_there(w, arg))
        pthread_cond_wait(&w->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

/* arg: 2 * index + list. Or there is nothing to wait for any more. */
static bool is_turn(struct dp_segment_worker *w, int arg)
{
    return atomic_load_explicit(&w->run.done[arg % 2], memory_order_acquire) == arg / 2 ||
           atomic_load_explicit(&w->run.err, memory_order_relaxed);
}

/* Reasons are kept by thread, and the callback is the other one's. */
static void fail(struct pair_run *run, int err)
{
    int none = 0;

    if (atomic_compare_exchange_strong(&run->err, &none, err))
        snprintf(run->why, sizeof(run->why), "%s", dp_callback_reason(err));
}

static void run_resource(struct dp_segment_worker *w, enum dp_resource resource)
{
    struct pair_run *run = &w->run;

    for (int i = 0; i < run->order->of_resource[resource]; i++) {
        const struct dp_segment_place *p = &run->order->places[resource][i];
        wait_until(w, is_turn, 2 * p->index + p->list);
        if (atomic_load_explicit(&run->err, memory_order_relaxed))
            return;
        int err = run_segment(run->stages[p->list], p->list, p->index, &run->calls[p->list]);
        if (err)
            fail(run, err);
        /* What the segment wrote, before the number that lets the next one read it. */
        atomic_store_explicit(&run->done[p->list], p->index + 1, memory_order_release);
        wake_others(w);
    }
}

static bool is_given(struct dp_segment_worker *w, int arg)
{
    (void)arg;
    return atomic_load_explicit(&w->given, memory_order_acquire) !=
               atomic_load_explicit(&w->taken, memory_order_relaxed) ||
           atomic_load_explicit(&w->quit, memory_order_relaxed);
}

static bool is_taken(struct dp_segment_worker *w, int arg)
{
    (void)arg;
    return atomic_load_explicit(&w->taken, memory_order_acquire) ==
           atomic_load_explicit(&w->given, memory_order_relaxed);
}

static void *work(void *arg)
{
    struct dp_segment_worker *w = arg;

    for (;;) {
        wait_until(w, is_given, 0);
        if (atomic_load_explicit(&w->quit, memory_order_relaxed))
            return NULL;
        run_resource(w, DP_RESOURCE_COMMUNICATION);
        atomic_fetch_add_explicit(&w->taken, 1, memory_order_release);
        wake_others(w);
    }
}

static int run_by_threads(struct dp_segment_worker *w, const struct pair_order *order,
                          struct dp_segmented_stage *const *stages,
                          const struct dp_segment_call *calls)
{
    struct pair_run *run = &w->run;

    run->order = order;
    for (int list = 0; list < LISTS; list++) {
        run->stages[list] = stages[list];
        run->calls[list] = calls[list];
        atomic_store(&run->done[list], 0);
    }
    atomic_store(&run->err, 0);
    run->why[0] = '\0';
    atomic_fetch_add_explicit(&w->given, 1, memory_order_release);
    wake_others(w);
    run_resource(w, DP_RESOURCE_COMPUTE);
    wait_until(w, is_taken, 0);
    int err = atomic_load(&run->err);
    return err && *run->why ? dp_callback_error(err, "%s", run->why) : err;
}

/* ---- two streams ------------------------------------------------------------------------------ */

/* What `then` is given from now on comes after what `first` was given. */
static int follow(struct dp_device_event *event, struct dp_device_stream *first,
                  struct dp_device_stream *then)
{
    int err = dp_device_event_record(event, first);

    return err ? err : dp_device_stream_wait(then, event);
}

static bool is_elsewhere(const struct dp_segmented_stage *s, int list, int index,
                         enum dp_resource resource)
{
    const int count = list ? s->backward_count : s->forward_count;

    return index >= 0 && index < count && list_of(s, list)[index].resource != resource;
}

static int queue_segment(struct dp_segment_streams *st, struct dp_segmented_stage *s,
                         const struct dp_segment_place *p, const struct dp_segment_call *call)
{
    const enum dp_resource resource = list_of(s, p->list)[p->index].resource;
    struct dp_device_stream *stream = st->of[resource];
    struct dp_device_event *listed = st->listed[p->list];
    struct dp_stage_call stage = *call->stage;
    struct dp_segment_call own = *call;
    int err = 0;

    own.stage = &stage;
    stage.stream = dp_device_stream_native(stream);
    if (is_elsewhere(s, p->list, p->index - 1, resource))
        err = dp_device_stream_wait(stream, listed);
    if (!err)
        err = run_segment(s, p->list, p->index, &own);
    if (!err && is_elsewhere(s, p->list, p->index + 1, resource))
        err = dp_device_event_record(listed, stream);
    return err;
}

/* Each resource in its order, and each list in its own: one of the two can always go on. */
static int queue_pair(struct dp_segment_streams *st, const struct pair_order *order,
                      struct dp_segmented_stage *const *stages, const struct dp_segment_call *calls)
{
    int at[DP_RESOURCES] = {0}, queued[LISTS] = {0};
    int err = 0;

    while (!err && queued[0] + queued[1] < order->counts[0] + order->counts[1])
        for (int r = 0; r < DP_RESOURCES && !err; r++) {
            const struct dp_segment_place *p = &order->places[r][at[r]];
            if (at[r] == order->of_resource[r] || queued[p->list] != p->index)
                continue;
            err = queue_segment(st, stages[p->list], p, &calls[p->list]);
            at[r]++;
            queued[p->list]++;
        }
    return err;
}

static int run_by_streams(struct dp_segment_streams *st, const struct pair_order *order,
                          struct dp_segmented_stage *const *stages,
                          const struct dp_segment_call *calls)
{
    struct dp_device_stream *compute = st->of[DP_RESOURCE_COMPUTE],
                            *communication = st->of[DP_RESOURCE_COMMUNICATION];
    int err = follow(st->edge, compute, communication);

    if (err)
        return err;
    err = queue_pair(st, order, stages, calls);
    int joined = follow(st->edge, communication, compute);
    return err ? err : joined;
}

/* ---- the callbacks ---------------------------------------------------------------------------- */

static int forward_backward(const struct dp_pair *pair)
{
    struct dp_segmented_stage *const stages[LISTS] = {pair->forward.user, pair->backward.user};
    struct dp_segment_streams *streams = stages[0]->streams;
    struct dp_segment_worker *worker = stages[0]->worker;
    const struct dp_segment_call calls[LISTS] = {
        {.stage = pair->forward.call, .in = pair->forward.in, .out = pair->forward.out},
        {.stage = pair->backward.call, .gout = pair->backward.gout, .gin = pair->backward.gin}};
    const struct pair_order *order;

    if (!streams && !worker)
        return dp_callback_error(DP_EINVAL, "a stage of segments without a worker or streams, expected "
                                            "one of them for overlapped pairs");
    int err = dp_pair_start_from_loss(pair);

    if (!err)
        err = find_order(streams ? &streams->orders : &worker->orders, stages[0], stages[1], &order);
    if (!err)
        err = streams ? run_by_streams(streams, order, stages, calls)
                      : run_by_threads(worker, order, stages, calls);
    return err ? err : dp_pair_take_loss(pair);
}

const struct dp_stage_ops *dp_segment_stage_ops(void)
{
    static const struct dp_stage_ops ops = {
        .forward = forward,
        .backward = backward,
        .weight = weight,
        .fwd_bwd = forward_backward,
    };
    return &ops;
}

/* ---- the worker ------------------------------------------------------------------------------- */

/* Signals are for the program's own threads. */
static int start_thread(struct dp_segment_worker *w)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&w->thread, NULL, work, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error ? dp_fail(DP_EIO, "cannot start a thread: %s", strerror(error)) : 0;
}

static void free_memory(struct dp_segment_worker *w)
{
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

int dp_segment_worker_new(struct dp_segment_worker **out)
{
    struct dp_segment_worker *w = calloc(1, sizeof(*w));

    if (!w)
        return dp_fail(DP_ENOMEM, "no memory for a thread that communicates");
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    int err = start_thread(w);
    if (err)
        free_memory(w);
    else
        *out = w;
    return err;
}

void dp_segment_worker_free(struct dp_segment_worker *w)
{
    if (!w)
        return;
    atomic_store_explicit(&w->quit, true, memory_order_relaxed);
    wake_others(w);
    pthread_join(w->thread, NULL);
    free_memory(w);
}

/* ---- the streams ------------------------------------------------------------------------------ */

int dp_segment_streams_new(struct dp_device *dev, struct dp_device_stream *compute,
                           struct dp_segment_streams **out)
{
    if (!dev || !compute || !out)
        return dp_fail(DP_EINVAL, "streams for segments: expected a device, a stream of it for "
                                  "compute, and room for the result");
    if (!dp_device_stream_native(compute))
        return dp_fail(DP_EUNSUPPORTED, "streams for segments: a stage on the host computes in its "
                                        "callback; expected a CUDA device, or dp_segment_worker_new");
    struct dp_segment_streams *st = calloc(1, sizeof(*st));
    if (!st)
        return dp_fail(DP_ENOMEM, "no memory for streams for segments");
    st->of[DP_RESOURCE_COMPUTE] = compute;
    int err = dp_device_stream_new(dev, DP_PRIORITY_HIGH, &st->of[DP_RESOURCE_COMMUNICATION]);
    for (int list = 0; list < LISTS && !err; list++)
        err = dp_device_event_new(dev, &st->listed[list]);
    if (!err)
        err = dp_device_event_new(dev, &st->edge);
    if (err)
        dp_segment_streams_free(st);
    else
        *out = st;
    return err;
}

void dp_segment_streams_free(struct dp_segment_streams *st)
{
    if (!st)
        return;
    dp_device_stream_free(st->of[DP_RESOURCE_COMMUNICATION]);
    for (int list = 0; list < LISTS; list++)
        dp_device_event_free(st->listed[list]);
    dp_device_event_free(st->edge);
    free(st);
}
