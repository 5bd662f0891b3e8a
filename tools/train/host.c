/* SPDX-License-Identifier: Apache-2.0 */
#include "train/host.h"

#include "train/cuda/cuda_rank.h"
#include "train/gpt_layers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct host {
    const struct settings *settings;
    const struct data *data;
    struct dp_comm *comm;
    struct cuda_rank *cuda; /* what computes; NULL: the CPU */
    struct gpt_layers *layers;
    struct dp_trainer *trainer;
    struct batch batch;
};

static bool is_bf16(const struct settings *s)
{
    return !strcmp(s->dtype, "bf16");
}

/* ---- what the options mean ------------------------------------------------------------------- */

/* What the options mean to the library's trainer. layers_of_stage: room for [stages]. Checkpoints
 * are saved, and rates set, step by step. */
static struct dp_trainer_config host_config(const struct settings *s, int32_t *layers_of_stage)
{
    struct dp_trainer_config c = s->how;

    const int stages = s->training ? s->training->stages : 1;
    for (int first, stage = 0; stage < stages; stage++)
        layers_of_stage[stage] = gpt_layers_of_stage(&s->model, stage, stages, &first);
    const enum dp_schedule_kind kind = s->training ? s->training->kind : DP_SCHEDULE_USER;
    c.schedule = (struct dp_schedule_spec){0};
    if (s->how.survive) /* it is laid out again by its kind */
        c.schedule = (struct dp_schedule_spec){.kind = kind,
                                               .ranks = s->how.schedule.ranks,
                                               .slack = s->how.schedule.slack,
                                               .recompute = s->how.schedule.recompute};
    c.list = s->how.survive ? NULL : s->training;
    c.execution = strcmp(s->execution, "messages") ? DP_EXECUTE_LIST : DP_EXECUTE_MESSAGES;
    c.balance = DP_BALANCE_GIVEN;
    c.layers_of_stage = layers_of_stage;
    c.mixing.made = s->how.sums == DP_SUMS_MIXING ? s->graph : NULL;
    c.optimizer = gpt_optimizer(s->how.optimizer.weight_decay);
    c.rate = (struct dp_rate){0};
    c.fixed_order = !s->any_order || (!s->training && !settings_on_cuda(s) && s->how.replicas == 1);
    c.offload.parameters = s->offload.params;
    c.offload.layers = s->how.offload.layers > 0 ? s->how.offload.layers : 0; /* or BUFFERS_AUTO */
    c.offload.activations = s->offload.activations;
    c.offload.optimizer = s->offload.optimizer;
    c.offload.folder = s->offload.folder[0] ? s->offload.folder : NULL;
    c.offload.device_bytes = (size_t)s->device_memory;
    c.dtype = is_bf16(s) ? (DLDataType){kDLBfloat, 16, 1} : (DLDataType){0};
    c.nccl = settings_by_nccl(s);
    if (!c.nccl) /* with it this says where replicas mix */
        c.checkpoint.folder = NULL;
    c.checkpoint.every = 0;
    return c;
}

int host_plan(const struct settings *s, enum dp_schedule_kind kind,
              const struct dp_trainer_machine *machine, struct dp_trainer_plan **out, int32_t *count)
{
    struct gpt_layers *layers;
    int32_t all;
    const int err = gpt_layers_new(&s->model, NULL, false, &layers);

    if (err)
        return err;
    struct dp_trainer_config config = host_config(s, &all);
    config.schedule = (struct dp_schedule_spec){
        .kind = kind, .ranks = s->how.schedule.ranks, .slack = s->how.schedule.slack};
    config.balance = DP_BALANCE_MEASURED;
    config.fixed_order = !s->any_order;
    if (!config.order_blocks)
        config.order_blocks = 2; /* the default of one replica */
    const int planned = dp_trainer_plan(&config, gpt_layers_model(layers), machine, out, count);
    gpt_layers_free(layers);
    return planned;
}

/* A trainer that no rank is made of. */
struct outline {
    struct gpt_layers *layers;
    int32_t *cut;
    struct dp_trainer_config config;
};

static int outline_init(const struct settings *s, struct outline *o)
{
    *o = (struct outline){.cut = calloc(s->training ? (size_t)s->training->stages : 1, sizeof(*o->cut))};
    const int err = o->cut ? gpt_layers_new(&s->model, NULL, false, &o->layers) : DP_ENOMEM;
    if (err)
        return err;
    o->config = host_config(s, o->cut);
    if (!s->training)
        o->config.schedule.ranks = 1;
    return 0;
}

static void outline_fini(struct outline *o)
{
    gpt_layers_free(o->layers);
    free(o->cut);
}

int host_measure(const struct settings *s, size_t *rank_bytes)
{
    struct outline o;
    int err = outline_init(s, &o);

    memset(&o.config.offload, 0, sizeof(o.config.offload)); /* the host is the device, too */
    if (!err)
        err = dp_trainer_measure(&o.config, gpt_layers_model(o.layers), rank_bytes);
    outline_fini(&o);
    return err;
}

/* The schedule of replicas that mix, each stage of which has a state. */
static int take_layout(struct settings *was)
{
    struct dp_schedule_spec spec = {.ranks = was->how.schedule.ranks,
                                    .microbatches = was->how.microbatches / was->how.replicas,
                                    .virtual_stages = was->how.schedule.virtual_stages};

    if (was->how.sums != DP_SUMS_MIXING || !strcmp(was->schedule_name, "none"))
        return 0;
    const int err = dp_schedule_kind_parse(was->schedule_name, &spec.kind);
    return err ? err : dp_schedule_new(&spec, &was->training);
}

static int verify(struct settings *was, const struct dp_checkpoint *c,
                  void (*fault)(void *user, const char *sentence), void *user)
{
    struct outline o = {0};
    was->how.sums = was->how.replicas > 1 && !settings_sums(was) ? DP_SUMS_MIXING : DP_SUMS_ALL;
    int err = take_layout(was);

    was->model = settings_model(was);
    if (!err)
        err = outline_init(was, &o);
    if (!err)
        err = dp_trainer_verify(&o.config, gpt_layers_model(o.layers), c, fault, user);
    outline_fini(&o);
    dp_schedule_free(was->training);
    return err;
}

int host_verify(const struct dp_checkpoint *c, const char *path,
                void (*fault)(void *user, const char *sentence), void *user)
{
    struct resume *from = calloc(1, sizeof(*from));
    struct settings was = {0};
    int err = from ? 0 : DP_ENOMEM;

    if (!err && !resume_take(c, from)) {
        fault(user, "its options, or the step, cannot be read");
    } else if (!err) {
        snprintf(from->path, sizeof(from->path), "%s", path);
        if (!settings_of_words(from, &was))
            fault(user, "this version cannot go on with its options");
        else if (settings_sums(&was) || (was.schedule_name && !was.file)) /* a list is elsewhere */
            err = verify(&was, c, fault, user);
    }
    free(from);
    return err;
}

static int open_cuda(struct host *h)
{
    const struct settings *s = h->settings;
    const size_t layers = (size_t)s->model.layers + 2;

    if (!settings_on_cuda(s))
        return 0;
    return cuda_rank_new(
        &(struct cuda_rank_config){
            .device = s->device,
            .rank = h->comm ? dp_comm_rank(h->comm) : 0,
            .ranks = settings_processes(s),
            .nccl = settings_by_nccl(s),
            .image = s->image,
            .bf16 = is_bf16(s),
            .model = s->model,
            .callbacks = s->no_graphs ? 0 : 2 * layers * (size_t)s->how.microbatches,
        },
        &h->cuda);
}

static int make_trainer(struct host *h, int joins_as)
{
    const struct settings *s = h->settings;
    const int stages = s->training ? s->training->stages : 1;
    int32_t *cut = calloc((size_t)stages, sizeof(*cut));
    char *about = settings_text(s, 0, h->data->digest);
    int err = cut && about ? 0 : DP_ENOMEM;

    if (!err) {
        struct dp_trainer_config config = host_config(s, cut);
        config.device = h->cuda ? h->cuda->dev : NULL;
        config.stream = h->cuda ? h->cuda->stream : NULL;
        config.checkpoint.about = about;
        config.checkpoint.from = s->from.step ? s->from.path : NULL;
        err = joins_as < 0
                  ? dp_trainer_new(&config, gpt_layers_model(h->layers), h->comm, &h->trainer)
                  : dp_trainer_join(&config, gpt_layers_model(h->layers), h->comm, joins_as,
                                    &h->trainer);
    }
    free(about);
    free(cut);
    return err;
}

int host_new(const struct settings *s, const struct data *data, struct dp_comm *comm, int joins_as,
             struct host **out)
{
    const size_t bytes = (size_t)s->how.rows * (size_t)s->context;
    struct host *h = calloc(1, sizeof(*h));

    if (!h)
        return DP_ENOMEM;
    h->settings = s;
    h->data = data;
    h->comm = comm;
    int err = open_cuda(h);
    if (!err)
        err = gpt_layers_new(&s->model, h->cuda ? &h->cuda->compute : NULL, is_bf16(s),
                             &h->layers);
    h->batch = (struct batch){malloc(bytes), malloc(bytes)};
    if (!h->batch.tokens || !h->batch.labels)
        err = DP_ENOMEM;
    if (!s->how.survive) /* otherwise this rank leaves, and the others learn that it did */
        err = dp_comm_share_error(comm, err);
    if (!err)
        err = make_trainer(h, joins_as);
    if (err)
        host_free(h);
    else
        *out = h;
    return err;
}

void host_free(struct host *h)
{
    if (!h)
        return;
    dp_trainer_free(h->trainer);
    gpt_layers_free(h->layers);
    cuda_rank_free(h->cuda);
    free(h->batch.tokens);
    free(h->batch.labels);
    free(h);
}

struct dp_trainer *host_trainer(const struct host *h)
{
    return h->trainer;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* A batch as the trainer takes it. */
struct views {
    int64_t shape[2];
    DLTensor tensors[2];
    struct dp_tree leaves[2], trees[2];
};

static struct dp_batch view(const struct host *h, struct views *v)
{
    uint8_t *const bytes[] = {h->batch.tokens, h->batch.labels};

    v->shape[0] = h->settings->how.rows;
    v->shape[1] = h->settings->context;
    for (int i = 0; i < 2; i++) {
        v->tensors[i] = (DLTensor){bytes[i], {kDLCPU, 0}, 2, {kDLUInt, 8, 1}, v->shape, NULL, 0};
        v->leaves[i] = dp_tensor(&v->tensors[i]);
        v->trees[i] = dp_tuple(1, &v->leaves[i]);
    }
    return (struct dp_batch){.inputs = &v->trees[0], .labels = &v->trees[1]};
}

int host_step(struct host *h, uint64_t step, struct dp_trainer_result *result)
{
    const struct settings *s = h->settings;
    struct views v;
    const struct dp_batch batch = view(h, &v);

    data_batch(h->data, DATA_TRAIN, step, (int)s->how.rows, &h->batch);
    dp_trainer_set_rate(h->trainer, gpt_rate(step, (uint64_t)s->steps,
                                             (uint64_t)s->how.rate.warmup, s->how.rate.peak));
    return dp_trainer_step(h->trainer, &batch, result);
}

int host_evaluate(struct host *h, double *held_out)
{
    double sum = 0, loss;
    struct views v;
    const struct dp_batch batch = view(h, &v);
    int err = 0;

    for (uint64_t i = 0; i < HELD_OUT_BATCHES && !err; i++) {
        data_batch(h->data, DATA_HELD_OUT, i, (int)h->settings->how.rows, &h->batch);
        err = dp_trainer_evaluate(h->trainer, &batch, &loss);
        sum += err ? 0 : loss;
    }
    if (!err)
        *held_out = sum / HELD_OUT_BATCHES;
    return err;
}

int host_sample(struct host *h, const struct sample_spec *spec, uint8_t *text)
{
    struct sample_spec from = *spec;
    struct dp_named_tensor *tensors;
    int err = dp_trainer_gather(h->trainer, 0, &tensors, &from.tensor_count);

    if (err || !tensors)
        return err;
    from.tensors = tensors;
    err = sample_write(&h->settings->model, &from, text);
    dp_trainer_gathered_free(tensors);
    return err;
}
