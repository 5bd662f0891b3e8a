/* SPDX-License-Identifier: Apache-2.0
 *
 * saved.c - which rank writes what:
 *
 *      one model, or gradients summed    the first copy of a stage: values and optimizer state
 *      shards                            values the same; each rank the state of its shard, whose
 *                                        tensors are pieces, "NAME[first:end]/mean"
 *      replicas that mix                 saved_mixing.h
 *
 * A reader wants whole tensors or other pieces, and puts them together of what there is
 * (dp_checkpoint_read_pieces).
 */
#include "train/saved.h"

#include "checkpoint/find.h"

#include "train/late.h"
#include "train/saved_mixing.h"

#include <dualpipe/checkpoint.h>

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_LEN = 48, LATE_NAME = 128 };

/* ---- what there is to write ------------------------------------------------------------------ */

struct list {
    struct dp_named_tensor *tensors;
    int32_t count;
    struct {
        const struct gpt_stage *stage;
        struct dp_optimizer *optimizer;
    } slots[DP_MAX_SLOTS]; /* whose memory is the host's */
    char *names;                          /* of gradients that are due, LATE_NAME each */
    int32_t late_count;
};

static int rank_of(const struct trainer *t)
{
    return t->comm ? dp_comm_rank(t->comm) : 0;
}

static void list_free(struct list *l)
{
    free(l->tensors);
    free(l->names);
}

static struct dp_optimizer *optimizer_of(const struct trainer *t, int slot)
{
    return t->config.kind == DATA_PARALLEL_SHARD ? t->replicas.slots[slot].optimizer
                                                 : t->optimizers[slot];
}

static void find_slots(const struct trainer *t, struct list *l)
{
    for (int i = 0; i < t->engine->stage_count; i++) {
        l->slots[i].stage = t->engine->stages[i];
        l->slots[i].optimizer = optimizer_of(t, i);
    }
}

static int32_t state_count(const struct trainer *t, const struct list *l, int slot)
{

    if (t->in_files[slot])
        return dp_offload_optimizer_state_count(t->in_files[slot]);
    return (l->slots[slot].optimizer ? dp_optimizer_state_count(l->slots[slot].optimizer) : 0);
}

static int32_t room_of(const struct trainer *t, const struct list *l)
{
    int32_t room = 2;

    for (int i = 0; i < t->engine->stage_count; i++)
        room += 2 * (int32_t)t->engine->stages[i]->params.tensors_len + state_count(t, l, i);
    return room;
}

static void add_tensor(struct list *l, const char *name, const DLTensor *tensor)
{
    l->tensors[l->count++] = (struct dp_named_tensor){name, *tensor};
}

/* Copies of tied parameters are read, not written. */
static void add_values(struct list *l, const struct gpt_stage *stage, bool copies)
{
    for (size_t i = 0; i < stage->params.tensors_len; i++)
        if (copies || !tensor_is_copy(&stage->params.tensors[i]))
            add_tensor(l, gpt_saved_name(stage, i), stage->parameters[i].value);
}

static void add_all(struct list *l, const struct dp_named_tensor *state, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        add_tensor(l, state[i].name, &state[i].tensor);
}

static int add_state(struct list *l, const struct trainer *t, int slot)
{
    const struct dp_named_tensor *state = NULL;
    int32_t count = 0;
    int err = 0;

    if (t->in_files[slot]) {
        count = dp_offload_optimizer_state_count(t->in_files[slot]);
        err = dp_offload_optimizer_state(t->in_files[slot], &state);
    } else if (l->slots[slot].optimizer) {
        count = dp_optimizer_state_count(l->slots[slot].optimizer);
        state = dp_optimizer_state(l->slots[slot].optimizer);
    }
    if (!err)
        add_all(l, state, count);
    return err;
}

/* Gradients whose update is still to come. */
static void add_late(struct list *l, const struct trainer *t, int slot)
{
    const struct gpt_stage *stage = t->engine->stages[slot];

    for (size_t i = 0; i < stage->params.tensors_len; i++) {
        char *name = l->names + (size_t)l->late_count++ * LATE_NAME;
        snprintf(name, LATE_NAME, "%s/late", gpt_saved_name(stage, i));
        add_tensor(l, name, late_gradient(t, slot, i));
    }
}

static int list_late(struct trainer *t, bool all, struct list *l)
{
    size_t count = 0;

    for (int i = 0; i < t->engine->stage_count; i++)
        count += t->engine->stages[i]->params.tensors_len;
    l->names = calloc(count + 1, LATE_NAME);
    if (!l->names)
        return DP_ENOMEM;
    for (int i = 0; i < t->engine->stage_count; i++)
        if (all || !t->engine->second_copy[i])
            add_late(l, t, i);
    if (all || rank_of(t) == 0)
        add_tensor(l, late_update_name, late_update_state(t));
    return 0;
}

static int list_state(const struct trainer *t, bool all, struct list *l)
{
    const bool shards = t->config.kind == DATA_PARALLEL_SHARD;

    *l = (struct list){0};
    int err = 0;

    find_slots(t, l);
    l->tensors = calloc((size_t)room_of(t, l), sizeof(*l->tensors));
    if (!l->tensors)
        return DP_ENOMEM;
    for (int i = 0; i < t->engine->stage_count && !err; i++) {
        const bool first = t->engine->replica.index == 0 && !t->engine->second_copy[i];
        if (all || first)
            add_values(l, l->slots[i].stage, all);
        if (all || first || shards)
            err = add_state(l, t, i);
    }
    return err;
}

/* ---- writing --------------------------------------------------------------------------------- */

static bool file_name(char out[static NAME_LEN], int rank, int attempt)
{
    return snprintf(out, NAME_LEN, "rank-%d.%d.safetensors", rank, attempt) < NAME_LEN;
}

static bool join(char out[static CHECKPOINT_PATH], const char *folder, const char *name)
{
    return snprintf(out, CHECKPOINT_PATH, "%s/%s", folder, name) < CHECKPOINT_PATH;
}

/* The name of a new folder is on the disk when its parent is. */
static void make_folder(const char *dir, const char *folder)
{
    int fd;

    mkdir(dir, 0777);
    mkdir(folder, 0777); /* if that fails, so does what is written there, and says why */
    fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    fsync(fd);
    close(fd);
}

/* A checkpoint of the same step may be there already, and is the last one until the index of this
 * one takes its index's place: no file of it is touched. Every index names the file of rank 0. */
static int next_attempt(const char *folder)
{
    char name[NAME_LEN], path[CHECKPOINT_PATH];
    int attempt = 0;

    while (file_name(name, 0, attempt) && join(path, folder, name) && !access(path, F_OK))
        attempt++;
    return attempt;
}

/* mixing: as of saved_mixing_list, zeroed where replicas do not mix. */
static int write_own(struct trainer *t, const char *folder, int attempt,
                     const struct saved_mixing *mixing, int *wrote)
{
    const bool mixes = t->config.kind == DATA_PARALLEL_MIX;
    char name[NAME_LEN], path[CHECKPOINT_PATH];
    struct list l = {0};
    struct dp_busy *busy;
    int err = mixes ? 0 : list_state(t, false, &l);
    if (!err && t->config.late)
        err = list_late(t, false, &l);
    const struct dp_named_tensor *tensors = mixes ? mixing->tensors : l.tensors;
    const int32_t count = mixes ? mixing->count : l.count;

    file_name(name, rank_of(t), attempt);
    *wrote = !err && (count > 0 || rank_of(t) == 0);
    busy = dp_comm_busy_begin(t->comm);
    if (*wrote)
        err = join(path, folder, name) ? dp_checkpoint_write(path, tensors, count, NULL)
                                       : DP_EINVAL;
    dp_comm_busy_end(busy);
    list_free(&l);
    return err;
}

/* Files of attempts that were overtaken or cut off: those that the index does not name. */
static void remove_others(const char *folder, int attempt, const int *wrote, int ranks)
{
    char path[CHECKPOINT_PATH];
    int rank, other, end;
    DIR *d = opendir(folder);

    if (!d)
        return;
    for (struct dirent *e; (e = readdir(d));) {
        end = 0;
        if (sscanf(e->d_name, "rank-%d.%d.safetensors%n", &rank, &other, &end) == 2 && end &&
            (other != attempt || rank < 0 || rank >= ranks || !wrote[rank] || e->d_name[end]) &&
            join(path, folder, e->d_name))
            unlink(path);
    }
    closedir(d);
}

static int write_index(const char *folder, int attempt, const int *wrote, int ranks,
                       const char *text)
{
    char(*names)[NAME_LEN] = calloc((size_t)ranks, sizeof(*names)), path[CHECKPOINT_PATH];
    const char **files = calloc((size_t)ranks, sizeof(*files));
    int32_t count = 0;
    int err = names && files ? 0 : DP_ENOMEM;

    for (int rank = 0; rank < ranks && !err; rank++)
        if (wrote[rank]) {
            file_name(names[rank], rank, attempt);
            files[count++] = names[rank];
        }
    if (!err)
        err = join(path, folder, "index.json") ? dp_checkpoint_write_index(path, files, count, text)
                                               : DP_EINVAL;
    if (!err)
        remove_others(folder, attempt, wrote, ranks);
    free(names);
    free(files);
    return err;
}

static int write_all(struct trainer *t, const char *folder, int attempt, int *wrote,
                     const char *text)
{
    struct saved_mixing mixing = {0};
    struct dp_busy *busy;
    int mine = 0, err = 0;

    if (t->config.kind == DATA_PARALLEL_MIX)
        err = saved_mixing_list(t, &mixing);
    if (!err)
        err = write_own(t, folder, attempt, &mixing, &mine);
    saved_mixing_fini(&mixing);
    wrote[0] = mine;
    if (!err && t->comm)
        err = dp_comm_allgather(t->comm, &mine, wrote, sizeof(mine));
    if (err || rank_of(t))
        return err;
    busy = dp_comm_busy_begin(t->comm);
    err = write_index(folder, attempt, wrote, t->ranks, text);
    dp_comm_busy_end(busy);
    return err;
}

int saved_write(struct trainer *t, const char *dir, uint64_t step, const char *text)
{
    char folder[CHECKPOINT_PATH];
    int *wrote = calloc((size_t)t->ranks, sizeof(*wrote)), attempt = 0, err = 0;
    struct dp_busy *busy;

    if (!wrote || !checkpoint_folder(dir, step, folder)) {
        free(wrote);
        return DP_ENOMEM;
    }
    if (rank_of(t) == 0) {
        busy = dp_comm_busy_begin(t->comm);
        make_folder(dir, folder);
        attempt = next_attempt(folder);
        dp_comm_busy_end(busy);
    }
    if (t->comm)
        err = dp_comm_broadcast(t->comm, &attempt, sizeof(attempt), 0);
    if (!err)
        err = write_all(t, folder, attempt, wrote, text);
    if (!err && t->comm)
        err = dp_comm_barrier(t->comm); /* when it returns, the checkpoint is there */
    free(wrote);
    return err;
}

/* ---- reading --------------------------------------------------------------------------------- */

int saved_read(struct trainer *t, const char *path, uint64_t step)
{
    struct dp_checkpoint *c;
    struct dp_busy *busy;
    struct list l = {0};
    int err = dp_checkpoint_open(path, &c);

    if (err)
        return err;
    busy = dp_comm_busy_begin(t->comm);
    if (t->config.kind == DATA_PARALLEL_MIX)
        err = saved_mixing_read(t, c);
    else
        err = list_state(t, true, &l);
    const bool late = !err && t->config.late && late_update_is_in(c);
    if (late)
        err = list_late(t, true, &l);
    for (int32_t i = 0; i < l.count && !err; i++)
        err = dp_checkpoint_read_pieces(c, &l.tensors[i]);
    dp_comm_busy_end(busy);
    list_free(&l);
    dp_checkpoint_close(c);
    if (!err && t->config.late)
        late_restore(t, late);
    t->engine->ops->seek(t->engine, step);
    return err;
}
