/* SPDX-License-Identifier: Apache-2.0
 *
 * tuner.c - from a question to an answer. Which rules are for a communicator is worked out when it is
 * made.
 */
#include "base/fail.h"
#include "base/sized.h"
#include "tuning/model.h"

#include <stdlib.h>

struct dp_tuner {
    bool trusts_registration;
    struct dp_tuning_rule *rules; /* those for this communicator, in the table's order */
    size_t count;
    struct dp_tuning_model model;
};

/* ---- made once ------------------------------------------------------------------------------ */

static bool admits(const struct dp_tuning_range *range, int64_t number)
{
    if (!number) /* not known */
        return range->least == 0 && range->most == INT64_MAX;
    return number >= range->least && number <= range->most;
}

static bool is_about(const struct dp_tuning_rule *rule, int function, bool is_registered)
{
    return rule->function == function &&
           (rule->registered == DP_TUNING_EITHER ||
            rule->registered == (is_registered ? DP_TUNING_REGISTERED : DP_TUNING_UNREGISTERED));
}

static int keep_rules(struct dp_tuner *t, const struct dp_tuner_config *config)
{
    const struct dp_tuning_table *table = config->table;
    size_t count = table ? table->count : 0;

    t->rules = malloc((count + 1) * sizeof(*t->rules));
    if (!t->rules)
        return dp_fail(DP_ENOMEM, "no memory for %zu rules", count);
    for (size_t i = 0; i < count; i++)
        if (admits(&table->rules[i].ranks, config->ranks) &&
            admits(&table->rules[i].nodes, config->nodes))
            t->rules[t->count++] = table->rules[i];
    return 0;
}

int dp_tuner_new_sized(const struct dp_tuner_config *config, struct dp_tuner **out, size_t size)
{
    DP_TAKE(dp_tuner_config, config, size);
    if (config->ranks < 0 || config->nodes < 0)
        return dp_fail(DP_EINVAL, "%lld ranks on %lld nodes, expected numbers that are not negative",
                       (long long)config->ranks, (long long)config->nodes);
    struct dp_tuner *t = calloc(1, sizeof(*t));
    if (!t)
        return dp_fail(DP_ENOMEM, "no memory for a tuner");
    t->trusts_registration = config->trusts_registration;
    dp_tuning_model_init(&t->model, config->links, config->latencies, config->ranks, config->nodes);
    int err = keep_rules(t, config);
    if (err)
        dp_tuner_free(t);
    else
        *out = t;
    return err;
}

void dp_tuner_free(struct dp_tuner *t)
{
    if (!t)
        return;
    free(t->rules);
    free(t);
}

/* ---- asked often ---------------------------------------------------------------------------- */

/* What a rule must be for. */
struct place {
    int function;
    int64_t bytes, pipe_ops;
    bool is_registered;
};

/* The first that is for this place. A communicator has some tens of rules, and NCCL asks once for a
 * collective, which takes a hundred times as long as a scan of those. */
static const struct dp_tuning_rule *find_rule(const struct dp_tuner *t, const struct place *at)
{
    for (size_t i = 0; i < t->count; i++) {
        const struct dp_tuning_rule *rule = &t->rules[i];
        if (is_about(rule, at->function, at->is_registered) && at->bytes >= rule->bytes.least &&
            at->bytes <= rule->bytes.most && admits(&rule->pipe_ops, at->pipe_ops))
            return rule;
    }
    return NULL;
}

/* A cell below zero is not there: NCCL has no kernel, no transport or no leave for it. */
static bool may_choose(const struct dp_tuning_question *q, int algorithm, int protocol)
{
    return algorithm >= 0 && algorithm < q->algorithms && protocol >= 0 &&
           protocol < q->protocols && q->costs[algorithm * q->protocols + protocol] >= 0;
}

static void take_rule(const struct dp_tuning_rule *rule, struct dp_tuning_answer *answer)
{
    answer->source = DP_TUNING_FROM_TABLE;
    answer->algorithm = rule->algorithm;
    answer->protocol = rule->protocol;
    answer->channels = rule->channels;
    answer->time_us = rule->time_us;
    answer->default_us = rule->default_us;
}

/* What the model says of the cell that NCCL would take; negative: nothing. */
static double default_time(const struct dp_tuner *t, const struct dp_tuning_question *q)
{
    float least = -1;
    double time_us = -1;

    for (int a = 0; a < q->algorithms; a++)
        for (int p = 0; p < q->protocols; p++)
            if (may_choose(q, a, p) && (least < 0 || q->costs[a * q->protocols + p] < least)) {
                least = q->costs[a * q->protocols + p];
                time_us = dp_tuner_time_us(t, q->function, a, p, q->bytes);
            }
    return time_us;
}

/* Less than this share of the time of NCCL's choice must be left: a model is no measurement. */
#define WORTH_IT 0.9

static void ask_model(const struct dp_tuner *t, const struct dp_tuning_question *q,
                      struct dp_tuning_answer *answer)
{
    double default_us = default_time(t, q), best_us = WORTH_IT * default_us;

    if (default_us < 0)
        return;
    answer->time_us = answer->default_us = default_us;
    for (int a = 0; a < q->algorithms; a++)
        for (int p = 0; p < q->protocols; p++) {
            double us = may_choose(q, a, p) ? dp_tuner_time_us(t, q->function, a, p, q->bytes) : -1;
            if (us < 0 || us >= best_us)
                continue;
            best_us = answer->time_us = us;
            answer->source = DP_TUNING_FROM_MODEL;
            answer->algorithm = a;
            answer->protocol = p;
        }
}

void dp_tuner_ask(const struct dp_tuner *t, const struct dp_tuning_question *q,
                  struct dp_tuning_answer *answer)
{
    const struct place at = {.function = q->function,
                             .bytes = q->bytes < 0 ? 0 : q->bytes,
                             .pipe_ops = q->pipe_ops,
                             .is_registered = t->trusts_registration && q->is_registered};
    const struct dp_tuning_rule *rule = find_rule(t, &at);

    *answer = (struct dp_tuning_answer){.algorithm = DP_TUNING_DEFAULT,
                                        .protocol = DP_TUNING_DEFAULT, .rule = rule};
    if (rule && may_choose(q, rule->algorithm, rule->protocol))
        take_rule(rule, answer);
    else if (rule && rule->algorithm == DP_TUNING_DEFAULT)
        answer->time_us = answer->default_us = rule->default_us;
    else if (t->model.is_known)
        ask_model(t, q, answer);
}

/* Rules with a chunk are for registered buffers and others alike, and for any pipe_ops. */
int64_t dp_tuner_chunk_bytes(const struct dp_tuner *t, int function, int64_t bytes, int algorithm,
                             int protocol)
{
    const struct place at = {.function = function, .bytes = bytes < 0 ? 0 : bytes};
    const struct dp_tuning_rule *rule = find_rule(t, &at);

    return rule && rule->algorithm == algorithm && rule->protocol == protocol ? rule->chunk_bytes : 0;
}

/* ---- the model ------------------------------------------------------------------------------ */

static const struct dp_tuning_line *line_of(const struct dp_tuner *t, int function, int algorithm,
                                            int protocol)
{
    if (!t->model.is_known || function < 0 || function >= DP_TUNING_FUNCTIONS || algorithm < 0 ||
        algorithm >= DP_TUNING_ALGORITHMS || protocol < 0 || protocol >= DP_TUNING_PROTOCOLS)
        return NULL;
    const struct dp_tuning_line *line = &t->model.lines[function][algorithm][protocol];
    return line->latency_us < 0 ? NULL : line;
}

double dp_tuner_time_us(const struct dp_tuner *t, int function, int algorithm, int protocol,
                        int64_t bytes)
{
    const struct dp_tuning_line *line = line_of(t, function, algorithm, protocol);

    return line ? dp_tuning_line_us(line, bytes) : -1;
}

/* Where `other` begins to be the faster one; negative: nowhere. */
static double meets_at(const struct dp_tuning_line *line, const struct dp_tuning_line *other)
{
    if (other->us_per_byte >= line->us_per_byte)
        return -1;
    return (other->latency_us - line->latency_us) / (line->us_per_byte - other->us_per_byte);
}

/* The line that is the first to go below `line` (NULL: the lowest at 0), and where. */
static const struct dp_tuning_line *next_line(const struct dp_tuner *t, int function,
                                              const float *costs, const struct dp_tuning_line *line,
                                              struct dp_tuning_crossing *at)
{
    const struct dp_tuning_line *next = NULL;
    double first = 0;

    for (int i = 0; i < DP_TUNING_CROSSINGS_MAX; i++) {
        int a = i / DP_TUNING_PROTOCOLS, p = i % DP_TUNING_PROTOCOLS;
        const struct dp_tuning_line *other = costs[i] >= 0 ? line_of(t, function, a, p) : NULL;
        if (!other)
            continue;
        double where = line ? meets_at(line, other) : other->latency_us;
        if (where < 0 || (next && (where > first || (where == first &&
                                                     other->us_per_byte >= next->us_per_byte))))
            continue;
        next = other;
        first = where;
        *at = (struct dp_tuning_crossing){line ? (int64_t)where + 1 : 0, a, p};
    }
    return next;
}

/* Along the lower border of all lines: each is flatter than the one before. */
int dp_tuner_crossings(const struct dp_tuner *t, int function, const float *costs,
                       struct dp_tuning_crossing out[DP_TUNING_CROSSINGS_MAX])
{
    const struct dp_tuning_line *line = NULL;
    int count = 0;

    while (count < DP_TUNING_CROSSINGS_MAX &&
           (line = next_line(t, function, costs, line, &out[count])))
        count++;
    return count;
}
