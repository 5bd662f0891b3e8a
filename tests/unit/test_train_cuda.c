/* SPDX-License-Identifier: Apache-2.0
 *
 * The model of `dualpipe train` by the kernels of tools/train/cuda, against the CPU: outputs, losses,
 * gradients, norms and updates, in float32 and bfloat16, of odd sizes. On the simulated CUDA the
 * kernels' own source runs on the CPU; with DP_TEST_GPU set they run on that GPU.
 */
#include "cmocka_all.h"

#include "train/cuda/cuda_rank.h"
#include "train/cuda/image.h"
#include "train/engine.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
};

/* A micro-batch that goes forward and backward through the whole model. */
struct pass {
    struct gpt_stage *stage;
    const struct compute *compute;
    struct cuda_rank *rank; /* NULL: the CPU */
    void *save, *logits, *d_logits;
    double loss;
};

static size_t rows_of(const struct gpt_config *c)
{
    return (size_t)c->batch * (size_t)c->context;
}

static void *take(struct pass *p, size_t bytes)
{
    void *out = NULL;

    if (!p->rank)
        out = malloc(bytes);
    else
        assert_int_equal(dp_device_alloc(p->rank->dev, DP_MEMORY_DEVICE, bytes, &out), 0);
    assert_non_null(out);
    return out;
}

static void give(struct pass *p, void *memory)
{
    if (p->rank)
        dp_device_free(p->rank->dev, DP_MEMORY_DEVICE, memory);
    else
        free(memory);
}

static void go(struct pass *p, const struct gpt_config *c, uint8_t *tokens, uint8_t *labels)
{
    const size_t bytes = rows_of(c) * GPT_BYTES * p->compute->size;
    const DLDataType real_type = {kDLFloat, 8 * sizeof(real), 1}, bf16 = {kDLBfloat, 16, 1};
    int64_t shape[] = {c->batch, c->context, GPT_BYTES};
    const DLTensor bytes_of = {tokens, p->compute->dl, 2, {kDLUInt, 8, 1}, shape, NULL, 0};
    DLTensor in = bytes_of, label = bytes_of, out = bytes_of, gout;
    struct dp_stage_call call = {.mb_global = 3, .step = 5, .training = true,
                                 .random = {.key = c->seed}, .in = &in,
                                 .grads = p->stage->grads_list};
    const struct dp_stage_ops *ops = &gpt_stage_ops;
    int32_t count;

    p->save = call.save = take(p, p->stage->save_bytes);
    label.data = labels;
    out.ndim = 3;
    out.dtype = p->compute->size == 2 ? bf16 : real_type;
    p->logits = out.data = take(p, bytes);
    gout = out;
    p->d_logits = gout.data = take(p, bytes);
    if (p->rank)
        call.stream = dp_device_stream_native(p->rank->stream);
    void *loss_user = p->rank ? (void *)(uintptr_t)p->compute : NULL;
    assert_int_equal(ops->forward(p->stage, &call, &in, &out), 0);
    assert_int_equal(gpt_loss_ops.loss(loss_user, &call, &out, &label, &p->loss, 1, &count), 0);
    assert_int_equal(gpt_loss_ops.loss_backward(loss_user, &call, &out, &label, 2.5, &gout), 0);
    assert_int_equal(ops->backward(p->stage, &call, &gout, NULL, DP_BACKWARD_INPUT), 0);
    assert_int_equal(ops->weight(p->stage, &call), 0);
    if (!p->rank)
        return;
    assert_int_equal(cuda_rank_queue_numbers(p->rank, false), 0);
    assert_int_equal(cuda_rank_wait(p->rank), 0);
    cuda_rank_losses(p->rank, &p->loss, 1);
}

static void end(struct pass *p)
{
    give(p, p->d_logits);
    give(p, p->logits);
    give(p, p->save);
    gpt_stage_free(p->stage);
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

static float *read_back(struct pass *p, const float *from, size_t count)
{
    float *out = malloc(count * sizeof(*out));

    assert_non_null(out);
    assert_int_equal(cuda_rank_copy(p->rank, out, from, count * sizeof(*out)), 0);
    return out;
}

static void compare(struct pass *cuda, struct pass *cpu, bool bf16, bool weights)
{
    const struct params *params = &cpu->stage->params;
    const double most = bf16 ? 0.08 : 2e-5;
    const float *right = weights ? cpu->stage->weights : cpu->stage->grads;
    float *all =
        read_back(cuda, weights ? cuda->stage->weights : cuda->stage->grads, params->count);

    for (size_t i = 0; i < params->tensors_len; i++) {
        const struct tensor *t = &params->tensors[i];
        assert_near(cpu->stage->tensors[i].name, all + t->offset, right + t->offset,
                    tensor_count(t), most);
    }
    free(all);
}

/* The optimizer on both, from the CPU's gradients on the GPU as well. */
static void compare_updates(struct pass *cuda, struct pass *cpu)
{
    const struct params *p = &cpu->stage->params;
    const int32_t count = (int32_t)p->tensors_len;
    struct dp_optimizer_config config = dp_optimizer_defaults(DP_OPTIMIZER_ADAMW);
    struct dp_optimizer *optimizer;
    double mine[64], right[64];

    assert_true(count <= 64);
    assert_int_equal(dp_optimizer_new(&config, cpu->stage->parameters, count, &optimizer), 0);
    for (int step = 0; step < 3; step++) {
        const size_t bytes = p->count * sizeof(float);
        for (size_t i = 0; i < p->count; i++)
            cpu->stage->grads[i] = (float)sin((double)(i + (size_t)step * 7));
        assert_int_equal(cuda_rank_copy(cuda->rank, cuda->stage->grads, cpu->stage->grads, bytes), 0);
        assert_int_equal(cuda_rank_squares(cuda->rank, 0, mine), 0);
        assert_int_equal(dp_gradient_squares(cpu->stage->parameters, count, right), 0);
        for (int32_t i = 0; i < count; i++)
            assert_true(fabs(mine[i] - right[i]) <= 1e-12 * right[i]);
        assert_int_equal(cuda_rank_update(cuda->rank, 0, &config, 0.01, 0.5, false), 0);
        assert_int_equal(dp_optimizer_step(optimizer, &(struct dp_optimizer_step){
                             .rate = 0.01, .scale = 0.5, .zero_grads = true}), 0);
    }
    compare(cuda, cpu, false, true);
    compare(cuda, cpu, false, false);
    dp_optimizer_free(optimizer);
}

static void compare_all(const struct gpt_config *c, bool bf16)
{
    struct gpt_config config = *c;
    const size_t rows = rows_of(c);
    uint8_t *tokens = malloc(rows), *labels = malloc(rows), *there[2];
    struct pass cpu = {.compute = &compute_cpu}, cuda = {0};
    const struct cuda_rank_config how = {.device = gpu ? gpu : "cuda",
                                         .image = gpu ? cuda_image : "simulated", .bf16 = bf16,
                                         .microbatches = 1, .model = *c, .model_microbatches = 1};

    for (size_t i = 0; i < rows; i++) {
        tokens[i] = (uint8_t)(i * 37 + i / 5);
        labels[i] = (uint8_t)(i * 11 + 200);
    }
    assert_int_equal(gpt_stage_new(c, 0, 1, &cpu.stage), 0);
    go(&cpu, c, tokens, labels);
    assert_int_equal(cuda_rank_new(&how, &cuda.rank), 0);
    cuda.compute = config.compute = &cuda.rank->compute;
    assert_int_equal(cuda_rank_add_stage(cuda.rank, &config, 0, 1, &cuda.stage), 0);
    assert_int_equal(cuda_rank_begin(cuda.rank, tokens, rows, labels, rows, &there[0], &there[1]), 0);
    go(&cuda, &config, there[0], there[1]);
    assert_true(fabs(cuda.loss - cpu.loss) < (bf16 ? 0.02 : 1e-5) * cpu.loss);
    compare(&cuda, &cpu, bf16, false);
    if (!bf16)
        compare_updates(&cuda, &cpu);
    end(&cuda);
    cuda_rank_free(cuda.rank);
    end(&cpu);
    free(labels);
    free(tokens);
}

static void the_model_is_that_of_the_cpu_in_float32(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        compare_all(&shapes[i], false);
}

static void the_model_is_nearly_that_of_the_cpu_in_bfloat16(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        compare_all(&shapes[i], true);
}

/* ---- a step that waits for nothing ----------------------------------------------------------- */

enum { MICROBATCHES = 4, STEPS = 3 };

static const struct gpt_config stepped = {.layers = 2, .width = 8, .heads = 2, .context = 4,
                                          .batch = 2, .seed = 4};

static void *simulated(const char *name)
{
    void *library = dlopen(getenv("DUALPIPE_DEVICE_CUDA_LIBRARY"), RTLD_NOW);
    void *function = library ? dlsym(library, name) : NULL;

    assert_non_null(function);
    return function;
}

static void make_engine(const struct dp_schedule_spec *spec, struct dp_schedule *schedules[2],
                        struct engine **out)
{
    struct dp_schedule_spec forward = *spec;

    forward.forward_only = true;
    assert_int_equal(dp_schedule_new(spec, &schedules[0]), 0);
    assert_int_equal(dp_schedule_new(&forward, &schedules[1]), 0);
    const struct pipelined_config config = {.model = stepped, .training = schedules[0],
                                            .forward = schedules[1], .any_order = true,
                                            .device = "cuda", .image = "simulated"};
    assert_int_equal(pipelined_new(&config, out), 0);
}

/* The host queues a whole step, then waits once, for its numbers: while it queues, it neither waits nor
 * asks, so that the device never runs dry. The update is queued behind them, and the next step behind
 * that. */
static void a_step_waits_for_nothing_before_all_of_it_is_queued(void **state)
{
    const struct dp_schedule_spec spec = {.kind = DP_SCHEDULE_1F1B, .ranks = 1,
                                          .microbatches = MICROBATCHES};
    const struct dp_optimizer_config config = dp_optimizer_defaults(DP_OPTIMIZER_ADAMW);
    uint8_t tokens[MICROBATCHES * 2 * 4], labels[MICROBATCHES * 2 * 4];
    const struct batch batch = {tokens, labels};
    double losses[MICROBATCHES], squares[64];
    struct dp_schedule *schedules[2];
    void (*count)(void);
    int (*inside)(void);
    struct engine *e;

    (void)state;
    if (gpu)
        skip_because("calls are counted on the simulated CUDA");
    *(void **)&count = simulated("sim_count_waits");
    *(void **)&inside = simulated("sim_waits_inside");
    for (size_t i = 0; i < sizeof(tokens); i++)
        tokens[i] = labels[i] = (uint8_t)(i * 9);
    make_engine(&spec, schedules, &e);
    for (int step = 0; step < STEPS; step++) {
        count();
        assert_int_equal(e->ops->train(e, &batch, losses), 0);
        assert_int_equal(inside(), 0);
        count();
        assert_int_equal(e->ops->squares(e, 0, squares), 0);
        assert_true(losses[0] > 0 && squares[0] > 0);
        assert_int_equal(e->ops->update(e, 0, &config, 0.01, 1, false), 0);
        assert_int_equal(inside(), 0);
    }
    e->ops->free(e);
    dp_schedule_free(schedules[1]);
    dp_schedule_free(schedules[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_model_is_that_of_the_cpu_in_float32),
        cmocka_unit_test(the_model_is_nearly_that_of_the_cpu_in_bfloat16),
        cmocka_unit_test(a_step_waits_for_nothing_before_all_of_it_is_queued),
    };
    const char *build = getenv("DP_TOP_BUILDDIR");
    char file[1024];

#ifdef __SANITIZE_THREAD__
    printf("skipped: the thread sanitizer does not know the stacks that simulated threads have\n");
    return 77;
#endif
    gpu = getenv("DP_TEST_GPU");
    if (gpu && !cuda_image) {
        printf("DP_TEST_GPU is set, but configure found no nvcc\n");
        return 77;
    }
    snprintf(file, sizeof(file), "%s/tests/simcuda/.libs/libsimcuda.so", build ? build : ".");
    if (!gpu)
        setenv("DUALPIPE_DEVICE_CUDA_LIBRARY", file, 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
