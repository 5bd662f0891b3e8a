/* SPDX-License-Identifier: Apache-2.0
 *
 * comm_group.h - run one function on every rank of a group of threads or processes.
 */
#ifndef DP_TESTS_COMM_GROUP_H
#define DP_TESTS_COMM_GROUP_H

#include "later.h"

#include <dualpipe/comm.h>

#include <stdio.h>
#include <string.h>

/* What a rank does. Returns 0 or, if something was not as it should be, -1; use CHECK, since cmocka's
 * assertions work only in the thread and process that runs the test. The comm is closed afterwards. */
typedef int (*rank_fn)(struct dp_comm *comm, void *arg);

/* A case that ranks run: PART_CASE of a rank_fn. */
#define RANKS_CASE(name, ...) CASE_OF_PART(name, int, (struct dp_comm *comm, void *arg), __VA_ARGS__)

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("%s:%d: rank %d: not so: %s (last error: %s)\n", __FILE__, __LINE__,            \
                   dp_comm_rank(comm), #condition, dp_last_error());                                       \
            return -1;                                                                             \
        }                                                                                          \
    } while (0)

#define CHECK_SAYS(sentence)                                                                       \
    do {                                                                                           \
        if (!strstr(dp_last_error(), sentence)) {                                                  \
            printf("%s:%d: rank %d: '%s' does not say '%s'\n", __FILE__, __LINE__, dp_comm_rank(comm),     \
                   dp_last_error(), sentence);                                                     \
            return -1;                                                                             \
        }                                                                                          \
    } while (0)

#define CHECK_ERROR(call, error, sentence)                                                         \
    do {                                                                                           \
        CHECK((call) == (error));                                                                  \
        CHECK_SAYS(sentence);                                                                      \
    } while (0)

struct comm_kind {
    const char *name;      /* of the transport */
    bool processes;     /* a rank can be killed */
    bool shares_files;  /* ranks have the files that the test opened before */
    /* Returns how many ranks did not return 0; a rank that was killed counts, and is counted in
     * *killed too. deadline_ns is the comm's. */
    int (*run)(const struct comm_kind *kind, int size, int64_t deadline_ns, rank_fn fn, void *arg,
               int *killed);
    bool by_ring; /* shm: large messages go through the ring, too */
    void *(*alloc)(size_t len); /* of the memory that messages are in; NULL: any will do */
    void (*free)(void *ptr);
    unsigned lacks; /* NEEDS_..., which cases of such a need are passed over for */
};

/* What a case needs that not every communicator has. */
enum {
    NEEDS_TAGS = 1 << 0,  /* tags and lengths that are checked */
    NEEDS_ANY = 1 << 1,   /* receives of any tag, from any rank */
    NEEDS_PARTS = 1 << 2, /* messages and collectives of parts of a group */
    NEEDS_END = 1 << 3,   /* the group ends with the case: a rank leaves it before others, or does not
                           * come to its reset */
};

/* All there are here, ended by a NULL name. With DP_TEST_COMM=mpi, only "mpi": the program itself is
 * one of several ranks that mpirun has started, and groups of other sizes are passed over; with
 * DP_TEST_COMM=nccl only "nccl", in the same way (comm_nccl.c). */
extern const struct comm_kind *comm_kinds;

/* The same with threads as ranks, which need no kind; returns how many did not return 0. */
int comm_on_threads(int size, int64_t deadline_ns, rank_fn fn, void *arg);

/* A TCP port of the loopback that was free a moment ago. */
int find_free_port(void);

#endif
