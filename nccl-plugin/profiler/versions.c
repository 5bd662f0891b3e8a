/* SPDX-License-Identifier: Apache-2.0
 *
 * versions.c - what NCCL looks for: ncclProfiler_v1 to _v7. init always succeeds and stores a
 * context, as no release of NCCL handles an error there; without memory the context is stale, and
 * events are ignored.
 */
#include "nccl-plugin/nccl_log.h"
#include "nccl-plugin/profiler/events.h"
#include "nccl-plugin/profiler/profiler.h"

#define EXPORT __attribute__((visibility("default")))

static void *const no_comm = (void *)1; /* the use of a slot is odd, so this is of none */

static ncclResult_t open_comm(void **context, int version, int *mask,
                              const struct dpn_profiled *comm)
{
    if (dpn_profiler_open(comm, context))
        *context = no_comm;
    *mask = dpn_profiler_mask(version);
    return ncclSuccess;
}

static ncclResult_t stop_event(void *handle)
{
    dpn_network_stop(handle);
    return ncclSuccess;
}

static ncclResult_t record_state(void *handle, int state, void *args)
{
    dpn_profiler_state(handle, state, args);
    return ncclSuccess;
}

static ncclResult_t finalize(void *context)
{
    dpn_profiler_close(context);
    return ncclSuccess;
}

/* The members of the table are pointers to functions of 48 bytes in all versions; init differs. */
#define TABLE(version, init_arguments, ...)                                                        \
    static ncclResult_t init_v##version init_arguments                                             \
    {                                                                                              \
        return open_comm(context, version, mask, &(struct dpn_profiled){__VA_ARGS__});             \
    }                                                                                              \
    static ncclResult_t start_v##version(void *context, void **handle, void *descriptor)           \
    {                                                                                              \
        dpn_profiler_event(version, context, handle, descriptor);                                  \
        return ncclSuccess;                                                                        \
    }                                                                                              \
    struct ncclProfiler_v##version {                                                               \
        const char *name;                                                                          \
        ncclResult_t(*init) init_arguments;                                                        \
        ncclResult_t (*startEvent)(void *, void **, void *);                                       \
        ncclResult_t (*stopEvent)(void *);                                                         \
        ncclResult_t (*recordEventState)(void *, int, void *);                                     \
        ncclResult_t (*finalize)(void *);                                                          \
    };                                                                                             \
    extern const struct ncclProfiler_v##version ncclProfiler_v##version;                           \
    EXPORT const struct ncclProfiler_v##version ncclProfiler_v##version = {                        \
        "dualpipe", init_v##version, start_v##version, stop_event, record_state, finalize};        \
    _Static_assert(sizeof(struct ncclProfiler_v##version) == 48, "as in NCCL")

TABLE(1, (void **context, int *mask), .ranks = 0);
TABLE(2, (void **context, int *mask), .ranks = 0);
TABLE(3, (void **context, int *mask), .ranks = 0);

TABLE(4,
      (void **context, int *mask, const char *comm_name, uint64_t comm_hash, int nodes, int ranks,
       int rank, ncclDebugLogger_t log),
      .hash = (dpn_log_to(log), comm_hash), .name = comm_name, .rank = rank, .ranks = ranks,
      .nodes = nodes);
TABLE(5,
      (void **context, uint64_t comm_id, int *mask, const char *comm_name, int nodes, int ranks,
       int rank, ncclDebugLogger_t log),
      .hash = (dpn_log_to(log), comm_id), .name = comm_name, .rank = rank, .ranks = ranks,
      .nodes = nodes);
TABLE(6,
      (void **context, uint64_t comm_id, int *mask, const char *comm_name, int nodes, int ranks,
       int rank, ncclDebugLogger_t log),
      .hash = (dpn_log_to(log), comm_id), .name = comm_name, .rank = rank, .ranks = ranks,
      .nodes = nodes);
TABLE(7,
      (void **context, uint64_t comm_id, int *mask, const char *comm_name, int nodes, int ranks,
       int rank, ncclDebugLogger_t log),
      .hash = (dpn_log_to(log), comm_id), .name = comm_name, .rank = rank, .ranks = ranks,
      .nodes = nodes);
