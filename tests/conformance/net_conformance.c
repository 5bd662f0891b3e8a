/* SPDX-License-Identifier: Apache-2.0
 *
 * net_conformance.c - drives a net plugin as NCCL does, through the table of any version.
 *
 *      net-conformance [--full | --quick] [--version N] [--case WORDS] PLUGIN.so
 *
 * Every case runs in a process of its own. --full: messages of up to 1 GiB; --quick: fewer
 * repetitions. Without --version all versions that the plugin has; with --case only the cases whose
 * names have these words. It fails too when the plugin has no device, or takes no groups of
 * receives. NET_CONFORMANCE_LOG=1 shows what the plugin says. The status is 0 if all have passed, 1 if a
 * case has failed, 2 if there is nothing to try.
 */
#include "net_cases.h"
#include "net_pair.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct net_setup setup;

static int tables, passed, failed;

static void run_case(const struct net_case *c)
{
    int status;

    fflush(stdout);
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        exit(1);
    }
    if (!child) {
        alarm(setup.full ? 300 : 120);
        must(in_time());
        c->run();
        net_finalize_all();
        fflush(stdout);
        exit(0);
    }
    waitpid(child, &status, 0);
    if (!status) {
        passed++;
        return;
    }
    failed++;
    printf("v%d: failed to %s", setup.net->version, c->name);
    if (WIFSIGNALED(status))
        printf(" (%s)", strsignal(WTERMSIG(status)));
    putchar('\n');
}

static void run_version(int version, const char *words)
{
    static const struct net_case *const all[] = {net_life_cases, net_data_cases, net_trouble_cases};

    setup.net = net_caller_find(setup.library, version);
    if (!setup.net)
        return;
    tables++;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        for (const struct net_case *c = all[i]; c->name; c++)
            if (strstr(c->name, words))
                run_case(c);
}

/* A file that is cut off kills the process that loads it, so a child tries first. */
static bool can_be_loaded(void)
{
    int status;
    pid_t child = fork();

    if (!child)
        _exit(!dlopen(setup.file, RTLD_NOW | RTLD_LOCAL));
    if (child > 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status)) {
        fprintf(stderr, "%s: dies when it is loaded (%s)\n", setup.file,
                strsignal(WTERMSIG(status)));
        return false;
    }
    setup.library = dlopen(setup.file, RTLD_NOW | RTLD_LOCAL);
    if (!setup.library)
        fprintf(stderr, "%s\n", dlerror());
    return setup.library;
}

static int none_found(int version)
{
    if (version)
        fprintf(stderr, "%s has no ncclNetPlugin_v%d\n", setup.file, version);
    else
        fprintf(stderr, "%s is no net plugin: it has none of ncclNetPlugin_v%d to _v%d\n", setup.file,
                OLDEST_VERSION, NEWEST_VERSION);
    return 2;
}

static bool read_version(const char *text, int *out)
{
    char *end;
    long version = strtol(text, &end, 10);

    if (!*text || *end || version < OLDEST_VERSION || version > NEWEST_VERSION) {
        fprintf(stderr, "--version %s: expected a number from %d to %d\n", text, OLDEST_VERSION,
                NEWEST_VERSION);
        return false;
    }
    *out = (int)version;
    return true;
}

static int usage(void)
{
    fprintf(stderr, "usage: net-conformance [--full | --quick] [--version N] [--case WORDS] "
                    "PLUGIN.so\n");
    return 2;
}

int main(int argc, char **argv)
{
    const char *words = "";
    int only = 0;

    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--full"))
            setup.full = true;
        else if (!strcmp(argv[i], "--quick"))
            setup.quick = true;
        else if (!strcmp(argv[i], "--version") && i + 1 < argc) {
            if (!read_version(argv[++i], &only))
                return 2;
        }
        else if (!strcmp(argv[i], "--case") && i + 1 < argc)
            words = argv[++i];
        else if (!setup.file && *argv[i] && argv[i][0] != '-')
            setup.file = argv[i];
        else
            return usage();
    }
    if (!setup.file)
        return usage();
    if (!can_be_loaded())
        return 2;
    for (int v = OLDEST_VERSION; v <= NEWEST_VERSION; v++)
        if (!only || only == v)
            run_version(v, words);
    if (!tables)
        return none_found(only);
    if (!passed && !failed) {
        fprintf(stderr, "no case has the words '%s' in its name\n", words);
        return 2;
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}
