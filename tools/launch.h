/* SPDX-License-Identifier: Apache-2.0
 *
 * launch.h - ranks as processes of this machine: start them, and see to it that all of them end.
 *
 * A rank ends with its parent, whatever happens to that (PR_SET_PDEATHSIG). A rank that fails or
 * dies ends the others; one line says which one it was. Ctrl-C ends all at once.
 */
#ifndef DP_TOOLS_LAUNCH_H
#define DP_TOOLS_LAUNCH_H

#include <dualpipe/comm.h>

/* What a rank does, in its own process: 0, or a negative errno with *why filled. */
typedef int (*launch_fn)(void *user, const struct dp_comm_config *config, struct dp_abort *why);

/* Run `ranks` processes, which meet at `port` of the loopback interface (0: any that is free),
 * until all have ended. Returns what the program returns to the shell: EXIT_OK, EXIT_USAGE for a
 * port that is taken, 128 + signal after SIGINT, SIGTERM or SIGHUP, else EXIT_FAILED. */
int launch_ranks(int ranks, int port, const char *transport, launch_fn run, void *user);

/* The same for ranks whose group survives (dp_comm_survive): once one has joined, a signal that kills a
 * rank ends none of the others, and a line says which one it was. The first `restarts` that are killed
 * are started again: `run` then has a config of size 0, with the rank that there was. A rank that is
 * stopped while all others come to a good end is ended. */
int launch_survivors(int ranks, int port, const char *transport, int restarts, launch_fn run,
                     void *user);

/* For `run`: dp_comm_open, or dp_comm_join for a rank that was started again. While no rank has got
 * through, no rank could tell the others that one has failed, and launch_ranks ends them at once; later
 * they have some seconds to end by themselves. */
int launch_join(const struct dp_comm_config *config, struct dp_comm **out);
/* How many ranks that were started again are to be admitted by a group that has lost `lost`: 0 or more,
 * within two seconds at most, if the launcher has not yet seen that they were killed. */
int launch_count_waiting(int lost);
/* This rank was started again, and has been admitted. */
void launch_admitted(int rank);

/* The others have declared this rank dead, and go on: that it fails now ends none of them. */
void launch_excluded(int rank);

/* For a rank that runs in this very process: those signals end it with the same status. */
void launch_alone(void);

#endif
