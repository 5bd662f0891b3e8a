/* SPDX-License-Identifier: Apache-2.0
 *
 * library.h - shared libraries as files: where dlopen would find one, and what is in it. Nothing is
 * loaded, so nothing of a stranger's runs.
 */
#ifndef DP_TOOLS_DOCTOR_LIBRARY_H
#define DP_TOOLS_DOCTOR_LIBRARY_H

#include "doctor/doctor.h"

/* What dlopen(name) would open in the process: with a slash the file itself, else the first of
 * LD_LIBRARY_PATH, the directories of ld.so.conf and the system's. false if there is none. *rule
 * says which place it was. */
bool library_find(struct doctor *d, const char *name, struct tree_path *path, const char **rule);

/* The same where packages of Python and CUDA put it, as libdualpipe looks for it (dualpipe/library.h):
 * with `active` in the Python that a job would use, else in what the machine has. */
bool library_find_packaged(struct doctor *d, const char *name, bool active, struct tree_path *path,
                           const char **rule);

/* A library that the process has mapped whose file name begins with `prefix`. */
bool library_mapped(struct doctor *d, const char *prefix, struct tree_path *path);

/* What a shared object offers and wants; lines, to be freed, or NULL. false: not one of this kind
 * of machine. */
struct library {
    char *exports; /* names, a line each, with a line's end before the first too */
    char *needs;   /* the libraries it is linked with, likewise */
};
bool library_read(struct doctor *d, const char *path, struct library *out);
void library_free(struct library *library);

/* The greatest N for which the exports have `symbol`N; 0: none. The second looks at what both have,
 * as NCCL chooses. */
int library_newest(const char *lines, const char *symbol);
int library_common(const char *lines, const char *others, const char *symbol);

/* ---- devices --------------------------------------------------------------------------------- */

/* The GPUs and the RDMA devices of a machine, and where they are on its PCI buses. */

struct device {
    char name[64];         /* "GPU 0000:3b:00.0", "mlx5_0" */
    bool gpu;
    struct tree_path path; /* of its PCI function, all links followed; "": a virtual device */
    int node;              /* -1: the kernel does not know */
};

struct devices {
    size_t count;
    struct device *items;
};

/* All of them, GPUs first; free them with devices_free. */
struct devices devices_find(struct doctor *d);
void devices_free(struct devices *devices);
int devices_gpu_count(struct doctor *d);

/* The PCI function above one, "" for the first. */
struct tree_path devices_parent(struct doctor *d, const char *path);

/* The network interface of an RDMA device's first port, or false. */
bool devices_interface(struct doctor *d, const char *name, char interface[static 64]);

#endif
