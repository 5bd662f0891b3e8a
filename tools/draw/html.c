/* SPDX-License-Identifier: Apache-2.0
 *
 * html.c - a step as a page (page.html) that needs nothing else: its data stand in it as JSON.
 *
 *      spans: [[rank, start_ns, ns, "F3&b1", waited_ns, waited_for, [[look, stage, mb, stream], ...]]
 *      sets:  [[[ns, 1 or -1], ...] by rank] a set of activations begins or ends to live
 */
#include "draw/parts.h"
#include "draw/svg.h"

#include "text.h"

#include <dualpipe/dualpipe.h>

#include <inttypes.h>
#include <string.h>

/* page.html as strings, a line each, behind them NULL; make writes page.c. */
extern const char *const draw_page[];

static const char mark[] = "@STEP@";

static void put_op(FILE *to, const struct dp_schedule *s, int rank, struct dp_op op, bool more)
{
    const struct dp_slot *slot = dp_schedule_slot(s, rank, (int)op.slot);
    struct draw_look look;

    if (draw_look_of(op, &look))
        fprintf(to, "%s[\"%s\",%d,%d,%d]", more ? "," : "", svg_class(look), slot->stage,
                (int)op.mb, slot->stream);
}

static void put_spans(FILE *to, const struct dp_timeline *t, const struct dp_schedule *s)
{
    bool more = false;

    for (size_t i = 0; i < t->count; i++) {
        const struct dp_span *span = &t->spans[i];
        char label[DRAW_LABEL_LEN];
        struct draw_look look;
        if (!draw_look_of(span->op, &look))
            continue;
        draw_label(span, label);
        fprintf(to, "%s\n[%d,%" PRId64 ",%" PRId64 ",\"%s\",%" PRId64 ",%d,[", more ? "," : "",
                span->rank, span->start_ns, span->end_ns - span->start_ns, label, span->waited_ns,
                span->waited_for);
        put_op(to, s, span->rank, span->op, false);
        if (span->pair.kind)
            put_op(to, s, span->rank, span->pair, true);
        fputs("]]", to);
        more = true;
    }
}

/* From F, or its RECOMPUTE, to B or W. */
static void put_set(FILE *to, const struct dp_schedule *s, const struct dp_span *span,
                    struct dp_op op, bool *more)
{
    if ((op.kind == DP_OP_F && !op.recomputed) || op.kind == DP_OP_RECOMPUTE) {
        fprintf(to, "%s[%" PRId64 ",1]", *more ? "," : "", span->start_ns);
        *more = true;
    }
    if (op.kind == DP_OP_B || op.kind == DP_OP_W || (op.kind == DP_OP_F && s->forward_only)) {
        fprintf(to, "%s[%" PRId64 ",-1]", *more ? "," : "", span->end_ns);
        *more = true;
    }
}

static void put_sets(FILE *to, const struct dp_timeline *t, const struct dp_schedule *s)
{
    size_t i = 0;

    for (int rank = 0; rank < t->ranks; rank++) {
        bool more = false;
        fputs(rank ? ",\n[" : "\n[", to);
        for (; i < t->count && t->spans[i].rank == rank; i++) {
            put_set(to, s, &t->spans[i], t->spans[i].op, &more);
            put_set(to, s, &t->spans[i], t->spans[i].pair, &more);
        }
        putc(']', to);
    }
}

static void put_step(FILE *to, const struct dp_timeline *t, const struct dp_schedule *s,
                     const struct draw_options *o)
{
    char title[96], sum[96];

    draw_title(s, title, sizeof(title));
    draw_sum(t, sum, sizeof(sum));
    fputs("{\"title\":", to);
    text_put_json(to, o->title ? o->title : title);
    fputs(",\"sum\":", to);
    text_put_json(to, sum);
    fprintf(to, ",\"ranks\":%d,\"makespan_ns\":%" PRId64 ",\"spans\":[", t->ranks, t->makespan_ns);
    put_spans(to, t, s);
    fputs("],\"sets\":[", to);
    put_sets(to, t, s);
    fputs("]}", to);
}

int draw_html(FILE *to, const struct dp_timeline *t, const struct dp_schedule *s,
              const struct draw_options *options)
{
    if (draw_is_empty(t))
        return DP_EINVAL;
    for (const char *const *line = draw_page; *line; line++) {
        const char *at = strstr(*line, mark);
        if (!at) {
            fputs(*line, to);
            continue;
        }
        fwrite(*line, 1, (size_t)(at - *line), to);
        put_step(to, t, s, options);
        fputs(at + strlen(mark), to);
    }
    return draw_finish(to, 0);
}
