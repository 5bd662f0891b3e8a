/* SPDX-License-Identifier: Apache-2.0 */
#include "base/internal.h"
#include "base/sized.h"
#include "mixing/mixer_state.h"

#include "base/fail.h"
#include "base/tensor.h"
#include "base/text.h"
#include "comm/internal.h"
#include "comm/lines.h"

#include <dualpipe/survival.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- what cannot be ---------------------------------------------------------------------------- */

static int check_factor(double factor)
{
    return factor > 0 && factor <= 1
               ? 0
               : dp_fail(DP_EINVAL, "factor of mixing: %g, expected above 0, up to 1", factor);
}

static int check_numbers(const struct dp_mixer_config *c)
{
    if (c->factor != 0 && check_factor(c->factor))
        return DP_EINVAL;
    if (!(c->clip_norm >= 0) || isinf(c->clip_norm))
        return dp_fail(DP_EINVAL, "clip norm: %g, expected 0 or more", c->clip_norm);
    if (!(c->bucket_bytes >= 0))
        return dp_fail(DP_EINVAL, "bucket size: %g bytes, expected 0 or more", c->bucket_bytes);
    if (!c->schedule && !isfinite(c->rate))
        return dp_fail(DP_EINVAL, "learning rate: %g, expected a number", c->rate);
    return c->schedule ? dp_rate_check(c->schedule) : 0;
}

static int check_graph(const struct dp_mixer_config *c)
{
    if (!c->graph)
        return dp_fail(DP_EINVAL, "no mixing graph, expected one");
    if (c->graph->workers != dp_comm_size(c->comm))
        return dp_fail(DP_EINVAL, "mixing graph %s is of %d workers, expected %d, the ranks of the "
                       "communicator", c->graph->name, c->graph->workers, dp_comm_size(c->comm));
    if (c->compat && c->survive)
        return dp_fail(DP_EINVAL, "compat with survive, expected one of them: Decent-DP ends with the "
                       "first worker that dies");
    if (c->survive && !dp_comm_survives(c->comm))
        return dp_fail(DP_EINVAL, "survive over a group that does not, expected one for which "
                       "dp_comm_survive was called");
    if (c->compat && c->graph->push_sum)
        return dp_fail(DP_EINVAL, "mixing graph %s: push-sum is not among what compat does",
                       c->graph->name);
    return dp_graph_check(c->graph, NULL);
}

/* Their gradients are added up. */
static int check_tied(const struct dp_parameter *one, const struct dp_parameter *other)
{
    if (!one->tied || !other->tied || strcmp(one->tied, other->tied) || !one->grad || !other->grad ||
        dp_tensor_same_dtype(one->grad, other->grad))
        return 0;
    return dp_fail(DP_EUNSUPPORTED, "gradients of the tied parameters '%s' and '%s' are of different "
                   "types", one->name, other->name);
}

static int check_tensors(const struct dp_mixer_config *c)
{
    int err = dp_parameters_check(c->parameters, c->count);

    if (!err && c->device)
        return dp_mixer_device_check(c);
    for (int32_t i = 0; i < c->count && !err; i++)
        if (!dp_tensor_on_host(c->parameters[i].value))
            err = dp_fail(DP_EUNSUPPORTED, "parameter '%s' is in the memory of a device, expected the "
                          "host's", c->parameters[i].name);
    for (int32_t i = 0; i < c->count && !err; i++)
        for (int32_t k = 0; k < i && !err; k++)
            err = check_tied(&c->parameters[k], &c->parameters[i]);
    for (int32_t i = 0; i < c->buffer_count && !err; i++) {
        const char *fault = dp_tensor_fault(c->buffers[i]);
        if (fault)
            err = dp_fail(DP_EINVAL, "buffer %d %s", i, fault);
        else if (!dp_tensor_dense(c->buffers[i]) || !dp_tensor_on_host(c->buffers[i]))
            err = dp_fail(DP_EINVAL, "buffer %d, expected one block of the host's memory", i);
    }
    return err;
}

/* The optimizer's config, on an empty list. */
static int check_optimizer(const struct dp_mixer_config *c)
{
    struct dp_optimizer_config config = c->optimizer;
    struct dp_optimizer *unused;
    int err = dp_optimizer_new(&config, NULL, 0, &unused);

    if (err)
        return err;
    dp_optimizer_free(unused);
    for (int32_t i = 0; config.groups && i < c->count; i++)
        if (config.group_of[i] < 0 || config.group_of[i] >= config.group_count)
            return dp_fail(DP_EINVAL, "parameter '%s' is of group %d, expected 0 to %d",
                           c->parameters[i].name, config.group_of[i], config.group_count - 1);
    return 0;
}

static int check_config(const struct dp_mixer_config *c)
{
    int err = c->comm ? 0 : dp_fail(DP_ESTATE, "no communicator, expected an open one");

    if (!err)
        err = check_numbers(c);
    if (!err)
        err = check_graph(c);
    if (!err)
        err = check_tensors(c);
    if (!err)
        err = dp_mixer_check_method(c);
    return err || c->update || c->device ? err : check_optimizer(c);
}

/* ---- what all ranks must have in common -------------------------------------------------------- */

void dp_mixer_add_options(const struct dp_mixer_config *c, struct dp_text *lines)
{
    const struct {
        const char *name;
        double value;
    } options[] = {
        {"compat", c->compat},
        {"survive", c->survive},
        {"bucket_bytes", (double)c->bucket_bytes},
        {"algorithm (0: d-psgd, 1: local-sgd)", c->algorithm},
        {"local_steps", c->local_steps},
        {"outer_rate", c->outer_rate},
        {"outer_momentum", c->outer_momentum},
        {"compression (0: none, 1: int8)", c->compression},
        {"staleness", c->staleness},
        {"factor", c->factor},
        {"loss_scale (0: none, 1: given)", c->loss_scale != NULL},
        {"start_buffers", c->start_buffers},
        {"start_frozen", c->start_frozen},
        {"average_buffers", c->average_buffers},
        {"number of buffers", c->buffer_count},
    };

    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        dp_text_addf(lines, "%s\t", options[i].name);
        dp_text_add_number(lines, options[i].value);
        dp_text_adds(lines, "\n");
    }
    for (int32_t i = 0; i < c->buffer_count; i++) {
        dp_text_addf(lines, "buffer %d\t", i);
        dp_add_elements(lines, c->buffers[i]);
        dp_text_adds(lines, "\n");
    }
}

/* After lines for all that belongs to it, which are freed. */
static int agree_on_graph(struct dp_comm *comm, const struct dp_graph *g, struct dp_text *options)
{
    char *text = NULL;

    options->failed |= dp_graph_write(g, &text, NULL) != 0;
    const char *at = text ? text : "";
    for (int i = 1; *at; i++) {
        const size_t len = strcspn(at, "\n");
        dp_text_addf(options, "mixing graph, line %d\t", i);
        dp_text_add(options, at, len);
        dp_text_adds(options, "\n");
        at += len + (at[len] != '\0');
    }
    free(text);
    return dp_comm_agree_on_lines(comm, "mixing graph and its options", options);
}

static int broadcast(struct dp_comm *comm, DLTensor *t)
{
    return dp_comm_broadcast(comm, dp_tensor_address(t),
                             (size_t)dp_tensor_numel(t) * dp_tensor_element_bytes(t), 0);
}

static int begin_equal(const struct dp_mixer_config *c)
{
    struct dp_text options = {0};
    int err = dp_agree_on_parameters(c->comm, c->parameters, c->count);

    if (!err) {
        dp_mixer_add_options(c, &options);
        err = agree_on_graph(c->comm, c->graph, &options);
    }
    for (int32_t i = 0; i < c->count && !c->device && !err; i++)
        if (c->start_frozen || !(c->parameters[i].flags & DP_PARAMETER_FROZEN))
            err = broadcast(c->comm, c->parameters[i].value);
    for (int32_t i = 0; c->start_buffers && i < c->buffer_count && !err; i++)
        err = broadcast(c->comm, c->buffers[i]);
    return err;
}

/* ---- new and free ------------------------------------------------------------------------------ */

static int32_t find_leader(const struct dp_mixer *m, int32_t i)
{
    const struct dp_parameter *p = m->parameters;

    if (p[i].flags & DP_PARAMETER_FROZEN)
        return -1;
    for (int32_t k = 0; p[i].tied && !m->config.device && k < i; k++)
        if (m->leader[k] == k && p[k].tied && !strcmp(p[k].tied, p[i].tied))
            return k;
    return i;
}

static void find_leaders(struct dp_mixer *m)
{
    for (int32_t i = 0; i < m->config.count; i++) {
        m->leader[i] = find_leader(m, i);
        if (m->leader[i] >= 0)
            m->members[m->leader[i]]++;
    }
}

static int allocate(struct dp_mixer *m)
{
    const size_t count = (size_t)m->config.count + 1;

    m->parameters = calloc(count, sizeof(*m->parameters));
    m->leader = calloc(4 * count, sizeof(*m->leader));
    m->ready = calloc(2 * count, sizeof(*m->ready));
    m->original = calloc(count, sizeof(*m->original));
    m->original_offset = calloc(count, sizeof(*m->original_offset));
    m->squares = calloc(count, sizeof(*m->squares));
    m->flags = calloc((size_t)dp_comm_size(m->config.comm), sizeof(*m->flags));
    if (!m->parameters || !m->leader || !m->ready || !m->original || !m->original_offset ||
        !m->squares || !m->flags)
        return dp_fail(DP_ENOMEM, "no memory for a mixer of %d parameters", m->config.count);
    m->given = m->ready + count;
    m->members = m->leader + count;
    m->came = m->members + count;
    m->trace = m->came + count;
    if (m->config.count)
        memcpy(m->parameters, m->config.parameters, (count - 1) * sizeof(*m->parameters));
    m->config.parameters = m->parameters;
    return 0;
}

static int copy_groups(struct dp_optimizer_config *o, int32_t count)
{
    if (!o->groups)
        return 0;
    struct dp_optimizer_group *groups = calloc((size_t)o->group_count + 1, sizeof(*groups));
    int32_t *group_of = calloc((size_t)count + 1, sizeof(*group_of));
    if (groups && group_of) {
        memcpy(groups, o->groups, (size_t)o->group_count * sizeof(*groups));
        memcpy(group_of, o->group_of, (size_t)count * sizeof(*group_of));
    }
    o->groups = groups;
    o->group_of = group_of;
    return groups && group_of ? 0 : dp_fail(DP_ENOMEM, "no memory for %d groups", o->group_count);
}

static int set_up(struct dp_mixer *m)
{
    struct dp_mixer_config *c = &m->config;
    if (dp_mixer_is_bare(m))
        c->optimizer = dp_optimizer_defaults(DP_OPTIMIZER_SGD); /* of nothing */
    int err = copy_groups(&c->optimizer, c->count);
    if (!err)
        err = allocate(m);
    if (err)
        return err;
    if (c->schedule) {
        m->schedule = *c->schedule;
        c->schedule = &m->schedule;
    }
    if (c->loss_scale) {
        m->loss_scale = *c->loss_scale;
        c->loss_scale = &m->loss_scale;
    }
    if (c->survive) {
        m->death = calloc(1, sizeof(*m->death));
        if (!m->death)
            return dp_fail(DP_ENOMEM, "no memory for a mixer that survives");
        m->death->given = c->graph;
    }
    if (c->factor == 0)
        c->factor = 1;
    if (c->bucket_bytes == 0)
        c->bucket_bytes = 25.0 * 1024 * 1024;
    find_leaders(m);
    return 0;
}

int dp_mixer_new_alone(const struct dp_mixer_config *config, struct dp_mixer **out)
{
    struct dp_mixer *m;
    int err = check_config(config);

    if (err)
        return err;
    m = calloc(1, sizeof(*m));
    if (!m)
        return dp_fail(DP_ENOMEM, "no memory for a mixer");
    m->config = *config;
    err = set_up(m);
    if (err)
        dp_mixer_free(m);
    else
        *out = m;
    return err;
}

static int meet(struct dp_mixer *m)
{
    int err = begin_equal(&m->config);

    if (m->config.device)
        return err ? err : dp_mixer_start_on_device(m);
    dp_exchange_group_fini(&m->shared);
    return err ? err : dp_mixer_make_group(m);
}

/* Where the group survives, a death meanwhile is one before iteration 0: those that live begin again. */
static int meet_alive(struct dp_mixer *m)
{
    bool again = true;
    int err = 0;

    while (!err && again) {
        err = dp_mixer_conclude(m->config.comm, meet(m), &again);
        if (again)
            err = dp_mixer_survive(m);
    }
    return err;
}

int dp_mixer_new_sized(const struct dp_mixer_config *config, struct dp_mixer **out, size_t size)
{
    DP_TAKE(dp_mixer_config, config, size);
    struct dp_mixer *m;
    int err = dp_mixer_new_alone(config, &m);

    if (err) {
        if (config->comm)
            dp_comm_fail(config->comm, err);
        return err;
    }
    err = m->death ? meet_alive(m) : meet(m);
    if (err) {
        dp_mixer_free(m);
        return err;
    }
    *out = m;
    return 0;
}

void dp_mixer_free(struct dp_mixer *m)
{
    if (!m)
        return;
    dp_mixer_stop(m);
    if (m->config.optimizer.groups) {
        free((void *)m->config.optimizer.groups);
        free((void *)m->config.optimizer.group_of);
    }
    free(m->parameters);
    free(m->leader);
    free(m->ready);
    free(m->original);
    free(m->original_offset);
    free(m->squares);
    free(m->flags);
    if (m->config.device)
        dp_device_free(m->config.device, DP_MEMORY_DEVICE, m->backup);
    else
        free(m->backup);
    dp_mixer_state_free(m->state);
    if (m->death) {
        dp_graph_free(m->death->graph);
        dp_graph_free(m->death->own_given);
        dp_comm_close(m->death->comm);
        free(m->death->buffers);
        free(m->death);
    }
    free(m);
}

int dp_mixer_set_factor(struct dp_mixer *m, double factor)
{
    int err = check_factor(factor);

    if (!err)
        m->config.factor = factor;
    return dp_mixer_leave(m, err);
}

/* ---- questions --------------------------------------------------------------------------------- */

static void report(const struct dp_mixer *m, struct dp_mixer_report *out)
{
    *out = (struct dp_mixer_report){
        .comm = m->config.comm,
        .graph = m->config.graph,
        .iterations = m->iterations,
        .rate = m->started && m->config.schedule && m->bucket_count
                    ? dp_rate_at(&m->schedule, m->buckets[0].updates) : 0,
        .loss_scale = m->config.loss_scale ? m->loss_scale.scale : 1,
        .buckets = m->bucket_count,
    };
    for (int32_t i = 0; i < m->bucket_count; i++) {
        const struct dp_mixer_bucket *b = &m->buckets[i];
        const struct dp_stale *stale = b->exchange.stale;
        out->sent_bytes += b->exchange.sent_bytes;
        out->sent_bytes += stale ? stale->sent_bytes : 0;
        out->passed += stale ? stale->passed : 0;
        if (stale && stale->longest > out->longest)
            out->longest = stale->longest;
    }
}

void dp_mixer_report_sized(const struct dp_mixer *m, struct dp_mixer_report *out, size_t size)
{
    struct dp_mixer_report own;

    report(m, &own);
    dp_sized_give(out, size, &own, sizeof(own));
}

int32_t dp_mixer_bucket(const struct dp_mixer *m, int32_t bucket, const int32_t **parameters,
                        int64_t *block_elements)
{
    const struct dp_mixer_bucket *b = &m->buckets[bucket];

    *parameters = b->numbers;
    *block_elements = (int64_t)b->elements;
    return b->count;
}
