/* SPDX-License-Identifier: Apache-2.0
 *
 * schedule_file.h - a schedule from a file, whatever its format.
 */
#ifndef DP_TOOLS_SCHEDULE_FILE_H
#define DP_TOOLS_SCHEDULE_FILE_H

#include <dualpipe/schedule.h>

/* Read text, JSON, CSV or PyTorch's CSV; "-" is standard input. It has not been checked. 0, else an
 * EXIT_ value after one line. The caller frees. */
int schedule_file_read(const char *path, struct dp_schedule **out);

#endif
