/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_device.h"

#include "base/fail.h"

#include <stdlib.h>

struct cuda_graph {
    struct dp_device_graph base;
    CUgraphExec exec;
};

static bool has_graphs(const struct dp_cuda_driver *cu)
{
    return cu->cuStreamBeginCapture && cu->cuStreamEndCapture && cu->cuGraphInstantiateWithFlags &&
           cu->cuGraphLaunch && cu->cuGraphExecDestroy && cu->cuGraphDestroy;
}

/* Of this thread alone: others may allocate memory meanwhile, NCCL's among them. */
int dp_cuda_capture_begin(struct dp_device_stream *stream)
{
    struct cuda *cuda = dp_cuda_of(stream->dev);
    int err;

    if (!has_graphs(&cuda->cu))
        return dp_fail_quietly(DP_EUNSUPPORTED, "cuda:%d: the driver has no functions for graphs",
                               cuda->cu.ordinal);
    err = dp_cuda_enter(cuda);
    if (err)
        return err;
    CUresult result = cuda->cu.cuStreamBeginCapture(dp_cuda_stream_of(stream),
                                                    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    return dp_cuda_check(&cuda->cu, dp_cuda_leave(cuda, result), "capturing a stream");
}

static CUresult instantiate(const struct dp_cuda_driver *cu, CUstream stream, CUgraphExec *out)
{
    CUgraph graph = NULL;
    CUresult result = cu->cuStreamEndCapture(stream, &graph);

    if (result == CUDA_SUCCESS)
        result = cu->cuGraphInstantiateWithFlags(out, graph, 0);
    if (graph)
        cu->cuGraphDestroy(graph);
    return result;
}

int dp_cuda_capture_end(struct dp_device_stream *stream, struct dp_device_graph **out)
{
    struct cuda *cuda = dp_cuda_of(stream->dev);
    struct cuda_graph *graph = calloc(1, sizeof(*graph));
    CUgraphExec exec = NULL;
    int err = dp_cuda_enter(cuda);

    if (err) {
        free(graph);
        return err;
    }
    CUresult result = instantiate(&cuda->cu, dp_cuda_stream_of(stream), &exec);
    if (!graph && exec)
        cuda->cu.cuGraphExecDestroy(exec);
    err = dp_cuda_check(&cuda->cu, dp_cuda_leave(cuda, result), "making a graph");
    if (!err && !graph)
        err = dp_fail(DP_ENOMEM, "cuda: no memory for a graph");
    if (err) {
        free(graph);
        return err;
    }
    *graph = (struct cuda_graph){{stream->dev}, exec};
    *out = &graph->base;
    return 0;
}

int dp_cuda_graph_launch(struct dp_device_graph *graph, struct dp_device_stream *stream)
{
    struct cuda *cuda = dp_cuda_of(graph->dev);
    int err = dp_cuda_enter(cuda);

    if (err)
        return err;
    CUresult result =
        cuda->cu.cuGraphLaunch(((struct cuda_graph *)graph)->exec, dp_cuda_stream_of(stream));
    return dp_cuda_check(&cuda->cu, dp_cuda_leave(cuda, result), "launching a graph");
}

void dp_cuda_graph_free(struct dp_device_graph *graph)
{
    struct cuda *cuda = dp_cuda_of(graph->dev);

    if (!dp_cuda_enter(cuda)) {
        CUresult result = cuda->cu.cuGraphExecDestroy(((struct cuda_graph *)graph)->exec);
        dp_cuda_check(&cuda->cu, dp_cuda_leave(cuda, result), "freeing a graph");
    }
    free(graph);
}
