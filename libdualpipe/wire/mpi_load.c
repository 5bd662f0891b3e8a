/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/mpi.h"

#include "base/fail.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* MPI loads parts of its own later, which look for its symbols: hence global. And what has started
 * MPI must stay until the process ends: hence never closed. */
int dp_mpi_load(const char *dir, const struct dp_mpi **out)
{
    char file[4096];

    snprintf(file, sizeof(file), "%s/mpi.so", dir ? dir : DP_MODULE_DIR);
    void *handle = dlopen(file, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
    if (!handle)
        return dp_fail(DP_ENOENT,
                       "transport mpi: %s (expected a libdualpipe configured where MPI is, or "
                       "DUALPIPE_COMM_MODULE_DIR to say where mpi.so is)",
                       dlerror());
    const struct dp_mpi *mpi = dlsym(handle, "dp_mpi_module");
    if (!mpi || strcmp(mpi->version, dp_version()) || mpi->wire_bytes != sizeof(struct dp_wire)) {
        int err = dp_fail(DP_ENOENT, "transport mpi: %s is of version %s, expected %s", file,
                          mpi ? mpi->version : "unknown", dp_version());
        dlclose(handle);
        return err;
    }
    *out = mpi;
    return 0;
}
