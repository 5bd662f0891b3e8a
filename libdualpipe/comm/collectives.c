/* SPDX-License-Identifier: Apache-2.0
 *
 * collectives.c - the collectives that are requests: arguments are checked here and handed to the
 * engine. And those that wait: gathering, agreement, clocks (by messages on DP_CHANNEL_CONTROL).
 */
#include "base/clock.h"
#include "base/fail.h"
#include "base/tensor.h"
#include "comm/comm_core.h"
#include "comm/engine.h"
#include "comm/lines.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a group of one -------------------------------------------------------------------------- */

static int no_steps(const struct dp_collective_args *args)
{
    (void)args;
    return 0;
}

static void copy_own(const struct dp_collective_args *args)
{
    const size_t bytes = args->count * (args->reducer ? args->reducer->bytes : 1);

    if (bytes && args->in != args->out)
        memmove(args->out, args->in, bytes);
}

static const struct dp_algorithm alone = {.name = "alone", .steps = no_steps, .begin = copy_own};

/* ---- starting -------------------------------------------------------------------------------- */

static int check(const struct dp_comm *comm, const char *what, const void *in, const void *out,
                 size_t count, const struct dp_request *req)
{
    if (!comm || !req)
        return dp_fail(DP_EINVAL, "%s without a %s", what, comm ? "request" : "comm");
    if (count && (!in || !out))
        return dp_fail(DP_EINVAL, "%s of %zu without a buffer", what, count);
    return 0;
}

static int start(struct dp_comm *comm, const struct dp_algorithm *algorithm,
                 struct dp_collective_args *args, struct dp_request *req)
{
    struct dp_engine *engine;
    int err = dp_comm_enter(comm, &engine);

    if (!err)
        err = dp_engine_start(engine, comm, dp_comm_size(comm) > 1 ? algorithm : &alone, args, req);
    if (err == DP_ENOMEM) /* others are in it, and would wait */
        dp_comm_fail(comm, err);
    return err;
}

static struct dp_collective_args make_args(struct dp_comm *comm, const void *in, void *out,
                                           size_t count)
{
    return (struct dp_collective_args){
        .comm = comm, .rank = dp_comm_rank(comm), .size = dp_comm_size(comm), .in = in, .out = out,
        .count = count, .phases = DP_SUM_ALL};
}

static int prepare(struct dp_comm *comm, const char *what, const void *in, void *out, size_t count,
                   DLDataType type, enum dp_reduction op, const struct dp_request *req,
                   struct dp_collective_args *args)
{
    int err = check(comm, what, in, out, count, req);

    if (err)
        return err;
    *args = make_args(comm, in, out, count);
    args->reducer = dp_reducer_find(type, op);
    if (!args->reducer)
        return dp_fail(DP_EINVAL,
                       "%s: type code %d of %d bits and %d lanes, operation %d: expected float32, "
                       "float64, bfloat16, float16 or int64, and sum, min or max",
                       what, type.code, type.bits, type.lanes, (int)op);
    args->segment = DP_SEGMENT_BYTES / args->reducer->wide_bytes;
    return 0;
}

static int start_allreduce(struct dp_collective_args *args, struct dp_request *req)
{
    return start(args->comm,
                 dp_in_place_is_worth(args) ? &dp_in_place_allreduce : dp_choose_allreduce(args), args,
                 req);
}

int dp_comm_iallreduce(struct dp_comm *comm, const void *in, void *out, size_t count,
                       DLDataType type, enum dp_reduction op, struct dp_request *req)
{
    struct dp_collective_args args;
    int err = prepare(comm, "all-reduce", in, out, count, type, op, req, &args);

    return err ? err : start_allreduce(&args, req);
}

int dp_comm_isum(struct dp_comm *comm, void *buf, size_t count, size_t segment, DLDataType type,
                 enum dp_sum_phases phases, struct dp_request *req)
{
    struct dp_collective_args args;
    int err = prepare(comm, "sum", buf, buf, count, type, DP_REDUCE_SUM, req, &args);

    if (err)
        return err;
    args.phases = phases;
    if (dp_sum_is_allreduce(&args))
        return start_allreduce(&args, req);
    args.segment = segment;
    return start(comm, dp_choose_sum(&args), &args, req);
}

int dp_comm_iallgather(struct dp_comm *comm, const void *mine, void *all, size_t len,
                       struct dp_request *req)
{
    int err = check(comm, "all-gather", mine, all, len, req);

    if (err)
        return err;
    struct dp_collective_args args = make_args(comm, mine, all, len);
    return start(comm, dp_choose_allgather(&args), &args, req);
}

int dp_comm_iallgatherv(struct dp_comm *comm, void *all, const size_t *offsets,
                        struct dp_request *req)
{
    struct dp_collective_args args = make_args(comm, all, all, 0);

    args.offsets = offsets;
    return start(comm, dp_choose_allgather(&args), &args, req);
}

int dp_comm_ibroadcast(struct dp_comm *comm, void *buf, size_t len, int root,
                       struct dp_request *req)
{
    int err = check(comm, "broadcast", buf, buf, len, req);

    if (err)
        return err;
    if (root < 0 || root >= dp_comm_size(comm))
        return dp_fail(DP_EINVAL, "broadcast from rank %d: expected 0 to %d", root,
                       dp_comm_size(comm) - 1);
    struct dp_collective_args args = make_args(comm, buf, buf, len);
    args.root = root;
    return start(comm, dp_choose_broadcast(&args), &args, req);
}

/* ---- those that wait ---------------------------------------------------------------------------- */

/* The group is of no use once a rank fell out of a collective; and after an abort no request refers
 * to a caller's memory any more, so that it is safe to return. */
static int leave(struct dp_comm *comm, int err)
{
    const bool survives = dp_comm_get(comm, DP_COMM_SURVIVES) && err == DP_ECOMM;

    if (err != DP_EABORTED && err != DP_ETIMEDOUT && !survives)
        dp_comm_fail(comm, err);
    return err;
}

int dp_comm_allgatherv(struct dp_comm *comm, const void *mine, size_t len, void **all,
                       size_t *offsets)
{
    if (!comm || !all || !offsets || (len && !mine))
        return dp_fail(DP_EINVAL, "allgatherv of %zu bytes without a %s", len,
                       comm ? "buffer" : "comm");

    /* The lengths come first, one place further on than the offsets that they become. */
    offsets[0] = 0;
    int err = dp_comm_allgather(comm, &len, offsets + 1, sizeof(len));
    if (err)
        return err;
    for (int i = 0; i < dp_comm_size(comm); i++)
        offsets[i + 1] += offsets[i];

    char *base = malloc(offsets[dp_comm_size(comm)] + 1);
    if (!base)
        return leave(comm, dp_fail(DP_ENOMEM, "no memory to gather %zu bytes of %d ranks",
                                   offsets[dp_comm_size(comm)], dp_comm_size(comm)));
    if (len)
        memcpy(base + offsets[dp_comm_rank(comm)], mine, len);
    struct dp_request req;
    err = dp_comm_finish(comm, dp_comm_iallgatherv(comm, base, offsets, &req), &req);
    if (err) {
        free(base);
        return err;
    }
    *all = base;
    return 0;
}

/* "micro-batches: rank 0 has 8, but rank 2 has 10, rank 3 has 10" */
static int report_differing(const struct dp_comm *comm, const char *what, const uint64_t *values)
{
    enum { NAMED_AT_MOST = 8 };
    struct dp_text t = {0};
    int differing = 0;

    for (int i = 1; i < dp_comm_size(comm); i++)
        if (values[i] != values[0] && differing++ < NAMED_AT_MOST)
            dp_text_addf(&t, "%srank %d has %" PRIu64, differing > 1 ? ", " : "", i, values[i]);
    if (differing > NAMED_AT_MOST)
        dp_text_addf(&t, " and %d more", differing - NAMED_AT_MOST);
    const int err = dp_fail(DP_EMISMATCH, "%s: all ranks must agree; rank 0 has %" PRIu64 ", but %s",
                            what, values[0], t.data ? t.data : "others differ");
    dp_text_fini(&t);
    return err;
}

static int hand_out(struct dp_comm *comm, int from, const struct dp_text *mine, char **text)
{
    uint64_t bytes = dp_comm_rank(comm) == from ? mine->len : 0;

    if (dp_comm_rank(comm) == from && mine->failed)
        return leave(comm, dp_fail(DP_ENOMEM, "no memory to say what differs"));
    int err = dp_comm_broadcast(comm, &bytes, sizeof(bytes), from);
    if (err)
        return err;
    *text = calloc(bytes + 1, 1);
    if (!*text)
        return leave(comm, dp_fail(DP_ENOMEM, "no memory for %" PRIu64 " bytes of rank %d",
                                   bytes, from));
    if (dp_comm_rank(comm) == from && bytes)
        memcpy(*text, mine->data, bytes);
    return bytes ? dp_comm_broadcast(comm, *text, bytes, from) : 0;
}

/* Long values are told from shortly before where they differ. */
static int name_line(const struct dp_comm *comm, const char *what, int a, char *of_a, int b, char *of_b)
{
    enum { BEFORE = 40, SHOWN = 200 };
    size_t same = 0, line, from;

    while (of_a[same] && of_a[same] == of_b[same])
        same++;
    for (line = same; line && of_a[line - 1] != '\n'; line--)
        ;
    const size_t name = strcspn(of_a + line, "\t\n");
    const bool named = same > line + name;
    from = named ? line + name + 1 : line;
    for (int i = 0; i < 2 && !named; i++) { /* the names are a part of what differs */
        char *const rest = (i ? of_b : of_a) + line, *const tab = strchr(rest, '\t');
        if (tab)
            *tab = ' ';
    }
    const char *const dots = same > from + BEFORE ? "..." : "";
    from = *dots ? same - BEFORE : from;
    const int la = (int)strcspn(of_a + from, "\n"), lb = (int)strcspn(of_b + from, "\n");
    return (dp_comm_rank(comm) == b ? dp_fail : dp_fail_quietly)(
        DP_EMISMATCH, "%.*s: rank %d has %s%.*s, rank %d has %s%.*s",
        named ? (int)name : (int)strlen(what), named ? of_a + line : what, b, lb ? dots : "nothing",
        lb < SHOWN ? lb : SHOWN, of_b + from, a, la ? dots : "nothing", la < SHOWN ? la : SHOWN,
        of_a + from);
}

int dp_comm_name_difference(struct dp_comm *comm, const char *what, int a, const struct dp_text *of_a,
                            int b, const struct dp_text *of_b)
{
    char *texts[2] = {NULL, NULL};
    int err = hand_out(comm, a, of_a, &texts[0]);

    if (!err)
        err = hand_out(comm, b, of_b, &texts[1]);
    /* A rank that knows may end at once, and with it the group: not before all have come as far. */
    if (!err)
        err = dp_comm_barrier(comm);
    if (!err)
        err = name_line(comm, what, a, texts[0], b, texts[1]);
    free(texts[0]);
    free(texts[1]);
    return err;
}

/* lines: what the value stands for, NULL: itself. */
static int agree(struct dp_comm *comm, const char *what, uint64_t value, const struct dp_text *lines)
{
    enum { ON_STACK = 512 };
    uint64_t few[ON_STACK], *values = few;
    int other = 1;

    if (dp_comm_size(comm) > ON_STACK) {
        values = malloc((size_t)dp_comm_size(comm) * sizeof(*values));
        if (!values)
            return leave(comm, dp_fail(DP_ENOMEM, "no memory to ask %d ranks", dp_comm_size(comm)));
    }
    int err = dp_comm_allgather(comm, &value, values, sizeof(value));
    while (!err && other < dp_comm_size(comm) && values[other] == values[0])
        other++;
    if (!err && other < dp_comm_size(comm))
        err = lines ? dp_comm_name_difference(comm, what, 0, lines, other, lines)
                    : report_differing(comm, what, values);
    if (values != few)
        free(values);
    return err;
}

int dp_comm_agree(struct dp_comm *comm, const char *what, uint64_t value)
{
    if (!comm || !what)
        return dp_fail(DP_EINVAL, "agreement without a %s", comm ? "name" : "comm");
    return agree(comm, what, value, NULL);
}

int dp_comm_agree_on_lines(struct dp_comm *comm, const char *what, struct dp_text *lines)
{
    uint64_t hash;
    int err = dp_text_hash(lines, &hash);

    err = err ? leave(comm, err) : agree(comm, what, hash, lines);
    dp_text_fini(lines);
    return err;
}

int dp_comm_agree_lines(struct dp_comm *comm, const char *what, const char *text)
{
    struct dp_text lines = {.failed = !text};

    if (!comm || !what)
        return dp_fail(DP_EINVAL, "agreement without a %s", comm ? "name" : "comm");
    dp_text_adds(&lines, text ? text : "");
    return dp_comm_agree_on_lines(comm, what, &lines);
}

/* One rank's part; the sentence is cut. */
struct shared_error {
    int32_t error;
    char text[252];
};

int dp_comm_share_error(struct dp_comm *comm, int err)
{
    struct shared_error mine = {.error = err}, *all;

    if (!comm)
        return err;
    if (err)
        snprintf(mine.text, sizeof(mine.text), "%s", dp_last_error());
    all = malloc((size_t)dp_comm_size(comm) * sizeof(*all));
    if (!all)
        return leave(comm, dp_fail(DP_ENOMEM, "no memory for the errors of %d ranks",
                                   dp_comm_size(comm)));
    const int failed = dp_comm_allgather(comm, &mine, all, sizeof(mine));
    int rank = 0;
    while (!failed && rank < dp_comm_size(comm) && !all[rank].error)
        rank++;
    if (!failed)
        err = rank < dp_comm_size(comm)
                  ? dp_fail_quietly(all[rank].error, "rank %d: %s", rank, all[rank].text)
                  : 0;
    free(all);
    return failed ? failed : err;
}

enum { CLOCK_TAG = 1 };

static int send_small(struct dp_comm *comm, int peer, const int64_t *value)
{
    struct dp_request req;
    int err = dp_comm_isend(comm, peer, DP_CHANNEL_CONTROL, CLOCK_TAG, value, sizeof(*value), &req);

    return err ? err : dp_comm_wait(comm, &req, peer);
}

static int receive_small(struct dp_comm *comm, int peer, int64_t *value)
{
    struct dp_request req;
    int err = dp_comm_irecv(comm, peer, DP_CHANNEL_CONTROL, CLOCK_TAG, value, sizeof(*value), &req);

    return err ? err : dp_comm_wait(comm, &req, peer);
}

/* Rank 0's part: answer each rank in turn. */
static int tell_time(struct dp_comm *comm, int rounds)
{
    int err = 0;

    for (int peer = 1; peer < dp_comm_size(comm); peer++)
        for (int i = 0; i < rounds && !err; i++) {
            int64_t now;
            err = receive_small(comm, peer, &now);
            now = dp_now_ns();
            if (!err)
                err = send_small(comm, peer, &now);
        }
    return err;
}

/* The answer was given somewhere between question and reply; halfway is wrong by half the round
 * trip at most. */
static int ask_time(struct dp_comm *comm, int rounds, int64_t *offset_ns, int64_t *error_ns)
{
    int64_t best = INT64_MAX, offset = 0;
    int err = 0;

    for (int i = 0; i < rounds && !err; i++) {
        int64_t asked = dp_now_ns(), answer = 0;
        err = send_small(comm, 0, &asked);
        if (!err)
            err = receive_small(comm, 0, &answer);
        int64_t trip = dp_now_ns() - asked;
        if (!err && trip < best) {
            best = trip;
            offset = answer - (asked + trip / 2);
        }
    }
    if (err)
        return err;
    *offset_ns = offset;
    *error_ns = (best + 1) / 2;
    return 0;
}

int dp_comm_clock_offset(struct dp_comm *comm, int rounds, int64_t *offset_ns, int64_t *error_ns)
{
    if (!comm || !offset_ns || !error_ns || rounds < 1)
        return dp_fail(DP_EINVAL, "clock offset in %d rounds: expected a comm, two results, at least "
                       "1 round", rounds);
    int err = dp_comm_rank(comm) ? ask_time(comm, rounds, offset_ns, error_ns) : tell_time(comm, rounds);
    if (err)
        return leave(comm, err);
    if (!dp_comm_rank(comm))
        *offset_ns = *error_ns = 0;
    return 0;
}

/* ---- parameters -------------------------------------------------------------------------------- */

void dp_add_elements(struct dp_text *lines, const DLTensor *tensor)
{
    int64_t elements = dp_tensor_numel(tensor);
    char text[DP_TENSOR_TEXT];
    DLTensor flat = *tensor;

    flat.ndim = 1;
    flat.shape = &elements;
    dp_text_adds(lines, dp_tensor_text(&flat, text));
}

void dp_add_parameters(struct dp_text *lines, const struct dp_parameter *parameters, int32_t count)
{
    dp_text_addf(lines, "number of parameters\t%d\n", count);
    for (int32_t i = 0; i < count; i++) {
        const struct dp_parameter *p = &parameters[i];
        dp_text_addf(lines, "parameter %d\t'%s', ", i, p->name);
        dp_add_elements(lines, p->value);
        dp_text_addf(lines, "%s%s\n", p->flags & DP_PARAMETER_FROZEN ? ", frozen" : "",
                     p->flags & DP_PARAMETER_NO_DECAY ? ", without decay" : "");
    }
}

int dp_agree_on_parameters(struct dp_comm *comm, const struct dp_parameter *parameters, int32_t count)
{
    struct dp_text lines = {0};

    dp_add_parameters(&lines, parameters, count);
    return dp_comm_agree_on_lines(comm, "parameters", &lines);
}
