/* SPDX-License-Identifier: Apache-2.0
 *
 * jobs.h - for tests of many cases that mostly wait for a deadline: DP_TEST_JOBS processes (4) have a
 * part of them each.
 */
#ifndef DP_TESTS_JOBS_H
#define DP_TESTS_JOBS_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static inline int job_count(void)
{
    const char *wanted = getenv("DP_TEST_JOBS");
    const int count = wanted ? atoi(wanted) : 4;

    return count > 1 ? count : 1;
}

/* Every process calls part; how many of them did not return 0 there, or died. */
static inline int run_jobs(int (*part)(void *arg, int job, int jobs), void *arg)
{
    const int jobs = job_count();
    int failed = 0, status;

    fflush(NULL);
    for (int job = 0; job < jobs; job++) {
        const pid_t process = fork();
        if (!process) {
            status = part(arg, job, jobs);
            fflush(NULL);
            _exit(status != 0);
        }
        failed += process < 0;
    }
    while (wait(&status) > 0)
        failed += status != 0;
    return failed;
}

#endif
