/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/net/ll128.h"

#include "base/fail.h"
#include "base/options.h"

#include <dualpipe/dualpipe.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Whether a list like "LL,Simple" or "^LL" lets NCCL use LL128. */
static bool admits_ll128(const char *list)
{
    bool is_named = false;

    for (const char *at = list + (*list == '^'); *at; at += *at == ',') {
        size_t len = strcspn(at, ",");
        is_named |= len == 5 && !strncasecmp(at, "LL128", 5);
        at += len;
    }
    return is_named != (*list == '^');
}

/* As NCCL reads numbers. */
static bool is_told_not_to(void)
{
    const char *value = dp_foreign_variable("NCCL_NET_OPTIONAL_RECV_COMPLETION");

    return value && *value && strtol(value, NULL, 0) == 0;
}

void dpn_ll128_decide(bool names_watched)
{
    static const char why[] = "this NCCL does not say which receives need the order of stores that "
                              "LL128 relies on";
    const char *asked = dp_foreign_variable("NCCL_PROTO");

    if (names_watched && !is_told_not_to())
        return;
    if (!asked) {
        setenv("NCCL_PROTO", "^LL128", 1);
        dp_log(DP_LOG_INFO, "NCCL_PROTO=^LL128 from now on: %s", why);
    } else if (admits_ll128(asked)) {
        dp_log(DP_LOG_WARN, "NCCL_PROTO=%s admits LL128, but %s: data may arrive wrong", asked,
               why);
    }
}
