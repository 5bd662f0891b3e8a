/* SPDX-License-Identifier: Apache-2.0
 *
 * resume.h - what a checkpoint says of the run that it is of: how many steps were done, and the
 * options that the numbers depend on. Those stand for the ones that the command line leaves out.
 *
 *      {"program": "dualpipe train", "step": 20, "options": ["--layers=8", "--width=64", ...],
 *       "layout": ["--schedule=dualpipe", "--ranks=4", ...]}
 *
 * The layout is that of the run which wrote it; the one which goes on has the same, unless its command
 * line says otherwise.
 */
#ifndef DP_TRAIN_RESUME_H
#define DP_TRAIN_RESUME_H

#include "args.h"
#include "checkpoint/find.h"

#include <dualpipe/checkpoint.h>

enum { RESUME_WORDS = 48, RESUME_WORD = 256 };

struct resume {
    char path[CHECKPOINT_PATH]; /* of the index, or the file; "": none */
    uint64_t step;              /* done */
    char version[32];           /* of the program that wrote it */
    uint64_t data;              /* digest of the text that was learned from; 0: not known */
    int word_count;
    char words[RESUME_WORDS][RESUME_WORD]; /* "--layers=8" */
};

/* Is it the word of this option? */
bool resume_is_of(const char *word, const char *option);

/* The checkpoint that --resume names, read as far as above. 0, else an EXIT_ value after one line.
 */
int resume_read(const char *where, struct resume *out);

/* What a checkpoint says of its run, without `path`. false: another program's. */
bool resume_take(const struct dp_checkpoint *c, struct resume *out);

/* That text, malloc'ed: the values of options of groups; data: as in struct resume. NULL: no memory. */
char *resume_text(const struct arg_group *groups, const char *const *options,
                  const char *const *layout, const void *values, uint64_t step, uint64_t data);

#endif
