/* SPDX-License-Identifier: Apache-2.0
 *
 * mixer_device.c - values on a device mixed by a graph, in the order of a stream.
 *
 *      stream   | mix: x = W x | update | send | the next step's work          | mix ...
 *      links                            | x to the neighbors, theirs to `arrivals` |
 *
 * What came in round t, with compat with the weights of the round of the mix, is multiplied and
 * added up in the order of the host's exchange (exchange.c), and x becomes keep x + take sum,
 * rounded as an optimizer of the host does it. Groups of more than two, which the host sums by an
 * all-reduce, are messages between each two of their members here.
 */
#include "mixing/mixer_state.h"

#include "base/fail.h"
#include "base/tensor.h"
#include "device/device_ops.h"
#include "mixing/exchange.h"
#include "mixing/round.h"

#include <dualpipe/replicas.h>

#include <stdlib.h>

enum { ALIGNMENT = 256, SETS = 2 };

/* Values that follow each other in memory. */
struct run {
    struct dp_mixer_piece values;
    size_t bytes;
    size_t at; /* where it begins in what a neighbor sends */
};

struct exchange {
    struct dp_transfers messages;
    bool awaited; /* the stream waits for them; with compat they are over */
};

struct dp_mixer_device {
    const struct dp_mixer_config *config;
    int32_t self;
    struct run *runs;
    int32_t run_count;
    size_t bytes;                    /* of all runs */
    char *arrivals;                  /* [sources_max][bytes] */
    struct exchange exchanges[SETS]; /* of even and of odd numbers */
    struct dp_round_transfer *messages;
    struct dp_neighbor *neighbors; /* [neighbors_max] room for those of a round */
    int32_t neighbors_max;
    int64_t number; /* of the exchange in flight, or of the next one */
    bool in_flight;
    struct dp_parameter *as_sums; /* [count] values in the place of gradients */
    struct dp_replicas *sums;
};

/* ---- an exchange ----------------------------------------------------------------------------- */

/* Nothing that is in flight will come. */
static int leave(struct dp_mixer_device *m, int err)
{
    m->in_flight = false;
    for (int i = 0; i < SETS; i++)
        dp_transfers_clear(&m->exchanges[i].messages);
    return err;
}

static struct exchange *exchange_at_hand(struct dp_mixer_device *m)
{
    return &m->exchanges[m->number % SETS];
}

/* Whose weights what came is mixed with. */
static int64_t round_of_weights(const struct dp_mixer_device *m)
{
    return m->number + (m->config->compat ? 2 : 0);
}

/* Decent-DP's are 1, 3, 4, 5, ... */
static int64_t round_of(const struct dp_mixer_device *m)
{
    return m->config->compat && !m->number ? 1 : round_of_weights(m);
}

static int send_run(struct dp_mixer_device *m, const struct run *run)
{
    const struct dp_graph *g = m->config->graph;
    const uint64_t tag = (uint64_t)(run - m->runs);
    struct dp_transfers *all = &exchange_at_hand(m)->messages;
    int32_t count = dp_neighbors_from(g, round_of(m), m->self, m->neighbors);
    int err = dp_transfers_gather(all, m->neighbors, count, tag, m->arrivals + run->at, m->bytes,
                                  run->bytes);

    count = dp_neighbors_to(g, round_of(m), m->self, m->neighbors);
    return err ? err
               : dp_transfers_spread(all, m->neighbors, count, tag, run->values.at, run->bytes);
}

static int send_all(struct dp_mixer_device *m)
{
    int err = dp_comm_begin(m->config->comm);

    if (err)
        return err;
    for (int32_t i = 0; i < m->run_count && !err; i++)
        err = send_run(m, &m->runs[i]);
    int committed = dp_comm_commit(m->config->comm);
    return err ? err : committed;
}

int dp_mixer_device_send(struct dp_mixer_device *m)
{
    struct exchange *x = exchange_at_hand(m);
    int err = dp_transfers_end(&x->messages, true, NULL); /* the stream is behind it */

    dp_transfers_clear(&x->messages);
    x->awaited = false;
    if (!err)
        err = dp_comm_after(m->config->comm, m->config->stream);
    if (!err)
        err = send_all(m);
    m->in_flight = true;
    return err ? leave(m, err) : 0;
}

/* With compat the program is one of torch's, which waits for the stream without a deadline, and
 * hears of a failure here only. */
static int await(struct dp_mixer_device *m)
{
    struct exchange *x = exchange_at_hand(m);
    int err = x->awaited ? 0 : dp_transfers_await(&x->messages, 0, m->config->stream);

    if (!err && m->config->compat)
        err = dp_transfers_end(&x->messages, true, NULL);
    x->awaited = !err;
    return err;
}

static double kept(const struct dp_mixer_device *m, double a)
{
    const struct dp_graph *g = m->config->graph;
    const int64_t sent = round_of(m), mixed = round_of_weights(m);
    double own = dp_round_self(g, mixed, m->self);

    if (m->config->compat && dp_graph_group(g, sent, m->self))
        own = own - dp_round_share(g, mixed, m->self) + dp_round_share(g, sent, m->self);
    return (1 - a) + a * own;
}

static int mix_run(struct dp_mixer_device *m, const struct run *run, int32_t count, double factor)
{
    struct dp_device_stream *stream = m->config->stream;
    const struct dp_mixer_piece *v = &run->values;
    char *sum = m->arrivals + run->at;
    int err = 0;

    for (int32_t i = 0; i < count && !err; i++) {
        char *came = sum + (size_t)i * m->bytes;
        err = dp_device_mix(stream, v->type, came, m->neighbors[i].weight, came, 0, v->elements);
        if (!err && i)
            err = dp_device_add(stream, v->type, sum, v->type, came, v->elements);
    }
    return err ? err
               : dp_device_mix(stream, v->type, v->at, kept(m, factor), sum, factor, v->elements);
}

int dp_mixer_device_mix(struct dp_mixer_device *m, double factor)
{
    if (!m->in_flight)
        return 0;
    int err = await(m);
    const int32_t count = dp_neighbors_from(m->config->graph, round_of(m), m->self, m->neighbors);
    for (int32_t i = 0; i < m->run_count && count && !err; i++)
        err = mix_run(m, &m->runs[i], count, factor);
    dp_mixer_device_drop(m);
    return err ? leave(m, err) : 0;
}

int dp_mixer_device_wait(struct dp_mixer_device *m)
{
    int err = 0;

    for (int i = 0; i < SETS && !err; i++)
        if (m->exchanges[i].awaited)
            err = dp_transfers_end(&m->exchanges[i].messages, true, NULL);
    return err ? leave(m, err) : 0;
}

void dp_mixer_device_drop(struct dp_mixer_device *m)
{
    m->number += m->in_flight;
    m->in_flight = false;
}

/* ---- all values ------------------------------------------------------------------------------ */

bool dp_mixer_device_piece(const struct dp_mixer_device *m, int32_t i, struct dp_mixer_piece *out)
{
    if (i >= m->run_count)
        return false;
    *out = m->runs[i].values;
    return true;
}

int dp_mixer_device_hold(struct dp_mixer_device *m)
{
    int err = m->in_flight ? await(m) : 0;

    return err ? leave(m, err) : 0;
}

int dp_mixer_device_sum(struct dp_mixer_device *m)
{
    int err = dp_replicas_sum(m->sums, m->config->stream);

    if (!err)
        err = dp_replicas_wait(m->sums);
    return err ? leave(m, err) : 0;
}

/* ---- new and free ---------------------------------------------------------------------------- */

static int no_memory(const struct dp_mixer_device *m)
{
    return dp_fail(DP_ENOMEM, "no memory to mix %d parameters", m->config->count);
}

/* Values that follow each other are sent as one; m->sums has them. */
static void list_runs(struct dp_mixer_device *m)
{
    struct run *run = m->runs;

    for (; dp_replicas_row(m->sums, m->run_count, &run->values); run++, m->run_count++) {
        run->bytes = run->values.elements * (run->values.type.bits / 8);
        run->at = m->bytes;
        m->bytes += (run->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
}

static int check_value(const struct dp_parameter *p, const struct dp_device *dev,
                       struct dp_device_stream *stream)
{
    if (!dp_stream_is_on(dev, p->value))
        return dp_fail(DP_EUNSUPPORTED,
                       "parameter '%s' is not in the memory of the device that mixes", p->name);
    if (dp_device_mix(stream, p->value->dtype, NULL, 1, NULL, 0, 0))
        return dp_fail(DP_EUNSUPPORTED,
                       "parameter '%s': the device mixes no values of %d bits, expected float32 or "
                       "float64 on one of CUDA",
                       p->name, p->value->dtype.bits);
    return 0;
}

/* What there is on the host only. */
static int check_method(const struct dp_mixer_config *c)
{
    const struct {
        const char *name;
        bool set;
    } none[] = {
        {"push-sum", c->graph->push_sum},
        {"survive", c->survive},
        {"another algorithm than d-psgd", c->algorithm},
        {"compression", c->compression},
        {"staleness", c->staleness},
        {"clipping", c->clip_norm > 0},
        {"a loss scale", c->loss_scale},
        {"buffers", c->buffer_count},
        {"a pre_average hook", c->pre_average},
    };

    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
        if (none[i].set)
            return dp_fail(DP_EUNSUPPORTED, "mixing on a device with %s, expected it without",
                           none[i].name);
    return c->stream ? 0 : dp_fail(DP_ESTATE, "mixing on a device without a stream, expected one");
}

int dp_mixer_device_check(const struct dp_mixer_config *c)
{
    int err = check_method(c);

    return err ? err
               : dp_stream_check(c->comm, c->device, "mixing", c->parameters, c->count,
                                 check_value);
}

static int make_lists(struct dp_mixer_device *m)
{
    const size_t count = (size_t)m->config->count;

    m->runs = calloc(count + 1, sizeof(*m->runs));
    m->as_sums = calloc(count + 1, sizeof(*m->as_sums));
    m->neighbors_max = dp_neighbors_max(m->config->graph, m->self);
    m->neighbors = calloc((size_t)m->neighbors_max + 1, sizeof(*m->neighbors));
    if (!m->runs || !m->as_sums || !m->neighbors)
        return no_memory(m);
    for (size_t i = 0; i < count; i++) {
        m->as_sums[i] = m->config->parameters[i];
        m->as_sums[i].grad = dp_stream_takes(&m->as_sums[i]) ? m->as_sums[i].value : NULL;
        m->as_sums[i].flags = m->as_sums[i].grad ? 0 : DP_PARAMETER_FROZEN;
    }
    int err =
        dp_replicas_new(m->as_sums, m->config->count, m->config->comm, m->config->device, &m->sums);
    if (err)
        return err;
    list_runs(m);
    const size_t each = 2 * (size_t)m->run_count * (size_t)m->neighbors_max;
    m->messages = calloc(SETS * each + 1, sizeof(*m->messages));
    if (!m->messages)
        return no_memory(m);
    for (size_t i = 0; i < SETS; i++)
        m->exchanges[i].messages =
            (struct dp_transfers){.comm = m->config->comm, .list = m->messages + i * each};
    return 0;
}

int dp_mixer_device_new(const struct dp_mixer_config *config, struct dp_mixer_device **out)
{
    struct dp_mixer_device *m = *out = calloc(1, sizeof(*m));

    if (!m)
        return dp_fail(DP_ENOMEM, "no memory to mix");
    m->config = config;
    m->self = dp_comm_rank(config->comm);
    int err = make_lists(m);
    return err ? err
               : dp_stream_arrivals_new(config->comm, config->device,
                                        (size_t)m->neighbors_max * m->bytes, &m->arrivals);
}

void dp_mixer_device_free(struct dp_mixer_device *m)
{
    int err = 0;

    if (!m)
        return;
    for (int i = 0; i < SETS && !err; i++)
        err = dp_transfers_end(&m->exchanges[i].messages, true, NULL);
    dp_replicas_free(m->sums);
    dp_stream_arrivals_free(m->config->comm, m->config->device, m->arrivals);
    free(m->messages);
    free(m->neighbors);
    free(m->as_sums);
    free(m->runs);
    free(m);
}

/* ---- links of a communicator ----------------------------------------------------------------- */

int dp_mixer_nccl_peers(const struct dp_graph *g, int rank, struct dp_nccl_peer *out)
{
    const unsigned mixes = 1U << DP_CHANNEL_REDUCE;
    struct dp_neighbor *all = calloc((size_t)g->workers + 1, sizeof(*all));
    int count = all ? dp_replicas_nccl_peers(rank, g->workers, out) : DP_ENOMEM;

    for (int32_t t = 0; t < 2 * g->period && count >= 0; t++) {
        const bool sends = t % 2;
        const int32_t len =
            sends ? dp_neighbors_to(g, t / 2, rank, all) : dp_neighbors_from(g, t / 2, rank, all);
        for (int32_t i = 0; i < len; i++) {
            int at = 0;
            while (at < count && out[at].rank != all[i].worker)
                at++;
            if (at == count)
                out[count++] = (struct dp_nccl_peer){.rank = all[i].worker};
            out[at].sends |= sends ? mixes : 0;
            out[at].receives |= sends ? 0 : mixes;
        }
    }
    free(all);
    return count == DP_ENOMEM ? dp_fail(count, "no memory for neighbors") : count;
}
