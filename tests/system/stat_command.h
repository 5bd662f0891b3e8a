/* SPDX-License-Identifier: Apache-2.0
 *
 * stat_command.h - `dualpipe stat`, run over the pages in a directory of the test's own, and what it
 * has written.
 */
#ifndef STAT_COMMAND_H
#define STAT_COMMAND_H

#include "scratch.h"

#include <jansson.h>

#include <stdint.h>

extern char stat_work[SCRATCH_LEN]; /* and below it what a test needs */
extern char stat_pages[SCRATCH_LEN + 16];
extern char stat_out[1 << 20], stat_err[1 << 14]; /* of the last run */

/* For cmocka_run_group_tests. */
int stat_make_directory(void **state);
int stat_remove_directory(void **state);

/* A file below stat_work, with a NUL behind. */
void stat_read_file(const char *name, char *text, size_t len);
/* Its exit status. */
int stat_run(const char *arguments);
/* With --json; the caller frees. */
json_t *stat_run_json(void);

size_t stat_process_count(json_t *all);
json_t *stat_process_at(json_t *all, size_t at);
/* Of a process's first device. */
json_t *stat_way(json_t *process, const char *name);
int64_t stat_count(json_t *of, const char *name);
/* Of a histogram: of all places; of the one below this. */
int64_t stat_sum(json_t *histogram);
int64_t stat_place(json_t *histogram, int64_t below);

#endif
