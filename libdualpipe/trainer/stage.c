/* SPDX-License-Identifier: Apache-2.0 */
#include "base/internal.h"
#include "trainer/stage.h"

#include "base/clock.h"
#include "base/fail.h"

#include <dualpipe/batch_norm.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t NOT_KEPT = SIZE_MAX;

/* ---- a call ---------------------------------------------------------------------------------- */

enum phase { FORWARD = STAGE_FORWARD, BACKWARD = STAGE_BACKWARD, WEIGHT = STAGE_WEIGHT };

/* The tensors at one border of a layer, for a micro-batch. */
struct tensors {
    int64_t shapes[DP_MAX_TENSORS][DP_MAX_DIMS];
    DLTensor list[DP_MAX_TENSORS];
};

struct dp_layer_skips {
    const struct stage *stage;
    const struct dp_stage_call *call;
    enum phase phase;
    int32_t layer;                    /* in the model */
    const char *wrong;                /* a skip that the layer does not have */
    struct tensors values, gradients; /* of the last that were asked for, by place in stage.skips */
};

/* What all layers of a stage are told in one call. */
struct run {
    struct stage *stage;
    const struct dp_stage_call *call;
    int64_t rows; /* of this micro-batch */
    enum phase phase;
    int64_t begun_ns; /* the layer's call, if it is measured */
};

/* By the first dimension of the tensors that follows the rows. */
static int64_t rows_of(const struct dp_border *b, const DLTensor *tensors, int64_t most)
{
    for (int k = 0; k < b->count; k++)
        for (int i = 0; i < b->tensors[k].ndim; i++)
            if (b->tensors[k].extent[i])
                return tensors[k].shape[i] * most / b->tensors[k].shape[i];
    return most;
}

static int64_t shape_of(const struct dp_tensor_spec *spec, int dim, const struct run *run)
{
    return spec->extent[dim] ? spec->shape[dim] / run->stage->rows * run->rows : spec->shape[dim];
}

static DLTensor tensor_at(const struct run *run, const struct dp_tensor_spec *spec, void *data,
                          int64_t *shape)
{
    for (int i = 0; i < spec->ndim; i++)
        shape[i] = shape_of(spec, i, run);
    return (DLTensor){.data = data,
                      .device = place_dl(run->stage->place),
                      .ndim = spec->ndim,
                      .dtype = spec->dtype,
                      .shape = shape};
}

/* One after the other from `memory` on; gradients: those that are none have no data. */
static void lay_out(const struct run *run, const struct dp_border *b, char *memory, bool gradients,
                    struct tensors *out)
{
    for (int k = 0; k < b->count; k++) {
        const struct dp_tensor_spec *spec = &b->tensors[k];
        out->list[k] =
            tensor_at(run, spec, gradients && spec->no_grad ? NULL : memory, out->shapes[k]);
        memory += place_aligned(model_spec_bytes(spec));
    }
}

static size_t border_bytes(const struct dp_border *b)
{
    size_t bytes = 0;

    for (int k = 0; k < b->count; k++)
        bytes += place_aligned(model_spec_bytes(&b->tensors[k]));
    return bytes;
}

static void *offset(void *base, size_t at, bool wanted)
{
    return base && wanted ? (char *)base + at : NULL;
}

static size_t save_of(const struct stage *s, size_t fixed, size_t row)
{
    return fixed + row * (size_t)s->rows;
}

/* Of parameters that pass, in the host's memory: not a sum of the pipeline's. */
static bool is_in_passing(const struct stage *s, const void *data)
{
    const char *at = data, *home = s->passing;

    return at && home && at >= home && at < home + s->passing_bytes;
}

/* What layer number i of the stage is told; grads is room for those of its parameters. */
static struct dp_layer_call call_of(const struct run *run, int32_t i, const DLTensor *in,
                                    DLTensor *grads, struct dp_layer_skips *skips)
{
    const struct stage *s = run->stage;
    const struct stage_layer *l = &s->layers[i];
    const struct dp_layer *layer = l->layer;
    const struct dp_stage_call *call = run->call;

    *skips = (struct dp_layer_skips){
        .stage = s, .call = call, .phase = run->phase, .layer = s->first_layer + i};
    for (int32_t k = 0; k < layer->parameter_count; k++) {
        grads[k] = s->grads[l->first + k];
        grads[k].data = NULL;
        if (run->phase != FORWARD && call->grads && call->grads[l->first + k])
            grads[k] = *call->grads[l->first + k];
        if (is_in_passing(s, grads[k].data))
            grads[k].device = (DLDevice){kDLCPU, 0};
    }
    return (struct dp_layer_call){
        .layer = s->first_layer + i,
        .mb = call->mb,
        .mb_global = call->mb_global,
        .step = call->step,
        .training = call->training,
        .again = call->recomputing,
        .discarded = call->discarded,
        .values = s->values + l->first,
        .grads = grads,
        .rounded = s->rounded ? s->rounded + l->first : NULL,
        .in = in,
        .save = offset(call->save, l->at.whole, layer->save.whole || layer->save_row.whole),
        .save_input =
            offset(call->save_input, l->at.input, layer->save.input || layer->save_row.input),
        .save_weight =
            offset(call->save_weight, l->at.weight, layer->save.weight || layer->save_row.weight),
        .scratch = s->scratch,
        .stream = call->stream,
        .random = dp_random_key(s->seed, call->step, (uint32_t)(s->first_layer + i),
                                (uint32_t)call->mb_global),
        .norms = l->norms,
        .skips = skips,
    };
}

int stage_note_time(const struct stage *stage, int32_t i, int call, int64_t begun_ns)
{
    int64_t *least = &stage->times[i].ns[call];
    const int err = place_wait(stage->place);
    const int64_t ns = dp_now_ns() - begun_ns;

    *least = *least && *least < ns ? *least : ns;
    return err;
}

/* The layer has parameters, and they are not on the device. */
static bool passes(const struct stage *s, int32_t i)
{
    return i >= 0 && i < s->streamed_layers && s->layers[i].layer->parameter_count > 0;
}

/* The callback of layer number i has returned err: what is to be said of it. */
static int end_of_call(const struct run *run, int32_t i, const struct dp_layer_skips *skips,
                       int err)
{
    const struct dp_layer *layer = run->stage->layers[i].layer;
    const bool named = layer->name && *layer->name;
    struct streamed *st = run->stage->streamed;
    char why[DP_ABORT_TEXT];

    if (run->stage->times && !err)
        err = stage_note_time(run->stage, i, (int)run->phase, run->begun_ns);
    if (!err && !skips->wrong)
        return st && passes(run->stage, i) ? streamed_leave(st) : 0;
    snprintf(why, sizeof(why), "%s", err ? dp_callback_reason(err) : "");
    if (!err)
        return dp_callback_error(DP_EINVAL, "layer %d: skip '%s' does not %s there", skips->layer,
                                 skips->wrong,
                                 run->phase == FORWARD ? "begin or end" : "have a gradient");
    return dp_callback_error(err, "layer %d%s%s%s%s%s", run->stage->first_layer + i,
                             named ? " (" : "", named ? layer->name : "", named ? ")" : "",
                             *why ? ": " : "", why);
}

/* Layer number i of the stage is called with c. */
static int begin_call(struct run *run, int32_t i, struct dp_layer_call *c)
{
    const struct stage *s = run->stage;

    run->begun_ns = s->times ? dp_now_ns() : 0;
    return s->streamed && passes(s, i)
               ? streamed_enter(s->streamed, c, s->layers[i].layer->parameter_count)
               : 0;
}

/* ---- inputs between layers ------------------------------------------------------------------- */

/* Where the input of layer number i > 0 is written by the forward of the one before. */
static char *input_memory(const struct run *run, int32_t i)
{
    const struct stage *s = run->stage;

    return s->layers[i].input_at == NOT_KEPT ? s->between[i % 2]
                                             : (char *)run->call->save + s->layers[i].input_at;
}

/* The input that layer number i may read in its backward and weight; NULL: none. */
static const DLTensor *kept_input(const struct run *run, int32_t i, struct tensors *room)
{
    const struct stage_layer *l = &run->stage->layers[i];

    if (i == 0)
        return run->call->in;
    if (l->input_at == NOT_KEPT)
        return NULL;
    lay_out(run, &l->in, input_memory(run, i), false, room);
    return room->list;
}

/* ---- the callbacks of a stage ---------------------------------------------------------------- */

/* may_move: what comes next does not look for it where it was. */
static int check_written(const struct run *run, int32_t i, const struct dp_border *b,
                         const DLTensor *was, const DLTensor *is, bool may_move, const char *what)
{
    for (int k = 0; k < b->count; k++)
        if (was[k].data != is[k].data && !may_move)
            return dp_callback_error(DP_EMISMATCH,
                                     "layer %d: %s %d is in memory of the layer's own, expected it "
                                     "where the call has it",
                                     run->stage->first_layer + i, what, k);
    return 0;
}

static int forward(void *user, const struct dp_stage_call *call, const DLTensor *in, DLTensor *out)
{
    struct stage *s = user;
    struct run run = {s, call, rows_of(&s->layers[0].in, in, s->rows), FORWARD, 0};
    DLTensor grads[DP_LAYER_PARAMETERS], before[DP_MAX_TENSORS];
    struct tensors between[2];
    struct dp_layer_skips skips;
    int err = 0;

    for (int32_t i = 0; i < s->layer_count && !err; i++) {
        const struct stage_layer *l = &s->layers[i];
        const bool last = i == s->layer_count - 1;
        struct tensors *t = &between[i % 2];
        if (!last)
            lay_out(&run, &l->out, input_memory(&run, i + 1), false, t);
        DLTensor *to = last ? out : t->list;
        memcpy(before, to, (size_t)l->out.count * sizeof(*to));
        struct dp_layer_call c = call_of(&run, i, in, grads, &skips);
        err = begin_call(&run, i, &c);
        if (!err)
            err = end_of_call(&run, i, &skips, l->layer->ops->forward(l->layer->user, &c, in, to));
        if (!err && !last)
            err = check_written(&run, i, &l->out, before, to,
                                s->layers[i + 1].layer->drops_input, "output");
        in = to;
    }
    return err;
}

/* From the last layer to the first: BACKWARD, or WEIGHT, which has neither gout nor gin. */
static int go_back(struct stage *s, const struct dp_stage_call *call, enum phase phase,
                   const DLTensor *gout, DLTensor *gin, enum dp_backward_mode mode)
{
    struct run run = {s, call, rows_of(&s->layers[0].in, call->in, s->rows), phase, 0};
    DLTensor grads[DP_LAYER_PARAMETERS], before[DP_MAX_TENSORS];
    struct tensors between[2], input;
    struct dp_layer_skips skips;
    int err = 0;

    for (int32_t i = s->layer_count - 1; i >= 0 && !err; i--) {
        const struct stage_layer *l = &s->layers[i];
        const bool hands_on = i && phase == BACKWARD;
        DLTensor *to = hands_on ? between[i % 2].list : gin;
        if (hands_on) {
            lay_out(&run, &l->in, s->between[i % 2], true, &between[i % 2]);
            memcpy(before, to, (size_t)l->in.count * sizeof(*to));
        }
        struct dp_layer_call c = call_of(&run, i, kept_input(&run, i, &input), grads, &skips);
        err = begin_call(&run, i, &c);
        if (!err)
            err = end_of_call(&run, i, &skips,
                              phase == WEIGHT
                                  ? l->layer->ops->weight(l->layer->user, &c)
                                  : l->layer->ops->backward(l->layer->user, &c, gout, to, mode));
        if (!err && hands_on)
            err = check_written(&run, i, &l->in, before, to, false, "gin");
        gout = to;
    }
    return err;
}

static int backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                    DLTensor *gin, enum dp_backward_mode mode)
{
    return go_back(user, call, BACKWARD, gout, gin, mode);
}

static int weight(void *user, const struct dp_stage_call *call)
{
    return go_back(user, call, WEIGHT, NULL, NULL, DP_BACKWARD_FULL);
}

/* ---- an overlapped pair ---------------------------------------------------------------------- */

/* The forward of one micro-batch in the pipeline's stream, the backward of another in a second one, so
 * that the device fills what one leaves idle with the other's kernels. Stages have scratch memory of
 * their own.
 *
 *      stream    ...  fork | forward, loss              | join  ...
 *      second              | loss's gradient, backward  |
 */
static int pair_backward(const struct dp_pair *pair, struct dp_device_stream *stream)
{
    struct dp_stage_call call = *pair->backward.call;
    struct dp_pair there = *pair;

    call.stream = dp_device_stream_native(stream);
    there.backward.call = &call;
    const int err = dp_pair_start_from_loss(&there);
    return err ? err
               : backward(pair->backward.user, &call, pair->backward.gout, pair->backward.gin,
                          DP_BACKWARD_FULL);
}

/* The backward is first: its gradients are what another rank waits for. */
static int fwd_bwd(const struct dp_pair *pair)
{
    struct place *place = ((const struct stage *)pair->forward.user)->place;
    struct dp_device_stream *second;
    int err = place_fork(place, &second);

    if (err)
        return err;
    err = pair_backward(pair, second);
    if (!err)
        err = forward(pair->forward.user, pair->forward.call, pair->forward.in, pair->forward.out);
    if (!err)
        err = dp_pair_take_loss(pair);
    const int joined = place_join(place);
    return err ? err : joined;
}

static int settle(void *user)
{
    const struct stage *s = user;

    return s->streamed ? streamed_settle(s->streamed) : 0;
}

static const struct dp_stage_ops ops = {.forward = forward,
                                        .backward = backward,
                                        .weight = weight,
                                        .settle = settle},
                                 pair_ops = {.forward = forward,
                                             .backward = backward,
                                             .weight = weight,
                                             .fwd_bwd = fwd_bwd};

struct dp_stage stage_view(struct stage *s)
{
    const bool pairs = s->model->model.concurrent && place_device(s->place) && !s->streamed;

    return (struct dp_stage){
        .ops = pairs ? &pair_ops : &ops,
        .user = s,
        .save_bytes = s->save.whole,
        .save_input_bytes = s->save.input,
        .save_weight_bytes = s->save.weight,
        .no_split = s->no_split,
        .parameter_count = s->parameter_count,
        .parameters = s->parameters,
    };
}

int stage_round(struct stage *s)
{
    const int32_t first = s->streamed_parameters;
    const size_t bytes = s->values_bytes - s->passing_bytes / 2; /* of those that stay */

    return s->rounded && bytes ? place_round(s->place, bytes / sizeof(float), s->values[first].data,
                                             s->rounded[first].dtype, s->rounded[first].data)
                               : 0;
}

size_t stage_largest_bytes(const struct stage *s)
{
    size_t most = 0;

    for (int32_t i = 0; i < s->streamed_layers; i++) {
        const struct stage_layer *l = &s->layers[i];
        const size_t bytes = streamed_bytes(s->values + l->first, l->layer->parameter_count);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Values and gradients are each in one piece of memory, in the same order. */
int stage_put(struct stage *s, bool gradients)
{
    const size_t at = gradients ? s->values_bytes : 0;

    return s->home ? place_copy(s->place, (char *)s->memory + at, (char *)s->home + at, s->values_bytes)
                   : 0;
}

int stage_fetch(struct stage *s, bool gradients)
{
    const size_t at = gradients ? s->values_bytes : 0;
    int err = 0;

    if (!s->home) /* what passes comes down by itself */
        return s->passing ? place_wait(s->place) : 0;
    err = place_copy(s->place, (char *)s->home + at, (char *)s->memory + at, s->values_bytes);
    if (!err && gradients)
        err = place_zero_gradients(s->place, s->parameters, s->parameter_count);
    const int waited = place_wait(s->place);
    return err ? err : waited;
}

/* ---- skips ----------------------------------------------------------------------------------- */

static DLTensor *local(struct dp_layer_skips *s, int32_t i, bool gradient)
{
    const struct stage_skip *skip = &s->stage->skips[i];
    struct stage *stage = (struct stage *)s->stage;
    const struct run run = {stage, s->call, rows_of(&stage->layers[0].in, s->call->in, stage->rows),
                            s->phase, 0};
    struct tensors *t = gradient ? &s->gradients : &s->values;
    struct dp_tensor_spec spec;
    const int place = i % DP_MAX_TENSORS;

    model_spec(&skip->skip->tensor, stage->rows, &spec);
    t->list[place] = tensor_at(
        &run, &spec, (char *)s->call->save + (gradient ? skip->gradient_at : skip->value_at),
        t->shapes[place]);
    return &t->list[place];
}

struct wish {
    bool begins, gradient, phases[WEIGHT + 1];
};

DLTensor *dp_layer_skip_tensor(const struct dp_layer_call *call, enum dp_skip_end end, const char *name)
{
    static const struct wish wishes[] = {
        [DP_SKIP_STASH] = {true, false, {[FORWARD] = true}},
        [DP_SKIP_POP] = {false, false, {true, true, true}},
        [DP_SKIP_STASH_GRADIENT] = {true, true, {[BACKWARD] = true, [WEIGHT] = true}},
        [DP_SKIP_POP_GRADIENT] = {false, true, {[BACKWARD] = true}},
    };
    const struct wish *wish = &wishes[end];
    struct dp_layer_skips *s = call->skips;
    const struct model_info *m = s->stage->model;

    for (int32_t i = 0; i < m->model.skip_count; i++) {
        const struct dp_layer_skip *skip = &m->skips[i];
        if (strcmp(skip->name, name) || !wish->phases[s->phase] ||
            (wish->begins ? skip->from : skip->to) != s->layer ||
            (wish->gradient && skip->tensor.no_grad))
            continue;
        for (int32_t k = 0; k < s->stage->skip_count; k++)
            if (s->stage->skips[k].skip == skip)
                return local(s, k, wish->gradient);
        return dp_skip_tensor(s->call, end, NULL, name);
    }
    s->wrong = name;
    return NULL;
}

/* ---- making one ------------------------------------------------------------------------------ */

static int make_norms(struct stage_layer *l, int32_t microbatches)
{
    int err = 0;

    l->norms = calloc((size_t)l->layer->norm_count + 1, sizeof(struct dp_batch_norm *));
    if (!l->norms)
        return dp_fail(DP_ENOMEM, "no memory for %d norms", l->layer->norm_count);
    for (int32_t k = 0; k < l->layer->norm_count && !err; k++) {
        struct dp_batch_norm_config config = l->layer->norms[k];
        config.microbatches = microbatches;
        err = dp_batch_norm_new(&config, &l->norms[k]);
    }
    return err;
}

/* Its borders, its place in the save areas, and what it adds to the stage's. */
static void place_layer(struct stage *s, int32_t i)
{
    const struct dp_model *m = &s->model->model;
    const int32_t place = s->first_layer + i;
    struct stage_layer *l = &s->layers[i];

    l->layer = m->layers[place];
    model_border(place ? m->layers[place - 1]->out : m->input, s->rows, &l->in);
    model_border(l->layer->out, s->rows, &l->out);
    l->at = s->save;
    s->save.whole += place_aligned(save_of(s, l->layer->save.whole, l->layer->save_row.whole));
    s->save.input += place_aligned(save_of(s, l->layer->save.input, l->layer->save_row.input));
    s->save.weight += place_aligned(save_of(s, l->layer->save.weight, l->layer->save_row.weight));
    l->input_at = NOT_KEPT;
    if (i && !l->layer->drops_input) {
        l->input_at = s->save.whole;
        s->save.whole += border_bytes(&l->in);
    }
    l->first = s->model->first[place] - s->model->first[s->first_layer];
    s->no_split = s->no_split || !l->layer->ops->weight;
}

static int place_skips(struct stage *s)
{
    const struct dp_model *m = &s->model->model;
    const int32_t end = s->first_layer + s->layer_count;

    s->skips = calloc((size_t)m->skip_count + 1, sizeof(*s->skips));
    if (!s->skips)
        return dp_fail(DP_ENOMEM, "no memory for %d skips", m->skip_count);
    for (int32_t i = 0; i < m->skip_count; i++) {
        const struct dp_layer_skip *skip = &s->model->skips[i];
        struct dp_tensor_spec spec;
        if (skip->from < s->first_layer || skip->to >= end)
            continue;
        model_spec(&skip->tensor, s->rows, &spec);
        const size_t bytes = place_aligned(model_spec_bytes(&spec));
        s->skips[s->skip_count++] = (struct stage_skip){skip, s->save.whole, s->save.whole + bytes};
        s->save.whole += 2 * bytes;
    }
    return 0;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t values_of(const struct stage *s, int32_t first, int32_t end)
{
    const struct model_parameter *list = &s->model->parameters[s->model->first[s->first_layer]];
    size_t bytes = 0;

    for (int32_t k = first; k < end; k++)
        bytes += place_aligned(list[k].bytes);
    return bytes;
}

/* All layers pass but those from first_kept on, by their place in the model. */
static void choose_streamed(struct stage *s, int32_t first_kept)
{
    const int32_t before = first_kept - s->first_layer;

    s->streamed_layers = before < 0 ? 0 : before < s->layer_count ? before : s->layer_count;
    s->streamed_parameters = s->streamed_layers < s->layer_count
                                 ? s->layers[s->streamed_layers].first
                                 : s->parameter_count;
}

/* Values and gradients of parameters `first` to `end` - 1: `values` bytes of each. */
static void place_parameters(struct stage *s, int32_t first, int32_t end, char *at, size_t values)
{
    for (int32_t k = first; k < end; k++) {
        s->values[k].data = at;
        s->grads[k].data = at + values;
        at += values_of(s, k, k + 1);
    }
}

/* Values, then gradients; then values that are rounded, and what calls need. */
static int make_memory(struct stage *s)
{
    const size_t all = values_of(s, 0, s->parameter_count),
                 streamed = values_of(s, 0, s->streamed_parameters), values = all - streamed;
    size_t between = 0, scratch = 0;
    int err = 0;

    for (int32_t i = 0; i < s->layer_count; i++) {
        const struct dp_layer *l = s->layers[i].layer;
        scratch = larger(scratch, save_of(s, l->scratch_bytes, l->scratch_row_bytes));
        if (i)
            between = larger(between, border_bytes(&s->layers[i].in));
    }
    scratch = place_aligned(scratch);
    s->values_bytes = all;
    const size_t rounded = s->rounded ? place_aligned(values / 2) : 0;
    s->memory_bytes = 2 * values + rounded + 2 * between + scratch;
    s->passing_bytes = 2 * streamed;
    if (s->bare)
        return 0;
    if (streamed)
        err = place_alloc(s->place, DP_MEMORY_PINNED, s->passing_bytes, &s->passing);
    if (!err)
        err = place_alloc(s->place, DP_MEMORY_DEVICE, s->memory_bytes, &s->memory);
    if (!err)
        err = place_wait(s->place);
    if (err)
        return err;
    place_parameters(s, 0, s->streamed_parameters, s->passing, streamed);
    place_parameters(s, s->streamed_parameters, s->parameter_count, s->memory, values);
    for (int32_t k = s->streamed_parameters; k < s->parameter_count && s->rounded; k++)
        s->rounded[k].data =
            (char *)s->memory + 2 * values + ((char *)s->values[k].data - (char *)s->memory) / 2;
    char *at = (char *)s->memory + 2 * values + rounded;
    s->between[0] = at;
    s->between[1] = at + between;
    s->scratch = scratch ? at + 2 * between : NULL;
    return 0;
}

static int describe(struct stage *s, int32_t k, DLDataType rounded)
{
    const struct model_parameter *p = &s->model->parameters[s->model->first[s->first_layer] + k];

    s->values[k] = (DLTensor){.device = place_dl(s->place),
                              .ndim = p->spec->ndim,
                              .dtype = p->spec->dtype,
                              .shape = (int64_t *)p->spec->shape};
    s->grads[k] = s->values[k];
    s->parameters[k] = (struct dp_parameter){
        .name = p->name,
        .tied = p->tied,
        .flags = p->spec->flags,
        .value = &s->values[k],
        .grad = p->spec->flags & DP_PARAMETER_FROZEN ? NULL : &s->grads[k],
    };
    if (!s->rounded)
        return 0;
    s->rounded[k] = s->values[k];
    s->rounded[k].dtype = rounded;
    return s->values[k].dtype.bits == 32
               ? 0
               : dp_fail(DP_EUNSUPPORTED, "parameter '%s' of float64, expected float32 with a dtype",
                         p->name);
}

/* Initial values are made in the host's memory, one after the other. */
static int fill(struct stage *s)
{
    const int32_t first = s->model->first[s->first_layer];
    size_t most = 1;
    int err = 0;

    for (int32_t k = 0; k < s->parameter_count; k++)
        most = larger(most, s->model->parameters[first + k].bytes);
    char *memory = malloc(most);
    if (!memory)
        return dp_fail(DP_ENOMEM, "no memory for the %zu bytes of a parameter", most);
    for (int32_t k = 0; k < s->parameter_count && !err; k++) {
        DLTensor value = s->values[k];
        value.data = memory;
        value.device = (DLDevice){kDLCPU, 0};
        err = model_fill(s->model, first + k, s->seed, &value);
        if (!err)
            err = place_copy(s->place, s->values[k].data, memory,
                             s->model->parameters[first + k].bytes);
        const int waited = place_wait(s->place);
        err = err ? err : waited;
    }
    free(memory);
    return err;
}

/* The same list, of tensors in the host's memory: in memory of its own, or, of parameters that pass a
 * device, where they are. To the pipeline those are the device's, which reaches pinned memory. */
static int make_home(struct stage *s, bool away)
{
    const size_t count = (size_t)s->parameter_count;
    char *memory = NULL;
    void *pinned;

    s->homes = calloc(count + 1, sizeof(*s->homes));
    s->home_tensors = calloc(2 * count + 1, sizeof(*s->home_tensors));
    if (!s->homes || !s->home_tensors)
        return dp_fail(DP_ENOMEM, "no memory for a list of %d parameters", s->parameter_count);
    int err = away ? place_alloc(s->place, DP_MEMORY_PINNED, 2 * s->values_bytes + 1, &pinned) : 0;
    if (!err && away)
        s->home = memory = pinned;
    for (size_t k = 0; k < 2 * count && !err; k++) {
        DLTensor *t = &s->home_tensors[k];
        *t = k < count ? s->values[k] : s->grads[k - count];
        if (away)
            t->data = memory + ((char *)t->data - (char *)s->memory);
        t->device = (DLDevice){kDLCPU, 0};
    }
    for (size_t k = 0; k < count && !err; k++) {
        s->homes[k] = s->parameters[k];
        s->homes[k].value = &s->home_tensors[k];
        s->homes[k].grad = s->parameters[k].grad ? &s->home_tensors[count + k] : NULL;
    }
    return err ? err : stage_fetch(s, false);
}

static int make_parameters(struct stage *s, DLDataType rounded)
{
    const struct model_info *m = s->model;
    const int32_t first = m->first[s->first_layer];
    const size_t count = (size_t)s->parameter_count + 1;

    s->values = calloc(count, sizeof(*s->values));
    s->grads = calloc(count, sizeof(*s->grads));
    s->parameters = calloc(count, sizeof(*s->parameters));
    s->layer_of = calloc(count, sizeof(*s->layer_of));
    s->rounded = rounded.bits ? calloc(count, sizeof(*s->rounded)) : NULL;
    if (!s->values || !s->grads || !s->parameters || !s->layer_of || (rounded.bits && !s->rounded))
        return dp_fail(DP_ENOMEM, "no memory for a list of %d parameters", s->parameter_count);
    int err = 0;
    for (int32_t k = 0, l = s->first_layer; k < s->parameter_count && !err; k++) {
        while (m->first[l + 1] <= first + k)
            l++;
        s->layer_of[k] = l;
        err = describe(s, k, rounded);
    }
    if (!err)
        err = make_memory(s);
    return err || s->bare ? err : fill(s);
}

static int build(struct stage *s, const struct stage_config *config)
{
    int err = 0;

    s->layers = calloc((size_t)s->layer_count, sizeof(*s->layers));
    if (!s->layers)
        return dp_fail(DP_ENOMEM, "no memory for a stage of %d layers", s->layer_count);
    for (int32_t i = 0; i < s->layer_count && !err; i++) {
        place_layer(s, i);
        err = make_norms(&s->layers[i], config->microbatches);
    }
    if (!err)
        err = place_skips(s);
    if (!err && config->streams)
        choose_streamed(s, config->first_kept);
    if (!err)
        err = make_parameters(s, config->dtype);
    s->homes = s->parameters;
    const bool passes_device = config->streams && place_device(s->place);
    return err || !(config->away || passes_device) || s->bare ? err : make_home(s, config->away);
}

int stage_new(const struct stage_config *config, struct stage **out)
{
    struct stage *s = calloc(1, sizeof(*s));

    if (!s)
        return dp_fail(DP_ENOMEM, "no memory for a stage");
    *s = (struct stage){.model = config->model,
                        .stage = config->stage,
                        .first_layer = config->first_layer,
                        .layer_count = config->end_layer - config->first_layer,
                        .rows = config->rows,
                        .seed = config->seed,
                        .place = config->place,
                        .bare = config->bare};
    s->parameter_count = s->model->first[config->end_layer] - s->model->first[config->first_layer];
    const int err = build(s, config);
    if (err)
        stage_free(s);
    else
        *out = s;
    return err;
}

void stage_free(struct stage *s)
{
    if (!s)
        return;
    for (int32_t i = 0; i < s->layer_count && s->layers; i++) {
        for (int32_t k = 0; s->layers[i].norms && k < s->layers[i].layer->norm_count; k++)
            dp_batch_norm_free(s->layers[i].norms[k]);
        free(s->layers[i].norms);
    }
    free(s->layers);
    free(s->skips);
    free(s->values);
    free(s->grads);
    free(s->rounded);
    place_release(s->place, DP_MEMORY_PINNED, s->home);
    free(s->home_tensors);
    if (s->homes != s->parameters)
        free(s->homes);
    free(s->parameters);
    free(s->layer_of);
    place_release(s->place, DP_MEMORY_DEVICE, s->memory);
    place_release(s->place, DP_MEMORY_PINNED, s->passing);
    free(s);
}
