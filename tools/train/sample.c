/* SPDX-License-Identifier: Apache-2.0 */
#include "train/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Random numbers are keyed by a step that no training reaches and a place that no layer has. */
static const uint64_t sample_step = UINT32_MAX;
enum { WHERE_SAMPLE = 0xFFFF };

/* The whole model, for one sequence at a time. */
struct writer {
    struct gpt_config config;
    struct gpt_layers *gpt;
    struct dp_layers *layers;
    struct dp_stage model;
    void *save;
    uint8_t *window; /* [context] the bytes that the model looks back at */
    size_t len;      /* of them that are there */
    real *logits;    /* [context][256] */
};

static void writer_fini(struct writer *w)
{
    dp_layers_free(w->layers);
    gpt_layers_free(w->gpt);
    free(w->save);
    free(w->window);
    free(w->logits);
}

static int writer_init(struct writer *w, const struct gpt_config *config)
{
    *w = (struct writer){.config = *config};
    w->config.batch = 1;
    int err = gpt_layers_new(&w->config, NULL, false, &w->gpt); /* it is the CPU that writes */
    if (!err)
        err = dp_layers_new(&(struct dp_layers_config){.model = gpt_layers_model(w->gpt),
                                                       .rows = 1,
                                                       .seed = config->seed},
                            &w->layers);
    if (!err)
        err = dp_layers_add(w->layers, 0, config->layers + 2, &w->model);
    if (!err) {
        w->save = malloc(w->model.save_bytes);
        w->window = calloc((size_t)config->context, 1);
        w->logits = calloc((size_t)config->context * GPT_BYTES, sizeof(real));
    }
    if (!err && w->save && w->window && w->logits)
        return 0;
    writer_fini(w);
    return err ? err : DP_ENOMEM;
}

/* In a checkpoint a tied one is once. */
static const char *saved_name(const struct dp_parameter *p)
{
    return p->tied ? p->tied : p->name;
}

static int look(struct writer *w)
{
    int64_t shape[] = {1, w->config.context, GPT_BYTES};
    DLTensor in = {w->window, {kDLCPU, 0}, 2, {kDLUInt, 8, 1}, shape, NULL, 0};
    DLTensor out = {w->logits, {kDLCPU, 0}, 3, {kDLFloat, 8 * sizeof(real), 1}, shape, NULL, 0};
    struct dp_stage_call call = {.save = w->save, .in = &in};

    return w->model.ops->forward(w->model.user, &call, &in, &out);
}

static uint8_t likeliest(const real *logits)
{
    int byte = 0;

    for (int b = 1; b < GPT_BYTES; b++)
        if (logits[b] > logits[byte])
            byte = b;
    return (uint8_t)byte;
}

/* The byte at which the cumulative probability passes u. */
static uint8_t draw(const real *logits, double temperature, float u)
{
    double p[GPT_BYTES], sum = 0, most = -INFINITY;
    int byte = 0;

    for (int b = 0; b < GPT_BYTES; b++)
        most = fmax(most, (double)logits[b]);
    for (int b = 0; b < GPT_BYTES; b++)
        sum += p[b] = exp(((double)logits[b] - most) / temperature);
    for (double left = (double)u * sum; byte < GPT_BYTES - 1 && left >= p[byte]; byte++)
        left -= p[byte];
    return (uint8_t)byte;
}

/* The window fills from the left; once full, it moves along. */
static void append(struct writer *w, uint8_t byte)
{
    if (w->len == (size_t)w->config.context)
        memmove(w->window, w->window + 1, --w->len);
    w->window[w->len++] = byte;
}

static int write_text(struct writer *w, const struct sample_spec *spec, uint8_t *text)
{
    struct dp_random_key key = dp_random_key(w->config.seed, sample_step, WHERE_SAMPLE, 0);
    int err = 0;

    append(w, '\n');
    for (const char *p = spec->prompt; p && *p; p++)
        append(w, (uint8_t)*p);
    for (size_t i = 0; !err && i < spec->count; i++) {
        const real *logits = w->logits + (w->len - 1) * GPT_BYTES;
        float u;
        err = look(w);
        dp_random_uniform(key, i, &u, 1);
        text[i] = spec->temperature > 0 ? draw(logits, spec->temperature, u) : likeliest(logits);
        append(w, text[i]);
    }
    return err;
}

static void take_gathered(const struct dp_parameter *p, const struct sample_spec *spec)
{
    for (int32_t i = 0; i < spec->tensor_count; i++)
        if (!strcmp(spec->tensors[i].name, saved_name(p)))
            memcpy(gpt_data(p->value), gpt_data(&spec->tensors[i].tensor),
                   (size_t)dp_parameter_elements(p) * sizeof(real));
}

static int take_weights(struct writer *w, const struct sample_spec *spec)
{
    struct dp_checkpoint *c = NULL;
    int err = spec->path ? dp_checkpoint_open(spec->path, &c) : 0;

    for (int32_t i = 0; i < w->model.parameter_count && !err; i++) {
        const struct dp_parameter *p = &w->model.parameters[i];
        if (c)
            err = dp_checkpoint_read(c, saved_name(p), p->value);
        else
            take_gathered(p, spec);
    }
    dp_checkpoint_close(c);
    return err;
}

int sample_write(const struct gpt_config *config, const struct sample_spec *spec, uint8_t *text)
{
    struct writer w;
    int err = writer_init(&w, config);

    if (err)
        return err;
    err = take_weights(&w, spec);
    if (!err)
        err = write_text(&w, spec, text);
    writer_fini(&w);
    return err;
}
