/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_job.h"

#include "base/clock.h"
#include "fakes/use_fake_cuda.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const int64_t deadline_ns = 20 * DP_NS_PER_S;

static const struct fake_cuda *fake; /* NULL: another driver */
static void *(*reach)(const void *device_ptr);
static int device_count;
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
    struct dp_device *dev, *given; /* given: the caller's; NULL: opened here */
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

/* ---- kernels: the model's callbacks, as work in a stream ------------------------------------- */

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

static void reach_tensors(DLTensor *to, const DLTensor *from, int count)
{
    for (int i = 0; i < count && from; i++) {
        to[i] = from[i];
        to[i].data = from[i].data ? reach(from[i].data) : NULL;
    }
}

static void take_call(struct side *side, void *user, const struct dp_stage_call *call)
{
    side->user = user;
    side->call = *call;
    side->call.save = reach(call->save);
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
    const struct dp_pair pair = {.forward = {k->f.user, &k->f.call, k->f.in, k->f.out, NULL},
                                 .backward = {k->b.user, &k->b.call, k->b.gout, k->b.gin, NULL}};

    model_ops.fwd_bwd(&pair);
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

static int cuda_fwd_bwd(const struct dp_pair *pair)
{
    struct kernel *k = new_kernel(run_fwd_bwd);
    int err = dp_pair_start_from_loss(pair);

    if (err)
        return err;
    take_call(&k->f, pair->forward.user, pair->forward.call);
    reach_tensors(k->f.out, pair->forward.out, MODEL_TENSORS);
    take_call(&k->b, pair->backward.user, pair->backward.call);
    reach_tensors(k->b.gout, pair->backward.gout, MODEL_TENSORS);
    reach_tensors(k->b.gin, pair->backward.gin, MODEL_TENSORS);
    err = launch(k, pair->forward.call->stream);
    return err ? err : dp_pair_take_loss(pair);
}

const struct dp_stage_ops cuda_job_ops = {
    .forward = cuda_forward, .backward = cuda_backward, .weight = cuda_weight,
    .fwd_bwd = cuda_fwd_bwd};

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

/* ---- a rank on a device ---------------------------------------------------------------------- */

static int finish_copies(void)
{
    int err = dp_device_event_record(here.event, here.stream);

    return err ? err : dp_device_event_wait(here.event, deadline_ns);
}

/* Copy all buffers from (or to) the device. */
static int copy_buffers(bool up)
{
    int err = 0;

    for (int i = 0; i < here.count && !err; i++) {
        char *to = up ? here.buffers[i].there : here.buffers[i].host;
        const char *from = up ? here.buffers[i].host : here.buffers[i].there;
        err = dp_device_copy(here.stream, to, from, here.buffers[i].bytes);
    }
    return err ? err : finish_copies();
}

static char *add_buffer(void *host, size_t bytes)
{
    void *there = NULL;

    if (here.count == MOST_BUFFERS ||
        dp_device_alloc(here.dev, DP_MEMORY_DEVICE, bytes, &there))
        abort();
    here.buffers[here.count].there = there;
    here.buffers[here.count].host = host;
    here.buffers[here.count].bytes = bytes;
    here.count++;
    return there;
}

static void move_stage(struct model_stage *stage)
{
    size_t bytes = model_grad_count(stage->model, stage->stage) * sizeof(float);
    char *there = add_buffer(stage->gw, bytes);

    for (int i = 0; i < MODEL_GRADS; i++) {
        DLTensor *value = &stage->values[i];
        size_t count = (size_t)value->shape[0] * (size_t)(i ? 1 : value->shape[1]);
        stage->tensors[i].device = value->device = dp_device_dl(here.dev);
        value->data = add_buffer(i ? stage->b : stage->w, count * sizeof(float));
    }
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
        t->device = dp_device_dl(here.dev);
    }
}

void cuda_job_edit(void *user, int rank, struct dp_pipeline_config *config)
{
    (void)user;
    config->device = here.dev;
    if (config->loss)
        config->loss = &cuda_loss_ops;
    for (int i = 0; i < dp_schedule_slot_count(config->schedule, rank); i++)
        move_stage(config->stages[i].user);
}

static int enter_device(int ordinal)
{
    int err = 0;

    if (here.given)
        here.dev = here.given;
    else
        err = dp_device_cuda_open(ordinal, &here.dev);
    if (err)
        return err;
    here.count = here.fail_in = 0;
    cu.retain(&here.context, ordinal);
    cu.push(here.context);
    err = dp_device_stream_new(here.dev, DP_PRIORITY_NORMAL, &here.stream);
    return err ? err : dp_device_event_new(here.dev, &here.event);
}

void cuda_job_leave(void)
{
    CUcontext context;

    for (int i = 0; i < here.count; i++)
        dp_device_free(here.dev, DP_MEMORY_DEVICE, here.buffers[i].there);
    dp_device_event_free(here.event);
    dp_device_stream_free(here.stream);
    cu.pop(&context);
    cu.release(dp_device_dl(here.dev).device_id);
    if (!here.given)
        dp_device_close(here.dev);
}

int cuda_job_copy(bool up)
{
    return copy_buffers(up);
}

static void (*before_step)(void);

void cuda_job_before_step(void (*fn)(void))
{
    before_step = fn;
}

int cuda_job_step(struct job_rank *r)
{
    for (int i = 0; i < dp_schedule_slot_count(r->job->schedule, r->rank); i++)
        memset(r->stages[i].gw, 0,
               model_grad_count(&r->job->model, r->stages[i].stage) * sizeof(float));
    int err = copy_buffers(true);
    if (!err && before_step)
        before_step();
    if (!err)
        err = dp_pipeline_step(r->pipe, &r->step);
    if (!err)
        err = copy_buffers(false);
    if (!err)
        job_rank_store(r);
    return err;
}

int cuda_job_open(struct job_rank *r, const struct job *job, struct dp_comm *comm)
{
    int err = enter_device(dp_comm_rank(comm) % device_count);

    if (err)
        return err;
    err = job_rank_open(r, job, comm);
    move_batch(&r->in);
    move_batch(&r->label);
    move_batch(&r->out);
    job_rank_split(r);
    return err;
}

void cuda_job_use_device(struct dp_device *dev)
{
    here.given = dev;
}

void cuda_job_close(struct job_rank *r)
{
    job_rank_close(r);
    cuda_job_leave();
}

void cuda_job_fail_callback(int n)
{
    here.fail_in = n;
}

void cuda_job_take_memory(size_t bytes)
{
    add_buffer(NULL, bytes);
}

/* ---- all ranks ------------------------------------------------------------------------------- */

static void find_driver(void)
{
    void *handle = dlopen(getenv("DUALPIPE_DEVICE_CUDA_LIBRARY"), RTLD_NOW | RTLD_LOCAL);

    *(void **)&cu.launch = dlsym(handle, "cuLaunchHostFunc");
    *(void **)&cu.query = dlsym(handle, "cuStreamQuery");
    *(void **)&cu.retain = dlsym(handle, "cuDevicePrimaryCtxRetain");
    *(void **)&cu.release = dlsym(handle, "cuDevicePrimaryCtxRelease_v2");
    *(void **)&cu.push = dlsym(handle, "cuCtxPushCurrent_v2");
    *(void **)&cu.pop = dlsym(handle, "cuCtxPopCurrent_v2");
}

const struct fake_cuda *cuda_job_init(void)
{
    fake = use_fake_cuda();
    if (!fake)
        return NULL;
    reach = fake->reach;
    device_count = FAKE_CUDA_DEVICES;
    find_driver();
    return fake;
}

static void *reach_directly(const void *device_ptr)
{
    return (void *)(uintptr_t)device_ptr;
}

void cuda_job_init_reachable(void)
{
    reach = reach_directly;
    device_count = 1;
    find_driver();
}

void cuda_job_fini(void)
{
    struct kernel *next;

    if (fake) {
        fake->reset();
        fake->drain();
    }
    for (struct kernel *k = kernels; k; k = next) {
        next = k->next;
        free(k);
    }
    kernels = NULL;
}
