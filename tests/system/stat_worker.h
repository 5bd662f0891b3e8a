/* SPDX-License-Identifier: Apache-2.0
 *
 * stat_worker.h - a process that has the net plugin count, over both ends of a connection of its own.
 */
#ifndef STAT_WORKER_H
#define STAT_WORKER_H

#include <sys/types.h>

/* What an order to transfer sends: so many messages of either size, and a group of four small ones. */
enum { STAT_SMALL = 100, STAT_LARGE = 100000, STAT_SMALLS = 20, STAT_LARGES = 5 };
enum { STAT_DEADLINE_S = 120 };

struct stat_worker {
    pid_t pid;
    int orders, answers; /* a byte each */
};

/* wire: as DUALPIPE_NET_WIRE has it; directory: for its page. Its connection is open on return. */
struct stat_worker stat_start(const char *wire, const char *directory);
/* t transfer, b one message more, over a port that is down for a while, c close, f fork, e end by
 * itself. Returns when it is done. */
void stat_tell(const struct stat_worker *w, char order);
/* Killed. */
void stat_stop(struct stat_worker *w);

#endif
