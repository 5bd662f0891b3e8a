/* SPDX-License-Identifier: Apache-2.0
 *
 * assignment.h - what one process needs of a placement, read from its file without the topology:
 * which worker it is, on which GPU, next to which memory, and by which NICs its flows go.
 *
 *      process r   its rank in the job (RANK, WORLD_SIZE), before any map
 *      worker w    replica * P + pipeline rank; workers[w] is its assignment: GPU, memory, NICs, and
 *                  the process that carries it out
 *
 *      struct dp_assignment *assignment;
 *      int map[P];
 *      dp_assignment_load("placement.txt", &assignment);
 *      dp_assignment_map(assignment, 0, map);
 *      dp_schedule_new(&(struct dp_schedule_spec){..., .rank_map = map}, &schedule);
 *      dp_assignment_bind(assignment, dp_assignment_find(assignment, dp_comm_rank(comm)));
 *
 * placement.h makes such files, placement/README.md documents them. Reading needs no library, so
 * plugins inside other processes can do it too. Plain data; any thread may read it.
 */
#ifndef DUALPIPE_ASSIGNMENT_H
#define DUALPIPE_ASSIGNMENT_H

#include <dualpipe/dualpipe.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dp_flow_kind {
    DP_FLOW_ACTIVATION, /* to the next stage */
    DP_FLOW_GRADIENT,   /* to the stage before */
    DP_FLOW_MIRROR,     /* weight gradients between the two holders of a stage (REDUCE) */
    DP_FLOW_MIXING,     /* parameters between replicas */
    DP_FLOW_OFFLOAD,    /* between a GPU and its pinned memory; from and to are the same worker */
    DP_FLOW_KINDS
};

enum { DP_PLACEMENT_NICS_MAX = 16 };

/* Texts are offsets, for dp_assignment_text; 0 is "". */
struct dp_assigned_port {
    int32_t number;
    uint32_t rdma, net; /* "mlx5_0", "eth0" */
};

struct dp_assigned_node {
    int32_t id;                  /* in the file */
    uint32_t kind, label;        /* "gpu", "node0/gpu3" */
    uint32_t host, pci;          /* "node0", "0000:1b:00.0" */
    uint32_t cpus;               /* of a NUMA node, "0-55,112-167" */
    int32_t os_index;            /* the kernel's number of a NUMA node, NVML's of a GPU; -1: not known */
    int32_t first_port, port_count; /* of a NIC */
};

struct dp_assigned_worker {
    int32_t replica, rank; /* the worker */
    int32_t process;
    int32_t gpu;           /* this and the following count in nodes */
    int32_t memory;        /* NUMA node of its pinned buffers; -1: none is known */
    int32_t nic_count, qps_count;
    int32_t nics[DP_PLACEMENT_NICS_MAX]; /* the one to use first first */
    int32_t qps[DP_PLACEMENT_NICS_MAX];  /* queue pairs of a connection over it */
};

struct dp_assigned_flow {
    enum dp_flow_kind kind;
    int32_t from, to;         /* workers */
    double bytes;             /* in a step */
    int32_t nic_from, nic_to; /* in nodes; -1: within a host, or not known */
    int32_t rail;             /* in nodes; -1: none, or over a spine */
    int32_t traffic_class;    /* 0: none is asked for */
};

struct dp_assignment {
    char *name;              /* for messages: the path */
    int32_t ranks, replicas; /* P, D */
    double intra_gbs, inter_gbs; /* GB/s from GPU to GPU of a node, out of a node; 0: not known */
    int32_t node_total; /* as NCCL counts: hosts, those that NVLink joins as one; 0: not known */
    int32_t node_count, port_count, worker_count, flow_count;
    struct dp_assigned_node *nodes;   /* by id */
    struct dp_assigned_port *ports;
    struct dp_assigned_worker *workers;        /* [replicas * ranks], by worker */
    struct dp_assigned_flow *flows;
    char *text;
};

static inline const char *dp_assignment_text(const struct dp_assignment *s, uint32_t text)
{
    return s->text + text;
}

/* Read a file that dp_placement_write has made; `name` is for messages. DP_EINVAL with "NAME:LINE:" and
 * what was expected there, also for JSON, which older releases wrote; DP_ENOENT, DP_EIO, DP_ENOMEM. The
 * caller frees. */
DP_PUBLIC int dp_assignment_read(const char *text, size_t len, const char *name,
                                 struct dp_assignment **out);
DP_PUBLIC int dp_assignment_load(const char *path, struct dp_assignment **out);
/* The file that DUALPIPE_PLACEMENT names; *out is NULL if it names none. With
 * DUALPIPE_PLACEMENT_NUMBERED=1 process r is worker r: the ranks have been given out by the placement
 * before this process began. */
DP_PUBLIC int dp_assignment_from_env(struct dp_assignment **out);
DP_PUBLIC void dp_assignment_free(struct dp_assignment *s);

/* DP_EINVAL naming both, unless the placement is of so many replicas of so many ranks. */
DP_PUBLIC int dp_assignment_check(const struct dp_assignment *s, int replicas, int ranks);
/* The worker of a process; -1: it has none. */
DP_PUBLIC int32_t dp_assignment_find(const struct dp_assignment *s, int process);
/* For dp_schedule_spec.rank_map: map[i], i < ranks, is the pipeline rank of the i-th process of
 * this replica, in the order in which they came. DP_EINVAL for a replica that is not there;
 * DP_ENOMEM. */
DP_PUBLIC int dp_assignment_map(const struct dp_assignment *s, int replica, int *map);

/* Whether a host's name in the file means this one: "node0.cluster.org" is node0. */
DP_PUBLIC bool dp_assignment_is_host(const char *name, const char *host);

/* Bind the calling thread, and those that it starts, to the CPUs of the worker's memory node, and
 * let memory come from there, unless DUALPIPE_PLACEMENT_BIND is 0. On another host than the
 * worker's, or where there is no such node, nothing happens but a line in the log. DP_EINVAL for a
 * bad option. */
DP_PUBLIC int dp_assignment_bind(const struct dp_assignment *s, int32_t worker);

#ifdef __cplusplus
}
#endif
#endif
