/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_all.h"

#include <dualpipe/tuning.h>

static struct dp_tuning_table *load(const char *name)
{
    struct dp_tuning_table *table;
    char path[4096];

    snprintf(path, sizeof(path), "%s/tuner/%s", getenv("DP_TEST_DATA"), name);
    assert_int_equal(dp_tuning_table_load(path, &table), 0);
    return table;
}

CASE(a_file_of_nccls_example_tuner_is_read_as_it_is)
{
    OWNED(dp_tuning_table) *table = load("example.csv");
    const struct dp_tuning_rule *r = table->rules;

    assert_int_equal(table->count, 8);
    assert_int_equal(r[0].function, DP_TUNING_ALLREDUCE);
    assert_int_equal(r[0].bytes.least, 0);
    assert_int_equal(r[0].bytes.most, 65536);
    assert_int_equal(r[0].algorithm, DP_TUNING_RING);
    assert_int_equal(r[0].protocol, DP_TUNING_LL);
    assert_int_equal(r[0].channels, 4);
    assert_int_equal(r[0].line, 3);
    assert_int_equal(r[1].channels, 0);
    assert_int_equal(r[1].nodes.least, 2);
    assert_int_equal(r[1].nodes.most, 2);
    assert_int_equal(r[1].ranks.most, 16);
    assert_int_equal(r[1].registered, DP_TUNING_EITHER);
    assert_int_equal(r[3].nodes.most, 64);
    assert_int_equal(r[3].bytes.most, INT64_MAX);
    assert_int_equal(r[4].bytes.least, 32768);
    assert_int_equal(r[4].registered, DP_TUNING_REGISTERED);
    assert_int_equal(r[5].algorithm, DP_TUNING_DEFAULT);
    assert_int_equal(r[5].pipe_ops.least, 0);
    assert_int_equal(r[5].pipe_ops.most, INT64_MAX);
    assert_int_equal(r[6].pipe_ops.most, 1);
    assert_int_equal(r[7].pipe_ops.least, 2);
    assert_int_equal(r[7].pipe_ops.most, 8);
}

CASE(columns_may_have_names_and_any_order)
{
    OWNED(dp_tuning_table) *table = load("named.csv");
    const struct dp_tuning_rule *r = table->rules;

    assert_int_equal(table->count, 2);
    assert_int_equal(r[0].function, DP_TUNING_ALLREDUCE);
    assert_int_equal(r[0].protocol, DP_TUNING_LL128);
    assert_int_equal(r[0].bytes.most, 65536);
    assert_int_equal(r[0].chunk_bytes, 32768);
    assert_int_equal(r[0].ranks.least, 2);
    assert_int_equal(r[0].ranks.most, 8);
    assert_int_equal(r[1].chunk_bytes, 524288);
    assert_int_equal(r[1].ranks.least, 0);
}

static void refuse(const char *name, const char *expected)
{
    struct dp_tuning_table *table;
    char path[4096];

    snprintf(path, sizeof(path), "%s/tuner/refused/%s", getenv("DP_TEST_DATA"), name);
    if (dp_tuning_table_load(path, &table) != DP_EINVAL)
        fail_msg("%s is not refused", name);
    if (!strstr(dp_last_error(), expected) || strncmp(dp_last_error(), path, strlen(path)))
        fail_msg("%s: '%s' does not say '%s'", name, dp_last_error(), expected);
}

/* refused.txt: a file, a tab, what the sentence has that refuses it. */
CASE(what_is_wrong_is_named_with_its_line)
{
    char path[4096], line[256];
    int count = 0;

    snprintf(path, sizeof(path), "%s/tuner/refused.txt", getenv("DP_TEST_DATA"));
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (; fgets(line, sizeof(line), file); count++) {
        char *tab = strchr(line, '\t');
        assert_non_null(tab);
        *tab = '\0';
        tab[1 + strcspn(tab + 1, "\n")] = '\0';
        refuse(line, tab + 1);
    }
    fclose(file);
    assert_true(count >= 23);
}

static void assert_same_rules(const struct dp_tuning_table *a, const struct dp_tuning_table *b)
{
    assert_int_equal(a->count, b->count);
    for (size_t i = 0; i < a->count; i++) {
        struct dp_tuning_rule x = a->rules[i], y = b->rules[i];
        assert_int_equal(x.function, y.function);
        assert_memory_equal(&x.bytes, &y.bytes, sizeof(x.bytes));
        assert_memory_equal(&x.ranks, &y.ranks, sizeof(x.ranks));
        assert_memory_equal(&x.nodes, &y.nodes, sizeof(x.nodes));
        assert_memory_equal(&x.pipe_ops, &y.pipe_ops, sizeof(x.pipe_ops));
        assert_int_equal(x.registered, y.registered);
        assert_int_equal(x.algorithm, y.algorithm);
        assert_int_equal(x.protocol, y.protocol);
        assert_int_equal(x.channels, y.channels);
        assert_int_equal(x.chunk_bytes, y.chunk_bytes);
        assert_true(x.time_us == y.time_us && x.default_us == y.default_us);
    }
}

CASE(what_is_written_is_read_back)
{
    static const char *const files[] = {"example.csv", "named.csv", "real.csv"};

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct dp_tuning_table *table = load(files[i]), *back;
        FREED char *text = NULL;
        size_t len;
        assert_int_equal(dp_tuning_table_write(table, &text, &len), 0);
        assert_int_equal(strlen(text), len);
        assert_int_equal(dp_tuning_table_read(text, len, "back", &back), 0);
        assert_same_rules(table, back);
        dp_tuning_table_free(back);
        dp_tuning_table_free(table);
    }
}

CASE(a_line_of_any_length_is_refused_or_read)
{
    char text[8192];
    OWNED(dp_tuning_table) *table = NULL;

    memset(text, 'x', sizeof(text));
    assert_int_equal(dp_tuning_table_read(text, sizeof(text), "t", &table), DP_EINVAL);
    assert_string_equal(dp_last_error(), "t:1: a line of more than 4095 characters");
    memset(text, 0, 3);
    assert_int_equal(dp_tuning_table_read(text, 3, "t", &table), DP_EINVAL);
    assert_string_equal(dp_last_error(), "t:1: a NUL, expected text");
    assert_int_equal(dp_tuning_table_read(text, 0, "t", &table), DP_EINVAL);
    const char *rule = "allreduce,0,any,ring,ll,-1,-1,-1";
    assert_int_equal(dp_tuning_table_read(rule, strlen(rule), "t", &table), 0);
}

CASE(a_file_that_is_not_there_is_named)
{
    struct dp_tuning_table *table;

    assert_int_equal(dp_tuning_table_load("no/such/table.csv", &table), DP_ENOENT);
    assert_string_equal(dp_last_error(), "no/such/table.csv: No such file or directory");
    assert_int_equal(dp_tuning_table_load(".", &table), DP_EIO);
}

CASE(names_are_those_of_the_file_format)
{
    assert_string_equal(dp_name(DP_NAMES_FUNCTION, DP_TUNING_ALLREDUCE), "allreduce");
    assert_string_equal(dp_name(DP_NAMES_ALGORITHM, DP_TUNING_PAT), "pat");
    assert_string_equal(dp_name(DP_NAMES_PROTOCOL, DP_TUNING_LL128), "ll128");
    assert_string_equal(dp_name(DP_NAMES_PROTOCOL, DP_TUNING_DEFAULT), "default");
}

RUN_QUIET_CASES(NULL, NULL)
