/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"
#include "base/internal.h"
#include "base/sized.h"
#include "base/tensor.h"
#include "device/device_ops.h"
#include "optimizer/internal.h"
#include "optimizer/update.h"
#include <dualpipe/optimizer.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGN = 256, HUGE_PAGE = 2 << 20 };

/* The state of a group's parameters: one block, inside what was mapped for it. */
struct group {
    struct dp_optimizer_group set;
    char *block;
    size_t bytes;
    void *map; /* of a device: its memory */
    size_t map_bytes;
};

/* What is kept of a parameter that is updated. */
struct member {
    struct dp_update_range range;
    struct group *group;
    const DLTensor *grad; /* which may move between steps */
    int32_t index;  /* in the caller's list */
    int64_t *step;  /* taken so far */
    void *kernel;   /* of a device */
    size_t before;  /* elements of the members before it */
};

struct dp_optimizer {
    struct dp_optimizer_config config;
    struct group *groups;
    int32_t group_count;
    struct member *members;
    int32_t member_count;
    size_t elements;
    int64_t *steps;
    struct dp_named_tensor *state;
    int32_t state_count;
    char *names;

    struct dp_optimizer_step step; /* the one under way */
    struct dp_optimizer_mix mix;
};

/* ---- the layout of the state ----------------------------------------------------------------- */

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static bool has_master(const struct dp_parameter *p)
{
    return p->value->dtype.bits == 16;
}

static size_t array_bytes(const struct dp_parameter *p)
{
    size_t real = p->value->dtype.bits == 64 ? sizeof(double) : sizeof(float);

    return aligned((size_t)dp_parameter_elements(p) * real);
}

static void *take(struct group *g, size_t *used, size_t bytes)
{
    void *at = g->block ? g->block + *used : NULL;

    *used += bytes;
    return at;
}

/* Lay the arrays of one parameter into its group's block; with no block yet, only count. */
static void lay_out(struct dp_optimizer *o, struct member *m, const struct dp_parameter *p,
                    size_t *used)
{
    int states = dp_optimizer_states(&o->config);
    size_t bytes = array_bytes(p);

    for (int i = 0; i < states; i++)
        m->range.state[i] = take(m->group, used, bytes);
    if (has_master(p))
        m->range.master = take(m->group, used, bytes);
}

/* Of the caller's memory, what the groups before have left. */
static int take_block(struct dp_optimizer *o, struct group *g, size_t bytes)
{
    if (bytes > o->config.memory_bytes)
        return dp_fail(DP_ENOMEM, "optimizer: its state needs %zu bytes of the caller's memory, "
                                  "of which %zu are left", bytes, o->config.memory_bytes);
    g->block = memset(o->config.memory, 0, bytes);
    g->bytes = bytes;
    o->config.memory = (char *)o->config.memory + bytes;
    o->config.memory_bytes -= bytes;
    return 0;
}

static int alloc_block(struct group *g, size_t bytes, struct dp_device_stream *stream)
{
    const int err = dp_device_alloc(stream->dev, DP_MEMORY_DEVICE, bytes, &g->map);

    g->block = g->map;
    g->bytes = bytes;
    return err ? err : dp_device_zero(stream, g->block, bytes);
}

/* Zeroed memory, in huge pages if it fills some: the sweep walks through several arrays at once, and
 * with small pages most of its time may go into finding them. */
static int map_block(struct group *g, size_t bytes)
{
    const bool huge = bytes >= HUGE_PAGE;

    g->map_bytes = bytes + (huge ? HUGE_PAGE : 0);
    g->map = mmap(NULL, g->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g->map == MAP_FAILED) {
        g->map = NULL;
        return dp_fail(DP_ENOMEM, "no memory for %zu bytes of optimizer state", bytes);
    }
    g->bytes = bytes;
    g->block = g->map;
    if (huge) {
        g->block += (size_t)(-(uintptr_t)g->map % HUGE_PAGE);
        madvise(g->block, bytes, MADV_HUGEPAGE); /* where it is refused, small pages do */
    }
    return 0;
}

/* Count, then lay out. */
static int lay_out_group(struct dp_optimizer *o, struct group *g,
                         const struct dp_parameter *parameters)
{
    int err = 0;

    for (int pass = 0; pass < 2 && !err; pass++) {
        size_t used = 0;
        for (int32_t i = 0; i < o->member_count; i++)
            if (o->members[i].group == g)
                lay_out(o, &o->members[i], &parameters[o->members[i].index], &used);
        if (pass == 0 && used)
            err = o->config.stream   ? alloc_block(g, used, o->config.stream)
                  : o->config.memory ? take_block(o, g, used)
                                     : map_block(g, used);
    }
    return err;
}

/* ---- names of the state ---------------------------------------------------------------------- */

static const char *name_of(struct dp_optimizer *o, size_t *used, const char *parameter,
                           const char *what)
{
    char *name = o->names + *used;

    *used += (size_t)sprintf(name, "%s/%s", parameter, what) + 1;
    return name;
}

static void add_state(struct dp_optimizer *o, const char *name, DLTensor like, void *data,
                      DLDataType type)
{
    like.data = data;
    like.byte_offset = 0;
    like.dtype = type;
    if (!o->config.stream)
        like.device = (DLDevice){kDLCPU, 0};
    o->state[o->state_count++] = (struct dp_named_tensor){name, like};
}

static void list_state(struct dp_optimizer *o, const struct dp_parameter *parameters)
{
    const DLDataType whole = {kDLInt, 64, 1}, single = {kDLFloat, 32, 1};
    const int states = dp_optimizer_states(&o->config);
    size_t used = 0;

    for (int32_t i = 0; i < o->member_count; i++) {
        const struct member *m = &o->members[i];
        const struct dp_parameter *p = &parameters[m->index];
        DLDataType real = p->value->dtype.bits == 64 ? p->value->dtype : single;
        add_state(o, name_of(o, &used, p->name, "step"), (DLTensor){.device = {kDLCPU, 0}}, m->step,
                  whole);
        for (int k = 0; k < states; k++)
            add_state(o, name_of(o, &used, p->name, dp_optimizer_state_name(&o->config, k)),
                      *p->value, m->range.state[k], real);
        if (has_master(p))
            add_state(o, name_of(o, &used, p->name, dp_optimizer_state_name(&o->config, states)),
                      *p->value, m->range.master, single);
    }
}

static size_t names_bytes(const struct dp_optimizer *o, const struct dp_parameter *parameters)
{
    size_t bytes = 1;

    for (int32_t i = 0; i < o->member_count; i++)
        bytes += (strlen(parameters[o->members[i].index].name) + sizeof("/accumulated")) *
                 (DP_STATES + 2);
    return bytes;
}

/* ---- new and free ---------------------------------------------------------------------------- */

static bool is_on(DLDevice dl, const DLTensor *t)
{
    return t->device.device_type == dl.device_type && t->device.device_id == dl.device_id;
}

static int check_on_device(const struct dp_optimizer *o, const struct dp_parameter *p)
{
    const DLDevice dl = o->config.stream->dev->dl;
    void *kernel;

    if (o->config.memory)
        return dp_fail(DP_EUNSUPPORTED, "memory: with a stream, expected none");
    if (!is_on(dl, p->value) || !is_on(dl, p->grad) ||
        !dp_tensor_same_dtype(p->value, p->grad))
        return dp_fail(DP_EUNSUPPORTED, "parameter '%s': expected a value and a gradient of one type in "
                       "the memory of device %d:%d", p->name, (int)dl.device_type, dl.device_id);
    return dp_update_find(o->config.stream, &o->config, p->value->dtype, &kernel);
}

static int check_place(const struct dp_optimizer *o, const struct dp_parameter *p)
{
    if (p->flags & DP_PARAMETER_FROZEN)
        return 0;
    if (o->config.stream)
        return check_on_device(o, p);
    if (dp_tensor_on_host(p->value) && dp_tensor_on_host(p->grad))
        return 0;
    return dp_fail(DP_EUNSUPPORTED, "parameter '%s' lies on device %d:%d, expected host memory",
                   p->name, (int)p->value->device.device_type, p->value->device.device_id);
}

static void add_member(struct dp_optimizer *o, const struct dp_parameter *p, int32_t index)
{
    struct member *m = &o->members[o->member_count];

    *m = (struct member){
        .range = {.count = (size_t)dp_parameter_elements(p),
                  .value_type = p->value->dtype,
                  .grad_type = p->grad->dtype,
                  .value = dp_tensor_address(p->value)},
        .grad = p->grad,
        .group = &o->groups[dp_optimizer_group_of(&o->config, p, index)],
        .index = index,
        .step = &o->steps[o->member_count],
        .before = o->elements,
    };
    o->elements += m->range.count;
    o->member_count++;
}

static int allocate(struct dp_optimizer *o, int32_t count)
{
    const size_t room = (size_t)count + 1;

    o->groups = calloc((size_t)o->group_count, sizeof(*o->groups));
    o->members = calloc(room, sizeof(*o->members));
    o->steps = calloc(room, sizeof(*o->steps));
    o->state = calloc(room * (DP_STATES + 2), sizeof(*o->state));
    if (!o->groups || !o->members || !o->steps || !o->state)
        return dp_fail(DP_ENOMEM, "no memory for an optimizer of %d parameters", count);
    return 0;
}

/* Each is launched once, for nothing: the first launch may load it (nccl.h). */
static int find_kernels(struct dp_optimizer *o)
{
    static const struct dp_numbers none;
    int err = 0;

    for (int32_t i = 0; i < o->member_count && !err; i++) {
        struct member *m = &o->members[i];
        err = dp_update_find(o->config.stream, &o->config, m->range.value_type, &m->kernel);
        if (!err)
            err = dp_update_queue(o->config.stream, m->kernel, &o->config, &none,
                                  &(struct dp_optimizer_step){0}, &(struct dp_update_range){0});
    }
    return err;
}

static int build(struct dp_optimizer *o, const struct dp_parameter *parameters, int32_t count)
{
    int err = allocate(o, count);

    for (int32_t i = 0; i < count && !err; i++)
        err = check_place(o, &parameters[i]);
    for (int32_t i = 0; i < o->group_count && !err; i++)
        o->groups[i].set = dp_optimizer_group_at(&o->config, i);
    for (int32_t i = 0; i < count && !err; i++)
        if (!(parameters[i].flags & DP_PARAMETER_FROZEN))
            add_member(o, &parameters[i], i);
    for (int32_t i = 0; i < o->group_count && !err; i++)
        err = lay_out_group(o, &o->groups[i], parameters);
    if (err)
        return err;
    o->names = malloc(names_bytes(o, parameters));
    if (!o->names)
        return dp_fail(DP_ENOMEM, "no memory for the names of %d parameters' state", count);
    list_state(o, parameters);
    return o->config.stream ? find_kernels(o) : 0;
}

int dp_optimizer_new(const struct dp_optimizer_config *config,
                     const struct dp_parameter *parameters, int32_t count,
                     struct dp_optimizer **out)
{
    struct dp_optimizer *o;
    int err = dp_parameters_check(parameters, count);

    if (!err)
        err = dp_optimizer_config_check(config, parameters, count);
    if (err)
        return err;
    o = calloc(1, sizeof(*o));
    if (!o)
        return dp_fail(DP_ENOMEM, "no memory for an optimizer");
    o->config = *config;
    o->group_count = dp_optimizer_group_count(config);
    err = build(o, parameters, count);
    o->config.groups = NULL; /* the caller's, and copied by now */
    o->config.group_of = NULL;
    if (err) {
        dp_optimizer_free(o);
        return err;
    }
    dp_optimizer_read_values(o);
    *out = o;
    return 0;
}

void dp_optimizer_free(struct dp_optimizer *o)
{
    if (!o)
        return;
    for (int32_t i = 0; i < o->group_count && o->groups; i++)
        if (o->config.stream)
            dp_device_free(o->config.stream->dev, DP_MEMORY_DEVICE, o->groups[i].map);
        else if (o->groups[i].map)
            munmap(o->groups[i].map, o->groups[i].map_bytes);
    free(o->groups);
    free(o->members);
    free(o->steps);
    free(o->state);
    free(o->names);
    free(o);
}

/* ---- a step ---------------------------------------------------------------------------------- */

static bool skips(const struct dp_optimizer_step *step, const struct member *m)
{
    return step->skip || (step->present && !step->present[m->index]);
}

static int begin(struct dp_optimizer *o, const struct dp_optimizer_step *step)
{
    int err = dp_optimizer_step_check(step);

    if (!err && step->mix && o->config.stream)
        err = dp_fail(DP_EUNSUPPORTED, "mix: set on a device, expected none");
    if (err)
        return err;
    o->step = *step;
    if (step->mix) {
        o->mix = *step->mix;
        o->step.mix = &o->mix;
    }
    for (int32_t i = 0; i < o->member_count; i++) {
        struct member *m = &o->members[i];
        m->range.grad = dp_tensor_address(m->grad);
        m->step[0] += !skips(step, m);
    }
    return 0;
}

int dp_optimizer_begin_sized(struct dp_optimizer *o, const struct dp_optimizer_step *step,
                             size_t size)
{
    DP_TAKE(dp_optimizer_step, step, size);
    if (o->config.stream)
        return dp_fail(DP_EUNSUPPORTED, "parts of an update on a device: expected dp_optimizer_step");
    return begin(o, step);
}

/* Elements first .. end - 1 of the whole list, as far as they are of this member. */
static void run_member(struct dp_optimizer *o, const struct member *m, size_t first, size_t end)
{
    const size_t last = m->before + m->range.count;
    const size_t from = first > m->before ? first - m->before : 0;
    const size_t to = (end < last ? end : last) - m->before;
    const struct dp_numbers numbers = dp_numbers_of(&o->config, &m->group->set, &o->step, *m->step);
    const size_t value = dp_real_bytes(m->range.value_type);
    const size_t real = value == sizeof(double) ? sizeof(double) : sizeof(float);
    struct dp_update_range r = m->range;
    struct dp_optimizer_step step = o->step;

    step.skip = skips(&o->step, m);
    r.count = to - from;
    r.value = (char *)r.value + from * value;
    r.grad = (char *)r.grad + from * dp_real_bytes(r.grad_type);
    if (r.master)
        r.master += from;
    for (int i = 0; i < DP_STATES; i++)
        if (r.state[i])
            r.state[i] = (char *)r.state[i] + from * real;
    if (o->step.mix)
        r.buffer = (char *)o->mix.buffers[m->index] + from * value;
    dp_update_range(&o->config, &numbers, &step, &r);
}

static int queue_member(struct dp_optimizer *o, const struct member *m)
{
    const struct dp_numbers numbers = dp_numbers_of(&o->config, &m->group->set, &o->step, *m->step);
    struct dp_optimizer_step step = o->step;

    step.skip = skips(&o->step, m);
    return dp_update_queue(o->config.stream, m->kernel, &o->config, &numbers, &step, &m->range);
}

void dp_optimizer_run(struct dp_optimizer *o, int32_t part, int32_t parts)
{
    /* In blocks, so that threads rarely meet in one cache line. */
    const size_t blocks = (o->elements + DP_UPDATE_BLOCK - 1) / DP_UPDATE_BLOCK;
    const size_t first = blocks * (size_t)part / (size_t)parts * DP_UPDATE_BLOCK;
    const size_t end = blocks * (size_t)(part + 1) / (size_t)parts * DP_UPDATE_BLOCK;

    for (int32_t i = 0; i < o->member_count; i++) {
        const struct member *m = &o->members[i];
        if (m->before < end && m->before + m->range.count > first)
            run_member(o, m, first, end);
    }
}

int dp_optimizer_step_sized(struct dp_optimizer *o, const struct dp_optimizer_step *step,
                            size_t size)
{
    DP_TAKE(dp_optimizer_step, step, size);
    int err = begin(o, step);

    for (int32_t i = 0; i < o->member_count && o->config.stream && !err; i++)
        err = queue_member(o, &o->members[i]);
    if (!err && !o->config.stream)
        dp_optimizer_run(o, 0, 1);
    return err;
}

void dp_optimizer_read_values(struct dp_optimizer *o)
{
    for (int32_t i = 0; i < o->member_count; i++) {
        const struct dp_update_range *r = &o->members[i].range;
        if (r->master)
            dp_real_load(r->value_type, r->count, r->value, r->master, false);
    }
}

/* ---- state ----------------------------------------------------------------------------------- */

const struct dp_named_tensor *dp_optimizer_tensors(const struct dp_optimizer *o, int32_t *count)
{
    *count = o->state_count;
    return o->state;
}

size_t dp_optimizer_state_bytes(const struct dp_optimizer *o)
{
    size_t bytes = 0;

    for (int32_t i = 0; i < o->group_count; i++)
        bytes += o->groups[i].bytes;
    return bytes;
}

/* ---- loss scale ------------------------------------------------------------------------------ */

static double within(const struct dp_loss_scale *s, double scale)
{
    if (scale < s->least)
        return s->least;
    return scale > s->most ? s->most : scale;
}

void dp_loss_scale_update(struct dp_loss_scale *s, bool overflow)
{
    if (overflow) {
        s->scale = within(s, s->scale * s->backoff);
        s->good = 0;
    } else if (++s->good >= s->interval) {
        s->scale = within(s, s->scale * s->growth);
        s->good = 0;
    }
}

/* ---- rate ------------------------------------------------------------------------------------ */

static bool amount(double x)
{
    return isfinite(x) && x >= 0;
}

int dp_rate_check(const struct dp_rate *r)
{
    const struct {
        const char *what;
        double value;
    } amounts[] = {{"peak", r->peak}, {"last", r->last}, {"factor", r->factor},
                   {"warmup_factor", r->warmup_factor}};

    if ((unsigned)r->kind > DP_RATE_STEP)
        return dp_fail(DP_EINVAL, "rate: kind %d, expected 0 to %d", (int)r->kind, DP_RATE_STEP);
    for (size_t i = 0; i < sizeof(amounts) / sizeof(amounts[0]); i++)
        if (!amount(amounts[i].value))
            return dp_fail(DP_EINVAL, "rate: %s %g, expected a finite number from 0 on",
                           amounts[i].what, amounts[i].value);
    if (r->warmup < 0)
        return dp_fail(DP_EINVAL, "rate: warmup %lld, expected at least 0", (long long)r->warmup);
    if (r->kind != DP_RATE_CONSTANT && r->period < 1)
        return dp_fail(DP_EINVAL, "rate: period %lld, expected at least 1", (long long)r->period);
    return 0;
}

double dp_rate_at(const struct dp_rate *r, int64_t step)
{
    const double pi = 3.14159265358979323846;
    const int64_t k = step - r->warmup;
    double at;

    if (k < 0)
        return r->peak * (r->warmup_factor + (1 - r->warmup_factor) * (double)step / (double)r->warmup);
    at = r->period ? (double)k / (double)r->period : 0;
    switch (r->kind) {
    case DP_RATE_COSINE:
        return r->hold && at > 1 ? r->last : r->last + (r->peak - r->last) * (1 + cos(pi * at)) / 2;
    case DP_RATE_LINEAR:
        return at < 1 ? r->peak + (r->last - r->peak) * at : r->last;
    case DP_RATE_STEP:
        return r->peak * pow(r->factor, (double)(k / r->period));
    default:
        return r->peak;
    }
}
