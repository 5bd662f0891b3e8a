/* SPDX-License-Identifier: Apache-2.0
 *
 * find.h - where checkpoints lie below a folder:
 *
 *      DIR/step-000500/rank-0.0.safetensors    what one rank held
 *      DIR/step-000500/rank-1.0.safetensors
 *      DIR/step-000500/index.json              makes the files one checkpoint; without it is none
 */
#ifndef DP_TOOLS_CHECKPOINT_FIND_H
#define DP_TOOLS_CHECKPOINT_FIND_H

#include <stdbool.h>
#include <stdint.h>

enum { CHECKPOINT_PATH = 4096 };

/* The folder of a step. false: its path is longer than CHECKPOINT_PATH. */
bool checkpoint_folder(const char *dir, uint64_t step, char out[static CHECKPOINT_PATH]);

/* What to open for `path`: a file as it is; a folder's own index.json; otherwise that of the
 * highest step below the folder. 0, else EXIT_USAGE after one line that begins with `option`. */
int checkpoint_find(const char *option, const char *path, char out[static CHECKPOINT_PATH]);

#endif
