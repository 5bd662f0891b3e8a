/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c - `dualpipe plan`: which schedule, how many micro-batches, which stages, what to recompute.
 * Layers are measured, stages cut so that the busiest rank has the least, and every combination is
 * carried out by the simulator.
 */
#include "command.h"
#include "commands.h"
#include "files.h"
#include "train/blas_kernels.h"
#include "train/data.h"
#include "train/gpt.h"
#include "train/host.h"
#include "train/plan_measure.h"
#include "train/settings.h"

#include <dualpipe/partition.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_MICROBATCHES = 4, MODES = 4, SLACKS = 2,
       PLANS_MAX = MOST_MICROBATCHES * MODES * SLACKS * DP_SCHEDULE_KINDS };

/* Of a copy between device and host: what the offload of activations assumes, too. */
static const double host_bytes_per_ns = 4;

struct plan_args {
    struct settings s; /* first: its options are those of train */
    double budget, latency_ns, bandwidth;
    const char *output;
};

/* One combination. */
struct choice {
    const char *schedule, *checkpoint;
    int microbatches, slack;
    bool offload; /* of activations, within the budget */
    struct block_list blocks;
    int64_t step_ns;
    double bubble;
    size_t *rank_bytes, most_bytes; /* on the device */
};

struct planner {
    const struct plan_args *args;
    struct operands *files;
    struct layer_times *times; /* [layers + 2] for the micro-batches at hand */
    struct choice *choices;    /* [count] */
    int count;
};

/* ---- one combination ------------------------------------------------------------------------ */

static enum dp_pairing pairing_of(enum dp_schedule_kind kind)
{
    if (kind == DP_SCHEDULE_INTERLEAVED)
        return DP_PAIRING_INTERLEAVED;
    return kind == DP_SCHEDULE_DUALPIPE || kind == DP_SCHEDULE_DUALPIPEV || kind == DP_SCHEDULE_ZBV
               ? DP_PAIRING_MIRRORED
               : DP_PAIRING_NONE;
}

/* The exact cut; embedding and head are layers, too. false: there are too few. */
static bool cut(const struct planner *p, enum dp_schedule_kind kind, int stages,
                struct block_list *blocks)
{
    const int layers = (int)p->args->s.layers + 2;
    double *costs = calloc((size_t)layers, sizeof(*costs)), largest;

    if (!costs || stages > layers || stages > BLOCK_LIST_MAX)
        return free(costs), false;
    for (int i = 0; i < layers; i++)
        costs[i] = p->times[i].f_ns + p->times[i].i_ns + p->times[i].w_ns;
    const enum dp_pairing pairing = stages > 1 ? pairing_of(kind) : DP_PAIRING_NONE;
    const int err = pairing && layers > DP_PARTITION_PAIRED_MAX
                        ? DP_EINVAL
                        : dp_partition_exact(costs, layers, stages, pairing, blocks->items, &largest);
    free(costs);
    blocks->count = stages;
    blocks->items[0]--;
    blocks->items[stages - 1]--;
    return !err;
}

/* What a slot's stage takes for F, I, W. */
static struct layer_times stage_times(const struct planner *p, const struct block_list *blocks,
                                      int stage)
{
    struct layer_times sum = {0};
    int first = stage ? 1 : 0, end;

    for (int s = 0; s < stage; s++)
        first += blocks->items[s];
    end = first + blocks->items[stage] + (stage == 0) + (stage == blocks->count - 1);
    for (int i = first; i < end; i++) {
        sum.f_ns += p->times[i].f_ns;
        sum.i_ns += p->times[i].i_ns;
        sum.w_ns += p->times[i].w_ns;
        sum.norm_ns += p->times[i].norm_ns;
        sum.update_ns += p->times[i].update_ns;
    }
    return sum;
}

static double op_ns(const struct layer_times *t, enum dp_op_kind kind, double reduce_ns)
{
    switch (kind) {
    case DP_OP_F:
    case DP_OP_RECOMPUTE:
        return t->f_ns;
    case DP_OP_B:
        return t->i_ns + t->w_ns;
    case DP_OP_I:
        return t->i_ns;
    case DP_OP_W:
        return t->w_ns;
    default:
        return kind == DP_OP_REDUCE ? reduce_ns : 0;
    }
}

static void fill_ops(const struct planner *p, const struct settings *s, int rank,
                     const struct layer_times *stages, int64_t *ns)
{
    const struct dp_schedule *list = s->training;

    for (size_t i = list->first[rank]; i < list->first[rank + 1]; i++) {
        const struct dp_op *op = &list->ops[i];
        const struct dp_slot *slot = dp_schedule_slot(list, rank, (int)op->slot);
        const double bytes =
            (double)gpt_stage_size(&s->model, slot->stage, list->stages).param_count * sizeof(real);
        const double reduce_ns = slot->mirror >= 0 ? bytes / p->args->bandwidth : 0;
        double sum = op_ns(&stages[slot->stage], (enum dp_op_kind)op->kind, reduce_ns);
        if (op->overlap)
            sum += op_ns(&stages[dp_schedule_slot(list, rank, (int)op[1].slot)->stage], DP_OP_B, 0);
        ns[i] = llround(sum);
    }
}

/* After the pipeline: norms until all ranks have theirs, of the first copy of a stage; then updates, and
 * the slowest rank's lets the next step begin. */
static double update_ns(const struct dp_schedule *list, const struct layer_times *stages)
{
    double norm_ns = 0, most_ns = 0;

    for (int rank = 0; rank < list->ranks; rank++) {
        double norms = 0, updates = 0;
        for (int i = 0; i < dp_schedule_slot_count(list, rank); i++) {
            const struct dp_slot *slot = dp_schedule_slot(list, rank, i);
            norms += slot->stream > 0 ? 0 : stages[slot->stage].norm_ns;
            updates += stages[slot->stage].update_ns;
        }
        norm_ns = fmax(norm_ns, norms);
        most_ns = fmax(most_ns, updates);
    }
    return norm_ns + most_ns;
}

/* Of what a micro-batch saves, to the host or back. */
static double copy_ns(const struct settings *s)
{
    const int stages = s->training->stages;

    return (double)gpt_stage_size(&s->model, stages - 1, stages).save_bytes / host_bytes_per_ns;
}

static int simulate(const struct planner *p, const struct settings *s, struct choice *c)
{
    const struct dp_schedule *list = s->training;
    struct layer_times *stages = calloc((size_t)list->stages, sizeof(*stages));
    int64_t *ns = calloc(list->first[list->ranks] + 1, sizeof(*ns));
    struct dp_simulation sim;
    int err = stages && ns ? 0 : DP_ENOMEM;

    for (int i = 0; i < list->stages && !err; i++)
        stages[i] = stage_times(p, &s->blocks, i);
    for (int rank = 0; rank < list->ranks && !err; rank++)
        fill_ops(p, s, rank, stages, ns);
    if (!err)
        err = dp_schedule_simulate(
            list,
            &(struct dp_cost){.op_ns = ns,
                              .evict_ns = copy_ns(s),
                              .fetch_ns = copy_ns(s),
                              .link_latency_ns = p->args->latency_ns,
                              .link_bytes_per_ns = p->args->bandwidth,
                              .message_bytes = (double)s->model.batch * s->model.context *
                                               s->model.width * sizeof(real)},
            0, &sim);
    if (!err) {
        c->step_ns = sim.makespan_ns + llround(update_ns(list, stages));
        c->bubble = sim.bubble_ratio;
        dp_simulation_fini(&sim);
    }
    free(stages);
    free(ns);
    return err;
}

static int measure_bytes(const struct settings *s, struct choice *c)
{
    int err = 0;

    c->rank_bytes = calloc((size_t)s->ranks, sizeof(*c->rank_bytes));
    if (!c->rank_bytes)
        return DP_ENOMEM;
    for (int rank = 0; rank < s->ranks && !err; rank++) {
        err = host_measure(s, rank, &c->rank_bytes[rank]);
        if (c->rank_bytes[rank] > c->most_bytes)
            c->most_bytes = c->rank_bytes[rank];
    }
    return err;
}

/* The list becomes one that sends as few activations to the host, or computes them again, as the budget
 * asks for. *possible false: none need be. */
static int offload(struct settings *s, bool *possible)
{
    struct dp_schedule *list;
    const int err = host_schedule(s, &list);

    if (err)
        return err;
    dp_schedule_free(s->training);
    s->training = list;
    *possible = false;
    for (size_t i = 0; i < list->first[list->ranks]; i++)
        *possible |= list->ops[i].kind == DP_OP_EVICT || list->ops[i].kind == DP_OP_RECOMPUTE;
    return 0;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static void take_offload(const struct planner *p, const struct choice *c, struct settings *s)
{
    s->offload.any = s->offload.activations = c->offload;
    s->device_memory = c->offload ? p->args->budget : 0;
}

/* The settings of a choice, complete. The caller ends with settings_fini. */
static bool complete(const struct planner *p, const struct choice *c, struct settings *s)
{
    int status;

    *s = p->args->s;
    s->schedule_name = c->schedule;
    s->checkpoint = c->checkpoint;
    s->slack = c->slack;
    s->microbatches = c->microbatches;
    s->blocks = c->blocks;
    take_offload(p, c, s);
    return settings_complete(s, p->files, 0, &status);
}

/* *possible false: the choice is none. */
static int try_choice(struct planner *p, struct choice *c, bool *possible)
{
    struct settings *s = malloc(sizeof(*s));
    int err = s ? 0 : DP_ENOMEM;

    if (err)
        return err;
    if (!complete(p, c, s))
        err = DP_EINVAL;
    *possible = !err;
    command_mute(c->offload);
    if (!err)
        err = measure_bytes(s, c);
    if (!err && c->offload)
        err = offload(s, possible);
    command_mute(false);
    if (err == DP_ENOMEM && c->offload) /* nothing is small enough */
        err = 0, *possible = false;
    if (*possible && !err)
        err = simulate(p, s, c);
    if (err || !*possible) {
        free(c->rank_bytes);
        c->rank_bytes = NULL;
    }
    settings_fini(s);
    free(s);
    return err;
}

/* *stages of such a schedule, if there is one. */
static int count_stages(const struct planner *p, enum dp_schedule_kind kind, int microbatches,
                        int slack, int *stages)
{
    const struct dp_schedule_spec spec = {
        .kind = kind, .ranks = (int)p->args->s.ranks, .microbatches = microbatches, .slack = slack};
    struct dp_schedule *s;
    const int err = dp_schedule_new(&spec, &s);

    if (err)
        return err;
    *stages = s->stages;
    dp_schedule_free(s);
    return 0;
}

/* The same; 0: there is none. */
static int stages_of(const struct planner *p, enum dp_schedule_kind kind, int microbatches,
                     int slack)
{
    int stages = 0;

    command_mute(true);
    (void)count_stages(p, kind, microbatches, slack, &stages);
    command_mute(false);
    return stages;
}

static int try_kind(struct planner *p, enum dp_schedule_kind kind, int microbatches, int slack)
{
    static const char *const modes[MODES] = {"never", "except_last", "always", "never"};
    const int count = p->args->budget > 0 && kind != DP_SCHEDULE_ASYNC ? MODES : MODES - 1;
    bool possible = false;
    const char *only = p->args->s.schedule_name;
    const int stages = stages_of(p, kind, microbatches, slack);
    struct choice c = {.schedule = dp_schedule_kind_name(kind),
                       .microbatches = microbatches,
                       .slack = slack};
    int err = 0;

    if (!stages || (only && strcmp(only, c.schedule)) || !cut(p, kind, stages, &c.blocks))
        return 0;
    for (int i = 0; i < count && !err; i++) {
        struct choice *next = &p->choices[p->count];
        *next = c;
        next->checkpoint = modes[i];
        next->offload = i == MODES - 1;
        err = try_choice(p, next, &possible);
        p->count += possible;
    }
    return err;
}

static int try_microbatches(struct planner *p, int microbatches)
{
    const struct settings *s = &p->args->s;
    const struct gpt_config config = {
        .layers = (int)s->layers,
        .width = (int)s->width,
        .heads = (int)s->heads,
        .context = (int)s->context,
        .batch = (int)(s->batch / microbatches),
        .dropout = (float)s->dropout,
        .seed = (uint64_t)s->how.seed,
    };
    int err = plan_measure(&config, p->times);

    for (int kind = DP_SCHEDULE_USER + 1; kind < DP_SCHEDULE_KINDS && !err; kind++)
        for (int slack = (int)s->slack; slack < SLACKS && !err; slack++)
            err = try_kind(p, (enum dp_schedule_kind)kind, microbatches, slack);
    return err;
}

/* The least divisor of the batch from `least` on; 0: there is none. */
static int64_t divisor(int64_t batch, int64_t least)
{
    int64_t m = least;

    while (m <= batch && batch % m)
        m++;
    return m <= batch ? m : 0;
}

/* From one for each rank on, each twice the one before or more. */
static int try_all(struct planner *p)
{
    const struct settings *s = &p->args->s;
    int64_t m = divisor(s->batch, s->ranks < s->batch ? s->ranks : s->batch);
    int err = 0;

    if (s->microbatches)
        return try_microbatches(p, (int)s->microbatches);
    for (int i = 0; i < MOST_MICROBATCHES && m && !err; i++, m = divisor(s->batch, 2 * m))
        err = try_microbatches(p, (int)m);
    return err;
}

/* ---- the result ------------------------------------------------------------------------------ */

static int by_time(const void *pa, const void *pb)
{
    const struct choice *a = pa, *b = pb;

    if (a->step_ns != b->step_ns)
        return a->step_ns < b->step_ns ? -1 : 1;
    return a->most_bytes < b->most_bytes ? -1 : a->most_bytes > b->most_bytes;
}

static const struct choice *find_best(const struct planner *p)
{
    for (int i = 0; i < p->count; i++)
        if (p->args->budget <= 0 || (double)p->choices[i].most_bytes <= p->args->budget)
            return &p->choices[i];
    return NULL;
}

static void print_table(FILE *to, const struct planner *p, const struct choice *best)
{
    fprintf(to, "  %-15s %5s  %-11s %10s  %6s  %9s  blocks of each stage\n", "schedule", "M",
            "recompute", "step", "bubble", "memory");
    for (int i = 0; i < p->count; i++) {
        const struct choice *c = &p->choices[i];
        char name[32];
        snprintf(name, sizeof(name), "%s%s", c->schedule, c->slack ? " slack" : "");
        fprintf(to, "%c %-15s %5d  %-11s %7.2f ms  %4.0f %%  %5.1f MiB ", c == best ? '*' : ' ',
                name, c->microbatches, c->offload ? "offload" : c->checkpoint, (double)c->step_ns * 1e-6,
                100 * c->bubble, (double)c->most_bytes / (1024 * 1024));
        for (int s = 0; s < c->blocks.count; s++)
            fprintf(to, "%c%d", s ? ',' : ' ', (int)c->blocks.items[s]);
        putc('\n', to);
    }
    if (p->args->s.layers + 2 > DP_PARTITION_PAIRED_MAX)
        fprintf(to, "  left out: schedules with two stages a rank, which are for at most %d layers\n",
                DP_PARTITION_PAIRED_MAX - 2);
}

static int write_plan(const struct planner *p, const struct choice *best)
{
    struct settings *s = calloc(1, sizeof(*s));
    struct output out;
    int status = s ? output_open(p->args->output, &out) : EXIT_FAILED;

    if (!status) {
        *s = p->args->s;
        s->schedule_name = best->schedule;
        s->checkpoint = best->checkpoint;
        s->slack = best->slack;
        s->microbatches = best->microbatches;
        s->blocks = best->blocks;
        take_offload(p, best, s);
        status = output_close(&out, plan_file_write(out.file, s, best->step_ns, best->rank_bytes));
    }
    free(s);
    return status;
}

/* There is no plan at all. With no schedule named it can only be the layers: GPipe takes any
 * number of ranks and of micro-batches. */
static int refuse(const struct planner *p)
{
    const struct settings *s = &p->args->s;
    enum dp_schedule_kind kind = DP_SCHEDULE_GPIPE;
    int err = s->schedule_name ? dp_schedule_kind_parse(s->schedule_name, &kind) : 0, stages = 0;

    if (!err)
        err = count_stages(p, kind, (int)(s->microbatches ? s->microbatches : s->batch),
                           (int)s->slack, &stages);
    if (err)
        return command_failed(err);
    if (s->layers + 2 < stages)
        return command_misused("--layers %d: expected at least %d; with the embedding and the head "
                               "one for each of %d stages",
                               (int)s->layers, stages - 2, stages);
    return command_misused("--layers %d: expected at most %d with --schedule %s, where a rank has two "
                           "stages",
                           (int)s->layers, DP_PARTITION_PAIRED_MAX - 2, dp_schedule_kind_name(kind));
}

static int show(struct planner *p)
{
    const char *output = p->args->output;
    size_t least = SIZE_MAX;

    if (!p->count)
        return refuse(p);
    qsort(p->choices, (size_t)p->count, sizeof(*p->choices), by_time);
    const struct choice *best = find_best(p);
    for (int i = 0; i < p->count; i++)
        least = p->choices[i].most_bytes < least ? p->choices[i].most_bytes : least;
    print_table(output && !strcmp(output, "-") ? stderr : stdout, p, best);
    if (best)
        return output ? write_plan(p, best) : EXIT_OK;
    return command_misused("--memory %.0f: no plan fits, expected at least %zu bytes a rank",
                           p->args->budget, least);
}

/* ---- the command ----------------------------------------------------------------------------- */

#define AT(member) .offset = offsetof(struct plan_args, member)
static const struct arg plan_options[] = {
    {"memory", 0, "SIZE", "the most that a rank may hold (default: any)", ARG_BYTES, AT(budget),
     .min = 1, .max = 1e15},
    {"latency", 0, "TIME", "of a message on its way", ARG_TIME, AT(latency_ns), .fallback = "20us"},
    {"bandwidth", 0, "RATE", "of messages and of sums between ranks", ARG_RATE, AT(bandwidth),
     .fallback = "4GB/s", .min = 1e-9, .max = 1e9},
    {"output", 'o', "FILE", "write the best plan, for 'dualpipe train --plan FILE'", ARG_STRING,
     AT(output), .written = true},
};

static bool check(const struct settings *s)
{
    if (s->plan || s->resume || s->prompt || s->file || s->blocks.count)
        command_misused("%s: expected none; a plan is made from the beginning",
                        s->plan     ? "--plan"
                        : s->resume ? "--resume"
                        : s->prompt ? "--prompt"
                        : s->file   ? "--file"
                                    : "--blocks");
    else if (s->how.replicas > 1 || s->offload.any || s->tied || settings_on_cuda(s))
        command_misused("dualpipe plan: expected -D 1 and --device cpu, without --offload and "
                        "--tie-embeddings");
    else if (s->schedule_name && !strcmp(s->schedule_name, "none"))
        command_misused("--schedule none: expected a schedule, there is nothing else to plan");
    else if (s->how.schedule.virtual_stages && s->how.schedule.virtual_stages != 2)
        command_misused("--virtual-stages %d: expected 2; a plan has at most two stages a rank",
                        (int)s->how.schedule.virtual_stages);
    else if (s->width % s->heads)
        command_misused("--width %d: expected a multiple of %d, the number of --heads",
                        (int)s->width, (int)s->heads);
    else if (s->microbatches && s->batch % s->microbatches)
        command_misused("--batch %d: expected a multiple of %d, the number of micro-batches (-M)",
                        (int)s->batch, (int)s->microbatches);
    else
        return true;
    return false;
}

/* The text decides nothing, but one that 'dualpipe train' would refuse is refused here, too. */
static bool has_text(const struct settings *s, const struct operands *more)
{
    const char *paths[2 * ARG_LIST_MAX];
    size_t count = 0;
    struct data data;

    for (size_t i = 0; i < s->data.count; i++)
        paths[count++] = s->data.items[i];
    for (int i = 0; i < more->count && count < 2 * ARG_LIST_MAX; i++)
        paths[count++] = more->items[i];
    if (!count)
        return true; /* is said by all that takes a --data */
    if (!data_open(paths, count, (int)s->context, (uint64_t)s->how.seed, &data))
        return false;
    data_close(&data);
    return true;
}

static int plan(struct plan_args *args, struct operands *files)
{
    struct planner p = {.args = args, .files = files};
    int status;

    p.times = calloc((size_t)args->s.layers + 2, sizeof(*p.times));
    p.choices = calloc(PLANS_MAX, sizeof(*p.choices));
    int err = p.times && p.choices ? try_all(&p) : DP_ENOMEM;
    if (err)
        status = err == DP_ENOMEM ? command_broke("out of memory") : command_failed(err);
    else
        status = show(&p);
    for (int i = 0; i < p.count; i++)
        free(p.choices[i].rank_bytes);
    free(p.choices);
    free(p.times);
    return status;
}

int run_plan(int argc, char **argv)
{
    struct arg_group groups[16] = {{"the plan", plan_options,
                                    sizeof(plan_options) / sizeof(plan_options[0])}};
    struct usage usage = settings_usage;
    struct operands files;
    int status;

    for (int i = 0; settings_usage.groups[i].title; i++)
        groups[1 + i] = settings_usage.groups[i];
    usage.command = "dualpipe plan";
    usage.groups = groups;
    usage.about =
        "Find the fastest way to train the model on this machine. Its layers are measured, the\n"
        "stages cut so that the busiest rank has the least work (exact), and every schedule,\n"
        "number of micro-batches and mode of recomputation is simulated; with --memory also what\n"
        "sends activations to the host, or computes them again, as far as it must. The step is\n"
        "that of the pipeline with AdamW's update, where each rank has a core; the bubble is the\n"
        "pipeline's. Memory is that of the run, by rank, on the device: pipeline, weights, gradients,\n"
        "the optimizer's state.";
    usage.examples = "  dualpipe plan --data book.txt -P 4 -o plan.json\n"
                     "  dualpipe train --data book.txt --plan plan.json\n"
                     "  dualpipe plan --data book.txt -P 2 --memory 12MiB\n";
    struct plan_args *args = calloc(1, sizeof(*args));
    if (!args)
        return command_broke("out of memory");
    if (args_parse(&usage, argc, argv, args, &files, &status)) {
        if (!args->s.ranks)
            args->s.ranks = 4;
        if (!args->s.batch)
            args->s.batch = 16;
        const char *why;
        status = !check(&args->s) || !has_text(&args->s, &files) ? EXIT_USAGE
                 : blas_begin(&why)                              ? plan(args, &files)
                                                                 : command_broke("%s", why);
    }
    free(args);
    return status;
}
