/* SPDX-License-Identifier: Apache-2.0
 *
 * sim.h - the simulated CUDA inside: what its files ask of each other.
 *
 *      test program ---> NCCL as shipped ---> sim_memory, sim_stream, sim_event, sim_copy,
 * sim_device |                 |    ^                            | launch
 *           +-- sim_attach ---+    | proxies' head and tail     v
 *                                  +------------------------ kernel*: NCCL's kernels on the CPU
 */
#ifndef DP_TESTS_SIMCUDA_SIM_H
#define DP_TESTS_SIMCUDA_SIM_H

#include "simcuda/cuda_api.h"

#include <stdbool.h>

struct sim_graph;

/* ---- sim_say.c: sentences on standard error -------------------------------------------------- */

/* For those who look for a fault: shown when SIMCUDA_LOG is set. */
void sim_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* What this simulation cannot do and must not pass over. */
_Noreturn void sim_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A number of the environment. */
int sim_setting(const char *name, int otherwise);

/* ---- sim_memory.c ---------------------------------------------------------------------------- */

enum sim_memory_kind {
    SIM_MEMORY_NONE,
    SIM_MEMORY_DEVICE,
    SIM_MEMORY_PINNED,
    SIM_MEMORY_REGISTERED,
    SIM_MEMORY_MANAGED
};

struct sim_memory {
    char *start;
    size_t bytes;
    enum sim_memory_kind kind; /* SIM_MEMORY_NONE: ordinary memory that CUDA does not know */
    int fd;                    /* of the memory file behind it; -1: none */
};
struct sim_memory sim_memory_find(const void *ptr);
/* The context in which it was registered has ended. */
void sim_memory_forget_registered(void);

/* ---- sim_dmabuf.c ---------------------------------------------------------------------------- */

/* The memory goes away, and the files that were made for parts of it. */
void sim_dmabuf_forget(const char *start, size_t bytes);

/* ---- sim_stream.c: each stream a thread that does one thing after the other ------------------ */

/* Do run(arg) after what was given before. arg is a copy of bytes bytes, gone afterwards. Like all
 * that sim_blas.c calls it is seen outside of libsimcuda. */
SIM_EXPORT void sim_stream_give(struct sim_stream *stream, void (*run)(void *arg), const void *arg,
                     size_t bytes);
void sim_stream_drain(struct sim_stream *stream);
void sim_stream_drain_all(void);
bool sim_stream_drain_all_within(int seconds);

/* What a stream is given goes to the graph from now on, NULL: is done again; the graph before. */
struct sim_graph *sim_stream_capture(struct sim_stream *stream, struct sim_graph *graph);
bool sim_stream_captures(struct sim_stream *stream);

/* ---- sim_module.c ---------------------------------------------------------------------------- */

/* Wait until the device is idle, as a driver may before it loads a module, or a kernel that is launched
 * for the first time. As sim_stream_give. */
SIM_EXPORT void sim_module_load(const char *what);

/* ---- sim_graph.c ----------------------------------------------------------------------------- */

/* As sim_stream_give. */
void sim_graph_add(struct sim_graph *graph, void (*run)(void *arg), const void *arg, size_t bytes);

/* ---- sim_faults.c ---------------------------------------------------------------------------- */

/* In functions of the driver: the host asks or waits for work that was queued, or allocates or frees
 * memory, which waits on a GPU; and it queues work. */
void sim_waited(void);
SIM_EXPORT void sim_queued(void);

/* At the start of a function that tests let fail: 0, or what it is to return. */
SIM_EXPORT int sim_begin(const char *name);
#define SIM_BEGIN()                                                                                \
    do {                                                                                           \
        const int fault = sim_begin(__func__);                                                     \
        if (fault)                                                                                 \
            return fault;                                                                          \
    } while (0)

/* ---- sim_attach.c ---------------------------------------------------------------------------- */

/* A symbol of the attached libnccl, local ones included; NULL: it has none of that name. */
const void *sim_nccl_symbol(const char *name);
/* The simulation's own function of CUDA of that name; NULL: it has none. */
void *sim_own_function(const char *name);

/* ---- kernel.c -------------------------------------------------------------------------------- */

/* Carry out a launch of NCCL's kernel with that many blocks, and return when it is done. */
void kernel_run(unsigned blocks, const void *args);

#endif
