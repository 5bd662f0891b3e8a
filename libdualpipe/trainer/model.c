/* SPDX-License-Identifier: Apache-2.0
 *
 * model.c - check a model, name its parameters, cut it into stages.
 */
#include "trainer/model.h"

#include "base/fail.h"
#include "base/sized.h"
#include "base/hash.h"
#include "base/text.h"

#include <dualpipe/batch_norm.h>
#include <dualpipe/partition.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Initial values are drawn as if in a step that no training reaches. */
static const uint64_t initial_step = UINT32_MAX;

/* ---- borders --------------------------------------------------------------------------------- */

void model_spec(const struct dp_tensor_spec *of_row, int64_t rows, struct dp_tensor_spec *out)
{
    *out = *of_row;
    for (int i = 0; i < out->ndim; i++)
        if (out->extent[i] == 1)
            out->shape[i] *= rows;
}

void model_border(const struct dp_border *of_row, int64_t rows, struct dp_border *out)
{
    *out = (struct dp_border){.count = of_row->count};
    for (int k = 0; k < of_row->count; k++)
        model_spec(&of_row->tensors[k], rows, &out->tensors[k]);
}

size_t model_spec_bytes(const struct dp_tensor_spec *spec)
{
    size_t bytes = spec->dtype.bits / 8u * (size_t)spec->dtype.lanes;

    for (int i = 0; i < spec->ndim; i++)
        bytes *= (size_t)spec->shape[i];
    return bytes;
}

static int check_spec(const struct dp_tensor_spec *t, const char *where, int k)
{
    if (t->ndim < 0 || t->ndim > DP_MAX_DIMS)
        return dp_fail(DP_EINVAL, "%s, tensor %d: %d dimensions, expected 0 to %d", where, k,
                       t->ndim, DP_MAX_DIMS);
    if (t->dtype.bits % 8 || !t->dtype.bits || !t->dtype.lanes)
        return dp_fail(DP_EINVAL, "%s, tensor %d: elements of %d bits, expected whole bytes", where,
                       k, t->dtype.bits);
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] < 1 || t->extent[i] > 1)
            return dp_fail(
                DP_EINVAL,
                "%s, tensor %d: dimension %d is %lld and follows extent %d, expected 1 or "
                "more, and extent 0 or 1",
                where, k, i, (long long)t->shape[i], t->extent[i]);
    return 0;
}

static int check_border(const struct dp_border *b, const char *where)
{
    int err = 0;

    if (!b)
        return dp_fail(DP_EINVAL, "%s: NULL, expected a border", where);
    if (b->count < 1 || b->count > DP_MAX_TENSORS)
        return dp_fail(DP_EINVAL, "%s: %d tensors, expected 1 to %d", where, b->count,
                       DP_MAX_TENSORS);
    for (int k = 0; k < b->count && !err; k++)
        err = check_spec(&b->tensors[k], where, k);
    return err;
}

/* ---- layers ---------------------------------------------------------------------------------- */

static int check_parameter(const struct dp_parameter_spec *p, int32_t layer, int32_t k)
{
    if (!p->name || !*p->name)
        return dp_fail(DP_EINVAL, "layer %d, parameter %d: no name", layer, k);
    if (strchr(p->name, '['))
        return dp_fail(DP_EINVAL, "layer %d, parameter '%s': expected a name without [", layer,
                       p->name);
    if (p->dtype.code != kDLFloat || (p->dtype.bits != 32 && p->dtype.bits != 64) ||
        p->dtype.lanes != 1)
        return dp_fail(DP_EINVAL,
                       "layer %d, parameter '%s': type code %d with %d bits, expected "
                       "float32 or float64",
                       layer, p->name, p->dtype.code, p->dtype.bits);
    if (p->ndim < 0 || p->ndim > DP_MAX_DIMS)
        return dp_fail(DP_EINVAL, "layer %d, parameter '%s': %d dimensions, expected 0 to %d",
                       layer, p->name, p->ndim, DP_MAX_DIMS);
    for (int i = 0; i < p->ndim; i++)
        if (p->shape[i] < 1)
            return dp_fail(DP_EINVAL,
                           "layer %d, parameter '%s': dimension %d is %lld, expected 1 or "
                           "more",
                           layer, p->name, i, (long long)p->shape[i]);
    if (!isfinite(p->mean) || !(p->deviation >= 0) || !isfinite(p->deviation))
        return dp_fail(DP_EINVAL,
                       "layer %d, parameter '%s': initial values of mean %g and deviation "
                       "%g, expected numbers, and a deviation of 0 or more",
                       layer, p->name, p->mean, p->deviation);
    return 0;
}

static int check_layer(const struct dp_layer *l, int32_t layer)
{
    char where[64];
    int err = 0;

    if (!l)
        return dp_fail(DP_EINVAL, "layer %d: NULL", layer);
    if (!l->ops || !l->ops->forward || !l->ops->backward)
        return dp_fail(DP_EINVAL, "layer %d: no forward or no backward", layer);
    DP_RESERVED(l, "layer");
    DP_RESERVED(l->ops, "callbacks of a layer");
    if (l->parameter_count < 0 || l->parameter_count > DP_LAYER_PARAMETERS ||
        (l->parameter_count && !l->parameters))
        return dp_fail(DP_EINVAL, "layer %d: %d parameters, expected a list of 0 to %d", layer,
                       l->parameter_count, DP_LAYER_PARAMETERS);
    if (l->norm_count < 0 || (l->norm_count && !l->norms))
        return dp_fail(DP_EINVAL, "layer %d: %d norms, expected a list of 0 or more", layer,
                       l->norm_count);
    if (l->name && strchr(l->name, '['))
        return dp_fail(DP_EINVAL, "layer %d: '%s', expected a name without [", layer, l->name);
    if (!(l->cost >= 0) || !isfinite(l->cost))
        return dp_fail(DP_EINVAL, "layer %d: cost %g, expected 0 or more", layer, l->cost);
    if (l->name && strlen(l->name) >= DP_LAYER_NAME)
        return dp_fail(DP_EINVAL, "layer %d: a name of %zu characters, expected less than %d",
                       layer, strlen(l->name), DP_LAYER_NAME);
    snprintf(where, sizeof(where), "out of layer %d", layer);
    err = check_border(l->out, where);
    for (int32_t k = 0; k < l->parameter_count && !err; k++)
        err = check_parameter(&l->parameters[k], layer, k);
    return err;
}

static int check_skip(const struct dp_model *m, int32_t i)
{
    const struct dp_layer_skip *s = &m->skips[i];
    char where[64];

    if (!s->name || !*s->name || strlen(s->name) >= DP_SKIP_NAME_LEN)
        return dp_fail(DP_EINVAL, "skip %d: expected a name of 1 to %d characters", i,
                       DP_SKIP_NAME_LEN - 1);
    if (s->from < 0 || s->to >= m->layer_count || s->from >= s->to)
        return dp_fail(DP_EINVAL, "skip '%s': from layer %d to %d, expected a later one, among %d",
                       s->name, s->from, s->to, m->layer_count);
    for (int32_t k = 0; k < i; k++)
        if (!strcmp(m->skips[k].name, s->name))
            return dp_fail(DP_EINVAL, "skip '%s': used twice", s->name);
    snprintf(where, sizeof(where), "skip '%s'", s->name);
    return check_spec(&s->tensor, where, 0);
}

static int check_model(const struct dp_model *m)
{
    int err = 0;

    if (!m->layers || m->layer_count < 1 || m->layer_count > DP_MODEL_LAYERS)
        return dp_fail(DP_EINVAL, "layers: %d, expected a list of 1 to %d", m->layer_count,
                       DP_MODEL_LAYERS);
    if (!m->loss || !m->loss->loss || !m->loss->loss_backward)
        return dp_fail(DP_EINVAL, "loss: expected its two functions");
    DP_RESERVED(m, "model");
    if (m->skip_count < 0 || (m->skip_count && !m->skips))
        return dp_fail(DP_EINVAL, "skips: %d, expected a list of 0 or more", m->skip_count);
    err = check_border(m->input, "input");
    if (!err && m->labels)
        err = check_border(m->labels, "labels");
    for (int32_t i = 0; i < m->layer_count && !err; i++)
        err = check_layer(m->layers[i], i);
    for (int32_t i = 0; i < m->skip_count && !err; i++)
        err = check_skip(m, i);
    return err;
}

/* ---- names ----------------------------------------------------------------------------------- */

/* The first use of a layer in the list. */
static int32_t first_use(const struct dp_model *m, int32_t layer)
{
    int32_t first = 0;

    while (m->layers[first] != m->layers[layer])
        first++;
    return first;
}

static int32_t uses_before(const struct dp_model *m, int32_t layer)
{
    int32_t uses = 0;

    for (int32_t i = 0; i < layer; i++)
        uses += m->layers[i] == m->layers[layer];
    return uses;
}

static void name_parameter(struct model_info *m, int32_t layer, int32_t k)
{
    const struct dp_layer *l = m->layers[layer];
    struct model_parameter *p = &m->parameters[m->first[layer] + k];
    const int32_t first = first_use(&m->model, layer), uses = uses_before(&m->model, layer);
    char prefix[DP_LAYER_NAME + 8] = "", again[32] = "";

    if (!l->name)
        snprintf(prefix, sizeof(prefix), "layer %d ", first);
    else if (*l->name)
        snprintf(prefix, sizeof(prefix), "%s ", l->name);
    if (uses)
        snprintf(again, sizeof(again), " (use %d)", uses + 1);
    dp_snprintf(p->name, sizeof(p->name), "%s%.64s%s", prefix, l->parameters[k].name, again);
    p->spec = &l->parameters[k];
    p->elements = 1;
    for (int i = 0; i < p->spec->ndim; i++)
        p->elements *= (size_t)p->spec->shape[i];
    p->bytes = p->elements * (p->spec->dtype.bits / 8u);
}

static struct model_parameter *find(const struct model_info *m, const char *name, int32_t before)
{
    for (int32_t i = 0; i < before; i++)
        if (!strcmp(m->parameters[i].name, name))
            return &m->parameters[i];
    return NULL;
}

static bool same_spec(const struct dp_parameter_spec *a, const struct dp_parameter_spec *b)
{
    return a->dtype.bits == b->dtype.bits && a->ndim == b->ndim &&
           !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof(*a->shape)) && a->flags == b->flags;
}

static int tie(struct model_info *m, int32_t i, struct model_parameter *to)
{
    struct model_parameter *p = &m->parameters[i];

    if (!to)
        return dp_fail(DP_EINVAL, "parameter '%s': tied to '%s', expected one of an earlier layer",
                       p->name, p->spec->tied);
    if (!same_spec(p->spec, to->spec))
        return dp_fail(DP_EMISMATCH,
                       "parameter '%s': of another type, shape or flags than '%s', which "
                       "it is tied to",
                       p->name, to->name);
    if (!to->tied)
        to->tied = to->name;
    p->tied = to->tied;
    return 0;
}

static int tie_parameter(struct model_info *m, int32_t layer, int32_t k)
{
    const int32_t i = m->first[layer] + k, first = first_use(&m->model, layer);
    struct model_parameter *p = &m->parameters[i];

    if (find(m, p->name, i))
        return dp_fail(DP_EINVAL,
                       "layer %d: there is a parameter '%s' already; expected another name of "
                       "the layer or the parameter",
                       layer, p->name);
    if (first < layer)
        return tie(m, i, &m->parameters[m->first[first] + k]);
    return p->spec->tied ? tie(m, i, find(m, p->spec->tied, m->first[layer])) : 0;
}

static int name_all(struct model_info *m)
{
    const int32_t layers = m->model.layer_count;
    int err = 0;

    for (int32_t l = 0; l < layers; l++)
        m->first[l + 1] = m->first[l] + m->layers[l]->parameter_count;
    m->parameters = calloc((size_t)m->first[layers] + 1, sizeof(*m->parameters));
    if (!m->parameters)
        return dp_fail(DP_ENOMEM, "no memory for the names of %d parameters", m->first[layers]);
    for (int32_t l = 0; l < layers; l++)
        for (int32_t k = 0; k < m->layers[l]->parameter_count; k++)
            name_parameter(m, l, k);
    for (int32_t l = 0; l < layers; l++)
        for (int32_t k = 0; k < m->layers[l]->parameter_count && !err; k++)
            err = tie_parameter(m, l, k);
    return err;
}

int model_take(struct model_info *m, const struct dp_model *model)
{
    int err = check_model(model);

    *m = (struct model_info){.model = *model};
    if (err)
        return err;
    const size_t layers = (size_t)model->layer_count, skips = (size_t)model->skip_count;
    m->layers = calloc(layers, sizeof(struct dp_layer *));
    m->skips = calloc(skips + 1, sizeof(*m->skips));
    m->first = calloc(layers + 1, sizeof(*m->first));
    if (m->layers && m->skips && m->first) {
        memcpy(m->layers, model->layers, layers * sizeof(struct dp_layer *));
        if (skips)
            memcpy(m->skips, model->skips, skips * sizeof(*m->skips));
        m->model.layers = m->layers;
        m->model.skips = m->skips;
        err = name_all(m);
    } else {
        err = dp_fail(DP_ENOMEM, "no memory for a list of %zu layers", layers);
    }
    if (err)
        model_fini(m);
    return err;
}

void model_fini(struct model_info *m)
{
    free(m->costs);
    free(m->layers);
    free(m->skips);
    free(m->first);
    free(m->parameters);
    *m = (struct model_info){0};
}

static uint64_t hash_border(uint64_t h, const struct dp_border *b)
{
    for (int k = 0; b && k < b->count; k++) {
        const struct dp_tensor_spec *t = &b->tensors[k];
        h = dp_hash_number(h, t->dtype.code << 8 | t->dtype.bits);
        h = dp_hash_number(h, t->no_grad);
        for (int i = 0; i < t->ndim; i++)
            h = dp_hash_number(dp_hash_number(h, t->shape[i]), t->extent[i]);
    }
    return dp_hash_number(h, b ? b->count : -1);
}

uint64_t model_digest(const struct model_info *m)
{
    uint64_t h = hash_border(hash_border(DP_HASH_BEGIN, m->model.input), m->model.labels);

    for (int32_t l = 0; l < m->model.layer_count; l++)
        h = dp_hash_number(hash_border(h, m->layers[l]->out), m->layers[l]->norm_count);
    for (int32_t i = 0; i < m->first[m->model.layer_count]; i++) {
        const struct model_parameter *p = &m->parameters[i];
        h = dp_hash_text(dp_hash_text(h, p->name), p->tied ? p->tied : "");
        h = dp_hash_number(dp_hash_number(h, (int64_t)p->bytes), p->spec->flags);
    }
    for (int32_t i = 0; i < m->model.skip_count; i++)
        h = dp_hash_number(dp_hash_number(dp_hash_text(h, m->skips[i].name), m->skips[i].from),
                           m->skips[i].to);
    return h;
}

/* ---- initial values -------------------------------------------------------------------------- */

static void draw(const struct dp_parameter_spec *p, struct dp_random_key key, size_t elements,
                 DLTensor *value)
{
    float normal[256];

    for (size_t at = 0; at < elements; at += 256) {
        const size_t n = elements - at < 256 ? elements - at : 256;
        dp_random_normal(key, at, normal, n);
        for (size_t i = 0; i < n; i++) {
            const double x = p->mean + p->deviation * normal[i];
            if (p->dtype.bits == 64)
                ((double *)value->data)[at + i] = x;
            else
                ((float *)value->data)[at + i] = (float)x;
        }
    }
}

int model_fill(const struct model_info *m, int32_t parameter, uint64_t seed, DLTensor *value)
{
    const struct model_parameter *p = &m->parameters[parameter];
    int32_t layer = 0, from = parameter;

    /* A member of a tied group begins as the first one. */
    for (from = 0; p->tied && strcmp(m->parameters[from].name, p->tied);)
        from++;
    if (!p->tied)
        from = parameter;
    while (m->first[layer + 1] <= from)
        layer++;
    const struct model_parameter *first = &m->parameters[from];
    const uint64_t h = dp_hash_text(DP_HASH_BEGIN, first->name);
    if (!first->spec->fill) {
        draw(first->spec, dp_random_key(seed, initial_step, (uint32_t)h, (uint32_t)(h >> 32)),
             first->elements, value);
        return 0;
    }
    const int32_t index = from - m->first[layer];
    const int err = first->spec->fill(m->layers[layer]->user, index, seed, value);
    if (err)
        return dp_fail(DP_ECALLBACK, "parameter '%s': fill failed with %d (%s)", first->name, err,
                       dp_strerror(err));
    return 0;
}

/* ---- the cut into stages --------------------------------------------------------------------- */

static int take_given(const struct model_info *m, const int32_t *given, int32_t stages,
                      int32_t *balance)
{
    int64_t sum = 0;

    if (!given)
        return dp_fail(DP_EINVAL, "layers_of_stage: NULL, expected the layers of %d stages",
                       stages);
    for (int32_t s = 0; s < stages; s++) {
        if (given[s] < 1)
            return dp_fail(DP_EINVAL, "layers_of_stage[%d]: %d, expected 1 or more", s, given[s]);
        balance[s] = given[s];
        sum += given[s];
    }
    if (sum != m->model.layer_count)
        return dp_fail(DP_EINVAL,
                       "layers_of_stage: %lld layers in %d stages, expected all %d of the "
                       "model",
                       (long long)sum, stages, m->model.layer_count);
    return 0;
}

/* Which stages a rank has together. */
static enum dp_pairing pairing_of(const struct dp_schedule *s)
{
    const struct dp_slot *first = dp_schedule_slot(s, 0, 0);

    if (dp_schedule_slot_count(s, 0) != 2)
        return DP_PAIRING_NONE;
    return first[0].stage + first[1].stage == s->stages - 1 ? DP_PAIRING_MIRRORED
                                                            : DP_PAIRING_INTERLEAVED;
}

static int cut_by_cost(const struct model_info *m, const struct dp_schedule *s, int32_t *balance)
{
    const int32_t layers = m->model.layer_count;
    double *costs = calloc((size_t)layers, sizeof(*costs)), largest;
    enum dp_pairing pairing = pairing_of(s);

    if (!costs)
        return dp_fail(DP_ENOMEM, "no memory for the costs of %d layers", layers);
    for (int32_t l = 0; l < layers; l++) {
        costs[l] = m->costs ? m->costs[l] : m->layers[l]->cost;
        if (m->costs)
            continue;
        for (int32_t i = m->first[l]; i < m->first[l + 1] && m->layers[l]->cost <= 0; i++)
            costs[l] += (double)m->parameters[i].elements;
        costs[l] += m->layers[l]->cost > 0 ? 0 : 1;
    }
    if (layers > DP_PARTITION_PAIRED_MAX || s->stages % 2)
        pairing = DP_PAIRING_NONE;
    const int err = dp_partition_exact(costs, layers, s->stages, pairing, balance, &largest);
    free(costs);
    return err;
}

int model_cut(const struct model_info *m, const struct dp_trainer_config *config,
              const struct dp_schedule *outline, int32_t **out)
{
    const int32_t stages = outline->stages;
    int32_t *balance = calloc((size_t)stages, sizeof(*balance));
    int32_t *first = calloc((size_t)stages + 1, sizeof(*first));
    int err = balance && first ? 0 : dp_fail(DP_ENOMEM, "no memory for %d stages", stages);

    if (!err && stages > m->model.layer_count)
        err = dp_fail(DP_EINVAL, "layers: %d, expected one or more for each of %d stages",
                      m->model.layer_count, stages);
    if (!err && config->balance == DP_BALANCE_GIVEN)
        err = take_given(m, config->layers_of_stage, stages, balance);
    else if (!err)
        err = cut_by_cost(m, outline, balance);
    for (int32_t s = 0; s < stages && !err; s++)
        first[s + 1] = first[s] + balance[s];
    free(balance);
    if (err)
        free(first);
    else
        *out = first;
    return err;
}
