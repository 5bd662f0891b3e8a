/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline_job.h"

#include "schedule/build.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct job job_make(const struct dp_schedule *schedule)
{
    return (struct job){
        .schedule = schedule,
        .model = {.stages = schedule->stages,
                  .microbatches = schedule->microbatches,
                  .rows = 3,
                  .width = 4,
                  .dropout = 0.3f,
                  .seed = 7},
        .fixed_order = true,
        .forward_loss = true,
    };
}

/* ---- results -------------------------------------------------------------------------------- */

static size_t slot_count(const struct job *job)
{
    return job->schedule->first_slot[job->schedule->ranks];
}

static void *take(struct job_result *result, size_t *at, size_t bytes)
{
    void *p = result->map + *at;
    *at += (bytes + 63) / 64 * 64;
    return p;
}

void job_begin(struct job *job)
{
    struct job_result *result = calloc(1, sizeof(*result));
    const struct model *m = &job->model;
    size_t ranks = (size_t)job->schedule->ranks, at = 0;

    result->bytes = 1 << 20;
    for (size_t i = 0; i < slot_count(job); i++)
        result->bytes += model_grad_count(m, job->schedule->slots[i].stage) * sizeof(float) + 64;
    result->bytes += (size_t)m->microbatches * MODEL_LOSSES * sizeof(double);
    result->bytes += model_output_count(m) * sizeof(float);
    result->map = mmap(NULL, result->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    result->losses = take(result, &at, (size_t)m->microbatches * MODEL_LOSSES * sizeof(double));
    result->outputs = take(result, &at, model_output_count(m) * sizeof(float));
    result->counts = take(result, &at, ranks * sizeof(int32_t));
    result->memory = take(result, &at, ranks * sizeof(*result->memory));
    result->grads = take(result, &at, slot_count(job) * sizeof(float *));
    for (size_t i = 0; i < slot_count(job); i++)
        result->grads[i] = take(result, &at, model_grad_count(m, job->schedule->slots[i].stage) *
                                                 sizeof(float));
    job->result = result;
}

void job_end(struct job *job)
{
    if (job->result)
        munmap(job->result->map, job->result->bytes);
    free(job->result);
    job->result = NULL;
}

/* ---- one rank ------------------------------------------------------------------------------- */

static const struct dp_slot *slot_of(const struct job_rank *r, int slot)
{
    return dp_schedule_slot(r->job->schedule, r->rank, slot);
}

static int find_rank(const struct dp_schedule *s, const struct dp_comm *comm)
{
    for (int r = 0; r < s->ranks && comm; r++)
        if (s->group_rank[r] == dp_comm_rank(comm))
            return r;
    return 0;
}

static void make_batches(struct job_rank *r)
{
    const struct dp_schedule *s = r->job->schedule;
    const struct model *m = &r->job->model;
    int n = s->mb_per_stream;

    for (int i = 0; i < dp_schedule_slot_count(s, r->rank); i++) {
        const struct dp_slot *slot = slot_of(r, i);
        int first = slot->stream * n;
        if (dp_slot_is_first(slot) && !r->in.data[0])
            model_batch_init(&r->in, m, 0, first, n);
        if (!dp_slot_is_last(slot) || r->label.data[0] || r->out.data[0])
            continue;
        if (!s->forward_only || r->job->forward_loss) {
            model_batch_init_label(&r->label, m, first, n);
            r->step.losses = r->job->result->losses + (size_t)first * MODEL_LOSSES;
        }
        if (s->return_outputs)
            model_batch_init(&r->out, m, s->stages, first, n);
    }
}

static const struct dp_microbatches *split_again(struct dp_microbatches **mbs,
                                                 const struct model_batch *batch,
                                                 const struct job *job)
{
    dp_microbatches_free(*mbs);
    *mbs = batch->data[0] ? model_batch_split(batch, &job->model, job->schedule->mb_per_stream)
                          : NULL;
    return *mbs;
}

void job_rank_split(struct job_rank *r)
{
    r->step.inputs = split_again(&r->in_mbs, &r->in, r->job);
    r->step.labels = split_again(&r->label_mbs, &r->label, r->job);
    r->step.outputs = split_again(&r->out_mbs, &r->out, r->job);
}

int job_rank_open(struct job_rank *r, const struct job *job, struct dp_comm *comm)
{
    const struct dp_schedule *s = job->schedule;
    struct dp_stage stages[DP_MAX_SLOTS];

    *r = (struct job_rank){.job = job, .rank = find_rank(s, comm)};
    r->borders = calloc((size_t)s->stages + 1, sizeof(*r->borders));
    model_borders(&job->model, r->borders);
    model_labels(&job->model, &r->labels);
    model_skip_specs(&job->model, r->skips);
    for (int i = 0; i < dp_schedule_slot_count(s, r->rank); i++) {
        model_stage_init(&r->stages[i], &job->model, slot_of(r, i)->stage);
        r->stages[i].before = job->before;
        r->stages[i].before_user = job->user;
        stages[i] = model_stage_config(&r->stages[i], job->ops ? job->ops : &model_ops,
                                       job->no_split);
    }
    make_batches(r);
    job_rank_split(r);
    struct later_dp_pipeline_config config = {.known = {
        .schedule = s,
        .comm = comm,
        .stages = stages,
        .borders = r->borders,
        .skips = job->model.skip_count ? r->skips : NULL,
        .labels = &r->labels,
        .loss = s->forward_only && !job->forward_loss ? NULL : &model_loss,
        .loss_user = (void *)(uintptr_t)&job->model,
        .max_loss_values = MODEL_LOSSES,
        .copy_strided = job->model.batch_dim != 0,
        .seed = job->model.seed,
        .fixed_order = job->fixed_order,
        .order_blocks = job->model.order_blocks,
        .unsummed_copies = job->unsummed,
    }};
    if (job->edit)
        job->edit(job->user, r->rank, &config.known);
    return dp_pipeline_new_sized(&config.known, &r->pipe, sizeof(config));
}

/* Back from the layout of a whole batch to the sequential loop's. */
static void store_outputs(const struct job_rank *r)
{
    const struct model *m = &r->job->model;
    int n = r->job->schedule->mb_per_stream, width = model_width(m, m->stages);
    const float *from = r->out.data[0];
    int first = 0;

    for (int i = 0; i < dp_schedule_slot_count(r->job->schedule, r->rank); i++)
        if (dp_slot_is_last(slot_of(r, i)))
            first = slot_of(r, i)->stream * n;
    for (int mb = 0; mb < n; mb++)
        for (int row = 0; row < m->rows; row++) {
            int at = m->batch_dim ? (row * n + mb) * width : (mb * m->rows + row) * width;
            memcpy(r->job->result->outputs + ((first + mb) * m->rows + row) * width, from + at,
                   (size_t)width * sizeof(float));
        }
}

void job_rank_store(const struct job_rank *r)
{
    const struct job *job = r->job;
    size_t first = job->schedule->first_slot[r->rank];

    for (int i = 0; i < dp_schedule_slot_count(job->schedule, r->rank); i++)
        memcpy(job->result->grads[first + (size_t)i], r->stages[i].gw,
               model_grad_count(&job->model, r->stages[i].stage) * sizeof(float));
    if (r->step.outputs)
        store_outputs(r);
    job->result->counts[r->rank] = r->step.loss_values;
    dp_pipeline_memory(r->pipe, &job->result->memory[r->rank]);
}

int job_rank_step(struct job_rank *r)
{
    for (int i = 0; i < dp_schedule_slot_count(r->job->schedule, r->rank); i++)
        memset(r->stages[i].gw, 0,
               model_grad_count(&r->job->model, r->stages[i].stage) * sizeof(float));
    int err = dp_pipeline_step(r->pipe, &r->step);
    if (!err)
        job_rank_store(r);
    return err;
}

void job_rank_close(struct job_rank *r)
{
    if (!r->job)
        return;
    dp_pipeline_free(r->pipe);
    for (int i = 0; i < dp_schedule_slot_count(r->job->schedule, r->rank); i++)
        model_stage_fini(&r->stages[i]);
    dp_microbatches_free(r->in_mbs);
    dp_microbatches_free(r->label_mbs);
    dp_microbatches_free(r->out_mbs);
    model_batch_fini(&r->in);
    model_batch_fini(&r->label);
    model_batch_fini(&r->out);
    free(r->borders);
    *r = (struct job_rank){0};
}

/* ---- comparison ------------------------------------------------------------------------------ */

static bool has_reduce(const struct dp_schedule *s)
{
    for (size_t i = 0; i < s->first[s->ranks]; i++)
        if (s->ops[i].kind == DP_OP_REDUCE)
            return true;
    return false;
}

/* What the i-th slot of all should have: its stream's half; both where there is one stream or a
 * sum (which is for mirrors on another rank). */
static void expect_grads(const struct job *job, size_t i, const struct model_result *want, float *out)
{
    const struct dp_schedule *s = job->schedule;
    const struct dp_slot *slot = &s->slots[i];
    bool reduced = (has_reduce(s) || !job->unsummed) && slot->mirror != dp_schedule_rank_of(s, i);
    const float *first = want->first[slot->stage], *second = want->second[slot->stage];

    for (size_t k = 0; k < model_grad_count(&job->model, slot->stage); k++) {
        if (s->streams == 2 && !reduced)
            out[k] = slot->stream ? second[k] : first[k];
        else if (s->streams == 2 || job->fixed_order)
            out[k] = first[k] + second[k];
        else
            out[k] = want->all[slot->stage][k];
    }
}

static bool is_near(const struct job *job, const float *has, const float *wants, size_t count)
{
    for (size_t i = 0; i < count && job->tolerance > 0; i++)
        if (!(fabsf(has[i] - wants[i]) <= job->tolerance * (1 + fabsf(wants[i]))))
            return false;
    return job->tolerance > 0 || !memcmp(has, wants, count * sizeof(*has));
}

static bool grads_equal(const struct job *job, const struct model_result *want)
{
    const struct dp_schedule *s = job->schedule;
    bool equal = true;

    for (size_t i = 0; i < slot_count(job); i++) {
        size_t count = model_grad_count(&job->model, s->slots[i].stage);
        float *expected = malloc(count * sizeof(*expected));
        expect_grads(job, i, want, expected);
        if (!is_near(job, job->result->grads[i], expected, count)) {
            int rank = dp_schedule_rank_of(s, i);
            printf("gradients of stage %d on rank %d, slot %zu, are not the sequential ones: "
                   "%.9g, expected %.9g\n",
                   s->slots[i].stage, rank, i - s->first_slot[rank],
                   (double)job->result->grads[i][0], (double)expected[0]);
            equal = false;
        }
        free(expected);
    }
    return equal;
}

bool job_result_is_sequential(const struct job *job, uint64_t step)
{
    const struct dp_schedule *s = job->schedule;
    struct model_result want;
    bool equal = true;

    model_result_init(&want, &job->model);
    model_run_sequential(&job->model, step, !s->forward_only, &want);
    if ((!s->forward_only || job->forward_loss) &&
        memcmp(want.losses, job->result->losses,
               (size_t)s->microbatches * MODEL_LOSSES * sizeof(double))) {
        printf("losses are not the sequential ones: %.17g, expected %.17g\n",
               job->result->losses[0], want.losses[0]);
        equal = false;
    }
    if (s->return_outputs &&
        memcmp(want.outputs, job->result->outputs, model_output_count(&job->model) * sizeof(float))) {
        printf("outputs are not the sequential ones\n");
        equal = false;
    }
    if (!s->forward_only)
        equal = grads_equal(job, &want) && equal;
    model_result_fini(&want, &job->model);
    return equal;
}
