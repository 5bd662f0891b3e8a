/* SPDX-License-Identifier: Apache-2.0
 *
 * train_command.h - `dualpipe train` as a set of processes, for the tests that start it and end some of
 * them.
 */
#ifndef DP_TEST_TRAIN_COMMAND_H
#define DP_TEST_TRAIN_COMMAND_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

enum { MAX_RANKS = 8, OUTPUT = 1 << 16 };

/* Ranks are killed after a few steps, and the run goes on for long enough to be seen to. A step takes ten
 * times as long under ThreadSanitizer. */
#if defined(__SANITIZE_THREAD__)
enum { STEPS = 60 };
#else
enum { STEPS = 200 };
#endif

struct run {
    pid_t pid;
    FILE *out, *err; /* temporary files */
    int written;     /* is readable once they have become longer */
    int status;      /* as the shell would see it */
    char out_text[OUTPUT], err_text[OUTPUT];
};

/* before: called in the process that becomes the command. */
void start(struct run *r, const char *more, void (*before)(void *), void *user);
void finish(struct run *r);
/* Both. */
void run(struct run *r, const char *options);
/* The output of a run of STEPS steps in one process, for assert_same_steps. */
void run_sequential(struct run *r, const char *more);
/* Start an endless run of four ranks; returns false where /proc does not list children. */
bool start_endless(struct run *r, pid_t ranks[4]);
void no_children(void);

bool has_ended(const struct run *r);
/* Until it has printed something, and now and then, as it may end: its ranks need the processors. */
void wait_for_output(const struct run *r);
/* Until the run has printed two steps: all ranks are at work. */
void wait_for_steps(struct run *r);
void read_text(FILE *f, char text[OUTPUT]);
/* The processes that pid has started, oldest first. */
int children_of(pid_t pid, pid_t *out);

void assert_says(const char *text, const char *part);
void assert_one_line(const char *text);
void assert_all_gone(const pid_t *ranks);
/* Every step of `expected` is in `got` too, with the same loss and norm to the last digit. */
void assert_same_steps(const char *got, const char *expected);

/* ---- ranks that a launcher starts ---- */

/* A socket that listens on a port of loopback, 0: any that is free; -1 if the port is taken. */
int listen_on(int port);
int port_of(int fd);
/* A MASTER_PORT: the ranks meet on the port above it. Below the range from which the system gives
 * ports to connections, so that none takes it before the ranks are there. */
int find_master_port(void);

struct launched {
    int rank, port, size; /* 0: 2 */
};

/* For start: the variables of a struct launched. */
void set_variables(void *user);

#endif
