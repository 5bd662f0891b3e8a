/* SPDX-License-Identifier: Apache-2.0
 *
 * memory.h - will it fit? Said before it is tried.
 */
#ifndef DP_TRAIN_MEMORY_H
#define DP_TRAIN_MEMORY_H

#include "train/settings.h"

/* What there is: the kernel's MemAvailable, what the control group has left, and what one process
 * may still map. Infinite where there is no such limit. */
struct memory_limits {
    double available_bytes, group_bytes, process_bytes;
};

/* root: "" for this machine, or a directory with captured proc and sys trees. */
void memory_limits_read(const char *root, struct memory_limits *limits);

/* What each rank of a pipeline will need: bytes[ranks]. Errors of dp_trainer_measure but
 * DP_ENOMEM. */
int memory_of_ranks(const struct settings *s, double *bytes);

/* EXIT_USAGE, after one line that says what is needed, what there is, and which options to lower; or an
 * error's. `local` ranks run on this machine. */
int memory_check(const struct settings *s, int local, const struct memory_limits *limits);

/* The most memory that this process has held, as /proc below root says (VmHWM). Unlike getrusage's
 * maximum it begins anew with exec, so that a launcher's memory is not counted. */
double memory_peak(const char *root);

#endif
