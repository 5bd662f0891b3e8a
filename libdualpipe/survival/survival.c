/* SPDX-License-Identifier: Apache-2.0
 *
 * survival.c - deaths, revocations, notes and agreements as survival.h says: the state of one rank, and
 * the messages that change it.
 */
#include "survival/survival.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/text.h"
#include "comm/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- sets of ranks --------------------------------------------------------------------------- */

static void add(uint64_t *set, int rank)
{
    set[rank / 64] |= UINT64_C(1) << rank % 64;
}

static size_t set_bytes(const struct dp_survival *s)
{
    return (size_t)s->words * sizeof(uint64_t);
}

/* ---- messages out ---------------------------------------------------------------------------- */

static const struct dp_survival_message *compose(struct dp_survival *s, enum dp_survival_kind kind,
                                                 const struct dp_agreement *a, uint32_t number)
{
    const bool decision = kind == DP_SURVIVAL_DECISION;

    *s->out = (struct dp_survival_message){.kind = kind, .number = number};
    if (a) {
        s->out->context = a->context;
        s->out->doing = decision ? a->decisions_flags[number % 2] : a->own_flags;
    }
    s->out->contexts = decision ? a->decisions_contexts[number % 2] : (uint32_t)s->world->contexts;
    memcpy(s->out->dead, decision ? a->decisions[number % 2] : s->dead, set_bytes(s));
    memcpy(s->out->dead + s->words, s->left, set_bytes(s));
    return s->out;
}

static void tell(struct dp_survival *s, int peer, enum dp_survival_kind kind,
                 const struct dp_agreement *a, uint32_t number)
{
    s->news->tell(s, peer, compose(s, kind, a, number), s->message_bytes);
}

/* What is known of a rank: to one peer, or to the neighbors. */
static void tell_note(struct dp_survival *s, int peer, int rank)
{
    if (!s->ranks[rank].note.number)
        return;
    compose(s, DP_SURVIVAL_DOING, NULL, s->ranks[rank].note.number);
    s->out->context = (uint32_t)rank;
    s->out->doing = s->ranks[rank].note.doing;
    if (peer < 0)
        s->news->tell_neighbors(s, s->out, s->message_bytes);
    else
        s->news->tell(s, peer, s->out, s->message_bytes);
}

static void tell_notes_of_dead(struct dp_survival *s, int peer)
{
    for (int rank = 0; rank < s->world->size; rank++)
        if (dp_survival_has(s->dead, rank))
            tell_note(s, peer, rank);
}

static void tell_deaths(struct dp_survival *s)
{
    s->news->tell_neighbors(s, compose(s, DP_SURVIVAL_DEATHS, NULL, 0), s->message_bytes);
}

/* ---- deaths ---------------------------------------------------------------------------------- */

static const char *const reasons[] = {
    [DP_DEATH_NONE] = "it is alive",
    [DP_DEATH_ENDED] = "its process has ended, or the connection to it is lost",
    [DP_DEATH_LEFT] = "it has left the group",
    [DP_DEATH_SILENT] = "it gave no answer within the deadline",
    [DP_DEATH_REPORTED] = "another rank has reported it",
};

static int fail(const struct dp_comm *world, int rank)
{
    return dp_fail_quietly(DP_ECOMM, "rank %d is dead: %s", rank,
                           reasons[world->survival->ranks[rank].death]);
}

void dp_survival_end(struct dp_comm *world, int error, const char *text)
{
    struct dp_survival *s = world->survival;

    if (s->end.error)
        return;
    s->end = (struct dp_abort){.rank = world->rank, .error = error};
    dp_snprintf(s->end.text, sizeof(s->end.text), "%s", text);
}

static bool is_excluded(const struct dp_comm *world, struct dp_abort *why)
{
    const struct dp_survival *s = world->survival;

    if (s->excluded_by < 0 && !s->end.error)
        return false;
    if (!why)
        return true;
    *why = s->end;
    if (!why->error) {
        *why = (struct dp_abort){.rank = world->rank, .error = DP_ETIMEDOUT};
        snprintf(why->text, sizeof(why->text),
                 "rank %d was declared dead by the others, as rank %d says: it gave no sign for longer "
                 "than the deadline; the group goes on without it",
                 world->rank, s->excluded_by);
    }
    if (world->doing)
        why->doing = atomic_load(world->doing);
    return true;
}

static bool mark(struct dp_survival *s, int rank, enum dp_death why)
{
    if (dp_survival_has(s->dead, rank))
        return false;
    add(s->dead, rank);
    if (why == DP_DEATH_LEFT)
        add(s->left, rank);
    s->ranks[rank].death = why;
    s->dead_count++;
    s->ranks[rank].query.is_open = false;
    s->ops->note_busy(s->world, rank, 0); /* no rank waits for what it had announced */
    tell_note(s, -1, rank);
    dp_log(DP_LOG_INFO, "rank %d goes on without rank %d: %s", s->world->rank, rank, reasons[why]);
    if (why == DP_DEATH_SILENT || why == DP_DEATH_REPORTED) /* it may live, and is told so */
        tell(s, rank, DP_SURVIVAL_DEATHS, NULL, 0);
    if (why != DP_DEATH_LEFT)
        s->ops->bury(s->world, rank);
    return true;
}

void dp_survival_lose(struct dp_survival *s, int rank, enum dp_death why)
{
    if (s->excluded_by < 0 && mark(s, rank, why))
        tell_deaths(s);
}

void dp_survival_declare(struct dp_survival *s, int rank)
{
    dp_survival_lose(s, rank, DP_DEATH_SILENT);
}

void dp_survival_ask(struct dp_survival *s, int rank)
{
    s->asked = -1;
    if (s->excluded_by >= 0 || dp_survival_has(s->dead, rank))
        return;
    s->asked = rank;
    s->news->watch(s, rank);
    tell(s, rank, DP_SURVIVAL_PING, NULL, 0);
}

bool dp_survival_is_owed(const struct dp_survival *s, int rank)
{
    return s->asked == rank && s->excluded_by < 0 && !dp_survival_has(s->dead, rank);
}

static void leave(struct dp_comm *world)
{
    struct dp_survival *s = world->survival;

    if (!world->ops->aborted(world, NULL)) {
        add(s->dead, world->rank);
        add(s->left, world->rank);
        tell_deaths(s);
    }
    s->news->flush(s); /* of an abort, too */
}

static void merge(struct dp_survival *s, int from, const uint64_t *dead)
{
    const uint64_t *left = dead + s->words;
    const int before = s->dead_count;

    if (dp_survival_has(dead, s->world->rank)) {
        s->excluded_by = from;
        return;
    }
    for (int rank = 0; rank < s->world->size; rank++)
        if (dp_survival_has(dead, rank))
            mark(s, rank, dp_survival_has(left, rank) ? DP_DEATH_LEFT : DP_DEATH_REPORTED);
    if (s->dead_count > before)
        tell_deaths(s);
}

static bool has_lost(const struct dp_comm *world, int rank, bool or_left)
{
    const struct dp_survival *s = world->survival;

    return dp_survival_has(s->dead, rank) && (or_left || !dp_survival_has(s->left, rank));
}

static int find_dead(struct dp_comm *comm)
{
    const struct dp_survival *s = comm->world->survival;

    for (int i = 0; s->dead_count != comm->deaths_seen && i < comm->size; i++)
        if (has_lost(comm->world, dp_comm_world_rank(comm, i), false))
            return dp_comm_world_rank(comm, i);
    comm->deaths_seen = s->dead_count;
    return -1;
}

static void lose(struct dp_comm *world, int rank, bool has_left)
{
    dp_survival_lose(world->survival, rank, has_left ? DP_DEATH_LEFT : DP_DEATH_ENDED);
}

static void tell_abort(struct dp_comm *world, const struct dp_abort *why)
{
    const struct dp_survival_ending m = {.kind = DP_SURVIVAL_ABORT, .why = *why};

    world->survival->news->tell_neighbors(world->survival, &m, sizeof(m));
}

/* ---- revocations ----------------------------------------------------------------------------- */

static int context_of(const struct dp_comm *comm)
{
    return comm->first_channel / DP_CHANNELS;
}

static bool is_member(const struct dp_comm *comm, int world_rank)
{
    for (int i = 0; i < comm->size; i++)
        if (dp_comm_world_rank(comm, i) == world_rank)
            return true;
    return false;
}

/* The engine gives up its collectives when it goes on next. */
static void end_if_it_is(struct dp_survival *s, struct dp_comm *comm,
                         const struct dp_survival_ending *m)
{
    if (comm->is_revoked || (uint32_t)context_of(comm) != m->context || !is_member(comm, m->by))
        return;
    comm->is_revoked = true;
    comm->revocation = m->why;
    s->ops->end_channels(s->world, comm->first_channel, DP_CHANNELS);
}

static void take_in(struct dp_comm *comm)
{
    struct dp_survival *s = comm->world->survival;

    for (const struct dp_revocation *r = s->revocations; r; r = r->next)
        end_if_it_is(s, comm, &r->message);
}

static bool is_known(const struct dp_survival *s, const struct dp_survival_ending *m)
{
    const struct dp_revocation *r = s->revocations;

    while (r && (r->message.context != m->context || r->message.by != m->by))
        r = r->next;
    return r;
}

/* First told, then done: a peer that finds a link ended can know why. */
static int spread_revocation(struct dp_survival *s, const struct dp_survival_ending *m)
{
    struct dp_revocation *r = calloc(1, sizeof(*r));

    if (!r)
        return dp_fail(DP_ENOMEM, "no memory for the revocation of a communicator");
    r->message = *m;
    r->message.why.text[sizeof(m->why.text) - 1] = '\0';
    r->next = s->revocations;
    s->revocations = r;
    s->news->tell_neighbors(s, &r->message, sizeof(r->message));
    for (struct dp_comm *comm = s->world; comm; comm = comm->next)
        end_if_it_is(s, comm, &r->message);
    return 0;
}

int dp_survival_revoke(struct dp_survival *s, struct dp_comm *comm, const struct dp_abort *why)
{
    const struct dp_survival_ending m = {.kind = DP_SURVIVAL_REVOKE,
                                         .context = (uint32_t)context_of(comm),
                                         .by = s->world->rank,
                                         .why = *why};

    return comm->is_revoked ? 0 : spread_revocation(s, &m);
}

static void take_revocation(struct dp_survival *s, int from, const struct dp_survival_ending *m)
{
    if (s->excluded_by >= 0 || dp_survival_has(s->dead, from) || m->by < 0 ||
        m->by >= s->world->size || m->why.error >= 0 || is_known(s, m))
        return;
    if (spread_revocation(s, m))
        dp_survival_end(s->world, DP_ENOMEM, dp_last_error());
}

/* A rank that has heard of a revocation ends its links: this one may find a link ended before it is
 * told why. */
static int look_for_revocation(struct dp_comm *comm, int err)
{
    struct dp_comm *world = comm->world;
    char first[DP_ABORT_TEXT];

    snprintf(first, sizeof(first), "%s", dp_last_error());
    if (comm->is_revoked || world->ops->progress(world, -1) || comm->is_revoked)
        return DP_EABORTED;
    return dp_fail_quietly(err, "%s", first);
}

/* Collectives of one that was revoked give the memory of the caller back. */
static int explain(struct dp_comm *comm, int err)
{
    struct dp_comm *world = comm->world;
    struct dp_abort why;

    if (err == DP_ECOMM)
        err = look_for_revocation(comm, err);
    if (err != DP_EABORTED || !comm->is_revoked || world->ops->aborted(world, NULL))
        return err;
    dp_comm_aborted(comm, &why);
    if (world->engine)
        dp_engine_progress(world->engine);
    return dp_fail_quietly(DP_EABORTED, "the communicator was revoked because of rank %d (%s): %s",
                           why.rank, dp_strerror(why.error), why.text);
}

/* ---- ranks that are busy --------------------------------------------------------------------- */

static void announce(struct dp_survival *s, int rank, uint32_t ms)
{
    compose(s, DP_SURVIVAL_BUSY, NULL, s->ranks[rank].announced);
    s->out->context = (uint32_t)rank;
    s->out->contexts = ms;
    s->news->tell_neighbors(s, s->out, s->message_bytes);
}

static void tell_busy(struct dp_comm *world, int64_t ns)
{
    struct dp_survival *s = world->survival;
    const int64_t ms = (ns + DP_NS_PER_MS - 1) / DP_NS_PER_MS;

    s->ranks[world->rank].announced++;
    announce(s, world->rank, ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX);
    s->news->flush(s);
}

/* The same news comes over several ways, and is passed on once. */
static void take_busy(struct dp_survival *s, const struct dp_survival_message *m)
{
    const int rank = (int)m->context;

    if (m->context >= (uint32_t)s->world->size || rank == s->world->rank ||
        dp_survival_has(s->dead, rank) || (int32_t)(m->number - s->ranks[rank].announced) <= 0)
        return;
    s->ranks[rank].announced = m->number;
    s->ops->note_busy(s->world, rank, m->contexts * DP_NS_PER_MS);
    announce(s, rank, m->contexts);
}

/* ---- what ranks do --------------------------------------------------------------------------- */

static void tell_doing(struct dp_comm *world, uint64_t doing)
{
    struct dp_survival *s = world->survival;
    struct dp_survival_note *own = &s->ranks[world->rank].note;

    own->doing = doing;
    own->number++;
    tell_note(s, -1, s->world->rank);
}

void dp_survival_tell_own_note(struct dp_survival *s, int peer)
{
    tell_note(s, peer, s->world->rank);
}

static uint64_t find_doing(const struct dp_comm *world, int rank)
{
    const struct dp_survival *s = world->survival;

    return s->ops->doing ? s->ops->doing(s->world, rank) : s->ranks[rank].note.doing;
}

/* Of a neighbour it is kept; of a dead rank passed on once. */
static void take_note(struct dp_survival *s, const struct dp_survival_message *m)
{
    const int rank = (int)m->context;

    if (m->context >= (uint32_t)s->world->size || rank == s->world->rank ||
        (int32_t)(m->number - s->ranks[rank].note.number) <= 0)
        return;
    s->ranks[rank].note = (struct dp_survival_note){m->doing, m->number};
    if (dp_survival_has(s->dead, rank))
        tell_note(s, -1, rank);
}

/* ---- agreement: what each rank keeps --------------------------------------------------------- */

static struct dp_agreement *find(const struct dp_survival *s, uint32_t context)
{
    struct dp_agreement *a = s->agreements;

    while (a && a->context != context)
        a = a->next;
    return a;
}

static bool is_decided(const struct dp_agreement *a, uint32_t number)
{
    return a && number <= a->decided && number + 2 > a->decided;
}

static void decide(struct dp_survival *s, struct dp_agreement *a, const uint64_t *dead,
                   uint32_t contexts, uint64_t flags)
{
    memcpy(a->decisions[a->number % 2], dead, set_bytes(s));
    a->decisions_contexts[a->number % 2] = contexts;
    a->decisions_flags[a->number % 2] = flags;
    a->decided = a->number;
}

/* As soon as this rank's program has come as far as the question. */
static void answer(struct dp_survival *s, int peer)
{
    struct dp_survival_query *q = &s->ranks[peer].query;
    struct dp_agreement *a = find(s, q->context);

    if (!q->is_open || !a || a->number < q->number)
        return;
    q->is_open = false;
    tell_notes_of_dead(s, peer);
    if (is_decided(a, q->number))
        tell(s, peer, DP_SURVIVAL_DECISION, a, q->number);
    else if (a->number == q->number)
        tell(s, peer, DP_SURVIVAL_ANSWER, a, q->number);
}

static void take_answer(struct dp_survival *s, int from, const struct dp_survival_message *m)
{
    struct dp_agreement *a = find(s, m->context);

    if (!a || a->number != m->number || a->decided == a->number)
        return;
    add(a->answered, from);
    a->flags &= m->doing;
    a->contexts = m->contexts > a->contexts ? m->contexts : a->contexts;
}

/* The coordinator may die before it has told all. A rank that knew so earlier has asked this one, which
 * could only answer, and waits for the decision. */
static void take_decision(struct dp_survival *s, int from, const struct dp_survival_message *m)
{
    struct dp_agreement *a = find(s, m->context);

    if (!a || a->number != m->number || a->decided == a->number)
        return;
    decide(s, a, m->dead, m->contexts, m->doing);
    for (int peer = 0; peer < s->world->size; peer++) {
        const struct dp_survival_query *q = &s->ranks[peer].query;
        if (peer != from && q->context == m->context && q->number == m->number)
            tell(s, peer, DP_SURVIVAL_DECISION, a, a->number);
    }
}

void dp_survival_handle(struct dp_comm *world, int from, const void *message, size_t len)
{
    struct dp_survival *s = world->survival;
    const struct dp_survival_message *m = message;
    const struct dp_survival_ending *end = message;

    if (len == sizeof(*end) && m->kind == DP_SURVIVAL_ABORT) {
        if (!dp_survival_has(s->dead, from))
            s->ops->note_abort(world, &end->why);
        return;
    }
    if (len == sizeof(*end) && m->kind == DP_SURVIVAL_REVOKE) {
        take_revocation(s, from, end);
        return;
    }
    if (len != s->message_bytes || s->excluded_by >= 0)
        return;
    /* It does not know yet that it is dead. */
    if (dp_survival_has(s->dead, from)) {
        if (m->kind != DP_SURVIVAL_DEATHS)
            tell(s, from, DP_SURVIVAL_DEATHS, NULL, 0);
        return;
    }
    if (from == s->asked)
        s->asked = -1;
    merge(s, from, m->dead);
    if (s->excluded_by >= 0)
        return;
    switch (m->kind) {
    case DP_SURVIVAL_PING:
        tell(s, from, DP_SURVIVAL_DEATHS, NULL, 0);
        break;
    case DP_SURVIVAL_QUERY:
        s->ranks[from].query = (struct dp_survival_query){true, m->context, m->number};
        answer(s, from);
        break;
    case DP_SURVIVAL_ANSWER:
        take_answer(s, from, m);
        break;
    case DP_SURVIVAL_DECISION:
        take_decision(s, from, m);
        break;
    case DP_SURVIVAL_BUSY:
        take_busy(s, m);
        break;
    case DP_SURVIVAL_DOING:
        take_note(s, m);
        break;
    }
}

/* ---- agreement: what the caller does --------------------------------------------------------- */

static int new_agreement(struct dp_survival *s, uint32_t context, struct dp_agreement **out)
{
    struct dp_agreement *a = calloc(1, sizeof(*a) + 3 * set_bytes(s));

    if (!a)
        return dp_fail(DP_ENOMEM, "no memory to agree with %d ranks", s->world->size);
    uint64_t *sets = (uint64_t *)(a + 1);
    a->context = context;
    a->answered = sets;
    a->decisions[0] = sets + s->words;
    a->decisions[1] = sets + 2 * s->words;
    a->next = s->agreements;
    s->agreements = a;
    *out = a;
    return 0;
}

int dp_agreement_begin(struct dp_survival *s, struct dp_comm *comm, uint64_t flags,
                       struct dp_agreement **out)
{
    const uint32_t context = (uint32_t)context_of(comm);
    struct dp_agreement *a = find(s, context);
    int err = a ? 0 : new_agreement(s, context, &a);

    if (err)
        return err;
    a->number++;
    a->own_flags = a->flags = flags;
    a->coordinator = -1;
    a->contexts = (uint32_t)s->world->contexts;
    memset(a->answered, 0, set_bytes(s));
    for (int peer = 0; peer < s->world->size; peer++)
        answer(s, peer);
    *out = a;
    return 0;
}

static bool is_silent(const struct dp_survival *s, const struct dp_agreement *a, int rank)
{
    return rank != s->world->rank && !dp_survival_has(s->dead, rank) &&
           !dp_survival_has(a->answered, rank);
}

/* Whether live members have not answered yet. */
static bool is_any_silent(const struct dp_survival *s, const struct dp_comm *comm,
                          const struct dp_agreement *a)
{
    for (int i = 0; i < comm->size; i++)
        if (is_silent(s, a, dp_comm_world_rank(comm, i)))
            return true;
    return false;
}

static void tell_members(struct dp_survival *s, const struct dp_comm *comm,
                         const struct dp_agreement *a, enum dp_survival_kind kind)
{
    for (int i = 0; i < comm->size; i++) {
        const int rank = dp_comm_world_rank(comm, i);
        if (rank == s->world->rank || dp_survival_has(s->dead, rank))
            continue;
        if (kind == DP_SURVIVAL_DECISION)
            tell_notes_of_dead(s, rank);
        tell(s, rank, kind, a, a->number);
    }
}

static void declare_silent(struct dp_survival *s, const struct dp_comm *comm,
                           const struct dp_agreement *a)
{
    for (int i = 0; i < comm->size; i++) {
        const int rank = dp_comm_world_rank(comm, i);
        if (is_silent(s, a, rank))
            dp_survival_declare(s, rank);
    }
}

static int first_alive(const struct dp_survival *s, const struct dp_comm *comm)
{
    int first = s->world->rank;

    for (int i = 0; i < comm->size; i++) {
        const int rank = dp_comm_world_rank(comm, i);
        if (!dp_survival_has(s->dead, rank) && rank < first)
            first = rank;
    }
    return first;
}

/* The coordinator is another one than before, or the first one. It may know the decision already,
 * of a coordinator that has died since, and then does not ask: so it is asked. */
static void change_coordinator(struct dp_survival *s, const struct dp_comm *comm,
                               struct dp_agreement *a, int coordinator, int64_t now_ns)
{
    a->coordinator = coordinator;
    a->since_ns = now_ns;
    if (coordinator != s->world->rank) {
        s->news->watch(s, coordinator);
        tell(s, coordinator, DP_SURVIVAL_QUERY, a, a->number);
        return;
    }
    memset(a->answered, 0, set_bytes(s));
    tell_members(s, comm, a, DP_SURVIVAL_QUERY);
}

static void conclude(struct dp_survival *s, const struct dp_comm *comm, struct dp_agreement *a)
{
    decide(s, a, s->dead, a->contexts, a->flags);
    tell_members(s, comm, a, DP_SURVIVAL_DECISION);
}

/* A coordinator that has asked may wait for the others as long as this rank would. */
static int64_t end_of_wait(const struct dp_survival *s, const struct dp_agreement *a,
                           int64_t wait_ns)
{
    const int64_t busy_ns = s->world->ops->busy_until(s->world);
    const int64_t from_ns = busy_ns > a->since_ns ? busy_ns : a->since_ns;

    return from_ns + (a->coordinator != s->world->rank ? 2 * wait_ns : wait_ns);
}

int dp_agreement_step(struct dp_survival *s, struct dp_comm *comm, struct dp_agreement *a,
                      int64_t now_ns, int64_t wait_ns, int64_t *waits_until_ns)
{
    while (a->decided != a->number) {
        const int coordinator = first_alive(s, comm);
        const bool is_own = coordinator == s->world->rank;
        if (coordinator != a->coordinator)
            change_coordinator(s, comm, a, coordinator, now_ns);
        if (is_own && !is_any_silent(s, comm, a)) {
            conclude(s, comm, a);
            break;
        }
        *waits_until_ns = end_of_wait(s, a, wait_ns);
        if (now_ns < *waits_until_ns)
            return DP_EAGAIN;
        if (is_own)
            declare_silent(s, comm, a);
        else
            dp_survival_declare(s, coordinator);
    }
    return 0;
}

const uint64_t *dp_agreement_result(const struct dp_agreement *a, int *contexts, uint64_t *flags)
{
    *flags = a->decisions_flags[a->decided % 2];
    *contexts = (int)a->decisions_contexts[a->decided % 2];
    return a->decisions[a->decided % 2];
}

/* ---- new and free ---------------------------------------------------------------------------- */

int dp_survival_new(struct dp_comm *world, struct dp_survival **out)
{
    struct dp_survival *s = calloc(1, sizeof(*s));

    if (!s)
        return dp_fail(DP_ENOMEM, "no memory for a group that survives");
    s->world = world;
    s->ops = world->ops->survival;
    s->words = (world->size + 63) / 64;
    s->excluded_by = s->asked = -1;
    s->message_bytes = sizeof(struct dp_survival_message) + 2 * set_bytes(s);
    s->room = s->message_bytes > sizeof(struct dp_survival_ending)
                  ? s->message_bytes
                  : sizeof(struct dp_survival_ending);
    s->dead = calloc((size_t)s->words, sizeof(*s->dead));
    s->left = calloc((size_t)s->words, sizeof(*s->left));
    s->ranks = calloc((size_t)world->size, sizeof(*s->ranks));
    s->out = calloc(1, s->message_bytes);
    if (s->dead && s->left && s->ranks && s->out) {
        *out = s;
        return 0;
    }
    dp_survival_free(s);
    return dp_fail(DP_ENOMEM, "no memory for a group that survives");
}

void dp_survival_free(struct dp_survival *s)
{
    if (!s)
        return;
    while (s->agreements) {
        struct dp_agreement *a = s->agreements;
        s->agreements = a->next;
        free(a);
    }
    while (s->revocations) {
        struct dp_revocation *r = s->revocations;
        s->revocations = r->next;
        free(r);
    }
    free(s->out);
    free(s->ranks);
    free(s->left);
    free(s->dead);
    free(s);
}

const struct dp_comm_hooks dp_survival_hooks = {
    .has_lost = has_lost,
    .find_dead = find_dead,
    .fail = fail,
    .is_excluded = is_excluded,
    .end = dp_survival_end,
    .explain = explain,
    .take_in = take_in,
    .doing = find_doing,
    .free = dp_survival_free,
    .handle = dp_survival_handle,
    .lose = lose,
    .tell_abort = tell_abort,
    .tell_busy = tell_busy,
    .tell_doing = tell_doing,
    .leave = leave,
};
