/* SPDX-License-Identifier: Apache-2.0
 *
 * collectives.c - the collectives that are requests: arguments are checked here and handed to the
 * engine.
 */
#include "comm/comm_core.h"
#include "comm/engine.h"

#include "base/fail.h"

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
        err = dp_engine_start(engine, comm, comm->size > 1 ? algorithm : &alone, args, req);
    if (err == DP_ENOMEM) /* others are in it, and would wait */
        dp_comm_fail(comm, err);
    return err;
}

static struct dp_collective_args make_args(struct dp_comm *comm, const void *in, void *out,
                                           size_t count)
{
    return (struct dp_collective_args){
        .comm = comm, .rank = comm->rank, .size = comm->size, .in = in, .out = out, .count = count};
}

static int start_reduction(struct dp_comm *comm, const char *what, bool scatter, const void *in,
                           void *out, size_t count, DLDataType type, enum dp_reduction op,
                           struct dp_request *req)
{
    int err = check(comm, what, in, out, count, req);

    if (err)
        return err;
    struct dp_collective_args args = make_args(comm, in, out, count);
    args.reducer = dp_reducer_find(type, op);
    if (!args.reducer)
        return dp_fail(DP_EINVAL,
                       "%s: type code %d of %d bits and %d lanes, operation %d: expected float32, "
                       "float64, bfloat16, float16 or int64, and sum, min or max",
                       what, type.code, type.bits, type.lanes, (int)op);
    const struct dp_algorithm *algorithm = scatter ? &dp_reduce_scatter_direct
                                           : dp_in_place_is_worth(&args)
                                               ? &dp_in_place_allreduce
                                               : dp_choose_allreduce(&args);
    return start(comm, algorithm, &args, req);
}

int dp_comm_iallreduce(struct dp_comm *comm, const void *in, void *out, size_t count,
                       DLDataType type, enum dp_reduction op, struct dp_request *req)
{
    return start_reduction(comm, "all-reduce", false, in, out, count, type, op, req);
}

int dp_comm_ireduce_scatter(struct dp_comm *comm, const void *in, void *out, size_t count,
                            DLDataType type, enum dp_reduction op, struct dp_request *req)
{
    return start_reduction(comm, "reduce-scatter", true, in, out, count, type, op, req);
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
    if (root < 0 || root >= comm->size)
        return dp_fail(DP_EINVAL, "broadcast from rank %d: expected 0 to %d", root, comm->size - 1);
    struct dp_collective_args args = make_args(comm, buf, buf, len);
    args.root = root;
    return start(comm, dp_choose_broadcast(&args), &args, req);
}

int dp_comm_iswap(struct dp_comm *comm, int peer, int channel, uint64_t tag, const void *mine,
                  void *theirs, size_t len, struct dp_request *req)
{
    struct dp_engine *engine;
    int err = dp_comm_check_transfer(comm, peer, channel, mine, len, req);

    if (!err)
        err = dp_comm_check_transfer(comm, peer, channel, theirs, len, req);
    if (!err)
        err = dp_comm_enter(comm, &engine);
    if (err)
        return err;
    struct dp_collective_args args = make_args(comm, mine, theirs, len);
    args.root = peer;
    return dp_engine_start_swap(engine, comm, &args, channel, tag, req);
}
