/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_checkpoint.c - any bytes opened as a checkpoint. What can be opened lies within the file: every
 * tensor can be read whole, unless its checksum says that it was damaged, and in slices.
 */
#include "config.h" /* GNU extensions: memfd_create */
#include "fuzz.h"

#include <dualpipe/checkpoint.h>

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void read_whole(const struct dp_checkpoint *c, const struct dp_checkpoint_tensor *t)
{
    char *data = malloc((size_t)t->bytes + 1);
    const DLTensor out = {.data = data, .device = {kDLCPU, 0}, .ndim = t->ndim, .dtype = t->dtype,
                          .shape = (int64_t *)(uintptr_t)t->shape};

    must(data);
    must(!dp_checkpoint_read(c, t->name, &out) || t->has_checksum);
    free(data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dp_checkpoint *c;
    char path[64];
    int fd = memfd_create("fuzz", MFD_CLOEXEC);

    must(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (dp_checkpoint_open(path, &c)) {
        must(*dp_last_error());
    } else {
        for (int32_t i = 0; i < dp_checkpoint_count(c); i++)
            read_whole(c, dp_checkpoint_at(c, i));
        dp_checkpoint_close(c);
    }
    close(fd);
    return 0;
}
