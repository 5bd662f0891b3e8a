/* SPDX-License-Identifier: Apache-2.0
 *
 * Every way in which a rank or a link may fail, at every op of every rank, over every communicator: a
 * matrix of cells. In each of them all ranks that live end their step within the deadline and one
 * second, they name the same culprit and its op, nothing is left over, and where all ranks live the
 * next step after a reset is right to the last bit.
 *
 * An op is a callback or the post of a message, counted through on each rank. A seeded sample of the
 * cells is tried; with DP_TEST_FULL all of them, with the times, and a table is printed. DP_TEST_JOBS
 * (4) cells are tried at a time, as most of them wait for their deadline.
 */
#include "cmocka_all.h"

#include "base/clock.h"
#include "comm/comm_ops.h"
#include "unit/comm/comm_group.h"
#include "fault_wire.h"
#include "jobs.h"
#include "open_files.h"
#include "pipeline_job.h"

#include <dualpipe/random.h>

#include <poll.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { RANKS = 4, MICROBATCHES = 8, FAILURE = -77 };
static const int64_t LONG_NS = 60 * DP_NS_PER_S;
/* A step may end this much after the deadline, or after the fault where no rank waits for the deadline. A
 * connection that broke waits as long for the reason. */
static const int64_t MORE_NS = DP_NS_PER_S;

/* The deadline where a fault makes ranks wait for it. The sample is part of runs in which ranks get the
 * processor late; all cells are tried on a machine that is not busy. */
static int64_t short_ns(void)
{
    return getenv("DP_TEST_FULL") ? DP_NS_PER_S / 2 : 2 * DP_NS_PER_S;
}

enum fault_kind { FAIL, KILL, STOP, CUT, SILENT, FAULTS };

struct fault_trait {
    const char *name;
    bool at_callbacks_only; /* a message cannot fail by itself */
    bool takes_processes, takes_links;
    bool waits;       /* for the deadline, which is short then */
    bool all_live;
    int sample;       /* of a transport, without DP_TEST_FULL */
};

static const struct fault_trait faults[FAULTS] = {
    [FAIL] = {"a callback fails", .at_callbacks_only = true, .all_live = true, .sample = 4},
    [KILL] = {"a rank is killed", .takes_processes = true, .sample = 4},
    [STOP] = {"a rank is stopped", .waits = true, .all_live = true, .sample = 1},
    [CUT] = {"a link is cut", .takes_links = true, .all_live = true, .sample = 1},
    [SILENT] = {"a link is silent", .takes_links = true, .waits = true, .all_live = true, .sample = 1},
};

/* What a rank saw of the fault. */
struct outcome {
    int error;           /* of its step and what follows */
    struct dp_abort why; /* error 0: none */
    int64_t end_ns;
};

/* Shared by all ranks, threads or processes. */
struct cell {
    enum fault_kind fault;
    int culprit, at;
    pid_t process;              /* the culprit's */
    atomic_int ops[RANKS], callbacks[RANKS]; /* of a step */
    atomic_int peer;            /* the other end of the link */
    atomic_int done;            /* ranks whose step has returned */
    _Atomic uint64_t doing, doing_before; /* the culprit's */
    bool at_message;
    _Atomic int64_t began_ns;
    struct outcome outcomes[RANKS];
};

struct cell_job {
    struct job job;
    struct cell *cell;
};

static const struct comm_kind *kind_now;

/* ---- a rank's fault ---------------------------------------------------------------------------- */

static _Thread_local struct cell *cell;
static _Thread_local struct dp_comm *the_comm;
static _Thread_local int ops_left, ops_made, callbacks_made; /* ops_left -1: no fault */

static void stop(void)
{
    if (kind_now->processes) {
        raise(SIGSTOP);
        return;
    }
    while (atomic_load(&cell->done) < RANKS - 1)
        poll(NULL, 0, 1);
}

/* peer: of the message that is about to be posted; of a callback one of the neighbors. */
static int begin_fault(int peer)
{
    atomic_store(&cell->peer, peer);
    atomic_store(&cell->began_ns, dp_now_ns());
    switch (cell->fault) {
    case KILL:
        raise(SIGKILL);
        break;
    case STOP:
        stop();
        break;
    case CUT:
    case SILENT:
        fault_wires_break(the_comm, peer, cell->fault == SILENT);
        break;
    default:
        return dp_callback_error(FAILURE, "out of %s", "luck");
    }
    return 0;
}

/* doing_before is another op than doing, which the rank had begun before. */
static void note_doing(void)
{
    const uint64_t doing = atomic_load(the_comm->doing);

    if (dp_comm_rank(the_comm) != cell->culprit || doing == atomic_load(&cell->doing))
        return;
    atomic_store(&cell->doing_before, atomic_load(&cell->doing));
    atomic_store(&cell->doing, doing);
}

static bool is_time(bool at_message)
{
    ops_made++;
    if (ops_left >= 0)
        note_doing();
    if (ops_left == 0)
        cell->at_message = at_message;
    return ops_left >= 0 && ops_left-- == 0;
}

static int neighbor(void)
{
    const int rank = dp_comm_rank(the_comm), up = rank + 1 < RANKS, down = rank > 0;

    return up && (!down || ops_made % 2) ? rank + 1 : rank - 1;
}

/* With FAIL only callbacks are counted. */
static int before_callback(void *user, const struct dp_stage_call *call, const char *what)
{
    callbacks_made++;
    return is_time(false) ? begin_fault(neighbor()) : 0;
}

static _Thread_local const struct dp_comm_ops *real_ops;
static _Thread_local struct dp_comm_ops counted_ops;

static void before_message(int peer)
{
    if (cell->fault != FAIL && is_time(true))
        (void)begin_fault(peer);
}

static int counted_send(struct dp_comm *comm, int peer, int channel, uint64_t tag, const void *buf,
                        size_t len, struct dp_request *req)
{
    before_message(peer);
    return real_ops->isend(comm, peer, channel, tag, buf, len, req);
}

static int counted_receive(struct dp_comm *comm, int peer, int channel, uint64_t tag, void *buf,
                           size_t len, struct dp_request *req)
{
    before_message(peer);
    return real_ops->irecv(comm, peer, channel, tag, buf, len, req);
}

/* A rank tells of its op in a call of progress. */
static int noted_progress(struct dp_comm *comm, int waiting_for)
{
    if (ops_left >= 0)
        note_doing();
    return real_ops->progress(comm, waiting_for);
}

static void count_messages(struct dp_comm *comm)
{
    real_ops = comm->ops;
    counted_ops = *real_ops;
    counted_ops.isend = counted_send;
    counted_ops.irecv = counted_receive;
    counted_ops.progress = noted_progress;
    comm->ops = &counted_ops;
}

/* ---- a cell on one rank ------------------------------------------------------------------------ */

static int open_rank(struct dp_comm *comm, const struct cell_job *f, struct job_rank *r)
{
    cell = f->cell;
    the_comm = comm;
    comm->tell_doing_ns = 0;
    ops_left = -1;
    ops_made = callbacks_made = 0;
    CHECK(!job_rank_open(r, &f->job, comm));
    return 0;
}

static int count_ops(struct dp_comm *comm, void *arg)
{
    const struct cell_job *f = arg;
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    CHECK(!open_rank(comm, f, &r));
    count_messages(comm);
    const int err = job_rank_step(&r);
    comm->ops = real_ops;
    atomic_store(&cell->ops[dp_comm_rank(comm)], ops_made);
    atomic_store(&cell->callbacks[dp_comm_rank(comm)], callbacks_made);
    CHECK(!err);
    return 0;
}

/* The ranks agree out of band that all have ended: one whose own part had ended before the fault learns
 * of it meanwhile. The last of those that are not stopped wakes the culprit up. */
static void wait_for_all(struct dp_comm *comm)
{
    const int rank = dp_comm_rank(comm), ended = atomic_fetch_add(&cell->done, 1) + 1;
    const int64_t until_ns = dp_now_ns() + LONG_NS;

    if (cell->fault == STOP && kind_now->processes && rank != cell->culprit && ended == RANKS - 1)
        kill(cell->process, SIGCONT);
    while (atomic_load(&cell->done) < RANKS - (cell->fault == KILL) && dp_now_ns() < until_ns) {
        (void)dp_comm_progress(comm);
        poll(NULL, 0, 1);
    }
    (void)dp_comm_progress(comm);
}

static int next_step_is_right(struct dp_comm *comm, struct job_rank *r)
{
    dp_comm_set_deadline(comm, LONG_NS);
    if (dp_comm_aborted(comm, NULL)) {
        CHECK(job_rank_step(r) == DP_EABORTED); /* until a reset, nothing goes */
        CHECK(!dp_comm_reset(comm));
    }
    dp_pipeline_seek(r->pipe, 1);
    CHECK(!job_rank_step(r));
    return 0;
}

static int be_in_cell(struct dp_comm *comm, void *arg)
{
    const struct cell_job *f = arg;
    const struct fault_trait *trait = &faults[f->cell->fault];
    struct outcome *mine = &f->cell->outcomes[dp_comm_rank(comm)];
    ENDED_BY(job_rank_close) struct job_rank r = {0};

    dp_comm_set_deadline(comm, LONG_NS);
    CHECK(!open_rank(comm, f, &r));
    if (dp_comm_rank(comm) == cell->culprit)
        cell->process = getpid();
    (void)dp_comm_barrier(comm); /* the culprit may have died when it had passed it */
    if (trait->waits)
        dp_comm_set_deadline(comm, short_ns());
    count_messages(comm);
    ops_left = dp_comm_rank(comm) == cell->culprit ? cell->at : -1;
    mine->error = job_rank_step(&r);
    for (int i = 0; i < 2 && !mine->error; i++)
        mine->error = dp_comm_barrier(comm);
    mine->end_ns = dp_now_ns();
    ops_left = -1;
    comm->ops = real_ops;
    wait_for_all(comm);
    if (!dp_comm_aborted(comm, &mine->why))
        mine->why.error = 0;
    const int err = trait->all_live ? next_step_is_right(comm, &r) : 0;
    return err;
}

/* ---- what the ranks must have seen ------------------------------------------------------------- */

/* A silent link where all wait in a circle: the record names one of it, and the circle with the link. */
static bool has_circle_with(const struct dp_abort *why, int a, int b)
{
    char there[64], back[64];

    snprintf(there, sizeof(there), "rank %d, which waits for rank %d", a, b);
    snprintf(back, sizeof(back), "rank %d, which waits for rank %d", b, a);
    return strstr(why->text, "in a circle") &&
           (strstr(why->text, there) || strstr(why->text, back));
}

/* NULL: nothing. */
static const char *find_wrong_record(const struct cell *c, const struct dp_abort *why)
{
    static const int errors[FAULTS] = {DP_ECALLBACK, DP_ECOMM, DP_ETIMEDOUT, DP_ECOMM, DP_ETIMEDOUT};

    if (why->error != errors[c->fault])
        return "the error is not that of the fault";
    if (faults[c->fault].takes_links)
        return why->rank == c->culprit || why->rank == atomic_load(&c->peer) ||
                       (c->fault == SILENT &&
                        has_circle_with(why, c->culprit, atomic_load(&c->peer)))
                   ? NULL
                   : "the culprit is at no end of the link";
    if (why->rank != c->culprit)
        return "another culprit";
    if (why->doing == atomic_load(&c->doing))
        return NULL;
    /* A message that an op begins with is posted before the rank tells of the op. */
    return c->at_message && why->doing == atomic_load(&c->doing_before) ? NULL : "another op";
}

static int64_t latest_ns(enum fault_kind fault)
{
    return MORE_NS + (faults[fault].waits ? short_ns() : fault == CUT ? MORE_NS : 0);
}

static const char *find_wrong_outcome(const struct cell *c, int rank, const struct outcome *first)
{
    const struct outcome *o = &c->outcomes[rank];

    if (o->why.error != first->why.error || o->why.rank != first->why.rank)
        return "ranks name two culprits";
    if (o->why.doing != first->why.doing)
        return "ranks name two ops";
    if (getenv("DP_TEST_FULL") && o->why.error && o->end_ns - c->began_ns > latest_ns(c->fault))
        return "the step ended late";
    return o->error && !o->why.error ? "a step failed without an abort" : NULL;
}

/* The rank that is first of those that live. */
static const struct outcome *first_outcome(const struct cell *c)
{
    return &c->outcomes[c->fault == KILL && !c->culprit];
}

static const char *find_wrong(const struct cell *c)
{
    const struct outcome *first = first_outcome(c);
    const char *wrong = NULL;

    if (!c->began_ns)
        return "there was no fault";
    /* After its last message a link is missed by no one. */
    if (first->why.error || !faults[c->fault].takes_links)
        wrong = find_wrong_record(c, &first->why);
    for (int rank = 0; rank < RANKS && !wrong; rank++)
        if (c->fault != KILL || rank != c->culprit)
            wrong = find_wrong_outcome(c, rank, first);
    return wrong;
}

static int64_t time_of(const struct cell *c)
{
    int64_t longest_ns = 0;

    for (int rank = 0; rank < RANKS; rank++)
        if (c->outcomes[rank].why.error && (c->fault != STOP || rank != c->culprit) &&
            c->outcomes[rank].end_ns - c->began_ns > longest_ns)
            longest_ns = c->outcomes[rank].end_ns - c->began_ns;
    return longest_ns;
}

/* ---- cells ------------------------------------------------------------------------------------ */

static void *shared(size_t bytes)
{
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

static void cell_job_init(struct cell_job *f)
{
    const struct dp_schedule_spec spec = {.kind = DP_SCHEDULE_DUALPIPE, .ranks = RANKS,
                                          .microbatches = MICROBATCHES, .mirror_reduce = true};
    struct dp_schedule *s = NULL;

    assert_int_equal(dp_schedule_new(&spec, &s), 0);
    f->job = job_make(s);
    f->job.before = before_callback;
    job_begin(&f->job);
    f->cell = shared(sizeof(*f->cell));
}

static void cell_job_fini(struct cell_job *f)
{
    job_end(&f->job);
    munmap(f->cell, sizeof(*f->cell));
    dp_schedule_free((struct dp_schedule *)(uintptr_t)f->job.schedule);
}

/* Cells of one kind of fault over one communicator. */
struct row {
    const struct comm_kind *kind;
    enum fault_kind fault;
    int count[RANKS]; /* cells of a rank */
    atomic_int tried, passed, unnoticed;
    _Atomic int64_t longest_ns;
};

static void say_wrong(const struct row *row, const struct cell *c, const char *wrong)
{
    printf("%s, %s, rank %d at op %d, peer %d: %s\n", faults[row->fault].name, row->kind->name,
           c->culprit, c->at, atomic_load(&c->peer), wrong);
    for (int rank = 0; rank < RANKS; rank++) {
        const struct outcome *o = &c->outcomes[rank];
        printf("  rank %d: %s after %.3f s: rank %d, %s, doing %llx (%llx): %s\n", rank,
               dp_strerror(o->error), (double)(o->end_ns - c->began_ns) / DP_NS_PER_S, o->why.rank,
               dp_strerror(o->why.error), (unsigned long long)o->why.doing,
               (unsigned long long)atomic_load(&c->doing), o->why.text);
    }
}

static void note_passed(struct row *row, const struct cell *c)
{
    const int64_t ns = time_of(c);
    int64_t longest_ns = atomic_load(&row->longest_ns);

    atomic_fetch_add(&row->passed, 1);
    atomic_fetch_add(&row->unnoticed, !first_outcome(c)->why.error);
    while (ns > longest_ns && !atomic_compare_exchange_weak(&row->longest_ns, &longest_ns, ns))
        ;
}

static void try_cell(struct row *row, int culprit, int at)
{
    const bool dies = row->fault == KILL;
    struct cell_job f;
    int killed;

    cell_job_init(&f);
    f.cell->fault = row->fault;
    f.cell->culprit = culprit;
    f.cell->at = at;
    kind_now = row->kind;
    fault_wires_use(faults[row->fault].takes_links);
    const int files = count_files();
    const int failed = row->kind->run(row->kind, RANKS, LONG_NS, be_in_cell, &f, &killed);
    const char *wrong = find_wrong(f.cell);
    if (!wrong && (failed != dies || killed != dies))
        wrong = "a rank failed";
    if (!wrong && faults[row->fault].all_live && !job_result_is_sequential(&f.job, 1))
        wrong = "the next step is not that of the sequential loop";
    if (!wrong && count_files() != files)
        wrong = "a file is left open";
    atomic_fetch_add(&row->tried, 1);
    if (wrong)
        say_wrong(row, f.cell, wrong);
    else
        note_passed(row, f.cell);
    cell_job_fini(&f);
}

static void count_cells(struct row *row)
{
    struct cell_job f;
    int killed;

    cell_job_init(&f);
    f.cell->fault = row->fault;
    kind_now = row->kind;
    fault_wires_use(false);
    assert_int_equal(row->kind->run(row->kind, RANKS, LONG_NS, count_ops, &f, &killed), 0);
    for (int rank = 0; rank < RANKS; rank++)
        row->count[rank] =
            atomic_load(faults[row->fault].at_callbacks_only ? &f.cell->callbacks[rank]
                                                             : &f.cell->ops[rank]);
    cell_job_fini(&f);
}

/* ---- the matrix -------------------------------------------------------------------------------- */

static bool is_possible(const struct comm_kind *kind, enum fault_kind fault)
{
    return kind->processes || (!faults[fault].takes_processes && !faults[fault].takes_links);
}

static bool is_drawn(const struct row *row, uint64_t number)
{
    float u;
    int all = 0;

    for (int rank = 0; rank < RANKS; rank++)
        all += row->count[rank];
    dp_random_uniform(dp_random_key(17, row->fault, 0, 0), number, &u, 1);
    return getenv("DP_TEST_FULL") || u * (float)all < (float)faults[row->fault].sample;
}

struct rows {
    struct row *list;
    int count;
};

/* Every jobs-th cell of those that were drawn, from number `job` on. */
static int try_part(void *arg, int job, int jobs)
{
    const struct rows *rows = arg;
    uint64_t number = 0;
    int turn = 0;

    for (struct row *row = rows->list; row < rows->list + rows->count; row++)
        for (int culprit = 0; culprit < RANKS; culprit++)
            for (int at = 0; at < row->count[culprit]; at++)
                if (is_drawn(row, number++) && turn++ % jobs == job)
                    try_cell(row, culprit, at);
    return 0;
}

static void print_table(const struct row *rows, int row_count)
{
    printf("| fault | over | cells | passed | of these without effect | longest |\n"
           "| --- | --- | --- | --- | --- | --- |\n");
    for (const struct row *row = rows; row < rows + row_count; row++)
        printf("| %s | %s%s | %d | %d | %d | %.2f s |\n", faults[row->fault].name, row->kind->name,
               row->kind->by_ring ? ", by the ring" : "", atomic_load(&row->tried),
               atomic_load(&row->passed), atomic_load(&row->unnoticed),
               (double)atomic_load(&row->longest_ns) / DP_NS_PER_S);
}

CASE(all_that_live_name_the_culprit_in_time_and_go_on)
{
    enum { MOST = 32 };
    struct row *rows = shared(MOST * sizeof(*rows));
    int count = 0;

    for (int fault = 0; fault < FAULTS; fault++)
        for (const struct comm_kind *kind = comm_kinds; kind->name; kind++)
            if (is_possible(kind, (enum fault_kind)fault)) {
                assert_true(count < MOST);
                rows[count].kind = kind;
                rows[count].fault = (enum fault_kind)fault;
                count_cells(&rows[count++]);
            }
    assert_int_equal(run_jobs(try_part, &(struct rows){rows, count}), 0);
    print_table(rows, count);
    for (int i = 0; i < count; i++)
        assert_int_equal(atomic_load(&rows[i].passed), atomic_load(&rows[i].tried));
    munmap(rows, MOST * sizeof(*rows));
}

RUN_QUIET_CASES(NULL, NULL)
