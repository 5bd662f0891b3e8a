/* SPDX-License-Identifier: Apache-2.0
 *
 * check_gpu.c - where there are GPUs: the libraries without which they are not used, or slowly;
 * whether they can read pageable memory; and a CUDA runtime that offload's preload library cannot
 * see.
 */
#include "config.h"

#include "doctor/doctor.h"
#include "doctor/library.h"

#include <stdio.h>
#include <string.h>

static const struct wanted {
    const char *names[2];
    enum doctor_severity severity; /* where there is none */
    const char *consequence, *remedy;
} wanted[] = {
    {{"libcuda.so.1"},
     DOCTOR_FAULT,
     "no program can use a GPU",
     "install the driver's libraries; a container gets them by --gpus all"},
    {{"libnvidia-ml.so.1"},
     DOCTOR_FAULT,
     "NCCL does not start, and NVLink is not seen",
     "install the driver's libraries; a container gets them by --gpus all"},
    {{"libcublasLt.so.13", "libcublasLt.so.12"},
     DOCTOR_NOTE,
     "'dualpipe train' computes matrix products by a slow kernel of its own",
     "install CUDA's cuBLAS, or nvidia-cublas by pip, or set CUDA_HOME"},
};

static void look_for(struct doctor *d, const struct wanted *w)
{
    struct tree_path path;
    const char *rule;

    for (int i = 0; i < 2 && w->names[i]; i++)
        if (library_find(d, w->names[i], &path, &rule) ||
            library_find_packaged(d, w->names[i], true, &path, &rule) ||
            library_find_packaged(d, w->names[i], false, &path, &rule)) {
            doctor_fine(d, doctor_text(d, "%s is found by %s", w->names[i], rule),
                        doctor_text(d, "%s", path.text));
            return;
        }
    doctor_add(d, w->severity,
               doctor_text(d, "no %s%s%s", w->names[0], w->names[1] ? " or " : "",
                           w->names[1] ? w->names[1] : ""),
               "looked through the loader's directories, Python's packages and CUDA's",
               w->consequence, w->remedy);
}

/* Heterogeneous memory management: the open kernel modules, on Linux 6.1.24 or 6.2.11 and later,
 * unless it is switched off. Those who program for it save copies; those who do not lose nothing.
 */
static void look_at_pageable_memory(struct doctor *d)
{
    static const char file[] = "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm";
    char driver[256] = "", kernel[256] = "", off[256] = "";
    int v[3] = {0};

    tree_line(&d->tree, driver, "/proc/driver/nvidia/version");
    tree_line(&d->tree, kernel, "/proc/sys/kernel/osrelease");
    sscanf(kernel, "%d.%d.%d", &v[0], &v[1], &v[2]);
    const int release = v[0] * 1000000 + v[1] * 1000 + v[2];
    const bool is_new = release >= 6002011 || (release >= 6001024 && release < 6002000);
    const char *why = !strstr(driver, "Open Kernel Module")
                          ? "the kernel modules are not the open ones"
                      : !is_new                         ? "Linux is older than 6.1.24"
                      : !tree_line(&d->tree, off, file) ? NULL
                      : *off == 'Y'                     ? "it is switched off"
                                                        : "";
    if (!why)
        doctor_add(d, DOCTOR_UNKNOWN, "whether GPUs can read pageable memory (HMM) cannot be seen",
                   file, "programs that hand pageable memory to kernels may fail",
                   "modprobe nvidia_uvm");
    else
        doctor_fine(d,
                    doctor_text(d, "GPUs can%s read pageable memory where it lies (HMM)%s%s",
                                *why ? "not" : "", *why ? ": " : "", why),
                    doctor_text(d, "/proc/driver/nvidia/version, %s", file));
}

/* Only of a process that runs can this be seen. */
static void look_at_runtime(struct doctor *d)
{
    struct tree_path path;

    if (library_mapped(d, "libdualpipe-preload.so", &path) &&
        library_mapped(d, "libcuda.so", &path) && !library_mapped(d, "libcudart", &path))
        doctor_add(
            d, DOCTOR_NOTE,
            "the process has CUDA's driver and no libcudart: its runtime is linked statically",
            doctor_text(d, "/proc/%s/maps", d->process),
            "libdualpipe-preload neither changes nor counts its copies and its pinned "
            "memory",
            "link with nvcc -cudart shared; builds of JAX and CuPy have it inside");
}

void doctor_gpu(struct doctor *d)
{
    look_at_runtime(d);
    if (!devices_gpu_count(d))
        return;
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        look_for(d, &wanted[i]);
    look_at_pageable_memory(d);
}
