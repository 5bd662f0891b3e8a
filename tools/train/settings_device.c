/* SPDX-License-Identifier: Apache-2.0
 *
 * settings_device.c - what --device cuda goes with.
 */
#include "command.h"
#include "files.h"
#include "train/cuda/cuda_rank.h"
#include "train/settings.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_IMAGE_BYTES = 256 << 20 };

bool settings_on_cuda(const struct settings *s)
{
    return strcmp(s->device, "cpu");
}

bool settings_by_nccl(const struct settings *s)
{
    return s->transport && !strcmp(s->transport, "nccl");
}

const char *settings_transport(const struct settings *s)
{
    return settings_by_nccl(s) ? NULL : s->transport;
}

bool settings_is_cuda(const char *device)
{
    const size_t digits = strncmp(device, "cuda:", 5) ? 0 : strspn(device + 5, "0123456789");

    return !strcmp(device, "cuda") || (digits > 0 && digits < 5 && !device[5 + digits]);
}

bool settings_take_image(const char *device, const char *file, const void **image, void **read)
{
    size_t len;

    if (file) {
        *image = *read = input_read(file, MOST_IMAGE_BYTES, &len);
        return *image; /* or it has said why not */
    }
    *image = cuda_image;
    if (*image)
        return true;
    command_misused("--device %s: this program was built without kernels, because configure found "
                    "no nvcc; install one (CUDA Toolkit 12 or 13), configure and make again, or "
                    "give --kernels FILE", device);
    return false;
}

bool settings_take_device(struct settings *s)
{
    if (!settings_on_cuda(s)) {
        if (strcmp(s->dtype, "f32") && (strcmp(s->schedule_name, "none") || s->how.replicas > 1 ||
                                        s->tied))
            command_misused("--dtype %s: expected --device cuda, or --schedule none with one replica, "
                            "without --tie-embeddings", s->dtype);
        else if (s->kernels)
            command_misused("--kernels: expected --device cuda");
        else if (s->no_graphs)
            command_misused("--no-graphs: expected --device cuda");
        else if (settings_by_nccl(s))
            command_misused("--transport nccl: expected --device cuda; it sends from GPU to GPU");
        else
            return true;
        return false;
    }
    if (!settings_is_cuda(s->device))
        command_misused("--device %s: expected cpu, cuda or cuda:N", s->device);
    else if (s->offload.any && (!s->offload.params || s->device_share > 0))
        command_misused("--offload with --device %s: expected params among them, and no --device-share",
                        s->device);
    else if (settings_by_nccl(s) && strcmp(s->execution, "list"))
        command_misused("--transport nccl: expected --execution list; its messages have no tags");
    else if (s->width / s->heads > ATTENTION_DEPTH)
        command_misused("--width %d --heads %d: a head is %d wide, expected at most %d on %s",
                        (int)s->width, (int)s->heads, (int)(s->width / s->heads), ATTENTION_DEPTH,
                        s->device);
    else
        return s->any_order = !s->how.fixed_order,
               settings_take_image(s->device, s->kernels, &s->image, &s->kernels_read);
    return false;
}
