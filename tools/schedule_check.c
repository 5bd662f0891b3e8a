/* SPDX-License-Identifier: Apache-2.0
 *
 * schedule_check.c - `dualpipe schedule check`: what was proven, or the first thing found wrong.
 */
#include "command.h"
#include "commands.h"
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
