/* SPDX-License-Identifier: Apache-2.0
 *
 * schedule_check.c - `dualpipe schedule check`: what was proven, or the first thing found wrong; and
 * `simulate`: how long a step takes on paper, and where its time and memory go.
 */
#include "command.h"
#include "commands.h"
#include "draw/parts.h"
#include "schedule_args.h"

#include <jansson.h>

#include <stdio.h>
#include <string.h>

struct check_args {
    struct schedule_args common;
    int64_t max_activations, max_weight_queue;
    const char *format;
};

/* ---- what there is -------------------------------------------------------------------------- */

struct census {
    size_t counts[DP_OP_KINDS], ops, messages;
};

static void count_ops(const struct dp_schedule *s, struct census *c)
{
    *c = (struct census){.ops = s->first[s->ranks]};
    for (size_t i = 0; i < c->ops; i++)
        c->counts[s->ops[i].kind]++;
    c->messages = c->counts[DP_OP_SEND_F] + c->counts[DP_OP_SEND_B] +
                  c->counts[DP_OP_SEND_SKIP_F] + c->counts[DP_OP_SEND_SKIP_B];
}

/* The peaks on paper: they do not depend on what ops cost. */
static int find_peaks(const struct dp_schedule *s, int *activations, int *weight_queue)
{
    const struct dp_cost cost = {.f_ns = 1, .i_ns = 1, .w_ns = 1};
    struct dp_simulation sim;
    int err = dp_schedule_simulate(s, &cost, 0, &sim);

    *activations = *weight_queue = 0;
    if (err)
        return err;
    for (int rank = 0; rank < s->ranks; rank++) {
        const struct dp_rank_report *r = &sim.ranks[rank];
        *activations = r->peak_activations > *activations ? r->peak_activations : *activations;
        *weight_queue = r->peak_weight_queue > *weight_queue ? r->peak_weight_queue : *weight_queue;
    }
    dp_simulation_fini(&sim);
    return 0;
}

/* ---- reports -------------------------------------------------------------------------------- */

static void print_proof_json(const struct dp_schedule *s, const struct census *c, int activations,
                             int weight_queue)
{
    json_t *j = json_pack("{sb, ss, si, si, sI, sI, si, si}", "valid", 1, "kind",
                          dp_name(DP_NAMES_SCHEDULE, s->kind), "ranks", s->ranks, "microbatches",
                          s->microbatches, "ops", (json_int_t)c->ops, "messages",
                          (json_int_t)c->messages, "peak_activations", activations,
                          "peak_weight_queue", weight_queue);

    json_dumpf(j, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(j);
}

static void print_proof_text(const struct dp_schedule *s, const struct census *c, int activations,
                             int weight_queue)
{
    printf("%s, %d ranks, %d micro-batches: can be carried out\n\n",
           dp_name(DP_NAMES_SCHEDULE, s->kind), s->ranks, s->microbatches);
    printf("  once         each of %zu ops exactly once: %zu F, %zu B, %zu I, %zu W\n", c->ops,
           c->counts[DP_OP_F], c->counts[DP_OP_B], c->counts[DP_OP_I], c->counts[DP_OP_W]);
    printf("  dependency   every op after what it needs, on its rank and through messages\n");
    printf("  fifo         %zu messages: the k-th send of every link is its k-th receive\n",
           c->messages);
    printf("  deadlock     none, even where a send waits for its receive\n");
    printf("  weight       weight parts in order, at most %d waiting\n", weight_queue);
    printf("  activation   at most %d micro-batches of a rank alive\n", activations);
    printf("  commit       %zu batches, each complete\n", c->counts[DP_OP_COMMIT]);
}

static int print_proof(const struct dp_schedule *s, bool json)
{
    struct census c;
    int activations, weight_queue, err = find_peaks(s, &activations, &weight_queue);

    if (err)
        return command_failed(err);
    count_ops(s, &c);
    if (json)
        print_proof_json(s, &c, activations, weight_queue);
    else
        print_proof_text(s, &c, activations, weight_queue);
    return EXIT_OK;
}

static void describe_op(const struct dp_schedule *s, const struct dp_finding *f, char *out,
                        size_t len)
{
    if (f->op.kind == DP_OP_NONE || f->rank < 0)
        snprintf(out, len, "none");
    else if (f->op.kind == DP_OP_COMMIT)
        snprintf(out, len, "COMMIT of %d messages", (int)f->op.mb);
    else
        snprintf(out, len, "%s of slot %d (stage %d), micro-batch %d",
                 dp_name(DP_NAMES_OP, (enum dp_op_kind)f->op.kind), (int)f->op.slot,
                 (int)f->op.slot < dp_schedule_slot_count(s, f->rank)
                     ? dp_schedule_slot(s, f->rank, (int)f->op.slot)->stage
                     : -1,
                 (int)f->op.mb);
}

static int print_finding(const struct dp_schedule *s, const struct dp_finding *f, bool json)
{
    char op[96];

    describe_op(s, f, op, sizeof(op));
    if (json) {
        json_t *j = json_pack("{sb, ss, si, sI, ss, ss}", "valid", 0, "rule",
                              dp_name(DP_NAMES_RULE, f->rule), "rank", f->rank, "index",
                              (json_int_t)f->index, "op", op, "text", f->text);
        json_dumpf(j, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(j);
        return EXIT_FAILED;
    }
    printf("%s, %d ranks, %d micro-batches: CANNOT be carried out\n\n",
           dp_name(DP_NAMES_SCHEDULE, s->kind), s->ranks, s->microbatches);
    printf("  rule    %s\n", dp_name(DP_NAMES_RULE, f->rule));
    if (f->rank >= 0)
        printf("  rank    %d\n  index   %zu\n  op      %s\n", f->rank, f->index, op);
    return EXIT_FAILED;
}

/* ---- the command ---------------------------------------------------------------------------- */

#define AT(member) .offset = offsetof(struct check_args, member)

static const struct arg args[] = {
    {"max-activations", 0, "N", "most micro-batches alive on a rank (default the kind's bound)",
     ARG_INT, AT(max_activations), .min = 1, .max = 1 << 20},
    {"max-weight-queue", 0, "N", "most weight parts waiting on a rank (default the kind's bound)",
     ARG_INT, AT(max_weight_queue), .min = 1, .max = 1 << 20},
    {"format", 'f', NULL, "what to print", ARG_CHOICE, AT(format), .fallback = "text",
     .choices = args_text_or_json},
};

static int check(const void *values, const struct dp_schedule *s)
{
    const struct check_args *a = values;
    const struct dp_check_limits limits = {(int)a->max_activations, (int)a->max_weight_queue};
    bool json = !strcmp(a->format, "json");
    struct dp_finding finding;

    int err = dp_schedule_check(s, &limits, &finding);
    if (!err)
        return print_proof(s, json);
    if (err != DP_EINVAL)
        return command_failed(err);
    command_failed(err);
    return print_finding(s, &finding, json);
}

int run_schedule_check(int argc, char **argv)
{
    const struct arg_group groups[] = {
        schedule_size_group, schedule_file_group, ARG_GROUP("check", args), {0}
    };
    const struct usage usage = {
        .command = "dualpipe schedule check", .groups = groups,
        .about = "Prove that a schedule can be carried out, or name the rule that it breaks, the\n"
                 "rank, the place in that rank's list and the op there. Exit status 1: it cannot.",
        .examples = "  dualpipe schedule check dualpipe -P 8 -M 20\n"
                    "  dualpipe schedule check --file mine.txt\n"
                    "  dualpipe schedule check --file mine.csv --max-activations 5 --format json\n",
    };
    struct check_args a = {0};

    return schedule_run(&usage, argc, argv, &a, check);
}

struct simulate_args {
    struct schedule_args common;
    bool critical;
    const char *format;
};

enum { TIME_LEN = 24, LINE = 96 };

/* ---- simulate: as text ----------------------------------------------------------------------- */

static void print_ranks(const struct dp_schedule *s, const struct dp_simulation *sim)
{
    char busy[TIME_LEN], bubble[TIME_LEN], waiting[TIME_LEN];

    printf("\n  rank        busy      bubble     waiting  activations  weight queue\n");
    for (int rank = 0; rank < s->ranks; rank++) {
        const struct dp_rank_report *r = &sim->ranks[rank];
        printf("%6d  %10s  %10s  %10s  %11d  %12d\n", rank, draw_time(r->busy_ns, busy, TIME_LEN),
               draw_time(r->bubble_ns, bubble, TIME_LEN),
               draw_time(r->waiting_ns, waiting, TIME_LEN), r->peak_activations,
               r->peak_weight_queue);
    }
}

/* The path, a line for each stay on a rank, broken where lines grow long. */
static void print_critical(const struct dp_simulation *sim)
{
    int column = 0, rank = -1;

    printf("\ncritical path");
    for (size_t i = 0; i < sim->critical_count; i++) {
        char label[DRAW_LABEL_LEN];
        const struct dp_span *span = &sim->critical[i];
        int len = draw_label(span, label);
        if (span->rank != rank)
            column = printf("\n  rank %d ", rank = span->rank) - 1;
        else if (column + len >= LINE)
            column = printf("\n          ") - 1;
        column += printf(" %.*s", len, label);
    }
    putchar('\n');
}

static void print_step(const struct dp_schedule *s, const struct dp_simulation *sim, bool critical)
{
    char title[96], makespan[TIME_LEN];

    draw_title(s, title, sizeof(title));
    printf("%s\n\n", title);
    printf("  makespan  %s\n", draw_time(sim->makespan_ns, makespan, TIME_LEN));
    printf("  bubble    %.2f %% of all ranks' time\n", 100 * sim->bubble_ratio);
    printf("  critical  %zu ops%s\n", sim->critical_count,
           critical ? "" : " (--critical lists them)");
    print_ranks(s, sim);
    if (critical)
        print_critical(sim);
}

/* ---- as JSON -------------------------------------------------------------------------------- */

static json_t *json_ranks(const struct dp_schedule *s, const struct dp_simulation *sim)
{
    json_t *all = json_array();

    for (int rank = 0; rank < s->ranks; rank++) {
        const struct dp_rank_report *r = &sim->ranks[rank];
        json_array_append_new(
            all, json_pack("{si, sI, sI, sI, si, si}", "rank", rank, "busy_ns",
                           (json_int_t)r->busy_ns, "bubble_ns", (json_int_t)r->bubble_ns,
                           "waiting_ns", (json_int_t)r->waiting_ns, "peak_activations",
                           r->peak_activations, "peak_weight_queue", r->peak_weight_queue));
    }
    return all;
}

static json_t *json_critical(const struct dp_simulation *sim)
{
    json_t *all = json_array();

    for (size_t i = 0; i < sim->critical_count; i++) {
        const struct dp_span *span = &sim->critical[i];
        char label[DRAW_LABEL_LEN];
        int len = draw_label(span, label);
        json_array_append_new(all, json_pack("{si, ss%, sI, sI}", "rank", span->rank, "op", label,
                                             (size_t)len, "start_ns", (json_int_t)span->start_ns,
                                             "end_ns", (json_int_t)span->end_ns));
    }
    return all;
}

static void print_step_json(const struct dp_schedule *s, const struct dp_simulation *sim)
{
    json_t *j = json_pack("{ss, si, si, sI, sf, so, so}", "kind", dp_name(DP_NAMES_SCHEDULE, s->kind),
                          "ranks", s->ranks, "microbatches", s->microbatches, "makespan_ns",
                          (json_int_t)sim->makespan_ns, "bubble_ratio", sim->bubble_ratio,
                          "per_rank", json_ranks(s, sim), "critical_path", json_critical(sim));

    json_dumpf(j, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(j);
}

/* ---- the command ---------------------------------------------------------------------------- */

static const struct arg simulate_options[] = {
    {"critical", 0, NULL, "list the ops of the critical path", ARG_FLAG,
     .offset = offsetof(struct simulate_args, critical)},
    {"format", 'f', NULL, "what to print", ARG_CHOICE,
     .offset = offsetof(struct simulate_args, format), .fallback = "text", .choices = args_text_or_json},
};

static int simulate(const void *values, const struct dp_schedule *s)
{
    const struct simulate_args *a = values;
    struct dp_simulation sim;
    struct dp_cost cost;
    int status = schedule_cost(&a->common, s, &cost), err;

    if (status)
        return status;
    if ((err = dp_schedule_simulate(s, &cost, DP_SIMULATE_CRITICAL, &sim)))
        return command_failed(err);
    if (!strcmp(a->format, "json"))
        print_step_json(s, &sim);
    else
        print_step(s, &sim, a->critical);
    dp_simulation_fini(&sim);
    return EXIT_OK;
}

int run_schedule_simulate(int argc, char **argv)
{
    const struct arg_group groups[] = {
        schedule_size_group, schedule_file_group, schedule_cost_group, schedule_scale_group,
        ARG_GROUP("output", simulate_options), {0}
    };
    const struct usage usage = {
        .command = "dualpipe schedule simulate", .groups = groups,
        .about = "Carry a schedule out on paper: sends are eager, receives are posted early, and\n"
                 "an op waits only for what it needs. Bubble is the time in which a rank computes\n"
                 "nothing, waiting the part of it between its first and last op; activations are\n"
                 "the micro-batches alive at once.",
        .examples = "  dualpipe schedule simulate dualpipe -P 8 -M 20\n"
                    "  dualpipe schedule simulate 1f1b -P 8 -M 20 --cost f=5ms,b=15ms \\\n"
                    "      --latency 30us --bandwidth 25GB/s --message-bytes 16MiB --critical\n"
                    "  dualpipe schedule simulate gpipe -P 4 -M 8 --rank-scale 1,1,1.5,1\n",
    };
    struct simulate_args a = {0};

    return schedule_run(&usage, argc, argv, &a, simulate);
}
