/* SPDX-License-Identifier: Apache-2.0
 *
 * preload_job.c - a program that uses CUDA, for tests/preload/preload.sh.
 *
 *      preload-job local FILE   the calls of FILE (preload_calls.c), opened with RTLD_LOCAL, so
 *                               that its CUDA runtime is out of the global scope
 *      preload-job hold FILE    the same, then it waits for the end of its standard input
 *      preload-job large FILE   one copy of 4 MiB
 *      preload-job fork FILE    the same, then again in a child
 *      preload-job spawn FILE   the same, then again in a program that it starts by vfork and exec
 *      preload-job reopen FILE  the same, again with FILE where it was and its CUDA runtime elsewhere
 *      preload-job driver FILE  FILE is CUDA's driver, a function of which is looked up and called,
 *                               as a runtime does that is linked statically
 *      preload-job time FILE    ns of a copy of no bytes
 *      preload-job absent       what cudaHostAlloc returns in a program without CUDA; -1: not there
 */
#include "config.h" /* GNU extensions: RTLD_DEFAULT */

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* The function of the file, or the end of the program. */
static void *function_of(const char *file, const char *name)
{
    void *object = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    void *found = object ? dlsym(object, name) : NULL;

    if (!found) {
        fprintf(stderr, "preload-job: %s\n", dlerror());
        exit(1);
    }
    return found;
}

static int call_and_wait(const char *file)
{
    int (*calls)(void) = NULL;
    char byte;

    *(void **)&calls = function_of(file, "preload_calls");
    const int status = calls();
    while (read(STDIN_FILENO, &byte, 1) > 0)
        ;
    return status;
}

static int call_function(const char *file, const char *name)
{
    int (*calls)(void) = NULL;

    *(void **)&calls = function_of(file, name);
    return calls();
}

static int call(const char *file)
{
    return call_function(file, "preload_calls");
}

static int fork_and_call(const char *file)
{
    int status = call(file);
    const pid_t child = fork();

    if (!child)
        exit(call(file));
    return status || waitpid(child, &status, 0) != child || status;
}

static int spawn_and_call(const char *self, const char *file)
{
    int status = call(file);
    const pid_t child = vfork();

    if (!child) {
        execl(self, self, "local", file, (char *)NULL);
        _exit(127);
    }
    return status || waitpid(child, &status, 0) != child || status;
}

/* A page takes the place of the runtime, so that FILE comes to its own place and the runtime does
 * not: a function that was remembered for a call site of before is not there any more. */
static int call_reopened(const char *file)
{
    void *object = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    void *function = object ? dlsym(object, "preload_calls") : NULL;
    void *runtime = object ? dlsym(object, "fake_fail_next") : NULL;
    int (*calls)(void) = NULL;
    Dl_info info;

    if (!function || !runtime || !dladdr(runtime, &info))
        return 1;
    *(void **)&calls = function;
    const int status = calls();
    if (dlclose(object))
        return 1;
    mmap(info.dli_fbase, 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    return status || call(file);
}

static int call_driver(const char *file)
{
    int (*alloc)(void **, size_t, unsigned) = NULL;
    void *memory;

    *(void **)&alloc = function_of(file, "cuMemHostAlloc");
    return alloc(&memory, 4096, 0);
}

static int time_copies(const char *file)
{
    double (*measure)(int) = NULL;

    *(void **)&measure = function_of(file, "preload_time");
    measure(1000);
    printf("%.1f\n", measure(10000000));
    return 0;
}

static int call_without_cuda(void)
{
    int (*alloc)(void **, size_t, unsigned) = NULL;
    void *memory = NULL;

    *(void **)&alloc = dlsym(RTLD_DEFAULT, "cudaHostAlloc");
    printf("%d\n", alloc ? alloc(&memory, 1, 0) : -1);
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";

    if (argc == 3 && !strcmp(what, "local"))
        return call(argv[2]);
    if (argc == 3 && !strcmp(what, "fork"))
        return fork_and_call(argv[2]);
    if (argc == 3 && !strcmp(what, "hold"))
        return call_and_wait(argv[2]);
    if (argc == 3 && !strcmp(what, "large"))
        return call_function(argv[2], "preload_large");
    if (argc == 3 && !strcmp(what, "spawn"))
        return spawn_and_call(argv[0], argv[2]);
    if (argc == 3 && !strcmp(what, "reopen"))
        return call_reopened(argv[2]);
    if (argc == 3 && !strcmp(what, "driver"))
        return call_driver(argv[2]);
    if (argc == 3 && !strcmp(what, "time"))
        return time_copies(argv[2]);
    if (argc == 2 && !strcmp(what, "absent"))
        return call_without_cuda();
    fprintf(stderr, "preload-job: expected local, hold, large, fork, spawn, reopen, driver or time and "
                    "FILE, or absent\n");
    return 2;
}
