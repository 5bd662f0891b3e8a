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

/* How many shards of a model may be on the device at once: the value of --buffers. */
struct offload_buffers {
    int count;     /* 0: as many as there is room for */
    bool measured; /* chosen by what compute and copies take */
};

/* "auto", or a number from 1 on, into a struct offload_buffers: for ARG_PARSE. */
bool offload_buffers_parse(const char *text, void *member, char *why, size_t why_len);

#endif
