/* SPDX-License-Identifier: Apache-2.0
 *
 * mixer_start.c - after iteration 0: agree on the order of gradients, cut buckets, lay out their
 * blocks, give each bucket its optimizer.
 */
#include "base/fail.h"
#include "base/tensor.h"
#include "comm/lines.h"
#include "mixing/mixer_state.h"
#include <dualpipe/memory.h>

#include <stdlib.h>
#include <string.h>

enum { BLOCK_ALIGN = 256 };

static size_t round_up(size_t bytes)
{
    return (bytes + BLOCK_ALIGN - 1) / BLOCK_ALIGN * BLOCK_ALIGN;
}

/* ---- the cut ----------------------------------------------------------------------------------- */

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
    return err || !dp_mixer_is_local(m) ? err : dp_mixer_make_memory(m, b);
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

int dp_mixer_start_on_device(struct dp_mixer *m)
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

/* ---- the end ----------------------------------------------------------------------------------- */

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

void dp_mixer_stop(struct dp_mixer *m)
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
