/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/failure.h"
#include "pipeline/setup.h"

#include "base/fail.h"
#include "base/text.h"
#include "pipeline/border.h"
#include "schedule/build.h"

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
    FIELD_FIXED_ORDER,
    FIELD_ORDER_BLOCKS,
    FIELD_UNSUMMED_COPIES,
    FIELD_KEEP_COPIES,
    FIELD_TIED_COPIES,
    FIELD_OWN_GRADIENTS,
    FIELD_UNCHECKED,
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
    [FIELD_FIXED_ORDER] = {"fixed_order", NUMBER},
    [FIELD_ORDER_BLOCKS] = {"order_blocks", NUMBER},
    [FIELD_UNSUMMED_COPIES] = {"unsummed_copies", NUMBER},
    [FIELD_KEEP_COPIES] = {"keep_copies", NUMBER},
    [FIELD_TIED_COPIES] = {"tied_copies", NUMBER},
    [FIELD_OWN_GRADIENTS] = {"own_gradients", NUMBER},
    [FIELD_UNCHECKED] = {"unchecked", NUMBER},
    [FIELD_EXECUTION] = {"execution (0: list, 1: messages)", NUMBER},
    [FIELD_SEED] = {"seed", NUMBER},
    [FIELD_LOSS_SCALE] = {"loss_scale", NOTHING},
    [FIELD_INPUT] = {"border 0", NOTHING},
    [FIELD_OUTPUT] = {"last border", NOTHING},
    [FIELD_LOSS] = {"loss (1: given, 2: NULL)", NUMBER},
};

/* One rank's part of the exchange. */
struct report {
    int32_t err;
    char text[196];
    uint64_t fields[FIELDS];
    uint64_t parameters[DP_MAX_SLOTS]; /* of each slot: names and layouts of its parameters */
};

/* ---- digests -------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * UINT64_C(0x9E3779B97F4A7C15);
    return h ^ h >> 29;
}

static uint64_t mix_text(uint64_t h, const char *text)
{
    for (; *text; text++)
        h = mix(h, (unsigned char)*text);
    return mix(h, 0);
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
    size_t slots = s->first_slot[s->ranks];
    uint64_t h = digest_words(s->ops, s->first[s->ranks] * sizeof(*s->ops) / sizeof(uint32_t));

    for (int r = 0; r <= s->ranks; r++)
        h = mix(mix(h, s->first[r]), s->first_slot[r]);
    for (int k = 0; k < s->skip_count; k++) {
        h = mix_text(mix_text(h, s->skips[k].name), s->skips[k].space);
        h = mix(h, (uint64_t)s->skips[k].from << 32 | (uint32_t)s->skips[k].to);
    }
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
    for (int i = 0; i < spec->ndim; i++)
        h[FIELD_SHAPES] = mix(h[FIELD_SHAPES], spec->extent[i]);
}

static void digest_border(uint64_t *h, const struct dp_border *border)
{
    h[FIELD_SHAPES] = mix(h[FIELD_SHAPES], (uint64_t)border->count);
    for (int k = 0; k < border->count; k++)
        digest_spec(h, &border->tensors[k]);
}

/* An end of the model as one number; 0: not declared. */
static uint64_t digest_end(const struct dp_border *border)
{
    uint64_t h[FIELDS] = {0};

    if (!border->count)
        return 0;
    digest_border(h, border);
    return mix(mix(h[FIELD_SHAPES], h[FIELD_DTYPES]), h[FIELD_NO_GRAD]) | 1;
}

static void digest_borders(uint64_t *h, const struct dp_pipeline_config *config)
{
    int last = config->schedule->stages;

    for (int i = 1; i < last; i++)
        digest_border(h, &config->borders[i]);
    for (int e = 0; e < DP_MAX_EXTENTS; e++)
        h[FIELD_SHAPES] = mix(h[FIELD_SHAPES], (uint64_t)config->max_extents[e]);
    for (int k = 0; k < config->schedule->skip_count; k++)
        digest_spec(h, &config->skips[k]);
    h[FIELD_INPUT] = digest_end(&config->borders[0]);
    h[FIELD_OUTPUT] = digest_end(&config->borders[last]);
}

static uint64_t digest_tensor(uint64_t h, const DLTensor *t)
{
    h = mix(h, (uint64_t)t->dtype.code << 8 | t->dtype.bits);
    for (int i = 0; i < t->ndim; i++)
        h = mix(h, (uint64_t)t->shape[i]);
    return h;
}

static uint64_t digest_parameters(const struct dp_stage *stage)
{
    uint64_t h = (uint64_t)stage->parameter_count;

    for (int32_t k = 0; k < stage->parameter_count; k++) {
        const struct dp_parameter *p = &stage->parameters[k];
        for (const char *c = p->name; *c; c++)
            h = mix(h, (unsigned char)*c);
        h = digest_tensor(h, p->value);
        if (p->grad)
            h = digest_tensor(h, p->grad);
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
    for (int i = 0; i < config->also_count; i++)
        f[FIELD_OPS] = mix(f[FIELD_OPS], digest_ops(config->also[i]));
    f[FIELD_FIXED_ORDER] = config->fixed_order;
    f[FIELD_ORDER_BLOCKS] = (uint64_t)(config->order_blocks ? config->order_blocks : 2);
    f[FIELD_UNSUMMED_COPIES] = config->unsummed_copies;
    f[FIELD_KEEP_COPIES] = config->keep_copies;
    f[FIELD_TIED_COPIES] = config->tied_copies;
    f[FIELD_OWN_GRADIENTS] = config->own_gradients;
    f[FIELD_UNCHECKED] = config->unchecked;
    f[FIELD_EXECUTION] = config->execution;
    f[FIELD_SEED] = config->seed;
    memcpy(&f[FIELD_LOSS_SCALE], &config->loss_scale, sizeof(double));
    if (dp_config_last_slot(s, dp_config_rank(config)) >= 0)
        f[FIELD_LOSS] = config->loss ? 1 : 2;
    digest_borders(f, config);
    for (int slot = 0; slot < dp_schedule_slot_count(s, dp_config_rank(config)); slot++)
        report->parameters[slot] = digest_parameters(&config->stages[slot]);
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

    tell(&reports[rank], field, has, sizeof(has));
    tell(&reports[reference], field, wants, sizeof(wants));
    return fail(DP_EMISMATCH, "%s: rank %d has %s, rank %d has %s", fields[field].name, rank, has,
                reference, wants);
}

/* ---- what differs where a digest does ----------------------------------------------------------- */

/* A line for each part of what these fields stand for: its name, a tab, its value. */
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

static void add_borders(struct dp_text *t, const struct dp_pipeline_config *config)
{
    for (int i = 0; i <= config->schedule->stages; i++) {
        const struct dp_border *border = &config->borders[i];
        /* Ranks without an end of the model need not declare it. */
        if (!border->count)
            continue;
        dp_text_addf(t, "tensors of border %d\t%d\n", i, border->count);
        for (int k = 0; k < border->count; k++) {
            dp_text_addf(t, "border %d, tensor %d", i, k);
            add_spec(t, &border->tensors[k]);
        }
    }
    for (int e = 0; e < DP_MAX_EXTENTS; e++)
        dp_text_addf(t, "max_extents[%d]\t%lld\n", e, (long long)config->max_extents[e]);
    for (int k = 0; k < config->schedule->skip_count; k++) {
        dp_text_addf(t, "skip %d", k);
        add_spec(t, &config->skips[k]);
    }
}

static void add_ops(struct dp_text *t, const struct dp_schedule *s)
{
    char op[DP_OP_TEXT_LEN];

    for (int r = 0; r < s->ranks; r++)
        for (size_t i = s->first[r]; i < s->first[r + 1]; i++)
            dp_text_addf(t, "schedule, op %zu of rank %d\t%s%s\n", i - s->first[r], r,
                         dp_op_text(s->ops[i], op), s->ops[i].overlap ? ", overlapped" : "");
}

static void add_field(struct dp_text *t, const struct dp_pipeline_config *config, int field)
{
    const struct dp_schedule *s = config->schedule;

    if (field == FIELD_OPS)
        add_ops(t, s);
    else if (field == FIELD_LOSS_SCALE)
        dp_text_addf(t, "loss_scale\t%g\n", config->loss_scale);
    else if (field == FIELD_RANK_MAP)
        for (int r = 0; r < s->ranks; r++)
            dp_text_addf(t, "rank map, rank %d\t%d\n", r, s->group_rank[r]);
    else
        add_borders(t, config);
}

/* Collective, where all know that what rank b describes is not what rank a does: the first line of both
 * that has one name and two values, in `found`; empty if there is none. mine: of these two ranks. */
static int find_difference(struct dp_comm *comm, int a, int b, const struct dp_text *mine, char *found,
                           size_t len)
{
    const int ranks[] = {a, b};
    char *texts[2] = {NULL, NULL};
    int err = 0;

    *found = '\0';
    for (int i = 0; i < 2 && !err; i++) {
        uint64_t bytes = mine->failed ? 0 : mine->len;
        err = dp_comm_broadcast(comm, &bytes, sizeof(bytes), ranks[i]);
        if (!err && !(texts[i] = calloc(bytes + 1, 1)))
            dp_failure_tell(comm, err = dp_fail(DP_ENOMEM, "no memory for the config of a rank"));
        if (!err && bytes && dp_comm_rank(comm) == ranks[i])
            memcpy(texts[i], mine->data, bytes);
        if (!err && bytes)
            err = dp_comm_broadcast(comm, texts[i], bytes, ranks[i]);
    }
    const char *x = texts[0], *y = texts[1];
    while (!err && *x && *y) {
        const size_t x_len = strcspn(x, "\n"), y_len = strcspn(y, "\n"), name = strcspn(x, "\t");
        if (name != strcspn(y, "\t") || strncmp(x, y, name) != 0)
            break;
        if (x_len != y_len || strncmp(x, y, x_len) != 0) {
            snprintf(found, len, "%.*s: rank %d has %.*s, rank %d has %.*s", (int)name, x, b,
                     (int)(y_len - name - 1), y + name + 1, a, (int)(x_len - name - 1), x + name + 1);
            break;
        }
        x += x_len + 1;
        y += y_len + 1;
    }
    free(texts[0]);
    free(texts[1]);
    return err;
}

static int describe_difference(const struct dp_pipeline_config *config, int field, int reference,
                               int rank)
{
    const int me = dp_comm_rank(config->comm);
    struct dp_text mine = {0};
    char found[400];

    if (me == rank || me == reference)
        add_field(&mine, config, field);
    int err = find_difference(config->comm, reference, rank, &mine, found, sizeof(found));
    dp_text_fini(&mine);
    if (err)
        return err;
    if (!*found)
        snprintf(found, sizeof(found), "%s: rank %d has others than rank %d", fields[field].name, rank,
                 reference);
    return (me == rank ? dp_fail : dp_fail_quietly)(DP_EMISMATCH, "%s", found);
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
            return fields[field].telling == NOTHING
                       ? describe_difference(config, field, reference, r)
                       : describe_mismatch(reports, field, reference, r, dp_comm_rank(comm));
    }
    return 0;
}

/* Two slots that hold the same stage sum their gradients: their parameters must be the same. */
static int compare_mirrors(const struct report *reports, const struct dp_schedule *s, int me)
{
    if (!dp_schedule_has(s, DP_OP_REDUCE))
        return 0;
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < dp_schedule_slot_count(s, r); i++) {
            const struct dp_slot *slot = dp_schedule_slot(s, r, i);
            if (slot->mirror < 0)
                continue;
            int a = s->group_rank[r], b = s->group_rank[slot->mirror];
            if (reports[a].parameters[i] != reports[b].parameters[slot->mirror_slot])
                return (me == b ? dp_fail : dp_fail_quietly)(
                    DP_EMISMATCH, "parameters of stage %d: rank %d has others than rank %d",
                    slot->stage, b, a);
        }
    return 0;
}

static int compare_reports(const struct dp_pipeline_config *config, const struct report *reports)
{
    int err = find_failure(reports, dp_comm_size(config->comm));

    for (int field = 0; field < FIELDS && !err; field++)
        err = compare_field(reports, config, field);
    if (!err)
        err = compare_mirrors(reports, config->schedule, dp_comm_rank(config->comm));
    return err;
}

static void digest_report(const struct report *report, uint64_t *digest)
{
    *digest = 0;
    for (int field = 0; field < FIELD_OPTIONAL; field++)
        *digest = mix(*digest, report->fields[field]);
}

/* Ranks that have compared the same go on alike. One that has found a difference may end at once, and
 * with it the group: so none does before all have come as far. What the barrier returns is no news. */
static int differ(struct dp_comm *comm, int err)
{
    char text[512];

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
    if (err) {
        snprintf(mine.text, sizeof(mine.text), "%s", dp_last_error());
    } else {
        fill_report(&mine, config);
        digest_report(&mine, digest);
    }
    int failed = dp_comm_allgather(comm, &mine, reports, sizeof(mine));
    const bool has_all = !failed;
    if (has_all && !err)
        failed = compare_reports(config, reports);
    free(reports);
    if (err)
        failed = err;
    return failed && has_all ? differ(comm, failed) : failed;
}

int dp_step_agree(struct dp_comm *comm, const uint64_t mine[DP_AGREED], uint64_t *all)
{
    int err = dp_comm_allgather(comm, mine, all, DP_AGREED * sizeof(*mine));

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
        else if (its[2] >> 1 != all[2] >> 1)
            err =
                fail(DP_EMISMATCH, "schedule of the step: rank %d has number %llu, rank 0 has %llu",
                     r, (unsigned long long)its[2] >> 1, (unsigned long long)all[2] >> 1);
        else if (its[2] != all[2])
            err = fail(DP_EMISMATCH, "accumulate of the step: rank %d has %d, rank 0 has %d", r,
                       (int)(its[2] & 1), (int)(all[2] & 1));
        else if (its[3] != all[3])
            err = fail(DP_EMISMATCH, "extents of the step: rank %d has others than rank 0", r);
        if (err)
            return differ(comm, err);
    }
    return err;
}
