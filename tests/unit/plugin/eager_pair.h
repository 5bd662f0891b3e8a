/* SPDX-License-Identifier: Apache-2.0
 *
 * eager_pair.h - both ends of a connection of the net plugin over shm or tcp in one process, for
 * tests of messages that arrive before their receives. The plugin reads its options once, so each
 * case has a process of its own, one for each wire.
 */
#ifndef DP_TESTS_EAGER_PAIR_H
#define DP_TESTS_EAGER_PAIR_H

#include "nccl-plugin/net/comm.h"

enum { BYTES = 1 << 20, LIMIT = 8192 };

extern char said[4096]; /* last line of NCCL's log */
extern char from[BYTES], to[BYTES];

__attribute__((format(printf, 5, 6)))
void logger(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *fmt,
            ...);

/* In the child: report a condition that does not hold, and exit. */
#define must(so) must_be((so), #so, __FILE__, __LINE__)
void must_be(bool so, const char *what, const char *file, int line);
/* Generous: the machine may be busy. */
void must_be_in_time(int64_t since_ns);
/* While this is so, which must not be for ever. */
#define WHILE_IN_TIME(condition)                                                                        \
    for (const int64_t began_ns = dp_now_ns(); condition; must_be_in_time(began_ns))

/* A case, over shm and over tcp. */
void run_over_both(void (*run)(void));

struct pair {
    struct dpn_net *net;
    struct dpn_listener *listener;
    struct dpn_comm *sender, *receiver;
};

/* Connected; `from` is filled, and `to` is zeros. */
struct pair connect_pair(void);
/* Either end may have been closed, and be NULL. */
void close_pair(struct pair *p);

/* len bytes from `at` on; NULL: the sender has to wait. */
struct dpn_request *try_send(struct pair *p, size_t at, size_t len, int tag);
/* One that need not wait, and one that may. */
struct dpn_request *send_eager(struct pair *p, size_t at, size_t len, int tag);
struct dpn_request *send_in_time(struct pair *p, size_t at, size_t len, int tag);
struct dpn_request *receive(struct pair *p, size_t at, size_t room, int tag);

bool is_done(struct dpn_request *req, int *sizes);
void finish(struct dpn_request *req, int *sizes);
/* Either may be NULL. */
void finish_both(struct dpn_request *a, struct dpn_request *b);
/* To [at, at + len) what was at `src`, and no byte more. */
void receive_all(struct pair *p, size_t at, size_t src, size_t len, int tag);

#endif
