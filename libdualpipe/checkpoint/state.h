/* SPDX-License-Identifier: Apache-2.0
 *
 * state.h - an open checkpoint: its files, and a table of their tensors by name.
 */
#ifndef DP_CHECKPOINT_STATE_H
#define DP_CHECKPOINT_STATE_H

#include "checkpoint/header.h"

#include <dualpipe/checkpoint.h>

struct dp_checkpoint_file {
    char *path, *name; /* name: as the index calls it */
    int fd;
    uint64_t data; /* where the data begin */
    struct dp_header header;
};

struct dp_checkpoint_entry {
    struct dp_checkpoint_tensor tensor;
    const struct dp_checkpoint_file *file;
    uint64_t begin; /* in the file */
};

struct dp_checkpoint {
    struct dp_checkpoint_file **files;
    int32_t file_count;
    struct dp_checkpoint_entry *entries; /* by name */
    int32_t count;
    char *json;
};

/* pread of all of it. DP_EIO; DP_EINVAL if the file ends before. */
int dp_checkpoint_pread(const struct dp_checkpoint_file *file, void *to, size_t len, uint64_t at);

#endif
