/* SPDX-License-Identifier: Apache-2.0
 *
 * controller.c - a call and its answer are two messages each way: one of known length that says how
 * long the second is. They have a communicator of their own, so they meet no other message.
 */
#include <dualpipe/asyncpipe.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/sized.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tags: which of the two. */
enum { HEAD, BODY };

struct call_head {
    uint64_t len;
    int32_t ends; /* 1: no call any more */
    char name[DP_FUNCTION_NAME];
};

struct answer_head {
    uint64_t len;
    int32_t error;
    char text[sizeof(((struct dp_answer *)0)->text)];
};

struct dp_reply {
    char *data;
    size_t len, room, max;
};

struct dp_controller {
    struct dp_controller_config config;
    struct dp_comm *comm; /* its own */
    int rank, size;
    struct dp_reply *replies; /* [size] rank 0: answers; elsewhere [rank] is this rank's own */
    struct dp_reply argument; /* of the call that is served */
    struct answer_head *heads; /* [size] */
    struct call_head call;
    bool *called;                /* [size] */
    struct dp_request *requests; /* [3 * size] */
};

/* ---- answers ---------------------------------------------------------------------------------- */

static int reserve(struct dp_reply *r, size_t len)
{
    if (len <= r->room)
        return 0;
    char *data = dp_array_grow(r->data, &r->room, len, 1);
    if (!data)
        return dp_fail(DP_ENOMEM, "no memory for %zu bytes of a call or an answer", len);
    r->data = data;
    return 0;
}

int dp_reply_put(struct dp_reply *reply, const void *bytes, size_t len)
{
    if (!reply || (len && !bytes) || len > reply->max - reply->len)
        return dp_fail(DP_EINVAL, "an answer of %zu bytes more, expected at most %zu", len,
                       reply ? reply->max - reply->len : 0);
    int err = reserve(reply, reply->len + len);
    if (err)
        return err;
    if (len)
        memcpy(reply->data + reply->len, bytes, len);
    reply->len += len;
    return 0;
}

/* ---- open and close --------------------------------------------------------------------------- */

static int check_functions(const struct dp_controller_config *config)
{
    if (config->function_count < 0 || (config->function_count && !config->functions))
        return dp_fail(DP_EINVAL, "functions: %d at %p, expected at least 0",
                       config->function_count, (const void *)config->functions);
    for (int32_t i = 0; i < config->function_count; i++) {
        const struct dp_worker_function *f = &config->functions[i];
        if (!f->name || !*f->name || strlen(f->name) >= DP_FUNCTION_NAME || !f->call)
            return dp_fail(DP_EINVAL,
                           "functions[%d]: expected a name of 1 to %d characters and a call", i,
                           DP_FUNCTION_NAME - 1);
        for (int32_t k = 0; k < i; k++)
            if (!strcmp(config->functions[k].name, f->name))
                return dp_fail(DP_EINVAL, "functions[%d]: the name '%s' is there twice", i,
                               f->name);
    }
    return 0;
}

static int make_room(struct dp_controller *c)
{
    const size_t size = (size_t)c->size;

    c->replies = calloc(size, sizeof(*c->replies));
    c->heads = calloc(size, sizeof(*c->heads));
    c->called = calloc(size, sizeof(*c->called));
    c->requests = calloc(3 * size, sizeof(*c->requests));
    c->argument.max = c->config.max_bytes;
    for (size_t i = 0; c->replies && i < size; i++)
        c->replies[i].max = c->config.max_bytes;
    return c->replies && c->heads && c->called && c->requests
               ? 0
               : dp_fail(DP_ENOMEM, "no memory for a controller of %d ranks", c->size);
}

static void free_controller(struct dp_controller *c)
{
    for (int r = 0; r < c->size && c->replies; r++)
        free(c->replies[r].data);
    free(c->argument.data);
    free(c->replies);
    free(c->heads);
    free(c->called);
    free(c->requests);
    if (c->comm)
        dp_comm_close(c->comm);
    free(c);
}

/* What went wrong here is known everywhere before any rank goes on. */
static int open_all(struct dp_controller *c, int err)
{
    err = dp_comm_share_error(c->config.comm, err);
    if (!err)
        err = dp_comm_split(c->config.comm, 0, dp_comm_rank(c->config.comm), &c->comm);
    if (!err)
        err = dp_comm_agree(c->comm, "max_bytes of a controller", c->config.max_bytes);
    return err;
}

int dp_controller_open_sized(const struct dp_controller_config *config, struct dp_controller **out,
                             size_t size)
{
    DP_TAKE_KNOWN(dp_controller_config, config, size);
    if (!config || !config->comm)
        return dp_fail(DP_EINVAL, "a controller without a communicator");
    struct dp_controller *c = calloc(1, sizeof(*c));
    if (!c)
        return dp_fail(DP_ENOMEM, "no memory for a controller");
    int err = config_err ? config_err : check_functions(config);
    c->config = *config;
    c->rank = dp_comm_rank(config->comm);
    c->size = dp_comm_size(config->comm);
    if (!c->config.max_bytes)
        c->config.max_bytes = (size_t)1 << 30;
    if (!err)
        err = make_room(c);
    err = open_all(c, err);
    if (err)
        free_controller(c);
    else
        *out = c;
    return err;
}

/* ---- messages --------------------------------------------------------------------------------- */

static struct dp_request *request_of(const struct dp_controller *c, int rank, int which)
{
    return &c->requests[3 * (size_t)rank + (size_t)which];
}

static int isend(struct dp_controller *c, int rank, int part, const void *data, size_t len)
{
    return dp_comm_isend(c->comm, rank, DP_CHANNEL_CONTROL, (uint64_t)part, data, len,
                         request_of(c, rank, part));
}

static int receive(struct dp_controller *c, int rank, int part, void *data, size_t len)
{
    struct dp_request *request = request_of(c, rank, 2);
    int err = dp_comm_irecv(c->comm, rank, DP_CHANNEL_CONTROL, (uint64_t)part, data, len, request);

    return err ? err : dp_comm_wait(c->comm, request, rank);
}

static int wait_sent(struct dp_controller *c, int rank, int part)
{
    return dp_comm_wait(c->comm, request_of(c, rank, part), rank);
}

/* ---- a function of this rank ----------------------------------------------------------------- */

static void run(struct dp_controller *c, const char *name, const void *arg, size_t len)
{
    const struct dp_controller_config *config = &c->config;
    struct answer_head *head = &c->heads[c->rank];
    struct dp_reply *reply = &c->replies[c->rank];
    int32_t i = 0;

    reply->len = 0;
    while (i < config->function_count && strcmp(config->functions[i].name, name))
        i++;
    const struct dp_worker_function *f =
        i < config->function_count ? &config->functions[i] : NULL;
    head->error = f ? f->call(f->user, arg, len, reply)
                    : dp_fail(DP_ENOENT, "rank %d offers no function '%s'", c->rank, name);
    head->len = reply->len;
    snprintf(head->text, sizeof(head->text), "%s", head->error ? dp_last_error() : "");
}

/* ---- workers ---------------------------------------------------------------------------------- */

static int take_call(struct dp_controller *c)
{
    const int64_t deadline_ns = dp_comm_deadline(c->config.comm);
    struct call_head *call = &c->call;

    dp_comm_set_deadline(c->comm, c->config.idle_ns > 0 ? c->config.idle_ns : deadline_ns);
    int err = receive(c, 0, HEAD, call, sizeof(*call));
    dp_comm_set_deadline(c->comm, deadline_ns);
    if (err || call->ends)
        return err;
    call->name[DP_FUNCTION_NAME - 1] = '\0';
    if (call->len > c->config.max_bytes)
        return dp_fail(DP_EMISMATCH, "a call with %llu bytes, expected at most %zu",
                       (unsigned long long)call->len, c->config.max_bytes);
    err = reserve(&c->argument, call->len);
    return err || !call->len ? err : receive(c, 0, BODY, c->argument.data, call->len);
}

static int answer(struct dp_controller *c)
{
    const struct dp_reply *reply = &c->replies[c->rank];
    int err = isend(c, 0, HEAD, &c->heads[c->rank], sizeof(c->heads[c->rank]));

    if (!err && reply->len)
        err = isend(c, 0, BODY, reply->data, reply->len);
    if (!err)
        err = wait_sent(c, 0, HEAD);
    return err || !reply->len ? err : wait_sent(c, 0, BODY);
}

/* Whether ranks still agree on what comes next is not known after any failure. */
static int end_group(struct dp_controller *c, int err)
{
    char first[DP_ABORT_TEXT];

    if (!err || err == DP_EABORTED)
        return err;
    snprintf(first, sizeof(first), "%s", dp_last_error());
    dp_comm_abort(c->comm, err, first);
    return dp_fail_quietly(err, "%s", first);
}

int dp_controller_serve(struct dp_controller *c)
{
    int err = 0;

    if (!c || !c->rank)
        return dp_fail(DP_ESTATE, "dp_controller_serve: expected a worker, rank 1 or more");
    while (!err && !(err = take_call(c)) && !c->call.ends) {
        run(c, c->call.name, c->argument.data, c->call.len);
        err = answer(c);
    }
    return end_group(c, err);
}

/* ---- the controller -------------------------------------------------------------------------- */

static int send_call(struct dp_controller *c, int rank, const void *arg)
{
    int err = isend(c, rank, HEAD, &c->call, sizeof(c->call));

    return err || !c->call.len ? err : isend(c, rank, BODY, arg, c->call.len);
}

static int collect(struct dp_controller *c, int rank)
{
    struct answer_head *head = &c->heads[rank];
    struct dp_reply *reply = &c->replies[rank];

    int err = receive(c, rank, HEAD, head, sizeof(*head));
    if (err)
        return err;
    head->text[sizeof(head->text) - 1] = '\0';
    if (head->len > c->config.max_bytes)
        return dp_fail(DP_EMISMATCH, "rank %d: an answer of %llu bytes, expected at most %zu", rank,
                       (unsigned long long)head->len, c->config.max_bytes);
    err = reserve(reply, head->len);
    reply->len = head->len;
    return err || !head->len ? err : receive(c, rank, BODY, reply->data, head->len);
}

static int end_sends(struct dp_controller *c, int rank)
{
    int err = wait_sent(c, rank, HEAD);

    return err || !c->call.len ? err : wait_sent(c, rank, BODY);
}

/* What is left of the deadline, for the next rank. */
static void set_left(struct dp_controller *c, int64_t until_ns)
{
    const int64_t left_ns = until_ns - dp_now_ns();

    dp_comm_set_deadline(c->comm, left_ns > 0 ? left_ns : 1);
}

/* Calls first, then rank 0's own part, then the answers in order of ranks: *answered is how many
 * ranks, from 0 on, have given theirs or were not called. */
static int call_all(struct dp_controller *c, const void *arg, int64_t until_ns, int *answered)
{
    int err = 0;

    for (int rank = 1; rank < c->size && !err; rank++)
        if (c->called[rank])
            err = send_call(c, rank, arg);
    if (!err && c->called[0]) {
        dp_comm_progress_start(c->comm);
        run(c, c->call.name, arg, c->call.len);
    }
    for (int rank = 0; rank < c->size && !err; rank++) {
        set_left(c, until_ns);
        if (rank && c->called[rank])
            err = collect(c, rank);
        *answered += !err;
    }
    for (int rank = 1; rank < c->size && !err; rank++)
        if (c->called[rank])
            err = end_sends(c, rank);
    return err;
}

static void fill_answers(const struct dp_controller *c, int answered, struct dp_answer *answers)
{
    for (int rank = 0; rank < c->size && answers; rank++) {
        struct dp_answer *a = &answers[rank];
        *a = (struct dp_answer){.error = DP_EAGAIN};
        if (!c->called[rank] || rank >= answered)
            continue;
        a->error = c->heads[rank].error;
        a->data = c->replies[rank].data;
        a->len = c->replies[rank].len;
        memcpy(a->text, c->heads[rank].text, sizeof(a->text));
    }
}

static int judge(const struct dp_controller *c)
{
    int failed = 0, first = -1;

    for (int rank = c->size - 1; rank >= 0; rank--)
        if (c->called[rank] && c->heads[rank].error) {
            failed++;
            first = rank;
        }
    if (!failed)
        return 0;
    return dp_fail(DP_ECALLBACK, "'%s' failed on %d of %d ranks, first on rank %d with %d (%s): %s",
                   c->call.name, failed, c->size, first, c->heads[first].error,
                   dp_strerror(c->heads[first].error), c->heads[first].text);
}

static int check_call(const struct dp_controller *c, const char *name, const void *arg, size_t len)
{
    if (!c || c->rank)
        return dp_fail(DP_ESTATE, "a call of a controller: expected rank 0");
    if (!name || !*name || strlen(name) >= DP_FUNCTION_NAME)
        return dp_fail(DP_EINVAL, "a call: expected a name of 1 to %d characters",
                       DP_FUNCTION_NAME - 1);
    if ((len && !arg) || len > c->config.max_bytes)
        return dp_fail(DP_EINVAL, "a call of '%s': %zu bytes at %p, expected at most %zu", name,
                       len, arg, c->config.max_bytes);
    return 0;
}

/* Of the ranks that c->called says. */
static int call(struct dp_controller *c, const char *name, const void *arg, size_t len,
                int64_t deadline_ns, struct dp_answer *answers)
{
    const int64_t default_ns = dp_comm_deadline(c->config.comm);
    int answered = 0;

    c->call = (struct call_head){.len = len};
    strcpy(c->call.name, name);
    int err = call_all(c, arg, dp_now_ns() + (deadline_ns > 0 ? deadline_ns : default_ns), &answered);
    dp_comm_set_deadline(c->comm, default_ns);
    fill_answers(c, answered, answers);
    return err ? end_group(c, err) : judge(c);
}

int dp_controller_foreach(struct dp_controller *c, const char *name, const void *arg, size_t len,
                          bool include_self, int64_t deadline_ns, struct dp_answer *answers)
{
    int err = check_call(c, name, arg, len);

    if (err)
        return err;
    for (int rank = 0; rank < c->size; rank++)
        c->called[rank] = rank || include_self;
    return call(c, name, arg, len, deadline_ns, answers);
}

int dp_controller_call(struct dp_controller *c, int rank, const char *name, const void *arg,
                       size_t len, int64_t deadline_ns, struct dp_answer *answer)
{
    int err = check_call(c, name, arg, len);

    if (err)
        return err;
    if (rank < 0 || rank >= c->size)
        return dp_fail(DP_EINVAL, "a call of rank %d, expected 0 to %d", rank, c->size - 1);
    struct dp_answer *answers = malloc((size_t)c->size * sizeof(*answers));
    if (!answers)
        return dp_fail(DP_ENOMEM, "no memory for %d answers", c->size);
    for (int r = 0; r < c->size; r++)
        c->called[r] = r == rank;
    err = call(c, name, arg, len, deadline_ns, answers);
    if (answer)
        *answer = answers[rank];
    free(answers);
    return err;
}

/* ---- the end ----------------------------------------------------------------------------------- */

static void end_all(struct dp_controller *c)
{
    int err = 0;

    c->call = (struct call_head){.ends = 1};
    for (int rank = 1; rank < c->size && !err; rank++)
        err = isend(c, rank, HEAD, &c->call, sizeof(c->call));
    for (int rank = 1; rank < c->size && !err; rank++)
        err = wait_sent(c, rank, HEAD);
}

void dp_controller_close(struct dp_controller *c)
{
    if (!c)
        return;
    if (!c->rank)
        end_all(c);
    free_controller(c);
}
