/* SPDX-License-Identifier: Apache-2.0
 *
 * engine.c - the steps of collectives, posted and finished in order.
 */
#include "comm/engine.h"

#include "comm/comm_ops.h"

#include "base/fail.h"

#include <dualpipe/memory.h>

#include <stdio.h>
#include <stdlib.h>

struct dp_collective {
    struct dp_collective *next; /* of the running ones, of those that wait, or of the free ones */
    struct dp_collective *made; /* the one that was made before it */
    struct dp_comm *comm;
    const struct dp_algorithm *algorithm;
    struct dp_collective_args args;
    char *scratch, *staging;
    size_t scratch_bytes, staging_bytes;
    uint64_t tag;
    int steps;
    int posted, sent, finished; /* receives, sends, steps */
    bool is_over;
    bool has_messages; /* of the first unfinished step: its work is what is left */
    int error; /* once it is over */
    /* Of the steps from `finished` to `posted`; the rest is of earlier collectives. */
    struct dp_step window[DP_STEP_WINDOW];
    struct dp_request sends[DP_STEP_WINDOW], receives[DP_STEP_WINDOW];
};

struct dp_engine {
    struct dp_comm *world;
    struct dp_collective *running, *waiting, *free;
    struct dp_collective *made; /* all there are: one that was dropped may never be tested again */
    bool no_staging; /* the system has given none: it is not asked, and the log not told, again */
};

/* What a request has once its collective is given back; that one may belong to another request
 * then. */
struct ended_request {
    struct dp_request_head head; /* of `ended` */
    int error;
};
_Static_assert(sizeof(struct ended_request) <= sizeof(struct dp_request), "a request fits");

static struct dp_collective ended = {.is_over = true};

static struct dp_collective *of(const struct dp_request *req)
{
    return ((const struct dp_request_head *)req)->collective;
}

/* ---- memory: what was used once stays -------------------------------------------------------- */

int dp_engine_new(struct dp_comm *world, struct dp_engine **out)
{
    struct dp_engine *engine = calloc(1, sizeof(*engine));

    if (!engine)
        return dp_fail(DP_ENOMEM, "no memory for collectives");
    engine->world = world;
    *out = engine;
    return 0;
}

void dp_engine_free(struct dp_engine *engine)
{
    if (!engine)
        return;
    while (engine->made) {
        struct dp_collective *c = engine->made;
        engine->made = c->made;
        free(c->scratch);
        dp_shared_free(c->staging);
        free(c);
    }
    free(engine);
}

static void push(struct dp_collective **list, struct dp_collective *c)
{
    c->next = *list;
    *list = c;
}

static void append(struct dp_collective **list, struct dp_collective *c)
{
    while (*list)
        list = &(*list)->next;
    c->next = NULL;
    *list = c;
}

static void unlink_from(struct dp_collective **list, const struct dp_collective *c)
{
    while (*list && *list != c)
        list = &(*list)->next;
    if (*list)
        *list = c->next;
}

static struct dp_collective *make(struct dp_engine *engine)
{
    struct dp_collective *c = calloc(1, sizeof(*c));

    if (c) {
        c->made = engine->made;
        engine->made = c;
    }
    return c;
}

/* One that is large enough, if there is one. */
static struct dp_collective *take_free(struct dp_engine *engine, size_t scratch_bytes)
{
    struct dp_collective **best = &engine->free;

    for (struct dp_collective **at = &engine->free; *at; at = &(*at)->next)
        if ((*at)->scratch_bytes >= scratch_bytes) {
            best = at;
            break;
        }
    struct dp_collective *c = *best;
    if (c)
        *best = c->next;
    else
        c = make(engine);
    if (!c || c->scratch_bytes >= scratch_bytes)
        return c;
    free(c->scratch);
    c->scratch = malloc(scratch_bytes);
    c->scratch_bytes = c->scratch ? scratch_bytes : 0;
    if (!c->scratch) {
        push(&engine->free, c);
        return NULL;
    }
    return c;
}

/* Without it there is another way. */
static char *take_staging(struct dp_engine *engine, struct dp_collective *c, size_t bytes)
{
    void *staging;

    if (bytes <= c->staging_bytes)
        return bytes ? c->staging : NULL;
    if (engine->no_staging || dp_shared_alloc(bytes, -1, &staging)) {
        engine->no_staging = true;
        return NULL;
    }
    dp_shared_free(c->staging);
    c->staging = staging;
    c->staging_bytes = bytes;
    return staging;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static int post_receive(struct dp_engine *engine, struct dp_collective *c)
{
    const int slot = c->posted % DP_STEP_WINDOW;
    const struct dp_step *step = &c->window[slot];

    if (step->receive_from >= 0) {
        int err = engine->world->ops->irecv(engine->world,
                                            dp_comm_world_rank(c->comm, step->receive_from),
                                            c->comm->first_channel + DP_CHANNEL_COLLECTIVE, c->tag,
                                            step->receive, step->receive_len, &c->receives[slot]);
        if (err)
            return err;
    }
    c->posted++;
    return 0;
}

static int post_send(struct dp_engine *engine, struct dp_collective *c)
{
    const int slot = c->sent % DP_STEP_WINDOW;
    const struct dp_step *step = &c->window[slot];

    if (step->send_to >= 0) {
        int err =
            engine->world->ops->isend(engine->world, dp_comm_world_rank(c->comm, step->send_to),
                                      c->comm->first_channel + DP_CHANNEL_COLLECTIVE, c->tag, step->send,
                                      step->send_len, &c->sends[slot]);
        if (err)
            return err;
    }
    c->sent++;
    return 0;
}

static void act(const struct dp_collective *c, const struct dp_step *step)
{
    const struct dp_reducer *r = c->args.reducer;

    if (step->action == DP_STEP_COMBINE && step->count)
        r->combine(step->dst, step->a, step->b, step->count);
    if (step->action != DP_STEP_ACCUMULATE || !step->count)
        return;
    (step->first ? r->widen : r->add)(step->acc, step->a, step->count);
    if (step->last) {
        r->add(step->acc, step->b, step->count);
        r->round(step->dst, step->acc, step->count);
    }
}

/* DP_EAGAIN while a part of the first unfinished step is in flight. */
static int test_part(struct dp_engine *engine, int peer, struct dp_request *req)
{
    const struct dp_comm_ops *ops = engine->world->ops;

    if (peer < 0)
        return 0;
    return ops->is_done(engine->world, req) ? ops->test(engine->world, req) : DP_EAGAIN;
}

static int finish_step(struct dp_engine *engine, struct dp_collective *c)
{
    const int slot = c->finished % DP_STEP_WINDOW;
    const struct dp_step *step = &c->window[slot];

    if (c->finished == c->sent)
        return DP_EAGAIN;
    int err = c->has_messages ? 0 : test_part(engine, step->receive_from, &c->receives[slot]);
    if (!err && !c->has_messages)
        err = test_part(engine, step->send_to, &c->sends[slot]);
    if (err)
        return err;
    c->has_messages = true;
    act(c, step);
    if (c->algorithm->work)
        err = c->algorithm->work(&c->args, c->finished);
    if (err)
        return err;
    c->has_messages = false;
    c->finished++;
    return 0;
}

static bool can_send(const struct dp_collective *c, int index)
{
    return c->window[index % DP_STEP_WINDOW].after <= c->finished;
}

/* The send first: the other rank waits for it, and looks for messages when its own is on its way. */
static int begin_step(struct dp_engine *engine, struct dp_collective *c)
{
    c->algorithm->step(&c->args, c->posted, &c->window[c->posted % DP_STEP_WINDOW]);
    int err = c->sent == c->posted && can_send(c, c->sent) ? post_send(engine, c) : 0;

    return err ? err : post_receive(engine, c);
}

/* DP_EAGAIN: nothing more can be done now. 0: all steps are finished. */
static int advance(struct dp_engine *engine, struct dp_collective *c)
{
    int err = 0;

    while (!err && c->finished < c->steps) {
        while (!err && c->posted < c->steps && c->posted < c->finished + DP_STEP_WINDOW)
            err = begin_step(engine, c);
        while (!err && c->sent < c->posted && can_send(c, c->sent))
            err = post_send(engine, c);
        if (!err)
            err = finish_step(engine, c);
    }
    return err;
}

/* ---- running --------------------------------------------------------------------------------- */

/* The group is of no use once a rank has failed in a collective; and after an abort no request
 * refers to a caller's memory any more. */
static int fail_group(struct dp_engine *engine, const struct dp_collective *c, int err)
{
    struct dp_abort why = {.rank = engine->world->rank, .error = err};

    if (err == DP_EABORTED)
        return err;
    snprintf(why.text, sizeof(why.text), "%s (in a collective, by the algorithm '%s')",
             dp_last_error(), c->algorithm->name);
    engine->world->ops->abort(engine->world, &why);
    engine->world->ops->progress(engine->world, -1); /* which ends what is in flight */
    return err;
}

static void begin(struct dp_collective *c)
{
    if (c->algorithm->begin)
        c->algorithm->begin(&c->args);
}

static void start_next(struct dp_engine *engine, const struct dp_comm *comm)
{
    struct dp_collective *c = engine->waiting;

    while (c && c->comm != comm)
        c = c->next;
    if (!c)
        return;
    unlink_from(&engine->waiting, c);
    append(&engine->running, c);
    begin(c);
}

static uint64_t tag_of(const struct dp_algorithm *algorithm, uint64_t number)
{
    return (uint64_t)algorithm->kind << 56 | number;
}

/* Whether it goes on with another algorithm. */
static bool goes_on(struct dp_collective *c)
{
    if (!c->algorithm->next)
        return false;
    c->algorithm = c->algorithm->next(&c->args);
    c->tag = tag_of(c->algorithm, c->tag & (UINT64_MAX >> 8));
    c->steps = c->algorithm->steps(&c->args);
    c->posted = c->sent = c->finished = 0;
    begin(c);
    return true;
}

static void end(struct dp_engine *engine, struct dp_collective *c, int err)
{
    if (!err && c->algorithm->end)
        c->algorithm->end(&c->args);
    c->error = err;
    c->is_over = true;
    unlink_from(&engine->running, c);
    if (!err)
        start_next(engine, c->comm);
}

/* ---- groups that survive --------------------------------------------------------------------- */

static void cancel(struct dp_engine *engine, bool there_is, struct dp_request *req)
{
    if (there_is && !engine->world->ops->is_done(engine->world, req))
        engine->world->ops->survival->cancel(engine->world, req);
}

static void cancel_parts(struct dp_engine *engine, struct dp_collective *c)
{
    for (int i = c->finished; i < c->posted || i < c->sent; i++) {
        const int slot = i % DP_STEP_WINDOW;
        cancel(engine, i < c->posted && c->window[slot].receive_from >= 0, &c->receives[slot]);
        cancel(engine, i < c->sent && c->window[slot].send_to >= 0, &c->sends[slot]);
    }
}

/* Those of the same communicator that come after it cannot succeed either. */
static void give_up(struct dp_engine *engine, struct dp_collective *c, int err)
{
    cancel_parts(engine, c);
    unlink_from(&engine->running, c);
    if (c->algorithm->drop)
        c->algorithm->drop(&c->args);
    c->error = err;
    c->is_over = true;
    c->comm->is_broken = true;
    for (struct dp_collective **at = &engine->waiting; *at;) {
        struct dp_collective *later = *at;
        if (later->comm != c->comm) {
            at = &later->next;
            continue;
        }
        *at = later->next;
        later->error = err;
        later->is_over = true;
    }
}

static bool has_died(const struct dp_engine *engine, const struct dp_collective *c)
{
    const struct dp_comm_hooks *hooks = engine->world->hooks;

    return hooks && hooks->find_dead(c->comm) >= 0;
}

static bool is_listed(const struct dp_collective *list, const struct dp_collective *c)
{
    while (list && list != c)
        list = list->next;
    return list;
}

void dp_engine_cancel(struct dp_engine *engine, const struct dp_request *req, int error)
{
    struct dp_collective *c = of(req);

    if (is_listed(engine->running, c)) {
        give_up(engine, c, error);
        return;
    }
    for (struct dp_collective *first = engine->running; first && !c->is_over; first = first->next)
        if (first->comm == c->comm) {
            give_up(engine, first, error);
            return;
        }
}

static int advance_alive(struct dp_engine *engine, struct dp_collective *c)
{
    if (c->comm->is_revoked)
        return DP_EABORTED;
    return has_died(engine, c) ? DP_ECOMM : advance(engine, c);
}

static bool fail_alone(struct dp_engine *engine, struct dp_collective *c, int err)
{
    if (!engine->world->hooks || (err == DP_EABORTED && !c->comm->is_revoked))
        return false;
    give_up(engine, c, err);
    return true;
}

void dp_engine_progress(struct dp_engine *engine)
{
    for (struct dp_collective *c = engine->running, *next; c; c = next) {
        int err = advance_alive(engine, c);
        while (!err && goes_on(c))
            err = advance(engine, c);
        if (err && err != DP_EAGAIN) {
            next = c->next;
            if (fail_alone(engine, c, err))
                continue;
            fail_group(engine, c, err);
            dp_engine_drop(engine, NULL, err);
            return;
        }
        /* A collective that ends appends the next one of its communicator to the list. */
        if (!err)
            end(engine, c, 0);
        next = c->next;
    }
}

bool dp_engine_ready(const struct dp_engine *engine)
{
    const struct dp_comm_ops *ops = engine->world->ops;

    for (const struct dp_collective *c = engine->running; c; c = c->next) {
        const int slot = c->finished % DP_STEP_WINDOW;
        const struct dp_step *step = &c->window[slot];
        if (c->finished == c->sent || c->has_messages ||
            ((step->receive_from < 0 || ops->is_done(engine->world, &c->receives[slot])) &&
             (step->send_to < 0 || ops->is_done(engine->world, &c->sends[slot]))))
            return true;
    }
    return false;
}

bool dp_engine_busy(const struct dp_engine *engine)
{
    return engine->running;
}

struct dp_comm *dp_engine_comm(const struct dp_request *req)
{
    return of(req)->comm;
}

int dp_engine_test(struct dp_engine *engine, struct dp_request *req)
{
    struct dp_collective *c = of(req);

    if (!c->is_over)
        return DP_EAGAIN;
    struct ended_request *r = (struct ended_request *)req;
    if (c == &ended)
        return r->error;
    *r = (struct ended_request){{&ended}, c->error};
    push(&engine->free, c);
    return r->error;
}

/* The one that is under way, for a collective that has not begun because of it. */
static const struct dp_collective *find_running(const struct dp_engine *engine,
                                                const struct dp_collective *c)
{
    const struct dp_collective *first = engine->running;

    if (c->is_over)
        return c;
    while (first && first->comm != c->comm)
        first = first->next;
    return first ? first : c;
}

const struct dp_request *dp_engine_waits_for(const struct dp_engine *engine,
                                             const struct dp_request *req, int *world_peer)
{
    const struct dp_collective *c = find_running(engine, of(req));

    *world_peer = -1;
    if (c->is_over || c->finished == c->sent || c->has_messages)
        return NULL;
    const int slot = c->finished % DP_STEP_WINDOW;
    const struct dp_step *step = &c->window[slot];
    const bool receives =
        step->receive_from >= 0 && !engine->world->ops->is_done(engine->world, &c->receives[slot]);
    const int peer = receives ? step->receive_from : step->send_to;
    if (peer < 0)
        return NULL;
    *world_peer = dp_comm_world_rank(c->comm, peer);
    return receives ? &c->receives[slot] : &c->sends[slot];
}

static void drop_list(struct dp_collective **list, const struct dp_comm *comm, int error)
{
    while (*list) {
        struct dp_collective *c = *list;
        if (comm && c->comm != comm) {
            list = &c->next;
            continue;
        }
        *list = c->next;
        if (c->algorithm->drop)
            c->algorithm->drop(&c->args);
        c->is_over = true;
        c->error = error;
    }
}

void dp_engine_drop(struct dp_engine *engine, const struct dp_comm *comm, int error)
{
    drop_list(&engine->running, comm, error);
    drop_list(&engine->waiting, comm, error);
}

/* ---- starting -------------------------------------------------------------------------------- */

static bool is_running(const struct dp_engine *engine, const struct dp_comm *comm)
{
    for (const struct dp_collective *c = engine->running; c; c = c->next)
        if (c->comm == comm)
            return true;
    return false;
}

/* Not the whole of it: a short all-reduce takes little longer than to clear the requests. */
static void set_up(struct dp_collective *c, struct dp_comm *comm,
                   const struct dp_algorithm *algorithm, const struct dp_collective_args *args)
{
    c->comm = comm;
    c->algorithm = algorithm;
    c->args = *args;
    c->args.scratch = c->scratch;
    c->posted = c->sent = c->finished = c->error = 0;
    c->is_over = c->has_messages = false;
}

static int start(struct dp_engine *engine, struct dp_comm *comm,
                 const struct dp_algorithm *algorithm, const struct dp_collective_args *args,
                 struct dp_collective **out)
{
    const size_t bytes = algorithm->scratch_bytes ? algorithm->scratch_bytes(args) : 0;
    struct dp_collective *c = take_free(engine, bytes);

    if (!c)
        return dp_fail(DP_ENOMEM, "no memory for a collective (%s, %zu bytes)", algorithm->name,
                       bytes);
    set_up(c, comm, algorithm, args);
    if (algorithm->staging_bytes)
        c->args.staging = take_staging(engine, c, algorithm->staging_bytes(args));
    c->steps = algorithm->steps(&c->args);
    *out = c;
    return 0;
}

int dp_engine_start(struct dp_engine *engine, struct dp_comm *comm,
                    const struct dp_algorithm *algorithm, const struct dp_collective_args *args,
                    struct dp_request *req)
{
    struct dp_collective *c = NULL;

    if (comm->is_broken)
        return dp_fail_quietly(DP_ECOMM,
                               "an earlier collective of this communicator failed; expected one "
                               "of the survivors (dp_comm_shrink)");
    int err = start(engine, comm, algorithm, args, &c);
    if (err)
        return err;
    c->tag = tag_of(algorithm, comm->collectives++);
    ((struct dp_request_head *)req)->collective = c;
    if (is_running(engine, comm)) {
        append(&engine->waiting, c);
        return 0;
    }
    append(&engine->running, c);
    begin(c);
    dp_engine_progress(engine);
    return 0;
}
