/* SPDX-License-Identifier: Apache-2.0
 *
 * cmocka_all.h - cmocka with the headers it wants before itself.
 */
#ifndef DP_TESTS_CMOCKA_ALL_H
#define DP_TESTS_CMOCKA_ALL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

/* A case of the program, without a list of them: they are run in the order of their lines, by run_cases,
 * which the main of tests/cases.c calls where a program has no other.
 *
 *      CASE(a_failure_keeps_its_sentence)
 *      {
 */
#define CASE(name)                                                                                      \
    static void name(void **state);                                                                     \
    __attribute__((constructor)) static void add_##name(void) { add_case(__LINE__, #name, name); }      \
    static void name(void **state)

void add_case(int line, const char *name, CMUnitTestFunction function);
/* Between what sets up all of them and what takes it down, which may be NULL; the status of the program. */
int run_cases(CMFixtureFunction set_up, CMFixtureFunction take_down);

/* The main of a program that has such two. */
#define RUN_CASES(set_up, take_down)                                                                    \
    int main(void) { return run_cases(set_up, take_down); }

/* Leave a test out; tests/run.sh tells the reader why. */
static inline void skip_because(const char *why)
{
    print_message("%s\n", why);
    skip();
}

#endif
