/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_log.h - the border to NCCL for words and numbers: our sentences go to its logger, our errors
 * become its results.
 */
#ifndef DPN_NCCL_LOG_H
#define DPN_NCCL_LOG_H

#include "nccl-plugin/nccl_abi.h"

#include <stdbool.h>

/* From now on every message of this plugin goes to NCCL's logger. NULL: leave it as it is. */
void dpn_log_to(ncclDebugLogger_t logger);

/* Whether a list of NCCL's admits a word: "LL,Simple" admits these, "^LL128" all others. */
bool dpn_list_admits(const char *list, const char *word);

/* DP_EAGAIN is success: the caller sees that it got nothing, and calls again. */
ncclResult_t dpn_result(int err);

#endif
