/* SPDX-License-Identifier: Apache-2.0 */
#include "train/params.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Initial weights are drawn as if in a step that no training reaches. */
static const uint64_t init_step = UINT32_MAX;

static float deviation_of(const struct gpt_config *c)
{
    return 1 / sqrtf((float)c->width);
}

static int embedding_tensors(const struct gpt_config *c, struct tensor *out)
{
    const float deviation = deviation_of(c);
    const struct tensor list[EMBEDDING_TENSORS] = {
        [TABLE] = {"token embedding", 0, GPT_BYTES, c->width, 0, deviation, 0, c->tied},
        [POSITIONS] = {"position embedding", 0, c->context, c->width, 0, deviation, 0, false},
    };
    memcpy(out, list, sizeof(list));
    return EMBEDDING_TENSORS;
}

/* What is added to the residual stream starts smaller, so that its variance does not grow with the
 * number of blocks (GPT-2). */
static int block_tensors(const struct gpt_config *c, int group, struct tensor *out)
{
    const int w = c->width, inner = MLP_FACTOR * w;
    const float deviation = deviation_of(c), residual = deviation / sqrtf(2 * (float)c->layers);
    const struct tensor list[BLOCK_TENSORS] = {
        [NORM1_GAIN] = {"norm 1 gain", group, 1, w, 1, 0, 0, false},
        [NORM1_BIAS] = {"norm 1 bias", group, 1, w, 0, 0, 0, false},
        [QKV] = {"qkv", group, w, 3 * w, 0, deviation, 0, false},
        [QKV_BIAS] = {"qkv bias", group, 1, 3 * w, 0, 0, 0, false},
        [PROJ] = {"proj", group, w, w, 0, residual, 0, false},
        [PROJ_BIAS] = {"proj bias", group, 1, w, 0, 0, 0, false},
        [NORM2_GAIN] = {"norm 2 gain", group, 1, w, 1, 0, 0, false},
        [NORM2_BIAS] = {"norm 2 bias", group, 1, w, 0, 0, 0, false},
        [UP] = {"up", group, w, inner, 0, deviation, 0, false},
        [UP_BIAS] = {"up bias", group, 1, inner, 0, 0, 0, false},
        [DOWN] = {"down", group, inner, w, 0, residual, 0, false},
        [DOWN_BIAS] = {"down bias", group, 1, w, 0, 0, 0, false},
    };
    memcpy(out, list, sizeof(list));
    return BLOCK_TENSORS;
}

static int head_tensors(const struct gpt_config *c, struct tensor *out)
{
    const int group = c->layers + 1;
    const float deviation = deviation_of(c);
    const struct tensor list[HEAD_TENSORS] = {
        [FINAL_GAIN] = {"final norm gain", group, 1, c->width, 1, 0, 0, false},
        [FINAL_BIAS] = {"final norm bias", group, 1, c->width, 0, 0, 0, false},
        [HEAD] = {"head", group, c->tied ? GPT_BYTES : c->width, c->tied ? c->width : GPT_BYTES, 0,
                  deviation, 0, c->tied},
        [HEAD_BIAS] = {"head bias", group, 1, GPT_BYTES, 0, 0, 0, false},
    };
    memcpy(out, list, sizeof(list));
    return HEAD_TENSORS;
}

int params_of_group(const struct gpt_config *c, int group, struct tensor *out)
{
    if (group == 0)
        return embedding_tensors(c, out);
    return group <= c->layers ? block_tensors(c, group, out) : head_tensors(c, out);
}

/* Count the tensors; with p->tensors set also list them there. */
static void walk(struct params *p, const struct gpt_config *c, int first, int end)
{
    p->tensors_len = p->count = 0;
    for (int group = first; group < end; group++) {
        struct tensor list[MAX_TENSORS];
        int n = params_of_group(c, group, list);
        for (int i = 0; i < n; i++) {
            list[i].offset = p->count;
            p->count += tensor_count(&list[i]);
            if (p->tensors)
                p->tensors[p->tensors_len] = list[i];
            p->tensors_len++;
        }
    }
}

size_t params_count(const struct gpt_config *config, int first, int end)
{
    struct params p = {0};

    walk(&p, config, first, end);
    return p.count;
}

size_t params_count_model(const struct gpt_config *config)
{
    const size_t copy = config->tied ? (size_t)GPT_BYTES * (size_t)config->width : 0;

    return params_count(config, 0, config->layers + 2) - copy;
}

int params_init(struct params *p, const struct gpt_config *config, int first, int end)
{
    *p = (struct params){0};
    walk(p, config, first, end);
    p->tensors = calloc(p->tensors_len, sizeof(*p->tensors));
    if (!p->tensors)
        return DP_ENOMEM;
    walk(p, config, first, end);
    return 0;
}

void params_fini(struct params *p)
{
    free(p->tensors);
}

void params_draw_tensor(const struct tensor *t, int index, uint64_t seed, real *w)
{
    const int where = tensor_is_copy(t) ? TABLE : t->group * MAX_TENSORS + index;
    const struct dp_random_key key = dp_random_key(seed, init_step, (uint32_t)where, 0);
    const size_t count = tensor_count(t);
    float normal[256];

    for (size_t at = 0; at < count; at += 256) {
        size_t n = count - at < 256 ? count - at : 256;
        dp_random_normal(key, at, normal, n);
        for (size_t i = 0; i < n; i++)
            w[at + i] = t->mean + t->deviation * normal[i];
    }
}

void params_draw(const struct params *p, uint64_t seed, real *w)
{
    int index = 0; /* in the group */

    for (size_t i = 0; i < p->tensors_len; i++) {
        const struct tensor *t = p->tensors + i;
        index = i > 0 && t[-1].group == t->group ? index + 1 : 0;
        params_draw_tensor(t, index, seed, w + t->offset);
    }
}

void params_group(const struct params *p, int group, real *base, real *out[])
{
    const struct tensor *t = p->tensors, *end = t + p->tensors_len;

    while (t->group != group)
        t++;
    for (; t < end && t->group == group; t++)
        *out++ = base + t->offset;
}
