/* SPDX-License-Identifier: Apache-2.0
 *
 * checkpoint.h - what the commands below `dualpipe checkpoint` share: an open checkpoint and what
 * its writer said of it.
 */
#ifndef DP_TOOLS_CHECKPOINT_CHECKPOINT_H
#define DP_TOOLS_CHECKPOINT_CHECKPOINT_H

#include "checkpoint/find.h"

#include <dualpipe/checkpoint.h>

#include <jansson.h>

struct saved_state {
    char path[CHECKPOINT_PATH]; /* of the index, or the file */
    struct dp_checkpoint *checkpoint;
    json_t *about; /* what train/settings.h describes; {} of another program */
};

/* Open the newest checkpoint at `where`. 0, else an EXIT_ value after one line. */
int saved_state_open(const char *where, struct saved_state *out);
void saved_state_close(struct saved_state *s);

/* `dualpipe train` wrote it. */
bool saved_state_is_train(const struct saved_state *s);
/* A parameter under its logical name, not a part of the optimizer's or a mixer's state. Of another
 * program's checkpoint every tensor counts as one. */
bool saved_state_is_parameter(const struct saved_state *s, const struct dp_checkpoint_tensor *t);
/* The name of the file that holds a tensor, without its folder. */
const char *saved_state_file(const struct dp_checkpoint_tensor *t);

#endif
