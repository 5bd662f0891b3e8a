/* SPDX-License-Identifier: Apache-2.0
 *
 * sim_graph.c - graphs: what a stream was given while it was captured, to be given to streams again. An
 * event in it is an error, as a graph of several streams is not simulated.
 */
#include "simcuda/sim.h"

#include <stdlib.h>
#include <string.h>

struct step {
    void (*run)(void *arg);
    struct step *next;
    size_t bytes;
    _Alignas(64) char arg[];
};

struct sim_graph {
    struct step *first, **last;
};

static struct sim_graph *new_graph(void)
{
    struct sim_graph *graph = calloc(1, sizeof(*graph));

    if (!graph)
        sim_die("no memory for a graph");
    graph->last = &graph->first;
    return graph;
}

static void free_graph(struct sim_graph *graph)
{
    struct step *next;

    for (struct step *s = graph ? graph->first : NULL; s; s = next) {
        next = s->next;
        free(s);
    }
    free(graph);
}

void sim_graph_add(struct sim_graph *graph, void (*run)(void *arg), const void *arg, size_t bytes)
{
    struct step *step = aligned_alloc(64, (sizeof(*step) + bytes + 63) & ~(size_t)63);

    if (!step)
        sim_die("no memory for a graph's work");
    step->run = run;
    step->next = NULL;
    step->bytes = bytes;
    memcpy(step->arg, arg, bytes);
    *graph->last = step;
    graph->last = &step->next;
}

static int begin(struct sim_stream *stream)
{
    free_graph(sim_stream_capture(stream, new_graph()));
    return 0;
}

SIM_EXPORT int cudaStreamBeginCapture(struct sim_stream *stream, int mode)
{
    (void)mode;
    return begin(stream);
}

/* Nothing that calls this has the graph run. */
SIM_EXPORT int cudaStreamEndCapture(struct sim_stream *stream, void **graph)
{
    free_graph(sim_stream_capture(stream, NULL));
    *graph = NULL;
    return 0;
}

SIM_EXPORT int cuStreamBeginCapture_v2(struct sim_stream *stream, int mode)
{
    (void)mode;
    SIM_BEGIN();
    return begin(stream);
}

SIM_EXPORT int cuStreamEndCapture(struct sim_stream *stream, struct sim_graph **out)
{
    struct sim_graph *graph = sim_stream_capture(stream, NULL);

    *out = NULL;
    const int fault = sim_begin(__func__);
    if (fault) {
        free_graph(graph);
        return fault;
    }
    *out = graph;
    return graph ? 0 : SIM_INVALID_VALUE;
}

/* The graph's work becomes the executable one's. */
SIM_EXPORT int cuGraphInstantiateWithFlags(struct sim_graph **out, struct sim_graph *graph,
                                           unsigned long long flags)
{
    struct sim_graph *exec = new_graph();

    (void)flags;
    for (const struct step *s = graph->first; s; s = s->next)
        sim_graph_add(exec, s->run, s->arg, s->bytes);
    *out = exec;
    return 0;
}

SIM_EXPORT int cuGraphLaunch(struct sim_graph *exec, struct sim_stream *stream)
{
    SIM_BEGIN();
    sim_queued();
    for (const struct step *s = exec->first; s; s = s->next)
        sim_stream_give(stream, s->run, s->arg, s->bytes);
    return 0;
}

SIM_EXPORT int cuGraphDestroy(struct sim_graph *graph)
{
    free_graph(graph);
    return 0;
}

SIM_EXPORT int cuGraphExecDestroy(struct sim_graph *exec)
{
    free_graph(exec);
    return 0;
}
