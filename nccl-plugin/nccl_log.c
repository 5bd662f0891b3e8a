/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/nccl_log.h"

#include <dualpipe/dualpipe.h>
#include <stdatomic.h>
#include <string.h>
#include <strings.h>

static _Atomic(ncclDebugLogger_t) nccl_logger;

static void pass_on(void *user, enum dp_log_level level, const char *line)
{
    ncclDebugLogger_t logger = atomic_load_explicit(&nccl_logger, memory_order_acquire);
    ncclDebugLogLevel as = level <= DP_LOG_WARN ? NCCL_LOG_WARN
                           : level == DP_LOG_INFO ? NCCL_LOG_INFO
                                                  : NCCL_LOG_TRACE;

    (void)user;
    logger(as, NCCL_INIT | NCCL_NET | NCCL_TUNING, __FILE__, __LINE__, "dualpipe: %s", line);
}

void dpn_log_to(ncclDebugLogger_t logger)
{
    if (!logger)
        return;
    bool is_first = !atomic_exchange_explicit(&nccl_logger, logger, memory_order_acq_rel);
    if (is_first)
        dp_log_set(pass_on, NULL, DP_LOG_INFO); /* NCCL_DEBUG decides what is shown */
}

bool dpn_list_admits(const char *list, const char *word)
{
    bool is_named = false;

    for (const char *at = list + (*list == '^'); *at; at += *at == ',') {
        const size_t len = strcspn(at, ",");
        is_named |= len == strlen(word) && !strncasecmp(at, word, len);
        at += len;
    }
    return is_named != (*list == '^');
}

ncclResult_t dpn_result(int err)
{
    switch (err) {
    case 0:
    case DP_EAGAIN:
        return ncclSuccess;
    case DP_EINVAL:
        return ncclInvalidArgument;
    case DP_EUNSUPPORTED:
    case DP_ESTATE:
    case DP_EMISMATCH:
        return ncclInvalidUsage;
    case DP_ECOMM:
    case DP_ETIMEDOUT: /* ncclTimeout is too new for most */
        return ncclRemoteError;
    case DP_ENOMEM:
    case DP_EIO:
    case DP_ENODEV:
    case DP_ENOENT:
        return ncclSystemError;
    default:
        return ncclInternalError;
    }
}
