/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: RTLD_DEFAULT */

#include "simcuda/nccl_api.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool find(void *library, const char *name, void *out)
{
    void *symbol = dlsym(library, name);

    memcpy(out, &symbol, sizeof(symbol));
    if (!symbol)
        fprintf(stderr, "this NCCL has no %s\n", name);
    return symbol;
}

const struct nccl_api *nccl_api_load(const char *libnccl, const char *libnvml)
{
    static struct nccl_api api;

    /* NCCL asks for libnvidia-ml.so.1 by name and gets what is loaded already. */
    void *nvml = dlopen(libnvml, RTLD_NOW | RTLD_GLOBAL);
    void *library = nvml ? dlopen(libnccl, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return NULL;
    }
#define FIND(result, name, parameters)                                                             \
    if (!find(library, "nccl" #name, &api.name))                        \
        return NULL;
    NCCL_FUNCTIONS(FIND)
#undef FIND
    const void *inside;
    memcpy(&inside, &api.GetVersion, sizeof(inside));
    if (sim_attach(inside)) {
        fprintf(stderr, "%s has no symbols of the CUDA runtime to redirect\n", libnccl);
        return NULL;
    }
    return &api;
}
