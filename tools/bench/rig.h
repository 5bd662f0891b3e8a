/* SPDX-License-Identifier: Apache-2.0
 *
 * rig.h - a pipeline whose model computes nothing: its ops take as long as they are told to (or no
 * time at all), so that what is left is the cost of the pipeline itself.
 *
 * A timed wait is a sleep to a little before its end and a spin from there: sleep alone wakes up too
 * late, and spinning alone, as ops that compute do, wants a core for each rank.
 */
#ifndef DP_TOOLS_BENCH_RIG_H
#define DP_TOOLS_BENCH_RIG_H

#include <dualpipe/pipeline.h>
#include <dualpipe/schedule.h>

struct rig_config {
    const struct dp_schedule *schedule; /* must outlive the rig */
    struct dp_comm *comm;               /* NULL for a schedule of one rank */
    const struct dp_cost *cost;         /* how long ops wait; NULL: not at all */
    size_t message_bytes;               /* of one micro-batch, at every border */
    enum dp_execution execution;
    bool spins;                         /* ops keep their core busy instead of sleeping */
    struct dp_recorder *recorder;       /* NULL: none */
};

/* How long ops of a kind really took. */
struct rig_clock {
    double total_ns;
    int64_t count;
};
enum rig_op { RIG_F, RIG_I, RIG_W, RIG_B, RIG_FB, RIG_OPS };

struct rig {
    double waits_ns[RIG_OPS];
    struct rig_clock clocks[RIG_OPS]; /* since rig_open, or since they were zeroed */
    struct dp_pipeline *pipeline;
    struct dp_border *borders;
    float *batch;
    struct dp_microbatches *inputs;
    int rank; /* pipeline rank */
    bool has_first, spins;
};

/* Collective over the comm. Errors are those of dp_pipeline_new, and DP_ENOMEM. */
int rig_open(const struct rig_config *config, struct rig *rig);
int rig_step(struct rig *rig);
/* Let ops wait for other times from now on, and zero the clocks. NULL: not at all. */
void rig_set_waits(struct rig *rig, const struct dp_cost *cost);
void rig_close(struct rig *rig);

/* Sleep and spin until now_ns() is deadline_ns. */
void rig_wait_until(int64_t deadline_ns);

#endif
