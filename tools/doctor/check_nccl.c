/* SPDX-License-Identifier: Apache-2.0
 *
 * check_nccl.c - which NCCL, and what is written in it, as it is: its version, the variables and the
 * symbols of plugins that it knows; the driver and rdma-core, and whether the driver is new enough for
 * the CUDA that NCCL was built for and for the toolkit. The drivers are those of NVIDIA's table of CUDA
 * releases and minimum drivers.
 */
#include "config.h"

#include "doctor/doctor.h"
#include "doctor/library.h"

#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The one that the process has mapped; that of an active Python, since PyTorch brings one and
 * prefers it; else what the loader finds, or where packages put it. */
static bool find_nccl(struct doctor *d, struct tree_path *path, const char **rule)
{
    static const char name[] = "libnccl.so.2";

    *rule = "the map of the process";
    return library_mapped(d, "libnccl.so", path) ||
           library_find_packaged(d, name, true, path, rule) || library_find(d, name, path, rule) ||
           library_find_packaged(d, name, false, path, rule);
}

static bool is_word(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

/* Every word of the file that begins so, a line each. */
static void list_words(const char *bytes, size_t len, const char *begin, FILE *out)
{
    const char *end = bytes + len, *word = bytes;

    while ((word = memmem(word, (size_t)(end - word), begin, strlen(begin)))) {
        size_t n = strlen(begin);
        while (word + n < end && is_word(word[n]))
            n++;
        fprintf(out, "%.*s\n", (int)n, word);
        word += n;
    }
}

static char *words_of(const char *bytes, size_t len)
{
    char *lines = NULL;
    size_t lines_len;
    FILE *out = open_memstream(&lines, &lines_len);

    if (!out)
        return NULL;
    fputc('\n', out);
    list_words(bytes, len, "NCCL_", out);
    list_words(bytes, len, "ncclNetPlugin_v", out);
    list_words(bytes, len, "ncclTunerPlugin_v", out);
    fclose(out);
    return lines;
}

/* "NCCL version 2.28.9+cuda13.0", which it prints when it starts. Others have a printf format
 * there. */
static void read_version(struct nccl *n, const char *bytes, size_t len)
{
    static const char before[] = "NCCL version ";
    const char *end = bytes + len, *p = bytes;
    int major, minor, patch;
    char text[64];

    while ((p = memmem(p, (size_t)(end - p), before, strlen(before)))) {
        p += strlen(before);
        snprintf(text, sizeof(text), "%.*s", (int)strnlen(p, (size_t)(end - p)), p);
        if (sscanf(text, "%d.%d.%d+cuda%15[0-9.]", &major, &minor, &patch, n->cuda) < 3)
            continue;
        n->version = 10000 * major + 100 * minor + patch;
        snprintf(n->version_text, sizeof(n->version_text), "%d.%d.%d", major, minor, patch);
        return;
    }
}

static void add_version(struct doctor *d, const char *rule)
{
    const struct nccl *n = &d->nccl;

    if (n->version)
        doctor_say(d, DOCTOR_FINE, "NCCL %s for CUDA %s, found by %s\v%s", n->version_text,
                   *n->cuda ? n->cuda : "of an unknown release", rule, n->path.text);
    else
        doctor_say(d, DOCTOR_UNKNOWN,
                   "an NCCL that does not say its version\v%s\v"
                   "the rules of NCCL 2.28 are assumed\vNCCL_DEBUG=VERSION makes NCCL print it",
                   n->path.text);
}

void doctor_nccl(struct doctor *d)
{
    struct nccl *n = &d->nccl;
    const char *rule, *bytes;
    size_t len;

    if (!find_nccl(d, &n->path, &rule)) {
        n->path.text[0] = 0;
        doctor_say(d, DOCTOR_UNKNOWN,
                   "no libnccl.so.2\v"
                   "looked through the process, Python's packages, the loader's directories and "
                   "CUDA's\v"
                   "the rules of NCCL 2.28 are assumed, and every known variable is taken for known\v"
                   "run this where the job runs, with its environment, or with --pid");
        return;
    }
    bytes = tree_map(&d->tree, &len, "%s", n->path.text);
    if (bytes) {
        n->strings = words_of(bytes, len);
        read_version(n, bytes, len);
    }
    tree_unmap(bytes, len);
    add_version(d, rule);
}

static const struct {
    int cuda, driver; /* major numbers */
} needed[] = {{13, 580}, {12, 525}, {11, 450}};

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  ...": the first word with a dot. */
static bool driver_version(struct doctor *d, char version[static 32])
{
    char line[256];

    if (!tree_line(&d->tree, line, "/proc/driver/nvidia/version"))
        return false;
    for (char *rest = line, *word; (word = strsep(&rest, " \t"));)
        if (*word >= '0' && *word <= '9' && strchr(word, '.'))
            return snprintf(version, 32, "%s", word) > 0;
    return false;
}

struct need {
    int driver;
    char cuda[32];
    const char *file;
    bool of_nccl;
};

/* The newest driver that is needed, and what for. */
static void add_need(struct need *most, const char *cuda, const char *file, bool of_nccl)
{
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
        if (needed[i].cuda == atoi(cuda) && needed[i].driver > most->driver) {
            *most = (struct need){.driver = needed[i].driver, .file = file, .of_nccl = of_nccl};
            snprintf(most->cuda, sizeof(most->cuda), "%s", cuda);
        }
}

/* CUDA's toolkit says its version as JSON: {"cuda": {"name": ..., "version": "13.0.1"}, ...}. */
static void add_toolkit(struct doctor *d, struct need *most)
{
    static const char *const homes[] = {"CUDA_HOME", "CUDA_PATH"};
    const char *home = NULL;
    size_t len;

    for (int i = 0; i < 2 && !home; i++)
        home = doctor_variable(d, homes[i]);
    const char *file = doctor_text(d, "%s/version.json", home ? home : "/usr/local/cuda");
    char *text = tree_read(&d->tree, &len, "%s", file);
    json_t *all = text ? json_loads(text, 0, NULL) : NULL;
    const char *version =
        json_string_value(json_object_get(json_object_get(all, "cuda"), "version"));
    if (version)
        add_need(most, version, file, false);
    json_decref(all);
    free(text);
}

static void look_at_driver(struct doctor *d)
{
    struct need need = {.cuda = ""};
    char version[32];

    if (!driver_version(d, version)) {
        doctor_say(d, DOCTOR_UNKNOWN,
                   "no NVIDIA driver is loaded\v/proc/driver/nvidia/version\vNCCL finds no GPU\v"
                   "none is needed on a machine without GPUs");
        return;
    }
    add_need(&need, d->nccl.cuda, d->nccl.path.text, true);
    add_toolkit(d, &need);
    if (atoi(version) >= need.driver)
        doctor_say(d, DOCTOR_FINE, "NVIDIA driver %s\v/proc/driver/nvidia/version", version);
    else
        doctor_say(d, need.of_nccl ? DOCTOR_FAULT : DOCTOR_WARNING,
                   "NVIDIA driver %s is older than %d, which CUDA %s needs\v"
                   "/proc/driver/nvidia/version, %s\v"
                   "what was built for it does not start: 'driver version is insufficient'\v%s",
                   version, need.driver, need.cuda, need.file,
                   need.of_nccl ? "update the driver, or use an NCCL for an older CUDA"
                                : "update the driver, or use an older toolkit");
}

/* libibverbs.so.1.14.44.0 is that of rdma-core 44.0. */
static void look_at_rdma_core(struct doctor *d)
{
    struct tree_path path, real;
    const char *rule;
    int minor, core;

    if (!library_find(d, "libibverbs.so.1", &path, &rule)) {
        if (tree_has(&d->tree, "/sys/class/infiniband/."))
            doctor_say(d, DOCTOR_FAULT,
                       "there are RDMA devices, but no libibverbs.so.1\v"
                       "looked through the loader's directories\v"
                       "neither NCCL nor a plugin can use them\v"
                       "install rdma-core (libibverbs1, ibverbs-providers), in the container too");
        else
            doctor_say(d, DOCTOR_FINE, "no libibverbs.so.1, and no RDMA device\v"
                                       "looked through the loader's directories");
        return;
    }
    if (tree_real(&d->tree, &real, "%s", path.text) &&
        sscanf(tree_base(real.text), "libibverbs.so.1.%d.%d", &minor, &core) == 2)
        doctor_say(d, DOCTOR_FINE, "rdma-core %d\v%s", core, real.text);
    else
        doctor_say(d, DOCTOR_FINE, "libibverbs, of an rdma-core that does not say which\v%s",
                   path.text);
}

void doctor_versions(struct doctor *d)
{
    char kernel[256];

    if (tree_line(&d->tree, kernel, "/proc/sys/kernel/osrelease"))
        doctor_say(d, DOCTOR_FINE, "Linux %s\v/proc/sys/kernel/osrelease", kernel);
    look_at_driver(d);
    look_at_rdma_core(d);
}
