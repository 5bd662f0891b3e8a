/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_file.h - what `dualpipe plan` writes and `dualpipe train --plan` takes:
 *
 *      {"program": "dualpipe plan", "schedule": "zbv", "ranks": 2, "microbatches": 8,
 *       "checkpoint": "never", "blocks": [2, 2, 3, 1], "layers": 8, "width": 64, "heads": 4,
 *       "context": 64, "batch": 16, "step_ns": 12345678, "rank_bytes": [1000000, 1100000]}
 *
 * step_ns and rank_bytes are what was predicted; nothing depends on them.
 */
#ifndef DP_TRAIN_PLAN_FILE_H
#define DP_TRAIN_PLAN_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Blocks of each stage; count 0: nothing was said. */
enum { BLOCK_LIST_MAX = 1024 };
struct block_list {
    int count;
    int32_t items[BLOCK_LIST_MAX];
};

/* "1,3,3,1", for ARG_PARSE. */
bool block_list_parse(const char *text, void *member, char *why, size_t why_len);

bool block_list_equal(const struct block_list *a, const struct block_list *b);

/* A command line with the words of a plan before those that were given. */
struct plan_file {
    int argc, word_count; /* words: argv[1] .. argv[word_count] */
    char **argv;
    char *text;    /* that the words lie in */
    bool offloads; /* activations to the host */
};

/* 0, else an EXIT_ value after one line that names the member which is wrong. The words of argv are
 * shared. The caller frees. */
int plan_file_read(const char *path, int argc, char **argv, struct plan_file **out);
/* The options that were parsed are those of the plan: 0, else EXIT_USAGE after one line. `values` is
 * what usage has made of plan->argv. */
struct usage;
struct settings;
int plan_file_check(const struct plan_file *plan, const char *path, const struct usage *usage,
                    const struct settings *values);
void plan_file_free(struct plan_file *plan);

/* Write one, of settings that are complete. 0 or DP_EIO, DP_ENOMEM. */
int plan_file_write(FILE *to, const struct settings *s, int64_t step_ns, const size_t *rank_bytes);

#endif
