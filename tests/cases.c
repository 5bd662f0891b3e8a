/* SPDX-License-Identifier: Apache-2.0
 *
 * cases.c - the cases that a test program has by CASE, and its main.
 */
#include "cmocka_all.h"

enum { MOST = 200 };

static struct CMUnitTest cases[MOST];
static int lines[MOST];
static size_t count;

/* Constructors come in any order. */
void add_case(int line, struct CMUnitTest test)
{
    size_t at = count++;

    if (at == MOST) {
        fprintf(stderr, "cases.c: expected at most %d cases in a program\n", MOST);
        abort();
    }
    for (; at && lines[at - 1] > line; at--) {
        cases[at] = cases[at - 1];
        lines[at] = lines[at - 1];
    }
    cases[at] = test;
    lines[at] = line;
}

static int run_titled(const char *title, CMFixtureFunction set_up, CMFixtureFunction take_down)
{
    if (!count) {
        puts("no case is compiled in");
        return 77;
    }
    return _cmocka_run_group_tests(title, cases, count, set_up, take_down);
}

int run_cases(CMFixtureFunction set_up, CMFixtureFunction take_down)
{
    return run_titled("cases", set_up, take_down);
}

int run_titled_cases(const char *title)
{
    return run_titled(title, NULL, NULL);
}

__attribute__((weak)) int main(void)
{
    return run_cases(NULL, NULL);
}
