/* SPDX-License-Identifier: Apache-2.0
 *
 * info.c - `dualpipe info`: what this build is, what this machine has, every option with its value.
 */
#include "config.h"

#include "args.h"
#include "command.h"
#include "commands.h"

#include <dualpipe/device.h>
#include <dualpipe/dualpipe.h>
#include <dualpipe/library.h>
#include <dualpipe/options.h>

#include <jansson.h>

#include <dlfcn.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#ifndef HAVE_CUDA
#define HAVE_CUDA 0
#endif
#ifndef HAVE_MPI
#define HAVE_MPI 0
#endif
#ifndef HAVE_BLAS
#define HAVE_BLAS 0
#endif

/* ---- what was built in ---------------------------------------------------------------------- */

struct feature {
    const char *name;
    bool built;
    const char *with, *without; /* what that means */
};

static const struct feature features[] = {
    {"cuda", HAVE_CUDA, "GPUs through libcuda.so.1, looked for at run time",
     "configure --with-cuda=DIR"},
    {"mpi", HAVE_MPI, "communicator 'mpi', a module loaded at run time", "install MPI, then configure"},
    {"blas", HAVE_BLAS, "'dualpipe train' on OpenBLAS", "install OpenBLAS, then configure"},
};
enum { FEATURES = sizeof(features) / sizeof(features[0]) };

/* ---- what the machine has ------------------------------------------------------------------- */

struct machine {
    struct utsname system;
    int cores, cores_usable;
    double memory_bytes, available_bytes, shm_free_bytes;
    bool gpu;
    char gpu_text[256]; /* the first GPU's name, or why there is none */
};

static void read_memory(struct machine *m)
{
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];
    double kib;

    while (f && fgets(line, sizeof(line), f)) {
        if (sscanf(line, "MemTotal: %lf", &kib) == 1)
            m->memory_bytes = kib * 1024;
        if (sscanf(line, "MemAvailable: %lf", &kib) == 1)
            m->available_bytes = kib * 1024;
    }
    if (f)
        fclose(f);
}

/* That there is no GPU is news here, not an error. */
static void find_gpu(struct machine *m)
{
    struct dp_device *dev;

    command_mute(true);
    m->gpu = dp_device_cuda_open(0, &dev) == 0;
    command_mute(false);
    snprintf(m->gpu_text, sizeof(m->gpu_text), "%s", m->gpu ? "CUDA device 0" : dp_last_error());
    if (m->gpu)
        dp_device_close(dev);
}

static void look_at_machine(struct machine *m)
{
    cpu_set_t usable;
    struct statvfs shm;

    *m = (struct machine){0};
    uname(&m->system);
    m->cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    m->cores_usable = sched_getaffinity(0, sizeof(usable), &usable) ? m->cores : CPU_COUNT(&usable);
    read_memory(m);
    if (!statvfs("/dev/shm", &shm))
        m->shm_free_bytes = (double)shm.f_bavail * (double)shm.f_frsize;
    find_gpu(m);
}

/* ---- libraries that are looked for at run time --------------------------------------------- */

/* How a library says its version, and what that number is made of. */
enum version_by { BY_NOTHING, BY_FUNCTION, BY_POINTER };

static const struct optional {
    const char *name, *option; /* of a file; NULL: none */
    const char *files[4];      /* as those that load them have it */
    const char *version;       /* of its functions */
    enum version_by by;
    size_t major, minor; /* what one of each counts in that number */
} libraries[] = {
    {"libcuda", "DUALPIPE_DEVICE_CUDA_LIBRARY", {"libcuda.so.1"}, "cuDriverGetVersion", BY_POINTER,
     1000, 10},
    {"libnccl", "DUALPIPE_NCCL_LIBRARY", {"libnccl.so.2", "libnccl.so"}, "ncclGetVersion",
     BY_POINTER, 10000, 100},
    {"libcublasLt", NULL, {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"},
     "cublasLtGetVersion", BY_FUNCTION, 10000, 100},
    {"libibverbs", NULL, {"libibverbs.so.1"}, NULL, BY_NOTHING, 0, 0},
    {"libnvidia-ml", NULL, {"libnvidia-ml.so.1"}, NULL, BY_NOTHING, 0, 0},
};
enum { LIBRARIES = sizeof(libraries) / sizeof(libraries[0]) };

struct found {
    char file[PATH_MAX]; /* all links followed, as the version is often in the name; "": none */
    char version[64];    /* "": it has none */
    char why[1024];      /* there is none */
};

struct wanted_option {
    const char *name, *value;
};

static void keep_value(void *user, const struct dp_option_info *o)
{
    struct wanted_option *wanted = user;

    if (!strcmp(o->name, wanted->name))
        wanted->value = o->value;
}

static void read_version(const struct optional *l, void *handle, struct found *out)
{
    size_t (*function)(void);
    int (*pointer)(int *), number = 0;
    void *symbol = l->version ? dlsym(handle, l->version) : NULL;

    memcpy(&function, &symbol, sizeof(symbol));
    memcpy(&pointer, &symbol, sizeof(symbol));
    const size_t n = !symbol                ? 0
                     : l->by == BY_FUNCTION ? function()
                     : pointer(&number)     ? 0
                                            : (size_t)number;
    if (n)
        snprintf(out->version, sizeof(out->version), "%zu.%zu.%zu", n / l->major,
                 n % l->major / l->minor, n % l->minor);
}

/* It stays open: some have threads. */
static void find_library(const struct optional *l, struct found *out)
{
    struct wanted_option option = {l->option, NULL};
    const char *file;
    void *handle;

    *out = (struct found){.file = ""};
    if (option.name)
        dp_options_each(keep_value, &option);
    const char *const own[] = {option.value, NULL};
    if (dp_library_open(option.value ? own : l->files, &handle, &file)) {
        snprintf(out->why, sizeof(out->why), "%s", dp_last_error());
        return;
    }
    if (!realpath(file, out->file))
        snprintf(out->file, sizeof(out->file), "%s", file);
    read_version(l, handle, out);
}

/* ---- as text -------------------------------------------------------------------------------- */

static const double gib = 1024.0 * 1024 * 1024;

static void print_features(void)
{
    printf("built in\n");
    for (int i = 0; i < FEATURES; i++)
        printf("  %-8s %-4s %s\n", features[i].name, features[i].built ? "yes" : "no",
               features[i].built ? features[i].with : features[i].without);
}

static void print_machine(const struct machine *m)
{
    printf("\nthis machine\n");
    printf("  %-8s %s %s on %s\n", "system", m->system.sysname, m->system.release,
           m->system.machine);
    printf("  %-8s %d, of which this process may use %d\n", "cores", m->cores, m->cores_usable);
    printf("  %-8s %.1f GiB, %.1f GiB available, %.1f GiB free in /dev/shm\n", "memory",
           m->memory_bytes / gib, m->available_bytes / gib, m->shm_free_bytes / gib);
    printf("  %-8s %s%s\n", "gpu", m->gpu ? "" : "none: ", m->gpu_text);
}

static void print_libraries(void)
{
    printf("\nlibraries that are looked for at run time\n");
    for (int i = 0; i < LIBRARIES; i++) {
        struct found found;
        find_library(&libraries[i], &found);
        printf("  %-12s %s%s%s%s\n", libraries[i].name, found.version, *found.version ? ", " : "",
               *found.file ? found.file : "none: ", found.why);
    }
}

static void print_option(void *user, const struct dp_option_info *o)
{
    (void)user;
    if (!o->help) { /* of no component: its problem says all */
        printf("  %s\n      %s\n", o->name, o->problem);
        return;
    }
    printf("  %-32s %s (%s)\n", o->name, o->value ? o->value : "-",
           o->from_environment ? "from the environment" : "default");
    printf("      %s; %s\n", o->help, o->expected);
    if (o->problem)
        printf("      WRONG: %s\n", o->problem);
}

/* Without --options: only what is wrong. */
static void print_problem(void *user, const struct dp_option_info *o)
{
    bool *titled = user;

    if (!o->problem)
        return;
    if (!*titled)
        printf("\nvariables that cannot be used\n");
    *titled = true;
    printf("  %s\n", o->problem);
}

/* ---- as JSON -------------------------------------------------------------------------------- */

static json_t *json_features(void)
{
    json_t *all = json_object();

    for (int i = 0; i < FEATURES; i++)
        json_object_set_new(all, features[i].name, json_boolean(features[i].built));
    return all;
}

static json_t *json_machine(const struct machine *m)
{
    return json_pack(
        "{ss, ss, ss, si, si, sI, sI, sI, sb, ss}", "system", m->system.sysname, "release",
        m->system.release, "architecture", m->system.machine, "cores", m->cores, "cores_usable",
        m->cores_usable, "memory_bytes", (json_int_t)m->memory_bytes, "available_bytes",
        (json_int_t)m->available_bytes, "shm_free_bytes", (json_int_t)m->shm_free_bytes, "gpu",
        m->gpu, "gpu_text", m->gpu_text);
}

static json_t *json_libraries(void)
{
    json_t *all = json_object();

    for (int i = 0; i < LIBRARIES; i++) {
        struct found f;
        find_library(&libraries[i], &f);
        json_object_set_new(all, libraries[i].name,
                            json_pack("{ss?, ss?, ss?}", "file", *f.file ? f.file : NULL, "version",
                                      *f.version ? f.version : NULL, "why", *f.why ? f.why : NULL));
    }
    return all;
}

static void add_option(void *user, const struct dp_option_info *o)
{
    json_array_append_new(
        user, json_pack("{ss, ss?, ss?, ss?, ss?, ss, ss?}", "name", o->name, "value", o->value,
                        "default", o->fallback, "help", o->help, "expected", o->expected, "origin",
                        o->from_environment ? "environment" : "default", "problem", o->problem));
}

static void add_problem(void *user, const struct dp_option_info *o)
{
    if (o->problem)
        json_array_append_new(user, json_string(o->problem));
}

static int print_json(const struct machine *m, bool options)
{
    json_t *wrong = json_array(), *list = options ? json_array() : NULL;
    json_t *all = json_pack("{ss, so, so, so, so}", "version", dp_version(), "features",
                            json_features(), "machine", json_machine(m), "libraries",
                            json_libraries(), "problems", wrong);
    int problems = dp_options_each(add_problem, wrong);

    if (list) {
        dp_options_each(add_option, list);
        json_object_set_new(all, "options", list);
    }
    json_dumpf(all, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(all);
    return problems;
}

/* ---- the command ---------------------------------------------------------------------------- */

struct info_options {
    bool options, json;
};

static const struct arg args[] = {
    {"options", 0, NULL, "also list every DUALPIPE_ environment variable: value, origin, meaning",
     ARG_FLAG, .offset = offsetof(struct info_options, options)},
    {"json", 0, NULL, "print JSON", ARG_FLAG, .offset = offsetof(struct info_options, json)},
};
static const struct arg_group groups[] = {{"options", args, 2}, {0}};
static const struct usage usage = {
    .command = "dualpipe info", .groups = groups,
    .about = "Say what this build can do, what this machine has, which libraries are found at\n"
             "run time, and with --options what can be set through the environment and what\n"
             "has been. A variable that cannot be used is always shown, and makes the exit\n"
             "status 1.",
    .examples = "  dualpipe info\n"
                "  DUALPIPE_LOG_LEVEL=debug dualpipe info --options\n"
                "  dualpipe info --json | jq .machine.cores\n",
};

int run_info(int argc, char **argv)
{
    struct info_options o;
    struct operands operands;
    struct machine machine;
    bool titled = false;
    int status, problems;

    if (!args_parse(&usage, argc, argv, &o, &operands, &status))
        return status;
    look_at_machine(&machine);
    if (o.json)
        return print_json(&machine, o.options) ? EXIT_FAILED : EXIT_OK;
    printf("dualpipe %s\n\n", dp_version());
    print_features();
    print_machine(&machine);
    print_libraries();
    if (o.options) {
        printf("\noptions (environment)\n");
        problems = dp_options_each(print_option, NULL);
    } else {
        problems = dp_options_each(print_problem, &titled);
    }
    return problems ? EXIT_FAILED : EXIT_OK;
}
