/* SPDX-License-Identifier: Apache-2.0
 *
 * wire_compare.c - `dualpipe bench wire` in turns with other libraries, and with what could be had at best;
 * wire.sh beside this runs it.
 *
 * How near two cores are to each other may change within seconds, and with it all that is
 * measured here. So others take short turns with ours, and each of theirs is compared with those of
 * ours right before and right behind it; a round of such turns is one sample:
 *
 *      ours  UCX posix  ours  OpenMPI vader  ours  limit  ours
 *        \______|______/ \________|________/ \_____|____/
 */
#include "tests/bench/peers.h"
#include "tests/bench/wire_limit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TURN_MS = 40, OURS_MAX = 2, OTHERS_MAX = PEERS_MAX + 1, WHAT_LEN = 64 };
_Static_assert(OURS_MAX + OTHERS_MAX + OURS_MAX * OTHERS_MAX <= BENCH_FIGURES_MAX + 1,
               "the limit, which comes last, is beside one of ours only");

/* The ratio to the best peer that is the target; 0: none. */
struct ratio {
    double shm, tcp;
};

/* Ours, each behind it what it is set beside. */
static const struct wire_method methods[] = {
    {"8 B", 8, wire_ping_pong, WIRE_LATENCY, 0.225, 3.26},
    {"4 KiB", 4 << 10, wire_ping_pong, WIRE_LATENCY, 0, 0},
    {"64 KiB", 64 << 10, wire_ping_pong, WIRE_LATENCY, 0, 0},
    {"512 KiB", 512 << 10, wire_stream, WIRE_STREAM, 45, 7.95},
    {"4 MiB", 4 << 20, wire_stream, WIRE_STREAM, 26.5, 0},
    {"64 MiB", WIRE_BIGGEST, wire_stream, WIRE_STREAM, 18.2, 5.95},
    {"512 KiB, shared memory", 512 << 10, wire_stream_shared, WIRE_STREAM, 0, 0},
    {"4 MiB, shared memory", 4 << 20, wire_stream_shared, WIRE_STREAM, 26.5, 0},
    {"64 MiB, shared memory", WIRE_BIGGEST, wire_stream_shared, WIRE_STREAM, 24.3, 0},
    {"  limit: a line of memory", 8, wire_limit_line, WIRE_LATENCY, 0, 0},
    {"  limit: both sides copy, 512 KiB", 512 << 10, wire_limit_copy, WIRE_STREAM, 0, 0},
    {"  limit: both sides copy, 4 MiB", 4 << 20, wire_limit_copy, WIRE_STREAM, 0, 0},
    {"  limit: both sides copy, 64 MiB", WIRE_BIGGEST, wire_limit_copy, WIRE_STREAM, 0, 0},
};
enum { METHODS = sizeof(methods) / sizeof(methods[0]) };
static const struct ratio ratios[METHODS] = {
    [0] = {0.9, 0.95}, [3] = {1.4, 1.12}, [4] = {1.7, 0}, [5] = {1.2, 1.7}, [7] = {1.7, 0}, [8] = {1.6, 0},
};

/* Those that can do what a method does. */
static struct {
    struct peer_run runs[PEERS_MAX];
    int count;
} peers[METHODS];

static bool has_peers(const struct wire_method *m)
{
    return m->run == wire_ping_pong || m->run == wire_stream;
}

static bool is_limit(const struct wire_method *m)
{
    return m->run == wire_limit_copy || m->run == wire_limit_line;
}

/* The turn of a peer, or of the limit. */
struct other {
    const struct peer_run *peer; /* NULL: the limit */
    struct wire_runner limit;
};

struct match {
    struct wire_runner ours[OURS_MAX]; /* with memory of its own, then with shared memory */
    struct other others[OTHERS_MAX];
    int our_count, other_count;
};

struct plan {
    struct wire_job *job;
    struct bench_case cases[METHODS];
    struct match matches[METHODS];
    char what[METHODS][BENCH_FIGURES_MAX][WHAT_LEN];
    int count;
};

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
        err = wire_take_turn(&m->ours[k], &figures[k]);
    return err;
}

static int take_other_turn(struct match *m, int other, double *figure)
{
    struct other *o = &m->others[other];

    return o->peer ? peers_turn(o->peer, figure) : wire_take_turn(&o->limit, figure);
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
    const int64_t before_ns = peers_cpu_ns();
    int err = play(m, figures);

    bench_add_own(peers_cpu_ns() - before_ns);
    return err;
}

/* ---- what is measured ------------------------------------------------------------------------ */

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
    const char *text = f->what;

    *f = wire_figure(p->job, m);
    f->what = text;
}

static bool is_shown(const struct wire_job *j, const struct wire_method *m)
{
    if (m->run == wire_limit_copy && !wire_limit_may_copy())
        return false;
    return has_peers(m) || !strcmp(j->transport, "shm");
}

static struct wire_runner short_turn(struct plan *p, int which)
{
    return (struct wire_runner){.job = p->job, .which = which, .sample_ms = TURN_MS};
}

/* Those of the same size, and its peers. */
static void find_players(struct plan *p, struct match *m, int which)
{
    const struct wire_method *method = &methods[which];

    m->ours[m->our_count++] = short_turn(p, which);
    for (int i = 0; i < peers[which].count; i++)
        m->others[m->other_count++].peer = &peers[which].runs[i];
    for (int i = 0; i < METHODS; i++) {
        const struct wire_method *like = &methods[i];
        if (like->size != method->size || !is_shown(p->job, like))
            continue;
        if (like->run == wire_stream_shared)
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
                : add_figure(p, c, methods[o->limit.which].what, "", "");

    f->unit = wire_figure(p->job, method).unit;
    f->target_is_floor = method->figure == WIRE_STREAM;
}

/* Its target is the same beside every peer, and so that beside the best one. */
static void add_ratio(struct plan *p, struct bench_case *c, const struct wire_method *ours,
                      const struct other *o)
{
    struct bench_figure *f = add_figure(p, c, ours->what, " over ",
                                        o->peer ? o->peer->name : "the limit");

    f->unit = "x";
    const struct ratio *ratio = &ratios[ours - methods];
    f->target = !o->peer ? 0 : strcmp(p->job->transport, "tcp") ? ratio->shm : ratio->tcp;
    f->target_is_floor = ours->figure == WIRE_STREAM;
}

static void add_match(struct plan *p, int which)
{
    struct bench_case *c = &p->cases[p->count];
    struct match *m = &p->matches[p->count++];

    *c = (struct bench_case){.sample = sample_match, .user = m};
    find_players(p, m, which);
    for (int k = 0; k < m->our_count; k++)
        add_own(p, c, &methods[m->ours[k].which]);
    for (int i = 0; i < m->other_count; i++)
        add_other(p, c, &methods[which], &m->others[i]);
    for (int k = 0; k < m->our_count; k++)
        for (int i = 0; i < m->other_count; i++)
            if (has_ratio(m, k, i))
                add_ratio(p, c, &methods[m->ours[k].which], &m->others[i]);
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Before there are ranks, which would not wait for each other that long. */
static int open_others(struct wire_job *j)
{
    for (int i = 0; i < METHODS; i++) {
        const struct wire_method *m = &methods[i];
        const enum peer_test test = m->figure == WIRE_STREAM ? PEER_STREAM : PEER_LATENCY;
        if (has_peers(m))
            peers[i].count = peers_find(j->transport, test, m->size, TURN_MS, peers[i].runs);
    }
    return wire_limit_open();
}

static void close_others(struct wire_job *j)
{
    (void)j;
    peers_end();
    wire_limit_close();
}

static int compare(struct wire_job *j)
{
    static struct plan p;

    p = (struct plan){.job = j};
    for (int i = 0; i < METHODS; i++)
        if (has_peers(&methods[i]))
            add_match(&p, i);
    int err = bench_run(p.cases, p.count, &j->v->common);
    if (!err)
        wire_report(j, p.cases, p.count);
    return err;
}

static const struct wire_others others = {
    .methods = methods,
    .method_count = METHODS,
    .command = "sh tests/bench/wire.sh",
    .about = "Time messages between two processes, each on a core of its own, in short turns\n"
             "with the same messages of other libraries that are installed, and ours over\n"
             "theirs: each turn of theirs is compared with those of ours before and after it.",
    .examples = "  sh tests/bench/wire.sh --transport shm --samples 15\n",
    .open = open_others,
    .close = close_others,
    .meet = wire_limit_meet,
    .compare = compare,
};

int main(int argc, char **argv)
{
    return wire_bench(argc, argv, &others);
}
