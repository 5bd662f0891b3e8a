/* SPDX-License-Identifier: Apache-2.0
 *
 * kind.h - what kind of copy it is: between the host and the device of the calling thread, and
 * whether the memory of the host is pageable or pinned.
 */
#ifndef DPO_PRELOAD_KIND_H
#define DPO_PRELOAD_KIND_H

#include "offload/preload/driver.h"

#include <stdbool.h>

enum { DPO_COPY_TO_DEVICE = 1, DPO_COPY_TO_HOST = 2, DPO_COPY_ANY = 4 }; /* cudaMemcpyKind */

struct dpo_copy {
    uintptr_t to, from;
    size_t bytes;
    int kind;
    void *stream;        /* by name where it is a default stream */
    bool is_synchronous; /* a call without a stream */
};

struct dpo_copy_kind {
    void *context; /* that is current, and the stream's */
    int direction;
    bool is_pageable; /* otherwise it is pinned, or registered */
};

/* false: another kind, or the stream is captured. Asks the driver only. */
bool dpo_copy_classify(const struct dpo_driver *driver, const struct dpo_copy *copy,
                       struct dpo_copy_kind *out);

#endif
