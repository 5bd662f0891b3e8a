/* SPDX-License-Identifier: Apache-2.0
 *
 * job.c - a job from its beginning to its end, or to the error that ends it: what ranks compare before
 * they begin, the steps, those that are started again and come back, and what is told at the end.
 */
#include "train/job.h"

#include "launch.h"
#include "train/cuda/cuda_rank.h"
#include "train/host.h"
#include "train/memory.h"
#include "train/report.h"
#include "train/sample.h"
#include "train/watcher.h"

#include <dualpipe/survival.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MEASURE_EVERY = 10 }; /* steps; collecting a step's times costs far less than a step */

struct job {
    const struct settings *s;
    const struct data *text;
    struct dp_comm *comm;             /* of all ranks that were started; NULL: alone */
    const struct dp_comm_config *how; /* it was opened */
    struct cuda_rank *cuda;           /* what computes; NULL: the CPU */
    struct gpt_layers *layers;
    struct dp_trainer *trainer;
    struct batch batch;
    struct dp_trainer_parts parts; /* schedule and recorder NULL: no pipeline */
    struct report report;
    struct watcher watcher;
    const struct dp_comm *watched; /* the ranks that lived when the watcher began */
    int lost;                      /* ranks that had died when others were admitted last */
    bool tells;                    /* it was the first rank after the last step */
    struct progress last;          /* that step; step 0: none */
    struct summary summary;
    char before[DP_ABORT_TEXT]; /* the library's last sentence when it began, or went on */
};

/* The ranks that live. */
static struct dp_comm *comm_of(const struct job *j)
{
    return j->trainer ? j->parts.comm : j->comm;
}

static bool is_first(const struct job *j)
{
    return !j->comm || dp_comm_rank(comm_of(j)) == 0;
}

/* This rank was started again. */
static bool joins(const struct job *j)
{
    return j->how && j->how->size == 0;
}

static void note_sentence(struct job *j)
{
    snprintf(j->before, sizeof(j->before), "%s", dp_last_error());
}

/* What is there of its parts now: after a call during which ranks of a pipeline may have died. Without
 * a schedule there is a pipeline of one rank, of which nothing is told. */
static void take_parts(struct job *j)
{
    dp_trainer_parts(j->trainer, &j->parts);
    if (!j->s->training) {
        j->parts.schedule = NULL;
        j->parts.recorder = NULL;
    }
}

/* ---- what ranks compare ------------------------------------------------------------------------ */

/* What all ranks must have the same, as lines. A flag has no text, set or not. NULL: no memory. */
static char *list_options(const struct job *j)
{
    static const char *const sums[] = {"all-reduce", "reduce-scatter", "a graph"};
    const struct settings *s = j->s;
    char *text = NULL, value[VALUE_LEN];
    size_t len;
    struct setting a;
    FILE *f = open_memstream(&text, &len);

    if (!f)
        return NULL;
    fprintf(f, "--mix\t%s\n--device\t%s\n--transport nccl\t%s\n--save\t%s\n", sums[s->how.sums],
            settings_on_cuda(s) ? "cuda" : "cpu", settings_by_nccl(s) ? "set" : "not set",
            s->how.checkpoint.folder ? "set" : "not set");
    fprintf(f, "--data\t%zu bytes with the digest %016" PRIx64 "\n--resume\tafter %" PRIu64 " steps\n",
            j->text->len, j->text->digest, s->from.step);
    for (int i = 0; settings_option(i, &a); i++)
        if (a.marks & (KEPT | COMPARED))
            fprintf(f, "--%s\t%s\n", a.name,
                    !settings_value(&a, s, 17, value) ? "not set" : *value ? value : "set");
    if (!fclose(f))
        return text;
    free(text);
    return NULL;
}

/* Ranks that were started apart from each other may have been told different things: DP_EMISMATCH on
 * all ranks of comm. */
static int compare(const struct job *j)
{
    char *text = j->comm ? list_options(j) : NULL;
    const int err = j->comm ? dp_comm_agree_lines(j->comm, "options", text) : 0;

    free(text);
    return err;
}

/* All ranks were told the same: else DP_EMISMATCH on all of them. Ranks that survive go on without one
 * that died meanwhile, and without what it was told, once all that live know of it. */
static int agree(const struct job *j)
{
    const int err = compare(j);
    const bool has_died = err == DP_ECOMM || err == DP_ETIMEDOUT;

    if (!j->s->how.survive || (err && !has_died))
        return err;
    const int size = dp_comm_size(j->comm);
    bool *alive = calloc((size_t)size, sizeof(*alive)), live = true;
    const int agreed = alive ? dp_comm_agree_alive(j->comm, alive) : DP_ENOMEM;
    for (int i = 0; i < size && !agreed; i++)
        live = live && alive[i];
    free(alive);
    return agreed ? agreed : live ? err : 0;
}

/* ---- making it ----------------------------------------------------------------------------- */

static int open_cuda(struct job *j)
{
    const struct settings *s = j->s;
    const size_t layers = (size_t)s->model.layers + 2;

    if (!settings_on_cuda(s))
        return 0;
    return cuda_rank_new(
        &(struct cuda_rank_config){
            .device = s->device,
            .rank = j->comm ? dp_comm_rank(j->comm) : 0,
            .ranks = settings_processes(s),
            .nccl = settings_by_nccl(s),
            .image = s->image,
            .bf16 = host_is_bf16(s),
            .model = s->model,
            .callbacks = s->no_graphs ? 0 : 2 * layers * (size_t)s->how.microbatches,
        },
        &j->cuda);
}

static int make_trainer(struct job *j)
{
    const struct settings *s = j->s;
    const int stages = s->training ? s->training->stages : 1;
    int32_t *cut = calloc((size_t)stages, sizeof(*cut));
    char *about = settings_text(s, j->text->digest);
    int err = cut && about ? 0 : DP_ENOMEM;

    if (!err) {
        struct dp_trainer_config config = host_config(s, cut);
        config.device = j->cuda ? j->cuda->dev : NULL;
        config.stream = j->cuda ? j->cuda->stream : NULL;
        config.checkpoint.about = about;
        config.checkpoint.from = s->from.step ? s->from.path : NULL;
        err = !joins(j) ? dp_trainer_new(&config, gpt_layers_model(j->layers), j->comm, &j->trainer)
                        : dp_trainer_join(&config, gpt_layers_model(j->layers), j->comm, j->how->rank,
                                          &j->trainer);
    }
    free(about);
    free(cut);
    return err;
}

/* A rank that survives without its memory leaves, and the others learn that it did. */
static int make_parts(struct job *j)
{
    const struct settings *s = j->s;
    const size_t bytes = (size_t)s->how.rows * (size_t)s->context;
    int err = open_cuda(j);

    if (!err)
        err = gpt_layers_new(&s->model, j->cuda ? &j->cuda->compute : NULL, host_is_bf16(s), &j->layers);
    j->batch = (struct batch){malloc(bytes), malloc(bytes)};
    if (!j->batch.tokens || !j->batch.labels)
        err = DP_ENOMEM;
    if (!s->how.survive)
        err = dp_comm_share_error(j->comm, err);
    if (!err)
        err = make_trainer(j);
    if (!err)
        take_parts(j);
    return err;
}

/* ---- while it trains ----------------------------------------------------------------------- */

/* A batch as the trainer takes it. */
struct views {
    int64_t shape[2];
    DLTensor tensors[2];
    struct dp_tree leaves[2], trees[2];
};

static struct dp_batch view(const struct job *j, struct views *v)
{
    uint8_t *const bytes[] = {j->batch.tokens, j->batch.labels};

    v->shape[0] = j->s->how.rows;
    v->shape[1] = j->s->context;
    for (int i = 0; i < 2; i++) {
        v->tensors[i] = (DLTensor){bytes[i], {kDLCPU, 0}, 2, {kDLUInt, 8, 1}, v->shape, NULL, 0};
        v->leaves[i] = dp_tensor(&v->tensors[i]);
        v->trees[i] = dp_tuple(1, &v->leaves[i]);
    }
    return (struct dp_batch){.inputs = &v->trees[0], .labels = &v->trees[1]};
}

static int train_step(struct job *j, uint64_t step, struct dp_trainer_result *result)
{
    const struct settings *s = j->s;
    struct views v;
    const struct dp_batch batch = view(j, &v);

    data_batch(j->text, DATA_TRAIN, step, (int)s->how.rows, &j->batch);
    dp_trainer_set_rate(
        j->trainer, gpt_rate(step, (uint64_t)s->steps, (uint64_t)s->how.rate.warmup, s->how.rate.peak));
    return dp_trainer_step(j->trainer, &batch, result);
}

/* Mean loss over some held-out batches, always the same ones. */
static int evaluate(struct job *j, double *held_out)
{
    double sum = 0, loss;
    struct views v;
    const struct dp_batch batch = view(j, &v);
    int err = 0;

    for (uint64_t i = 0; i < HELD_OUT_BATCHES && !err; i++) {
        data_batch(j->text, DATA_HELD_OUT, i, (int)j->s->how.rows, &j->batch);
        err = dp_trainer_evaluate(j->trainer, &batch, &loss);
        sum += err ? 0 : loss;
    }
    if (!err)
        *held_out = sum / HELD_OUT_BATCHES;
    return err;
}

/* Text of the model as it is now, on the first rank: of what replicas mix into one that lives. */
static int sample(struct job *j, size_t count, uint8_t *text)
{
    struct sample_spec spec = {.count = count, .temperature = j->s->temperature};
    struct dp_named_tensor *tensors = NULL;
    int err = count ? dp_trainer_gather(j->trainer, 0, &tensors, &spec.tensor_count) : 0;

    spec.tensors = tensors;
    if (!err && tensors)
        err = sample_write(&j->s->model, &spec, text);
    dp_trainer_gathered_free(tensors);
    return err;
}

static int watch(struct job *j)
{
    watcher_fini(&j->watcher);
    j->watched = j->parts.comm;
    return settings_survives_as_pipeline(j->s) && !j->parts.schedule
               ? 0 /* it is spare */
               : watcher_init(&j->watcher, j->s, &j->parts, j->comm, j->how);
}

/* After a call during which ranks may have died. */
static int look_around(struct job *j)
{
    if (!j->s->how.survive)
        return 0;
    take_parts(j);
    if (j->parts.comm == j->watched)
        return 0;
    note_sentence(j);
    j->watched = j->parts.comm;
    return settings_survives_as_pipeline(j->s) ? watch(j) : 0;
}

struct measuring {
    struct job *j;
    bool all;                 /* of all replicas, not of the first alone */
    const char *const *files; /* NULL: nothing is written */
    struct step_times times;  /* NAN where they are not known */
};

static int measure(void *user)
{
    struct measuring *m = user;
    struct job *j = m->j;

    m->times = (struct step_times){.bubble = NAN, .step_ms = NAN, .simulated_ms = NAN};
    take_parts(j);
    if (!j->parts.recorder || (!m->all && j->parts.replica))
        return 0;
    const int err = timeline_take(&j->parts, m->files, m->files ? NULL : j->watcher.watch, &m->times);
    /* A pipeline of those that live may have taken no step yet. */
    return err == DP_ESTATE && j->s->how.survive ? 0 : err;
}

/* After a step: what is worth a look now and then. */
static int look(struct job *j, struct progress *p)
{
    uint64_t every = (uint64_t)j->s->eval_every, steps = (uint64_t)j->s->steps;
    const bool links = watcher_paces(&j->watcher, j->parts.paces);
    const bool due = p->step % MEASURE_EVERY == 0 || report_due(j->s, p->step);
    struct measuring m = {.j = j, .all = links, .times.bubble = NAN};
    int err = links || due ? dp_trainer_carry_out(j->trainer, measure, &m) : 0;

    if (due && j->parts.replica == 0)
        p->bubble = m.times.bubble;
    if (!err && (p->step == steps || (every && p->step % every == 0)))
        err = evaluate(j, &p->held_out);
    return err ? err : look_around(j);
}

static void tell_slow(void *user, const struct dp_slow *slow, bool begun)
{
    struct job *j = user;

    if (is_first(j))
        report_slow(&j->report, dp_trainer_next_step(j->trainer), slow, begun);
}

/* The first rank may have died before it told of its last step. */
static bool is_to_tell(struct job *j)
{
    const bool first = is_first(j);

    if (first && !j->tells && j->last.step)
        report_progress(&j->report, &j->last);
    j->tells = first;
    return first;
}

static int take_step(struct job *j, uint64_t step)
{
    struct summary *summary = &j->summary;
    struct progress p = {.step = step + 1, .held_out = NAN, .bubble = NAN};
    int err = train_step(j, step, &p.result);

    if (!err)
        err = look_around(j);
    if (!err)
        err = look(j, &p);
    if (err)
        return err;
    if (step == j->s->from.step)
        summary->first_loss = p.result.loss;
    summary->last_loss = p.result.loss;
    summary->held_out = p.held_out;
    summary->skipped += p.result.skipped;
    watcher_tell(&j->watcher, &p, tell_slow, j);
    if (is_to_tell(j))
        report_progress(&j->report, &p);
    j->last = p;
    return 0;
}

/* ---- replicas that come back ----------------------------------------------------------------- */

static int count_lost(const struct job *j)
{
    const int32_t *lost;

    return dp_trainer_lost(j->trainer, &lost);
}

struct waiting {
    struct job *j;
    int32_t count;
};

/* The same on all that live, by the first of them, once none that has joined is said to wait. */
static int count_for_all(void *user)
{
    struct waiting *w = user;

    take_parts(w->j);
    struct dp_comm *comm = w->j->parts.comm;
    const int lost = (int)w->j->s->how.replicas - dp_comm_size(comm);
    const int err = dp_comm_barrier(comm);
    w->count = !err && dp_comm_rank(comm) == 0 ? launch_count_waiting(lost) : 0;
    return err ? err : dp_comm_broadcast(comm, &w->count, sizeof(w->count), 0);
}

static int admit(struct job *j)
{
    struct waiting w = {.j = j};
    int err = 0, tries = 0;
    bool again = false; /* one that came has died before all knew that it had */

    while (!err && j->s->restarts && (j->lost != count_lost(j) || (again && tries++ < j->s->restarts))) {
        j->lost = count_lost(j);
        again = false;
        err = dp_trainer_carry_out(j->trainer, count_for_all, &w);
        if (err || !w.count)
            continue;
        const struct dp_comm_config how = {.address = j->how->address,
                                           .transport = j->how->transport,
                                           .secret = j->how->secret,
                                           .timeout_ns = j->how->timeout_ns};
        err = dp_trainer_admit(j->trainer, w.count, &how);
        again = err == DP_EAGAIN;
        err = again ? 0 : err;
        take_parts(j);
    }
    return err;
}

static int train(struct job *j, uint64_t step)
{
    int err = 0;

    while (!err && step < (uint64_t)j->s->steps) {
        err = take_step(j, step);
        if (!err)
            err = admit(j);
        step++;
    }
    return err;
}

/* ---- the end ------------------------------------------------------------------------------- */

/* What each rank has; of offload that of the one that had the most on its device. */
static int weigh(void *user)
{
    struct job *j = user;
    struct summary *summary = &j->summary;
    take_parts(j);
    struct dp_comm *comm = comm_of(j);
    const int ranks = comm ? dp_comm_size(comm) : 1;
    struct memory_use *all = calloc((size_t)ranks, sizeof(*all));
    struct memory_use mine = {.peak_bytes = memory_peak(""), .held_bytes = (double)j->parts.bytes};

    free(summary->memory);
    summary->memory_bytes = 0;
    summary->memory = all;
    summary->memory_count = ranks;
    if (!all)
        return DP_ENOMEM;
    if (j->s->offload.text)
        dp_trainer_offload(j->trainer, &mine.offload);
    all[0] = mine;
    summary->offload = mine.offload;
    int err = comm ? dp_comm_allgather(comm, &mine, all, sizeof(mine)) : 0;
    for (int rank = 0; !err && rank < ranks; rank++) {
        if (all[rank].peak_bytes > summary->memory_bytes) {
            summary->memory_bytes = all[rank].peak_bytes;
            summary->memory_rank = rank;
        }
        if (all[rank].offload.device_bytes > summary->offload.device_bytes)
            summary->offload = all[rank].offload;
    }
    return err;
}

static int describe(struct job *j, uint8_t *text)
{
    struct measuring m = {.j = j, .files = j->s->drawn};
    int err = sample(j, j->summary.sample_len, text);

    if (!err)
        err = dp_trainer_carry_out(j->trainer, weigh, j);
    if (!err)
        err = dp_trainer_carry_out(j->trainer, measure, &m);
    j->summary.step = m.times;
    return err;
}

static int finish(struct job *j)
{
    struct summary *summary = &j->summary;
    size_t len = (size_t)j->s->sample;
    uint8_t *text = malloc(len + 1);
    bool unwritten = false;
    int lost = -1;

    summary->sample_len = len;
    int err = text ? dp_trainer_finish(j->trainer) : DP_ENOMEM;
    while (!err && lost != count_lost(j)) { /* what the first rank has died with */
        lost = count_lost(j);
        err = describe(j, text);
    }
    summary->sample = text;
    if (!err && is_to_tell(j))
        report_end(&j->report, summary);
    free(text);
    free(summary->memory);
    summary->memory = NULL;
    for (int i = 0; i < DRAWN; i++)
        unwritten = unwritten || summary->step.unwritten[i];
    return !err && unwritten ? DP_EIO : err; /* after the summary */
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int run(struct job *j)
{
    int err = joins(j) ? 0 : agree(j);
    if (!err)
        err = make_parts(j);
    if (!err)
        err = watch(j);
    if (!err)
        report_begin(&j->report, j->s, j->text, is_first(j));
    uint64_t step = j->s->from.step;
    if (!err && joins(j)) {
        step = dp_trainer_next_step(j->trainer);
        launch_admitted(j->how->rank);
        err = admit(j); /* a death meanwhile is one for all */
    }
    if (!err)
        err = train(j, step);
    return err ? err : finish(j);
}

/* If the library has said nothing since `before`, it was the job itself that failed. A rank of a
 * job that survives does not abort the others for want of files or memory: it leaves them. */
static void explain(const struct job *j, int err, struct dp_abort *why)
{
    const char *text = dp_last_error();

    if (!strcmp(text, j->before))
        text = err == DP_ENOMEM ? "out of memory"
               : err == DP_EIO  ? "its output could not be written"
                                : dp_strerror(err);
    *why = (struct dp_abort){.rank = j->how ? j->how->rank : 0, .error = err};
    snprintf(why->text, sizeof(why->text), "%s", text);
    if (j->comm && !job_leaves(j->s, err)) {
        dp_comm_abort(j->comm, err, why->text);
        dp_comm_aborted(j->comm, why); /* another rank may have been the first */
        if (why->rank < 0)             /* one that is not of this group */
            why->rank = dp_comm_rank(j->comm);
    }
}

int job_run(const struct settings *s, const struct data *data, struct dp_comm *comm,
            const struct dp_comm_config *how, struct dp_abort *why)
{
    struct job *j = calloc(1, sizeof(*j));
    if (!j) {
        *why = (struct dp_abort){.error = DP_ENOMEM, .text = "out of memory"};
        return DP_ENOMEM;
    }
    *j = (struct job){.s = s, .text = data, .comm = comm, .how = how};
    note_sentence(j);
    int err = run(j);
    if (err)
        explain(j, err, why);
    dp_trainer_free(j->trainer);
    gpt_layers_free(j->layers);
    cuda_rank_free(j->cuda);
    free(j->batch.tokens);
    free(j->batch.labels);
    watcher_fini(&j->watcher);
    free(j);
    return err;
}
