/* SPDX-License-Identifier: Apache-2.0
 *
 * saved.h - parts of saved.c: folders of checkpoints, and the state of replicas that mix.
 */
#ifndef DP_TRAINER_SAVED_H
#define DP_TRAINER_SAVED_H

#include "checkpoint/newest.h"
#include "trainer/trainer_state.h"

#include <dualpipe/checkpoint.h>

enum { SAVED_PATH = CHECKPOINT_PATH };

/* ---- folder.c -------------------------------------------------------------------------------- */

/* The folder of a step. DP_EINVAL: its path is too long. */
int folder_of_step(const char *dir, uint64_t step, char out[static SAVED_PATH]);
/* What to open for `path`: a file as it is; a folder's own index.json; otherwise that of the highest
 * step below the folder. DP_ENOENT. */
int folder_find(const char *path, char out[static SAVED_PATH]);
/* Make it if it is not there. DP_EIO: nothing can be written there. */
int folder_ready(const char *dir);
/* Make both; the names are on the disk when it returns. DP_EIO. */
int folder_make(const char *dir, const char *folder);
/* The number for the files of one more checkpoint in a folder. */
int folder_next_attempt(const char *folder);
void folder_file(char *out, size_t room, int rank, int attempt);
/* Remove files of the folder that its index does not name: of other attempts and of ranks that wrote
 * none. */
void folder_clean(const char *folder, int attempt, const int *wrote, int ranks);
/* Remove whole checkpoints of the steps before `step` but the newest keep - 1 of them. */
void folder_keep(const char *dir, uint64_t step, int32_t keep);

/* ---- saved_mixing.c -------------------------------------------------------------------------- */

/* Add what a rank writes of replicas that mix: its own values as "replica R/NAME", the state of its
 * mixers as "replica R stage S/..."; the first of all also the average of all replicas, as NAME, which
 * with what the list has already is all that is read elsewhere. Collective; exchanges in flight stay
 * valid. */
int saved_mixing_list(struct sums *d, struct saved_list *l);
int saved_mixing_read(struct sums *d, const struct dp_checkpoint *c);
/* dp_trainer_verify. */
struct saved_search {
    const struct dp_checkpoint *c;
    void (*fault)(void *user, const char *sentence);
    void *user;
};
void saved_want(const struct saved_search *s, const char *name, const DLTensor *like);
/* Of so many replicas what a bare engine and its optimizers say; the numbers of a mixer say what else it
 * has. */
void saved_mixing_verify(struct engine *e, struct dp_optimizer *const *optimizers, int replicas,
                         const struct saved_search *s);

/* ---- saved.c --------------------------------------------------------------------------------- */

/* What one model has, or replicas that sum; norms_only: of replicas that mix, what they share. Of a bare
 * engine and its optimizers. */
int saved_verify(struct dp_trainer *t, bool norms_only, const struct saved_search *s);

/* The name of a parameter in a checkpoint, where a tied one is once. */
static inline const char *saved_name(const struct dp_parameter *p)
{
    return p->tied ? p->tied : p->name;
}

#endif
