/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_device.h"

#include "base/fail.h"

#include <stdlib.h>

/* What a block has without asking, on every device. */
enum { DEFAULT_MEMORY_BYTES = 48 << 10 };

struct cuda_module {
    struct dp_device_module base;
    CUmodule module;
};

static CUmodule native(const struct dp_device_module *module)
{
    return ((const struct cuda_module *)module)->module;
}

static bool has_kernels(const struct dp_cuda_driver *cu)
{
    return cu->cuModuleLoadData && cu->cuModuleGetFunction && cu->cuModuleUnload &&
           cu->cuFuncSetAttribute && cu->cuLaunchKernel;
}

int dp_cuda_module_new(struct dp_device *dev, const void *image, struct dp_device_module **out)
{
    struct cuda *cuda = dp_cuda_of(dev);
    struct cuda_module *module;

    if (!has_kernels(&cuda->cu))
        return dp_fail(DP_EUNSUPPORTED, "cuda: the driver has no functions to load kernels with");
    module = calloc(1, sizeof(*module));
    if (!module)
        return dp_fail(DP_ENOMEM, "cuda: no memory for a module");
    module->base.dev = dev;
    int err = dp_cuda_enter(cuda);
    if (!err)
        err = dp_cuda_check(&cuda->cu,
                            dp_cuda_leave(cuda, cuda->cu.cuModuleLoadData(&module->module, image)),
                            "loading kernels");
    if (err)
        free(module);
    else
        *out = &module->base;
    return err;
}

void dp_cuda_module_free(struct dp_device_module *module)
{
    struct cuda *cuda = module ? dp_cuda_of(module->dev) : NULL;

    if (cuda && !dp_cuda_enter(cuda))
        dp_cuda_check(&cuda->cu, dp_cuda_leave(cuda, cuda->cu.cuModuleUnload(native(module))),
                      "unloading kernels");
    free(module);
}

int dp_cuda_kernel_find(struct dp_device_module *module, const char *name, void **out)
{
    struct cuda *cuda = dp_cuda_of(module->dev);
    CUfunction function;
    int err = dp_cuda_enter(cuda);

    if (err)
        return err;
    CUresult result = cuda->cu.cuModuleGetFunction(&function, native(module), name);
    err = dp_cuda_check(&cuda->cu, dp_cuda_leave(cuda, result), "looking for the kernel %s", name);
    if (!err)
        *out = function;
    return err;
}

static CUresult queue(const struct dp_cuda_driver *cu, const struct dp_device_launch *l)
{
    size_t bytes = l->args_bytes;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)(uintptr_t)l->args,
                     CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
    CUresult result = CUDA_SUCCESS;

    if (l->memory_bytes > DEFAULT_MEMORY_BYTES)
        result = cu->cuFuncSetAttribute(l->kernel, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                        (int)l->memory_bytes);
    if (result == CUDA_SUCCESS)
        result = cu->cuLaunchKernel(l->kernel, l->blocks[0], l->blocks[1], l->blocks[2], l->threads,
                                    1, 1, (unsigned)l->memory_bytes, l->stream, NULL, extra);
    return result;
}

int dp_cuda_launch(struct dp_device *dev, const struct dp_device_launch *l)
{
    struct cuda *cuda = dp_cuda_of(dev);
    int err = dp_cuda_enter(cuda);

    if (err)
        return err;
    return dp_cuda_check(&cuda->cu, dp_cuda_leave(cuda, queue(&cuda->cu, l)),
                         "launching a kernel of %u x %u x %u blocks of %u threads", l->blocks[0],
                         l->blocks[1], l->blocks[2], l->threads);
}
