/* SPDX-License-Identifier: Apache-2.0
 *
 * placement.h - which GPU does whose work, and which route every byte of a step takes.
 *
 * Given a topology, a schedule and what travels in a step, a placement says
 *
 *      worker -> GPU       which GPU holds which pipeline rank of which replica
 *      flow   -> links     the NICs and the rail of every flow between hosts
 *      GPU    -> NICs      in which order to use them, with how many queue pairs
 *      GPU    -> memory    the NUMA node of its pinned buffers
 *
 * so that the slowest link of the step is least loaded. A link's load is the time in ns that it is
 * busy in a step: bytes through it in one direction over its rate. All flows of a step count, as if
 * they could overlap perfectly: so loads compare placements, and are no prediction of a step's
 * time.
 *
 * Workers are numbered replica * P + pipeline rank. GPUs are nodes of the topology. A placement is
 * plain data, and holds no pointer to the topology or the schedule. What processes need of it is written
 * as lines of text (placement/README.md documents them), which assignment.h reads without the topology:
 * so do the runtime, the net plugin and the tuner.
 *
 * Source of the problem: process mapping, e.g. Hoefler and Snir, "Generic topology mapping
 * strategies for large-scale parallel architectures", ICS 2011. It is NP-hard; see effort.
 */
#ifndef DUALPIPE_PLACEMENT_H
#define DUALPIPE_PLACEMENT_H

#include <dualpipe/schedule.h>
#include <dualpipe/assignment.h>
#include <dualpipe/topology.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- what is to be placed ------------------------------------------------------------------- */

/* Replicas a and b exchange their parameters: in every step, or a share of them, averaged over the
 * steps, as the rounds of a mixing graph do. */
struct dp_replica_pair {
    int32_t a, b;
    double share; /* of the parameters, each way and in a step; 0: 1, all of them */
    bool one_way; /* only from a to b */
};

/* Zeroed memory plus schedule, topology and activation_bytes is the usual case. Bytes are per step
 * unless they say otherwise, and may be 0; negative ones and those that are no number are refused. */
struct dp_placement_spec {
    const struct dp_topology *topology;
    const struct dp_schedule *schedule; /* P ranks, with messages, or an outline, whose mirrors are
                                         * then summed once a step */
    int replicas;                  /* D; 0: 1 */
    uint32_t reserved;
    double activation_bytes;       /* one message forwards: one micro-batch */
    double gradient_bytes;         /* one message backwards; 0: as many as forwards */
    double parameter_bytes;        /* of one stage: what mirrors and replicas send each other */
    double offload_bytes;          /* a GPU sends so much to pinned memory, and gets it back */
    const struct dp_replica_pair *mixing; /* NULL with several replicas: a ring */
    int mixing_count;
    uint32_t reserved1;
    const int32_t *gpus;           /* [D * P] nodes, in the order in which ranks came: the ranks of
                                    * a replica are neighbours. NULL: the topology's first GPUs */
    long effort;                   /* swaps that the search tries; 0: 100 000 at most, 20 000 for
                                    * more than 256 workers, so that 4096 GPUs take seconds */
    uint64_t seed;                 /* of the search; the same spec gives the same placement */
    uint8_t traffic_class[DP_FLOW_KINDS]; /* that flows over the network ask for; 0: none */
    uint8_t reserved2[3];
    /* May be NULL: called now and then by a long search, with how much of it is done, 0 to 1. */
    void (*progress)(void *user, double done);
    void *progress_user;
};

/* ---- what comes out ------------------------------------------------------------------------- */

struct dp_flow {
    enum dp_flow_kind kind;
    int32_t from, to;         /* workers */
    double bytes;             /* in a step, in this direction; of an offload in each direction */
    int32_t nic_from, nic_to; /* nodes, of flows between hosts; else -1 */
    int32_t rail;             /* node; -1: none, or over a spine */
    enum dp_topo_class class_; /* of the route */
    uint8_t traffic_class;     /* of flows between hosts; 0: none is asked for */
};

struct dp_placed_worker {
    int32_t gpu;       /* node */
    int32_t came_as;   /* place of this GPU in the order in which the ranks came */
    int32_t memory;    /* NUMA node for its pinned buffers; -1: the host has none that is known */
    int32_t nic_count;
    int32_t nics[DP_PLACEMENT_NICS_MAX]; /* nodes, the one to use first first */
    int32_t qps[DP_PLACEMENT_NICS_MAX];  /* queue pairs of a connection over it */
};

/* A link that is used before or after, busiest first (after, then before). */
struct dp_placed_link {
    int32_t link;       /* of the topology */
    int32_t from, to;   /* nodes: the direction */
    double before_ns;   /* in the order in which ranks came, every flow on its default route */
    double after_ns;
};

struct dp_placement {
    int32_t ranks, replicas; /* P, D */
    bool exact;              /* no order of the workers has a smaller load on its slowest link, with
                              * every flow on its default route */
    double before_ns, after_ns; /* the load of the slowest link; after is never more */
    struct dp_placed_worker *workers; /* [replicas * ranks] */
    int32_t flow_count, link_count;
    struct dp_flow *flows;
    struct dp_placed_link *links;
};

/* Find a placement: by trying all orders for up to 8 workers, else by the best of several usual
 * orders and swaps from there. Never worse than the order in which the ranks came. Errors:
 * DP_EINVAL naming the member and what was expected (a schedule without messages, fewer GPUs than
 * workers, a node that is no GPU or comes twice, a pair of replicas that are not there); DP_EINVAL
 * naming two GPUs that have something to send each other and no route to do so; DP_ENOMEM. The
 * caller frees. Any thread. */
DP_SIZED(dp_placement_new, (spec, out, sizeof(struct dp_placement_spec)),
         const struct dp_placement_spec *spec, struct dp_placement **out);
DP_PUBLIC void dp_placement_free(struct dp_placement *p);

/* ---- the file ------------------------------------------------------------------------------- */

/* For dp_assignment_read, with names of nodes, so that it can be read without the topology. *text is
 * malloc'ed, the caller frees it; len may be NULL. DP_ENOMEM. */
DP_PUBLIC int dp_placement_write(const struct dp_placement *p, const struct dp_topology *t,
                                 char **text, size_t *len);

#ifdef __cplusplus
}
#endif
#endif
