/* SPDX-License-Identifier: Apache-2.0
 *
 * mixer_checkpoint.c - the state of a mixer: the optimizers' tensors, what has come and was not
 * mixed yet, what the algorithm keeps, what workers know of each other where blocks are compressed, and
 * a list of numbers:
 *
 *      version, iterations, traced, whether there are buckets, loss scale, its good steps,
 * algorithm, the trace [parameters], and for each bucket: updates, pending, round, mass, sent mass
 *
 * Doubles are there as their bits.
 */
#include "base/fail.h"
#include "mixing/internal.h"
#include "mixing/mixer_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 2, HEAD = 7, OF_BUCKET = 5, BLOCKS = 3, NAME_LEN = 64 };
/* Algorithms in the list of numbers: 1 and 2 were others, whose states are refused. */
static const int64_t algorithms[DP_MIXER_ALGORITHMS] = {[DP_MIXER_DPSGD] = 0,
                                                        [DP_MIXER_LOCAL_SGD] = 3};

struct dp_mixer_state {
    int64_t *numbers, number_count, *lengths;
    struct dp_named_tensor *tensors;
    char (*names)[NAME_LEN];
    int32_t count;
};

static int64_t bits_of(double x)
{
    int64_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static double of_bits(int64_t bits)
{
    double x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static int64_t count_numbers(const struct dp_mixer *m)
{
    return HEAD + m->config.count + (int64_t)OF_BUCKET * m->bucket_count;
}

/* Blocks of what workers know of each other: as many in all buckets. */
static size_t known_blocks(const struct dp_mixer *m)
{
    size_t blocks = 0;

    for (int32_t t = 0; m->config.compression && m->bucket_count && t < m->config.graph->period; t++)
        blocks += 1 + (size_t)m->buckets[0].exchange.compressed->rounds[t].count;
    return blocks;
}

int32_t dp_mixer_known_count(const struct dp_mixer *m)
{
    return (int32_t)known_blocks(m) * m->bucket_count;
}

/* In one piece of memory. */
static int allocate(struct dp_mixer *m)
{
    const size_t blocks = BLOCKS + known_blocks(m), all = blocks * (size_t)m->bucket_count + 1;
    const size_t numbers = (size_t)count_numbers(m);
    size_t tensors = 1;

    for (int32_t i = 0; i < m->bucket_count; i++)
        tensors += blocks + (size_t)dp_optimizer_state_count(m->buckets[i].optimizer);
    struct dp_mixer_state *s = calloc(1, sizeof(*s) + tensors * sizeof(*s->tensors) +
                                             (numbers + all) * sizeof(*s->numbers) + all * NAME_LEN);
    m->state = s;
    if (!s)
        return dp_fail(DP_ENOMEM, "no memory for the state of a mixer");
    s->number_count = (int64_t)numbers;
    s->tensors = (void *)(s + 1);
    s->numbers = (void *)(s->tensors + tensors);
    s->lengths = s->numbers + numbers;
    s->names = (void *)(s->lengths + all);
    return 0;
}

/* ---- writing ------------------------------------------------------------------------------------ */

static void note_numbers(const struct dp_mixer *m, int64_t *n)
{
    const int64_t head[HEAD] = {VERSION,
                                m->iterations,
                                m->traced,
                                m->started,
                                bits_of(m->loss_scale.scale),
                                m->loss_scale.good,
                                algorithms[m->config.algorithm]};

    memcpy(n, head, sizeof(head));
    n += HEAD;
    for (int32_t i = 0; i < m->config.count; i++)
        *n++ = i < m->traced ? m->trace[i] : -1;
    for (int32_t i = 0; i < m->bucket_count; i++) {
        const struct dp_mixer_bucket *b = &m->buckets[i];
        *n++ = b->updates;
        *n++ = b->pending;
        *n++ = b->exchange.round;
        *n++ = bits_of(b->exchange.mass);
        *n++ = bits_of(b->exchange.sent_mass);
    }
}

static void name_tensor(struct dp_mixer_state *s, int32_t *next, DLDataType type, void *data,
                        int64_t length)
{
    const int32_t name = (*next)++;

    s->lengths[name] = length;
    s->tensors[s->count++] = (struct dp_named_tensor){
        .name = s->names[name],
        .tensor = {.data = data, .device = {kDLCPU, 0}, .ndim = 1, .dtype = type,
                   .shape = &s->lengths[name]},
    };
}

/* The blocks of a bucket that there are. */
static void name_blocks(struct dp_mixer *m, int32_t number, int32_t *next)
{
    const struct dp_mixer_bucket *b = &m->buckets[number];
    const struct {
        const char *name;
        char *block;
    } blocks[BLOCKS] = {
        {"received", b->exchange.block[b->exchange.now]},
        {"anchor", b->memory[0]},
        {"outer-momentum", b->memory[1]},
    };

    for (int k = 0; k < BLOCKS; k++) {
        if (!blocks[k].block)
            continue;
        snprintf(m->state->names[*next], NAME_LEN, "mixer/%s/%d", blocks[k].name, number);
        name_tensor(m->state, next, b->type, blocks[k].block, (int64_t)b->elements);
    }
}

static void name_known(struct dp_mixer *m, int32_t number, int32_t *next)
{
    const struct dp_mixer_bucket *b = &m->buckets[number];

    for (int k = 0; k < (int)known_blocks(m); k++) {
        snprintf(m->state->names[*next], NAME_LEN, "mixer/known/%d/%d", number, k);
        name_tensor(m->state, next, b->type, b->exchange.compressed->blocks[k],
                    (int64_t)b->elements);
    }
}

static void name_tensors(struct dp_mixer *m)
{
    struct dp_mixer_state *s = m->state;
    int32_t next = 0;

    s->count = 0;
    snprintf(s->names[0], NAME_LEN, "mixer/numbers");
    name_tensor(s, &next, (DLDataType){kDLInt, 64, 1}, s->numbers, s->number_count);
    for (int32_t i = 0; i < m->bucket_count; i++) {
        struct dp_mixer_bucket *b = &m->buckets[i];
        const int32_t count = dp_optimizer_state_count(b->optimizer);
        name_blocks(m, i, &next);
        memcpy(s->tensors + s->count, dp_optimizer_state(b->optimizer),
               (size_t)count * sizeof(*s->tensors));
        s->count += count;
    }
    for (int32_t i = 0; i < m->bucket_count; i++)
        name_known(m, i, &next);
}

int dp_mixer_state(struct dp_mixer *m, const struct dp_named_tensor **tensors, int32_t *count)
{
    int err = m->on_device ? dp_fail(DP_EUNSUPPORTED, "the state of a mixer on a device, expected one "
                                                      "of the host")
              : m->open ? dp_fail(DP_ESTATE, "the state of a mixer between a forward and its step")
              : m->any_given ? dp_fail(DP_ESTATE, "the state of a mixer that accumulates gradients")
                             : 0;

    for (int32_t i = 0; i < m->bucket_count && !err; i++)
        err = dp_mixer_wait(&m->buckets[i]);
    if (!err && (!m->state || m->state->number_count != count_numbers(m))) {
        free(m->state);
        err = allocate(m);
    }
    if (err)
        return dp_mixer_leave(m, err);
    note_numbers(m, m->state->numbers);
    name_tensors(m);
    *tensors = m->state->tensors;
    *count = m->state->count;
    return 0;
}

/* ---- going on ----------------------------------------------------------------------------------- */

static int check_numbers(const struct dp_mixer *m, const int64_t *n, int64_t count)
{
    if (m->started || m->iterations)
        return dp_fail(DP_ESTATE, "a mixer that has begun, expected a new one");
    if (count < HEAD + m->config.count || n[0] != VERSION)
        return dp_fail(DP_EMISMATCH, "%lld numbers of a mixer's state, version %lld, expected %d at "
                       "least, version %d", (long long)count, count ? (long long)n[0] : 0,
                       HEAD + m->config.count, VERSION);
    if (n[6] != algorithms[m->config.algorithm])
        return dp_fail(DP_EMISMATCH,
                       "numbers of a mixer's state of algorithm %lld, expected %lld, %s",
                       (long long)n[6], (long long)algorithms[m->config.algorithm],
                       dp_mixer_algorithm_name(m->config.algorithm));
    bool sound = n[1] >= 0 && n[2] >= 0 && n[2] <= m->config.count;
    for (int64_t i = 0; sound && i < n[2]; i++) {
        const int64_t p = n[HEAD + i];
        sound = p >= 0 && p < m->config.count && m->leader[p] == p && !m->ready[p];
        if (sound)
            m->ready[p] = true;
    }
    memset(m->ready, 0, (size_t)m->config.count * sizeof(*m->ready));
    return sound ? 0 : dp_fail(DP_EMISMATCH, "numbers of another mixer's state, of other parameters");
}

static int take_buckets(struct dp_mixer *m, const int64_t *n, int64_t count)
{
    if (count != count_numbers(m))
        return dp_fail(DP_EMISMATCH, "%lld numbers of a mixer's state, expected %lld: buckets of "
                       "another size", (long long)count, (long long)count_numbers(m));
    n += HEAD + m->config.count;
    for (int32_t i = 0; i < m->bucket_count; i++, n += OF_BUCKET) {
        struct dp_mixer_bucket *b = &m->buckets[i];
        b->updates = n[0];
        b->pending = n[1];
        dp_exchange_restore(&b->exchange, n[2], of_bits(n[3]), of_bits(n[4]));
    }
    return 0;
}

static int take_numbers(struct dp_mixer *m, const int64_t *numbers, int64_t count,
                        int (*make_buckets)(struct dp_mixer *m))
{
    int err = check_numbers(m, numbers, count);

    if (err)
        return dp_mixer_leave(m, err);
    m->traced = (int32_t)numbers[2];
    for (int32_t i = 0; i < m->traced; i++)
        m->trace[i] = (int32_t)numbers[HEAD + i];
    for (int32_t i = 0; i < m->traced && !numbers[3]; i++)
        m->given[m->trace[i]] = true; /* gradients of iteration 0 */
    m->loss_scale.scale = of_bits(numbers[4]);
    m->loss_scale.good = (int32_t)numbers[5];
    if (numbers[3])
        err = make_buckets(m);
    if (!err)
        err = dp_mixer_leave(m, take_buckets(m, numbers, count));
    if (!err)
        m->iterations = numbers[1];
    return err;
}

int dp_mixer_resume(struct dp_mixer *m, const int64_t *numbers, int64_t count)
{
    return take_numbers(m, numbers, count, dp_mixer_start);
}

int dp_mixer_take_numbers(struct dp_mixer *m, const int64_t *numbers, int64_t count)
{
    return take_numbers(m, numbers, count, dp_mixer_make_buckets);
}
