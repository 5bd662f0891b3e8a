/* SPDX-License-Identifier: Apache-2.0
 *
 * fork_at_rest.h - fork when every other thread of this process sleeps.
 *
 * AddressSanitizer's allocator knows nothing of forks: where another thread is inside it, and a thread
 * that starts is, its lock stays closed for ever in the child.
 */
#ifndef DP_TESTS_FORK_AT_REST_H
#define DP_TESTS_FORK_AT_REST_H

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Whether thread `id` of this process, text, sleeps. One that has ended does. */
static inline bool fork_thread_sleeps(const char *id)
{
    char path[300], line[200] = "";

    snprintf(path, sizeof(path), "/proc/self/task/%s/stat", id);
    FILE *f = fopen(path, "re");
    if (!f)
        return true;
    const char *name_end = fgets(line, sizeof(line), f) ? strrchr(line, ')') : NULL;
    fclose(f);
    return !name_end || !strncmp(name_end, ") S", 3);
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

/* For the first thread. What never rests is ended by the limit of the test. */
static inline pid_t fork_at_rest(void)
{
    while (!fork_others_sleep())
        nanosleep(&(const struct timespec){.tv_nsec = 1000000}, NULL);
    return fork();
}

#endif
