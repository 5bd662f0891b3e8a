/* SPDX-License-Identifier: Apache-2.0
 *
 * links.h - communicators by NCCL, from GPU to GPU, each over one of the host's and between those
 * ranks only that send each other something.
 */
#ifndef DP_TRAINER_LINKS_H
#define DP_TRAINER_LINKS_H

#include <dualpipe/comm.h>
#include <dualpipe/device.h>
#include <dualpipe/mixing.h>
#include <dualpipe/schedule.h>

/* Of a pipeline that carries out both; rank: of the pipeline; tied: parameters of different stages
 * are one. Collective over host. */
int links_of_pipeline(struct dp_comm *host, struct dp_device *device,
                      const struct dp_schedule *const schedules[2], int rank, bool tied,
                      struct dp_comm **out);
/* Of ranks that sum, or mix by a graph. */
int links_of_replicas(struct dp_comm *host, struct dp_device *device, const struct dp_graph *graph,
                      struct dp_comm **out);

#endif
