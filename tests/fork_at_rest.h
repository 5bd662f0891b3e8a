/* SPDX-License-Identifier: Apache-2.0
 *
 * fork_at_rest.h - fork when every other thread of this process sleeps.
 *
 * AddressSanitizer's allocator knows nothing of forks: where another thread is inside it, and a thread
 * that starts or ends is, its lock stays closed for ever in the child. So no thread may be about to end:
 * those that set up queue pairs sleep at times, and end when they have done that.
 */
#ifndef DP_TESTS_FORK_AT_REST_H
#define DP_TESTS_FORK_AT_REST_H

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Whether thread `id` of this process, text, sleeps, and has no end of its own. One that has ended does. */
static inline bool fork_thread_sleeps(const char *id)
{
    char path[300], line[200] = "";

    snprintf(path, sizeof(path), "/proc/self/task/%s/stat", id);
    FILE *f = fopen(path, "re");
    if (!f)
        return true;
    const char *name_end = fgets(line, sizeof(line), f) ? strrchr(line, ')') : NULL;
    fclose(f);
    return !name_end || (!strncmp(name_end, ") S", 3) && !strstr(line, "(dp-verbs-setup)"));
}

static inline bool fork_others_sleep(void)
{
    DIR *dir = opendir("/proc/self/task");
    bool sleep = true;
    char mine[20];

    snprintf(mine, sizeof(mine), "%d", (int)getpid());
    for (const struct dirent *d; dir && sleep && (d = readdir(dir));)
        if (d->d_name[0] != '.' && strcmp(d->d_name, mine) != 0)
            sleep = fork_thread_sleeps(d->d_name);
    if (dir)
        closedir(dir);
    return sleep;
}

/* For the first thread. A thread that wakes up for a moment now and then is not looked at in that very
 * moment, so all sleep several times in a row. What never rests is ended by the limit of the test. */
static inline pid_t fork_at_rest(void)
{
    for (int in_a_row = 0; in_a_row < 5; in_a_row = fork_others_sleep() ? in_a_row + 1 : 0)
        nanosleep(&(const struct timespec){.tv_nsec = 1000000}, NULL);
    return fork();
}

#endif
