/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/net/late.h"

#include "base/clock.h"
#include "base/fail.h"

static const int64_t SAY_EVERY_NS = 60 * DP_NS_PER_S;

void dpn_late_wait(struct dpn_late *late, const char *peer, const char *what)
{
    const int64_t now_ns = dp_now_ns();

    if (!late->since_ns)
        late->since_ns = late->said_ns = now_ns;
    if (now_ns - late->said_ns < SAY_EVERY_NS)
        return;
    late->said_ns = now_ns;
    dp_log(DP_LOG_WARN, "peer at %s is late by %lld s: it %s; waiting goes on", peer,
           (long long)((now_ns - late->since_ns) / DP_NS_PER_S), what);
}
