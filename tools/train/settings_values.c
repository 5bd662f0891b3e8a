/* SPDX-License-Identifier: Apache-2.0
 *
 * settings_values.c - values of options that have a form of their own, and what --device cuda goes with.
 */
#include "command.h"
#include "files.h"
#include "train/cuda/cuda_rank.h"
#include "train/settings.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- stages ---------------------------------------------------------------------------------- */

/* One number, and where it ends. */
static bool parse_stage(const char **at, int *out)
{
    char *end;

    if (**at < '0' || **at > '9')
        return false;
    errno = 0;
    const long n = strtol(*at, &end, 10);
    if (errno || n >= STAGE_SET_MAX)
        return false;
    *at = end;
    *out = (int)n;
    return true;
}

static bool parse_range(const char **at, struct stage_set *set)
{
    int first, last;

    if (!parse_stage(at, &first))
        return false;
    last = first;
    if (**at == '-') {
        ++*at;
        if (!parse_stage(at, &last) || last < first)
            return false;
    }
    for (int s = first; s <= last; s++)
        set->has[s] = true;
    if (last > set->last)
        set->last = last;
    return true;
}

bool stage_set_parse(const char *text, void *member, char *why, size_t why_len)
{
    struct stage_set *set = member;
    const char *at = text;
    bool good;

    memset(set, 0, sizeof(*set));
    set->any = true;
    do
        good = parse_range(&at, set);
    while (good && *at == ',' && *++at);
    if (good && !*at && at[-1] != ',')
        return true;
    snprintf(why, why_len, "stages from 0 to %d, such as 0,2-3", STAGE_SET_MAX - 1);
    return false;
}

/* ---- recomputation -------------------------------------------------------------------------------
 */

struct wanted {
    const struct stage_set *stages;
    int32_t microbatches; /* of a stream; the later ones are kept */
};

static bool is_wanted(void *user, const struct dp_slot *slot, int32_t mb)
{
    const struct wanted *w = user;
    return mb < w->microbatches && (!w->stages->any || w->stages->has[slot->stage]);
}

int recompute_add(struct dp_schedule *s, enum dp_recompute mode, const struct stage_set *stages)
{
    struct wanted w = {stages, s->mb_per_stream};

    if (mode == DP_RECOMPUTE_NEVER)
        return 0;
    w.microbatches -= mode == DP_RECOMPUTE_EXCEPT_LAST;
    return dp_schedule_add_recomputes(s, is_wanted, &w);
}

/* ---- --offload and --buffers ----------------------------------------------------------------- */

static const char expected[] =
    "params, optimizer or optimizer=FOLDER, and activations, in a list with commas";

/* The member that a name of `len` letters is for; NULL: none. */
static bool *part_of(struct offload_parts *parts, const char *name, size_t len)
{
    const struct {
        const char *name;
        bool *member;
    } known[] = {{"params", &parts->params},
                 {"optimizer", &parts->optimizer},
                 {"activations", &parts->activations}};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strlen(known[i].name) == len && !memcmp(known[i].name, name, len))
            return known[i].member;
    return NULL;
}

/* What follows a name: nothing, or =FOLDER behind optimizer. */
static bool parse_folder(struct offload_parts *parts, const bool *part, const char *at, size_t len)
{
    if (!len)
        return true;
    if (part != &parts->optimizer || len < 2 || len > sizeof(parts->folder))
        return false;
    memcpy(parts->folder, at + 1, len - 1);
    return true;
}

bool offload_parts_parse(const char *text, void *member, char *why, size_t why_len)
{
    struct offload_parts *parts = member;

    if (parts->text) {
        snprintf(why, why_len, "it once; it was %s before", parts->text);
        return false;
    }
    parts->text = text;
    for (;;) {
        size_t len = strcspn(text, ","), name = strcspn(text, "=,");
        bool *part = part_of(parts, text, name);
        if (!part || *part || !parse_folder(parts, part, text + name, len - name)) {
            snprintf(why, why_len, "%s", expected);
            return false;
        }
        *part = true;
        if (!text[len])
            break;
        text += len + 1;
    }
    return true;
}

bool offload_buffers_parse(const char *text, void *member, char *why, size_t why_len)
{
    enum { MOST = 10000 };
    const bool any = !strcmp(text, "auto");
    char *end = NULL;
    const long count = any ? BUFFERS_AUTO : strtol(text, &end, 10);

    if (!any && (end == text || *end || count < 2 || count > MOST)) {
        snprintf(why, why_len, "auto, or a number from 2 to %d", MOST);
        return false;
    }
    *(int32_t *)member = (int32_t)count;
    return true;
}

/* ---- --device -------------------------------------------------------------------------------- */

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
    else if (s->offload.text && (!s->offload.params || s->how.offload.kept_share > 0))
        command_misused("--offload with --device %s: expected params among them, and no --device-share",
                        s->device);
    else if (settings_by_nccl(s) && strcmp(s->execution, "list"))
        command_misused("--transport nccl: expected --execution list; its messages have no tags");
    else if (s->width / s->heads > ATTENTION_DEPTH)
        command_misused("--width %d --heads %d: a head is %d wide, expected at most %d on %s",
                        (int)s->width, (int)s->heads, (int)(s->width / s->heads), ATTENTION_DEPTH,
                        s->device);
    else {
        s->any_order = !s->how.fixed_order;
        return settings_take_image(s->device, s->kernels, &s->image, &s->kernels_read);
    }
    return false;
}
