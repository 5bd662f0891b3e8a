/* SPDX-License-Identifier: Apache-2.0
 *
 * mixer.c - a mixer is made and freed: what its config must be, what all workers agree on, and after
 * iteration 0 the buckets: the order of gradients, the cut, blocks and optimizers.
 */
#include "base/internal.h"
#include "base/sized.h"
#include "mixing/internal.h"
#include "mixing/mixer_state.h"

#include "base/fail.h"
#include "base/tensor.h"
#include "base/text.h"
#include "comm/internal.h"
#include "comm/lines.h"

#include <dualpipe/memory.h>
#include <dualpipe/survival.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STALENESS_MAX = 1024, BLOCK_ALIGN = 256 };

static const char *const names[DP_MIXER_ALGORITHMS] = {"d-psgd", "local-sgd"};

const char *dp_mixer_algorithm_name(enum dp_mixer_algorithm algorithm)
{
    return (unsigned)algorithm < DP_MIXER_ALGORITHMS ? names[algorithm] : "?";
}

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

static int check_local(const struct dp_mixer_config *c)
{
    const bool local = c->algorithm == DP_MIXER_LOCAL_SGD;

    if (local ? c->local_steps < 1 : c->local_steps != 0)
        return dp_fail(DP_EINVAL, "%s with %d local steps, expected %s",
                       names[c->algorithm], c->local_steps,
                       local ? "at least 1" : "0");
    if (local ? !(c->outer_rate > 0) || isinf(c->outer_rate) : c->outer_rate != 0)
        return dp_fail(DP_EINVAL, "%s with an outer rate of %g, expected %s",
                       names[c->algorithm], c->outer_rate,
                       local ? "a number above 0" : "0");
    if (local ? !(c->outer_momentum >= 0 && c->outer_momentum < 1) : c->outer_momentum != 0)
        return dp_fail(DP_EINVAL, "%s with an outer momentum of %g, expected %s",
                       names[c->algorithm], c->outer_momentum,
                       local ? "0 or more, below 1" : "0");
    return 0;
}

static int check_types(const struct dp_mixer_config *c)
{
    for (int32_t i = 0; i < c->count; i++) {
        const struct dp_parameter *p = &c->parameters[i];
        if (p->flags & DP_PARAMETER_FROZEN)
            continue;
        if (c->compression && p->value->dtype.bits < 32)
            return dp_fail(DP_EUNSUPPORTED,
                           "compression int8 of parameter '%s', expected float32 or float64", p->name);
        if (c->algorithm && (p->value->dtype.bits < 32 || !p->grad ||
                             !dp_tensor_same_dtype(p->value, p->grad)))
            return dp_fail(DP_EUNSUPPORTED,
                           "%s with parameter '%s', expected a value and a gradient of "
                           "float32 or float64, both the same",
                           names[c->algorithm], p->name);
    }
    return 0;
}

/* What differences are defined for. */
static int check_differences(const struct dp_mixer_config *c, const char *what)
{
    if (c->algorithm != DP_MIXER_DPSGD)
        return dp_fail(DP_EINVAL, "%s with %s, expected d-psgd", what, names[c->algorithm]);
    if (c->graph->push_sum)
        return dp_fail(DP_EINVAL, "%s over mixing graph %s, expected one without push-sum", what,
                       c->graph->name);
    if (c->compat)
        return dp_fail(DP_EINVAL, "%s with compat, expected one of the two", what);
    return 0;
}

static int check_staleness(const struct dp_mixer_config *c)
{
    int32_t round, i, j;

    if (c->staleness < 0 || c->staleness > STALENESS_MAX)
        return dp_fail(DP_EINVAL, "staleness: %d rounds, expected 0 to %d", c->staleness,
                       STALENESS_MAX);
    int err = c->staleness ? check_differences(c, "staleness") : 0;
    if (err || !c->staleness)
        return err;
    if (c->compression)
        return dp_fail(DP_EINVAL, "staleness with compression int8, expected one of the two");
    if (dp_graph_is_symmetric(c->graph, &round, &i, &j))
        return 0;
    return dp_fail(DP_EINVAL,
                   "staleness over mixing graph %s, in which workers %d and %d give each other "
                   "%g and %g in round %d, expected the same",
                   c->graph->name, i, j, dp_graph_weight(c->graph, round, j, i),
                   dp_graph_weight(c->graph, round, i, j), round);
}

/* Algorithm, compression and staleness, as the mixer's header says. The graph is sound. */
static int check_method(const struct dp_mixer_config *c)
{
    if ((unsigned)c->algorithm >= DP_MIXER_ALGORITHMS)
        return dp_fail(DP_EINVAL, "algorithm of mixing: %d, expected 0 to %d", (int)c->algorithm,
                       DP_MIXER_ALGORITHMS - 1);
    if ((unsigned)c->compression > DP_COMPRESSION_INT8)
        return dp_fail(DP_EINVAL, "compression: %d, expected 0 or 1", (int)c->compression);
    int err = check_local(c);
    if (!err && c->algorithm && (c->compat || c->graph->push_sum))
        err = dp_fail(DP_EINVAL, "%s %s, expected d-psgd", names[c->algorithm],
                      c->compat ? "with compat" : "over a graph of push-sum");
    if (!err)
        err = check_staleness(c);
    if (!err && c->compression)
        err = check_differences(c, "compression int8");
    return err ? err : check_types(c);
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
        err = check_method(c);
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

/* ---- the cut ----------------------------------------------------------------------------------- */

static size_t round_up(size_t bytes)
{
    return (bytes + BLOCK_ALIGN - 1) / BLOCK_ALIGN * BLOCK_ALIGN;
}

/* The trace is already one of leaders. */
static int agree_on_trace(const struct dp_mixer *m)
{
    struct dp_text lines = {0};

    for (int32_t i = 0; i < m->traced; i++)
        dp_text_addf(&lines, "gradient %d to become complete\t'%s' (parameter %d)\n", i,
                     m->parameters[m->trace[i]].name, m->trace[i]);
    return dp_comm_agree_on_lines(m->config.comm, "order in which gradients became complete", &lines);
}

static int cut(struct dp_mixer *m)
{
    const struct dp_bucket_rule rule = {m->config.bucket_bytes, m->config.compat};
    struct dp_bucket_item *items = calloc((size_t)m->config.count + 1, sizeof(*items));

    if (!items)
        return dp_fail(DP_ENOMEM, "no memory for the buckets of %d parameters", m->config.count);
    for (int32_t i = 0; i < m->config.count; i++) {
        const DLTensor *t = m->parameters[i].value;
        items[i] = (struct dp_bucket_item){
            .elements = dp_tensor_numel(t),
            .type = t->dtype.code * 256 + t->dtype.bits,
            .element_bytes = (int32_t)dp_tensor_element_bytes(t),
        };
    }
    int err = dp_buckets_cut(&rule, items, m->config.count, m->trace, m->traced, &m->cut);
    free(items);
    return err;
}

/* ---- one bucket -------------------------------------------------------------------------------- */

/* Values move into the block; the user's tensor points there from now on. */
static int make_views(struct dp_mixer *m, struct dp_mixer_bucket *b)
{
    const size_t bytes = round_up(b->elements * b->type.bits / 8);

    b->view = aligned_alloc(BLOCK_ALIGN, bytes ? bytes : BLOCK_ALIGN);
    if (!b->view)
        return dp_fail(DP_ENOMEM, "no memory for a bucket of %zu bytes", bytes);
    memset(b->view, 0, bytes);
    for (int32_t i = 0; i < b->count; i++) {
        const int32_t number = b->numbers[i];
        DLTensor *t = m->parameters[number].value;
        char *to = b->view + (size_t)m->cut.offset[number] * b->type.bits / 8;
        char *from = dp_tensor_address(t);
        memcpy(to, from, (size_t)dp_tensor_numel(t) * dp_tensor_element_bytes(t));
        /* Members of a tied group that are this memory go along. */
        for (int32_t k = 0; k < m->config.count; k++) {
            DLTensor *other = m->parameters[k].value;
            if (m->leader[k] != number || dp_tensor_address(other) != from)
                continue;
            m->original[k] = other->data;
            m->original_offset[k] = other->byte_offset;
            other->data = to;
            other->byte_offset = 0;
        }
    }
    return 0;
}

static int make_optimizer(struct dp_mixer *m, struct dp_mixer_bucket *b)
{
    struct dp_optimizer_config config = m->config.optimizer;
    int32_t *group_of = calloc((size_t)b->count + 1, sizeof(*group_of));

    if (!group_of)
        return dp_fail(DP_ENOMEM, "no memory for an optimizer");
    for (int32_t i = 0; config.groups && i < b->count; i++)
        group_of[i] = config.group_of[b->numbers[i]];
    if (config.groups)
        config.group_of = group_of;
    /* One without parameters has no state, and nothing to do. */
    int err = dp_optimizer_new(&config, b->parameters, dp_mixer_is_bare(m) ? 0 : b->count,
                               &b->optimizer);
    free(group_of);
    return err;
}

/* Bytes of the blocks of a bucket's exchange. */
static size_t blocks_bytes(const struct dp_mixer *m, const struct dp_mixer_bucket *b)
{
    return (size_t)dp_exchange_blocks(&m->shared) * round_up(b->elements * b->type.bits / 8);
}

static int make_exchange(struct dp_mixer *m, struct dp_mixer_bucket *b)
{
    return dp_exchange_init(&b->exchange, &m->shared, b->type, b->elements, b->blocks);
}

/* Local SGD: blocks, as they are before the first update. */
static int keep_blocks(struct dp_mixer *m, struct dp_mixer_bucket *b)
{
    const size_t size = b->type.bits / 8;

    for (int k = 0; k < 2; k++) {
        b->memory[k] = calloc(b->elements + 1, size);
        if (!b->memory[k])
            return dp_fail(DP_ENOMEM, "no memory for what local-sgd keeps of %zu elements",
                           b->elements);
    }
    for (int32_t i = 0; i < b->count; i++) {
        const DLTensor *t = b->parameters[i].value;
        memcpy(b->memory[0] + (size_t)m->cut.offset[b->numbers[i]] * size, dp_tensor_address(t),
               (size_t)dp_tensor_numel(t) * size);
    }
    return 0;
}

static int make_blocks(struct dp_mixer *m, struct dp_mixer_bucket *b, char *memory)
{
    const size_t bytes = round_up(b->elements * b->type.bits / 8);

    b->blocks[0] = memory;
    b->blocks[1] = dp_exchange_blocks(&m->shared) > 1 ? memory + bytes : memory;
    for (int k = 0; k < 2; k++) {
        b->beside[k] = calloc((size_t)b->count + 1, sizeof(*b->beside[k]));
        if (!b->beside[k])
            return dp_fail(DP_ENOMEM, "no memory for a bucket of %d parameters", b->count);
        for (int32_t i = 0; i < b->count; i++)
            b->beside[k][i] = (char *)b->blocks[k] +
                              (size_t)m->cut.offset[b->numbers[i]] * b->type.bits / 8;
    }
    int err = make_exchange(m, b);
    return err || !dp_mixer_is_local(m) ? err : keep_blocks(m, b);
}

static int describe(struct dp_mixer *m, int32_t number)
{
    struct dp_mixer_bucket *b = &m->buckets[number];
    const struct dp_bucket_cut *cut = &m->cut.cuts[number];

    b->numbers = m->cut.order + cut->first;
    b->count = cut->count;
    b->elements = (size_t)cut->block_elements;
    b->factor = m->config.factor;
    b->type = m->parameters[b->numbers[0]].value->dtype;
    b->parameters = calloc((size_t)b->count, sizeof(*b->parameters));
    b->present = calloc((size_t)b->count, sizeof(*b->present));
    if (!b->parameters || !b->present)
        return dp_fail(DP_ENOMEM, "no memory for a bucket of %d parameters", b->count);
    for (int32_t i = 0; i < b->count; i++) {
        b->parameters[i] = m->parameters[b->numbers[i]];
        b->parameters[i].tied = NULL;
    }
    return 0;
}

/* ---- all of them ------------------------------------------------------------------------------- */

/* The blocks of all exchanges are one piece, shared with the other processes of this host where that
 * makes messages faster. */
static int make_memory(struct dp_mixer *m)
{
    const size_t shared = dp_comm_shared_bytes(m->config.comm);
    size_t bytes = 0;

    for (int32_t i = 0; i < m->bucket_count; i++)
        bytes += blocks_bytes(m, &m->buckets[i]);
    if (shared && bytes >= shared && !dp_shared_alloc(bytes, -1, &m->memory)) {
        m->memory_is_shared = true;
        return 0;
    }
    m->memory = aligned_alloc(BLOCK_ALIGN, bytes ? bytes : BLOCK_ALIGN);
    if (!m->memory)
        return dp_fail(DP_ENOMEM, "no memory for exchanges of %zu bytes", bytes);
    memset(m->memory, 0, bytes);
    return 0;
}

static int describe_buckets(struct dp_mixer *m)
{
    int err = 0;

    m->buckets = calloc((size_t)m->cut.count + 1, sizeof(*m->buckets));
    if (!m->buckets)
        return dp_fail(DP_ENOMEM, "no memory for %d buckets", m->cut.count);
    m->bucket_count = m->cut.count;
    for (int32_t i = 0; i < m->bucket_count && !err; i++)
        err = describe(m, i);
    return err;
}

static int make_buckets(struct dp_mixer *m)
{
    int err = describe_buckets(m);

    if (!err)
        err = make_memory(m);
    char *memory = m->memory;
    for (int32_t i = 0; i < m->bucket_count && !err; i++) {
        struct dp_mixer_bucket *b = &m->buckets[i];
        if (!m->config.separate)
            err = make_views(m, b);
        if (!err)
            err = make_blocks(m, b, memory);
        if (!err)
            err = make_optimizer(m, b);
        memory += blocks_bytes(m, b);
    }
    return err;
}

/* What all workers know of each other before the first difference: rank 0's values. Others may differ,
 * which is then part of the first difference. */
static int make_known(struct dp_mixer *m, struct dp_mixer_bucket *b)
{
    char *block = b->exchange.block[0];

    for (int32_t i = 0; i < b->count; i++) {
        const DLTensor *t = b->parameters[i].value;
        memcpy(b->beside[0][i], dp_tensor_address(t),
               (size_t)dp_tensor_numel(t) * dp_tensor_element_bytes(t));
    }
    int err = dp_comm_broadcast(m->config.comm, block, b->exchange.bytes, 0);
    if (!err)
        dp_compressed_begin(b->exchange.compressed, block);
    return err;
}

static int make_all_known(struct dp_mixer *m)
{
    int err = 0;

    for (int32_t i = 0; i < m->bucket_count && m->config.compression && !err; i++)
        err = make_known(m, &m->buckets[i]);
    return err;
}

int dp_mixer_make_group(struct dp_mixer *m)
{
    const struct dp_mixer_config *c = &m->config;
    int err = dp_exchange_group_init(&m->shared, c->comm, c->graph, c->survive);

    m->shared.compression = c->compression;
    m->shared.staleness = c->staleness;
    return err;
}

int dp_mixer_make_exchanges(struct dp_mixer *m)
{
    int err = 0;

    for (int32_t i = 0; i < m->bucket_count && !err; i++)
        err = make_exchange(m, &m->buckets[i]);
    return err ? err : make_all_known(m);
}

int dp_mixer_make_buckets(struct dp_mixer *m)
{
    int err = cut(m);

    if (!err)
        err = make_buckets(m);
    m->started = !err; /* also where a worker dies in what follows */
    if (!err)
        err = make_all_known(m);
    return dp_mixer_leave(m, err);
}

int dp_mixer_start(struct dp_mixer *m)
{
    int err = agree_on_trace(m);

    return err ? err : dp_mixer_make_buckets(m);
}

static void merge_buckets(struct dp_buckets *cut)
{
    for (int32_t i = 0; i < cut->item_count; i++)
        cut->bucket_of[cut->order[i]] = 0;
    cut->count = cut->item_count > 0;
    if (cut->count)
        cut->cuts[0].count = cut->item_count;
}

/* On a device, at once. Collective. */
static int start_on_device(struct dp_mixer *m)
{
    for (int32_t i = 0; i < m->config.count; i++)
        if (m->leader[i] == i)
            m->trace[m->traced++] = i;
    int err = cut(m);
    if (!err) {
        merge_buckets(&m->cut);
        err = describe_buckets(m);
    }
    if (!err && m->bucket_count)
        err = make_optimizer(m, m->buckets);
    m->started = true;
    if (!err)
        err = dp_mixer_device_new(&m->config, &m->on_device);
    return dp_mixer_leave(m, err);
}

/* ---- the end of them --------------------------------------------------------------------------- */

static void give_values_back(struct dp_mixer *m)
{
    for (int32_t i = 0; i < m->config.count; i++) {
        DLTensor *t = m->parameters[i].value;
        if (!m->original[i])
            continue;
        const void *from = dp_tensor_address(t);
        t->data = m->original[i];
        t->byte_offset = m->original_offset[i];
        memcpy(dp_tensor_address(t), from, (size_t)dp_tensor_numel(t) * dp_tensor_element_bytes(t));
    }
}

int dp_mixer_wait(struct dp_mixer_bucket *b)
{
    int err = dp_exchange_wait(&b->exchange);

    return err ? err : dp_exchange_drain(&b->exchange);
}

static void stop(struct dp_mixer *m)
{
    int err = 0;

    for (int32_t i = 0; i < m->bucket_count && !m->config.device && !err; i++)
        err = dp_mixer_wait(&m->buckets[i]);
    dp_mixer_device_free(m->on_device);
    dp_exchange_group_fini(&m->shared); /* what is still in flight is dropped before its memory */
    if (m->parameters && m->original)
        give_values_back(m);
    for (int32_t i = 0; i < m->bucket_count; i++) {
        struct dp_mixer_bucket *b = &m->buckets[i];
        dp_optimizer_free(b->optimizer);
        dp_exchange_fini(&b->exchange);
        free(b->memory[0]);
        free(b->memory[1]);
        free(b->parameters);
        free(b->present);
        free(b->view);
        free(b->beside[0]);
        free(b->beside[1]);
    }
    free(m->buckets);
    dp_buckets_fini(&m->cut);
    if (m->memory_is_shared)
        dp_shared_free(m->memory);
    else
        free(m->memory);
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

int dp_mixer_meet(struct dp_mixer *m)
{
    int err = begin_equal(&m->config);

    if (m->config.device)
        return err ? err : start_on_device(m);
    dp_exchange_group_fini(&m->shared);
    return err ? err : dp_mixer_make_group(m);
}

void dp_mixer_free(struct dp_mixer *m)
{
    if (!m)
        return;
    stop(m);
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
    free(m->state);
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
