/* SPDX-License-Identifier: Apache-2.0
 *
 * dl.h - libraries that are looked for at run time (CUDA, NCCL, verbs): a table of the functions
 * wanted, filled from the first file of a list that opens (library.h says where it is looked for).
 */
#ifndef DP_BASE_DL_H
#define DP_BASE_DL_H

#include <dualpipe/library.h>

struct dp_dl_symbol {
    const char *name;
    size_t offset; /* of the function pointer in the table */
    bool optional; /* stays NULL if missing */
};

/* Open the first of files (NULL-terminated), fill table. *handle is for dlclose. Fails quietly:
 * DP_ENOENT with every file tried and why, or the first symbol missing. */
int dp_dl_open(const char *const *files, const struct dp_dl_symbol *symbols, size_t count,
               void *table, void **handle);

#endif
