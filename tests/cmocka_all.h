/* SPDX-License-Identifier: Apache-2.0
 *
 * cmocka_all.h - cmocka with the headers it wants before itself, and those of C and POSIX that most tests want.
 */
#ifndef DP_TESTS_CMOCKA_ALL_H
#define DP_TESTS_CMOCKA_ALL_H

#include "owned.h"
#include "quiet.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

/* A case of the program, without a list of them: they are run in the order of their lines, by run_cases,
 * which the main of tests/cases.c calls where a program has no other.
 *
 *      CASE(a_failure_keeps_its_sentence)
 *      {
 */
#define CASE(name) CASE_BETWEEN(name, NULL, NULL)

/* The same with what is called before it and after it; either may be NULL. */
#define CASE_BETWEEN(name, before, after)                                                               \
    static void name(void **state);                                                                     \
    __attribute__((constructor)) static void add_##name(void)                                           \
    {                                                                                                   \
        add_case(__LINE__, (struct CMUnitTest)cmocka_unit_test_setup_teardown(name, before, after));    \
    }                                                                                                   \
    static void name(void **state)

/* A case whose body is a function that somebody else calls: `part` stands for it in the one statement that is given.
 *
 *      PART_CASE(a_wrong_option_is_one_sentence, run_in_child(part))
 */
#define PART_CASE(name, ...) CASE_OF_PART(name, void, (void), __VA_ARGS__)
#define CASE_OF_PART(name, type, parameters, ...)                                                       \
    static type part_of_##name parameters;                                                              \
    CASE(name)                                                                                          \
    {                                                                                                   \
        type(*const part) parameters = part_of_##name;                                                  \
        __VA_ARGS__;                                                                                    \
    }                                                                                                   \
    static type part_of_##name parameters

void add_case(int line, struct CMUnitTest test);
/* Between what sets up all of them and what takes it down, which may be NULL; the status of the program. */
int run_cases(CMFixtureFunction set_up, CMFixtureFunction take_down);
/* For a program that runs them several times: under a title, and how many failed. */
int run_titled_cases(const char *title);

/* The main of a program that has such two. */
#define RUN_CASES(set_up, take_down)                                                                    \
    int main(void) { return run_cases(set_up, take_down); }

/* An error, and what its sentence has in it. */
#define expect_error(call, error, part_of_sentence)                                                     \
    do {                                                                                                \
        assert_int_equal(call, error);                                                                  \
        if (!strstr(dp_last_error(), part_of_sentence))                                                 \
            fail_msg("'%s' does not say '%s'", dp_last_error(), part_of_sentence);                      \
    } while (0)
#define expect_error_is(call, error, sentence)                                                          \
    do {                                                                                                \
        assert_int_equal(call, error);                                                                  \
        assert_string_equal(dp_last_error(), sentence);                                                 \
    } while (0)

/* Leave a test out; tests/run.sh tells the reader why. */
static inline void skip_because(const char *why)
{
    print_message("%s\n", why);
    skip();
}

#endif
