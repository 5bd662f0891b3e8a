/* SPDX-License-Identifier: Apache-2.0
 *
 * saved_lock.h - one job at a time saves below a folder. Two of them would name their files alike,
 * and a checkpoint of the one have files of the other.
 */
#ifndef DP_TRAIN_SAVED_LOCK_H
#define DP_TRAIN_SAVED_LOCK_H

#include <stdbool.h>

/* Make the folder if it is not there, and lock DIR/.lock, on every machine that sees the folder. The
 * lock is that of this process and of those that it forks, and ends with the last of them. On a file
 * system without locks there is none. false, after one line, if another job has it. */
bool saved_lock(const char *dir);

#endif
