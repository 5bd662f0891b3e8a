/* SPDX-License-Identifier: Apache-2.0
 *
 * mixing.c - `dp-bench mixing`: an iteration of decentralized training without a model, a
 * process a worker, beside the same with an all-reduce of gradients, and beside its two limits.
 *
 *      mixing       gradients become ready one after the other; mix, update, exchange
 *      all-reduce   the same buckets of gradients are summed over all workers, then the update
 *      update       the fused sweep alone: mix, update and copy in one
 *      separate     the same as sweeps of their own
 *      swap         the exchange alone
 */
#include "bench/bench.h"
#include "command.h"
#include "launch.h"
#include "tests/bench/dp_bench/dp_bench.h"
#include "tests/mixer_now.h"

#include <dualpipe/memory.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS = 64, STOP = -1 };
enum what { MIXING, ALL_REDUCE, UPDATE, SEPARATE, SWAP, CASES };

struct values {
    struct bench_options common;
    int64_t ranks, parameters;
    const char *transport;
    double bucket_bytes;
};

/* A model of equal tensors, and a second copy of it for the cases without a mixer. */
struct job {
    const struct values *v;
    struct dp_comm *comm;
    struct dp_graph *graph;
    struct dp_mixer *mixer;
    struct dp_optimizer *optimizer;
    struct dp_parameter parameters[2][TENSORS];
    DLTensor tensors[2][2][TENSORS]; /* of each copy: values, gradients */
    char names[TENSORS][8];
    int64_t shape[1];
    size_t elements;                 /* of all */
    float *memory[2][2], *beside[2];
    void *buffers[TENSORS];
};

/* ---- the model --------------------------------------------------------------------------------- */

static int make_tensors(struct job *j)
{
    j->shape[0] = (j->v->parameters + TENSORS - 1) / TENSORS;
    j->elements = (size_t)j->shape[0] * TENSORS;
    for (int k = 0; k < 4; k++) {
        j->memory[k / 2][k % 2] = calloc(j->elements, sizeof(float));
        if (!j->memory[k / 2][k % 2])
            return command_broke("no memory for %zu parameters", j->elements), DP_ENOMEM;
    }
    for (int k = 0; k < 2; k++) {
        int err = dp_shared_alloc(j->elements * sizeof(float), -1, (void **)&j->beside[k]);
        if (err)
            return err;
    }
    for (int i = 0; i < TENSORS; i++) {
        const size_t at = (size_t)i * (size_t)j->shape[0];
        snprintf(j->names[i], sizeof(j->names[i]), "p%d", i % 1000);
        j->buffers[i] = j->beside[0] + at;
        for (int copy = 0; copy < 2; copy++) {
            for (int k = 0; k < 2; k++)
                j->tensors[copy][k][i] =
                    (DLTensor){.data = j->memory[copy][k] + at, .device = {kDLCPU, 0}, .ndim = 1,
                               .dtype = {kDLFloat, 32, 1}, .shape = j->shape};
            j->parameters[copy][i] = (struct dp_parameter){.name = j->names[i],
                                                           .value = &j->tensors[copy][0][i],
                                                           .grad = &j->tensors[copy][1][i]};
        }
    }
    return 0;
}

static int run_iteration(struct job *j)
{
    int err = dp_mixer_forward(j->mixer, true);

    for (int i = TENSORS - 1; i >= 0 && !err; i--)
        err = dp_mixer_ready(j->mixer, i);
    return err ? err : dp_mixer_step(j->mixer);
}

/* The first two iterations make the buckets. */
static int make_mixer(struct job *j)
{
    const struct dp_optimizer_config adamw = dp_optimizer_defaults(DP_OPTIMIZER_ADAMW);
    const struct dp_mixer_config config = {
        .parameters = j->parameters[0],
        .count = TENSORS,
        .optimizer = adamw,
        .rate = 1e-4,
        .graph = j->graph,
        .comm = j->comm,
        .bucket_bytes = j->v->bucket_bytes,
    };
    int err = dp_mixer_new(&config, &j->mixer);

    for (int t = 0; t < 2 && !err; t++)
        err = run_iteration(j);
    return err ? err : dp_optimizer_new(&adamw, j->parameters[1], TENSORS, &j->optimizer);
}

/* ---- the cases --------------------------------------------------------------------------------- */

static int update(struct job *j, const struct dp_optimizer_mix *mix, bool skip)
{
    return dp_optimizer_step(j->optimizer, &(struct dp_optimizer_step){.rate = 1e-4,
                                                                       .scale = 1,
                                                                       .zero_grads = !skip,
                                                                       .skip = skip,
                                                                       .mix = mix});
}

/* All buckets at once, as DDP's; they are carried out in order. */
static int all_reduce(struct job *j)
{
    enum { BUCKETS_MAX = 1024 };
    static struct dp_request requests[BUCKETS_MAX];
    size_t bucket = (size_t)(j->v->bucket_bytes / sizeof(float)), count = 0;
    float *grads = j->memory[1][1];
    int err = 0;

    if (bucket < j->elements / BUCKETS_MAX + 1)
        bucket = j->elements / BUCKETS_MAX + 1;
    for (size_t at = 0; at < j->elements && !err; at += bucket)
        err = dp_comm_iallreduce(j->comm, grads + at, grads + at,
                                 j->elements - at < bucket ? j->elements - at : bucket,
                                 (DLDataType){kDLFloat, 32, 1}, DP_REDUCE_SUM, &requests[count++]);
    for (size_t i = 0; i < count && !err; i++)
        err = dp_comm_wait(j->comm, &requests[i], -1);
    return err ? err : update(j, NULL, false);
}

static int separate_sweeps(struct job *j)
{
    const struct dp_optimizer_mix mix = {.keep = 0.5, .take = 1, .put = 0.5, .buffers = j->buffers};
    int err = update(j, &mix, true);

    if (!err)
        err = update(j, NULL, false);
    for (size_t i = 0; i < j->elements && !err; i++)
        j->beside[0][i] = 0.5f * j->memory[1][0][i];
    return err;
}

static int swap(struct job *j)
{
    const int peer = dp_comm_rank(j->comm) ^ 1;
    struct dp_request requests[2];
    int err;

    if (peer >= dp_comm_size(j->comm))
        return 0;
    err = dp_comm_irecv(j->comm, peer, DP_CHANNEL_REDUCE, 7, j->beside[1], j->elements * sizeof(float),
                        &requests[0]);
    if (!err)
        err = dp_comm_isend(j->comm, peer, DP_CHANNEL_REDUCE, 7, j->beside[0],
                            j->elements * sizeof(float), &requests[1]);
    for (int i = 0; i < 2 && !err; i++)
        err = dp_comm_wait(j->comm, &requests[i], peer);
    return err;
}

static int run_case(struct job *j, enum what what)
{
    const struct dp_optimizer_mix mix = {.keep = 0.5, .take = 1, .put = 0.5, .buffers = j->buffers};

    switch (what) {
    case MIXING:
        return run_iteration(j);
    case ALL_REDUCE:
        return all_reduce(j);
    case UPDATE:
        return update(j, &mix, false);
    case SEPARATE:
        return separate_sweeps(j);
    default:
        return swap(j);
    }
}

/* ---- samples ----------------------------------------------------------------------------------- */

enum { TIMES = 3 };

/* From the first worker's start to the last one's end, each of TIMES. */
static int time_case(struct job *j, enum what what, double *ns, int64_t *cpu_ns)
{
    int64_t begin, self = -bench_self_ns();
    int err = dp_comm_barrier(j->comm);

    begin = now_ns();
    for (int i = 0; i < TIMES && !err; i++)
        err = run_case(j, what);
    if (!err)
        err = dp_comm_barrier(j->comm);
    *ns = (double)(now_ns() - begin) / TIMES;
    *cpu_ns = self + bench_self_ns();
    return err;
}

struct sampler {
    struct job *job;
    enum what what;
};

static int sample(void *user, double *figures)
{
    const struct sampler *s = user;
    struct job *j = s->job;
    int32_t word = s->what;
    int64_t cpu[256], mine;
    double ns = 0;
    int err = dp_comm_broadcast(j->comm, &word, sizeof(word), 0);

    if (!err)
        err = time_case(j, s->what, &ns, &mine);
    if (!err)
        err = dp_comm_allgather(j->comm, &mine, cpu, sizeof(mine));
    for (int rank = 1; rank < dp_comm_size(j->comm) && !err; rank++)
        bench_add_own(cpu[rank]);
    figures[0] = ns / 1e6;
    return err;
}

static int follow(struct job *j)
{
    int32_t word = 0;
    int64_t cpu[256], mine;
    double ns;
    int err = 0;

    while (!err && word != STOP) {
        err = dp_comm_broadcast(j->comm, &word, sizeof(word), 0);
        if (err || word == STOP)
            break;
        err = time_case(j, (enum what)word, &ns, &mine);
        if (!err)
            err = dp_comm_allgather(j->comm, &mine, cpu, sizeof(mine));
    }
    return err;
}

static int lead(struct job *j)
{
    static struct bench_case cases[CASES];
    static const char *const names[CASES] = {
        "iteration of the mixer", "all-reduce of gradients, then update",
        "mix, update and copy in one sweep", "the same in separate sweeps", "swap of all parameters"};
    struct sampler samplers[CASES];
    char title[200];
    int32_t stop = STOP;
    struct dp_mixer_report counts;

    for (int i = 0; i < CASES; i++) {
        samplers[i] = (struct sampler){j, (enum what)i};
        cases[i] = (struct bench_case){.sample = sample, .user = &samplers[i], .figure_count = 1,
                                       .figures = {{.what = names[i], .unit = "ms"}}};
    }
    int err = bench_run(cases, CASES, &j->v->common);
    if (err)
        return err;
    dp_mixer_report(j->mixer, &counts);
    const double sent = (double)counts.sent_bytes / (double)mixer_now(j->mixer).iterations;
    snprintf(title, sizeof(title), "%s, %d workers, %zu parameters, %s; %.1f MB sent by a worker in an "
             "iteration, %.3g times the parameters", j->graph->name, j->graph->workers, j->elements,
             dp_comm_name(j->comm), sent / 1e6, sent / ((double)j->elements * sizeof(float)));
    bench_report(title, cases, CASES, &j->v->common);
    return dp_comm_broadcast(j->comm, &stop, sizeof(stop), 0);
}

/* ---- a worker ----------------------------------------------------------------------------------- */

static int open_worker(struct job *j, const struct dp_comm_config *config)
{
    int err = launch_join(config, &j->comm);

    if (!err)
        err = make_tensors(j);
    return err ? err : make_mixer(j);
}

static void close_worker(struct job *j)
{
    dp_mixer_free(j->mixer);
    dp_optimizer_free(j->optimizer);
    dp_comm_close(j->comm);
    for (int k = 0; k < 2; k++) {
        dp_shared_free(j->beside[k]);
        free(j->memory[k][0]);
        free(j->memory[k][1]);
    }
}

static int run_worker(void *user, const struct dp_comm_config *config, struct dp_abort *why)
{
    struct job *j = user;

    command_mute(true); /* launch_ranks says what went wrong, once */
    int err = open_worker(j, config);
    if (!err)
        err = config->rank ? follow(j) : lead(j);
    if (err) {
        *why = (struct dp_abort){.rank = config->rank, .error = err};
        snprintf(why->text, sizeof(why->text), "%s", dp_last_error());
        if (j->comm)
            dp_comm_abort(j->comm, err, why->text);
    }
    close_worker(j);
    return err;
}

/* ---- the command -------------------------------------------------------------------------------- */

#define AT(member) .offset = offsetof(struct values, member)

static const char *const transports[] = {"auto", "shm", "tcp", NULL};
static const struct arg args[] = {
    {"workers", 'N', "N", "a process each", ARG_INT, AT(ranks), .fallback = "2", .min = 2, .max = 256},
    {"parameters", 0, "N", "float32, of the model", ARG_INT, AT(parameters), .fallback = "33600000",
     .min = TENSORS, .max = 1e10},
    {"bucket-bytes", 0, "SIZE", "exchanged as one block", ARG_BYTES, AT(bucket_bytes),
     .fallback = "25MiB", .min = 1024, .max = 1e12},
    {"transport", 0, NULL, "how messages travel", ARG_CHOICE, AT(transport), .fallback = "auto",
     .choices = transports},
};

int run_bench_mixing(int argc, char **argv)
{
    const struct arg_group groups[] = {
        {"which iteration", args, sizeof(args) / sizeof(args[0])}, bench_group, {0},
    };
    const struct usage usage = {
        .command = "dp-bench mixing",
        .operands = "[KIND]",
        .max_operands = 1,
        .about = "An iteration of decentralized training without a model, a process a worker: mixing\n"
                 "by a graph (one-peer-exp), beside an all-reduce of gradients over the same\n"
                 "processes, the fused update alone, the same in separate sweeps, and a swap alone.",
        .groups = groups,
        .examples = "  dp-bench mixing\n"
                    "  dp-bench mixing ring -N 4 --parameters 1000000 --transport tcp\n",
    };
    static struct job job; /* copied into each worker's process */
    struct values v = {0};
    struct operands operands;
    int status;

    if (!args_parse(&usage, argc, argv, &v, &operands, &status))
        return status;
    job = (struct job){.v = &v};
    int err = dp_graph_new(
        &(struct dp_graph_spec){
            .name = operands.count ? operands.items[0] : "one-peer-exp",
            .workers = (int)v.ranks,
            .local = 1,
        },
        &job.graph);
    if (err)
        return command_failed(err);
    status = launch_ranks((int)v.ranks, 0, v.transport, run_worker, &job);
    dp_graph_free(job.graph);
    return status;
}
