/* SPDX-License-Identifier: Apache-2.0
 *
 * net_pair.h - what the cases are made of: two connected ends, messages on their way, data that is
 * known, and must(), which ends the case when it is not so. Each case runs in a process of its own.
 */
#ifndef DP_TESTS_NET_PAIR_H
#define DP_TESTS_NET_PAIR_H

#include "nccl-plugin/net/caller.h"

/* What runs. */
struct net_setup {
    const char *file;
    void *library;
    const struct net_caller *net;
    bool full;  /* the largest sizes too */
    bool quick; /* a tenth of the repetitions */
    int listens_on, connects_from; /* devices */
};
extern struct net_setup setup;

#define must(so) must_be((so), #so, __FILE__, __LINE__)
void must_be(bool so, const char *what, const char *file, int line);
#define must_succeed(result) must_be((result) == ncclSuccess, #result, __FILE__, __LINE__)

/* How often to do what is done n times. */
unsigned times(unsigned n);

/* false once 100 s have gone by since the case began: machines are slow, and busy. */
bool in_time(void);

void net_logger(ncclDebugLogLevel level, unsigned long flags, const char *file, int line,
                const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* A context of one communicator; what is left at the end of a case is finalized. */
void *net_init(void);
void net_finalize(void *ctx);
void net_finalize_all(void);

struct pair {
    void *ctx, *listener, *sender, *receiver;
    char handle[NCCL_NET_HANDLE_MAXSIZE];
};

/* Both ends in this thread: connect and accept by turns. */
void pair_open(struct pair *p, void *ctx);
void pair_connect(struct pair *p);
void pair_close(struct pair *p);

/* A message; the sender's or the receiver's view. */
struct message {
    void *comm;
    bool is_send;
    int n; /* receives of a group; 1 for a send */
    char *data[32];
    size_t sizes[32];
    int tags[32];
    void *memories[32];
    bool is_watched; /* a receive as NCCL makes it for LL and LL128 */
    void *req;
    int done;
    int got[32];
};

/* Allocated, registered; a send's bytes are filled from seed. */
struct message message_send(void *comm, size_t size, int tag, unsigned seed);
struct message message_recv(void *comm, size_t size, int tag);
void message_add_recv(struct message *m, size_t size, int tag);
/* One try or one test; the second takes an error for the end of the case. */
ncclResult_t message_try(struct message *m);
void message_poll(struct message *m);
/* Until all are done. */
void messages_finish(struct message *all, int count);
/* What receive i of the group got is what a send of that size and seed had. */
void message_check(const struct message *m, int i, size_t size, unsigned seed);
void message_free(struct message *m);
/* The same when its comm is closed already. */
void message_drop(struct message *m);

/* One message there, checked. */
void pair_transfer(struct pair *p, size_t size, unsigned seed);

#endif
