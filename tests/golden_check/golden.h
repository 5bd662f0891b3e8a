/* SPDX-License-Identifier: Apache-2.0
 *
 * golden.h - the kinds of golden files, and what reading their records needs.
 */
#ifndef GOLDEN_CHECK_GOLDEN_H
#define GOLDEN_CHECK_GOLDEN_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* One file being checked. */
struct golden {
    const char *name;
    char *text;
    size_t len;
    json_t *value;
    char note[2048]; /* what was compared, or what is wrong */
};

/* What a check returns: true or false, with the note. */
#define PASS(g, ...) (snprintf((g)->note, sizeof((g)->note), __VA_ARGS__), true)
#define FAIL(g, ...) (snprintf((g)->note, sizeof((g)->note), __VA_ARGS__), false)

/* A kind of golden file is told by its content. */
struct golden_kind {
    bool (*is)(const json_t *value);
    bool (*check)(struct golden *g);
};

extern const struct golden_kind golden_asyncpipe_events;
extern const struct golden_kind golden_asyncpipe_partitions;
extern const struct golden_kind golden_microbatch_sizes;
extern const struct golden_kind golden_mixing_buckets;
extern const struct golden_kind golden_mixing_graphs;
extern const struct golden_kind golden_mixing_runs;
extern const struct golden_kind golden_offload_shards;
extern const struct golden_kind golden_optimizer_steps;
extern const struct golden_kind golden_schedule_traces;

/* Is it a list of records that all have these keys? At least one. */
bool golden_all_have(const json_t *value, const char *const *keys);
#define KEYS(...) (const char *const[]){__VA_ARGS__, NULL}

/* Checks the records of a list, up to the first that fails. */
bool golden_each(struct golden *g, const json_t *list,
                 bool (*check)(struct golden *g, size_t index, const json_t *record));

/* Is it the list of these numbers? */
bool golden_same(const json_t *list, const int32_t *numbers, int32_t count);

/* Members of a record; 0 or NULL: none of this type. */
json_int_t golden_integer(const json_t *record, const char *key);
double golden_number(const json_t *record, const char *key);
const char *golden_string(const json_t *record, const char *key);

#endif
