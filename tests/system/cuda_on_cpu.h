/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_on_cpu.h - for a .cu whose kernels are one thread an element: a C++ compiler's stand-ins for what
 * nvcc brings. A launch is a call in the stream's order, on a CUDA whose memory the CPU reaches.
 */
#ifndef DP_TESTS_CUDA_ON_CPU_H
#define DP_TESTS_CUDA_ON_CPU_H

#include <dualpipe/device.h>

#include <functional>
#include <type_traits>

#define __global__
#define __device__ static inline
#define LAUNCH(threads, stream, kernel, ...) launched = launch_on_cpu(threads, stream, kernel, __VA_ARGS__)
#define LAUNCHED() launched

struct cpu_place {
    unsigned x;
};
static thread_local cpu_place blockIdx, blockDim = {1}, threadIdx;
static int launched;

struct cpu_launch {
    int threads;
    std::function<void()> kernel;
};

static void run_on_cpu(void *user)
{
    cpu_launch *l = (cpu_launch *)user;

    for (int i = 0; i < l->threads; i++) {
        blockIdx.x = (unsigned)i;
        l->kernel();
    }
    delete l;
}

/* The device is what any one is that was opened: streams are the driver's. */
template <class... T>
static int launch_on_cpu(int threads, void *native, void (*kernel)(T...), std::type_identity_t<T>... args)
{
    static dp_device *device;
    dp_device_stream *stream;
    int err = device ? 0 : dp_device_cuda_open(0, &device);

    if (!err)
        err = dp_device_stream_wrap(device, native, &stream);
    if (!err)
        err = dp_device_call(stream, run_on_cpu, new cpu_launch{threads, [=] { kernel(args...); }});
    if (!err)
        dp_device_stream_free(stream);
    return err;
}

#endif
