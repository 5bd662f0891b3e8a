/* SPDX-License-Identifier: Apache-2.0
 *
 * The model of `dualpipe train` by the kernels of tools/train/cuda, against the CPU: losses and
 * gradients, in float32 and bfloat16, of odd sizes. On the simulated CUDA the kernels' own source runs
 * on the CPU, beside a stand-in for cuBLASLt (simcuda/sim_blas.c); with DP_TEST_GPU set they run on that
 * GPU, and products are cuBLASLt's.
 */
#include "cmocka_all.h"
#include "use_sim_cuda.h"

#include "train/cuda/cuda_rank.h"

#include <dualpipe/trainer.h>

#include <dlfcn.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What cuBLASLt leaves behind where it does not start, as without a GPU. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libcublasLt\n";
}

static const char *gpu; /* DP_TEST_GPU; NULL: simulated */

static const struct gpt_config shapes[] = {
    {.layers = 1, .width = 16, .heads = 2, .context = 33, .batch = 2, .seed = 1},
    {.layers = 2, .width = 21, .heads = 3, .context = 19, .batch = 2, .seed = 2, .dropout = 0.2F},
    {.layers = 1, .width = 100, .heads = 1, .context = 5, .batch = 1, .seed = 3},
    {.layers = 1, .width = 128, .heads = 2, .context = 130, .batch = 1, .seed = 4},
    {.layers = 1, .width = 128, .heads = 1, .context = 70, .batch = 1, .seed = 5},
    {.layers = 1, .width = 100, .heads = 1, .context = 40, .batch = 1, .seed = 6},
};

/* A micro-batch that goes forward and backward through the whole model. */
struct pass {
    struct gpt_layers *gpt;
    struct dp_layers *layers;
    struct dp_stage stage;
    DLTensor **grads;
    struct cuda_rank *rank; /* NULL: the CPU */
    size_t size;            /* of an activation */
    void *memory[8];        /* what was taken */
    int taken;
    double loss;
};

static size_t rows_of(const struct gpt_config *c)
{
    return (size_t)c->batch * (size_t)c->context;
}

static void wait_for(struct cuda_rank *r)
{
    struct dp_device_event *event;

    assert_int_equal(r->compute.ops->error(&r->compute), 0);
    assert_int_equal(dp_device_event_new(r->dev, &event), 0);
    assert_int_equal(dp_device_event_record(event, r->stream), 0);
    assert_int_equal(dp_device_event_wait(event, INT64_C(60000000000)), 0);
    dp_device_event_free(event);
}

static void copy(struct pass *p, void *to, const void *from, size_t bytes)
{
    if (!p->rank) {
        memcpy(to, from, bytes);
        return;
    }
    assert_int_equal(dp_device_copy(p->rank->stream, to, from, bytes), 0);
    wait_for(p->rank);
}

/* Until end(). */
static void *take(struct pass *p, size_t bytes)
{
    void **out = &p->memory[p->taken++];

    assert_true(p->taken <= (int)(sizeof(p->memory) / sizeof(p->memory[0])));
    if (!p->rank)
        *out = malloc(bytes);
    else
        assert_int_equal(dp_device_alloc(p->rank->dev, DP_MEMORY_DEVICE, bytes, out), 0);
    assert_non_null(*out);
    return *out;
}

static void *take_copy(struct pass *p, const void *from, size_t bytes)
{
    void *out = take(p, bytes);

    copy(p, out, from, bytes);
    return out;
}

static DLTensor **grads_of(const struct dp_stage *stage)
{
    DLTensor **grads = calloc((size_t)stage->parameter_count, sizeof(DLTensor *));

    assert_non_null(grads);
    for (int32_t i = 0; i < stage->parameter_count; i++)
        grads[i] = stage->parameters[i].grad;
    return grads;
}

static void begin(struct pass *p, const struct gpt_config *c)
{
    const bool bf16 = p->rank && p->rank->compute.size == 2;

    p->size = bf16 ? 2 : sizeof(real);
    assert_int_equal(gpt_layers_new(c, p->rank ? &p->rank->compute : NULL, bf16, &p->gpt), 0);
    const struct dp_layers_config config = {.model = gpt_layers_model(p->gpt),
                                            .rows = c->batch,
                                            .seed = c->seed,
                                            .dtype = bf16 ? (DLDataType){kDLBfloat, 16, 1}
                                                          : (DLDataType){0},
                                            .device = p->rank ? p->rank->dev : NULL,
                                            .stream = p->rank ? p->rank->stream : NULL};
    assert_int_equal(dp_layers_new(&config, &p->layers), 0);
}

static void end(struct pass *p)
{
    for (int i = 0; i < p->taken; i++)
        if (p->rank)
            dp_device_free(p->rank->dev, DP_MEMORY_DEVICE, p->memory[i]);
        else
            free(p->memory[i]);
    free(p->grads);
    dp_layers_free(p->layers);
    gpt_layers_free(p->gpt);
    cuda_rank_free(p->rank);
}

static void go(struct pass *p, const struct gpt_config *c, const uint8_t *tokens,
               const uint8_t *labels)
{
    begin(p, c);
    const size_t rows = rows_of(c), bytes = rows * GPT_BYTES * p->size;
    const DLDevice where = p->rank ? p->rank->compute.dl : (DLDevice){kDLCPU, 0};
    int64_t shape[] = {c->batch, c->context, GPT_BYTES};
    DLTensor in = {take_copy(p, tokens, rows), where, 2, {kDLUInt, 8, 1}, shape, NULL, 0};
    DLTensor label = in, out = in, gout, none = {0};
    double *loss = take(p, sizeof(*loss));
    int32_t count;

    assert_int_equal(dp_layers_add(p->layers, 0, c->layers + 2, &p->stage), 0);
    p->grads = grads_of(&p->stage);
    struct dp_stage_call call = {.mb_global = 3, .step = 5, .training = true, .in = &in,
                                 .grads = p->grads, .save = take(p, p->stage.save_bytes)};
    label.data = take_copy(p, labels, rows);
    out.ndim = 3;
    out.dtype = p->size == 2 ? (DLDataType){kDLBfloat, 16, 1}
                             : (DLDataType){kDLFloat, 8 * sizeof(real), 1};
    out.data = take(p, bytes);
    gout = out;
    gout.data = take(p, bytes);
    if (p->rank)
        call.stream = dp_device_stream_native(p->rank->stream);
    const struct dp_stage_ops *ops = p->stage.ops;
    const struct dp_model *m = gpt_layers_model(p->gpt);
    void *user = p->stage.user;
    assert_int_equal(ops->forward(user, &call, &in, &out), 0);
    assert_int_equal(m->loss->loss(m->loss_user, &call, &out, &label, loss, 1, &count), 0);
    assert_int_equal(m->loss->loss_backward(m->loss_user, &call, &out, &label, 2.5, &gout), 0);
    assert_int_equal(ops->backward(user, &call, &gout, &none, DP_BACKWARD_INPUT), 0);
    call.gout = &gout;
    assert_int_equal(ops->weight(user, &call), 0);
    copy(p, &p->loss, loss, sizeof(*loss));
}

/* |a - b| <= most |b|, in the Euclidean norm; a small b is not looked at so closely. */
static void assert_near(const char *what, const float *a, const float *b, size_t count, double most)
{
    double off = 0, norm = 0;

    for (size_t i = 0; i < count; i++) {
        off += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    if (!(sqrt(off) <= most * (sqrt(norm) + 1e-3 * sqrt((double)count))))
        fail_msg("%s: off by %.3g, its norm is %.3g, expected at most %.3g of it", what, sqrt(off),
                 sqrt(norm), most);
}

static void compare(struct pass *cuda, struct pass *cpu, bool bf16)
{
    for (int32_t i = 0; i < cpu->stage.parameter_count; i++) {
        const struct dp_parameter *p = &cpu->stage.parameters[i];
        const size_t count = (size_t)dp_parameter_elements(p);
        float *mine = malloc(count * sizeof(*mine));
        assert_non_null(mine);
        copy(cuda, mine, cuda->stage.parameters[i].grad->data, count * sizeof(*mine));
        assert_near(p->name, mine, p->grad->data, count, bf16 ? 0.08 : 2e-5);
        free(mine);
    }
}

/* Products by the kernel of our own, as where there is no cuBLASLt; or by cuBLASLt where it can. */
enum products { OWN, CUBLASLT };

static void choose_products(struct cuda_rank *r, enum products by)
{
    if (by == CUBLASLT && gpu && !r->blas)
        skip_because("no cuBLASLt here");
    if (by == CUBLASLT) {
        assert_non_null(r->blas);
        return;
    }
    blas_close(r->blas);
    r->blas = NULL;
}

static struct cuda_rank *open_rank(const struct gpt_config *c, bool bf16, size_t callbacks)
{
    const struct cuda_rank_config how = {.device = gpu ? gpu : "cuda",
                                         .ranks = 1,
                                         .image = gpu ? cuda_image : "simulated",
                                         .bf16 = bf16,
                                         .model = *c,
                                         .callbacks = callbacks};
    struct cuda_rank *r;

    assert_int_equal(cuda_rank_new(&how, &r), 0);
    return r;
}

static void compare_all(const struct gpt_config *c, bool bf16, enum products by)
{
    const size_t rows = rows_of(c);
    uint8_t *tokens = malloc(rows), *labels = malloc(rows);
    struct pass cpu = {0}, cuda = {.rank = open_rank(c, bf16, 0)};

    for (size_t i = 0; i < rows; i++) {
        tokens[i] = (uint8_t)(i * 37 + i / 5);
        labels[i] = (uint8_t)(i * 11 + 200);
    }
    choose_products(cuda.rank, by);
    go(&cpu, c, tokens, labels);
    go(&cuda, c, tokens, labels);
    assert_true(fabs(cuda.loss - cpu.loss) < (bf16 ? 0.02 : 1e-5) * cpu.loss);
    compare(&cuda, &cpu, bf16);
    end(&cuda);
    end(&cpu);
    free(labels);
    free(tokens);
}

/* The last one is there for the kernels of attention, and takes longest. */
static void compare_shapes(bool bf16, enum products by)
{
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]) - (by == CUBLASLT); i++)
        compare_all(&shapes[i], bf16, by);
}

CASE(the_model_is_that_of_the_cpu_in_float32)
{
    compare_shapes(false, OWN);
}

CASE(the_model_is_nearly_that_of_the_cpu_in_bfloat16)
{
    compare_shapes(true, OWN);
}

/* ---- cuBLASLt -------------------------------------------------------------------------------- */

static void *simulated(const char *name)
{
    void *library = dlopen(getenv("DUALPIPE_DEVICE_CUDA_LIBRARY"), RTLD_NOW);
    void *function = library ? dlsym(library, name) : NULL;

    assert_non_null(function);
    return function;
}

/* How many products the stand-in has been given. */
static int products_of_cublaslt(void)
{
    int (*calls)(const char *name);

    *(void **)&calls = simulated("sim_calls");
    return calls("cublasLtMatmul");
}

/* Of one shape every size is odd: the stand-in has no algorithm for it. */
CASE(it_is_so_with_cublaslt_in_both_types)
{
    const int before = gpu ? 0 : products_of_cublaslt();

    compare_shapes(false, CUBLASLT);
    compare_shapes(true, CUBLASLT);
    if (!gpu)
        assert_true(products_of_cublaslt() > before + 50);
}

/* A product of ones: c = k + 2, the 2 being the bias. */
struct wanted {
    int m, n, k;
    size_t a, b, c, bias; /* how many floats behind a multiple of 256 bytes it begins */
    int expected;
};

enum { BUFFER_FLOATS = 4096 };

static int multiply(struct blas *blas, const struct wanted *w, float *const buffers[4], void *stream)
{
    return blas_product(blas, &(struct product_args){
        .m = w->m, .n = w->n, .k = w->k, .a_row = w->k, .a_column = 1, .b_row = w->n, .b_column = 1,
        .a = buffers[0] + w->a, .b = buffers[1] + w->b, .c = buffers[2] + w->c,
        .bias = buffers[3] + w->bias}, stream);
}

static void see_product(struct dp_device_stream *stream, struct dp_device_event *event,
                        struct blas *blas, const struct wanted *w, float *const buffers[4])
{
    assert_int_equal(multiply(blas, w, buffers, dp_device_stream_native(stream)), w->expected);
    assert_int_equal(dp_device_event_record(event, stream), 0);
    assert_int_equal(dp_device_event_wait(event, INT64_C(60000000000)), 0);
    for (int i = 0; i < w->m * w->n && !w->expected; i++)
        assert_true(buffers[2][w->c + (size_t)i] == (float)w->k + 2);
}

/* On the simulated CUDA the device's memory is the host's. */
CASE(cublaslt_is_told_how_operands_lie_and_what_it_cannot_do_is_refused)
{
    static const struct wanted rows[] = {
        {4, 6, 8, 0, 0, 0, 0, 0}, {4, 6, 8, 1, 0, 0, 0, 0}, {4, 6, 8, 0, 1, 0, 0, 0},
        {4, 6, 8, 0, 0, 1, 0, 0}, {4, 6, 8, 2, 5, 33, 4, 0}, {2, 2, 2, 64, 32, 16, 8, 0},
        {4, 6, 8, 0, 0, 0, 1, DP_EUNSUPPORTED}, {4, 6, 8, 0, 0, 0, 2, DP_EUNSUPPORTED},
        {4, 5, 8, 0, 0, 0, 0, DP_EUNSUPPORTED}, {4, 6, 7, 0, 0, 0, 0, DP_EUNSUPPORTED},
    };
    struct dp_device_stream *streams[3];
    struct dp_device_event *event;
    struct dp_device *dev;
    struct blas *blas;
    float *buffers[4];

    if (gpu)
        skip_because("what cuBLASLt has no algorithm for is known of the stand-in only");
    assert_int_equal(dp_device_cuda_open(0, &dev), 0);
    assert_int_equal(blas_open(dev, false, &blas), 0);
    assert_int_equal(dp_device_event_new(dev, &event), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(dp_device_stream_new(dev, DP_PRIORITY_NORMAL, &streams[i]), 0);
    for (int i = 0; i < 4; i++) {
        void *memory;
        assert_int_equal(dp_device_alloc(dev, DP_MEMORY_DEVICE, BUFFER_FLOATS * sizeof(float),
                                         &memory), 0);
        buffers[i] = memory;
        for (int k = 0; k < BUFFER_FLOATS; k++)
            buffers[i][k] = i == 3 ? 2 : 1;
    }
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        see_product(streams[0], event, blas, &rows[i], buffers);

    /* Of so many shapes no more are planned, and those that are go on. */
    struct wanted shape = {1, 2, 2, 0, 0, 0, 0, 0};
    while (!multiply(blas, &shape, buffers, dp_device_stream_native(streams[0])) && shape.m < 1000)
        shape.m++;
    assert_in_range(shape.m, 32, 128);
    shape.expected = DP_EUNSUPPORTED;
    see_product(streams[0], event, blas, &shape, buffers);
    see_product(streams[1], event, blas, &rows[0], buffers);
    shape = rows[0]; /* there is workspace for two streams */
    shape.expected = DP_EUNSUPPORTED;
    see_product(streams[2], event, blas, &shape, buffers);
    blas_close(blas);
    dp_device_event_free(event);
    for (int i = 0; i < 4; i++)
        dp_device_free(dev, DP_MEMORY_DEVICE, buffers[i]);
    for (int i = 0; i < 3; i++)
        dp_device_stream_free(streams[i]);
    dp_device_close(dev);
}

/* ---- a step that waits for nothing ----------------------------------------------------------- */

enum { MICROBATCHES = 4, STEPS = 3 };

static const struct gpt_config stepped = {.layers = 2, .width = 8, .heads = 2, .context = 4,
                                          .batch = 2, .seed = 4};

/* The host queues a whole step, then waits once, for its numbers: while it queues, it neither waits nor
 * asks, so that the device never runs dry. */
struct stepped {
    double losses[STEPS];
    real weights[8192]; /* after the last update */
    size_t count;
};

static const struct dp_loss_ops *own_loss; /* the model's */
static int (*waits_inside)(void);
static void (*count_waits)(void);

static int queue_loss(void *user, const struct dp_stage_call *call, const DLTensor *out,
                      const DLTensor *labels, double *values, int32_t max, int32_t *count)
{
    if (call->step == 0 && call->mb == 0)
        count_waits(); /* the first step has waited for the batch's memory */
    assert_int_equal(waits_inside(), 0);
    return own_loss->loss(user, call, out, labels, values, max, count);
}

static int queue_loss_backward(void *user, const struct dp_stage_call *call, const DLTensor *out,
                               const DLTensor *labels, double scale, DLTensor *gout)
{
    assert_int_equal(waits_inside(), 0);
    return own_loss->loss_backward(user, call, out, labels, scale, gout);
}

static void keep_weights(struct dp_trainer *t, struct stepped *out)
{
    struct dp_named_tensor *all;
    int32_t count;

    out->count = 0;
    assert_int_equal(dp_trainer_gather(t, 0, &all, &count), 0);
    for (int32_t i = 0; i < count; i++) {
        const size_t n = (size_t)(all[i].tensor.shape[0] * all[i].tensor.shape[1]);
        assert_true(out->count + n <= sizeof(out->weights) / sizeof(out->weights[0]));
        memcpy(out->weights + out->count, all[i].tensor.data, n * sizeof(real));
        out->count += n;
    }
    dp_trainer_gathered_free(all);
}

static void train_steps(struct cuda_rank *r, const struct dp_model *model, struct stepped *out)
{
    static const struct dp_loss_ops counted = {queue_loss, queue_loss_backward};
    uint8_t bytes[MICROBATCHES * 2 * 4];
    int64_t shape[] = {MICROBATCHES * 2, 4};
    const DLTensor tensor = {bytes, {kDLCPU, 0}, 2, {kDLUInt, 8, 1}, shape, NULL, 0};
    const struct dp_tree tree = dp_tuple(1, (struct dp_tree[]){dp_tensor(&tensor)});
    const struct dp_batch batch = {.inputs = &tree, .labels = &tree};
    const struct dp_trainer_config config = {.microbatches = MICROBATCHES,
                                             .rows = shape[0],
                                             .optimizer = dp_optimizer_defaults(DP_OPTIMIZER_ADAMW),
                                             .rate = {.peak = 0.01},
                                             .seed = stepped.seed,
                                             .device = r->dev,
                                             .stream = r->stream};
    struct dp_model own = *model;
    struct dp_trainer_result result;
    struct dp_trainer *t;

    *(void **)&count_waits = simulated("sim_count_waits");
    *(void **)&waits_inside = simulated("sim_waits_inside");
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 9);
    own_loss = model->loss;
    own.loss = &counted;
    assert_int_equal(dp_trainer_new(&config, &own, NULL, &t), 0);
    for (int step = 0; step < STEPS; step++) {
        dp_trainer_set_rate(t, 0.01 * (step + 1));
        count_waits();
        assert_int_equal(dp_trainer_step(t, &batch, &result), 0);
        out->losses[step] = result.loss;
    }
    keep_weights(t, out);
    dp_trainer_free(t);
}

static void take_steps(bool graphs, struct stepped *out)
{
    struct cuda_rank *r = open_rank(&stepped, false, graphs ? 64 : 0);
    struct gpt_layers *layers;

    assert_int_equal(gpt_layers_new(&stepped, &r->compute, false, &layers), 0);
    train_steps(r, gpt_layers_model(layers), out);
    gpt_layers_free(layers);
    cuda_rank_free(r);
}

/* To the last bit. */
static void assert_as_plain(const struct stepped *plain)
{
    static struct stepped other;

    take_steps(true, &other);
    assert_memory_equal(plain->losses, other.losses, sizeof(other.losses));
    assert_int_equal(plain->count, other.count);
    assert_memory_equal(plain->weights, other.weights, other.count * sizeof(real));
}

CASE(a_step_waits_for_nothing_before_all_of_it_is_queued)
{
    static struct stepped plain;
    void (*break_call)(const char *name, int call, int status);
    int (*calls)(const char *name);

    if (gpu)
        skip_because("calls are counted on the simulated CUDA");
    *(void **)&break_call = simulated("sim_fail");
    *(void **)&calls = simulated("sim_calls");
    break_call("cuGraphLaunch", 0, 0);
    take_steps(false, &plain);
    assert_int_equal(calls("cuGraphLaunch"), 0);
    assert_as_plain(&plain);
    /* Forward and backward of each layer: all but the first at each place, and of the embedding there are
     * as many as micro-batches. */
    const int all = 2 * MICROBATCHES * (stepped.layers + 2);
    assert_int_equal(calls("cuGraphLaunch"), STEPS * all - 2 * (MICROBATCHES + stepped.layers + 1));
    break_call("cuStreamEndCapture", 1, 900); /* then kernels are launched one by one */
    assert_as_plain(&plain);
}

/* ---- an overlapped pair ---------------------------------------------------------------------- */

static atomic_bool may_go;

static void wait_for_go(void *user)
{
    for (int i = 0; i < 600000 && !atomic_load(&may_go); i++)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

/* A loss that holds up the stream of forwards. */
static int hold_up(void *user, const struct dp_stage_call *call, const DLTensor *out,
                   const DLTensor *labels, double *values, int32_t max, int32_t *count)
{
    struct cuda_rank *r = user;

    assert_ptr_equal(call->stream, dp_device_stream_native(r->stream));
    *values = 0;
    *count = 1;
    return dp_device_call(r->stream, wait_for_go, NULL);
}

static const struct dp_loss_ops holding = {hold_up, NULL};

/* Two stages of one rank, and what their callbacks are given. */
struct two {
    struct pass p;
    struct dp_stage stages[2];
    DLTensor **grads[2];
    DLTensor tokens, labels, x, logits, d_logits, d_x;
    void *save[2];
};

static DLTensor tensor_of(struct two *t, size_t bytes, int64_t *shape, int ndim, DLDataType type)
{
    DLTensor tensor = {take(&t->p, bytes), t->p.rank->compute.dl, ndim, type, shape, NULL, 0};

    assert_int_equal(dp_device_zero(t->p.rank->stream, tensor.data, bytes), 0);
    return tensor;
}

static struct dp_stage_call call_of(struct two *t, int stage)
{
    return (struct dp_stage_call){.training = true, .save = t->save[stage],
                                  .in = stage ? &t->x : &t->tokens,
                                  .gout = stage ? &t->d_logits : &t->d_x,
                                  .grads = t->grads[stage],
                                  .stream = dp_device_stream_native(t->p.rank->stream)};
}

/* As another stream sees it now. */
static float first_of(struct cuda_rank *r, const DLTensor *t)
{
    struct dp_device_stream *stream;
    struct dp_device_event *event;
    float x = 0;

    assert_int_equal(dp_device_stream_new(r->dev, DP_PRIORITY_NORMAL, &stream), 0);
    assert_int_equal(dp_device_event_new(r->dev, &event), 0);
    assert_int_equal(dp_device_copy(stream, &x, t->data, sizeof(x)), 0);
    assert_int_equal(dp_device_event_record(event, stream), 0);
    assert_int_equal(dp_device_event_wait(event, INT64_C(60000000000)), 0);
    dp_device_event_free(event);
    dp_device_stream_free(stream);
    return x;
}

/* While the stream of the forward is held up, the backward goes on in its own. */
CASE(a_pair_s_backward_does_not_wait_for_its_forward)
{
    const size_t rows = rows_of(&stepped), reals = rows * sizeof(real);
    int64_t shape[] = {stepped.batch, stepped.context, stepped.width};
    int64_t wide[] = {stepped.batch, stepped.context, GPT_BYTES};
    const DLDataType byte = {kDLUInt, 8, 1}, real_type = {kDLFloat, 8 * sizeof(real), 1};
    struct two t = {.p.rank = open_rank(&stepped, false, 0)};
    struct cuda_rank *r = t.p.rank;
    struct dp_device_event *event;
    int32_t count = 0;
    double value;
    int first;

    begin(&t.p, &stepped);
    for (int i = 0; i < 2; i++) {
        const int layers = gpt_layers_of_stage(&stepped, i, 2, &first);
        assert_int_equal(dp_layers_add(t.p.layers, first, first + layers, &t.stages[i]), 0);
        t.save[i] = take(&t.p, t.stages[i].save_bytes);
        t.grads[i] = grads_of(&t.stages[i]);
    }
    t.tokens = tensor_of(&t, rows, shape, 2, byte);
    t.labels = t.tokens;
    t.x = tensor_of(&t, reals * (size_t)stepped.width, shape, 3, real_type);
    t.d_x = tensor_of(&t, reals * (size_t)stepped.width, shape, 3, real_type);
    t.logits = tensor_of(&t, reals * GPT_BYTES, wide, 3, real_type);
    t.d_logits = tensor_of(&t, reals * GPT_BYTES, wide, 3, real_type);
    const struct dp_stage_call begins = call_of(&t, 0), ends = call_of(&t, 1);
    const struct dp_stage *a = &t.stages[0], *b = &t.stages[1];
    assert_int_equal(a->ops->forward(a->user, &begins, &t.tokens, &t.x), 0);
    assert_int_equal(b->ops->forward(b->user, &ends, &t.x, &t.logits), 0);
    wait_for(r);

    const struct dp_model *m = gpt_layers_model(t.p.gpt);
    const struct dp_pair_loss held = {.ops = &holding, .user = r, .values = &value, .max = 1,
                                      .count = &count};
    const struct dp_pair_loss begun = {.ops = m->loss, .user = m->loss_user, .labels = &t.labels,
                                       .out = &t.logits, .scale = 1};
    /* Only the places of the forward's output differ from before: they are not used. */
    DLTensor other = tensor_of(&t, reals * (size_t)stepped.width, shape, 3, real_type);
    const struct dp_pair pair = {{a->user, &begins, &t.tokens, &other, &held},
                                 {b->user, &ends, &t.d_logits, &t.d_x, &begun}};
    atomic_store(&may_go, false);
    assert_int_equal(a->ops->fwd_bwd(&pair), 0);
    assert_int_equal(dp_device_event_new(r->dev, &event), 0);
    assert_int_equal(dp_device_event_record(event, r->stream), 0);
    while (first_of(r, &t.d_x) == 0) /* until the backward has written it */
        assert_int_equal(dp_device_event_test(event), DP_EAGAIN);
    assert_int_equal(dp_device_event_test(event), DP_EAGAIN);
    atomic_store(&may_go, true);
    wait_for(r);
    assert_true(isfinite(first_of(r, &t.d_x)));
    dp_device_event_free(event);
    free(t.grads[0]);
    free(t.grads[1]);
    end(&t.p);
}

/* Once it is loaded, blas.c finds it by its name, before any other of that name. NULL, or what failed. */
static const char *load_stand_in(void)
{
    const char *build = getenv("DP_TOP_BUILDDIR");
    char file[1024];

    simulated("sim_calls"); /* which it calls */
    snprintf(file, sizeof(file), "%s/tests/simcuda/.libs/libcublasLt.so.13", build ? build : ".");
    return dlopen(file, RTLD_NOW) ? NULL : dlerror();
}

int main(int argc, char **argv)
{
    const char *why = use_sim_cuda();

    if (why) {
        printf("skipped: %s\n", why);
        return 77;
    }
    gpu = getenv("DP_TEST_GPU");
    if (gpu && !cuda_image) {
        printf("DP_TEST_GPU is set, but configure found no nvcc\n");
        return 77;
    }
    if (!gpu && (why = load_stand_in())) {
        printf("%s\n", why);
        return 1;
    }
    cmocka_set_test_filter(argc > 1 ? argv[1] : NULL); /* "a_*": these tests only */
    return run_cases(NULL, NULL);
}
