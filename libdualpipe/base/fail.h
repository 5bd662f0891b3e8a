/* SPDX-License-Identifier: Apache-2.0
 *
 * fail.h - say once what went wrong, and return its number.
 *
 *      if (ranks < 1)
 *          return dp_fail(DP_EINVAL, "ranks: %d, expected at least 1", ranks);
 *
 * A function that only passes an error on does not call dp_fail again: the first sentence is the best.
 */
#ifndef DP_BASE_FAIL_H
#define DP_BASE_FAIL_H

#include <dualpipe/dualpipe.h>

/* Room for a sentence: that of another rank (comm.h), with what is said around it. */
enum { DP_FAIL_TEXT = DP_ABORT_TEXT + 512 };

/* Log the sentence at level error, keep it for dp_last_error(), return err. */
int dp_fail(int err, const char *fmt, ...) DP_PRINTF(2, 3);

/* The same, without a log line: for a failure that the caller may well get over. */
int dp_fail_quietly(int err, const char *fmt, ...) DP_PRINTF(2, 3);

/* As strerror; of a limit on open files also what it is, and how to raise it. The text lasts until the
 * thread's next call. */
const char *dp_errno_text(int error);

void dp_log(enum dp_log_level level, const char *fmt, ...) DP_PRINTF(2, 3);

#endif
