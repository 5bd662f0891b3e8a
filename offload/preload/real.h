/* SPDX-License-Identifier: Apache-2.0
 *
 * real.h - the functions behind the interposed ones: what a caller would have reached without this
 * library.
 *
 * The order in which they are looked for:
 *
 *      1. the next definition in the program's global scope (RTLD_NEXT): CUDA linked to the
 * program, or another preloaded library that interposes too
 *      2. the scope of the object that made the call: a Python extension that was opened with
 *         RTLD_LOCAL has its own CUDA runtime, and there may be several in one process
 *      3. any library of CUDA that is loaded: for calls from one of them to another
 *
 * The answer is kept by call site, so the search is done once for each.
 */
#ifndef DPO_PRELOAD_REAL_H
#define DPO_PRELOAD_REAL_H

#include <stdbool.h>
#include <stddef.h>

/* Whether a shared object is loaded whose file is named so: "libcudart" for libcudart.so.12. Any
 * thread. */
bool dpo_is_loaded(const char *prefix);

/* The function `name` behind the interposed one for the code at `caller`, a return address; NULL if
 * there is none. `own` is the interposed function, which is never the answer; NULL: name is not
 * interposed. Any thread; does not allocate. */
void *dpo_real(const char *name, const void *own, const void *caller);

#endif
