/* SPDX-License-Identifier: Apache-2.0
 *
 * svg_links.c - what joins bars of an SVG: the critical path, and arrows for messages.
 */
#include "draw/svg.h"

#include <stdlib.h>
#include <string.h>

/* ---- the critical path ---------------------------------------------------------------------- */

/* A line from the end of one stay on a rank to the start of the next. */
static void put_hop(const struct svg *v, const struct dp_span *from, const struct dp_span *to)
{
    bool down = from->rank < to->rank;

    putc('M', v->to);
    svg_px(v, svg_x(v, from->end_ns));
    fprintf(v->to, " %dL", svg_y(v, from->rank) + (down ? v->bar : 0));
    svg_px(v, svg_x(v, to->start_ns));
    fprintf(v->to, " %d", svg_y(v, to->rank) + (down ? 0 : v->bar));
}

/* A frame around each stay on a rank, and lines between them. */
void svg_put_critical(const struct svg *v)
{
    const struct dp_span *span = v->o->critical, *end = span + v->o->critical_count;

    fputs("<path class=\"c\" d=\"", v->to);
    while (span < end) {
        const struct dp_span *last = span;
        while (last + 1 < end && last[1].rank == span->rank && last[1].start_ns == last->end_ns)
            last++;
        svg_box(v, svg_x(v, span->start_ns), svg_y(v, span->rank),
                (double)(last->end_ns - span->start_ns) * v->scale, v->bar);
        span = last + 1;
        if (span < end)
            put_hop(v, last, span);
    }
    fputs("\"/>\n", v->to);
}

/* ---- arrows --------------------------------------------------------------------------------- */

/* Where (forward or backward, rank, slot, mb) was done: an index into the spans, -1 nowhere. */
struct places {
    const struct dp_schedule *s;
    int32_t *at;
};

static size_t place(const struct places *p, bool backward, int rank, int slot, int mb)
{
    size_t row = p->s->first_slot[rank] + (size_t)slot;

    return (row * (size_t)p->s->mb_per_stream + (size_t)mb) * 2 + backward;
}

static bool is_backward(struct dp_op op)
{
    return op.kind == DP_OP_B || op.kind == DP_OP_I;
}

static void remember(struct places *p, const struct dp_span *span, struct dp_op op, size_t i)
{
    if (op.kind == DP_OP_F || is_backward(op))
        p->at[place(p, is_backward(op), span->rank, (int)op.slot, (int)op.mb)] = (int32_t)i;
}

static int find_places(const struct svg *v, struct places *p)
{
    size_t count = v->s->first_slot[v->s->ranks] * (size_t)v->s->mb_per_stream * 2;

    *p = (struct places){v->s, malloc(count * sizeof(*p->at))};
    if (!p->at)
        return DP_ENOMEM;
    memset(p->at, -1, count * sizeof(*p->at));
    for (size_t i = 0; i < v->t->count; i++) {
        remember(p, &v->t->spans[i], v->t->spans[i].op, i);
        remember(p, &v->t->spans[i], v->t->spans[i].pair, i);
    }
    return 0;
}

/* From the op of a slot that made what `op` consumes, if another rank made it. */
static void put_one(const struct svg *v, const struct places *p, const struct dp_span *span,
                    struct dp_op op, int peer, int peer_slot)
{
    const bool back = is_backward(op);

    if (peer < 0 || peer == span->rank)
        return;
    int32_t from = p->at[place(p, back, peer, peer_slot, (int)op.mb)];
    if (from < 0)
        return;
    fputs("<path class=\"a\" marker-end=\"url(#h)\" d=\"M", v->to);
    svg_px(v, svg_x(v, v->t->spans[from].end_ns));
    fprintf(v->to, " %dL", svg_y(v, peer) + (peer < span->rank ? v->bar : 0));
    svg_px(v, svg_x(v, span->start_ns) + 1);
    fprintf(v->to, " %d\"/>\n", svg_y(v, span->rank) + (peer < span->rank ? 0 : v->bar));
}

static void put_arrow(const struct svg *v, const struct places *p, const struct dp_span *span,
                      struct dp_op op)
{
    const bool back = is_backward(op);

    if (op.kind != DP_OP_F && !back)
        return;
    const struct dp_slot *slot = dp_schedule_slot(v->s, span->rank, (int)op.slot);
    put_one(v, p, span, op, back ? slot->next : slot->prev,
            back ? slot->next_slot : slot->prev_slot);
    for (int k = 0; k < v->s->skip_count; k++) {
        const struct dp_skip_ends *ends = dp_skip_ends_of(v->s, slot->stream, k);
        if ((back ? v->s->skips[k].from : v->s->skips[k].to) == slot->stage)
            put_one(v, p, span, op, back ? ends->to : ends->from,
                    back ? ends->to_slot : ends->from_slot);
    }
}

int svg_put_arrows(const struct svg *v)
{
    struct places p;
    int err = find_places(v, &p);

    if (err)
        return err;
    fputs("<marker id=\"h\" viewBox=\"0 0 6 6\" refX=\"5\" refY=\"3\" markerWidth=\"5\" "
          "markerHeight=\"5\" orient=\"auto\"><path class=\"h\" d=\"M0 0L6 3L0 6z\"/></marker>\n",
          v->to);
    for (size_t i = 0; i < v->t->count; i++) {
        put_arrow(v, &p, &v->t->spans[i], v->t->spans[i].op);
        put_arrow(v, &p, &v->t->spans[i], v->t->spans[i].pair);
    }
    free(p.at);
    return 0;
}
