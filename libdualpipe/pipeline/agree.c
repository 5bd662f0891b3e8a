/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/setup.h"

#include "base/fail.h"
#include "pipeline/border.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    FIELD_SHAPES,
    FIELD_DTYPES,
    FIELD_NO_GRAD,
    FIELD_BATCH_DIM,
    FIELD_FIXED_ORDER,
    FIELD_UNCHECKED,
    FIELD_SEED,
    FIELD_LOSS_SCALE,
    FIELD_LOSS, /* of those that hold a last stage; 0 elsewhere */
    FIELDS
};

/* How a field's number is told to a reader. */
enum telling { NUMBER, NAME_OF_KIND, NOTHING };

static const struct {
    const char *name;
    enum telling telling;
} fields[FIELDS] = {
    [FIELD_VERSION] = {"library version", NUMBER},
    [FIELD_STRUCTS] = {"struct sizes", NOTHING},
    [FIELD_KIND] = {"schedule kind", NAME_OF_KIND},
    [FIELD_MICROBATCHES] = {"micro-batches", NUMBER},
    [FIELD_FORWARD_ONLY] = {"forward_only", NUMBER},
    [FIELD_RETURN_OUTPUTS] = {"return_outputs", NUMBER},
    [FIELD_RANK_MAP] = {"rank map", NOTHING},
    [FIELD_OPS] = {"schedule ops", NOTHING},
    [FIELD_SHAPES] = {"border shapes", NOTHING},
    [FIELD_DTYPES] = {"border dtypes", NOTHING},
    [FIELD_NO_GRAD] = {"no_grad flags", NOTHING},
    [FIELD_BATCH_DIM] = {"batch_dim", NUMBER},
    [FIELD_FIXED_ORDER] = {"fixed_order", NUMBER},
    [FIELD_UNCHECKED] = {"unchecked", NUMBER},
    [FIELD_SEED] = {"seed", NUMBER},
    [FIELD_LOSS_SCALE] = {"loss_scale", NOTHING},
    [FIELD_LOSS] = {"loss (1: given, 2: NULL)", NUMBER},
};

/* One rank's part of the exchange. */
struct report {
    int32_t err;
    char text[196];
    uint64_t fields[FIELDS];
    uint64_t grads[DP_MAX_SLOTS]; /* layout of each slot's weight gradients */
};

/* ---- digests -------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * UINT64_C(0x9E3779B97F4A7C15);
    return h ^ h >> 29;
}

static uint64_t digest_words(const void *data, size_t words)
{
    const unsigned char *bytes = data;
    uint64_t h = words;

    for (size_t i = 0; i < words; i++) {
        uint32_t word;
        memcpy(&word, bytes + i * sizeof(word), sizeof(word));
        h = mix(h, word);
    }
    return h;
}

static uint64_t digest_ops(const struct dp_schedule *s)
{
    size_t slots = (size_t)s->ranks * (size_t)s->slots_per_rank;
    uint64_t h = digest_words(s->ops, s->first[s->ranks]);

    for (int r = 0; r <= s->ranks; r++)
        h = mix(h, s->first[r]);
    return mix(h, digest_words(s->slots, slots * sizeof(*s->slots) / sizeof(uint32_t)));
}

static uint64_t digest_structs(void)
{
    static const size_t sizes[] = {sizeof(struct dp_op), sizeof(struct dp_slot),
                                   sizeof(struct report), sizeof(struct dp_border), sizeof(void *)};
    uint64_t h = 0;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        h = mix(h, sizes[i]);
    return h;
}

static void digest_spec(uint64_t *h, const struct dp_tensor_spec *spec)
{
    h[FIELD_SHAPES] = mix(h[FIELD_SHAPES], (uint64_t)spec->ndim);
    for (int i = 0; i < spec->ndim; i++)
        h[FIELD_SHAPES] = mix(h[FIELD_SHAPES], (uint64_t)spec->shape[i]);
    h[FIELD_DTYPES] = mix(h[FIELD_DTYPES], (uint64_t)spec->dtype.code << 32 |
                                               (uint64_t)spec->dtype.bits << 16 | spec->dtype.lanes);
    h[FIELD_NO_GRAD] = mix(h[FIELD_NO_GRAD], spec->no_grad);
}

static void digest_borders(uint64_t *h, const struct dp_pipeline_config *config)
{
    for (int i = 0; i <= config->schedule->stages; i++) {
        h[FIELD_SHAPES] = mix(h[FIELD_SHAPES], (uint64_t)config->borders[i].count);
        for (int k = 0; k < config->borders[i].count; k++)
            digest_spec(h, &config->borders[i].tensors[k]);
    }
}

static uint64_t digest_grads(const struct dp_stage *stage)
{
    uint64_t h = (uint64_t)stage->grad_count;

    for (int k = 0; k < stage->grad_count; k++) {
        const DLTensor *grad = stage->grads[k];
        h = mix(h, grad->dtype.bits);
        for (int i = 0; i < grad->ndim; i++)
            h = mix(h, (uint64_t)grad->shape[i]);
    }
    return h;
}

static void fill_report(struct report *report, const struct dp_pipeline_config *config)
{
    const struct dp_schedule *s = config->schedule;
    uint64_t *f = report->fields;

    f[FIELD_VERSION] = DP_VERSION_MAJOR * 10000 + DP_VERSION_MINOR * 100 + DP_VERSION_PATCH;
    f[FIELD_STRUCTS] = digest_structs();
    f[FIELD_KIND] = s->kind;
    f[FIELD_MICROBATCHES] = (uint64_t)s->microbatches;
    f[FIELD_FORWARD_ONLY] = s->forward_only;
    f[FIELD_RETURN_OUTPUTS] = s->return_outputs;
    f[FIELD_RANK_MAP] = digest_words(s->group_rank, (size_t)s->ranks);
    f[FIELD_OPS] = digest_ops(s);
    f[FIELD_BATCH_DIM] = (uint64_t)config->batch_dim;
    f[FIELD_FIXED_ORDER] = config->fixed_order;
    f[FIELD_UNCHECKED] = config->unchecked;
    f[FIELD_SEED] = config->seed;
    memcpy(&f[FIELD_LOSS_SCALE], &config->loss_scale, sizeof(double));
    if (dp_config_last_slot(s, dp_config_rank(config)) >= 0)
        f[FIELD_LOSS] = config->loss ? 1 : 2;
    digest_borders(f, config);
    for (int slot = 0; slot < s->slots_per_rank; slot++)
        report->grads[slot] = digest_grads(&config->stages[slot]);
}

/* ---- comparisons ---------------------------------------------------------------------------- */

static int find_failure(const struct report *reports, int size)
{
    for (int r = 0; r < size; r++)
        if (reports[r].err) /* which has been logged there */
            return dp_fail_quietly(DP_EABORTED, "rank %d could not set up its pipeline (%s): %s", r,
                                   dp_strerror(reports[r].err), reports[r].text);
    return 0;
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

    if (fields[field].telling == NOTHING)
        return fail(DP_EMISMATCH, "%s: rank %d has others than rank %d", fields[field].name, rank,
                    reference);
    tell(&reports[rank], field, has, sizeof(has));
    tell(&reports[reference], field, wants, sizeof(wants));
    return fail(DP_EMISMATCH, "%s: rank %d has %s, rank %d has %s", fields[field].name, rank, has,
                reference, wants);
}

static int compare_field(const struct report *reports, const struct dp_comm *comm, int field)
{
    int reference = -1;

    for (int r = 0; r < comm->size; r++) {
        if (field == FIELD_LOSS && !reports[r].fields[field])
            continue;
        if (reference < 0)
            reference = r;
        if (reports[r].fields[field] != reports[reference].fields[field])
            return describe_mismatch(reports, field, reference, r, comm->rank);
    }
    return 0;
}

static bool has_reduce(const struct dp_schedule *s)
{
    for (size_t i = 0; i < s->first[s->ranks]; i++)
        if (s->ops[i].kind == DP_OP_REDUCE)
            return true;
    return false;
}

/* Two that hold the same stage sum their gradients: they must have the same ones. */
static int compare_mirrors(const struct report *reports, const struct dp_schedule *s, int me)
{
    if (!has_reduce(s))
        return 0;
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->slots_per_rank; i++) {
            const struct dp_slot *slot = dp_schedule_slot(s, r, i);
            if (slot->mirror < 0)
                continue;
            int a = s->group_rank[r], b = s->group_rank[slot->mirror];
            if (reports[a].grads[i] != reports[b].grads[slot->mirror_slot])
                return (me == b ? dp_fail : dp_fail_quietly)(
                    DP_EMISMATCH, "weight gradients of stage %d: rank %d has others than rank %d",
                    slot->stage, b, a);
        }
    return 0;
}

static int compare_reports(const struct dp_pipeline_config *config, const struct report *reports)
{
    int err = find_failure(reports, config->comm->size);

    for (int field = 0; field < FIELDS && !err; field++)
        err = compare_field(reports, config->comm, field);
    if (!err)
        err = compare_mirrors(reports, config->schedule, config->comm->rank);
    return err;
}

static void digest_report(const struct report *report, uint64_t *digest)
{
    *digest = 0;
    for (int field = 0; field < FIELD_LOSS; field++)
        *digest = mix(*digest, report->fields[field]);
}

int dp_config_agree(const struct dp_pipeline_config *config, int err, uint64_t *digest)
{
    struct dp_comm *comm = config->comm;
    struct report mine = {.err = err};

    if (!comm || comm->size == 1)
        return err;
    struct report *reports = calloc((size_t)comm->size, sizeof(*reports));
    if (!reports) {
        err = dp_fail(DP_ENOMEM, "no memory for the configs of %d ranks", comm->size);
        dp_comm_abort(comm, err, dp_last_error());
        return err;
    }
    if (err) {
        snprintf(mine.text, sizeof(mine.text), "%s", dp_last_error());
    } else {
        fill_report(&mine, config);
        digest_report(&mine, digest);
    }
    int failed = dp_comm_allgather(comm, &mine, reports, sizeof(mine));
    if (!failed && !err)
        failed = compare_reports(config, reports);
    free(reports);
    return err ? err : failed;
}

int dp_step_agree(struct dp_comm *comm, uint64_t step, uint64_t digest, uint64_t *both)
{
    const uint64_t mine[2] = {step, digest};
    int err = dp_comm_allgather(comm, mine, both, sizeof(mine));

    for (int r = 1; r < comm->size && !err; r++) {
        int (*fail)(int, const char *, ...) = comm->rank == r ? dp_fail : dp_fail_quietly;
        if (both[2 * r + 1] != both[1])
            err = fail(DP_EMISMATCH, "rank %d does a step of another pipeline than rank 0", r);
        else if (both[2 * r] != both[0])
            err = fail(DP_EMISMATCH,
                       "number of the step: rank %d has %llu, rank 0 has %llu "
                       "(dp_pipeline_seek says which comes next)",
                       r, (unsigned long long)both[2 * r], (unsigned long long)both[0]);
    }
    return err;
}
