/* SPDX-License-Identifier: Apache-2.0
 *
 * offload_parts.h - which parts of a model live on the host: the value of --offload.
 */
#ifndef DP_TRAIN_OFFLOAD_PARTS_H
#define DP_TRAIN_OFFLOAD_PARTS_H

#include <stdbool.h>
#include <stddef.h>

struct offload_parts {
    bool any; /* of the others */
    bool params, activations, optimizer;
    char folder[1024]; /* for the optimizer's state; "": it is in memory */
};

/* A list of names, of which optimizer may have "=FOLDER", with commas between them, into a struct
 * offload_parts: for ARG_PARSE. */
bool offload_parts_parse(const char *text, void *member, char *why, size_t why_len);

#endif
