/* SPDX-License-Identifier: Apache-2.0
 *
 * What `dualpipe train` makes of the memory there is (captured trees in tests/data/train) and of
 * what a run will need.
 */
#include "cmocka_all.h"

#include "command.h"
#include "train/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const double mib = 1024.0 * 1024;

static struct memory_limits limits_of(const char *machine)
{
    struct memory_limits limits;
    char root[4096];

    snprintf(root, sizeof(root), "%s/train/%s", getenv("DP_TEST_DATA"), machine);
    memory_limits_read(root, &limits);
    return limits;
}

CASE(the_kernel_reports_how_much_is_available)
{
    struct memory_limits limits = limits_of("plain");

    assert_float_equal(limits.available_bytes, 4096 * mib, 0);
    assert_true(isinf(limits.group_bytes));
}

CASE(a_control_group_may_allow_less)
{
    assert_float_equal(limits_of("group2").group_bytes, 768 * mib, 0);
    assert_float_equal(limits_of("group1").group_bytes, 384 * mib, 0);
    assert_true(isinf(limits_of("unlimited").group_bytes));
}

CASE(an_unknown_size_is_no_limit)
{
    struct memory_limits limits = limits_of("no such machine");

    assert_true(isinf(limits.available_bytes) && isinf(limits.group_bytes));
}

/* Not that of getrusage, which a launcher's process hands on through exec. */
CASE(the_peak_is_of_this_program)
{
    char root[4096];

    snprintf(root, sizeof(root), "%s/train/plain", getenv("DP_TEST_DATA"));
    assert_float_equal(memory_peak(root), 96 * mib, 0);
    assert_true(memory_peak("") > mib);
}

static bool parse(char **argv, struct settings *s)
{
    int argc = 0, status;

    while (argv[argc])
        argc++;
    return settings_parse(argc, argv, 0, s, &status);
}

CASE(a_run_must_fit_every_limit)
{
    char *argv[] = {"train", "-d", "x", "-P", "2", NULL};
    struct settings s;

    assert_true(parse(argv, &s));
    double bytes[2];
    assert_int_equal(memory_of_ranks(&s, bytes), 0);
    double most = fmax(bytes[0], bytes[1]), both = bytes[0] + bytes[1];
    struct memory_limits enough = {both, both, most}, limits = enough;
    assert_int_equal(memory_check(&s, 2, &limits), EXIT_OK);
    limits.available_bytes = both - 1;
    assert_int_equal(memory_check(&s, 2, &limits), EXIT_USAGE);
    assert_int_equal(memory_check(&s, 1, &limits), EXIT_OK); /* the other rank is on another machine */
    limits = enough;
    limits.group_bytes = both - 1;
    assert_int_equal(memory_check(&s, 2, &limits), EXIT_USAGE);
    limits = enough;
    limits.process_bytes = most - 1;
    assert_int_equal(memory_check(&s, 2, &limits), EXIT_USAGE);
    settings_fini(&s);
}

CASE(more_of_anything_needs_more_memory)
{
    char *small[] = {"train", "-d", "x", NULL};
    char *more[][8] = {
        {"train", "-d", "x", "--width", "128"}, {"train", "-d", "x", "--layers", "16"},
        {"train", "-d", "x", "--batch", "32"}, {"train", "-d", "x", "--context", "128"}};
    struct settings s, larger;

    double bytes[2][4];
    assert_true(parse(small, &s));
    assert_int_equal(memory_of_ranks(&s, bytes[0]), 0);
    for (int i = 0; i < 4; i++) {
        assert_true(parse(more[i], &larger));
        assert_int_equal(memory_of_ranks(&larger, bytes[1]), 0);
        for (int rank = 0; rank < 4; rank++)
            assert_true(bytes[1][rank] > bytes[0][rank]);
        settings_fini(&larger);
    }
    settings_fini(&s);
}
