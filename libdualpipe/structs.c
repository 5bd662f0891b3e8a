/* SPDX-License-Identifier: Apache-2.0
 *
 * structs.c - the sizes of all public structs, a line each, for bindings. Not in base, which knows
 * few of them.
 */
#include "base/fail.h"

#include <dualpipe/assignment.h>
#include <dualpipe/asyncpipe.h>
#include <dualpipe/batch_norm.h>
#include <dualpipe/batch_step.h>
#include <dualpipe/checkpoint.h>
#include <dualpipe/comm.h>
#include <dualpipe/device.h>
#include <dualpipe/memory.h>
#include <dualpipe/microbatch.h>
#include <dualpipe/mixer.h>
#include <dualpipe/mixing.h>
#include <dualpipe/model.h>
#include <dualpipe/nccl.h>
#include <dualpipe/offload.h>
#include <dualpipe/optimizer.h>
#include <dualpipe/options.h>
#include <dualpipe/parameter.h>
#include <dualpipe/partition.h>
#include <dualpipe/pipeline.h>
#include <dualpipe/placement.h>
#include <dualpipe/random.h>
#include <dualpipe/schedule.h>
#include <dualpipe/stage.h>
#include <dualpipe/topology.h>
#include <dualpipe/trace.h>
#include <dualpipe/trainer.h>
#include <dualpipe/tuning.h>

#include <string.h>

#define KNOWN(s) {#s, sizeof(struct s)}
#define GROWS(s) {#s, 0} /* functions are told its size: DP_SIZED */

static const struct {
    const char *name;
    size_t size;
} known[] = {
    KNOWN(dp_abort),
    KNOWN(dp_answer),
    KNOWN(dp_assigned_flow),
    KNOWN(dp_assigned_node),
    KNOWN(dp_assigned_port),
    KNOWN(dp_assigned_worker),
    KNOWN(dp_assignment),
    KNOWN(dp_async),
    GROWS(dp_async_spec),
    GROWS(dp_batch),
    KNOWN(dp_batch_norm_config),
    KNOWN(dp_batch_norm_state),
    KNOWN(dp_batch_step),
    KNOWN(dp_block_mask),
    KNOWN(dp_border),
    KNOWN(dp_check_limits),
    KNOWN(dp_checkpoint_tensor),
    KNOWN(dp_comm_axis),
    KNOWN(dp_comm_caps),
    GROWS(dp_comm_config),
    KNOWN(dp_comm_store),
    GROWS(dp_controller_config),
    KNOWN(dp_cost),
    KNOWN(dp_device_allocator),
    KNOWN(dp_device_launch),
    GROWS(dp_device_usage),
    KNOWN(dp_finding),
    KNOWN(dp_flow),
    KNOWN(dp_graph),
    KNOWN(dp_graph_finding),
    KNOWN(dp_graph_kind),
    KNOWN(dp_graph_spec),
    KNOWN(dp_host_link),
    KNOWN(dp_invocation),
    KNOWN(dp_late),
    KNOWN(dp_layer),
    KNOWN(dp_layer_call),
    KNOWN(dp_layer_group),
    KNOWN(dp_layer_ops),
    KNOWN(dp_layer_size),
    KNOWN(dp_layer_skip),
    GROWS(dp_layers_config),
    KNOWN(dp_live),
    KNOWN(dp_loader),
    KNOWN(dp_location),
    KNOWN(dp_loss_ops),
    KNOWN(dp_loss_scale),
    KNOWN(dp_merge_options),
    KNOWN(dp_microbatches),
    KNOWN(dp_mix_group),
    KNOWN(dp_mix_link),
    KNOWN(dp_mix_round),
    KNOWN(dp_mixer_average),
    KNOWN(dp_mixer_average_info),
    GROWS(dp_mixer_config),
    GROWS(dp_mixer_report),
    KNOWN(dp_mixer_update),
    KNOWN(dp_mixer_update_info),
    KNOWN(dp_mixing_run),
    KNOWN(dp_mixing_sample),
    KNOWN(dp_mixing_scenario),
    KNOWN(dp_model),
    KNOWN(dp_named_tensor),
    GROWS(dp_nccl_config),
    KNOWN(dp_nccl_peer),
    KNOWN(dp_offload_activations),
    KNOWN(dp_offload_call),
    KNOWN(dp_offload_choice),
    GROWS(dp_offload_config),
    KNOWN(dp_offload_event),
    KNOWN(dp_offload_gradients),
    KNOWN(dp_offload_graph_config),
    KNOWN(dp_offload_layer),
    KNOWN(dp_offload_layer_ops),
    GROWS(dp_offload_memory),
    KNOWN(dp_offload_node),
    GROWS(dp_offload_optimizer_config),
    KNOWN(dp_offload_plan),
    KNOWN(dp_offload_source),
    KNOWN(dp_offload_step),
    KNOWN(dp_op),
    KNOWN(dp_optimizer_config),
    KNOWN(dp_optimizer_group),
    KNOWN(dp_optimizer_mix),
    GROWS(dp_optimizer_step),
    KNOWN(dp_option),
    KNOWN(dp_option_info),
    KNOWN(dp_pair),
    KNOWN(dp_pair_loss),
    KNOWN(dp_parameter),
    KNOWN(dp_parameter_spec),
    KNOWN(dp_partition),
    KNOWN(dp_partition_spec),
    GROWS(dp_pipeline_config),
    GROWS(dp_pipeline_memory),
    KNOWN(dp_placed_link),
    KNOWN(dp_placed_worker),
    KNOWN(dp_placement),
    GROWS(dp_placement_spec),
    KNOWN(dp_process),
    KNOWN(dp_quick_model),
    KNOWN(dp_random_key),
    KNOWN(dp_rank_pace),
    KNOWN(dp_rank_report),
    KNOWN(dp_rate),
    KNOWN(dp_received),
    KNOWN(dp_reduce_ops),
    KNOWN(dp_reducer),
    KNOWN(dp_remote),
    KNOWN(dp_replica_pair),
    KNOWN(dp_request),
    KNOWN(dp_save_bytes),
    KNOWN(dp_schedule),
    KNOWN(dp_schedule_spec),
    KNOWN(dp_shared_place),
    KNOWN(dp_simulation),
    KNOWN(dp_skip),
    KNOWN(dp_skip_ends),
    KNOWN(dp_slot),
    KNOWN(dp_slow),
    KNOWN(dp_span),
    KNOWN(dp_split_options),
    KNOWN(dp_stage),
    KNOWN(dp_stage_call),
    KNOWN(dp_stage_ops),
    KNOWN(dp_step),
    KNOWN(dp_tensor_spec),
    KNOWN(dp_timeline),
    KNOWN(dp_topo_gid),
    KNOWN(dp_topo_link),
    KNOWN(dp_topo_node),
    KNOWN(dp_topo_note),
    KNOWN(dp_topo_path),
    KNOWN(dp_topo_pci),
    KNOWN(dp_topo_port),
    KNOWN(dp_topology),
    KNOWN(dp_topology_preset),
    GROWS(dp_trace_report),
    GROWS(dp_trainer_config),
    KNOWN(dp_trainer_machine),
    GROWS(dp_trainer_offload),
    GROWS(dp_trainer_parts),
    KNOWN(dp_trainer_plan),
    GROWS(dp_trainer_result),
    KNOWN(dp_tree),
    GROWS(dp_tuner_config),
    KNOWN(dp_tuning_answer),
    KNOWN(dp_tuning_crossing),
    KNOWN(dp_tuning_latencies),
    KNOWN(dp_tuning_links),
    KNOWN(dp_tuning_question),
    KNOWN(dp_tuning_range),
    KNOWN(dp_tuning_rule),
    KNOWN(dp_tuning_table),
    KNOWN(dp_weights),
    KNOWN(dp_worker_function),
};

int dp_check_struct(const char *name, size_t size)
{
    for (size_t i = 0; name && i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(name, known[i].name))
            continue;
        return !known[i].size || size == known[i].size
                   ? 0
                   : dp_fail(DP_EMISMATCH,
                             "struct %s: %zu bytes, expected %zu, as in release %d.%d.%d", name,
                             size, known[i].size, DP_VERSION_MAJOR, DP_VERSION_MINOR,
                             DP_VERSION_PATCH);
    }
    return dp_fail(DP_EINVAL, "struct %s: not one of release %d.%d.%d", name ? name : "NULL",
                   DP_VERSION_MAJOR, DP_VERSION_MINOR, DP_VERSION_PATCH);
}
