/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c - `dualpipe plan`: which schedule, how many micro-batches, which stages, what to recompute: the
 * layouts that the library's trainer predicts, for several numbers of micro-batches.
 */
#include "command.h"
#include "commands.h"
#include "files.h"
#include "train/data.h"
#include "train/host.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_MICROBATCHES = 4 };

/* Of a copy between device and host: what the offload of activations assumes, too. */
static const double host_bytes_per_ns = 4;

struct planner {
    struct settings s; /* first: its options are those of train */
    double budget, latency_ns, bandwidth;
    const char *output;
    enum dp_schedule_kind kind; /* DP_SCHEDULE_USER: any */
    struct dp_trainer_plan *plans;
    int32_t count;
};

/* ---- all of them ----------------------------------------------------------------------------- */

/* Those that can be written are more of p's. */
static int add_plans(struct planner *p, struct dp_trainer_plan *plans, int32_t count)
{
    struct dp_trainer_plan *list = realloc(p->plans, ((size_t)p->count + (size_t)count) * sizeof(*list));

    if (!list) {
        dp_trainer_plan_free(plans, count);
        return DP_ENOMEM;
    }
    p->plans = list;
    memcpy(list + p->count, plans, (size_t)count * sizeof(*list));
    p->count += count;
    free(plans);
    return 0;
}

static int try_microbatches(struct planner *p, int32_t microbatches)
{
    const struct dp_trainer_machine machine = {.ranks = p->s.how.schedule.ranks,
                                               .budget_bytes = (size_t)p->budget,
                                               .latency_ns = p->latency_ns,
                                               .bytes_per_ns = p->bandwidth,
                                               .host_bytes_per_ns = host_bytes_per_ns};
    const int32_t given = p->s.how.microbatches;
    struct dp_trainer_plan *plans;
    int32_t count;

    p->s.how.microbatches = microbatches;
    p->s.model = settings_model(&p->s);
    command_mute(true); /* a layout that cannot be is no mistake */
    const int err = host_plan(&p->s, p->kind, &machine, &plans, &count);
    command_mute(false);
    p->s.how.microbatches = given;
    if (err)
        return err == DP_EINVAL ? 0 : err; /* there is none */
    return add_plans(p, plans, count);
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
    const struct settings *s = &p->s;
    const int64_t rows = s->how.rows, ranks = s->how.schedule.ranks;
    int64_t m = divisor(rows, ranks < rows ? ranks : rows);
    int err = 0;

    if (s->how.microbatches)
        return try_microbatches(p, s->how.microbatches);
    for (int i = 0; i < MOST_MICROBATCHES && m && !err; i++, m = divisor(rows, 2 * m))
        err = try_microbatches(p, m);
    return err;
}

/* ---- the result ------------------------------------------------------------------------------ */

static int by_time(const void *pa, const void *pb)
{
    const struct dp_trainer_plan *a = pa, *b = pb;

    if (a->step_ns != b->step_ns)
        return a->step_ns < b->step_ns ? -1 : 1;
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

static const struct dp_trainer_plan *find_best(const struct planner *p)
{
    for (int i = 0; i < p->count; i++)
        if ((p->budget <= 0 || (double)p->plans[i].bytes <= p->budget) &&
            p->plans[i].stages <= BLOCK_LIST_MAX)
            return &p->plans[i];
    return NULL;
}

/* Layers but the embedding and the head, which are of the first stage and of the last. */
static int32_t blocks_of(const struct dp_trainer_plan *plan, int32_t stage)
{
    return plan->layers_of_stage[stage] - (stage == 0) - (stage == plan->stages - 1);
}

static void print_table(FILE *to, const struct planner *p, const struct dp_trainer_plan *best)
{
    fprintf(to, "  %-15s %5s  %-11s %10s  %6s  %9s  blocks of each stage\n", "schedule", "M",
            "recompute", "step", "bubble", "memory");
    for (int i = 0; i < p->count; i++) {
        const struct dp_trainer_plan *c = &p->plans[i];
        char name[32];
        snprintf(name, sizeof(name), "%s%s", dp_name(DP_NAMES_SCHEDULE, c->kind),
                 c->slack ? " slack" : "");
        fprintf(to, "%c %-15s %5d  %-11s %7.2f ms  %4.0f %%  %5.1f MiB ", c == best ? '*' : ' ', name,
                c->microbatches, c->offload ? "offload" : dp_name(DP_NAMES_RECOMPUTE, c->recompute),
                (double)c->step_ns * 1e-6, 100 * c->bubble, (double)c->bytes / (1024 * 1024));
        for (int s = 0; s < c->stages; s++)
            fprintf(to, "%c%d", s ? ',' : ' ', blocks_of(c, s));
        putc('\n', to);
    }
}

static int write_plan(struct planner *p, const struct dp_trainer_plan *best)
{
    struct settings *s = &p->s;
    struct output out;
    const int status = output_open(p->output, &out);

    if (status)
        return status;
    s->schedule_name = dp_name(DP_NAMES_SCHEDULE, best->kind);
    s->how.schedule.recompute = best->recompute;
    s->how.schedule.slack = best->slack;
    s->how.microbatches = best->microbatches;
    s->offload.text = best->offload ? "activations" : NULL;
    s->device_memory = best->offload ? p->budget : 0;
    s->blocks.count = best->stages;
    for (int i = 0; i < best->stages; i++)
        s->blocks.items[i] = blocks_of(best, i);
    return output_close(&out, plan_file_write(out.file, s, best->step_ns, best->rank_bytes));
}

/* There is no plan at all. With no schedule named it can only be the layers: GPipe takes any
 * number of ranks and of micro-batches. */
static int refuse(const struct planner *p)
{
    const struct settings *s = &p->s;
    const struct dp_schedule_spec spec = {
        .kind = p->kind ? p->kind : DP_SCHEDULE_GPIPE,
        .ranks = s->how.schedule.ranks,
        .microbatches = (int)(s->how.microbatches ? s->how.microbatches : s->how.rows),
        .slack = s->how.schedule.slack};
    struct dp_schedule *list;
    const int err = dp_schedule_new(&spec, &list);

    if (err)
        return command_failed(err);
    const int least = list->stages - 2;
    dp_schedule_free(list);
    return command_misused("--layers %d: expected at least %d; with the embedding and the head one for "
                           "each of %d stages", (int)s->layers, least, least + 2);
}

static int show(struct planner *p)
{
    const char *output = p->output;
    size_t least = SIZE_MAX;

    if (!p->count)
        return refuse(p);
    qsort(p->plans, (size_t)p->count, sizeof(*p->plans), by_time);
    const struct dp_trainer_plan *best = find_best(p);
    for (int i = 0; i < p->count; i++)
        least = p->plans[i].bytes < least ? p->plans[i].bytes : least;
    print_table(output && !strcmp(output, "-") ? stderr : stdout, p, best);
    if (best)
        return output ? write_plan(p, best) : EXIT_OK;
    return command_misused("--memory %.0f: no plan fits, expected at least %zu bytes a rank", p->budget,
                           least);
}

/* ---- the command ----------------------------------------------------------------------------- */

#define AT(member) .offset = offsetof(struct planner, member)
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
    const char *beside = s->plan           ? "--plan"
                         : s->resume       ? "--resume"
                         : s->prompt       ? "--prompt"
                         : s->file         ? "--file"
                         : s->blocks.count ? "--blocks"
                                           : NULL;
    const char *device = s->how.offload.layers           ? "--buffers"
                         : s->how.offload.kept_share > 0 ? "--device-share"
                         : s->device_memory > 0          ? "--device-memory"
                                                         : NULL;
    const int virtual_stages = s->how.schedule.virtual_stages, microbatches = s->how.microbatches;

    return !(
        refuse_if(beside, "%s: expected none; a plan is made from the beginning", beside) ||
        refuse_if(
            s->how.replicas > 1 || s->offload.text || s->tied || settings_on_cuda(s),
            "dualpipe plan: expected -D 1 and --device cpu, without --offload and --tie-embeddings") ||
        refuse_if(device, "%s: expected none; what a rank may hold is --memory", device) ||
        refuse_if(s->schedule_name && !strcmp(s->schedule_name, "none"),
                  "--schedule none: expected a schedule, there is nothing else to plan") ||
        refuse_if(virtual_stages && virtual_stages != 2, "--virtual-stages %d: expected 2; a plan has "
                  "at most two stages a rank", virtual_stages) ||
        refuse_if(s->width % s->heads, "--width %d: expected a multiple of %d, the number of --heads",
                  (int)s->width, (int)s->heads) ||
        refuse_if(microbatches && s->how.rows % microbatches, "--batch %d: expected a multiple of %d, "
                  "the number of micro-batches (-M)", (int)s->how.rows, microbatches));
}

/* The text decides nothing, but one that 'dualpipe train' would refuse is refused here, too. */
static bool has_text(struct settings *s, const struct operands *more)
{
    struct data data;

    if (!s->data.count && !more->count)
        return true; /* is said by all that takes a --data */
    if (!settings_take_files(s, more) ||
        !data_open(s->data.items, s->data.count, (int)s->context, (uint64_t)s->how.seed, &data))
        return false;
    data_close(&data);
    return true;
}

static int plan(struct planner *p)
{
    int err = p->s.schedule_name ? dp_schedule_kind_parse(p->s.schedule_name, &p->kind) : 0;

    if (!err)
        err = try_all(p);
    const int status = err == DP_ENOMEM ? command_broke("out of memory")
                       : err            ? command_failed(err)
                                        : show(p);
    dp_trainer_plan_free(p->plans, p->count);
    return status;
}

int run_plan(int argc, char **argv)
{
    struct arg_group groups[16] = {
        ARG_GROUP("the plan", plan_options)};
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
    struct planner *p = calloc(1, sizeof(*p));
    if (!p)
        return command_broke("out of memory");
    if (args_parse(&usage, argc, argv, p, &files, &status)) {
        if (!p->s.how.schedule.ranks)
            p->s.how.schedule.ranks = 4;
        if (!p->s.how.rows)
            p->s.how.rows = 16;
        const char *why;
        status = !check(&p->s) || !has_text(&p->s, &files) ? EXIT_USAGE
                 : blas_begin(&why)                        ? plan(p)
                                                           : command_broke("%s", why);
    }
    free(p);
    return status;
}
