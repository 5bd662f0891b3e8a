/* SPDX-License-Identifier: Apache-2.0
 *
 * library.h - libraries that are there or not: NCCL, cuBLASLt. They are looked for at run time.
 *
 * Where: as dlopen(3) looks (LD_LIBRARY_PATH, ldconfig's directories); then where pip puts NVIDIA's
 * packages, nvidia/NAME/lib among the packages of the Python that runs, of the python3 on PATH, of
 * VIRTUAL_ENV, CONDA_PREFIX and /usr/local; and lib64 of CUDA_HOME, CUDA_PATH and /usr/local/cuda. A
 * program with more rights than its caller (setuid) goes by none of these variables.
 */
#ifndef DUALPIPE_LIBRARY_H
#define DUALPIPE_LIBRARY_H

#include <dualpipe/dualpipe.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Open the first of names (NULL at the end) that is found and can be loaded; a name with a slash is
 * a file. *handle is for dlsym(3) and dlclose(3); *file (NULL: not wanted) is its path, valid as long
 * as it is open. Says nothing by itself: DP_ENOENT, where dp_last_error has every file tried and why.
 * Any thread, while none changes the environment. */
DP_PUBLIC int dp_library_open(const char *const *names, void **handle, const char **file);

#ifdef __cplusplus
}
#endif
#endif
