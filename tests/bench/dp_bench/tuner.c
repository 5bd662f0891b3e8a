/* SPDX-License-Identifier: Apache-2.0
 *
 * tuner.c - `dp-bench tuner`: how long an answer takes, against looking at one rule after the
 * other as NCCL's example tuner does.
 */
#include "bench/bench.h"
#include "command.h"
#include "tests/bench/dp_bench/dp_bench.h"

#include <dualpipe/random.h>
#include <dualpipe/tuning.h>

#include <stdio.h>
#include <stdlib.h>

#define SAMPLE_NS INT64_C(100000000)
enum { QUESTIONS = 1024, CELLS = DP_TUNING_ALGORITHMS * DP_TUNING_PROTOCOLS };

struct values {
    struct bench_options common;
    int64_t rules;
};

struct rig {
    struct dp_tuning_table table;
    struct dp_tuner *tuner;
    int64_t bytes[QUESTIONS];
    float costs[CELLS];
    int64_t found; /* so that no answer can be left out */
};

/* ---- what is asked -------------------------------------------------------------------------- */

enum { SPAN = 4096 }; /* bytes of a rule */

static void make_rules(struct rig *rig)
{
    for (size_t i = 0; i < rig->table.count; i++)
        rig->table.rules[i] = (struct dp_tuning_rule){
            .function = DP_TUNING_ALLREDUCE,
            .bytes = {(int64_t)i * SPAN, (int64_t)i * SPAN + SPAN - 1},
            .ranks = {0, INT64_MAX},
            .nodes = {0, INT64_MAX},
            .pipe_ops = {0, INT64_MAX},
            .registered = DP_TUNING_EITHER,
            .algorithm = i % 2 ? DP_TUNING_RING : DP_TUNING_TREE,
            .protocol = (int)(i % 3),
            .line = (int)i + 1,
        };
}

/* Anywhere in the table, in no order. */
static void make_questions(struct rig *rig)
{
    uint32_t block[4];

    for (uint64_t i = 0; i < QUESTIONS; i++) {
        dp_random_block(dp_random_key(1, 0, 0, 0), i, block);
        rig->bytes[i] = (int64_t)(block[0] % (rig->table.count * SPAN));
    }
}

static int open_rig(struct rig *rig, int64_t rules)
{
    rig->table = (struct dp_tuning_table){.name = "bench", .count = (size_t)rules};
    rig->table.rules = malloc((size_t)rules * sizeof(*rig->table.rules));
    if (!rig->table.rules)
        return command_broke("no memory for %lld rules", (long long)rules);
    make_rules(rig);
    make_questions(rig);
    int err = dp_tuner_new(&(struct dp_tuner_config){.table = &rig->table, .ranks = 16, .nodes = 2},
                           &rig->tuner);
    return err ? command_failed(err) : EXIT_OK;
}

static void close_rig(struct rig *rig)
{
    dp_tuner_free(rig->tuner);
    free(rig->table.rules);
}

/* ---- both ways ------------------------------------------------------------------------------ */

static int ask(const struct rig *rig, int64_t bytes)
{
    struct dp_tuning_answer answer;
    const struct dp_tuning_question q = {DP_TUNING_ALLREDUCE, bytes, false, 1, rig->costs,
                                         DP_TUNING_ALGORITHMS, DP_TUNING_PROTOCOLS};

    dp_tuner_ask(rig->tuner, &q, &answer);
    return answer.rule->line;
}

static int scan(const struct rig *rig, int64_t bytes)
{
    for (size_t i = 0; i < rig->table.count; i++) {
        const struct dp_tuning_rule *r = &rig->table.rules[i];
        if (r->function == DP_TUNING_ALLREDUCE && bytes >= r->bytes.least &&
            bytes <= r->bytes.most && 16 >= r->ranks.least && 16 <= r->ranks.most &&
            2 >= r->nodes.least && 2 <= r->nodes.most)
            return r->line;
    }
    return 0;
}

/* ns of one, over half a sample. */
static double time_one(struct rig *rig, int (*way)(const struct rig *, int64_t))
{
    int64_t began = now_ns(), now, asked = 0;

    do {
        for (int i = 0; i < 64; i++)
            rig->found += way(rig, rig->bytes[asked++ % QUESTIONS]);
        now = now_ns();
    } while (now < began + SAMPLE_NS / 2);
    return (double)(now - began) / (double)asked;
}

enum { OURS, SCAN, RATIO, FIGURES };

static int sample(void *user, double *figures)
{
    struct rig *rig = user;

    figures[OURS] = time_one(rig, ask);
    figures[SCAN] = time_one(rig, scan);
    figures[RATIO] = figures[SCAN] / figures[OURS];
    return 0;
}

/* ---- the command ---------------------------------------------------------------------------- */

static const struct arg args[] = {
    {"rules", 0, "N", "rules of the table", ARG_INT, .offset = offsetof(struct values, rules),
     .fallback = "10000", .min = 1, .max = 1000000},
};

static int measure(const struct values *v)
{
    struct rig rig = {0};
    struct bench_case c = {.sample = sample, .user = &rig, .figure_count = FIGURES, .figures = {
        [OURS] = {.what = "an answer", .unit = "ns", .target = 80},
        [SCAN] = {.what = "a scan of all rules", .unit = "ns"},
        [RATIO] = {.what = "scan over answer", .unit = "x", .target_is_floor = true},
    }};
    char title[48];
    int status = open_rig(&rig, v->rules);

    snprintf(title, sizeof(title), "%lld rules", (long long)v->rules);
    if (!status && bench_run(&c, 1, &v->common))
        status = EXIT_FAILED;
    if (!status)
        bench_report(title, &c, 1, &v->common);
    close_rig(&rig);
    return status;
}

int run_bench_tuner(int argc, char **argv)
{
    const struct arg_group groups[] = {
        {"what", args, sizeof(args) / sizeof(args[0])}, bench_group, {0},
    };
    const struct usage usage = {
        .command = "dp-bench tuner",
        .about = "Time an answer of the tuner of NCCL, at random sizes, against looking at one rule\n"
                 "after the other.",
        .groups = groups,
        .examples = "  dp-bench tuner\n"
                    "  dp-bench tuner --rules 100 --json\n",
    };
    struct operands operands;
    struct values v;
    int status;

    if (!args_parse(&usage, argc, argv, &v, &operands, &status))
        return status;
    return measure(&v);
}
