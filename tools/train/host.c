/* SPDX-License-Identifier: Apache-2.0 */
#include "train/host.h"

#include "train/gpt_layers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what the options mean ------------------------------------------------------------------- */

bool host_is_bf16(const struct settings *s)
{
    return !strcmp(s->dtype, "bf16");
}

struct dp_trainer_config host_config(const struct settings *s, int32_t *layers_of_stage)
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
    c.dtype = host_is_bf16(s) ? (DLDataType){kDLBfloat, 16, 1} : (DLDataType){0};
    c.nccl = settings_by_nccl(s);
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
    if (from)
        word_list_fini(&from->words);
    free(from);
    return err;
}
