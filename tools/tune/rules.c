/* SPDX-License-Identifier: Apache-2.0
 *
 * rules.c - whether a table has anything to say about a job of this size.
 */
#include "tune/tune.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { SIZES_SHOWN = 3, SIZE_LEN = 96 };

static bool admits(const struct dp_tuning_range *range, int64_t number)
{
    return number >= range->least && number <= range->most;
}

/* "16 ranks", "2-8 nodes", "any number of ranks" */
static void put_range(const struct dp_tuning_range *range, const char *what, char *out, size_t room)
{
    if (range->least == range->most)
        snprintf(out, room, "%" PRId64 " %s%s", range->least, what, range->least == 1 ? "" : "s");
    else if (range->most == INT64_MAX && !range->least)
        snprintf(out, room, "any number of %ss", what);
    else if (range->most == INT64_MAX)
        snprintf(out, room, "%" PRId64 " %ss or more", range->least, what);
    else
        snprintf(out, room, "%" PRId64 "-%" PRId64 " %ss", range->least, range->most, what);
}

static bool is_size_of(const struct dp_tuning_rule *a, const struct dp_tuning_rule *b)
{
    return !memcmp(&a->ranks, &b->ranks, sizeof(a->ranks)) &&
           !memcmp(&a->nodes, &b->nodes, sizeof(a->nodes));
}

/* Whether an earlier rule about the same collective is for the same sizes. */
static bool is_repeated(const struct dp_tuning_table *table, size_t rule)
{
    for (size_t i = 0; i < rule; i++)
        if (table->rules[i].function == table->rules[rule].function &&
            is_size_of(&table->rules[i], &table->rules[rule]))
            return true;
    return false;
}

static void put_sizes(const struct dp_tuning_table *table, int function, FILE *to)
{
    char ranks[SIZE_LEN], nodes[SIZE_LEN];
    int shown = 0;

    for (size_t i = 0; i < table->count; i++) {
        const struct dp_tuning_rule *rule = &table->rules[i];
        if (rule->function != function || is_repeated(table, i))
            continue;
        if (shown++ == SIZES_SHOWN) {
            fputs(", ...", to);
            return;
        }
        put_range(&rule->ranks, "rank", ranks, sizeof(ranks));
        put_range(&rule->nodes, "node", nodes, sizeof(nodes));
        fprintf(to, "%s%s on %s", shown > 1 ? ", for " : "", ranks, nodes);
    }
}

void tune_warn_of_size(const struct dp_tuning_table *table, int function, int64_t ranks,
                       int64_t nodes, FILE *to)
{
    const char *name = dp_tuning_function_name(function);
    size_t about = 0;

    for (size_t i = 0; i < table->count; i++) {
        const struct dp_tuning_rule *rule = &table->rules[i];
        if (rule->function != function)
            continue;
        if (admits(&rule->ranks, ranks) && admits(&rule->nodes, nodes))
            return;
        about++;
    }
    if (!about) {
        fprintf(to, "dualpipe: %s: no rule is about %s\n", table->name, name);
        return;
    }
    fprintf(to,
            "dualpipe: %s: no rule about %s is for %" PRId64 " ranks on %" PRId64
            " node%s; they are for ",
            table->name, name, ranks, nodes, nodes == 1 ? "" : "s");
    put_sizes(table, function, to);
    fputc('\n', to);
}
