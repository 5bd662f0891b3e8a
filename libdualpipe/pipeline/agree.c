/* SPDX-License-Identifier: Apache-2.0
 *
 * agree.c - do all ranks agree, on the config of a pipeline and before each step? And how the others
 * learn that one has failed.
 */
#include "pipeline/setup.h"
#include "schedule/internal.h"

#include "base/fail.h"
#include "base/hash.h"
#include "base/tensor.h"
#include "comm/internal.h"
#include "comm/lines.h"
#include "pipeline/border.h"
#include "schedule/build.h"

#include <dualpipe/survival.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- failures -------------------------------------------------------------------------------- */

void dp_failure_tell(struct dp_comm *comm, int error)
{
    char text[DP_ABORT_TEXT];

    if (!comm || error == DP_EABORTED)
        return;
    snprintf(text, sizeof(text), "%s", dp_last_error());
    const int failed = dp_comm_survives(comm) ? dp_comm_revoke(comm, error, text) : error;
    if (failed)
        dp_comm_fail(comm, failed);
    dp_fail_quietly(error, "%s", text);
}

/* ---- what is agreed on ------------------------------------------------------------------------ */

/* What must be the same everywhere, a number each. */
enum field {
    FIELD_VERSION,
    FIELD_STRUCTS,
    FIELD_KIND,
    FIELD_MICROBATCHES,
    FIELD_FORWARD_ONLY,
    FIELD_RETURN_OUTPUTS,
    FIELD_RANK_MAP,
    FIELD_OPS,
    FIELD_BORDERS,
    FIELD_FIXED_ORDER,
    FIELD_ORDER_BLOCKS,
    FIELD_UNSUMMED_COPIES,
    FIELD_KEEP_COPIES,
    FIELD_TIED_COPIES,
    FIELD_OWN_GRADIENTS,
    FIELD_UNCHECKED,
    FIELD_OPAQUE_ENDS,
    FIELD_EXECUTION,
    FIELD_SEED,
    FIELD_LOSS_SCALE,
    /* 0 where a rank does not say, as it does not hold that end of the model: */
    FIELD_OPTIONAL,
    FIELD_INPUT = FIELD_OPTIONAL, /* border 0 */
    FIELD_OUTPUT,                 /* border S */
    FIELD_LOSS,
    FIELDS
};

/* How a field's number is told to a reader. LINES: it is a hash of lines (add_field). */
enum telling { NUMBER, NAME_OF_KIND, LINES };

static const struct {
    const char *name;
    enum telling telling;
} fields[FIELDS] = {
    [FIELD_VERSION] = {"library version", NUMBER},
    [FIELD_STRUCTS] = {"struct sizes", LINES},
    [FIELD_KIND] = {"schedule kind", NAME_OF_KIND},
    [FIELD_MICROBATCHES] = {"micro-batches", NUMBER},
    [FIELD_FORWARD_ONLY] = {"forward_only", NUMBER},
    [FIELD_RETURN_OUTPUTS] = {"return_outputs", NUMBER},
    [FIELD_RANK_MAP] = {"rank map", LINES},
    [FIELD_OPS] = {"schedule ops", LINES},
    [FIELD_BORDERS] = {"borders", LINES},
    [FIELD_FIXED_ORDER] = {"fixed_order", NUMBER},
    [FIELD_ORDER_BLOCKS] = {"order_blocks", NUMBER},
    [FIELD_UNSUMMED_COPIES] = {"unsummed_copies", NUMBER},
    [FIELD_KEEP_COPIES] = {"keep_copies", NUMBER},
    [FIELD_TIED_COPIES] = {"tied_copies", NUMBER},
    [FIELD_OWN_GRADIENTS] = {"own_gradients", NUMBER},
    [FIELD_UNCHECKED] = {"unchecked", NUMBER},
    [FIELD_OPAQUE_ENDS] = {"opaque_ends", NUMBER},
    [FIELD_EXECUTION] = {"execution (0: list, 1: messages)", NUMBER},
    [FIELD_SEED] = {"seed", NUMBER},
    [FIELD_LOSS_SCALE] = {"loss_scale", LINES},
    [FIELD_INPUT] = {"border 0", LINES},
    [FIELD_OUTPUT] = {"last border", LINES},
    [FIELD_LOSS] = {"loss (1: given, 2: NULL)", NUMBER},
};

/* One rank's part of the exchange. */
struct report {
    int32_t err;
    uint64_t fields[FIELDS];
    uint64_t parameters[DP_MAX_SLOTS]; /* of each slot: names and layouts of its parameters */
};

/* ---- what the fields stand for ------------------------------------------------------------------ */
/* As lines, see dp_comm_agree_on_lines. */

static void add_spec(struct dp_text *t, const struct dp_tensor_spec *spec)
{
    char dtype[32], shape[160];

    dp_dtype_name(spec->dtype, dtype, sizeof(dtype));
    dp_shape_text(spec->shape, spec->ndim, shape, sizeof(shape));
    dp_text_addf(t, "\t%s%s%s", dtype, shape, spec->no_grad ? ", no_grad" : "");
    for (int i = 0; i < spec->ndim; i++)
        if (spec->extent[i])
            dp_text_addf(t, ", dimension %d follows extent %d", i, spec->extent[i]);
    dp_text_adds(t, "\n");
}

static void add_border(struct dp_text *t, const struct dp_pipeline_config *config, int i)
{
    dp_text_addf(t, "tensors of border %d\t%d\n", i, config->borders[i].count);
    for (int k = 0; k < config->borders[i].count; k++) {
        dp_text_addf(t, "border %d, tensor %d", i, k);
        add_spec(t, &config->borders[i].tensors[k]);
    }
}

/* Between stages; not every rank declares the ends of the model. */
static void add_borders(struct dp_text *t, const struct dp_pipeline_config *config)
{
    for (int i = 1; i < config->schedule->stages; i++)
        add_border(t, config, i);
    for (int e = 0; e < DP_MAX_EXTENTS; e++)
        dp_text_addf(t, "max_extents[%d]\t%lld\n", e, (long long)config->max_extents[e]);
    for (int k = 0; k < config->schedule->skip_count; k++) {
        dp_text_addf(t, "tensor of skip %d", k);
        add_spec(t, &config->skips[k]);
    }
}

static void add_ops(struct dp_text *t, const struct dp_schedule *s)
{
    char text[DP_OP_TEXT_LEN];

    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < dp_schedule_slot_count(s, r); i++) {
            const struct dp_slot *slot = dp_schedule_slot(s, r, i);
            dp_text_addf(t, "schedule, slot %d of rank %d\tstage %d, stream %d, phase %d, before it "
                         "%d.%d, after it %d.%d, location %d, mirror %d.%d\n", i, r, slot->stage,
                         slot->stream, slot->phase, slot->prev, slot->prev_slot, slot->next,
                         slot->next_slot, slot->location, slot->mirror, slot->mirror_slot);
        }
    for (int k = 0; k < s->skip_count; k++)
        dp_text_addf(t, "schedule, skip %d\t'%s' of namespace '%s', from %d to %d\n", k,
                     s->skips[k].name, s->skips[k].space, s->skips[k].from, s->skips[k].to);
    for (int r = 0; r < s->ranks; r++)
        for (size_t i = s->first[r]; i < s->first[r + 1]; i++) {
            const struct dp_op op = s->ops[i];
            dp_text_addf(t, "schedule, op %zu of rank %d\t%s%s%s, unit %d\n", i - s->first[r], r,
                         dp_op_text(op, text), op.flags & DP_OP_OVERLAP ? ", overlapped" : "",
                         op.flags & DP_OP_RECOMPUTED ? ", recomputed" : "", (int)dp_op_unit(op));
        }
}

static void add_structs(struct dp_text *t)
{
    dp_text_addf(t, "size of struct dp_op\t%zu\nsize of struct dp_slot\t%zu\n", sizeof(struct dp_op),
                 sizeof(struct dp_slot));
    dp_text_addf(t, "size of a report\t%zu\nsize of struct dp_border\t%zu\nsize of a pointer\t%zu\n",
                 sizeof(struct report), sizeof(struct dp_border), sizeof(void *));
}

static void add_field(struct dp_text *t, const struct dp_pipeline_config *config, int field)
{
    const struct dp_schedule *s = config->schedule;

    switch (field) {
    case FIELD_STRUCTS:
        add_structs(t);
        break;
    case FIELD_RANK_MAP:
        for (int r = 0; r < s->ranks; r++)
            dp_text_addf(t, "rank map, rank %d\t%d\n", r, s->group_rank[r]);
        break;
    case FIELD_OPS:
        dp_text_addf(t, "number of schedules\t%d\n", 1 + config->also_count);
        for (int i = -1; i < config->also_count; i++)
            add_ops(t, i < 0 ? s : config->also[i]);
        break;
    case FIELD_BORDERS:
        add_borders(t, config);
        break;
    case FIELD_LOSS_SCALE:
        dp_text_adds(t, "loss_scale\t");
        dp_text_add_number(t, config->loss_scale);
        dp_text_adds(t, "\n");
        break;
    default:
        add_border(t, config, field == FIELD_INPUT ? 0 : s->stages);
    }
}

static void add_parameters(struct dp_text *t, const struct dp_stage *stage, int number)
{
    char text[DP_TENSOR_TEXT];

    dp_text_addf(t, "number of parameters of stage %d\t%d\n", number, stage->parameter_count);
    for (int32_t k = 0; k < stage->parameter_count; k++) {
        const struct dp_parameter *p = &stage->parameters[k];
        dp_text_addf(t, "parameter %d of stage %d\t'%s', ", k, number, p->name);
        dp_text_adds(t, dp_tensor_text(p->value, text));
        if (p->grad)
            dp_text_addf(t, ", gradient %s", dp_tensor_text(p->grad, text));
        dp_text_adds(t, "\n");
    }
}

/* ---- hashes ------------------------------------------------------------------------------------- */

static int take_hash(struct dp_text *lines, uint64_t *hash)
{
    const int err = dp_text_hash(lines, hash);

    dp_text_fini(lines);
    return err;
}

/* As numbers: the lines of a large schedule are many. */
static uint64_t hash_ops(uint64_t h, const struct dp_schedule *s)
{
    h = dp_hash_bytes(h, s->ops, s->first[s->ranks] * sizeof(*s->ops));
    h = dp_hash_bytes(h, s->slots, s->first_slot[s->ranks] * sizeof(*s->slots));
    h = dp_hash_bytes(h, s->first, ((size_t)s->ranks + 1) * sizeof(*s->first));
    h = dp_hash_bytes(h, s->first_slot, ((size_t)s->ranks + 1) * sizeof(*s->first_slot));
    for (int k = 0; k < s->skip_count; k++) {
        h = dp_hash_text(dp_hash_text(h, s->skips[k].name), s->skips[k].space);
        h = dp_hash_number(dp_hash_number(h, s->skips[k].from), s->skips[k].to);
    }
    return h;
}

static int fill_report(struct report *report, const struct dp_pipeline_config *config)
{
    const struct dp_schedule *s = config->schedule;
    const int me = dp_config_rank(config);
    uint64_t *f = report->fields;
    struct dp_text t = {0};
    int err = 0;

    f[FIELD_VERSION] = DP_VERSION_MAJOR * 10000 + DP_VERSION_MINOR * 100 + DP_VERSION_PATCH;
    f[FIELD_KIND] = s->kind;
    f[FIELD_MICROBATCHES] = (uint64_t)s->microbatches;
    f[FIELD_FORWARD_ONLY] = s->forward_only;
    f[FIELD_RETURN_OUTPUTS] = s->return_outputs;
    f[FIELD_OPS] = hash_ops(DP_HASH_BEGIN, s);
    for (int i = 0; i < config->also_count; i++)
        f[FIELD_OPS] = hash_ops(f[FIELD_OPS], config->also[i]);
    f[FIELD_FIXED_ORDER] = config->fixed_order;
    f[FIELD_ORDER_BLOCKS] = (uint64_t)(config->order_blocks ? config->order_blocks : 2);
    f[FIELD_UNSUMMED_COPIES] = config->unsummed_copies;
    f[FIELD_KEEP_COPIES] = config->keep_copies;
    f[FIELD_TIED_COPIES] = config->tied_copies;
    f[FIELD_OWN_GRADIENTS] = config->own_gradients;
    f[FIELD_UNCHECKED] = config->unchecked;
    f[FIELD_OPAQUE_ENDS] = config->opaque_ends;
    f[FIELD_EXECUTION] = config->execution;
    f[FIELD_SEED] = config->seed;
    if (dp_config_last_slot(s, me) >= 0)
        f[FIELD_LOSS] = config->loss ? 1 : 2;
    for (int field = 0; field < FIELDS && !err; field++) {
        if (fields[field].telling != LINES || field == FIELD_OPS ||
            (field == FIELD_INPUT && !config->borders[0].count) ||
            (field == FIELD_OUTPUT && !config->borders[s->stages].count))
            continue;
        add_field(&t, config, field);
        err = take_hash(&t, &f[field]);
    }
    for (int slot = 0; slot < dp_schedule_slot_count(s, me) && !err; slot++) {
        add_parameters(&t, &config->stages[slot], dp_schedule_slot(s, me, slot)->stage);
        err = take_hash(&t, &report->parameters[slot]);
    }
    return err;
}

/* ---- comparisons ---------------------------------------------------------------------------- */

/* The first rank that could not set up its pipeline tells the others why. It has logged it itself. */
static int tell_failure(const struct report *reports, struct dp_comm *comm)
{
    char text[DP_ABORT_TEXT];
    int r = 0;

    while (r < dp_comm_size(comm) && !reports[r].err)
        r++;
    if (r == dp_comm_size(comm))
        return 0;
    snprintf(text, sizeof(text), "%s", dp_last_error());
    const int err = dp_comm_broadcast(comm, text, sizeof(text), r);
    const int own = reports[dp_comm_rank(comm)].err;
    if (own || err)
        return own ? own : err;
    return dp_fail_quietly(DP_EABORTED, "rank %d could not set up its pipeline (%s): %s", r,
                           dp_strerror(reports[r].err), text);
}

static void tell(const struct report *report, int field, char *text, size_t len)
{
    uint64_t value = report->fields[field];

    if (fields[field].telling == NAME_OF_KIND)
        snprintf(text, len, "%s", dp_schedule_kind_name((enum dp_schedule_kind)value));
    else
        snprintf(text, len, "%llu", (unsigned long long)value);
}

/* All ranks know; the one that differs says it aloud. */
static int describe_mismatch(const struct report *reports, int field, int reference, int rank,
                             int me)
{
    int (*fail)(int, const char *, ...) = me == rank ? dp_fail : dp_fail_quietly;
    char has[32], wants[32];

    tell(&reports[rank], field, has, sizeof(has));
    tell(&reports[reference], field, wants, sizeof(wants));
    return fail(DP_EMISMATCH, "%s: rank %d has %s, rank %d has %s", fields[field].name, rank, has,
                reference, wants);
}

static int describe_difference(const struct dp_pipeline_config *config, int field, int reference,
                               int rank)
{
    const int me = dp_comm_rank(config->comm);
    struct dp_text mine = {0};

    if (me == rank || me == reference)
        add_field(&mine, config, field);
    const int err = dp_comm_name_difference(config->comm, fields[field].name, reference, &mine, rank,
                                            &mine);
    dp_text_fini(&mine);
    return err;
}

static int compare_field(const struct report *reports, const struct dp_pipeline_config *config,
                         int field)
{
    const struct dp_comm *comm = config->comm;
    int reference = -1;

    for (int r = 0; r < dp_comm_size(comm); r++) {
        if (field >= FIELD_OPTIONAL && !reports[r].fields[field])
            continue;
        if (reference < 0)
            reference = r;
        if (reports[r].fields[field] != reports[reference].fields[field])
            return fields[field].telling == LINES
                       ? describe_difference(config, field, reference, r)
                       : describe_mismatch(reports, field, reference, r, dp_comm_rank(comm));
    }
    return 0;
}

/* Two slots that hold the same stage sum their gradients: their parameters must be the same. */
static int describe_mirrors(const struct dp_pipeline_config *config, const struct dp_slot *slot,
                            int rank, int number)
{
    const int *const group_rank = config->schedule->group_rank;
    const int a = group_rank[rank], b = group_rank[slot->mirror], me = dp_comm_rank(config->comm);
    struct dp_text of_a = {0}, of_b = {0};

    if (me == a)
        add_parameters(&of_a, &config->stages[number], slot->stage);
    if (me == b)
        add_parameters(&of_b, &config->stages[slot->mirror_slot], slot->stage);
    const int err = dp_comm_name_difference(config->comm, "parameters", a, &of_a, b, &of_b);
    dp_text_fini(&of_a);
    dp_text_fini(&of_b);
    return err;
}

static int compare_mirrors(const struct report *reports, const struct dp_pipeline_config *config)
{
    const struct dp_schedule *s = config->schedule;

    if (!dp_schedule_has(s, DP_OP_REDUCE))
        return 0;
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < dp_schedule_slot_count(s, r); i++) {
            const struct dp_slot *slot = dp_schedule_slot(s, r, i);
            if (slot->mirror < 0)
                continue;
            int a = s->group_rank[r], b = s->group_rank[slot->mirror];
            if (reports[a].parameters[i] != reports[b].parameters[slot->mirror_slot])
                return describe_mirrors(config, slot, r, i);
        }
    return 0;
}

static int compare_reports(const struct dp_pipeline_config *config, const struct report *reports)
{
    int err = 0;

    for (int field = 0; field < FIELDS && !err; field++)
        err = compare_field(reports, config, field);
    if (!err)
        err = compare_mirrors(reports, config);
    return err;
}

static void digest_report(const struct report *report, uint64_t *digest)
{
    *digest = DP_HASH_BEGIN;
    for (int field = 0; field < FIELD_OPTIONAL; field++)
        *digest = dp_hash_number(*digest, (int64_t)report->fields[field]);
}

/* Ranks that have compared the same go on alike. One that has found a difference may end at once, and
 * with it the group: so none does before all have come as far. What the barrier returns is no news. */
static int differ(struct dp_comm *comm, int err)
{
    char text[DP_ABORT_TEXT];

    snprintf(text, sizeof(text), "%s", dp_last_error());
    dp_comm_barrier(comm);
    return dp_fail_quietly(err, "%s", text);
}

int dp_config_agree(const struct dp_pipeline_config *config, int err, uint64_t *digest)
{
    struct dp_comm *comm = config->comm;
    struct report mine = {.err = err};

    if (!comm || dp_comm_size(comm) == 1)
        return err;
    struct report *reports = calloc((size_t)dp_comm_size(comm), sizeof(*reports));
    if (!reports) {
        err = dp_fail(DP_ENOMEM, "no memory for the configs of %d ranks", dp_comm_size(comm));
        dp_failure_tell(comm, err);
        return err;
    }
    if (!err)
        mine.err = err = fill_report(&mine, config);
    if (!err)
        digest_report(&mine, digest);
    int failed = dp_comm_allgather(comm, &mine, reports, sizeof(mine));
    const bool has_all = !failed;
    if (has_all)
        failed = tell_failure(reports, comm);
    if (has_all && !failed)
        failed = compare_reports(config, reports);
    free(reports);
    if (err)
        failed = err;
    return failed && has_all ? differ(comm, failed) : failed;
}

static int describe_extents(struct dp_comm *comm, int rank, const int64_t (*extents)[DP_MAX_EXTENTS],
                            int microbatches)
{
    struct dp_text mine = {0};

    dp_text_addf(&mine, "extents of the step\t%s\n", extents ? "some" : "NULL");
    for (int mb = 0; extents && mb < microbatches; mb++)
        for (int e = 0; e < DP_MAX_EXTENTS; e++)
            dp_text_addf(&mine, "extents[%d][%d] of the step\t%lld\n", mb, e,
                         (long long)extents[mb][e]);
    const int err = dp_comm_name_difference(comm, "extents of the step", 0, &mine, rank, &mine);
    dp_text_fini(&mine);
    return err;
}

/* Evaluation wins: a rank that trains takes the program of those that do not. */
static void settle_programs(const struct dp_program *programs, uint64_t *all, int size)
{
    uint64_t *const end = all + DP_AGREED * size, *wins = all;

    while (wins < end && !programs[wins[4]].schedule->forward_only)
        wins += DP_AGREED;
    for (uint64_t *its = all; wins < end && its < end; its += DP_AGREED) {
        const struct dp_schedule *a = programs[its[4]].schedule, *b = programs[wins[4]].schedule;
        if (a->forward_only || a->microbatches != b->microbatches)
            continue;
        its[4] = wins[4];
    }
    for (uint64_t *its = all; its < end; its += DP_AGREED)
        its[2] &= !programs[its[4]].schedule->forward_only; /* nothing is accumulated there */
}

static bool are_of_one_pipeline(const uint64_t *all, int size)
{
    for (int r = 1; r < size; r++)
        if (all[DP_AGREED * r + 1] != all[1])
            return false;
    return true;
}

int dp_step_agree(struct dp_comm *comm, const uint64_t mine[DP_AGREED],
                  const int64_t (*extents)[DP_MAX_EXTENTS], const struct dp_program *programs,
                  uint64_t *all, int *program)
{
    const int32_t microbatches = programs[*program].schedule->microbatches;
    int err = dp_comm_allgather(comm, mine, all, DP_AGREED * sizeof(*mine));

    if (!err && are_of_one_pipeline(all, dp_comm_size(comm)))
        settle_programs(programs, all, dp_comm_size(comm));
    for (int r = 1; r < dp_comm_size(comm) && !err; r++) {
        int (*fail)(int, const char *, ...) = dp_comm_rank(comm) == r ? dp_fail : dp_fail_quietly;
        const uint64_t *its = all + DP_AGREED * r;
        if (its[1] != all[1])
            err = fail(DP_EMISMATCH, "rank %d does a step of another pipeline than rank 0", r);
        else if (its[0] != all[0])
            err = fail(DP_EMISMATCH,
                       "number of the step: rank %d has %llu, rank 0 has %llu "
                       "(dp_pipeline_seek says which comes next)",
                       r, (unsigned long long)its[0], (unsigned long long)all[0]);
        else if (its[4] != all[4])
            err =
                fail(DP_EMISMATCH, "schedule of the step: rank %d has number %llu, rank 0 has %llu",
                     r, (unsigned long long)its[4], (unsigned long long)all[4]);
        else if (its[2] != all[2])
            err = fail(DP_EMISMATCH, "accumulate of the step: rank %d has %d, rank 0 has %d", r,
                       (int)its[2], (int)all[2]);
        else if (its[3] != all[3])
            err = describe_extents(comm, r, extents, microbatches);
        if (err)
            return differ(comm, err);
    }
    if (!err)
        *program = (int)all[DP_AGREED * dp_comm_rank(comm) + 4];
    return err;
}
