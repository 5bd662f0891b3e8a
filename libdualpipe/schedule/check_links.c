/* SPDX-License-Identifier: Apache-2.0
 *
 * check_links.c - all ranks together, under the strictest transport there is: a batch ends only
 * when the peers have launched every matching message, a link knows no tags, only order, and a
 * REDUCE blocks until its mirror's. What runs to its end here runs on any transport, also where
 * sums are only awaited at their REDUCE_WAIT.
 */
#include "base/fail.h"
#include "schedule/build.h"
#include "schedule/check.h"
#include "schedule/links.h"

#include <stdio.h>
#include <stdlib.h>

/* Launched by one end of a link and not yet by the other. One end waits at a time. */
struct wire {
    struct dp_messages messages;
    bool sends; /* the sender waits; else the receiver */
};

struct runner {
    size_t next;      /* op to go on with */
    size_t batch;     /* first message that is posted and not launched */
    uint32_t posted;  /* how many there are */
    uint32_t missing; /* messages of the launched batch that the peers have not launched */
    bool at_reduce;   /* waits for its mirror at op `next` */
};

struct meeting {
    struct dp_checker *c;
    const struct dp_schedule *s;
    struct dp_links links;
    struct wire *wires;      /* [links.count] */
    struct runner *runners;  /* [ranks] */
    int32_t *ready, readies; /* [ranks] stack of ranks that can go on */
};

static const struct dp_port *port_of(const struct meeting *m, int rank, struct dp_op op)
{
    return dp_links_port(&m->links, m->s, rank, op);
}

static void wake(struct meeting *m, int rank)
{
    m->ready[m->readies++] = rank;
}

/* ---- messages ------------------------------------------------------------------------------ */

static int report_mismatch(struct meeting *m, int rank, size_t index, int peer, uint32_t other)
{
    char text[DP_OP_TEXT_LEN];

    return dp_check_found(m->c, DP_RULE_FIFO, rank, index,
                          "on its link with rank %d it is the turn of %s (op %u there)", peer,
                          dp_op_text(dp_schedule_ops(m->s, peer)[other], text), other);
}

/* Launch one message: meet the peer's, or wait for it. */
static int launch(struct meeting *m, int rank, size_t index, struct dp_op op,
                  const struct dp_port *port)
{
    struct wire *wire = &m->wires[port->link];
    bool sends = dp_op_is_send((enum dp_op_kind)op.kind);
    uint32_t tag = port->tag + op.mb;

    if (!wire->messages.count || wire->sends == sends) {
        wire->sends = sends;
        m->runners[rank].missing++;
        if (!dp_messages_push(&wire->messages, (struct dp_message){tag, (uint32_t)index, 0}))
            return dp_fail(DP_ENOMEM, "no memory for messages under way");
        return 0;
    }
    struct dp_message met = dp_messages_take(&wire->messages, 0);
    if (met.tag != tag)
        return report_mismatch(m, rank, index, port->peer, met.index);
    if (!--m->runners[port->peer].missing)
        wake(m, port->peer);
    return 0;
}

static int launch_batch(struct meeting *m, int rank)
{
    const struct dp_op *ops = dp_schedule_ops(m->s, rank);
    struct runner *runner = &m->runners[rank];
    int err = 0;

    for (; runner->posted && !err; runner->batch++) {
        struct dp_op op = ops[runner->batch];
        if (!dp_op_is_message((enum dp_op_kind)op.kind))
            continue;
        err = launch(m, rank, runner->batch, op, port_of(m, rank, op));
        runner->posted--;
    }
    return err;
}

/* Post the messages up to the next op that may have to wait: a COMMIT, a REDUCE, the end. */
static void post(struct runner *runner, const struct dp_op *ops, size_t count)
{
    size_t next = runner->next;

    for (; next < count; next++) {
        const enum dp_op_kind kind = (enum dp_op_kind)ops[next].kind;
        if (dp_op_is_message(kind)) {
            if (!runner->posted++)
                runner->batch = next;
        } else if (kind == DP_OP_COMMIT || kind == DP_OP_REDUCE) {
            break;
        }
    }
    runner->next = next;
}

/* ---- reduces ------------------------------------------------------------------------------- */

/* Is the mirror waiting at a reduce with this rank? Then *theirs is its op. */
static bool mirror_is_there(const struct meeting *m, int rank, int mirror, struct dp_op *theirs)
{
    const struct runner *runner = &m->runners[mirror];

    if (!runner->at_reduce)
        return false;
    *theirs = dp_schedule_ops(m->s, mirror)[runner->next];
    return dp_schedule_slot(m->s, mirror, (int)theirs->slot)->mirror == rank;
}

/* Both partners must come to the same stage. *met: the mirror was there, else this rank waits. */
static int meet_mirror(struct meeting *m, int rank, size_t index, struct dp_op op, bool *met)
{
    const struct dp_slot *slot = dp_schedule_slot(m->s, rank, (int)op.slot);
    struct runner *mirror = &m->runners[slot->mirror];
    struct dp_op theirs;

    *met = mirror_is_there(m, rank, slot->mirror, &theirs);
    if (!*met) {
        m->runners[rank].at_reduce = true;
        return 0;
    }
    if ((int)theirs.slot != slot->mirror_slot)
        return report_mismatch(m, rank, index, slot->mirror, (uint32_t)mirror->next);
    mirror->at_reduce = false;
    mirror->next++;
    wake(m, slot->mirror);
    return 0;
}

/* ---- ranks --------------------------------------------------------------------------------- */

/* Let a rank go on until it must wait. */
static int run(struct meeting *m, int rank)
{
    const struct dp_op *ops = dp_schedule_ops(m->s, rank);
    size_t count = dp_schedule_count(m->s, rank);
    struct runner *runner = &m->runners[rank];
    int err = 0;

    for (post(runner, ops, count); runner->next < count; post(runner, ops, count)) {
        struct dp_op op = ops[runner->next];
        bool met = true;

        if (op.kind == DP_OP_COMMIT)
            err = launch_batch(m, rank);
        else if (dp_slot_has_remote_mirror(dp_schedule_slot(m->s, rank, (int)op.slot), rank))
            err = meet_mirror(m, rank, runner->next, op, &met);
        if (err || !met)
            break;
        runner->next++;
        if (runner->missing)
            break;
    }
    /* Ranks take turns in short stretches: by its next one, the rest of the list is at hand. */
    __builtin_prefetch(&ops[runner->next + 16]);
    return err;
}

/* ---- when all wait ------------------------------------------------------------------------- */

/* Has this message of a launched batch not met its peer's? */
static bool is_waiting(const struct meeting *m, int rank, size_t index, struct dp_op op)
{
    const struct wire *wire = &m->wires[port_of(m, rank, op)->link];

    if (wire->sends != dp_op_is_send((enum dp_op_kind)op.kind))
        return false;
    for (uint32_t k = 0; k < wire->messages.count; k++)
        if (dp_messages_at(&wire->messages, k)->index == index)
            return true;
    return false;
}

/* The op that a stuck rank waits at: a reduce, or a message of its batch. */
static size_t waits_at(const struct meeting *m, int rank)
{
    const struct dp_op *ops = dp_schedule_ops(m->s, rank);
    const struct runner *runner = &m->runners[rank];
    size_t i = runner->next;

    if (runner->at_reduce)
        return i;
    for (i--; !dp_op_is_message((enum dp_op_kind)ops[i].kind) || !is_waiting(m, rank, i, ops[i]);)
        i--;
    return i;
}

static int waits_for(const struct meeting *m, int rank, size_t index)
{
    struct dp_op op = dp_schedule_ops(m->s, rank)[index];
    return dp_op_peer(m->s, dp_schedule_slot(m->s, rank, (int)op.slot), op);
}

/* From a stuck rank, follow the ranks that each waits for: after as many steps as there are ranks
 * the walk is in the circle. No rank waits for a rank that has ended, because every message is
 * there at both ends (dp_check_rank_once). */
static int find_circle(const struct meeting *m, int rank)
{
    for (int i = 0; i < m->s->ranks; i++)
        rank = waits_for(m, rank, waits_at(m, rank));
    return rank;
}

/* "rank 0, op 3 (sF0.1) -> rank 1, op 5 (rF0.0) -> rank 0"; as much of it as there is room for. */
static int report_circle(struct meeting *m, int start)
{
    int first = find_circle(m, start), rank = first, left_out = 0;
    char text[900], op_text[DP_OP_TEXT_LEN], more[40] = "";
    size_t len = 0, at = waits_at(m, first);

    do {
        size_t index = waits_at(m, rank);
        struct dp_op op = dp_schedule_ops(m->s, rank)[index];
        if (len + 80 < sizeof(text))
            len += (size_t)snprintf(text + len, sizeof(text) - len, "rank %d, op %zu (%s) -> ",
                                    rank, index, dp_op_text(op, op_text));
        else
            left_out++;
        rank = waits_for(m, rank, index);
    } while (rank != first);
    if (left_out)
        snprintf(more, sizeof(more), "%d ranks more -> ", left_out);
    return dp_check_found(m->c, DP_RULE_DEADLOCK, first, at, "waits in a circle: %s%srank %d", text,
                          more, first);
}

static int run_all(struct meeting *m)
{
    int err = 0;

    for (int rank = m->s->ranks - 1; rank >= 0; rank--)
        wake(m, rank);
    while (m->readies && !err)
        err = run(m, m->ready[--m->readies]);
    for (int rank = 0; rank < m->s->ranks && !err; rank++)
        if (m->runners[rank].missing || m->runners[rank].at_reduce)
            err = report_circle(m, rank);
    return err;
}

static void meeting_fini(struct meeting *m)
{
    for (int i = 0; m->wires && i < m->links.count; i++)
        free(m->wires[i].messages.ring);
    free(m->wires);
    free(m->runners);
    free(m->ready);
    dp_links_fini(&m->links);
}

int dp_check_links(struct dp_checker *c)
{
    struct meeting m = {.c = c, .s = c->s};
    int err = dp_links_init(&m.links, c->s);

    if (err)
        return err;
    m.wires = calloc((size_t)m.links.count + 1, sizeof(*m.wires));
    m.runners = calloc((size_t)c->s->ranks, sizeof(*m.runners));
    m.ready = calloc((size_t)c->s->ranks, sizeof(*m.ready));
    if (!m.wires || !m.runners || !m.ready)
        err = dp_fail(DP_ENOMEM, "no memory to check %d ranks", c->s->ranks);
    else
        err = run_all(&m);
    meeting_fini(&m);
    return err;
}
