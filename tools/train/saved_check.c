/* SPDX-License-Identifier: Apache-2.0
 *
 * saved_check.c - the tensors that a run needs to go on, by the options in its checkpoint: those that
 * the library's trainer has written from a run's memory.
 */
#include "train/saved_check.h"

#include "train/gpt.h"
#include "train/settings.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct search {
    const struct dp_checkpoint *c;
    void (*fault)(void *user, const char *sentence);
    void *user;
};

static const DLDataType float32 = {kDLFloat, 32, 1}, float64 = {kDLFloat, 64, 1};
static const DLDataType int64 = {kDLInt, 64, 1};

static void want(const struct search *s, const char *prefix, const char *name, const char *suffix,
                 DLTensor like)
{
    char whole[256], text[384];
    const struct dp_named_tensor wanted = {whole, like};

    snprintf(whole, sizeof(whole), "%s%s%s", prefix, name, suffix);
    const int64_t missing = dp_checkpoint_missing(s->c, &wanted);
    int64_t elements = 1;
    for (int i = 0; i < like.ndim; i++)
        elements *= like.shape[i];
    if (missing < 0)
        snprintf(text, sizeof(text), "tensor '%s' is of another type or shape than the options say",
                 whole);
    else if (missing < elements)
        snprintf(text, sizeof(text), "a part of '%s' (%" PRId64 " of %" PRId64 " elements) is missing",
                 whole, missing, elements);
    else
        snprintf(text, sizeof(text), "tensor '%s' is missing", whole);
    if (missing)
        s->fault(s->user, text);
}

static void want_state(const struct search *s, const char *prefix, const char *name, DLTensor like)
{
    want(s, prefix, name, "/mean", like);
    want(s, prefix, name, "/square", like);
    want(s, prefix, name, "/step", (DLTensor){.dtype = int64});
}

static DLTensor like(const struct gpt_stage *g, size_t i)
{
    return (DLTensor){.ndim = 2, .dtype = float32, .shape = g->tensors[i].shape};
}

/* Of an update that was due when the checkpoint was written: its numbers. Gradients are beside. */
static const char late_update_name[] = "late/step";

static bool late_update_is_in(const struct dp_checkpoint *c)
{
    bool found = dp_checkpoint_find(c, late_update_name);

    for (int32_t i = 0; i < dp_checkpoint_count(c) && !found; i++) {
        const char *slash = strrchr(dp_checkpoint_at(c, i)->name, '/');
        found = slash && !strcmp(slash, "/late");
    }
    return found;
}

/* Of one model, or of replicas that sum. */
static void want_model(const struct search *s, const struct gpt_stage *g, bool late)
{
    int64_t numbers = 4;

    for (size_t i = 0; i < g->params.tensors_len; i++) {
        if (!tensor_is_copy(&g->params.tensors[i])) {
            want(s, "", g->tensors[i].name, "", like(g, i));
            want_state(s, "", g->tensors[i].name, like(g, i));
        }
        if (late)
            want(s, "", gpt_saved_name(g, i), "/late", like(g, i));
    }
    if (late)
        want(s, "", late_update_name, "",
             (DLTensor){.ndim = 1, .dtype = float64, .shape = &numbers});
}

/* Of a replica that mixes: its values, and the state of its mixer, whose numbers say the rest. */
static void want_replica(const struct search *s, const struct gpt_stage *g, int replica, int stage)
{
    char values[64], state[64];

    snprintf(values, sizeof(values), "replica %d/", replica);
    snprintf(state, sizeof(state), "replica %d stage %d/", replica, stage);
    for (size_t i = 0; i < g->params.tensors_len; i++) {
        want(s, values, g->tensors[i].name, "", like(g, i));
        if (!replica)
            want(s, "", g->tensors[i].name, "", like(g, i));
        want_state(s, state, g->tensors[i].name, like(g, i));
    }
    char numbers[96];
    snprintf(numbers, sizeof(numbers), "%smixer/numbers", state);
    const struct dp_checkpoint_tensor *t = dp_checkpoint_find(s->c, numbers);
    int64_t length = t && t->ndim == 1 ? t->shape[0] : 1;
    want(s, "", numbers, "", (DLTensor){.ndim = 1, .dtype = int64, .shape = &length});
}

/* *out: 0 of a list that is in another file, or of no schedule. */
static int count_stages(const struct settings *was, int *out)
{
    struct dp_schedule_spec spec = {.ranks = (int)was->ranks,
                                    .microbatches = (int)(was->microbatches / was->how.replicas),
                                    .virtual_stages = (int)was->how.schedule.virtual_stages};
    struct dp_schedule *outline;

    *out = was->file || !was->schedule_name ? 0 : 1;
    if (!*out || !strcmp(was->schedule_name, "none"))
        return 0;
    int err = dp_schedule_kind_parse(was->schedule_name, &spec.kind);
    if (!err)
        err = dp_schedule_new_outline(&spec, &outline);
    if (err)
        return err;
    *out = outline->stages;
    dp_schedule_free(outline);
    return 0;
}

static int want_replicas(const struct search *s, const struct settings *was,
                         const struct gpt_config *model)
{
    struct gpt_stage *g;
    int stages;
    int err = count_stages(was, &stages);

    for (int stage = 0; stage < stages && !err; stage++) {
        err = gpt_stage_new_bare(model, stage, stages, &g);
        for (int r = 0; r < was->how.replicas && !err; r++)
            want_replica(s, g, r, stage);
        if (!err)
            gpt_stage_free(g);
    }
    return err;
}

static int want_all(const struct search *s, const struct settings *was)
{
    const struct gpt_config model = settings_model(was);
    const bool sums = !strcmp(was->mix, "all-reduce") || !strcmp(was->mix, "reduce-scatter");
    struct gpt_stage *g;

    if (!sums)
        return want_replicas(s, was, &model);
    int err = gpt_stage_new_bare(&model, 0, 1, &g);
    if (err)
        return err;
    want_model(s, g, was->late && late_update_is_in(s->c));
    gpt_stage_free(g);
    return err;
}

int saved_check(const struct dp_checkpoint *c, const char *path,
                void (*fault)(void *user, const char *sentence), void *user)
{
    const struct search s = {c, fault, user};
    struct resume *from = calloc(1, sizeof(*from));
    struct settings was = {0};
    int err = from ? 0 : DP_ENOMEM;

    if (!err && !resume_take(c, from))
        fault(user, "its options, or the step, cannot be read");
    else if (!err) {
        snprintf(from->path, sizeof(from->path), "%s", path);
        if (settings_of_words(from, &was) && was.microbatches && was.batch)
            err = want_all(&s, &was);
        else
            fault(user, "its options are none of this version's");
    }
    free(from);
    return err;
}
