/* SPDX-License-Identifier: Apache-2.0
 *
 * check_versions.c - the driver and rdma-core, and whether the driver is new enough for the CUDA
 * that NCCL was built for and for the toolkit. The drivers are those of NVIDIA's table of CUDA
 * releases and minimum drivers.
 */
#include "config.h"

#include "doctor/doctor.h"
#include "doctor/library.h"

#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        doctor_add(d, DOCTOR_UNKNOWN, "no NVIDIA driver is loaded", "/proc/driver/nvidia/version",
                   "NCCL finds no GPU", "none is needed on a machine without GPUs");
        return;
    }
    add_need(&need, d->nccl.cuda, d->nccl.path.text, true);
    add_toolkit(d, &need);
    if (atoi(version) >= need.driver)
        doctor_fine(d, doctor_text(d, "NVIDIA driver %s", version), "/proc/driver/nvidia/version");
    else
        doctor_add(d, need.of_nccl ? DOCTOR_FAULT : DOCTOR_WARNING,
                   doctor_text(d, "NVIDIA driver %s is older than %d, which CUDA %s needs", version,
                               need.driver, need.cuda),
                   doctor_text(d, "/proc/driver/nvidia/version, %s", need.file),
                   "what was built for it does not start: 'driver version is insufficient'",
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
        bool devices = tree_has(&d->tree, "/sys/class/infiniband/.");
        doctor_add(d, devices ? DOCTOR_FAULT : DOCTOR_FINE,
                   devices ? "there are RDMA devices, but no libibverbs.so.1"
                           : "no libibverbs.so.1, and no RDMA device",
                   "looked through the loader's directories",
                   devices ? "neither NCCL nor a plugin can use them" : NULL,
                   devices ? "install rdma-core (libibverbs1, ibverbs-providers), in the "
                             "container too"
                           : NULL);
        return;
    }
    if (tree_real(&d->tree, &real, "%s", path.text) &&
        sscanf(tree_base(real.text), "libibverbs.so.1.%d.%d", &minor, &core) == 2)
        doctor_fine(d, doctor_text(d, "rdma-core %d", core), doctor_text(d, "%s", real.text));
    else
        doctor_fine(d, "libibverbs, of an rdma-core that does not say which",
                    doctor_text(d, "%s", path.text));
}

void doctor_versions(struct doctor *d)
{
    char kernel[256];

    if (tree_line(&d->tree, kernel, "/proc/sys/kernel/osrelease"))
        doctor_fine(d, doctor_text(d, "Linux %s", kernel), "/proc/sys/kernel/osrelease");
    look_at_driver(d);
    look_at_rdma_core(d);
}
