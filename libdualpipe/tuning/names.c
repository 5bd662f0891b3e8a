/* SPDX-License-Identifier: Apache-2.0 */
#include "tuning/rule.h"


const char *const dp_tuning_functions[] = {"broadcast",     "reduce",    "allgather",
                                           "reducescatter", "allreduce", NULL};
const char *const dp_tuning_algorithms[] = {"tree", "ring",      "collnet_direct", "collnet_chain",
                                            "nvls", "nvls_tree", "pat",            NULL};
const char *const dp_tuning_protocols[] = {"ll", "ll128", "simple", NULL};

static const char *name_of(const char *const *names, int count, int value)
{
    if (value == DP_TUNING_DEFAULT)
        return "default";
    return value >= 0 && value < count ? names[value] : "unknown";
}

const char *dp_tuning_function_name(int function)
{
    return name_of(dp_tuning_functions, DP_TUNING_FUNCTIONS, function);
}

const char *dp_tuning_algorithm_name(int algorithm)
{
    return name_of(dp_tuning_algorithms, DP_TUNING_ALGORITHMS, algorithm);
}

const char *dp_tuning_protocol_name(int protocol)
{
    return name_of(dp_tuning_protocols, DP_TUNING_PROTOCOLS, protocol);
}
