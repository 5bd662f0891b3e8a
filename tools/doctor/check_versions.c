/* SPDX-License-Identifier: Apache-2.0
 *
 * check_versions.c - the driver and rdma-core, and whether the driver is new enough for the CUDA
 * that NCCL was built for. The drivers are those of NVIDIA's table of CUDA releases and minimum
 * drivers.
 */
#include "config.h"

#include "doctor/doctor.h"
#include "doctor/library.h"

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

static void look_at_driver(struct doctor *d)
{
    int cuda = atoi(d->nccl.cuda), least = 0;
    char version[32];

    if (!driver_version(d, version)) {
        doctor_add(d, (struct finding){.severity = DOCTOR_UNKNOWN,
                                       .what = "no NVIDIA driver is loaded",
                                       .evidence = "/proc/driver/nvidia/version",
                                       .consequence = "NCCL finds no GPU",
                                       .remedy = "none is needed on a machine without GPUs"});
        return;
    }
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
        if (needed[i].cuda == cuda)
            least = needed[i].driver;
    if (atoi(version) >= least)
        doctor_add(d, (struct finding){.what = doctor_text(d, "NVIDIA driver %s", version),
                                       .evidence = "/proc/driver/nvidia/version"});
    else
        doctor_add(d, (struct finding){
            .severity = DOCTOR_FAULT,
            .what = doctor_text(d, "NVIDIA driver %s is older than %d, which CUDA %s needs", version,
                                least, d->nccl.cuda),
            .evidence = doctor_text(d, "/proc/driver/nvidia/version, %s", d->nccl.path.text),
            .consequence = "CUDA does not start: 'driver version is insufficient'",
            .remedy = "update the driver, or use an NCCL for an older CUDA"});
}

/* libibverbs.so.1.14.44.0 is that of rdma-core 44.0. */
static void look_at_rdma_core(struct doctor *d)
{
    struct tree_path path, real;
    const char *rule;
    int minor, core;

    if (!library_find(d, "libibverbs.so.1", &path, &rule)) {
        bool devices = tree_has(&d->tree, "/sys/class/infiniband/.");
        doctor_add(d, (struct finding){
            .severity = devices ? DOCTOR_FAULT : DOCTOR_FINE,
            .what = devices ? "there are RDMA devices, but no libibverbs.so.1"
                            : "no libibverbs.so.1, and no RDMA device",
            .evidence = "looked through the loader's directories",
            .consequence = devices ? "neither NCCL nor a plugin can use them" : NULL,
            .remedy = devices ? "install rdma-core (libibverbs1, ibverbs-providers), in the "
                                "container too" : NULL});
        return;
    }
    if (tree_real(&d->tree, &real, "%s", path.text) &&
        sscanf(tree_base(real.text), "libibverbs.so.1.%d.%d", &minor, &core) == 2)
        doctor_add(d, (struct finding){.what = doctor_text(d, "rdma-core %d", core),
                                       .evidence = doctor_text(d, "%s", real.text)});
    else
        doctor_add(d,
                   (struct finding){.what = "libibverbs, of an rdma-core that does not say which",
                                    .evidence = doctor_text(d, "%s", path.text)});
}

void doctor_versions(struct doctor *d)
{
    char kernel[256];

    if (tree_line(&d->tree, kernel, "/proc/sys/kernel/osrelease"))
        doctor_add(d, (struct finding){.what = doctor_text(d, "Linux %s", kernel),
                                       .evidence = "/proc/sys/kernel/osrelease"});
    look_at_driver(d);
    look_at_rdma_core(d);
}
