/* SPDX-License-Identifier: Apache-2.0
 *
 * open_files.h - how many files this process has open, for tests that something leaves none behind.
 */
#ifndef DP_TESTS_OPEN_FILES_H
#define DP_TESTS_OPEN_FILES_H

#include <dirent.h>
#include <stddef.h>

static inline int count_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;

    while (dir && readdir(dir))
        count++;
    if (dir)
        closedir(dir);
    return count;
}

#endif
