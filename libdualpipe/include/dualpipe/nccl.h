/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl.h - a communicator that sends from GPU to GPU by NCCL, in the order of CUDA streams: the
 * same functions as of any other (comm.h), between processes that each have a CUDA device.
 *
 *      dp_comm_open(&config, &host);                   control messages, aborts, agreement
 *      dp_device_cuda_open(local_rank, &device);
 *      dp_comm_nccl_open(host, &(struct dp_nccl_config){.device = device}, &comm);
 *      messages between the devices' memory
 *      dp_comm_close(comm), then dp_comm_close(host)
 *
 * What goes where. Messages on DP_CHANNEL_ACTIVATION, _GRADIENT and _REDUCE are NCCL's, from and to
 * memory of the device or pinned memory. Each direction between two ranks and each of the three
 * channels is an NCCL communicator of two ranks with a stream of its own, so that none of them
 * queues behind another. DP_CHANNEL_CONTROL, the collectives, aborts and deadlines go over `host`,
 * from and to memory of the host.
 *
 * Order. NCCL has no tags: the k-th send meets the k-th receive of a direction and channel, and
 * both must have the same length. Nothing checks that at run time (caps.tags is false; another
 * length makes NCCL wait, or fail, or lose the rest); for a pipeline dp_schedule_check has proven
 * it before the first message. A send is done when the other rank has received it. There are no
 * receives of any tag on these channels. Each message is done by itself: of a batch NCCL's groups
 * take messages of different connections only, as it carries out those of one in a group together.
 *
 * Streams. caps.stream_ordered: dp_comm_after orders messages behind a stream, dp_comm_stream_wait
 * a stream behind a message. isend, irecv and commit wait until NCCL has put its kernels into the
 * streams, which does not depend on the other rank: all connections are made by dp_comm_nccl_open.
 * They never wait for a message. CUDA_DEVICE_MAX_CONNECTIONS must allow a hardware queue for each
 * of these streams and the pipeline's own (2 to each peer and channel in use; CUDA's default is 8),
 * since kernels that wait for another rank would otherwise hold up work in other streams. Every kernel
 * of a step must be loaded before the first one: CUDA loads a kernel when it is first launched, which
 * may wait until the device is idle, and so for a message that never comes where the other rank does
 * the same (on an H100 two ranks stood still in their first step, also with
 * CUDA_MODULE_LOADING=EAGER). Compute once on each stage before the first step, as
 * the trainer does: then they did not.
 *
 * A pipeline's memory of messages is registered with all these NCCL communicators. It is
 * ncclMemAlloc's where it has a MiB or more (DP_MEMORY_MESSAGES): NCCL can send it without a copy.
 *
 * Names and classes, for a net plugin that is to tell them apart: a communicator is called "dualpipe
 * activation 0 to 1", gradient or reduce, with ranks of host; DUALPIPE_NCCL_STAGE_CLASS is the traffic
 * class of the first two, DUALPIPE_NCCL_REDUCE_CLASS that of the third.
 *
 * Failure. An error of NCCL's, which calls that wait look for, aborts the group and names the other
 * rank of that connection. An abort, of whatever rank, ends all NCCL communicators of this rank in
 * its next call: no stream waits for a message any more, and what it received is undefined. After
 * dp_comm_reset all is connected again.
 *
 * Groups. Parts made by dp_comm_split can neither send nor take part in collectives, for which there
 * are no channels: split the host's communicator, and open one of these over each part.
 *
 * The library is looked for at run time (library.h): DUALPIPE_NCCL_LIBRARY, or libnccl.so.2 and
 * libnccl.so.
 * NCCL 2.27 or newer. Written for releases up to 2.32; tested with 2.28.9 (with 2.30.7 where tests
 * are run with --full), with the real library on a simulated CUDA, steps of pipelines among what it
 * ran; and with 2.28.9 between two processes that share an H100 (tests/gpu/report-h100.md).
 *
 * Source: NCCL's user guide (communicators, group calls, fault tolerance, ncclConfig_t).
 */
#ifndef DUALPIPE_NCCL_H
#define DUALPIPE_NCCL_H

#include <dualpipe/comm.h>
#include <dualpipe/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What this rank exchanges with another one: channels, as 1 << DP_CHANNEL_ACTIVATION and so on. */
struct dp_nccl_peer {
    int rank; /* of host */
    unsigned sends, receives;
};
enum { DP_NCCL_ALL_CHANNELS = 7 };

struct dp_nccl_config {
    struct dp_device *device; /* of CUDA, whose streams and memory are used with it; it stays open */
    /* Each channel of each direction is a pair of NCCL communicators, which takes threads, 33 MB of
     * shared memory and more of the device's. What this rank sends to another one, that one names as
     * what it receives. dp_pipeline_nccl_peers: those of a schedule. NULL: all channels with all
     * ranks. */
    const struct dp_nccl_peer *peers;
    int peer_count;
    uint32_t reserved;
};

/* Collective over host, which stays open and is closed after it; until then it may be used beside
 * it, by the same thread. Errors are the same on every rank, or abort host: DP_ENOENT (no NCCL on a
 * rank, or one that lacks a function), DP_EUNSUPPORTED (too old), DP_EMISMATCH (other versions, or
 * a peer that does not name this rank), DP_EINVAL, DP_ECOMM, DP_ETIMEDOUT, DP_ENOMEM. */
DP_SIZED(dp_comm_nccl_open, (host, config, out, sizeof(struct dp_nccl_config)),
         struct dp_comm *host, const struct dp_nccl_config *config, struct dp_comm **out);

/* The version of the NCCL that dp_comm_nccl_open would use, as 22809 for 2.28.9; and its file
 * (NULL: not wanted), text that stays. DP_ENOENT with every file tried and why. */
DP_PUBLIC int dp_nccl_version(int *version, const char **file);

#ifdef __cplusplus
}
#endif
#endif
