/* SPDX-License-Identifier: Apache-2.0
 *
 * signals.h - whether this process was told to end (SIGTERM).
 */
#ifndef DP_TRAINER_SIGNALS_H
#define DP_TRAINER_SIGNALS_H

#include <stdbool.h>

/* From the first begin to the last end SIGTERM is noted, beside what the program itself does at it, and
 * does not end the process. Any thread. */
void signals_begin(void);
void signals_end(void);
/* It has come since the first begin. */
bool signals_raised(void);

#endif
