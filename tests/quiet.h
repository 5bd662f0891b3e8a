/* SPDX-License-Identifier: Apache-2.0
 *
 * quiet.h - for tests whose errors are wanted: what the library logs is dropped. dp_last_error still has
 * it.
 */
#ifndef DP_TESTS_QUIET_H
#define DP_TESTS_QUIET_H

#include <dualpipe/dualpipe.h>

#include <stddef.h>

static inline void drop_line(void *user, enum dp_log_level level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
}

static inline void log_nothing(void)
{
    dp_log_set(drop_line, NULL, DP_LOG_ERROR);
}

/* RUN_CASES of a program whose errors are wanted. */
#define RUN_QUIET_CASES(set_up, take_down)                                                              \
    int main(void)                                                                                      \
    {                                                                                                   \
        log_nothing();                                                                                  \
        return run_cases(set_up, take_down);                                                            \
    }

#endif
