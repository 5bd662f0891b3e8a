/* SPDX-License-Identifier: Apache-2.0
 *
 * owned.h - variables of a test that are freed where their block ends.
 *
 *      OWNED(dp_schedule) *s = NULL;
 *      FREED char *text = NULL;
 *      ENDED_BY(pair_end) struct pair p = pair_connect(0);
 */
#ifndef DP_TESTS_OWNED_H
#define DP_TESTS_OWNED_H

#include <stdlib.h>
#include <string.h>

#define ENDED_BY(function) __attribute__((cleanup(function)))
#define OWNED(type) ENDED_BY(end_##type) struct type
#define FREED ENDED_BY(end_memory)

/* Declared here, as a program may have names that hide those of the headers' arguments. */
#define OWNABLE(type)                                                                                   \
    struct type;                                                                                        \
    void type##_free(struct type *);                                                                    \
    static inline void end_##type(struct type **p) { type##_free(*p); }

OWNABLE(dp_assignment)
OWNABLE(dp_batch_norm)
OWNABLE(dp_graph)
OWNABLE(dp_microbatches)
OWNABLE(dp_optimizer)
OWNABLE(dp_partition)
OWNABLE(dp_placement)
OWNABLE(dp_schedule)
OWNABLE(dp_topology)
OWNABLE(dp_tree)
OWNABLE(dp_tuner)
OWNABLE(dp_tuning_table)

static inline void end_memory(void *p)
{
    void *memory;

    memcpy(&memory, p, sizeof(memory));
    free(memory);
}

#endif
