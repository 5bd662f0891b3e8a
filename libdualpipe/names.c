/* SPDX-License-Identifier: Apache-2.0
 *
 * names.c - the words of all public enumerations. Not in base, which knows few of them.
 */
#include "mixing/internal.h"
#include "optimizer/internal.h"
#include "pipeline/internal.h"
#include "placement/internal.h"
#include "schedule/internal.h"
#include "topology/internal.h"
#include "tuning/internal.h"

#define NAMED(of, name) case DP_NAMES_##of: return name(value)

const char *dp_name(enum dp_names of, int value)
{
    switch (of) {
    NAMED(SCHEDULE, dp_schedule_kind_name);
    NAMED(OP, dp_op_kind_name);
    NAMED(RECOMPUTE, dp_recompute_name);
    NAMED(RULE, dp_rule_name);
    NAMED(EXECUTION, dp_execution_name);
    NAMED(FLOW, dp_flow_kind_name);
    NAMED(NODE, dp_topo_kind_name);
    NAMED(LINK, dp_topo_link_kind_name);
    NAMED(PATH, dp_topo_class_name);
    NAMED(FUNCTION, dp_tuning_function_name);
    NAMED(ALGORITHM, dp_tuning_algorithm_name);
    NAMED(PROTOCOL, dp_tuning_protocol_name);
    NAMED(MIXER, dp_mixer_algorithm_name);
    NAMED(GRAPH_RULE, dp_graph_rule_name);
    NAMED(OPTIMIZER, dp_optimizer_kind_name);
    }
    return "?";
}
