/* SPDX-License-Identifier: Apache-2.0
 *
 * step.c - `dualpipe bench step`: a real step, a process a rank, whose ops wait or compute on a GPU,
 * against the critical path of the same step on paper.
 *
 *      rank 0      take a sample:  say which times |  step  step  step  | hear what all measured
 *      rank 1..    wait for a word                 |  step  step  step  | tell
 *
 * All ranks are started once. The yardstick is the schedule simulated with the times that the waits
 * really took, or each op's kernels, so that what is left is what messages and the executor add.
 */
#include "bench/bench.h"
#include "bench/rig.h"
#include "bench/step_cuda.h"
#include "command.h"
#include "commands.h"
#include "launch.h"
#include "schedule_args.h"

#include <dualpipe/trace.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CASES_MAX = 3, SAMPLE_MS = 250, STOP = -1, CPU_PERCENT_MAX = 40, FIRST_STEPS = 4,
       LATE_MAX = 100 };

struct values {
    struct bench_options common;
    int64_t ranks, microbatches, slack;
    struct op_times times; /* all 0: not given */
    double message_bytes, latency_ns;
    int64_t late;
    const char *transport, *execution, *schedule, *compute;
    const char *device, *dtype, *kernels;
    int64_t layers, width, context, batch;
    bool no_graphs;
    /* What follows: */
    const void *image; /* of kernels; NULL: ops wait */
};

/* What a rank measured in one sample. */
struct told {
    int64_t cpu_ns;
    struct rig_clock clocks[RIG_OPS];
};

/* What rank 0 says: which times, how often. */
struct order {
    int32_t which, steps;
};

/* When a rank was in a step, by the clock that all processes of a machine share. */
struct stay {
    int64_t began_ns, ended_ns;
};

struct job {
    const struct values *v;
    struct dp_schedule *schedule;
    int case_count;
    struct dp_cost costs[CASES_MAX];
    int steps[CASES_MAX]; /* of a sample */
    /* In each rank's process: */
    struct dp_comm *comm;
    struct rig rig;
    struct dp_recorder *recorder; /* NULL: late ops are not asked for */
    struct step_cuda *cuda; /* NULL: ops wait */
    int64_t *ops_ns;        /* [ranks][most ops of a rank], that of this rank apart */
    int64_t *own_ns, *packed_ns; /* [most ops], [all ops] */
    size_t most_ops;
    struct told *told; /* [ranks] */
    struct stay *stays; /* [ranks] */
    double step_ns;    /* mean, of the last sample */
};

static bool spins(const struct values *v)
{
    return !v->image && !strcmp(v->compute, "spin");
}

static bool by_nccl(const struct values *v)
{
    return v->image && v->transport && !strcmp(v->transport, "nccl");
}

/* ---- steps, on every rank -------------------------------------------------------------------- */

/* From the first rank's start to the last one's end. */
static int time_step(struct job *j, double *ns)
{
    struct stay mine;
    int err = dp_comm_barrier(j->comm);

    if (err)
        return err;
    mine.began_ns = now_ns();
    if ((err = j->cuda ? step_cuda_run(j->cuda) : rig_step(&j->rig)))
        return err;
    mine.ended_ns = now_ns();
    if ((err = dp_comm_allgather(j->comm, &mine, j->stays, sizeof(mine))))
        return err;
    for (int rank = 0; rank < dp_comm_size(j->comm); rank++) {
        if (j->stays[rank].began_ns < mine.began_ns)
            mine.began_ns = j->stays[rank].began_ns;
        if (j->stays[rank].ended_ns > mine.ended_ns)
            mine.ended_ns = j->stays[rank].ended_ns;
    }
    *ns = (double)(mine.ended_ns - mine.began_ns);
    return 0;
}

/* The times of ops on the device, to all. */
static int share_ops(struct job *j)
{
    if (!j->cuda)
        return 0;
    step_cuda_take_times(j->cuda, j->own_ns);
    return dp_comm_allgather(j->comm, j->own_ns, j->ops_ns, j->most_ops * sizeof(*j->own_ns));
}

static int take_steps(struct job *j, struct order order)
{
    struct told mine = {.cpu_ns = -bench_self_ns()};
    double total = 0, one = 0;
    int err = 0;

    rig_set_waits(&j->rig, &j->costs[order.which]);
    for (int i = 0; i < order.steps && !err; i++) {
        err = time_step(j, &one);
        total += one;
    }
    if (!err)
        err = share_ops(j);
    if (err)
        return err;
    j->step_ns = total / order.steps;
    mine.cpu_ns += bench_self_ns();
    memcpy(mine.clocks, j->rig.clocks, sizeof(mine.clocks));
    return dp_comm_allgather(j->comm, &mine, j->told, sizeof(mine));
}

/* ---- samples, on rank 0 ---------------------------------------------------------------------- */

static int order_steps(struct job *j, struct order order)
{
    int err = dp_comm_broadcast(j->comm, &order, sizeof(order), 0);

    return err ? err : take_steps(j, order);
}

/* The mean of what all ranks' waits of one kind took. */
static double mean_ns(const struct job *j, enum rig_op op, double fallback)
{
    double total = 0, count = 0;

    for (int rank = 0; rank < dp_comm_size(j->comm); rank++) {
        total += j->told[rank].clocks[op].total_ns;
        count += (double)j->told[rank].clocks[op].count;
    }
    return count > 0 ? total / count : fallback;
}

/* The ranks' ops in one row, as a schedule has them. */
static void pack_ops(struct job *j)
{
    const struct dp_schedule *s = j->schedule;

    for (int rank = 0, process; rank < s->ranks; rank++) {
        process = s->group_rank[rank];
        memcpy(j->packed_ns + s->first[rank], j->ops_ns + (size_t)process * j->most_ops,
               dp_schedule_count(s, rank) * sizeof(*j->ops_ns));
    }
}

/* How long the step takes on paper, with the times that ops really took. */
static int simulate_ns(struct job *j, int which, double *ns)
{
    const struct dp_cost *c = &j->costs[which];
    struct dp_cost real = {
        .f_ns = mean_ns(j, RIG_F, c->f_ns),
        .i_ns = mean_ns(j, RIG_I, c->i_ns),
        .w_ns = mean_ns(j, RIG_W, c->w_ns),
        .b_ns = mean_ns(j, RIG_B, c->b_ns),
        .fb_ns = mean_ns(j, RIG_FB, c->fb_ns),
        .link_latency_ns = j->v->latency_ns,
        .op_ns = j->packed_ns,
    };
    struct dp_simulation sim;

    if (j->cuda)
        pack_ops(j);
    int err = dp_schedule_simulate(j->schedule, &real, 0, &sim);
    if (err)
        return err;
    *ns = (double)sim.makespan_ns;
    dp_simulation_fini(&sim);
    return 0;
}

/* OPS on a device only. */
enum { RATIO, STEP, CPU, FIGURES, OPS = FIGURES, CUDA_FIGURES };

struct sampler {
    struct job *job;
    int which;
};

static int sample(void *user, double *figures)
{
    const struct sampler *s = user;
    struct job *j = s->job;
    double simulated, cpu = 0;

    int64_t began = now_ns();
    int err = order_steps(j, (struct order){s->which, j->steps[s->which]});
    if (!err)
        err = simulate_ns(j, s->which, &simulated);
    if (err)
        return err;
    double wall = (double)(now_ns() - began) * (double)sysconf(_SC_NPROCESSORS_ONLN);
    for (int rank = 0; rank < dp_comm_size(j->comm); rank++)
        cpu += (double)j->told[rank].cpu_ns;
    bench_add_own((int64_t)cpu - j->told[0].cpu_ns);
    figures[RATIO] = j->step_ns / simulated;
    figures[STEP] = j->step_ns / 1e6;
    figures[CPU] = 100 * cpu / wall;
    if (j->cuda)
        figures[OPS] = 0;
    for (size_t i = 0; j->cuda && i < j->schedule->first[j->schedule->ranks]; i++)
        figures[OPS] += (double)j->packed_ns[i] / 1e6;
    return 0;
}

/* What a step on the device takes is not known before: the first ones tell, which also choose
 * algorithms and make graphs. */
static int warm_up(struct job *j)
{
    int err = order_steps(j, (struct order){0, FIRST_STEPS});

    if (!err)
        j->steps[0] = 1 + (int)(SAMPLE_MS * 1e6 / (j->step_ns + 1e5));
    return err;
}

/* ---- what was late --------------------------------------------------------------------------- */

static void print_late(const struct job *j, const struct dp_timeline *t, const struct dp_late *late,
                       int count)
{
    char op[DP_OP_TEXT_LEN], because[32];

    printf("\nlate in the last step, of %.4g ms from its first op to its last one\n%-9s %4s  %9s  %s\n",
           (double)t->makespan_ns / 1e6, "op", "rank", "late by us", "because of");
    for (int i = 0; i < count; i++) {
        snprintf(because, sizeof(because), late[i].because < 0 ? "its own rank" : "a message of rank %d",
                 (int)late[i].because);
        printf("%-9s %4d  %9.1f   %s\n", dp_op_text(late[i].span.op, op),
               (int)j->schedule->group_rank[late[i].span.rank], (double)late[i].late_ns / 1e3, because);
    }
}

/* On every rank, after the samples. */
static int show_late(struct job *j)
{
    struct dp_late late[LATE_MAX];
    struct dp_timeline t;
    int count;

    if (!j->recorder)
        return 0;
    int err = dp_recorder_gather(j->recorder, j->schedule, j->comm, &t);
    if (err || dp_comm_rank(j->comm))
        return err;
    err = dp_trace_late(&t, j->schedule, late, (int)j->v->late, &count);
    if (!err)
        print_late(j, &t, late, count);
    dp_timeline_fini(&t);
    return err;
}

/* ---- the report, on rank 0 --------------------------------------------------------------------- */

static void describe_case(struct bench_case *c, const struct dp_cost *cost, struct sampler *s,
                          double target)
{
    static char names[CASES_MAX][96];
    const struct values *v = s->job->v;
    double b = cost->b_ns > 0 ? cost->b_ns : cost->i_ns + cost->w_ns;
    const int figures = v->image ? CUDA_FIGURES : FIGURES;

    if (v->image)
        snprintf(names[0], sizeof(names[0]), "layers %d, width %d, %s: over critical path",
                 (int)v->layers, (int)v->width, v->dtype);
    else
        snprintf(names[s->which], sizeof(names[0]), "F %g, B %g, W %g, F&B %g ms: over critical path",
             cost->f_ns / 1e6, b / 1e6, cost->w_ns / 1e6,
             (cost->fb_ns > 0 ? cost->fb_ns : cost->f_ns + b) / 1e6);
    *c = (struct bench_case){.sample = sample, .user = s,
                             .figure_count = figures, .figures = {
        [RATIO] = {.what = names[s->which], .unit = "", .target = target},
        [STEP] = {.what = "  step", .unit = "ms"},
        [CPU] = {.what = "  CPU of all ranks", .unit = "%",
                 .target = spins(v) ? 0 : CPU_PERCENT_MAX},
    }};
    if (v->image)
        c->figures[OPS] = (struct bench_figure){.what = "  ops of all ranks", .unit = "ms"};
}

static int lead(struct job *j)
{
    static struct bench_case cases[CASES_MAX];
    static const double sleeping[CASES_MAX] = {1.02, 1.035}, spinning[CASES_MAX] = {1.001, 1.005, 1.02},
                        on_cuda = 1.03;
    const double *targets = spins(j->v) ? spinning : sleeping;
    struct sampler samplers[CASES_MAX];
    struct order stop = {STOP, 0};
    char title[160];
    int err = j->cuda ? warm_up(j) : 0;

    for (int i = 0; i < j->case_count; i++) {
        samplers[i] = (struct sampler){j, i};
        describe_case(&cases[i], &j->costs[i], &samplers[i],
                      j->cuda ? on_cuda : j->case_count > 1 ? targets[i] : 0);
    }
    if (!err)
        err = bench_run(cases, j->case_count, &j->v->common);
    if (err)
        return err;
    snprintf(title, sizeof(title), "%s%s, %d ranks, %d micro-batches, %s%s%s",
             dp_name(DP_NAMES_SCHEDULE, j->schedule->kind), j->schedule->slack ? " with slack" : "",
             j->schedule->ranks, j->schedule->microbatches, j->cuda ? j->v->device : "",
             j->cuda ? ", " : "", by_nccl(j->v) ? "nccl" : dp_comm_name(j->comm));
    bench_report(title, cases, j->case_count, &j->v->common);
    err = dp_comm_broadcast(j->comm, &stop, sizeof(stop), 0);
    return err ? err : show_late(j);
}

static int follow(struct job *j)
{
    struct order order = {0, 0};
    int err = 0;

    while (!err && order.which != STOP) {
        err = dp_comm_broadcast(j->comm, &order, sizeof(order), 0);
        if (!err && order.which != STOP)
            err = take_steps(j, order);
    }
    return err ? err : show_late(j);
}

/* ---- a rank ---------------------------------------------------------------------------------- */

static struct step_cuda_config config_on_cuda(const struct job *j)
{
    const struct values *v = j->v;

    return (struct step_cuda_config){.schedule = j->schedule, .comm = j->comm, .device = v->device,
                                     .image = v->image, .nccl = by_nccl(v),
                                     .bf16 = !strcmp(v->dtype, "bf16"), .graphs = !v->no_graphs,
                                     .layers = (int)v->layers, .width = (int)v->width,
                                     .context = (int)v->context, .batch = (int)v->batch};
}

static size_t most_ops(const struct dp_schedule *s)
{
    size_t most = 0;

    for (int rank = 0; rank < s->ranks; rank++)
        if (dp_schedule_count(s, rank) > most)
            most = dp_schedule_count(s, rank);
    return most;
}

static int open_on_cuda(struct job *j)
{
    const struct dp_schedule *s = j->schedule;
    const struct step_cuda_config config = config_on_cuda(j);

    j->most_ops = most_ops(s);
    j->own_ns = calloc(j->most_ops, sizeof(*j->own_ns));
    j->ops_ns = calloc(j->most_ops * (size_t)s->ranks, sizeof(*j->ops_ns));
    j->packed_ns = calloc(s->first[s->ranks], sizeof(*j->packed_ns));
    if (!j->own_ns || !j->ops_ns || !j->packed_ns)
        return command_broke("no memory for the times of %d ranks", s->ranks), DP_ENOMEM;
    return step_cuda_open(&config, &j->cuda);
}

static int open_rank(struct job *j, const struct dp_comm_config *config)
{
    int err = launch_join(config, &j->comm);

    if (err)
        return err;
    j->told = calloc((size_t)config->size, sizeof(*j->told));
    j->stays = calloc((size_t)config->size, sizeof(*j->stays));
    if (!j->told || !j->stays)
        return command_broke("no memory for %d ranks", config->size), DP_ENOMEM;
    if (j->v->image)
        return open_on_cuda(j);
    if (j->v->late && (err = dp_recorder_new(most_ops(j->schedule), 1, &j->recorder)))
        return err;
    return rig_open(&(struct rig_config){
        .schedule = j->schedule, .comm = j->comm,
        .message_bytes = (size_t)j->v->message_bytes,
        .execution = strcmp(j->v->execution, "list") ? DP_EXECUTE_MESSAGES : DP_EXECUTE_LIST,
        .spins = spins(j->v), .recorder = j->recorder},
        &j->rig);
}

static int run_rank(void *user, const struct dp_comm_config *config, struct dp_abort *why)
{
    struct job *j = user;

    command_mute(true); /* launch_ranks says what went wrong, once */
    int err = open_rank(j, config);
    if (!err)
        err = config->rank ? follow(j) : lead(j);
    if (err) {
        *why = (struct dp_abort){.rank = config->rank, .error = err};
        snprintf(why->text, sizeof(why->text), "%s", dp_last_error());
        if (j->comm)
            dp_comm_abort(j->comm, err, why->text);
    }
    rig_close(&j->rig);
    dp_recorder_free(j->recorder);
    step_cuda_close(j->cuda);
    dp_comm_close(j->comm);
    free(j->packed_ns);
    free(j->ops_ns);
    free(j->own_ns);
    free(j->told);
    free(j->stays);
    return err;
}

/* ---- the command ----------------------------------------------------------------------------- */

#define AT(member) .offset = offsetof(struct values, member)

static const char *const transports[] = {"auto", "shm", "tcp", "nccl", NULL};
static const char *const dtypes[] = {"f32", "bf16", NULL};
static const char *const executions[] = {"list", "messages", NULL};
static const char *const computes[] = {"sleep", "spin", NULL};
static const char *const schedules[] = {"gpipe", "1f1b", "zb1p", "dualpipe", "dualpipev",
                                        "interleaved", "zbv", "async", NULL};
static const struct arg args[] = {
    {"schedule", 's', NULL, "KIND as an option", ARG_CHOICE, AT(schedule), .choices = schedules},
    {"ranks", 'P', "N", "pipeline ranks, a process each", ARG_INT, AT(ranks), .fallback = "8",
     .min = 1, .max = 256},
    {"microbatches", 'M', "N", "micro-batches of a step", ARG_INT, AT(microbatches),
     .fallback = "20", .min = 1, .max = 100000},
    {"cost", 0, "OP=TIME,..", "how long ops take, instead of 5 ms and 1 ms in turn", ARG_PARSE,
     AT(times), .parse = schedule_parse_times},
    {"compute", 0, NULL, "what ops do meanwhile; spin: keep a core busy, with a core for each rank",
     ARG_CHOICE, AT(compute), .fallback = "sleep", .choices = computes},
    {"late", 0, "N", "list the N ops of the last step that were late the most, and why", ARG_INT,
     AT(late), .fallback = "0", .max = LATE_MAX},
    {"message-bytes", 0, "SIZE", "of one message", ARG_BYTES, AT(message_bytes),
     .fallback = "64KiB", .min = 4, .max = 1 << 26},
    {"execution", 0, NULL, "what decides which op comes next; messages: with the kind async",
     ARG_CHOICE, AT(execution), .fallback = "list", .choices = executions},
    {"slack", 0, "0|1", "1: dualpipe and dualpipev with one more forward of warm-up at every border",
     ARG_INT, AT(slack), "0", 0, 1},
    {"latency", 0, "TIME", "of a link, on paper", ARG_TIME, AT(latency_ns), .fallback = "0", .max = 1e9},
    {"transport", 0, NULL, "how messages travel", ARG_CHOICE, AT(transport), .fallback = "auto",
     .choices = transports},
};

static const struct arg cuda_args[] = {
    {"device", 0, "NAME", "cpu: ops wait; cuda, cuda:N: they are stages of 'dualpipe train' on a GPU",
     ARG_STRING, AT(device), .fallback = "cpu"},
    {"dtype", 0, NULL, "of activations and products", ARG_CHOICE, AT(dtype), .fallback = "bf16",
     .choices = dtypes},
    {"layers", 0, "N", "of each stage", ARG_INT, AT(layers), .fallback = "1", .min = 1, .max = 64},
    {"width", 0, "N", "of the model, at most 64 or a multiple of it", ARG_INT, AT(width),
     .fallback = "1024", .min = 1, .max = 16384},
    {"context", 0, "N", "bytes of a sequence", ARG_INT, AT(context), .fallback = "512", .min = 1,
     .max = 65536},
    {"batch", 0, "N", "sequences of a micro-batch", ARG_INT, AT(batch), .fallback = "4", .min = 1,
     .max = 4096},
    {"no-graphs", 0, NULL, "launch kernels one by one, not callbacks as CUDA graphs", ARG_FLAG,
     AT(no_graphs)},
    {"kernels", 0, "FILE", "a fatbin, cubin or PTX of tools/train/cuda instead of that built in",
     ARG_STRING, AT(kernels)},
};

/* Which waits, and how many steps of each make a sample long enough to tell the load. */
static int choose_costs(struct job *j)
{
    static const double sleeping_ns[] = {5e6, 1e6, 0}, spinning_ns[] = {10e6, 1e6, 0.1e6, 0};
    const struct op_times *t = &j->v->times;
    double ns;

    if (j->v->image) {
        j->case_count = 1;
        return 0;
    }
    if (t->f + t->i + t->w + t->b + t->fb > 0)
        j->costs[j->case_count++] = schedule_times_cost(t);
    else
        for (const double *op_ns = spins(j->v) ? spinning_ns : sleeping_ns; *op_ns; op_ns++)
            j->costs[j->case_count++] =
                (struct dp_cost){.f_ns = *op_ns, .i_ns = *op_ns, .w_ns = *op_ns};
    for (int i = 0; i < j->case_count; i++) {
        struct dp_simulation sim;
        j->costs[i].link_latency_ns = j->v->latency_ns;
        int err = dp_schedule_simulate(j->schedule, &j->costs[i], 0, &sim);
        if (err)
            return err;
        ns = (double)sim.makespan_ns;
        j->steps[i] = 1 + (int)(SAMPLE_MS * 1e6 / (ns + 1e5));
        dp_simulation_fini(&sim);
    }
    return 0;
}

static int measure(const struct values *v, enum dp_schedule_kind kind)
{
    const struct dp_schedule_spec spec = {
        .kind = kind, .ranks = (int)v->ranks, .microbatches = (int)v->microbatches,
        .slack = (int)v->slack};
    static struct job job; /* large, and copied into each rank's process */
    int err;

    job = (struct job){.v = v};
    if ((err = dp_schedule_new(&spec, &job.schedule)))
        return command_failed(err);
    err = choose_costs(&job);
    int status = err ? command_failed(err)
                     : launch_ranks(spec.ranks, 0, by_nccl(v) ? "auto" : v->transport, run_rank, &job);
    dp_schedule_free(job.schedule);
    return status;
}

/* The operand or --schedule; DualPipe. */
static int take_kind(const struct values *v, struct operands *operands, enum dp_schedule_kind *kind)
{
    if (v->schedule && operands->count)
        return command_misused("%s and --schedule %s: expected one of them", operands->items[0],
                               v->schedule);
    if (v->schedule)
        return dp_schedule_kind_parse(v->schedule, kind) ? command_failed(DP_EINVAL) : 0;
    return schedule_operand(operands, kind);
}

static int check_execution(const struct values *v, enum dp_schedule_kind kind)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);

    if (!strcmp(v->compute, "spin") && v->ranks > cores)
        return command_misused("--compute spin with -P %d: expected a core for each rank, and there "
                               "are %ld", (int)v->ranks, cores);
    if (v->late && (v->common.json || kind == DP_SCHEDULE_ASYNC))
        return command_misused("--late: expected no %s", v->common.json ? "--json" : "kind async, whose "
                               "ops have no order on paper");
    return kind == DP_SCHEDULE_ASYNC || !strcmp(v->execution, "list")
               ? 0
               : command_misused("--execution messages: expected --schedule async, not %s",
                                 dp_name(DP_NAMES_SCHEDULE, kind));
}

/* 0, else an EXIT_ value: what does not go with the device. */
static int check_device(struct values *v, void **read)
{
    const struct op_times *t = &v->times;
    const bool told = t->f + t->i + t->w + t->b + t->fb > 0;
    const struct step_cuda_config config = {.device = v->device, .width = (int)v->width};

    if (!strcmp(v->device, "cpu")) {
        if (v->kernels || v->no_graphs)
            return command_misused("--%s: expected --device cuda",
                                   v->kernels ? "kernels" : "no-graphs");
        if (!strcmp(v->transport, "nccl"))
            return command_misused("--transport nccl: expected --device cuda; it sends from GPU to "
                                   "GPU");
        return 0;
    }
    if (told || v->latency_ns > 0 || v->late || strcmp(v->compute, "sleep"))
        return command_misused("--device %s: expected no --%s; ops take what their kernels take",
                               v->device, told ? "cost" : v->latency_ns > 0 ? "latency" :
                               v->late ? "late" : "compute");
    if (strcmp(v->execution, "list"))
        return command_misused("--device %s: expected --execution list, in whose order ops are "
                               "measured", v->device);
    return step_cuda_prepare(&config, v->kernels, &v->image, read) ? 0 : EXIT_USAGE;
}

int run_bench_step(int argc, char **argv)
{
    const struct arg_group groups[] = {
        ARG_GROUP("which step", args), ARG_GROUP("on a GPU", cuda_args), bench_group, {0}
    };
    const struct usage usage = {
        .command = "dualpipe bench step", .operands = "[KIND]", .operand_choices = schedule_kinds(),
        .max_operands = 1, .groups = groups,
        .about = "Carry out real steps, a process a rank, whose ops sleep as long as they are\n"
                 "told to, and set them beside the critical path of the same step on paper with\n"
                 "the times that the ops really took. The default is DualPipe. With more than\n"
                 "40 % of all cores in use, ranks stand in each other's way. With --compute spin\n"
                 "they compute, 10, 1 and 0.1 ms in turn, as long as they are told to.\n"
                 "With --device cuda ops are the stages of 'dualpipe train' on GPUs, and the\n"
                 "critical path is that of the times which events on the device measure around\n"
                 "each of them. Gradients of mirrors are not summed.",
        .examples = "  dualpipe bench step\n"
                    "  dualpipe bench step --schedule async -P 4 -M 8 --execution messages\n"
                    "  dualpipe bench step -P 4 -M 16 --cost f=2,i=2,w=2,fb=5 --transport tcp\n"
                    "  dualpipe bench step 1f1b -P 2 --compute spin --late 10\n"
                    "  dualpipe bench step --device cuda --transport nccl -P 4 -M 16 --layers 4\n",
    };
    enum dp_schedule_kind kind = DP_SCHEDULE_DUALPIPE;
    struct values v = {0};
    struct operands operands;
    void *read = NULL;
    int status;

    if (!args_parse(&usage, argc, argv, &v, &operands, &status))
        return status;
    status = take_kind(&v, &operands, &kind);
    if (!status)
        status = check_execution(&v, kind);
    if (!status)
        status = check_device(&v, &read);
    if (!status)
        status = measure(&v, kind);
    free(read);
    return status;
}
