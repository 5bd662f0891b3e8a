/* SPDX-License-Identifier: Apache-2.0
 *
 * A graph of nodes with branches and skip connections, cut into shards anywhere, computes what it computes
 * in memory node by node, to the last bit: random graphs, seeded (DP_TEST_SEED=n begins with that one;
 * DP_TEST_FULL: twenty times as many), in every mode. And what is no graph is refused.
 */
#include "cmocka_all.h"

#include "base/clock.h"
#include "base/fail.h"
#ifdef WITH_CUDA
#include "fakes/use_fake_cuda.h"
#endif
#include <dualpipe/microbatch.h>
#include <dualpipe/offload.h>

enum { SEEDS = 8, NODES = 9, TAKES = 6, MAKES = 2, ROWS = 7, WIDTH = 40, INPUTS = 2, PIECE = ROWS * WIDTH };
static const DLDataType f32 = {kDLFloat, 32, 1};

static struct dp_device *dev;
static void (*drain_device)(void);
static void *(*reach_of_device)(const void *ptr);
static bool adds; /* the device can add gradients up; otherwise no tensor is taken twice */

static int below(uint64_t *random, int n)
{
    *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((*random >> 33) % (uint64_t)n);
}

/* ---- a node: out[0] = sum over k of w[k] x_k + x_k^2 / 4; out[1] = w[0] x_0 ------------------------- */

struct node {
    struct dp_offload_source in[NODES * MAKES + INPUTS];
    int32_t in_count, makes;
    float value[TAKES], grad[TAKES];
    int64_t shape[1];
    DLTensor value_tensor, grad_tensor;
    struct dp_parameter parameter;
    struct dp_border out;
    char name[16];
};

struct graph {
    struct node nodes[NODES];
    int32_t count, output_count;
    struct dp_offload_source outputs[2];
    struct dp_border input;
};

static void *at(const DLTensor *t)
{
    return reach_of_device && t->data ? reach_of_device(t->data) : t->data;
}

static void compute(const struct node *n, const float *w, float *const *x, float *const *y, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float sum = 0;
        for (int32_t k = 0; k < n->in_count; k++)
            sum += w[k % TAKES] * x[k][i] + x[k][i] * x[k][i] / 4;
        y[0][i] = sum;
        if (n->makes > 1)
            y[1][i] = w[0] * x[0][i];
    }
}

/* gy[1] may be NULL: no later node has a gradient for it. */
static void differentiate(const struct node *n, const float *w, float *gw, float *const *x,
                          float *const *gy, float *const *gx, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (int32_t k = 0; k < n->in_count; k++) {
            float g = gy[0][i] * (w[k % TAKES] + x[k][i] / 2);
            gw[k % TAKES] += gy[0][i] * x[k][i];
            if (k == 0 && n->makes > 1) {
                g += gy[1][i] * w[0];
                gw[0] += gy[1][i] * x[0][i];
            }
            if (gx[k])
                gx[k][i] = g;
        }
}

/* Some nodes find that what they take beside the first tensor has no gradient. */
static bool leaves_out(const struct node *n, int32_t k)
{
    return k > 0 && n->name[1] % 3 == 2;
}

static void point(float **out, const DLTensor *t, int32_t count)
{
    for (int32_t k = 0; k < count; k++)
        out[k] = at(&t[k]);
}

static int node_forward(void *user, const struct dp_offload_call *call, const DLTensor *in, DLTensor *out)
{
    const struct node *n = user;
    float *x[NODES * MAKES + INPUTS], *y[MAKES];

    if (drain_device)
        drain_device();
    point(x, in, n->in_count);
    point(y, out, n->makes);
    compute(n, at(&call->values[0]), x, y, (size_t)call->rows * WIDTH);
    return 0;
}

static int node_backward(void *user, const struct dp_offload_call *call, const DLTensor *gout,
                         DLTensor *gin)
{
    const struct node *n = user;
    float *x[NODES * MAKES + INPUTS], *gx[NODES * MAKES + INPUTS], *gy[MAKES];

    if (drain_device)
        drain_device();
    point(x, call->in, n->in_count);
    point(gy, gout, n->makes);
    for (int32_t k = 0; k < n->in_count; k++)
        if (leaves_out(n, k))
            gin[k].data = NULL;
    point(gx, gin, n->in_count);
    differentiate(n, at(&call->values[0]), at(&call->grads[0]), x, gy, gx, (size_t)call->rows * WIDTH);
    return 0;
}

static const struct dp_offload_layer_ops node_ops = {node_forward, node_backward};

/* ---- a random graph --------------------------------------------------------------------------- */

static void add_source(struct node *n, int32_t node, int32_t tensor)
{
    for (int32_t k = 0; k < n->in_count; k++)
        if (n->in[k].node == node && n->in[k].tensor == tensor)
            return;
    n->in[n->in_count++] = (struct dp_offload_source){node, tensor};
}

static struct dp_border border_of(int32_t count)
{
    struct dp_border b = {.count = count};

    for (int32_t k = 0; k < count; k++)
        b.tensors[k] = (struct dp_tensor_spec){.dtype = f32, .ndim = 2, .shape = {ROWS, WIDTH}};
    return b;
}

static void finish_node(struct node *n, int32_t index, int32_t makes)
{
    snprintf(n->name, sizeof(n->name), "w%d", index);
    n->makes = makes;
    n->out = border_of(makes);
    n->shape[0] = TAKES;
    for (int k = 0; k < TAKES; k++)
        n->value[k] = (float)((index * 7 + k * 5) % 11 - 5) / 16;
    n->value_tensor = (DLTensor){n->value, {kDLCPU, 0}, 1, f32, n->shape, NULL, 0};
    n->grad_tensor = n->value_tensor;
    n->grad_tensor.data = n->grad;
    n->parameter = (struct dp_parameter){
        .name = n->name, .value = &n->value_tensor, .grad = &n->grad_tensor};
}

static bool is_taken(const struct graph *g, int32_t node, int32_t tensor)
{
    for (int32_t i = 0; i < g->count; i++)
        for (int32_t k = 0; k < g->nodes[i].in_count; k++)
            if (g->nodes[i].in[k].node == node && g->nodes[i].in[k].tensor == tensor)
                return true;
    return false;
}

/* Where no tensor may be taken twice: one or two of those that are left, the newest first, the oldest
 * next. There is always the output of the node before. */
static void take_what_is_left(struct graph *g, int32_t node)
{
    struct node *n = &g->nodes[node];

    for (int32_t i = node - 1; i >= -1 && n->in_count < 1; i--)
        for (int32_t k = 0; k < (i < 0 ? INPUTS : g->nodes[i].makes) && n->in_count < 1; k++)
            if (!is_taken(g, i, k))
                add_source(n, i, k);
    for (int32_t i = -1; i < node && node % 2 && n->in_count < 2; i++)
        for (int32_t k = 0; k < (i < 0 ? INPUTS : g->nodes[i].makes) && n->in_count < 2; k++)
            if (!is_taken(g, i, k))
                add_source(n, i, k);
}

/* Each node takes one to three tensors of any node before it, the last one all that are left over. One in
 * two graphs has a second output, which an earlier node makes and others may take, too. */
static void draw_graph(struct graph *g, uint64_t *random)
{
    memset(g, 0, sizeof(*g));
    g->count = 3 + below(random, NODES - 2);
    g->input = border_of(INPUTS);
    for (int32_t i = 0; i < g->count; i++) {
        struct node *n = &g->nodes[i];
        for (int k = adds ? 1 + below(random, 3) : 0; k > 0; k--) {
            int32_t from = below(random, i + 1) - 1;
            add_source(n, from, below(random, from < 0 ? INPUTS : g->nodes[from].makes));
        }
        if (!adds)
            take_what_is_left(g, i);
        finish_node(n, i, i + 1 < g->count ? 1 + below(random, MAKES) : 1);
    }
    struct node *last = &g->nodes[g->count - 1];
    for (int32_t i = 0; i + 1 < g->count; i++)
        for (int32_t k = 0; k < g->nodes[i].makes; k++)
            if (!is_taken(g, i, k) && last->in_count < DP_MAX_TENSORS)
                add_source(last, i, k);
    g->outputs[g->output_count++] = (struct dp_offload_source){g->count - 1, 0};
    if (adds && below(random, 2))
        g->outputs[g->output_count++] = (struct dp_offload_source){below(random, g->count - 1), 0};
}

/* ---- in memory -------------------------------------------------------------------------------- */

struct tensors {
    float x[INPUTS][PIECE], gx[INPUTS][PIECE];           /* of the model */
    float y[NODES][MAKES][PIECE], gy[NODES][MAKES][PIECE];
    bool has[NODES][MAKES], has_x[INPUTS];               /* a gradient, so far */
    float out[2][PIECE], gout[2][PIECE];
};

static float *tensor_at(struct tensors *t, struct dp_offload_source s, int64_t first, bool grad)
{
    if (s.node < 0)
        return (grad ? t->gx : t->x)[s.tensor] + first * WIDTH;
    return (grad ? t->gy : t->y)[s.node][s.tensor] + first * WIDTH;
}

/* Gradients of a tensor are added up, the last node's first; NULL: nothing, or zeros where it is the first,
 * which matters to the sign of a sum that is zero. */
static void give_gradient(struct tensors *t, struct dp_offload_source s, const float *g, int64_t first,
                          size_t count)
{
    float *to = tensor_at(t, s, first, true);
    bool *has = s.node < 0 ? &t->has_x[s.tensor] : &t->has[s.node][s.tensor];

    for (size_t i = 0; i < count && (g || !*has); i++)
        to[i] = !g ? 0 : *has ? g[i] + to[i] : g[i];
    *has = true;
}

static void piece_in_memory(struct graph *g, struct tensors *t, int64_t first, size_t count)
{
    static float made[NODES * MAKES + INPUTS][PIECE];
    float *x[NODES * MAKES + INPUTS], *gx[NODES * MAKES + INPUTS], *y[MAKES];

    for (int32_t i = 0; i < g->count; i++) {
        for (int32_t k = 0; k < g->nodes[i].in_count; k++)
            x[k] = tensor_at(t, g->nodes[i].in[k], first, false);
        for (int32_t k = 0; k < g->nodes[i].makes; k++)
            y[k] = tensor_at(t, (struct dp_offload_source){i, k}, first, false);
        compute(&g->nodes[i], g->nodes[i].value, x, y, count);
    }
    memset(t->has, 0, sizeof(t->has));
    memset(t->has_x, 0, sizeof(t->has_x));
    for (int32_t k = 0; k < g->output_count; k++)
        give_gradient(t, g->outputs[k], t->gout[k] + first * WIDTH, first, count);
    for (int32_t i = g->count - 1; i >= 0; i--) {
        struct node *n = &g->nodes[i];
        for (int32_t k = 0; k < n->in_count; k++) {
            x[k] = tensor_at(t, n->in[k], first, false);
            gx[k] = leaves_out(n, k) ? NULL : made[k];
        }
        for (int32_t k = 0; k < n->makes; k++)
            y[k] = tensor_at(t, (struct dp_offload_source){i, k}, first, true);
        differentiate(n, n->value, n->grad, x, y, gx, count);
        for (int32_t k = 0; k < n->in_count; k++)
            give_gradient(t, n->in[k], gx[k], first, count);
    }
}

static void step_in_memory(struct graph *g, struct tensors *t, int32_t microbatches)
{
    int64_t rows[ROWS], first = 0;
    int32_t count;

    assert_int_equal(dp_cut_sizes(DP_CUT_CHUNK, ROWS, microbatches, rows, &count), 0);
    for (int32_t mb = 0; mb < count; mb++) {
        piece_in_memory(g, t, first, (size_t)rows[mb] * WIDTH);
        first += rows[mb];
    }
    for (int32_t k = 0; k < g->output_count; k++)
        memcpy(t->out[k], tensor_at(t, g->outputs[k], 0, false), sizeof(t->out[k]));
}

/* ---- streamed --------------------------------------------------------------------------------- */

struct mode {
    int32_t slices, microbatches, slots;
    bool checkpoint, boundaries_down;
};

static struct dp_offload_graph *new_graph(const struct graph *g, struct dp_offload_node *nodes)
{
    struct dp_offload_graph *out = NULL;

    for (int32_t i = 0; i < g->count; i++)
        nodes[i] = (struct dp_offload_node){
            .layer = {.ops = &node_ops, .user = (void *)(uintptr_t)&g->nodes[i],
                      .parameters = &g->nodes[i].parameter, .parameter_count = 1,
                      .out = &g->nodes[i].out},
            .in = g->nodes[i].in, .in_count = g->nodes[i].in_count};
    const struct dp_offload_graph_config config = {.device = dev, .nodes = nodes,
                                                   .node_count = g->count, .input = &g->input,
                                                   .outputs = g->outputs,
                                                   .output_count = g->output_count};
    if (dp_offload_graph_new(&config, &out))
        return NULL;
    return out;
}

static void views(DLTensor *tensors, DLTensor **list, float (*data)[PIECE], int32_t count)
{
    static int64_t shape[2] = {ROWS, WIDTH};

    for (int32_t k = 0; k < count; k++) {
        tensors[k] = (DLTensor){data[k], {kDLCPU, 0}, 2, f32, shape, NULL, 0};
        list[k] = &tensors[k];
    }
}

static void step_streamed(struct dp_offload *o, struct graph *g, struct tensors *t)
{
    DLTensor x[INPUTS], gx[INPUTS], y[2], gy[2], *in[INPUTS], *gin[INPUTS], *out[2], *gout[2];

    views(x, in, t->x, INPUTS);
    views(gx, gin, t->gx, INPUTS);
    views(y, out, t->out, g->output_count);
    views(gy, gout, t->gout, g->output_count);
    assert_int_equal(dp_offload_forward(o, &(struct dp_offload_step){.inputs = (const DLTensor *const *)in,
                                                                     .outputs = out,
                                                                     .training = true}),
                     0);
    assert_int_equal(
        dp_offload_backward(o, &(struct dp_offload_gradients){.gouts = (const DLTensor *const *)gout,
                                                              .gins = gin}),
        0);
    assert_int_equal(dp_offload_finish(o), 0);
}

static void expect_equal(uint64_t seed, const char *what, const void *a, const void *b, size_t bytes)
{
    if (memcmp(a, b, bytes))
        fail_msg("DP_TEST_SEED=%llu: %s is not what is computed in memory", (unsigned long long)seed, what);
}

static void compare(uint64_t seed, const struct dp_offload *o, const struct graph *g,
                    const struct tensors *a, const struct tensors *b)
{
    int32_t count;
    const struct dp_parameter *list = dp_offload_parameters(o, &count);

    expect_equal(seed, "an output", a->out, b->out, sizeof(a->out));
    expect_equal(seed, "the input's gradient", a->gx, b->gx, sizeof(a->gx));
    assert_int_equal(count, g->count);
    for (int32_t i = 0; i < count; i++)
        expect_equal(seed, list[i].name, list[i].grad->data, g->nodes[i].grad, sizeof(g->nodes[i].grad));
}

static void run_mode(uint64_t seed, struct graph *g, const struct mode *mode)
{
    struct tensors *expected = calloc(1, sizeof(*expected)), *got = calloc(1, sizeof(*got));
    struct dp_offload_node nodes[NODES];
    struct dp_offload_graph *graph = new_graph(g, nodes);
    struct dp_offload *o;

    assert_non_null(graph);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < PIECE; i++) {
            expected->x[k][i] = (float)((i * 37 + k) % 101 - 50) / 64;
            expected->gout[k][i] = (float)((i * 53 + k) % 97 - 48) / 64;
        }
    *got = *expected;
    for (int32_t i = 0; i < g->count; i++)
        memset(g->nodes[i].grad, 0, sizeof(g->nodes[i].grad));
    step_in_memory(g, expected, mode->microbatches);
    const struct dp_offload_config config = {.device = dev,
                                             .layers = dp_offload_graph_layers(graph),
                                             .layer_count = g->count, .input = &g->input,
                                             .slices = mode->slices,
                                             .microbatches = mode->microbatches,
                                             .slots = mode->slots, .distance = mode->slots - 1,
                                             .checkpoint = mode->checkpoint,
                                             .boundaries_down = mode->boundaries_down,
                                             .check = true};
    assert_int_equal(dp_offload_open(&config, &o), 0);
    for (int step = 0; step < 2; step++) {
        memset(got->gx, 0xFF, sizeof(got->gx));
        step_streamed(o, g, got);
        compare(seed, o, g, got, expected);
    }
    dp_offload_close(o);
    dp_offload_graph_free(graph);
    free(expected);
    free(got);
}

CASE(any_graph_is_what_it_is_in_memory)
{
    const char *text = getenv("DP_TEST_SEED");
    const uint64_t first = text ? strtoull(text, NULL, 0) : 1;
    const uint64_t count = getenv("DP_TEST_FULL") ? 20 * SEEDS : SEEDS;

    for (uint64_t seed = first; seed < first + count; seed++) {
        uint64_t random = seed * 977;
        struct graph g;
        draw_graph(&g, &random);
        for (int how = 0; how < 3; how++)
            run_mode(seed, &g,
                     &(struct mode){.slices = how ? 1 + below(&random, g.count) : g.count,
                                    .microbatches = 1 + below(&random, 3),
                                    .slots = 1 + below(&random, 3), .checkpoint = how > 0,
                                    .boundaries_down = how > 1});
    }
}

/* ---- what is no graph ------------------------------------------------------------------------- */

/* x -> 0 -> 1 -> 2, and 0 skips to 2. */
static void make_skip(struct graph *g)
{
    memset(g, 0, sizeof(*g));
    g->count = 3;
    g->input = border_of(INPUTS);
    add_source(&g->nodes[0], -1, 0);
    add_source(&g->nodes[1], 0, 0);
    add_source(&g->nodes[2], 1, 0);
    add_source(&g->nodes[2], 0, 0);
    for (int32_t i = 0; i < 3; i++)
        finish_node(&g->nodes[i], i, 1);
    g->outputs[g->output_count++] = (struct dp_offload_source){2, 0};
}

static void expect_refused(const struct graph *g, const char *sentence)
{
    struct dp_offload_node nodes[NODES];

    assert_null(new_graph(g, nodes));
    if (!strstr(dp_last_error(), sentence))
        fail_msg("'%s' was expected to hold '%s'", dp_last_error(), sentence);
}

CASE(what_is_no_graph_is_refused)
{
    struct dp_offload_node nodes[NODES];
    struct graph g;

    make_skip(&g);
    if (adds) {
        struct dp_offload_graph *graph = new_graph(&g, nodes);
        const struct dp_offload_layer *layers = dp_offload_graph_layers(graph);
        assert_true(layers[0].out->count == 1 && layers[1].out->count == 2 &&
                    layers[2].out->count == 1);
        dp_offload_graph_free(graph);
    }
    g.nodes[0].in[0].node = 1;
    expect_refused(&g, "node 0 takes tensor 0 of node 1, expected one of the input");
    make_skip(&g);
    g.nodes[2].in[1].node = 1;
    expect_refused(&g, "node 2 takes tensor 0 of node 1 twice");
    make_skip(&g);
    g.nodes[1].out = border_of(2);
    expect_refused(&g, "tensor 1 of node 1 is taken by no node");
    make_skip(&g);
    g.outputs[0].node = 3;
    expect_refused(&g, "output 0 is tensor 0 of node 3, expected one that is made");
    make_skip(&g);
    g.nodes[1].in_count = 0;
    expect_refused(&g, "node 1 takes 0 tensors");
    make_skip(&g);
    g.output_count = 0;
    expect_refused(&g, "0 outputs");
    make_skip(&g);
    g.input = border_of(DP_MAX_TENSORS);
    g.nodes[1].in_count = 0;
    for (int32_t k = 0; k < DP_MAX_TENSORS; k++)
        add_source(&g.nodes[1], -1, k);
    expect_refused(&g, "more than 16 tensors are still taken behind node 0");
}

/* Node 0's output is taken by node 1 and by node 2, so it has two gradients. */
CASE(sums_that_the_device_cannot_make_are_refused)
{
    struct dp_offload_node nodes[NODES];
    struct graph g;

    make_skip(&g);
    struct dp_offload_graph *graph = new_graph(&g, nodes);
    assert_true(adds ? graph != NULL : graph == NULL);
    if (!adds)
        assert_non_null(strstr(dp_last_error(), "gradients of what node 1 takes must be added"));
    dp_offload_graph_free(graph);
}

static int run_suite(const char *title, struct dp_device *device, bool can_add)
{
    dev = device;
    adds = can_add;
    int failed = run_titled_cases(title);
    dp_device_close(device);
    return failed;
}

#ifdef WITH_CUDA
static int run_on_cuda(void)
{
    const struct fake_cuda *fake = use_fake_cuda();
    struct dp_device *device;

    if (!fake || dp_device_open("cuda:0", &device))
        return 1;
    fake->shake(5, 5);
    drain_device = fake->drain;
    reach_of_device = fake->reach;
    return run_suite("cuda on the stand-in, at random times", device, false) + fake->alive();
}
#endif

int main(void)
{
    struct dp_host_link late = {0, 0, 20 * DP_NS_PER_US, 3};
    struct dp_device *device;
    int failed = 0;

    dp_log_set(NULL, NULL, DP_LOG_ERROR);
    failed += dp_device_host_open(0, &device) || run_suite("host", device, true);
    failed += dp_device_host_open_link(2, &late, &device) ||
              run_suite("host, 2 workers, copies at random times", device, true);
#ifdef WITH_CUDA
    failed += run_on_cuda();
#endif
    return failed;
}
