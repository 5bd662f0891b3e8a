/* SPDX-License-Identifier: Apache-2.0
 *
 * test_values.c - stages that hand each other trees of several tensors, booleans, integers and
 * values that are no tensors, in training and in evaluation, under every schedule.
 *
 *      border    (x float32 [2, 3], [mask bool [2], {ids: int64 [2], z: float64 [2]}], note)
 *      stage s   y = w x f, f = 1 where mask, else 2    mask' = not mask    ids' = ids + s
 *                z' = z + sum of y of the row           note' = note, 'a' + s
 *      loss      the sum of z; y has no gradient of its own
 */
#include "cmocka_all.h"

#include "unit/comm/comm_group.h"

#include <dualpipe/pipeline.h>
#include <dualpipe/asyncpipe.h>

#define DEADLINE_NS INT64_C(20000000000)

enum { ROWS = 2, COLUMNS = 3, TENSORS = 5, NODES = 9, NOTE = 24, MAX_MBS = 8, MAX_STAGES = 8 };

/* ---- the model -------------------------------------------------------------------------------- */

static const struct dp_tree ids_z[] = {{.kind = DP_TREE_REPLICATE}, {.kind = DP_TREE_REPLICATE}};
static const char *const ids_z_names[] = {"ids", "z"};
static const struct dp_tree in_list[] = {
    {.kind = DP_TREE_REPLICATE},
    {.kind = DP_TREE_DICT, .count = 2, .items = ids_z, .names = ids_z_names},
    {.kind = DP_TREE_ABSENT}};
static const struct dp_tree in_tuple[] = {{.kind = DP_TREE_REPLICATE},
                                          {.kind = DP_TREE_LIST, .count = 3, .items = in_list},
                                          {.kind = DP_TREE_REPLICATE}};
static const struct dp_tree form = {.kind = DP_TREE_TUPLE, .count = 3, .items = in_tuple};

struct values {
    struct dp_tree nodes[NODES], tree;
    float *x;
    uint8_t *mask;
    int64_t *ids;
    double *z;
    const DLTensor *note;
};

/* The tree is what stages are handed; its tensors by their places. */
static int find_values(struct values *v, const DLTensor *tensors)
{
    int err = dp_tree_of(&form, tensors, TENSORS, v->nodes, NODES, &v->tree);

    if (err)
        return err;
    const struct dp_tree *list = &v->tree.items[1], *dict = &list->items[1];
    v->x = v->tree.items[0].tensor->data;
    v->mask = list->items[0].tensor->data;
    v->ids = dict->items[0].tensor->data;
    v->z = dict->items[1].tensor->data;
    v->note = v->tree.items[2].tensor;
    return list->items[2].kind == DP_TREE_ABSENT ? 0 : DP_EINVAL;
}

struct stage {
    float w, gw;
    int64_t one;
    DLTensor value, grad;
    struct dp_parameter parameter;
    int forwards, trained;
};

static int add_note(const DLTensor *from, const DLTensor *to, int stage)
{
    char text[NOTE];
    const void *bytes;
    size_t len;
    int err = dp_value_get(from, &bytes, &len);

    if (err || !bytes)
        return err ? err : dp_value_put(to, NULL, 0);
    memcpy(text, bytes, len);
    text[len] = (char)('a' + stage);
    return dp_value_put(to, text, len + 1);
}

static int forward(void *user, const struct dp_stage_call *call, const DLTensor *in, DLTensor *out)
{
    struct stage *s = user;
    struct values from, to;
    int err = find_values(&from, in);

    if (!err)
        err = find_values(&to, out);
    for (int r = 0; r < ROWS && !err; r++) {
        to.mask[r] = !from.mask[r];
        to.ids[r] = from.ids[r] + call->stage;
        to.z[r] = from.z[r];
        for (int c = r * COLUMNS; c < (r + 1) * COLUMNS; c++) {
            to.x[c] = s->w * from.x[c] * (from.mask[r] ? 1 : 2);
            to.z[r] += (double)to.x[c];
        }
    }
    s->forwards += !call->recomputing;
    s->trained += call->training && !call->recomputing;
    return err ? err : add_note(from.note, to.note, call->stage);
}

static int weight(void *user, const struct dp_stage_call *call)
{
    struct values in;
    int err = find_values(&in, call->in);
    const float *gy = call->gout[0].data;
    const double *gz = call->gout[3].data;

    for (int i = 0; i < ROWS * COLUMNS && !err; i++)
        *(float *)call->grads[0]->data += (gy[i] + (float)gz[i / COLUMNS]) * in.x[i] *
                                          (in.mask[i / COLUMNS] ? 1 : 2);
    return err;
}

static int backward(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                    DLTensor *gin, enum dp_backward_mode mode)
{
    const struct stage *s = user;
    const uint8_t *mask = call->in[1].data;
    const float *gy = gout[0].data;
    const double *gz = gout[3].data;

    if (gout[1].data || gout[2].data || gout[4].data || gin[1].data || gin[2].data || gin[4].data)
        return dp_callback_error(DP_EINVAL, "a gradient of what has none");
    for (int i = 0; i < ROWS * COLUMNS && gin[0].data; i++)
        ((float *)gin[0].data)[i] =
            (gy[i] + (float)gz[i / COLUMNS]) * s->w * (mask[i / COLUMNS] ? 1 : 2);
    for (int r = 0; r < ROWS && gin[3].data; r++)
        ((double *)gin[3].data)[r] = gz[r];
    return mode == DP_BACKWARD_FULL ? weight(user, call) : 0;
}

static int loss(void *user, const struct dp_stage_call *call, const DLTensor *out,
                const DLTensor *labels, double *values, int32_t max, int32_t *count)
{
    const double *z = out[3].data;

    values[0] = z[0] + z[1];
    *count = 1;
    return 0;
}

static int loss_backward(void *user, const struct dp_stage_call *call, const DLTensor *out,
                         const DLTensor *labels, double scale, DLTensor *gout)
{
    double *gz = gout[3].data;

    gout[0].data = NULL;
    gz[0] = gz[1] = scale;
    return 0;
}

static const struct dp_stage_ops ops = {.forward = forward, .backward = backward, .weight = weight};
static const struct dp_loss_ops loss_ops = {loss, loss_backward};

/* ---- micro-batches ----------------------------------------------------------------------------- */

static void make_border(struct dp_border *b)
{
    const struct dp_tensor_spec specs[TENSORS] = {
        {.dtype = {kDLFloat, 32, 1}, .ndim = 2, .shape = {ROWS, COLUMNS}},
        {.dtype = dp_bool_type(), .ndim = 1, .shape = {ROWS}, .no_grad = true},
        {.dtype = {kDLInt, 64, 1}, .ndim = 1, .shape = {ROWS}, .no_grad = true},
        {.dtype = {kDLFloat, 64, 1}, .ndim = 1, .shape = {ROWS}},
        dp_value_spec(NOTE)};

    b->count = TENSORS;
    memcpy(b->tensors, specs, sizeof(specs));
}

/* Memory, tensors and trees of all micro-batches of an end of the model. */
struct end {
    struct dp_border border;
    float x[MAX_MBS][ROWS * COLUMNS];
    uint8_t mask[MAX_MBS][ROWS];
    int64_t ids[MAX_MBS][ROWS];
    double z[MAX_MBS][ROWS];
    uint8_t note[MAX_MBS][NOTE + 16];
    DLTensor tensors[MAX_MBS][TENSORS];
    struct dp_tree nodes[MAX_MBS][NODES], leaves[MAX_MBS][2], args[MAX_MBS];
    struct dp_microbatches mbs;
};

static void end_init(struct end *e, int count)
{
    static const char anything[] = "an opaque value";

    make_border(&e->border);
    for (int mb = 0; mb < count; mb++) {
        void *const data[TENSORS] = {e->x[mb], e->mask[mb], e->ids[mb], e->z[mb], e->note[mb]};
        for (int k = 0; k < TENSORS; k++) {
            struct dp_tensor_spec *spec = &e->border.tensors[k];
            e->tensors[mb][k] =
                (DLTensor){data[k], {kDLCPU, 0}, spec->ndim, spec->dtype, spec->shape, NULL, 0};
        }
        if (dp_tree_of(&form, e->tensors[mb], TENSORS, e->nodes[mb], NODES, &e->leaves[mb][0]))
            abort();
        e->nodes[mb][5] = dp_opaque(anything); /* where the form has nothing */
        e->args[mb] = dp_tuple(1, e->leaves[mb]);
    }
    e->mbs = (struct dp_microbatches){.count = count, .args = e->args};
}

static void fill_inputs(struct end *e, int first, int count)
{
    for (int mb = 0; mb < count; mb++) {
        const int number = first + mb;
        for (int i = 0; i < ROWS * COLUMNS; i++)
            e->x[mb][i] = (float)((number + i) % 3);
        for (int r = 0; r < ROWS; r++) {
            e->mask[mb][r] = (uint8_t)((number + r) % 2);
            e->ids[mb][r] = (INT64_C(1) << 40) + number;
            e->z[mb][r] = number;
        }
        dp_value_put(&e->tensors[mb][4], number % 3 ? ">" : NULL, number % 3 ? 1 : 0);
    }
}

/* ---- what a plain loop has ------------------------------------------------------------------- */

struct expected {
    struct end out;
    float gw[MAX_STAGES];
};

static void run_plainly(struct expected *e, int stages, int first, int count)
{
    struct end *out = &e->out;

    end_init(out, count);
    fill_inputs(out, first, count);
    for (int mb = 0; mb < count; mb++) {
        float x[MAX_STAGES][ROWS * COLUMNS], g[ROWS * COLUMNS] = {0};
        for (int s = 0; s < stages; s++) {
            memcpy(x[s], out->x[mb], sizeof(x[s]));
            for (int i = 0; i < ROWS * COLUMNS; i++) {
                out->x[mb][i] *= out->mask[mb][i / COLUMNS] ? 1 : 2;
                out->z[mb][i / COLUMNS] += (double)out->x[mb][i];
            }
            for (int r = 0; r < ROWS; r++) {
                out->mask[mb][r] = !out->mask[mb][r];
                out->ids[mb][r] += s;
            }
            add_note(&out->tensors[mb][4], &out->tensors[mb][4], s);
        }
        for (int s = stages - 1; s >= 0; s--)
            for (int i = 0; i < ROWS * COLUMNS; i++) {
                const bool mask = ((first + mb + i / COLUMNS) % 2) ^ (s % 2);
                e->gw[s] += (g[i] + 1) * x[s][i] * (mask ? 1 : 2);
                g[i] = (g[i] + 1) * (mask ? 1 : 2);
            }
    }
}

/* ---- a rank ----------------------------------------------------------------------------------- */

struct trial {
    const struct dp_schedule *training, *forward;
    enum dp_execution execution;
};

struct rank {
    struct stage stages[DP_MAX_SLOTS];
    struct dp_stage config[DP_MAX_SLOTS];
    struct dp_border borders[MAX_STAGES + 1];
    struct end in, out;
    struct expected expected;
    double losses[MAX_MBS];
    bool first, last;
    int last_mb;
    struct dp_pipeline *pipe;
};

static void open_slot(struct rank *r, const struct dp_schedule *s, int rank, int slot)
{
    static const DLDataType float32 = {kDLFloat, 32, 1};
    const struct dp_slot *at = dp_schedule_slot(s, rank, slot);
    struct stage *stage = &r->stages[slot];

    stage->w = 1;
    stage->one = 1;
    stage->value = (DLTensor){&stage->w, {kDLCPU, 0}, 1, float32, &stage->one, NULL, 0};
    stage->grad = stage->value;
    stage->grad.data = &stage->gw;
    stage->parameter = (struct dp_parameter){
        .name = "w", .value = &stage->value, .grad = &stage->grad};
    r->config[slot] = (struct dp_stage){
        .ops = &ops, .user = stage, .parameter_count = 1, .parameters = &stage->parameter};
    if (dp_slot_is_first(at))
        fill_inputs(&r->in, at->stream * s->mb_per_stream, s->mb_per_stream);
    r->first |= dp_slot_is_first(at);
    if (dp_slot_is_last(at))
        r->last_mb = at->stream * s->mb_per_stream;
    r->last |= dp_slot_is_last(at);
}

static int open_rank(struct rank *r, const struct trial *trial, struct dp_comm *comm)
{
    const struct dp_schedule *s = trial->training;

    for (int i = 0; i <= s->stages; i++)
        make_border(&r->borders[i]);
    end_init(&r->in, s->mb_per_stream);
    end_init(&r->out, s->mb_per_stream);
    for (int slot = 0; slot < dp_schedule_slot_count(s, dp_comm_rank(comm)); slot++)
        open_slot(r, s, dp_comm_rank(comm), slot);
    if (r->last)
        run_plainly(&r->expected, s->stages, r->last_mb, s->mb_per_stream);
    return dp_pipeline_new(&(struct dp_pipeline_config){.schedule = s, .also = &trial->forward,
                                                        .also_count = 1, .comm = comm,
                                                        .stages = r->config, .borders = r->borders,
                                                        .loss = &loss_ops, .unsummed_copies = true,
                                                        .execution = trial->execution},
                           &r->pipe);
}

static int check_outputs(struct dp_comm *comm, const struct rank *r, int count)
{
    const struct end *has = &r->out, *want = &r->expected.out;

    for (int mb = 0; mb < count; mb++) {
        CHECK(!memcmp(has->x[mb], want->x[mb], sizeof(has->x[mb])));
        CHECK(!memcmp(has->mask[mb], want->mask[mb], sizeof(has->mask[mb])));
        CHECK(!memcmp(has->ids[mb], want->ids[mb], sizeof(has->ids[mb])));
        CHECK(!memcmp(has->z[mb], want->z[mb], sizeof(has->z[mb])));
        CHECK(!memcmp(has->note[mb], want->note[mb], sizeof(has->note[mb])));
        CHECK(r->losses[mb] == want->z[mb][0] + want->z[mb][1]);
    }
    return 0;
}

static int take_step(struct dp_comm *comm, struct rank *r, const struct dp_schedule *s)
{
    struct dp_step step = {.schedule = s, .inputs = r->first ? &r->in.mbs : NULL,
                           .outputs = r->last ? &r->out.mbs : NULL,
                           .losses = r->last ? r->losses : NULL};

    CHECK(!dp_pipeline_step(r->pipe, &step));
    CHECK(!r->last || !check_outputs(comm, r, s->mb_per_stream));
    memset(r->out.x, 0, sizeof(r->out.x));
    memset(r->out.note, 0, sizeof(r->out.note));
    return 0;
}

/* Of both streams together, where there are two: each slot has those of its own. */
static int check_gradients(struct dp_comm *comm, const struct rank *r, const struct dp_schedule *s)
{
    const int rank = dp_comm_rank(comm);

    for (int slot = 0; slot < dp_schedule_slot_count(s, rank); slot++) {
        const struct dp_slot *at = dp_schedule_slot(s, rank, slot);
        struct expected *e = calloc(1, sizeof(*e));
        CHECK(e);
        run_plainly(e, s->stages, at->stream * s->mb_per_stream, s->mb_per_stream);
        CHECK(r->stages[slot].gw == e->gw[at->stage]);
        CHECK(r->stages[slot].trained == s->mb_per_stream);
        CHECK(r->stages[slot].forwards == 3 * s->mb_per_stream);
        free(e);
    }
    return 0;
}

/* An evaluation, a training step, an evaluation: all in one pipeline. */
static int run_trial(struct dp_comm *comm, void *arg)
{
    const struct trial *trial = arg;
    struct rank *r = calloc(1, sizeof(*r));

    CHECK(r && !open_rank(r, trial, comm));
    CHECK(!take_step(comm, r, trial->forward));
    CHECK(!take_step(comm, r, trial->training));
    CHECK(!take_step(comm, r, trial->forward));
    CHECK(!check_gradients(comm, r, trial->training));
    dp_pipeline_free(r->pipe);
    free(r);
    return 0;
}

static void run_on(const struct comm_kind *kind, struct dp_schedule_spec spec,
                   enum dp_execution execution)
{
    OWNED(dp_schedule) *training = NULL;
    OWNED(dp_schedule) *evaluation = NULL;
    int killed;

    assert_int_equal(dp_schedule_new(&spec, &training), 0);
    spec.forward_only = spec.return_outputs = true;
    spec.recompute = DP_RECOMPUTE_NEVER;
    assert_int_equal(dp_schedule_new(&spec, &evaluation), 0);
    struct trial trial = {training, evaluation, execution};
    const int failed =
        kind ? kind->run(kind, training->ranks, DEADLINE_NS, run_trial, &trial, &killed)
             : comm_on_threads(training->ranks, DEADLINE_NS, run_trial, &trial);
    if (failed)
        fail_msg("%s, %s", dp_name(DP_NAMES_SCHEDULE, spec.kind), dp_name(DP_NAMES_EXECUTION, execution));
}

static const struct dp_schedule_spec shapes[] = {
    {.kind = DP_SCHEDULE_1F1B, .ranks = 3, .microbatches = 6},
    {.kind = DP_SCHEDULE_GPIPE, .ranks = 2, .microbatches = 4},
    {.kind = DP_SCHEDULE_ZB1P, .ranks = 3, .microbatches = 6},
    {.kind = DP_SCHEDULE_INTERLEAVED, .ranks = 2, .microbatches = 4},
    {.kind = DP_SCHEDULE_ZBV, .ranks = 2, .microbatches = 4},
    {.kind = DP_SCHEDULE_DUALPIPE, .ranks = 2, .microbatches = 8},
    {.kind = DP_SCHEDULE_DUALPIPEV, .ranks = 2, .microbatches = 6},
    {.kind = DP_SCHEDULE_ASYNC, .ranks = 3, .microbatches = 5},
};
enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

CASE(every_schedule_carries_values_of_all_kinds)
{
    for (int i = 0; i < SHAPES; i++)
        run_on(NULL, shapes[i], DP_EXECUTE_LIST);
}

/* What carries no gradient is an input of the second forward, too. */
CASE(values_of_all_kinds_go_with_recomputed_forwards)
{
    for (int i = 0; i < SHAPES; i++) {
        struct dp_schedule_spec spec = shapes[i];
        spec.recompute = i % 2 ? DP_RECOMPUTE_ALWAYS : DP_RECOMPUTE_EXCEPT_LAST;
        run_on(NULL, spec, DP_EXECUTE_LIST);
        if (spec.kind == DP_SCHEDULE_ASYNC)
            run_on(NULL, spec, DP_EXECUTE_MESSAGES);
    }
}

CASE(every_communicator_carries_values_of_all_kinds)
{
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++) {
        run_on(kind, shapes[0], DP_EXECUTE_LIST);
        run_on(kind, shapes[SHAPES - 1], DP_EXECUTE_MESSAGES);
    }
}

/* ---- values and trees by themselves ------------------------------------------------------------ */

CASE(values_are_read_as_they_were_put)
{
    struct end e;
    const void *bytes;
    char text[NOTE + 1] = "0123456789";
    size_t len;

    memset(&e, 0, sizeof(e));
    end_init(&e, 1);
    const DLTensor *note = &e.tensors[0][4];
    expect_error(dp_value_get(note, &bytes, &len), DP_EMISMATCH, "expected what dp_value_put wrote");
    assert_int_equal(dp_value_put(note, text, NOTE), 0);
    assert_int_equal(dp_value_get(note, &bytes, &len), 0);
    assert_int_equal(len, NOTE);
    assert_memory_equal(bytes, text, NOTE);
    assert_int_equal(dp_value_put(note, text, 0), 0);
    assert_int_equal(dp_value_get(note, &bytes, &len), 0);
    assert_true(bytes && len == 0);
    assert_int_equal(dp_value_put(note, NULL, 0), 0);
    assert_int_equal(dp_value_get(note, &bytes, &len), 0);
    assert_true(!bytes && len == 0);
    expect_error(dp_value_put(note, text, NOTE + 1), DP_EINVAL, "expected at most 24");
    expect_error(dp_value_put(note, NULL, 1), DP_EINVAL, "a value of 1 bytes at NULL");
    expect_error(dp_value_put(&e.tensors[0][0], text, 1), DP_EINVAL, "a tensor of dp_value_spec");
    e.tensors[0][4].device.device_type = kDLCUDA;
    expect_error(dp_value_put(note, text, 1), DP_EUNSUPPORTED, "memory that the CPU reaches");
}

CASE(a_form_that_does_not_fit_is_refused)
{
    struct dp_tree nodes[NODES], tree = dp_absent();
    struct end e;

    memset(&e, 0, sizeof(e));
    end_init(&e, 1);
    expect_error(dp_tree_of(&form, e.tensors[0], TENSORS - 1, nodes, NODES, &tree), DP_EINVAL,
                 "a form of 5 leaves for 4 tensors");
    expect_error(dp_tree_of(&form, e.tensors[0], TENSORS, nodes, 7, &tree), DP_EINVAL,
                 "more than 7 nodes below its root");
    struct dp_tree endless = {.kind = DP_TREE_LIST, .count = 1};
    endless.items = &endless;
    struct dp_tree many[DP_TREE_MAX_DEPTH + 1];
    expect_error(dp_tree_of(&endless, e.tensors[0], 1, many, DP_TREE_MAX_DEPTH + 1, &tree),
                 DP_EINVAL, "at depth 64, expected at most 64 levels");
    expect_error(dp_tree_of(NULL, e.tensors[0], 1, nodes, NODES, &tree), DP_EINVAL,
                 "expected a form");
    assert_int_equal(tree.kind, DP_TREE_ABSENT);
}

RUN_QUIET_CASES(NULL, NULL)
