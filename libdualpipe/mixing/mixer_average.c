/* SPDX-License-Identifier: Apache-2.0
 *
 * mixer_average.c - one model of all workers' copies, and back.
 */
#include "base/fail.h"
#include "base/tensor.h"
#include "device/device_ops.h"
#include "mixing/combine.h"
#include "mixing/mixer_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t bytes_of(const struct dp_mixer_piece *p)
{
    return p->elements * p->type.bits / 8;
}

static struct dp_mixer_piece piece_of(const DLTensor *t)
{
    return (struct dp_mixer_piece){t->dtype, (size_t)dp_tensor_numel(t), dp_tensor_address(t)};
}

/* The values that an average changes: those of buckets once there are any; before, all that have a
 * gradient. false: there is no number i. */
static bool value_at(const struct dp_mixer *m, int32_t i, struct dp_mixer_piece *out)
{
    if (m->on_device)
        return dp_mixer_device_piece(m->on_device, i, out);
    if (i >= (m->started ? m->cut.item_count : m->config.count))
        return false;
    *out = piece_of(m->parameters[m->started ? m->cut.order[i] : i].value);
    if (!m->started && m->leader[i] != i)
        out->elements = 0;
    return true;
}

/* ---- the sum ----------------------------------------------------------------------------------- */

/* Push-sum values have weights, whose sum is the number of workers: those that the values were sent
 * with, as long as what came is not mixed. */
static double weight_of(const struct dp_mixer *m, int32_t bucket)
{
    const struct dp_mixer_bucket *b = &m->buckets[bucket];

    if (!m->config.graph->push_sum)
        return 1;
    return b->pending ? b->exchange.sent_mass : b->exchange.mass;
}

/* Divided first, as the seed does. Those of a device are summed together. */
static int average_piece(struct dp_mixer *m, const struct dp_mixer_piece *p, double weight)
{
    const double share = weight / dp_comm_size(m->config.comm);
    struct dp_request request;

    if (m->on_device)
        return dp_device_mix(m->config.stream, p->type, p->at, share, p->at, 0, p->elements);
    dp_combine(p->type, p->elements, p->at, p->at, share, NULL, 0);
    int err = dp_comm_iallreduce(m->config.comm, p->at, p->at, p->elements, p->type, DP_REDUCE_SUM,
                                 &request);
    return err ? err : dp_comm_wait(m->config.comm, &request, -1);
}

/* Blocks as a whole where values are views of them. */
static int average_values(struct dp_mixer *m)
{
    struct dp_mixer_piece p;
    const bool in_views = m->started && !m->config.separate && !m->on_device;
    int err = m->on_device ? dp_mixer_device_hold(m->on_device) : 0;

    for (int32_t i = 0; in_views && i < m->bucket_count && !err; i++) {
        const struct dp_mixer_bucket *b = &m->buckets[i];
        err = average_piece(m, &(struct dp_mixer_piece){b->type, b->elements, b->view}, weight_of(m, i));
    }
    for (int32_t i = 0; !in_views && !err && value_at(m, i, &p); i++)
        err = average_piece(m, &p,
                            m->started && !m->on_device
                                ? weight_of(m, m->cut.bucket_of[m->cut.order[i]])
                                : 1);
    return err || !m->on_device ? err : dp_mixer_device_sum(m->on_device);
}

static int average_buffers(struct dp_mixer *m)
{
    int err = 0;

    for (int32_t i = 0; m->config.average_buffers && i < m->config.buffer_count && !err; i++) {
        struct dp_mixer_piece p = piece_of(m->config.buffers[i]);
        if (dp_tensor_is_real(m->config.buffers[i]))
            err = average_piece(m, &p, 1);
    }
    return err;
}

/* ---- the backup -------------------------------------------------------------------------------- */

enum direction { BACK_UP, RESTORE };

/* What can be given back: values, and where a worker may die, buffers, too. */
enum kind { VALUES, BUFFERS };

static char **backup_of(struct dp_mixer *m, enum kind kind)
{
    return kind == VALUES ? &m->backup : &m->death->buffers;
}

static bool piece_at(const struct dp_mixer *m, enum kind kind, int32_t i, struct dp_mixer_piece *out)
{
    if (kind == VALUES)
        return value_at(m, i, out);
    if (i >= m->config.buffer_count)
        return false;
    *out = piece_of(m->config.buffers[i]);
    return true;
}

static int copy(const struct dp_mixer *m, char *to, const char *from, size_t bytes)
{
    if (m->on_device)
        return dp_device_copy(m->config.stream, to, from, bytes);
    memcpy(to, from, bytes);
    return 0;
}

static int copy_pieces(struct dp_mixer *m, enum kind kind, enum direction direction)
{
    char *at = *backup_of(m, kind);
    struct dp_mixer_piece p;
    int err = 0;

    for (int32_t i = 0; at && !err && piece_at(m, kind, i, &p); i++) {
        err = copy(m, direction == BACK_UP ? at : p.at, direction == BACK_UP ? p.at : at,
                   bytes_of(&p));
        at += bytes_of(&p);
    }
    return err;
}

/* Room for all, also where buckets are without some. */
static size_t room_for(const struct dp_mixer *m, enum kind kind)
{
    const int32_t count = kind == VALUES ? m->config.count : m->config.buffer_count;
    struct dp_mixer_piece p;
    size_t bytes = 0;

    for (int32_t i = 0; m->on_device && value_at(m, i, &p); i++)
        bytes += bytes_of(&p);
    for (int32_t i = 0; !m->on_device && i < count; i++) {
        p = piece_of(kind == VALUES ? m->parameters[i].value : m->config.buffers[i]);
        bytes += bytes_of(&p);
    }
    return bytes;
}

static int back_up(struct dp_mixer *m, enum kind kind)
{
    const size_t bytes = *backup_of(m, kind) ? 0 : room_for(m, kind) + 1;
    void *memory = *backup_of(m, kind);
    int err = 0;

    if (bytes && m->on_device)
        err = dp_device_alloc(m->config.device, DP_MEMORY_DEVICE, bytes, &memory);
    else if (bytes && !(memory = malloc(bytes)))
        err = dp_fail(DP_ENOMEM, "no memory for a backup of %zu bytes", bytes);
    *backup_of(m, kind) = memory;
    return err ? err : copy_pieces(m, kind, BACK_UP);
}

static double distance_to_backup(struct dp_mixer *m)
{
    const char *at = m->backup;
    struct dp_mixer_piece p;
    double squares = 0;

    for (int32_t i = 0; value_at(m, i, &p); i++) {
        squares += dp_squared_distance(p.type, p.elements, p.at, at);
        at += bytes_of(&p);
    }
    return sqrt(squares);
}

/* ---- the whole --------------------------------------------------------------------------------- */

static int wait_for_exchanges(struct dp_mixer *m)
{
    int err = m->on_device ? dp_mixer_device_wait(m->on_device) : dp_mixer_settle(m);

    for (int32_t i = 0; i < m->bucket_count && !m->on_device && !err; i++)
        err = dp_mixer_wait(&m->buckets[i]);
    return err;
}

/* Where neighbors may be late, some workers have added the last difference and others not yet: all do,
 * so that the mean is that of all. */
static void add_late(struct dp_mixer *m)
{
    for (int32_t i = 0; i < m->bucket_count && m->config.staleness; i++) {
        const struct dp_mixer_bucket *b = &m->buckets[i];
        for (int32_t k = 0; k < b->count && b->pending; k++) {
            const struct dp_mixer_piece p = piece_of(b->parameters[k].value);
            dp_combine(p.type, p.elements, p.at, p.at, 1, b->beside[b->exchange.now][k], b->factor);
        }
    }
}

static int prepare(struct dp_mixer *m, const struct dp_mixer_average *what)
{
    int err = what->revert || what->distance || m->death ? back_up(m, VALUES) : 0;

    if (!err && m->death && m->config.average_buffers)
        err = back_up(m, BUFFERS);
    if (!err && m->death) {
        m->death->average = AVERAGE_BEGUN;
        m->death->reverts = what->revert;
    }
    return err;
}

/* What has come stays to be mixed, or is dropped. */
void dp_mixer_end_average(struct dp_mixer *m, bool revert)
{
    for (int32_t i = 0; i < m->bucket_count && !revert; i++) {
        if (m->buckets[i].pending)
            dp_mixer_note_used(&m->buckets[i]);
    }
    if (m->on_device && !revert)
        dp_mixer_device_drop(m->on_device);
    m->has_backup = revert;
    m->averaged = true;
    if (m->death) {
        m->death->average = AVERAGE_NONE;
        m->death->averages++;
    }
}

int dp_mixer_undo_average(struct dp_mixer *m)
{
    int err = m->on_device ? dp_mixer_device_hold(m->on_device) : 0;

    if (!err)
        err = copy_pieces(m, VALUES, RESTORE);
    if (!err && m->death && m->death->average == AVERAGE_BEGUN)
        err = copy_pieces(m, BUFFERS, RESTORE);
    dp_mixer_spread_tied(m);
    m->has_backup = false;
    return err;
}

/* Where a worker may die, all have their averages before one goes on. */
static int average(struct dp_mixer *m, struct dp_mixer_average *what)
{
    int err = m->on_device && what->distance && !m->config.compat
                  ? dp_fail(DP_EUNSUPPORTED, "the distance to an average on a device, expected one "
                                             "without")
                  : wait_for_exchanges(m);

    if (!err)
        err = prepare(m, what);
    if (err)
        return err;
    add_late(m);
    err = average_values(m);
    if (!err)
        err = average_buffers(m);
    if (!err && m->death)
        err = dp_comm_barrier(m->config.comm);
    if (err)
        return err;
    if (what->distance && !m->on_device)
        what->l2 = distance_to_backup(m);
    dp_mixer_spread_tied(m);
    return 0;
}

int dp_mixer_average(struct dp_mixer *m, struct dp_mixer_average *what)
{
    struct dp_mixer_average none = {0};

    int err = average(m, what ? what : &none);
    if (err)
        return dp_mixer_leave(m, err);
    dp_mixer_end_average(m, what && what->revert);
    return 0;
}

int dp_mixer_revert(struct dp_mixer *m)
{
    if (!m->has_backup && !(m->config.compat && m->backup))
        return dp_mixer_leave(m, dp_fail(DP_ESTATE, "no average to revert, expected one that keeps "
                                         "what there was"));
    m->averaged = false;
    return dp_mixer_leave(m, dp_mixer_undo_average(m));
}
