/* SPDX-License-Identifier: Apache-2.0
 *
 * saved.c - which rank writes what, so that it is found again whichever rank held it:
 *
 *      one model, or gradients summed    the first copy of a stage: values, running statistics and
 *                                        optimizer state
 *      shards                            values the same; each rank the state of its shard, whose
 *                                        tensors are pieces, "NAME[first:end]/mean"
 *      replicas that mix                 saved.h
 *
 * A reader wants whole tensors or other pieces, and puts them together of what there is
 * (checkpoint.h).
 */
#include "comm/internal.h"
#include "microbatch/internal.h"
#include "mixing/internal.h"
#include "trainer/saved.h"

#include "base/fail.h"
#include "base/json.h"
#include "base/tensor.h"

#include <dualpipe/pipeline.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what there is to write ------------------------------------------------------------------ */

void saved_list_fini(struct saved_list *l)
{
    for (int i = 0; i < DP_MAX_SLOTS; i++)
        free(l->average[i]);
    free(l->tensors);
    free(l->norms);
    free(l->names);
}

static struct dp_optimizer *optimizer_of(const struct dp_trainer *t, int slot)
{
    return t->optimizers[slot] ? t->optimizers[slot] : t->sums.slots[slot].optimizer;
}

static size_t room_of(const struct dp_trainer *t)
{
    size_t room = 2 + (size_t)t->engine->norms.count * NORM_TENSORS;

    for (int i = 0; i < t->engine->part_count; i++) {
        struct dp_optimizer *o = optimizer_of(t, i), *copies = t->sums.slots[i].copies;
        int32_t pieces = 0;
        if (t->sums.slots[i].sums)
            dp_replicas_held(t->sums.slots[i].sums, &pieces);
        room += 2 * (size_t)t->engine->parts[i].count + (size_t)pieces +
                (o ? (size_t)dp_optimizer_state_count(o) : 0) +
                (copies ? (size_t)dp_optimizer_state_count(copies) : 0);
        if (t->in_files[i])
            room += (size_t)dp_offload_optimizer_state_count(t->in_files[i]);
    }
    return room;
}

static void add_tensor(struct saved_list *l, const char *name, const DLTensor *tensor)
{
    l->tensors[l->count++] = (struct dp_named_tensor){name, *tensor};
}

/* Copies of tied parameters are read, not written. */
static void add_values(struct saved_list *l, const struct engine_part *part, bool copies)
{
    for (int32_t i = 0; i < part->count; i++) {
        const struct dp_parameter *p = &part->parameters[i];
        if (copies || !model_is_copy(p->name, p->tied))
            add_tensor(l, saved_name(p), p->value);
    }
}

/* Pieces that this rank updates. A rank that died may not have sent the others what it updated. */
static void add_updated(struct saved_list *l, const struct dp_trainer *t, int slot)
{
    const struct engine_part *part = &t->engine->parts[slot];
    int32_t count;
    const struct dp_parameter *held = dp_replicas_held(t->sums.slots[slot].sums, &count);

    for (int32_t i = 0; i < count; i++)
        add_tensor(l, held[i].name, held[i].value);
    for (int32_t i = 0; i < part->count; i++) { /* what is in no shard */
        const struct dp_parameter *p = &part->parameters[i];
        if (p->flags & DP_PARAMETER_FROZEN || !dp_parameter_elements(p))
            add_tensor(l, saved_name(p), p->value);
    }
}

static void add_norm(struct saved_list *l, const struct engine_norm *norm)
{
    struct norm_tensor *own = &l->norms[l->norm_count];

    norm_tensors(norm, own);
    for (int32_t k = 0; k < NORM_TENSORS; k++)
        add_tensor(l, own[k].name, &own[k].tensor);
    l->norm_count += NORM_TENSORS;
}

static void add_state_of(struct saved_list *l, struct dp_optimizer *o)
{
    const struct dp_named_tensor *state = o ? dp_optimizer_state(o) : NULL;

    for (int32_t i = 0; o && i < dp_optimizer_state_count(o); i++)
        add_tensor(l, state[i].name, &state[i].tensor);
}

static int add_state(struct saved_list *l, const struct dp_trainer *t, int slot, bool copies)
{
    struct dp_offload_optimizer *file = t->in_files[slot];
    const struct dp_named_tensor *state = NULL;

    add_state_of(l, optimizer_of(t, slot));
    if (copies)
        add_state_of(l, t->sums.slots[slot].copies);
    const int err = file ? dp_offload_optimizer_state(file, &state) : 0;
    for (int32_t i = 0; file && !err && i < dp_offload_optimizer_state_count(file); i++)
        add_tensor(l, state[i].name, &state[i].tensor);
    return err;
}

static bool is_listed(const struct dp_trainer *t, int slot, enum saved_which which)
{
    return which != SAVED_FIRST ||
           (t->engine->replica.first && !t->engine->parts[slot].second_copy);
}

static int slot_of(const struct dp_trainer *t, const struct engine_norm *norm)
{
    int slot = 0;

    while (t->first_layer[t->engine->parts[slot].stage] > norm->layer ||
           t->first_layer[t->engine->parts[slot].stage + 1] <= norm->layer)
        slot++;
    return slot;
}

/* Gradients whose update is still to come. */
static int list_late(const struct dp_trainer *t, enum saved_which which,
                     struct saved_list *l)
{
    size_t count = 0;

    for (int i = 0; i < t->engine->part_count; i++)
        count += (size_t)t->engine->parts[i].count;
    l->names = calloc(count + 1, sizeof(*l->names));
    if (!l->names)
        return dp_fail(DP_ENOMEM, "no memory for a list of %zu gradients", count);
    count = 0;
    for (int i = 0; i < t->engine->part_count; i++)
        for (int32_t k = 0; k < t->engine->parts[i].count && is_listed(t, i, which); k++) {
            const struct dp_parameter *p = &t->engine->parts[i].parameters[k];
            if (!p->grad || (t->engine->tied && !model_engine_owns(t->engine, i, k)))
                continue; /* those of copies stay zero */
            snprintf(l->names[count], sizeof(l->names[count]), "%s%s", saved_name(p), late_suffix);
            add_tensor(l, l->names[count++], &t->late->kept[i][k]);
        }
    if (which != SAVED_FIRST || trainer_rank(t) == 0)
        add_tensor(l, late_name, late_state(t->late));
    return 0;
}

static int list_new(const struct dp_trainer *t, struct saved_list *l)
{
    *l = (struct saved_list){0};
    l->tensors = calloc(room_of(t), sizeof(*l->tensors));
    l->norms = calloc((size_t)t->engine->norms.count * NORM_TENSORS + 1, sizeof(*l->norms));
    return l->tensors && l->norms
               ? 0
               : dp_fail(DP_ENOMEM, "no memory for a list of %zu tensors", room_of(t));
}

static void add_norms(const struct dp_trainer *t, enum saved_which which, struct saved_list *l)
{
    const struct engine *e = t->engine;

    for (int32_t i = 0; i < e->norms.count; i++)
        if (e->norms.list[i].norm && is_listed(t, slot_of(t, &e->norms.list[i]), which))
            add_norm(l, &e->norms.list[i]);
}

int saved_list_new(const struct dp_trainer *t, enum saved_which which, struct saved_list *l)
{
    const struct engine *e = t->engine;
    const bool shards = !t->sums.none && t->sums.kind == DP_SUMS_SHARDS;
    int err = list_new(t, l);

    for (int i = 0; i < e->part_count && !err; i++) {
        const bool listed = is_listed(t, i, which);
        if (which == SAVED_HELD && t->sums.twice)
            add_updated(l, t, i);
        else if (listed)
            add_values(l, &e->parts[i], which == SAVED_WANTED);
        if (listed || shards)
            err = add_state(l, t, i, which != SAVED_FIRST);
    }
    if (!err)
        add_norms(t, which, l);
    return err;
}

/* Running statistics alone, which replicas that mix share. */
static int norms_list_new(const struct dp_trainer *t, enum saved_which which, struct saved_list *l)
{
    const int err = list_new(t, l);

    if (!err)
        add_norms(t, which, l);
    return err;
}

/* Of replicas that mix what they share, otherwise all; and with `late` what is used late. */
static int list_all(const struct dp_trainer *t, enum saved_which which, bool shared, bool late,
                    struct saved_list *l)
{
    const int err = shared ? norms_list_new(t, which, l) : saved_list_new(t, which, l);

    return err || !late ? err : list_late(t, which, l);
}

/* ---- writing --------------------------------------------------------------------------------- */

static int write_own(struct dp_trainer *t, const char *folder, int attempt, int *wrote)
{
    char name[64], path[SAVED_PATH];
    struct place_copies copies = {0};
    struct saved_list l = {0};
    struct dp_busy *busy;
    int err = list_all(t, SAVED_FIRST, trainer_mixes(t), t->late, &l);

    if (!err && trainer_mixes(t))
        err = saved_mixing_list(&t->sums, &l);
    if (!err)
        err = place_bring(t->home, l.tensors, l.count, true, &copies);

    folder_file(name, sizeof(name), trainer_rank(t), attempt);
    *wrote = !err && (l.count > 0 || trainer_rank(t) == 0);
    busy = dp_comm_busy_begin(t->comm);
    if (*wrote)
        err = checkpoint_join(path, folder, name)
                  ? dp_checkpoint_write(path, l.tensors, l.count, NULL)
                  : dp_fail(DP_EINVAL, "%.100s...: the path is too long", folder);
    dp_comm_busy_end(busy);
    place_copies_free(t->home, &copies);
    saved_list_fini(&l);
    return err;
}

/* {"step": 20, ...} with what the program says. NULL: no memory; *err DP_EINVAL: that is no object.
 */
static char *index_text(const struct dp_trainer *t, int *err)
{
    const char *about = t->config.checkpoint.about;
    json_t *root = about ? json_loads(about, 0, NULL) : json_object();
    char *text = NULL;

    const struct dp_loss_scale *scale = &t->config.loss_scale;
    bool good = json_is_object(root) &&
                !json_object_set_new(root, "step", json_integer((json_int_t)t->next));

    if (good && scale->scale > 0)
        good = !json_object_set_new(root, "loss_scale", json_real(scale->scale)) &&
               !json_object_set_new(root, "good_steps", json_integer(scale->good));
    if (good)
        text = json_dumps(root, JSON_COMPACT);
    if (!text)
        *err = json_is_object(root)
                   ? dp_fail(DP_ENOMEM, "no memory for the text of an index")
                   : dp_fail(DP_EINVAL, "checkpoint.about: expected a JSON object");
    json_decref(root);
    return text;
}

static int write_index(struct dp_trainer *t, const char *folder, int attempt, const int *wrote)
{
    char(*names)[64] = calloc((size_t)t->ranks, sizeof(*names)), path[SAVED_PATH];
    const char **files = calloc((size_t)t->ranks, sizeof(*files));
    int err = names && files ? 0 : dp_fail(DP_ENOMEM, "no memory for %d names", t->ranks);
    char *text = err ? NULL : index_text(t, &err);
    int32_t count = 0;

    for (int rank = 0; rank < t->ranks && !err; rank++)
        if (wrote[rank]) {
            folder_file(names[rank], sizeof(names[rank]), rank, attempt);
            files[count++] = names[rank];
        }
    if (!err)
        err = checkpoint_join(path, folder, "index.json")
                  ? dp_checkpoint_write_index(path, files, count, text)
                  : DP_EINVAL;
    if (!err)
        folder_clean(folder, attempt, wrote, t->ranks);
    free(text);
    free(names);
    free(files);
    return err;
}

/* On rank 0, for all. */
static int begin_folder(struct dp_trainer *t, const char *dir, char folder[static SAVED_PATH],
                        int *attempt)
{
    struct dp_busy *busy;
    int err = folder_of_step(dir, t->next, folder);

    if (err || trainer_rank(t))
        return err;
    busy = dp_comm_busy_begin(t->comm);
    err = folder_make(dir, folder);
    if (!err)
        *attempt = folder_next_attempt(folder);
    dp_comm_busy_end(busy);
    return err;
}

static int end_folder(struct dp_trainer *t, const char *dir, const char *folder, int attempt,
                      const int *wrote)
{
    struct dp_busy *busy;
    int err;

    if (trainer_rank(t))
        return 0;
    busy = dp_comm_busy_begin(t->comm);
    err = write_index(t, folder, attempt, wrote);
    if (!err && t->config.checkpoint.keep)
        folder_keep(dir, t->next, t->config.checkpoint.keep);
    dp_comm_busy_end(busy);
    return err;
}

static int save(struct dp_trainer *t, const char *dir, int *wrote)
{
    char folder[SAVED_PATH];
    int attempt = 0, mine = 0;
    int err = dp_comm_share_error(t->comm, begin_folder(t, dir, folder, &attempt));

    if (!err && t->comm)
        err = dp_comm_broadcast(t->comm, &attempt, sizeof(attempt), 0);
    if (!err)
        err = dp_comm_share_error(t->comm, write_own(t, folder, attempt, &mine));
    wrote[0] = mine;
    if (!err && t->comm)
        err = dp_comm_allgather(t->comm, &mine, wrote, sizeof(mine));
    return err ? err : dp_comm_share_error(t->comm, end_folder(t, dir, folder, attempt, wrote));
}

int trainer_save(struct dp_trainer *t, void *arg)
{
    struct trainer_saving *s = arg;
    const char *dir = s->folder ? s->folder : t->config.checkpoint.folder;
    int *wrote = calloc((size_t)t->ranks, sizeof(*wrote));
    int err = wrote ? 0 : dp_fail(DP_ENOMEM, "no memory for the files of %d ranks", t->ranks);

    if (!err && !dir)
        err = dp_fail(DP_EINVAL, "folder: NULL, expected one here or in the config");
    err = dp_comm_share_error(t->comm, err);
    if (!err)
        err = save(t, dir, wrote);
    if (!err && t->folder && !strcmp(dir, t->folder))
        t->saved_step = t->next;
    free(wrote);
    s->err = err;
    snprintf(s->why, sizeof(s->why), "%s", err ? dp_last_error() : "");
    return trainer_may_be_death(err) ? err : 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Of a checkpoint without one it stays as the config has it. */
static void take_loss_scale(struct dp_loss_scale *scale, const json_t *root)
{
    const double saved = json_number_value(json_object_get(root, "loss_scale"));

    if (scale->scale == 0 || !(saved >= scale->least && saved <= scale->most))
        return;
    scale->scale = saved;
    scale->good = (int32_t)json_integer_value(json_object_get(root, "good_steps"));
}

static int numbers_of(struct dp_trainer *t, const struct dp_checkpoint *c, const char *path,
                      uint64_t *step)
{
    json_t *root = json_loads(dp_checkpoint_json(c), 0, NULL);
    const json_t *value = json_object_get(root, "step");
    int err = 0;

    take_loss_scale(&t->config.loss_scale, root);
    if (json_is_integer(value) && json_integer_value(value) >= 0)
        *step = (uint64_t)json_integer_value(value);
    else
        err = dp_fail(DP_EINVAL, "%s: no \"step\" there, expected a checkpoint of a trainer", path);
    json_decref(root);
    return err;
}

static int read_state(struct dp_trainer *t, const struct dp_checkpoint *c)
{
    struct place_copies copies = {0};
    struct saved_list l = {0};
    const bool late = t->late && late_is_in(c);
    int err = trainer_mixes(t) ? saved_mixing_read(&t->sums, c) : 0;

    if (!err)
        err = list_all(t, SAVED_WANTED, trainer_mixes(t), late, &l);
    if (!err)
        err = place_bring(t->home, l.tensors, l.count, false, &copies);
    for (int32_t i = 0; i < l.count && !err; i++)
        err = dp_checkpoint_read_pieces(c, &l.tensors[i]);
    if (!err)
        err = place_put_back(t->home, l.tensors, &copies);
    if (!err && t->late && !late)
        late_set(t->late, NULL);
    place_copies_free(t->home, &copies);
    saved_list_fini(&l);
    return err;
}

static int read_all(struct dp_trainer *t, const char *path, uint64_t *step)
{
    struct dp_checkpoint *c;
    struct dp_busy *busy;
    int err;

    busy = dp_comm_busy_begin(t->comm);
    err = dp_checkpoint_open(path, &c);
    if (!err) {
        err = numbers_of(t, c, path, step);
        if (!err)
            err = read_state(t, c);
        dp_checkpoint_close(c);
    }
    dp_comm_busy_end(busy);
    return err;
}

/* Rank 0 says which: the newest may be another one a moment later. optional: an empty path for
 * none. */
static int find(struct dp_trainer *t, const char *dir, bool optional, char path[static SAVED_PATH])
{
    int err = dir ? 0 : dp_fail(DP_EINVAL, "folder: NULL, expected one here or in the config");

    memset(path, 0, SAVED_PATH);
    if (!err && !trainer_rank(t))
        err = folder_find(dir, path);
    if (err == DP_ENOENT && optional)
        err = *path = 0;
    err = dp_comm_share_error(t->comm, err);
    return err || !t->comm ? err : dp_comm_broadcast(t->comm, path, SAVED_PATH, 0);
}

int trainer_resume(struct dp_trainer *t, const char *dir, bool optional)
{
    char path[SAVED_PATH];
    uint64_t step = 0;
    int err = find(t, dir ? dir : t->config.checkpoint.folder, optional, path);

    if (err || !*path)
        return err;
    err = read_all(t, path, &step);
    if (trainer_mixes(t)) /* others may be in the middle of what mixers do together */
        err = trainer_fail(t, err);
    err = dp_comm_share_error(t->comm, err);
    if (err)
        return err;
    trainer_seek(t, step);
    t->saved_step = t->folder && (!dir || !strcmp(dir, t->folder)) ? step : 0;
    return 0;
}

int dp_trainer_resume(struct dp_trainer *t, const char *dir)
{
    return trainer_resume(t, dir, false);
}

/* ---- is all of it there? --------------------------------------------------------------------- */

int saved_verify(struct dp_trainer *t, bool norms_only, const struct saved_search *s)
{
    struct saved_list l = {0};
    int err = 0;

    if (t->config.delay_update && !norms_only && late_is_in(s->c))
        err = late_new(t->engine->parts, t->engine->part_count, &t->late);
    if (!err)
        err = list_all(t, SAVED_FIRST, norms_only, t->late, &l);
    for (int32_t i = 0; i < l.count && !err; i++)
        saved_want(s, l.tensors[i].name, &l.tensors[i].tensor);
    saved_list_fini(&l);
    return err;
}

/* ---- all of it on one rank ------------------------------------------------------------------- */

void dp_trainer_gathered_free(struct dp_named_tensor *tensors)
{
    if (tensors)
        free(tensors[0].tensor.data);
    free(tensors);
}

static size_t padded(size_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

/* Of its values, padded. */
static size_t norm_bytes(const struct engine_norm *norm)
{
    struct norm_tensor own[NORM_TENSORS];
    size_t bytes = 0;

    norm_tensors(norm, own);
    for (int k = 0; k < NORM_TENSORS; k++)
        bytes += padded(dp_tensor_bytes(&own[k].tensor));
    return bytes;
}

/* Behind `at`: NORM_TENSORS descriptions, whose values come first. Returns what is behind them. */
static char *add_gathered_norm(const struct engine_norm *norm, char *at, struct dp_named_tensor *list,
                               int32_t *count)
{
    struct norm_tensor *own = (struct norm_tensor *)(void *)(at + norm_bytes(norm));

    norm_tensors(norm, own);
    for (int k = 0; k < NORM_TENSORS; k++) {
        own[k].tensor.data = at;
        list[(*count)++] = (struct dp_named_tensor){own[k].name, own[k].tensor};
        at += padded(dp_tensor_bytes(&own[k].tensor));
    }
    return (char *)(own + NORM_TENSORS);
}

/* Tensors of all parameters but the copies of tied ones, and of all running statistics, in memory of
 * their own, that of the first. */
static int make_gathered(const struct dp_trainer *t, struct dp_named_tensor **out, int32_t *count)
{
    const struct model_info *m = &t->model;
    const int32_t all = m->first[m->model.layer_count];
    const size_t norms = (size_t)t->engine->norms.count * NORM_TENSORS;
    struct dp_named_tensor *list = calloc((size_t)all + norms + 1, sizeof(*list));
    size_t bytes = norms * sizeof(struct norm_tensor) + 1;
    int32_t n = 0;

    for (int32_t i = 0; i < all; i++)
        bytes += padded(m->parameters[i].bytes);
    for (int32_t i = 0; i < t->engine->norms.count; i++)
        bytes += norm_bytes(&t->engine->norms.list[i]);
    char *at = malloc(bytes);
    if (!list || !at) {
        free(list);
        free(at);
        return dp_fail(DP_ENOMEM, "no memory for all %zu bytes of the model", bytes);
    }
    list[0].tensor.data = at;
    for (int32_t i = 0; i < all; i++) {
        const struct model_parameter *p = &m->parameters[i];
        if (model_is_copy(p->name, p->tied))
            continue;
        list[n++] = (struct dp_named_tensor){p->name,
                                             {.data = at,
                                              .device = {kDLCPU, 0},
                                              .ndim = p->spec->ndim,
                                              .dtype = p->spec->dtype,
                                              .shape = (int64_t *)p->spec->shape}};
        at += padded(p->bytes);
    }
    for (int32_t i = 0; i < t->engine->norms.count; i++)
        at = add_gathered_norm(&t->engine->norms.list[i], at, list, &n);
    *out = list;
    *count = n;
    return 0;
}

/* What this rank is the first to hold. */
static int list_values(const struct dp_trainer *t, struct saved_list *l)
{
    const int err = norms_list_new(t, SAVED_FIRST, l);

    for (int i = 0; i < t->engine->part_count && !err; i++)
        if (is_listed(t, i, SAVED_FIRST))
            add_values(l, &t->engine->parts[i], false);
    return err;
}

static int move(struct dp_trainer *t, const struct saved_list *has, struct dp_named_tensor *wants,
                int32_t count)
{
    if (t->comm)
        return dp_pipeline_move_state(t->comm, has->tensors, has->count, wants, count);
    for (int32_t i = 0; i < has->count; i++)
        for (int32_t k = 0; k < count; k++)
            if (!strcmp(has->tensors[i].name, wants[k].name))
                dp_tensor_copy(&wants[k].tensor, &has->tensors[i].tensor);
    return 0;
}

int trainer_gather(struct dp_trainer *t, void *arg)
{
    struct trainer_gathered *g = arg;
    struct place_copies copies = {0};
    struct saved_list has = {0};
    int err = list_values(t, &has);

    dp_trainer_gathered_free(g->tensors); /* of a try that a death has ended */
    *g = (struct trainer_gathered){.rank = g->rank};
    if (!err)
        err = place_bring(t->home, has.tensors, has.count, true, &copies);
    if (!err && (g->rank < 0 || g->rank >= t->ranks))
        err = dp_fail(DP_EINVAL, "rank: %d, expected 0 to %d", g->rank, t->ranks - 1);
    if (!err && trainer_rank(t) == g->rank)
        err = make_gathered(t, &g->tensors, &g->count);
    err = dp_comm_share_error(t->comm, err);
    if (!err)
        err = move(t, &has, g->tensors, g->count);
    place_copies_free(t->home, &copies);
    saved_list_fini(&has);
    if (err) {
        dp_trainer_gathered_free(g->tensors);
        g->tensors = NULL;
    }
    return err;
}
