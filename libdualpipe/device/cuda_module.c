/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_module.h"

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

int dp_cuda_module_new(const struct dp_cuda_driver *cu, struct dp_device *dev, const void *image,
                       struct dp_device_module **out)
{
    struct cuda_module *module;

    if (!cu->cuModuleLoadData || !cu->cuModuleGetFunction || !cu->cuModuleUnload ||
        !cu->cuFuncSetAttribute || !cu->cuLaunchKernel)
        return dp_fail(DP_EUNSUPPORTED, "cuda: the driver has no functions to load kernels with");
    module = calloc(1, sizeof(*module));
    if (!module)
        return dp_fail(DP_ENOMEM, "cuda: no memory for a module");
    module->base.dev = dev;
    int err = dp_cuda_check(cu, cu->cuModuleLoadData(&module->module, image), "loading kernels");
    if (err)
        free(module);
    else
        *out = &module->base;
    return err;
}

void dp_cuda_module_free(const struct dp_cuda_driver *cu, struct dp_device_module *module)
{
    dp_cuda_check(cu, cu->cuModuleUnload(native(module)), "unloading kernels");
    free(module);
}

int dp_cuda_kernel_find(const struct dp_cuda_driver *cu, struct dp_device_module *module,
                        const char *name, void **out)
{
    CUfunction function;
    int err = dp_cuda_check(cu, cu->cuModuleGetFunction(&function, native(module), name),
                            "looking for the kernel %s", name);

    if (!err)
        *out = function;
    return err;
}

int dp_cuda_launch(const struct dp_cuda_driver *cu, const struct dp_device_launch *l)
{
    size_t bytes = l->args_bytes;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)(uintptr_t)l->args,
                     CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
    CUresult result = CUDA_SUCCESS;

    if (l->memory_bytes > DEFAULT_MEMORY_BYTES)
        result = cu->cuFuncSetAttribute(
            l->kernel, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)l->memory_bytes);
    if (result == CUDA_SUCCESS)
        result = cu->cuLaunchKernel(l->kernel, l->blocks[0], l->blocks[1], l->blocks[2], l->threads,
                                    1, 1, (unsigned)l->memory_bytes, l->stream, NULL, extra);
    return dp_cuda_check(cu, result, "launching a kernel of %u x %u x %u blocks of %u threads",
                         l->blocks[0], l->blocks[1], l->blocks[2], l->threads);
}
