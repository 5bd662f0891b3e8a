/* SPDX-License-Identifier: Apache-2.0
 *
 * test_utf8.c - every text format may begin with a byte order mark, and must be UTF-8: what is read
 * can be written again.
 */
#include "config.h" /* asprintf */

#include "cmocka_all.h"

#include "base/text.h"

#include <dualpipe/dualpipe.h>
#include <dualpipe/schedule.h>
#include <dualpipe/assignment.h>
#include <dualpipe/topology.h>
#include <dualpipe/tuning.h>

static void drop_message(void *user, enum dp_log_level level, const char *line)
{
}

/* ---- characters ----------------------------------------------------------------------------- */

CASE(characters_are_as_long_as_unicode_defines)
{
    static const struct {
        const char *bytes;
        size_t len;
    } cases[] = {
        {"a", 1},        {"\xc3\xa9", 2},         {"\xe2\x82\xac", 3}, {"\xf0\x9f\x98\x80", 4},
        {"\xc0\xaf", 0}, /* overlong */           {"\xed\xa0\x80", 0}, /* a surrogate */
        {"\x80", 0},     {"\xf5\x80\x80\x80", 0}, {"\xe2\x28\xa1", 0}, {"\xff", 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(dp_utf8_len(cases[i].bytes, strlen(cases[i].bytes)), cases[i].len);
    assert_int_equal(dp_utf8_len("\xe2\x82\xac", 2), 0); /* cut off */
    assert_int_equal(dp_utf8_len("a", 0), 0);
}

CASE(the_first_bad_byte_has_a_line_and_a_column)
{
    const char *text = "first\n\xc3\xa9 and \xe9\n";
    size_t len = strlen(text);

    assert_int_equal(dp_utf8_begin(&text, &len, "names.csv"), DP_EINVAL);
    assert_string_equal(dp_last_error(), "names.csv: line 2, column 7: byte 0xe9, expected UTF-8");
}

/* ---- formats -------------------------------------------------------------------------------- */

static int read_schedule(const char *text, size_t len, enum dp_format format)
{
    struct dp_schedule *s;
    int err = dp_schedule_read(text, len, format, &s);

    if (!err)
        dp_schedule_free(s);
    return err;
}

static int read_schedule_text(const char *text, size_t len)
{
    return read_schedule(text, len, DP_FORMAT_TEXT);
}

static int read_topology(const char *text, size_t len)
{
    struct dp_topology *t;
    int err = dp_topology_read(text, len, DP_TOPOLOGY_AUTO, &t);

    if (!err)
        dp_topology_free(t);
    return err;
}

static int read_table(const char *text, size_t len)
{
    struct dp_tuning_table *t;
    int err = dp_tuning_table_read(text, len, "table", &t);

    if (!err)
        dp_tuning_table_free(t);
    return err;
}

static int read_assignment(const char *text, size_t len)
{
    struct dp_assignment *s;
    int err = dp_assignment_read(text, len, "placement", &s);

    if (!err)
        dp_assignment_free(s);
    return err;
}

/* NAME marks where any text may be. */
static const struct {
    int (*read)(const char *text, size_t len);
    const char *text;
    bool is_whole; /* it can be read as it is; otherwise it is refused for what it lacks */
} formats[] = {
    {read_schedule_text, "user P=1 M=1 # NAME\nrank 0: F0.0 B0.0\n", true},
    {read_topology, "NAME: gpu:2", false},
    {read_topology, "{\"NAME\": 1}", false},
    {read_topology, "<system version=\"1\"><cpu numaid=\"0\" NAME=\"0\"></cpu></system>", false},
    {read_table, "# NAME\nallreduce,0,1024,ring,ll,1,-1,-1,-1,-1\n", true},
    {read_assignment, "dualpipe assignment 1 # NAME\nplacement ranks=1 replicas=1\nnode id=1 kind=gpu label=NAME\n"
                      "worker replica=0 rank=0 gpu=1 came_as=0\nend\n", true},
};

static int read_with(size_t f, const char *before, const char *name)
{
    const char *text = formats[f].text, *at = strstr(text, "NAME");
    FREED char *whole = NULL;
    int len = asprintf(&whole, "%s%.*s%s%s", before, (int)(at - text), text, name, at + 4);

    assert_true(len > 0);
    int err = formats[f].read(whole, (size_t)len);
    return err;
}

CASE(every_format_may_begin_with_a_byte_order_mark)
{
    for (size_t f = 0; f < sizeof(formats) / sizeof(formats[0]); f++) {
        const int err = read_with(f, "", "name");
        char why[256];
        if (formats[f].is_whole)
            assert_string_equal(err ? dp_last_error() : "", "");
        snprintf(why, sizeof(why), "%s", dp_last_error());
        assert_int_equal(read_with(f, "\xef\xbb\xbf", "name"), err);
        if (err)
            assert_string_equal(dp_last_error(), why);
    }
}

CASE(every_format_refuses_what_is_not_utf8)
{
    for (size_t f = 0; f < sizeof(formats) / sizeof(formats[0]); f++) {
        expect_error(read_with(f, "", "na\xe9me"), DP_EINVAL, "byte 0xe9, expected UTF-8");
    }
}

int main(void)
{
    dp_log_set(drop_message, NULL, DP_LOG_DEFAULT);
    return run_cases(NULL, NULL);
}
