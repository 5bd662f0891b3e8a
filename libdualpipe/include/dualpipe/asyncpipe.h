/* SPDX-License-Identifier: Apache-2.0
 *
 * asyncpipe.h - what only AsyncPipe has: its constructor of a list of layers, rank 0 as the process that
 * drives all others, and values between stages that are no tensors. Its execution by messages is an
 * option of any pipeline whose schedule is async (dp_pipeline_config.execution).
 *
 * Threads: one at a time, as for the communicator.
 *
 * Source: fairscale's AsyncPipe: its constructor with its table of errors, PipeRPCWrapper with
 * foreach_worker, and back_helper.
 */
#ifndef DUALPIPE_ASYNCPIPE_H
#define DUALPIPE_ASYNCPIPE_H

#include <dualpipe/batch_step.h>
#include <dualpipe/comm.h>
#include <dualpipe/partition.h>
#include <dualpipe/schedule.h>
#include <dualpipe/stage.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- out of a list of layers --------------------------------------------------------------------
 * Cut it into stages, make the layers that live on this rank, and build the schedules, all ranks
 * together.
 *
 *      struct dp_async *async;
 *      err = dp_async_new(&(struct dp_async_spec){
 *          .comm = comm, .layer_count = 4, .balance = (int32_t[]){2, 2}, .stages = 2, .chunks = 8,
 *          .build = build_layer, .user = model}, &async);
 *      dp_pipeline_new(&(struct dp_pipeline_config){
 *          .schedule = async->schedule, .also = &async->evaluation, .also_count = 1, ...}, &pipe);
 *
 * A stage of the schedule is an invocation of the partition (partition.h): slot i of this rank runs
 * the layers of one group, and slots of the same dp_slot.location share its parameters. */

/* The same on every rank but for comm, build and user. Zeroed memory plus comm, layer_count, balance,
 * stages and chunks is the usual one. */
struct dp_async_spec {
    struct dp_comm *comm;   /* NULL: one rank */
    const int32_t *layers;  /* [layer_count], balance[stages]: as in dp_partition_spec */
    int32_t layer_count;
    uint32_t reserved;
    const int32_t *balance;
    int32_t stages;
    int32_t chunks;         /* micro-batches of a step, at least 1 */
    const char *checkpoint; /* which of them are recomputed: "always", "except_last" or "never"; NULL:
                             * "except_last". By the number of them, whatever the batch. */
    bool return_outputs;
    uint8_t reserved1[7];
    const struct dp_skip *skips; /* [skip_count] that layers declare: dp_skips_of_layers */
    int32_t skip_count;
    uint32_t reserved2;
    /* Make a layer that lives on this rank, `position` in the list. Called in the order of the list,
     * once for a layer that is used several times; never for those of other ranks. 0, or a negative
     * errno, with dp_callback_error to say why. NULL: all are there. */
    int (*build)(void *user, int32_t position, int32_t layer);
    void *user;
};

struct dp_async {
    struct dp_partition *partition;
    struct dp_schedule *schedule;         /* of training; pipeline rank = rank of comm */
    const struct dp_schedule *evaluation; /* the same without backwards and recomputation */
    int32_t rank;
    bool unused; /* this rank is beyond the stages and holds no layer: it takes part in what is
                  * collective, and dp_pipeline_step_batch returns its input */
    bool final_stage; /* this rank holds the last stage */
    /* What it was made of, to be read: */
    struct dp_comm *comm;
    int32_t *balance; /* [stages] a copy */
    int32_t stages, chunks;
    enum dp_recompute checkpoint;
    const struct dp_layer_group *groups; /* [group_count] of partition: this rank's, in order */
    int32_t group_count;
};

/* Collective over comm. Where it fails it fails on all ranks with the same error and sentence, which
 * begins with the rank that found it, "rank 1: balance[1]: 0, expected at least 1 (A5)"; what `build`
 * has made by then is the caller's. comm stays usable. DP_EINVAL with the row of AsyncPipe's table, in
 * their order: A1 chunks not positive, A2 no such mode of recomputation, A4 the balance's sum is not
 * the number of distinct layers, A5 an entry of it is not positive, A6 fewer ranks than stages, A8 an
 * entry of the list that is no layer; DP_EINVAL also for skips (dp_skips_of_layers); DP_ESTATE (A13)
 * for several stages without a comm; DP_EMISMATCH where ranks have been told different things;
 * DP_ECALLBACK where a layer was not made; DP_ENOMEM. A3 and A9 are legal: a layer that is used several
 * times, and one that is made late and has skips. No layer and no stage is legal, too: every rank is
 * unused. The caller frees. */
DP_SIZED(dp_async_new, (spec, out, sizeof(struct dp_async_spec)), const struct dp_async_spec *spec,
         struct dp_async **out);
DP_PUBLIC void dp_async_free(struct dp_async *async); /* may be NULL */

/* How many layers this rank holds. */
static inline int32_t dp_async_len(const struct dp_async *async)
{
    return dp_partition_len(async->partition, async->rank);
}

/* Where in the list the index-th of them stands; negative: from the end, -1 the last. DP_EINVAL (A15)
 * outside; dp_comm_share_error lets all ranks know. */
static inline int dp_async_layer(const struct dp_async *async, int32_t index, int32_t *position)
{
    return dp_partition_layer(async->partition, async->rank, index, position);
}

/* ---- a controller -------------------------------------------------------------------------------
 * Rank 0 calls a function on every worker and collects the answers, as a program that drives a
 * pipeline, its optimizers and its checkpoints from one place does.
 *
 *      rank 0                                       ranks 1 .. size - 1
 *      dp_controller_open                           dp_controller_open
 *      dp_controller_foreach("step", ...) --------> dp_controller_serve: calls step(user, ...)
 *      answers[1 .. size - 1]             <-------- what it has put, or its error and sentence
 *      dp_controller_close                -------->   returns 0
 *                                                   dp_controller_close
 *
 * Functions are known by name, as processes do not have them at the same addresses: every rank
 * passes a table of the functions that it offers. Arguments and answers are bytes.
 *
 * A function may use the communicator that the controller was made of, and what is built on it (take
 * its rank's part of a step of a pipeline, for instance): the controller's own messages never meet
 * those. As those it belongs to one family with it, so an abort of one ends both. */

#define DP_FUNCTION_NAME 64 /* length of a name, with its end */

/* What a function answers; put grows it. */
struct dp_reply;
/* Append bytes[len] to the answer. DP_ENOMEM; DP_EINVAL for more than max_bytes in all. */
DP_PUBLIC int dp_reply_put(struct dp_reply *reply, const void *bytes, size_t len);

/* arg[len] is what the controller has passed, valid during the call. 0, or a negative errno, which
 * the controller is told with dp_last_error() of this thread; the answer is then what has been put
 * so far. */
struct dp_worker_function {
    const char *name;
    int (*call)(void *user, const void *arg, size_t len, struct dp_reply *reply);
    void *user;
};

struct dp_controller_config {
    struct dp_comm *comm; /* must outlive the controller */
    const struct dp_worker_function *functions; /* [function_count], must stay */
    int32_t function_count;                     /* on rank 0 of use with include_self only */
    uint32_t reserved;
    int64_t idle_ns;  /* longest time that a worker waits for the next call; 0: the deadline of comm.
                       * What rank 0 announces by dp_comm_busy is not counted */
    size_t max_bytes; /* of an argument or an answer; 0: 1 GiB. The same on all ranks */
};

struct dp_controller;

/* Collective over comm. DP_EINVAL: a function without name or call, a name that is too long or there
 * twice; DP_EMISMATCH: another max_bytes elsewhere; DP_ENOMEM, and errors of dp_comm_split. */
DP_SIZED(dp_controller_open, (config, out, sizeof(struct dp_controller_config)),
         const struct dp_controller_config *config, struct dp_controller **out);

/* On ranks 1 .. size - 1: carry out calls until rank 0 closes its controller: 0. DP_ETIMEDOUT: none
 * came for idle_ns, DP_EABORTED, DP_ECOMM: the group has failed. DP_ESTATE on rank 0. A function
 * that fails does not end it, unless it has aborted the group. After dp_comm_reset of comm on all
 * ranks it may be called again. */
DP_PUBLIC int dp_controller_serve(struct dp_controller *c);

/* What a rank has answered. */
struct dp_answer {
    int error;        /* 0, or a negative errno; DP_EAGAIN: this rank was not called */
    const void *data; /* [len], until the controller's next call */
    size_t len;
    char text[DP_ABORT_TEXT]; /* of an error: its sentence; "" otherwise */
};

/* On rank 0: call the function of that name, with arg[len], on ranks 1 .. size - 1 at once, and with
 * include_self on rank 0 meanwhile; wait for all of them. answers[size], in order of ranks, is
 * written whatever comes out, as far as ranks have answered; NULL: not wanted.
 *
 * 0: all have returned 0. DP_ECALLBACK: some have not; the sentence names the first one, its error
 * and how many there are. All have answered, and the next call may follow. DP_ETIMEDOUT: a rank,
 * which is named, has not answered for deadline_ns (0: the deadline of comm), counted from the
 * call on for all ranks together; the group is aborted. DP_EABORTED, DP_ECOMM: it has failed
 * meanwhile, or a worker has left. DP_EINVAL: a bad name, too many bytes; DP_ESTATE on other ranks
 * than 0; DP_ENOMEM. */
DP_PUBLIC int dp_controller_foreach(struct dp_controller *c, const char *name, const void *arg,
                                    size_t len, bool include_self, int64_t deadline_ns,
                                    struct dp_answer *answers);
/* The same of one rank, which may be 0; *answer may be NULL. */
DP_PUBLIC int dp_controller_call(struct dp_controller *c, int rank, const char *name,
                                 const void *arg, size_t len, int64_t deadline_ns,
                                 struct dp_answer *answer);

/* On rank 0: let all workers' dp_controller_serve return; then, on any rank, free. c may be NULL. */
DP_PUBLIC void dp_controller_close(struct dp_controller *c);

/* ---- a pipeline that one process drives -----------------------------------------------------------
 * Rank 0 hands a batch over and gets the outputs, takes a loss of them, and hands back their gradients.
 * The other ranks serve.
 *
 *      struct dp_worker_function functions[DP_REMOTE_FUNCTIONS];
 *      dp_remote_functions(&remote, functions);                  every rank, into its table
 *
 *      rank 0:  dp_remote_forward(controller, &remote, 0, &outputs);
 *               ... gradients of the outputs ...
 *               dp_remote_backward(controller, &remote, &grads, 0);
 *               dp_controller_foreach(controller, "update", ...)      a function of the caller's */

/* One rank's part; zeroed memory plus pipe, and on rank 0 batch.args, is the usual one. */
struct dp_remote {
    /* Over the communicator of the controller; of one stream, with own_gradients where no loss is
     * to be taken in the step, and a schedule that has all forwards first (dp_pipeline_forward). */
    struct dp_pipeline *pipe;
    /* As for dp_pipeline_forward_batch: what enters is given on rank 0, which holds the first
     * stage, labels and specs of results where the last one is. rows need only be given on rank 0;
     * outputs and output_grads are set here. */
    struct dp_batch_step batch;
    struct dp_tree *outputs; /* the library's; NULL at first */
};

enum { DP_REMOTE_FUNCTIONS = 2 };
/* "dp.forward" and "dp.backward", for the table of this rank's controller. remote must stay. */
DP_PUBLIC void dp_remote_functions(struct dp_remote *remote,
                                   struct dp_worker_function functions[DP_REMOTE_FUNCTIONS]);

/* On rank 0: the forwards of a step on all ranks. *outputs is what the last stage's rank has merged:
 * its tensor, or a tuple of its tensors in order, in memory of this process, freed by dp_tree_free.
 * deadline_ns as for dp_controller_foreach. Errors: those of dp_controller_foreach; DP_ECALLBACK
 * with the sentence of the first rank that failed; where the step has failed the group is aborted,
 * and that is DP_EABORTED: every rank then calls dp_comm_reset and dp_pipeline_drop_batch(pipe,
 * &batch), and the workers serve again. */
DP_PUBLIC int dp_remote_forward(struct dp_controller *c, struct dp_remote *remote,
                                int64_t deadline_ns, struct dp_tree **outputs);
/* After it: the backwards, from these gradients: a tuple or list of a tensor for each output, absent:
 * zero; NULL: from the loss. Host memory. Errors as above; DP_EINVAL for a tree that is no such
 * list. */
DP_PUBLIC int dp_remote_backward(struct dp_controller *c, struct dp_remote *remote,
                                 const struct dp_tree *output_grads, int64_t deadline_ns);

/* ---- values between stages ------------------------------------------------------------------------
 * What stages hand each other besides a flat list of tensors: trees, and values that are no tensors.
 *
 *      border     x float32 [4, 8], mask bool [4], note: a value of up to 100 bytes
 *      stage      struct dp_tree nodes[3], tree;
 *                 dp_tree_of(form, in, 3, nodes, 3, &tree);      form: (x, {mask: *, note: *})
 *                 ... tree.items[1].items[0].tensor is the mask ...
 *                 dp_value_get(&in[2], &bytes, &len);
 *
 * Nothing here allocates; all of it may be called in the callbacks of a stage, by any thread. */

/* A boolean of one byte, as DLPack 0.8 and later have it (kDLBool). */
static inline DLDataType dp_bool_type(void)
{
    DLDataType type = {6, 8, 1};
    return type;
}

/* A tensor of a border that brings such a value: its bytes, `most` at most, or nothing at all. It
 * is sent in full length, and carries no gradient. What the bytes mean is the stages' business; a
 * pointer means nothing to a stage on another rank. */
DP_PUBLIC struct dp_tensor_spec dp_value_spec(size_t most);

/* Write bytes[len] to a tensor of that spec, or, with bytes NULL, that there is none. DP_EINVAL: a
 * tensor of another spec, or too many bytes; DP_EUNSUPPORTED: memory that the CPU does not reach. */
DP_PUBLIC int dp_value_put(const DLTensor *to, const void *bytes, size_t len);
/* What was put: *bytes points into the tensor, and is NULL where there is no value. Errors as above;
 * DP_EMISMATCH: it was never put. */
DP_PUBLIC int dp_value_get(const DLTensor *from, const void **bytes, size_t *len);

/* tensors[count] in the tree that `form` describes: each of its leaves stands for the next tensor,
 * but for those that are absent, which stay so.
 * nodes[room] takes all nodes but the root, *out; the tree refers to them, to the tensors and to
 * the form's names. Filling the tensors of `out` through it is filling the outputs. DP_EINVAL:
 * another number of leaves than tensors, too few nodes, a form that breaks the rules for trees. */
DP_PUBLIC int dp_tree_of(const struct dp_tree *form, const DLTensor *tensors, int32_t count,
                         struct dp_tree *nodes, int32_t room, struct dp_tree *out);

#ifdef __cplusplus
}
#endif
#endif
