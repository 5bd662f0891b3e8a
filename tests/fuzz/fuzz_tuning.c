/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_tuning.c - any bytes read as a table of rules. What can be read comes back the same, and
 * answers, never with a cell that may not be chosen.
 */
#include "fuzz.h"

#include <dualpipe/tuning.h>

#include <stdlib.h>

static void must_be_same(const struct dp_tuning_rule *a, const struct dp_tuning_rule *b)
{
    must(a->function == b->function && a->registered == b->registered);
    must(a->bytes.least == b->bytes.least && a->bytes.most == b->bytes.most);
    must(a->ranks.least == b->ranks.least && a->ranks.most == b->ranks.most);
    must(a->nodes.least == b->nodes.least && a->nodes.most == b->nodes.most);
    must(a->pipe_ops.least == b->pipe_ops.least && a->pipe_ops.most == b->pipe_ops.most);
    must(a->algorithm == b->algorithm && a->protocol == b->protocol);
    must(a->channels == b->channels && a->chunk_bytes == b->chunk_bytes);
    must(a->time_us == b->time_us && a->default_us == b->default_us);
}

static void write_and_read_back(const struct dp_tuning_table *table)
{
    struct dp_tuning_table *back;
    char *text;
    size_t len;

    must(!dp_tuning_table_write(table, &text, &len));
    must(!dp_tuning_table_read(text, len, "back", &back));
    must(back->count == table->count);
    for (size_t i = 0; i < back->count; i++)
        must_be_same(&back->rules[i], &table->rules[i]);
    dp_tuning_table_free(back);
    free(text);
}

static void ask(const struct dp_tuner *tuner, int function, int64_t bytes, int64_t pipe_ops)
{
    static const float costs[DP_TUNING_ALGORITHMS * DP_TUNING_PROTOCOLS] = {1, -1, 1, 1, -1, -1, 1};
    const struct dp_tuning_question q = {function, bytes, false, pipe_ops, costs, DP_TUNING_ALGORITHMS,
                                         DP_TUNING_PROTOCOLS};
    struct dp_tuning_answer answer;

    dp_tuner_ask(tuner, &q, &answer);
    if (answer.algorithm != DP_TUNING_DEFAULT)
        must(costs[answer.algorithm * DP_TUNING_PROTOCOLS + answer.protocol] >= 0);
    must(dp_tuner_chunk_bytes(tuner, function, bytes, 1, 2) >= 0);
}

static void ask_at_borders(const struct dp_tuning_table *table)
{
    struct dp_tuner *tuner;

    must(!dp_tuner_new(&(struct dp_tuner_config){.table = table, .ranks = 8, .nodes = 1}, &tuner));
    for (size_t i = 0; i < table->count; i++) {
        const struct dp_tuning_rule *r = &table->rules[i];
        ask(tuner, r->function, r->bytes.least, r->pipe_ops.least);
        ask(tuner, r->function, r->bytes.most, r->pipe_ops.most);
    }
    dp_tuner_free(tuner);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dp_tuning_table *table;

    if (dp_tuning_table_read((const char *)data, size, "fuzz", &table)) {
        must(*dp_last_error());
        return 0;
    }
    write_and_read_back(table);
    ask_at_borders(table);
    dp_tuning_table_free(table);
    return 0;
}
