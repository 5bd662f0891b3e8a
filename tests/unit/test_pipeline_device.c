/* SPDX-License-Identifier: Apache-2.0
 *
 * The same numbers on every device: the host with copy workers, and CUDA on the stand-in driver,
 * where the model's "kernels" are functions in a stream, device memory crashes whoever touches it
 * otherwise, and every copy and kernel comes late by a random time. It proves the order of copies,
 * kernels and messages, not a real GPU.
 */
#include "cmocka_all.h"

#include "base/clock.h"
#include "comm_group.h"
#include "fakes/use_fake_cuda.h"
#include "pipeline_job.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 2 };
static const int64_t deadline_ns = 20 * DP_NS_PER_S;

static const struct fake_cuda *fake;
static struct {
    __typeof__(&cuLaunchHostFunc) launch;
    __typeof__(&cuStreamQuery) query;
    __typeof__(&cuDevicePrimaryCtxRetain) retain;
    __typeof__(&cuDevicePrimaryCtxRelease) release;
    __typeof__(&cuCtxPushCurrent) push;
    __typeof__(&cuCtxPopCurrent) pop;
} cu;

/* A rank is a thread: its device, and what it has of host tensors on it. */
enum { MOST_BUFFERS = 32 };
static _Thread_local struct {
    struct dp_device *dev;
    struct dp_device_stream *stream;
    struct dp_device_event *event;
    CUcontext context;
    struct {
        char *there, *host;
        size_t bytes;
    } buffers[MOST_BUFFERS];
    int count;
    int fail_in; /* the n-th callback from now fails; 0: none */
} here;

/* ---- kernels: the model's callbacks, as work in a stream ------------------------------------------ */

/* What one callback was given, with every address where the CPU can reach it. */
struct side {
    void *user;
    struct dp_stage_call call;
    DLTensor in[MODEL_TENSORS], out[MODEL_TENSORS], gout[MODEL_TENSORS], gin[MODEL_TENSORS];
    DLTensor grads[MODEL_GRADS], *list[MODEL_GRADS];
};

struct kernel {
    void (*run)(struct kernel *k);
    struct side f, b;
    enum dp_backward_mode mode;
    DLTensor label;
    double scale, values[MODEL_LOSSES];
    struct kernel *next;
};

static pthread_mutex_t kernels_lock = PTHREAD_MUTEX_INITIALIZER;
static struct kernel *kernels; /* all, freed at the end of a test: a broken device runs none */

static struct kernel *new_kernel(void (*run)(struct kernel *k))
{
    struct kernel *k = calloc(1, sizeof(*k));

    k->run = run;
    pthread_mutex_lock(&kernels_lock);
    k->next = kernels;
    kernels = k;
    pthread_mutex_unlock(&kernels_lock);
    return k;
}

static int free_kernels(void **state)
{
    struct kernel *next;

    (void)state;
    fake->reset();
    fake->drain();
    for (struct kernel *k = kernels; k; k = next) {
        next = k->next;
        free(k);
    }
    kernels = NULL;
    return 0;
}

static void reach_tensors(DLTensor *to, const DLTensor *from, int count)
{
    for (int i = 0; i < count && from; i++) {
        to[i] = from[i];
        to[i].data = from[i].data ? fake->reach(from[i].data) : NULL;
    }
}

static void take_call(struct side *side, void *user, const struct dp_stage_call *call)
{
    side->user = user;
    side->call = *call;
    side->call.save = fake->reach(call->save);
    reach_tensors(side->in, call->in, MODEL_TENSORS);
    side->call.in = side->in;
    for (int i = 0; i < MODEL_GRADS; i++) {
        reach_tensors(&side->grads[i], call->grads[i], 1);
        side->list[i] = &side->grads[i];
    }
    side->call.grads = side->list;
}

static void CUDA_CB run_kernel(void *arg)
{
    struct kernel *k = arg;

    k->run(k);
}

static int launch(struct kernel *k, void *stream)
{
    if (here.fail_in && --here.fail_in == 0)
        return DP_EINVAL;
    return cu.launch(stream, run_kernel, k) == CUDA_SUCCESS ? 0 : DP_EIO;
}

static void run_forward(struct kernel *k)
{
    model_ops.forward(k->f.user, &k->f.call, k->f.in, k->f.out);
}

static void run_backward(struct kernel *k)
{
    model_ops.backward(k->b.user, &k->b.call, k->b.gout, k->b.gin, k->mode);
}

static void run_weight(struct kernel *k)
{
    model_ops.weight(k->b.user, &k->b.call);
}

static void run_fwd_bwd(struct kernel *k)
{
    model_ops.fwd_bwd(k->f.user, &k->f.call, k->f.in, k->f.out, k->b.user, &k->b.call, k->b.gout,
                      k->b.gin);
}

static void run_loss(struct kernel *k)
{
    int32_t count;

    model_loss.loss(k->f.user, NULL, k->f.out, &k->label, k->values, MODEL_LOSSES, &count);
}

static void run_loss_backward(struct kernel *k)
{
    model_loss.loss_backward(k->b.user, NULL, k->b.out, &k->label, k->scale, k->b.gout);
}

static int cuda_forward(void *user, const struct dp_stage_call *call, const DLTensor *in,
                        DLTensor *out)
{
    struct kernel *k = new_kernel(run_forward);

    (void)in; /* call->in */
    take_call(&k->f, user, call);
    reach_tensors(k->f.out, out, MODEL_TENSORS);
    return launch(k, call->stream);
}

static int cuda_backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                         DLTensor *gin, enum dp_backward_mode mode)
{
    struct kernel *k = new_kernel(run_backward);

    take_call(&k->b, user, call);
    reach_tensors(k->b.gout, gout, MODEL_TENSORS);
    reach_tensors(k->b.gin, gin, MODEL_TENSORS);
    k->mode = mode;
    return launch(k, call->stream);
}

static int cuda_weight(void *user, const struct dp_stage_call *call)
{
    struct kernel *k = new_kernel(run_weight);

    take_call(&k->b, user, call);
    return launch(k, call->stream);
}

static int cuda_fwd_bwd(void *user_f, const struct dp_stage_call *call_f, const DLTensor *in,
                        DLTensor *out, void *user_b, const struct dp_stage_call *call_b,
                        const DLTensor *gout, DLTensor *gin)
{
    struct kernel *k = new_kernel(run_fwd_bwd);

    (void)in;
    take_call(&k->f, user_f, call_f);
    reach_tensors(k->f.out, out, MODEL_TENSORS);
    take_call(&k->b, user_b, call_b);
    reach_tensors(k->b.gout, gout, MODEL_TENSORS);
    reach_tensors(k->b.gin, gin, MODEL_TENSORS);
    return launch(k, call_f->stream);
}

static const struct dp_stage_ops cuda_ops = {cuda_forward, cuda_backward, cuda_weight, cuda_fwd_bwd};

/* The values are wanted on the host: wait for the stream. */
static int await(CUstream stream)
{
    int64_t deadline = dp_now_ns() + deadline_ns;
    CUresult result;

    while ((result = cu.query(stream)) == CUDA_ERROR_NOT_READY)
        if (dp_now_ns() > deadline)
            return DP_ETIMEDOUT;
    return result == CUDA_SUCCESS ? 0 : DP_EIO;
}

static int cuda_loss(void *user, const struct dp_stage_call *call, const DLTensor *out,
                     const DLTensor *label, double *values, int32_t max, int32_t *count)
{
    struct kernel *k = new_kernel(run_loss);

    (void)max;
    k->f.user = user;
    reach_tensors(k->f.out, out, MODEL_TENSORS);
    reach_tensors(&k->label, label, 1);
    int err = launch(k, call->stream);
    if (!err)
        err = await(call->stream);
    memcpy(values, k->values, sizeof(k->values));
    *count = MODEL_LOSSES;
    return err;
}

static int cuda_loss_backward(void *user, const struct dp_stage_call *call, const DLTensor *out,
                              const DLTensor *label, double scale, DLTensor *gout)
{
    struct kernel *k = new_kernel(run_loss_backward);

    k->b.user = user;
    k->scale = scale;
    reach_tensors(k->b.out, out, MODEL_TENSORS);
    reach_tensors(k->b.gout, gout, MODEL_TENSORS);
    reach_tensors(&k->label, label, 1);
    return launch(k, call->stream);
}

static const struct dp_loss_ops cuda_loss_ops = {cuda_loss, cuda_loss_backward};

/* ---- a rank on a device -------------------------------------------------------------------------- */

static int finish_copies(void)
{
    int err = here.dev->ops->event_record(here.event, here.stream);

    return err ? err : here.dev->ops->event_wait(here.event, deadline_ns);
}

/* Copy all buffers from (or to) the device. */
static int copy_buffers(bool up)
{
    int err = 0;

    for (int i = 0; i < here.count && !err; i++) {
        char *to = up ? here.buffers[i].there : here.buffers[i].host;
        const char *from = up ? here.buffers[i].host : here.buffers[i].there;
        err = here.dev->ops->copy(here.stream, to, from, here.buffers[i].bytes);
    }
    return err ? err : finish_copies();
}

static char *add_buffer(void *host, size_t bytes)
{
    void *there = NULL;

    if (here.count == MOST_BUFFERS ||
        here.dev->ops->alloc(here.dev, DP_MEMORY_DEVICE, bytes, &there))
        abort();
    here.buffers[here.count].there = there;
    here.buffers[here.count].host = host;
    here.buffers[here.count].bytes = bytes;
    here.count++;
    return there;
}

static void move_stage(struct model_stage *stage)
{
    char *there = add_buffer(stage->gw, model_grad_count(stage->model, stage->stage) * sizeof(float));

    for (int i = 0; i < MODEL_GRADS; i++)
        stage->tensors[i].device = here.dev->dl;
    stage->tensors[0].data = there;
    stage->tensors[1].data = there + (stage->gb - stage->gw) * (ptrdiff_t)sizeof(float);
}

static void move_batch(struct model_batch *batch)
{
    for (int k = 0; k < MODEL_TENSORS; k++) {
        DLTensor *t = &batch->tensors[k];
        if (!batch->data[k])
            continue;
        t->data = add_buffer(batch->data[k],
                             (size_t)(t->shape[0] * t->shape[1]) * t->dtype.bits / 8);
        t->device = here.dev->dl;
    }
}

static void move_to_cuda(void *user, int rank, struct dp_pipeline_config *config)
{
    (void)user;
    (void)rank;
    config->device = here.dev;
    if (config->loss)
        config->loss = &cuda_loss_ops;
    for (int i = 0; i < config->schedule->slots_per_rank; i++)
        move_stage(config->stages[i].user);
}

static void use_up_memory_of_rank_1(void *user, int rank, struct dp_pipeline_config *config)
{
    move_to_cuda(user, rank, config);
    if (rank == 1)
        add_buffer(NULL, FAKE_CUDA_MEMORY_BYTES - 4096);
}

static int enter_device(int ordinal)
{
    int err = dp_device_cuda_open(ordinal, &here.dev);

    if (err)
        return err;
    here.count = here.fail_in = 0;
    cu.retain(&here.context, ordinal);
    cu.push(here.context);
    err = here.dev->ops->stream_new(here.dev, &here.stream);
    return err ? err : here.dev->ops->event_new(here.dev, &here.event);
}

static void leave_device(void)
{
    CUcontext context;

    for (int i = 0; i < here.count; i++)
        here.dev->ops->free(here.dev, DP_MEMORY_DEVICE, here.buffers[i].there);
    here.dev->ops->event_free(here.event);
    here.dev->ops->stream_free(here.stream);
    cu.pop(&context);
    cu.release(here.dev->dl.device_id);
    dp_device_close(here.dev);
}

static int step_on_cuda(struct job_rank *r)
{
    for (int i = 0; i < r->job->schedule->slots_per_rank; i++)
        memset(r->stages[i].gw, 0,
               model_grad_count(&r->job->model, r->stages[i].stage) * sizeof(float));
    int err = copy_buffers(true);
    if (!err)
        err = dp_pipeline_step(r->pipe, &r->step);
    if (!err)
        err = copy_buffers(false);
    if (!err)
        job_rank_store(r);
    return err;
}

static int open_on_cuda(struct job_rank *r, const struct job *job, struct dp_comm *comm)
{
    int err = enter_device(comm->rank % FAKE_CUDA_DEVICES);

    if (err)
        return err;
    err = job_rank_open(r, job, comm);
    move_batch(&r->in);
    move_batch(&r->label);
    move_batch(&r->out);
    return err;
}

static void close_on_cuda(struct job_rank *r)
{
    job_rank_close(r);
    leave_device();
}

static int train_on_cuda(struct dp_comm *comm, void *arg)
{
    struct job_rank r;

    CHECK(!open_on_cuda(&r, arg, comm));
    for (int i = 0; i < STEPS; i++)
        CHECK(!step_on_cuda(&r));
    close_on_cuda(&r);
    return 0;
}

/* ---- the same numbers ---------------------------------------------------------------------------- */

static struct dp_schedule *build(struct dp_schedule_spec spec)
{
    struct dp_schedule *s = NULL;

    if (dp_schedule_new(&spec, &s))
        fail_msg("%s", dp_last_error());
    return s;
}

static void run_job(struct job *job, rank_fn fn, uint64_t last_step)
{
    struct job_result result;
    int killed;

    job_result_init(&result, job);
    job->result = &result;
    assert_int_equal(comm_kinds[0].run(&comm_kinds[0], job->schedule->ranks, deadline_ns, fn, job,
                                       &killed),
                     0);
    assert_true(job_result_is_sequential(job, last_step));
    job_result_fini(&result, job);
}

static const struct dp_schedule_spec shapes[] = {
    {.kind = DP_SCHEDULE_GPIPE, .ranks = 2, .microbatches = 4},
    {.kind = DP_SCHEDULE_1F1B, .ranks = 3, .microbatches = 7},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 2, .microbatches = 6, .mirror_reduce = true},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 10, .return_outputs = true},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 1, .microbatches = 3},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 3, .microbatches = 7, .return_outputs = true},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8, .forward_only = true},
};
enum { SHAPES = sizeof(shapes) / sizeof(*shapes) };

static void on_cuda(struct dp_schedule_spec spec, int batch_dim, bool no_split)
{
    struct dp_schedule *s = build(spec);
    struct job job = job_make(s);

    job.ops = &cuda_ops;
    job.edit = move_to_cuda;
    job.model.batch_dim = batch_dim;
    job.no_split = no_split;
    run_job(&job, train_on_cuda, STEPS - 1);
    dp_schedule_free(s);
}

static void memory_the_cpu_cannot_touch_changes_no_number(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++)
        on_cuda(shapes[i], 0, false);
}

static void a_device_that_is_late_at_random_changes_no_number(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        fake->shake((uint64_t)i, 80);
        on_cuda(shapes[i], i % 2, i % 3 == 2);
    }
}

/* ---- failures ------------------------------------------------------------------------------------ */

/* Rank 1's n-th callback fails; then all start over. */
static int fail_then_train(struct dp_comm *comm, void *arg)
{
    const struct job *job = arg;
    const int *n = job->user;
    struct job_rank r;

    CHECK(!open_on_cuda(&r, job, comm));
    here.fail_in = comm->rank == 1 ? *n : 0;
    int err = step_on_cuda(&r);
    CHECK(err == (comm->rank == 1 ? DP_ECALLBACK : DP_EABORTED));
    CHECK(!dp_comm_reset(comm));
    CHECK(!step_on_cuda(&r));
    close_on_cuda(&r);
    return 0;
}

static void a_step_that_failed_leaves_nothing_behind(void **state)
{
    (void)state;
    struct dp_schedule *s = build((struct dp_schedule_spec){
        .kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8, .mirror_reduce = true});

    for (int n = 1; n <= 12; n += 2) {
        struct job job = job_make(s);
        job.ops = &cuda_ops;
        job.edit = move_to_cuda;
        job.user = &n;
        fake->shake((uint64_t)n, 200);
        run_job(&job, fail_then_train, 0);
    }
    dp_schedule_free(s);
}

/* The device of ranks 0 and 2 breaks in the middle of a step. */
static int train_until_broken(struct dp_comm *comm, void *arg)
{
    struct job_rank r;
    int err = 0;

    CHECK(!open_on_cuda(&r, arg, comm));
    CHECK(!dp_comm_barrier(comm));
    if (comm->rank == 0)
        fake->fail_work(60, CUDA_ERROR_LAUNCH_FAILED);
    for (int i = 0; i < 100 && !err; i++)
        err = dp_pipeline_step(r.pipe, &r.step);
    CHECK(err == DP_EIO || err == DP_ECALLBACK || err == DP_EABORTED);
    CHECK(!dp_comm_reset(comm)); /* all are here ... */
    fake->reset();               /* ... and the device can free again */
    close_on_cuda(&r);
    return 0;
}

static void a_device_that_breaks_ends_the_step_on_every_rank(void **state)
{
    (void)state;
    struct dp_schedule *s = build((struct dp_schedule_spec){
        .kind = DP_SCHEDULE_DUALPIPE, .ranks = 4, .microbatches = 8});
    struct job job = job_make(s);
    struct job_result result;
    int killed;

    job.ops = &cuda_ops;
    job.edit = move_to_cuda;
    job_result_init(&result, &job);
    job.result = &result;
    assert_int_equal(
        comm_kinds[0].run(&comm_kinds[0], 4, deadline_ns, train_until_broken, &job, &killed), 0);
    assert_false(fake->armed());
    job_result_fini(&result, &job);
    dp_schedule_free(s);
}

static int open_without_memory(struct dp_comm *comm, void *arg)
{
    struct job_rank r;
    int err;

    CHECK(!enter_device(comm->rank % FAKE_CUDA_DEVICES));
    err = job_rank_open(&r, arg, comm);
    CHECK(err == (comm->rank == 1 ? DP_ENOMEM : DP_EABORTED));
    CHECK_SAYS("no device memory for a buffer of");
    close_on_cuda(&r);
    return 0;
}

static void a_device_without_room_fails_the_pipeline_on_every_rank(void **state)
{
    (void)state;
    struct dp_schedule *s = build(
        (struct dp_schedule_spec){.kind = DP_SCHEDULE_1F1B, .ranks = 2, .microbatches = 4});
    struct job job = job_make(s);
    struct job_result result;
    int killed;

    job.ops = &cuda_ops;
    job.edit = use_up_memory_of_rank_1;
    job_result_init(&result, &job);
    job.result = &result;
    assert_int_equal(
        comm_kinds[0].run(&comm_kinds[0], 2, deadline_ns, open_without_memory, &job, &killed), 0);
    job_result_fini(&result, &job);
    dp_schedule_free(s);
}

/* ---- the host's workers --------------------------------------------------------------------------- */

static _Thread_local struct dp_device *workers;

static void use_workers(void *user, int rank, struct dp_pipeline_config *config)
{
    (void)user;
    (void)rank;
    config->device = workers;
}

static int train_on_workers(struct dp_comm *comm, void *arg)
{
    struct job_rank r;

    CHECK(!dp_device_host_open(2, &workers));
    CHECK(!job_rank_open(&r, arg, comm));
    for (int i = 0; i < STEPS; i++)
        CHECK(!job_rank_step(&r));
    job_rank_close(&r);
    dp_device_close(workers);
    return 0;
}

static void copy_workers_change_no_number(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        struct dp_schedule *s = build(shapes[i]);
        struct job job = job_make(s);
        job.edit = use_workers;
        job.model.batch_dim = i % 2;
        job.model.rows = 1;
        job.model.width = 200; /* gradients of a size that workers get */
        run_job(&job, train_on_workers, STEPS - 1);
        dp_schedule_free(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(memory_the_cpu_cannot_touch_changes_no_number, free_kernels),
        cmocka_unit_test_teardown(a_device_that_is_late_at_random_changes_no_number, free_kernels),
        cmocka_unit_test_teardown(a_step_that_failed_leaves_nothing_behind, free_kernels),
        cmocka_unit_test_teardown(a_device_that_breaks_ends_the_step_on_every_rank, free_kernels),
        cmocka_unit_test_teardown(a_device_without_room_fails_the_pipeline_on_every_rank,
                                  free_kernels),
        cmocka_unit_test_teardown(copy_workers_change_no_number, free_kernels),
    };

    fake = use_fake_cuda();
    if (!fake)
        return 1;
    void *handle = dlopen(getenv("DUALPIPE_DEVICE_CUDA_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    *(void **)&cu.launch = dlsym(handle, "cuLaunchHostFunc");
    *(void **)&cu.query = dlsym(handle, "cuStreamQuery");
    *(void **)&cu.retain = dlsym(handle, "cuDevicePrimaryCtxRetain");
    *(void **)&cu.release = dlsym(handle, "cuDevicePrimaryCtxRelease_v2");
    *(void **)&cu.push = dlsym(handle, "cuCtxPushCurrent_v2");
    *(void **)&cu.pop = dlsym(handle, "cuCtxPopCurrent_v2");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
