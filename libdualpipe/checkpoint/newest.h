/* SPDX-License-Identifier: Apache-2.0
 *
 * newest.h - where checkpoints lie below a folder; the command has this file, too:
 *
 *      DIR/step-000500/rank-0.0.safetensors    what one rank held
 *      DIR/step-000500/rank-1.0.safetensors
 *      DIR/step-000500/index.json              makes the files one checkpoint; without it is none
 */
#ifndef DP_CHECKPOINT_NEWEST_H
#define DP_CHECKPOINT_NEWEST_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { CHECKPOINT_PATH = 4096 };

/* "FOLDER/NAME". false: it is too long. */
static inline bool checkpoint_join(char out[static CHECKPOINT_PATH], const char *folder,
                                   const char *name)
{
    return snprintf(out, CHECKPOINT_PATH, "%s/%s", folder, name) < CHECKPOINT_PATH;
}

/* The whole checkpoint of the highest step below `below`; index: its path. false: there is none. */
bool checkpoint_newest(const char *dir, uint64_t below, uint64_t *step,
                       char index[static CHECKPOINT_PATH]);
/* What to open for `path`: a file as it is; a folder's own index.json; otherwise that of the
 * highest step below the folder. false: there is none. */
bool checkpoint_find(const char *path, char out[static CHECKPOINT_PATH]);

#endif
