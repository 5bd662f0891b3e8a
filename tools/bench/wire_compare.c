/* SPDX-License-Identifier: Apache-2.0
 *
 * wire_compare.c - which methods are measured, in which order, and how ours compare with others.
 *
 * How near two cores are to each other may change within seconds, and with it all that is
 * measured here. So others take short turns with ours, and each of theirs is compared with those of
 * ours right before and right behind it; a round of such turns is one sample:
 *
 *      ours  UCX posix  ours  OpenMPI vader  ours  limit  ours
 *        \______|______/ \________|________/ \_____|____/
 */
#include "bench/wire.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SAMPLE_MS = 150, OURS_MAX = 2, OTHERS_MAX = PEERS_MAX + 1, WHAT_LEN = 64 };
_Static_assert(OURS_MAX + OTHERS_MAX + OURS_MAX * OTHERS_MAX <= BENCH_FIGURES_MAX + 1,
               "the limit, which comes last, is beside one of ours only");

static const char *const units[] = {"us", "GB/s", "%"};

/* One of our methods. */
struct runner {
    struct wire_job *job;
    int which, times; /* times that fill a sample; 0: not known yet */
    int sample_ms;
};

/* The turn of a peer, or of the limit. */
struct other {
    const struct peer_run *peer; /* NULL: the limit */
    struct runner limit;
};

struct match {
    struct runner ours[OURS_MAX]; /* with memory of its own, then with shared memory */
    struct other others[OTHERS_MAX];
    int our_count, other_count;
};

struct plan {
    struct wire_job *job;
    struct bench_case cases[WIRE_METHODS_MAX];
    struct match matches[WIRE_METHODS_MAX];
    char what[WIRE_METHODS_MAX][BENCH_FIGURES_MAX][WHAT_LEN];
    int count;
};

/* ---- turns ----------------------------------------------------------------------------------- */

static int run_times(void *user, int times, int64_t *ns)
{
    const struct runner *r = user;
    int64_t cpu_ns;

    return wire_order(r->job, r->which, times, ns, &cpu_ns);
}

static double figure_of(const struct wire_method *m, int times, int64_t ns, int64_t cpu_ns)
{
    switch (m->figure) {
    case LATENCY:
        return (double)ns / 2 / times / 1e3;
    case STREAM:
        return (double)m->size * times / (double)ns;
    case SHARE:
        break;
    }
    return 100 * (double)cpu_ns / (double)ns;
}

static int take_turn(struct runner *r, double *figure)
{
    int err = r->times ? 0 : bench_find_times(run_times, r, r->sample_ms, &r->times);
    int64_t ns = 1, cpu_ns = 0;

    if (!err)
        err = wire_order(r->job, r->which, r->times, &ns, &cpu_ns);
    *figure = figure_of(&wire_methods[r->which], r->times ? r->times : 1, ns, cpu_ns);
    return err;
}

/* A method without peers. */
static int sample_one(void *user, double *figures)
{
    return take_turn(user, figures);
}

/* ---- a round --------------------------------------------------------------------------------- */

/* Which figure of a match is what: first ours, then the others', then the ratios. What the limit is
 * a limit of is memory of its own. */
static int other_at(const struct match *m, int other)
{
    return m->our_count + other;
}

static int ratio_at(const struct match *m, int ours, int other)
{
    return m->our_count + m->other_count + ours * m->other_count + other;
}

static bool has_ratio(const struct match *m, int ours, int other)
{
    return ours == 0 || m->others[other].peer;
}

static int take_our_turns(struct match *m, double figures[OURS_MAX])
{
    int err = 0;

    for (int k = 0; k < m->our_count && !err; k++)
        err = take_turn(&m->ours[k], &figures[k]);
    return err;
}

static int take_other_turn(struct match *m, int other, double *figure)
{
    struct other *o = &m->others[other];

    return o->peer ? m->ours[0].job->peer_ops->turn(o->peer, figure) : take_turn(&o->limit, figure);
}

static int play(struct match *m, double *figures)
{
    double before[OURS_MAX], behind[OURS_MAX], product[OURS_MAX] = {1, 1};
    int err = take_our_turns(m, before);

    for (int i = 0; i < m->other_count && !err; i++) {
        double *theirs = &figures[other_at(m, i)];
        err = take_other_turn(m, i, theirs);
        if (!err)
            err = take_our_turns(m, behind);
        for (int k = 0; k < m->our_count && !err; k++) {
            const double between = sqrt(before[k] * behind[k]);
            if (has_ratio(m, k, i))
                figures[ratio_at(m, k, i)] = between / *theirs;
            product[k] *= between;
            before[k] = behind[k];
        }
    }
    for (int k = 0; k < m->our_count; k++)
        figures[k] = m->other_count ? pow(product[k], 1.0 / m->other_count) : before[k];
    return err;
}

/* What the peers use is no load of others. */
static int sample_match(void *user, double *figures)
{
    struct match *m = user;
    const struct wire_peer_ops *ops = m->ours[0].job->peer_ops;
    const int64_t before_ns = ops->cpu_ns();
    int err = play(m, figures);

    bench_add_own(ops->cpu_ns() - before_ns);
    return err;
}

/* ---- what is measured ------------------------------------------------------------------------ */

static const struct wire_goal *goal_of(const struct plan *p, const struct wire_method *m)
{
    return strcmp(p->job->transport, "tcp") ? &m->shm : &m->tcp;
}

static struct bench_figure *add_figure(struct plan *p, struct bench_case *c, const char *what,
                                       const char *joint, const char *other)
{
    const int at = c->figure_count++;
    char *text = p->what[c - p->cases][at];

    snprintf(text, WHAT_LEN, "%s%s%s", what, joint, other);
    c->figures[at] = (struct bench_figure){.what = text};
    return &c->figures[at];
}

static void add_own(struct plan *p, struct bench_case *c, const struct wire_method *m)
{
    struct bench_figure *f = add_figure(p, c, m->what, "", "");

    f->unit = units[m->figure];
    f->target = goal_of(p, m)->figure;
    f->target_is_floor = m->figure == STREAM;
}

static bool is_limit(const struct wire_method *m)
{
    return m->run == wire_limit_copy || m->run == wire_limit_line;
}

static bool is_shown(const struct wire_job *j, const struct wire_method *m)
{
    if (m->run == wire_limit_copy && !j->may_copy_straight)
        return false;
    if (is_limit(m) || wire_method_shares(m))
        return !strcmp(j->transport, "shm");
    return !j->peer_ops || wire_method_has_peers(m);
}

static void add_single(struct plan *p, int which)
{
    struct bench_case *c = &p->cases[p->count];
    struct runner *r = &p->matches[p->count++].ours[0];

    *r = (struct runner){.job = p->job, .which = which, .sample_ms = SAMPLE_MS};
    *c = (struct bench_case){.sample = sample_one, .user = r};
    add_own(p, c, &wire_methods[which]);
}

static struct runner short_turn(struct plan *p, int which)
{
    return (struct runner){.job = p->job, .which = which, .sample_ms = WIRE_TURN_MS};
}

/* Those of the same size, and its peers. */
static void find_players(struct plan *p, struct match *m, int which)
{
    const struct wire_method *method = &wire_methods[which];
    const struct wire_peers *peers = &p->job->peers[which];

    m->ours[m->our_count++] = short_turn(p, which);
    for (int i = 0; i < peers->count; i++)
        m->others[m->other_count++].peer = &peers->runs[i];
    for (int i = 0; i < wire_method_count; i++) {
        const struct wire_method *like = &wire_methods[i];
        if (like->size != method->size || !is_shown(p->job, like))
            continue;
        if (wire_method_shares(like))
            m->ours[m->our_count++] = short_turn(p, i);
        else if (is_limit(like))
            m->others[m->other_count++].limit = short_turn(p, i);
    }
}

static void add_other(struct plan *p, struct bench_case *c, const struct wire_method *method,
                      const struct other *o)
{
    struct bench_figure *f =
        o->peer ? add_figure(p, c, method->what, ", ", o->peer->name)
                : add_figure(p, c, wire_methods[o->limit.which].what, "", "");

    f->unit = units[method->figure];
    f->target_is_floor = method->figure == STREAM;
}

/* Its target is the same beside every peer, and so that beside the best one. */
static void add_ratio(struct plan *p, struct bench_case *c, const struct wire_method *ours,
                      const struct other *o)
{
    struct bench_figure *f = add_figure(p, c, ours->what, " over ",
                                        o->peer ? o->peer->name : "the limit");

    f->unit = "x";
    f->target = o->peer ? goal_of(p, ours)->ratio : 0;
    f->target_is_floor = ours->figure == STREAM;
}

static void add_match(struct plan *p, int which)
{
    struct bench_case *c = &p->cases[p->count];
    struct match *m = &p->matches[p->count++];

    *c = (struct bench_case){.sample = sample_match, .user = m};
    find_players(p, m, which);
    for (int k = 0; k < m->our_count; k++)
        add_own(p, c, &wire_methods[m->ours[k].which]);
    for (int i = 0; i < m->other_count; i++)
        add_other(p, c, &wire_methods[which], &m->others[i]);
    for (int k = 0; k < m->our_count; k++)
        for (int i = 0; i < m->other_count; i++)
            if (has_ratio(m, k, i))
                add_ratio(p, c, &wire_methods[m->ours[k].which], &m->others[i]);
}

static void make_plan(struct plan *p)
{
    for (int i = 0; i < wire_method_count; i++) {
        const struct wire_method *m = &wire_methods[i];
        if (!is_shown(p->job, m))
            continue;
        if (!p->job->peer_ops)
            add_single(p, i);
        else if (wire_method_has_peers(m))
            add_match(p, i);
    }
}

int wire_compare(struct wire_job *j)
{
    static struct plan p;
    char title[64];

    p = (struct plan){.job = j};
    make_plan(&p);
    int err = bench_run(p.cases, p.count, &j->v->common);
    if (err)
        return err;
    snprintf(title, sizeof(title), "%s: latency one way, streams", dp_comm_name(j->comm));
    bench_report(title, p.cases, p.count, &j->v->common);
    return 0;
}
