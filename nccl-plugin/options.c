/* SPDX-License-Identifier: Apache-2.0
 *
 * options.c - the options of the plugins, which libdualpipe lists with its own.
 */
#include "nccl-plugin/options.h"

static const char *const wires[] = {"auto", "shm", "tcp", "verbs", NULL};

static const struct dp_option net[] = {
    {"DEVICES", DP_OPTION_INT, "32", "offer NCCL at most so many devices; 0: none at all",
     offsetof(struct dpn_net_options, devices), .max = 32},
    {"STAT", DP_OPTION_BOOL, "0", "count what connections do, for `dualpipe stat` to show",
     offsetof(struct dpn_net_options, stat), .choices = NULL},
    {"STAT_DIR", DP_OPTION_STRING, NULL,
     "where the counters of processes are, a directory of mode 0700; /dev/shm/dualpipe-UID as a "
     "rule",
     offsetof(struct dpn_net_options, stat_dir), .choices = NULL},
    {"EAGER", DP_OPTION_INT, "8192",
     "a message of at most so many bytes does not wait for its receive; 0: all do",
     offsetof(struct dpn_net_options, eager_bytes), .max = DPN_MAX_EAGER},
    {"EAGER_GPU", DP_OPTION_BOOL, "0",
     "RDMA: such messages also while receives are in memory of GPUs; not measured on an adapter "
     "yet",
     offsetof(struct dpn_net_options, eager_gpu), .choices = NULL},
    {"GRADIENT_SL", DP_OPTION_INT, "-1",
     "RDMA: service level of connections for collectives; -1: as of all",
     offsetof(struct dpn_net_options, gradient.service_level), .min = -1, .max = 15},
    {"GRADIENT_TC", DP_OPTION_INT, "-1",
     "RDMA: traffic class of connections for collectives; -1: as of all",
     offsetof(struct dpn_net_options, gradient.traffic_class), .min = -1, .max = 255},
    {"PIPELINE_SL", DP_OPTION_INT, "-1",
     "RDMA: service level of connections for send and receive only; -1: as of all",
     offsetof(struct dpn_net_options, pipeline.service_level), .min = -1, .max = 15},
    {"PIPELINE_TC", DP_OPTION_INT, "-1",
     "RDMA: traffic class of connections for send and receive only; -1: as of all",
     offsetof(struct dpn_net_options, pipeline.traffic_class), .min = -1, .max = 255},
    {"PROFILE", DP_OPTION_BOOL, "0",
     "tell NCCL's profiler over which device each message goes (NCCL 2.26 and later, not 2.27, which "
     "crashes without a profiler that takes it)",
     offsetof(struct dpn_net_options, profile), .choices = NULL},
    {"SLICE", DP_OPTION_INT, "100",
     "slices of the scheduler, in us, for threads that wait for their core; 0: as they are",
     offsetof(struct dpn_net_options, slice_us), .max = 100000},
    {"STRIPE", DP_OPTION_INT, "32768",
     "RDMA: cut a message into parts for several rails of no less than so many bytes",
     offsetof(struct dpn_net_options, stripe_bytes), .min = 128, .max = 1 << 30},
    {"TIMEOUT", DP_OPTION_INT, "120",
     "give a peer up whose host is silent for so long, in s; one that is only late is waited for",
     offsetof(struct dpn_net_options, timeout_s), .min = 1, .max = 86400},
    {"WIRE", DP_OPTION_CHOICE, "auto",
     "how NCCL's messages travel; auto: shm within a host, else verbs (RDMA), else tcp",
     offsetof(struct dpn_net_options, wire), .choices = wires},
};
const struct dp_option_area dpn_net_option_area = {"NET", net, sizeof(net) / sizeof(net[0])};

static const struct dp_option profiler[] = {
    {"STAT", DP_OPTION_BOOL, "0",
     "count what travels over the network, over which rail, and what it waits for, for `dualpipe "
     "stat` to show",
     offsetof(struct dpn_profiler_options, stat), .choices = NULL},
    {"STAT_DIR", DP_OPTION_STRING, NULL,
     "where the counters of processes are, a directory of mode 0700; /dev/shm/dualpipe-UID as a "
     "rule",
     offsetof(struct dpn_profiler_options, stat_dir), .choices = NULL},
    {"TRACE", DP_OPTION_STRING, NULL,
     "when the process ends, add to this file what NCCL did when: JSON for ui.perfetto.dev",
     offsetof(struct dpn_profiler_options, trace), .choices = NULL},
    {"TRACE_EVENTS", DP_OPTION_INT, "65536", "of a process, the trace has the last so many events",
     offsetof(struct dpn_profiler_options, trace_events), .min = 1, .max = 1 << 24},
    {"TRAFFIC", DP_OPTION_STRING, NULL,
     "add a line of JSON to this file for every rank of a communicator that ends: what it has sent "
     "to each peer",
     offsetof(struct dpn_profiler_options, traffic), .choices = NULL},
};
const struct dp_option_area dpn_profiler_option_area = {"PROFILER", profiler,
                                                        sizeof(profiler) / sizeof(profiler[0])};

static const char *const registered[] = {"ignore", "trust", NULL};

static const struct dp_option tuner[] = {
    {"LINKS", DP_OPTION_STRING, NULL,
     "intra=GB/s,inter=GB/s,intra_us=US,inter_us=US: the links between the ranks, for the cost model; "
     "placement: the rates of DUALPIPE_PLACEMENT's file",
     offsetof(struct dpn_tuner_options, links), .choices = NULL},
    {"REGISTERED", DP_OPTION_CHOICE, "ignore",
     "trust: all ranks register the same buffers, so rules may ask whether they did",
     offsetof(struct dpn_tuner_options, registered), .choices = registered},
    {"STRICT", DP_OPTION_BOOL, "no",
     "a table that cannot be used fails the communicator; no: NCCL chooses by itself",
     offsetof(struct dpn_tuner_options, is_strict), .choices = NULL},
    {"TABLE", DP_OPTION_STRING, NULL, "the file with the rules, the same on every rank",
     offsetof(struct dpn_tuner_options, table), .choices = NULL},
};
const struct dp_option_area dpn_tuner_option_area = {"TUNER", tuner,
                                                     sizeof(tuner) / sizeof(tuner[0])};
