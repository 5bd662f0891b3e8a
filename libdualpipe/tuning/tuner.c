/* SPDX-License-Identifier: Apache-2.0
 *
 * tuner.c - from a question to an answer. Which rule applies at which size is worked out when a
 * communicator is made.
 */
#include "base/fail.h"
#include "tuning/intervals.h"

#include <stdlib.h>

struct dp_tuner {
    bool trusts_registration;
    struct dp_tuning_rule *rules; /* those for this communicator, in the table's order */
    size_t count;
    struct dp_intervals by_bytes[DP_TUNING_FUNCTIONS][2]; /* [is registered] */
    int32_t *rule_of[DP_TUNING_FUNCTIONS][2];             /* a range of those -> rules[] */
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

/* The ranges of bytes of the rules about a function become intervals. */
static int sort_rules(struct dp_tuner *t, int function, bool is_registered)
{
    struct dp_tuning_range *ranges = malloc((t->count + 1) * sizeof(*ranges));
    int32_t *rule_of = malloc((t->count + 1) * sizeof(*rule_of));
    size_t count = 0;

    t->rule_of[function][is_registered] = rule_of;
    if (!ranges || !rule_of) {
        free(ranges);
        return dp_fail(DP_ENOMEM, "no memory to sort %zu rules", t->count);
    }
    for (size_t i = 0; i < t->count; i++)
        if (is_about(&t->rules[i], function, is_registered)) {
            ranges[count] = t->rules[i].bytes;
            rule_of[count++] = (int32_t)i;
        }
    int err = dp_intervals_init(&t->by_bytes[function][is_registered], ranges, count);
    free(ranges);
    return err;
}

int dp_tuner_new(const struct dp_tuner_config *config, struct dp_tuner **out)
{
    if (config->ranks < 0 || config->nodes < 0)
        return dp_fail(DP_EINVAL, "%lld ranks on %lld nodes, expected numbers that are not negative",
                       (long long)config->ranks, (long long)config->nodes);
    struct dp_tuner *t = calloc(1, sizeof(*t));
    if (!t)
        return dp_fail(DP_ENOMEM, "no memory for a tuner");
    t->trusts_registration = config->trusts_registration;
    int err = keep_rules(t, config);
    for (int i = 0; i < 2 * DP_TUNING_FUNCTIONS && !err; i++)
        err = sort_rules(t, i / 2, i % 2);
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
    for (int i = 0; i < 2 * DP_TUNING_FUNCTIONS; i++) {
        dp_intervals_fini(&t->by_bytes[i / 2][i % 2]);
        free(t->rule_of[i / 2][i % 2]);
    }
    free(t->rules);
    free(t);
}

/* ---- asked often ---------------------------------------------------------------------------- */

static const struct dp_tuning_rule *find_rule(const struct dp_tuner *t, int function, int64_t bytes,
                                              bool is_registered)
{
    if (function < 0 || function >= DP_TUNING_FUNCTIONS)
        return NULL;
    int32_t found = dp_intervals_find(&t->by_bytes[function][is_registered], bytes < 0 ? 0 : bytes);
    return found < 0 ? NULL : &t->rules[t->rule_of[function][is_registered][found]];
}

/* A cell below zero is not there: NCCL has no kernel, no transport or no leave for it. */
static bool may_choose(const struct dp_tuning_question *q, const struct dp_tuning_rule *rule)
{
    return rule->algorithm >= 0 && rule->algorithm < q->algorithms &&
           rule->protocol < q->protocols &&
           q->costs[rule->algorithm * q->protocols + rule->protocol] >= 0;
}

void dp_tuner_ask(const struct dp_tuner *t, const struct dp_tuning_question *q,
                  struct dp_tuning_answer *answer)
{
    const struct dp_tuning_rule *rule =
        find_rule(t, q->function, q->bytes, t->trusts_registration && q->is_registered);

    *answer = (struct dp_tuning_answer){.algorithm = DP_TUNING_DEFAULT,
                                        .protocol = DP_TUNING_DEFAULT, .rule = rule};
    if (rule && may_choose(q, rule)) {
        answer->source = DP_TUNING_FROM_TABLE;
        answer->algorithm = rule->algorithm;
        answer->protocol = rule->protocol;
        answer->channels = rule->channels;
    }
}

/* Rules with a chunk are for registered buffers and others alike. */
int64_t dp_tuner_chunk_bytes(const struct dp_tuner *t, int function, int64_t bytes, int algorithm,
                             int protocol)
{
    const struct dp_tuning_rule *rule = find_rule(t, function, bytes, false);

    return rule && rule->algorithm == algorithm && rule->protocol == protocol ? rule->chunk_bytes : 0;
}
