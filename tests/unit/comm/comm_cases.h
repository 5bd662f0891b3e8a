/* SPDX-License-Identifier: Apache-2.0
 *
 * comm_cases.h - for cases that every communicator must pass.
 */
#ifndef DP_TESTS_COMM_CASES_H
#define DP_TESTS_COMM_CASES_H

#include "comm_group.h"

/* Run it on groups of `size` ranks of every kind; all ranks must return 0. */
void on_all_kinds(int size, int64_t deadline_ns, rank_fn fn, void *arg);
/* The same of a case that needs something (NEEDS_...): kinds that lack it are passed over; where no other
 * is left, the test is skipped, and says what is lacking. */
void on_kinds_with(unsigned needs, int size, int64_t deadline_ns, rank_fn fn, void *arg);

/* Zeroed memory that all kinds can send from and receive into, a byte more than asked for. */
void *case_alloc(size_t len);
void case_free(void *ptr);

/* A case and the number of ranks that it takes. */
struct comm_case {
    int size;
    rank_fn fn;
    void *arg;
};

/* Run them on communicators of `size` ranks that are parts of a group of one more, in another order. */
void on_parts_of_all_kinds(int64_t deadline_ns, const struct comm_case *cases, size_t count);

/* From and into any memory, by a copy where the kind wants other memory. */
int blocking_send(struct dp_comm *comm, int peer, int channel, uint64_t tag, const void *buf,
                  size_t len);
int blocking_receive(struct dp_comm *comm, int peer, int channel, uint64_t tag, void *buf,
                     size_t len);

#endif
