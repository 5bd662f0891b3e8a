/* SPDX-License-Identifier: Apache-2.0
 *
 * rendezvous.c - control connections once ranks have found each other (rendezvous_join.c): gathers,
 * failures, ends. In a gather each rank hands in its endpoint and gets those of all; a rank that has the
 * table knows that all others have come.
 */
#include "comm/rendezvous.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/text.h"
#include "wire/tcp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How long a member waits for the root's verdict before it records its own. */
static const int64_t VERDICT_NS = 800 * DP_NS_PER_MS;

/* ---- messages out ---------------------------------------------------------------------------- */

static bool is_here(const struct dp_rendezvous_peer *p)
{
    return p->wire && !p->is_gone;
}

/* A message to a peer with a full outbox is dropped: no message here is worth a wait. */
static void tell(struct dp_rendezvous_peer *p, const struct dp_rendezvous_message *m)
{
    if (!is_here(p))
        return;
    for (int i = 0; i < DP_RENDEZVOUS_OUTBOX; i++) {
        if (p->sends[i].status == DP_EAGAIN)
            continue;
        p->out[i] = *m;
        dp_wire_isend(p->wire, m->kind, &p->out[i], dp_rendezvous_message_bytes(m),
                      &p->sends[i]);
        return;
    }
}

static void tell_all(struct dp_rendezvous *rv, const struct dp_rendezvous_message *m)
{
    for (int i = 0; i < dp_rendezvous_peer_count(rv); i++)
        tell(&rv->peers[i], m);
}

static struct dp_rendezvous_message make_record(const struct dp_rendezvous *rv,
                                                  enum dp_rendezvous_kind kind,
                                                  const struct dp_abort *why)
{
    struct dp_rendezvous_message m = {
        .kind = kind, .count = rv->epoch, .rank = why->rank, .value = why->error};

    m.doing = why->doing;
    memcpy(m.text, why->text, sizeof(m.text));
    return m;
}

static struct dp_abort message_record(const struct dp_rendezvous_message *m)
{
    struct dp_abort why = {.rank = m->rank, .error = m->value, .doing = m->doing};

    memcpy(why.text, m->text, sizeof(why.text));
    why.text[sizeof(why.text) - 1] = '\0';
    return why;
}
_Static_assert(sizeof(((struct dp_abort *)0)->text) ==
                   sizeof(((struct dp_rendezvous_message *)0)->text),
               "a record fits into a message");

/* ---- failure ------------------------------------------------------------------------------- */

static uint64_t doing_of(const struct dp_rendezvous *rv, int rank)
{
    if (rank < 0)
        return 0;
    return rank == rv->rank && rv->own_doing ? atomic_load(rv->own_doing) : rv->ranks[rank].doing;
}

/* The root's decision holds for all ranks. */
static void settle(struct dp_rendezvous *rv, const struct dp_abort *why)
{
    if (!dp_abort_record_put(&rv->abort_record, why))
        return;
    struct dp_rendezvous_message m = make_record(rv, DP_RENDEZVOUS_VERDICT, why);
    tell_all(rv, &m);
}

static void decide(struct dp_rendezvous *rv, struct dp_abort why)
{
    if (!why.doing)
        why.doing = doing_of(rv, why.rank);
    settle(rv, &why);
}

/* A wait in vain is the fault of the last rank in the chain of those that wait. A rank that began to
 * wait a moment ago has not said so yet: it is given the time to. What counts is which ranks waited
 * when the accusation came, as they may go on afterwards. */
static void accuse(struct dp_rendezvous *rv, int accuser, const struct dp_abort *why)
{
    const bool is_in_vain = why->error == DP_ETIMEDOUT && why->rank != accuser;

    if (rv->accusation.error && (is_in_vain || !rv->accused_ns))
        return;
    rv->accusation = *why;
    rv->accuser = accuser;
    rv->accused_ns = 0;
}

static void begin_grace(struct dp_rendezvous *rv)
{
    if (rv->accused_ns)
        return;
    rv->accused_ns = dp_now_ns();
    rv->probed_ns = 0;
    for (int i = 0; i < rv->size; i++)
        atomic_store(&rv->suspects[i], atomic_load(&rv->waiting_for[i]));
}

static void note_waiting(struct dp_rendezvous *rv, int rank, int peer, int64_t since_ns)
{
    atomic_store(&rv->waiting_for[rank], peer);
    if (rv->accused_ns && peer >= 0 && since_ns <= rv->accused_ns &&
        atomic_load(&rv->suspects[rank]) < 0)
        atomic_store(&rv->suspects[rank], peer);
}

/* Whether there is a rank whose word may still come. */
static bool is_in_grace(const struct dp_rendezvous *rv)
{
    const int end = dp_abort_record_end(rv->accusation.rank, rv->suspects, rv->size);

    return end >= 0 && !rv->ranks[end].left && !rv->ranks[end].lost &&
           dp_now_ns() < rv->accused_ns + DP_ABORT_GRACE_MS * DP_NS_PER_MS;
}

/* Where ranks wait in a circle: whether an answer may still come of one that was perhaps stopped in
 * its wait. All others answer, as a message wakes them. */
static bool is_probing(struct dp_rendezvous *rv)
{
    const struct dp_rendezvous_message m = {.kind = DP_RENDEZVOUS_PROBE, .count = rv->epoch};
    int missing = 0;

    if (rv->accusation.rank < 0 ||
        dp_abort_record_end(rv->accusation.rank, rv->suspects, rv->size) >= 0)
        return false;
    if (!rv->probed_ns) {
        rv->probed_ns = dp_now_ns();
        memset(rv->present, 0, (size_t)rv->size * sizeof(*rv->present));
        rv->present[0] = true;
        tell_all(rv, &m);
    }
    for (int i = 0; i < rv->size; i++)
        missing += !rv->present[i];
    if (missing && dp_now_ns() < rv->probed_ns + DP_ABORT_GRACE_MS * DP_NS_PER_MS)
        return true;
    dp_abort_record_break(rv->accusation.rank, rv->suspects, rv->size, rv->present);
    return false;
}

/* A rank that accuses itself is believed. */
static void consider(struct dp_rendezvous *rv)
{
    struct dp_abort why = rv->accusation;

    if (!why.error)
        return;
    if (why.error == DP_ETIMEDOUT && why.rank != rv->accuser) {
        begin_grace(rv);
        if ((is_in_grace(rv) || is_probing(rv)) && !dp_abort_record_get(&rv->abort_record, NULL))
            return;
        dp_abort_record_follow(&why, rv->suspects, rv->size);
    }
    rv->accusation.error = 0;
    rv->accused_ns = rv->probed_ns = 0;
    decide(rv, why);
}

void dp_rendezvous_describe_loss(const struct dp_rendezvous_peer *p, int rank, char *text,
                                 size_t room)
{
    const struct dp_wire *wire = p->wire;

    if (!wire->error)
        snprintf(text, room, "rank %d sent an invalid message", rank);
    else if (wire->is_closed)
        snprintf(text, room, "the process of rank %d has ended (%s)", rank, wire->why);
    else if (wire->is_reset)
        snprintf(text, room,
                 "the process of rank %d has ended, or the network has dropped its connection (%s)",
                 rank, wire->why);
    else
        snprintf(text, room,
                 "the connection to rank %d was lost (%s): its host or the network between is down",
                 rank, wire->why);
}

static void lose(struct dp_rendezvous *rv, int rank)
{
    struct dp_rendezvous_peer *p = &rv->peers[rv->rank ? 0 : rank];
    struct dp_abort why = {.rank = rank, .error = DP_ECOMM};

    p->is_gone = true;
    if (rv->ranks[rank].left)
        return;
    rv->ranks[rank].lost = true;
    atomic_fetch_add(&rv->ends, 1);
    if (rv->survives)
        return;
    dp_rendezvous_describe_loss(p, rank, why.text, sizeof(why.text));
    why.doing = doing_of(rv, rank);
    if (rv->rank)
        dp_abort_record_put(&rv->abort_record, &why);
    else
        decide(rv, why);
}

/* ---- messages in ----------------------------------------------------------------------------- */

/* A root that has left serves the others until they have left, too: its connection stays. The rank
 * that has left is told as well: it waits for that before it closes its end. */
static void note_left(struct dp_rendezvous *rv, int rank)
{
    const struct dp_rendezvous_message m = {.kind = DP_RENDEZVOUS_LEFT, .rank = rank};

    rv->ranks[rank].left = true;
    atomic_fetch_add(&rv->ends, 1);
    if (rv->rank == 0) {
        tell_all(rv, &m);
        rv->peers[rank].is_gone = true;
    }
}

void dp_rendezvous_note_busy(struct dp_rendezvous *rv, int rank, int64_t ns)
{
    atomic_store(&rv->ranks[rank].busy_until, dp_now_ns() + ns);
}

static void note_busy(struct dp_rendezvous *rv, const struct dp_rendezvous_message *m)
{
    dp_rendezvous_note_busy(rv, m->rank, m->value * DP_NS_PER_MS);
    if (!rv->rank)
        tell_all(rv, m);
}

/* false: an invalid message. */
static bool handle_at_root(struct dp_rendezvous *rv, int rank,
                           const struct dp_rendezvous_message *m)
{
    if (m->kind != DP_RENDEZVOUS_ABORT && m->kind != DP_RENDEZVOUS_UNANSWERED && m->rank != rank)
        return false;
    switch (m->kind) {
    case DP_RENDEZVOUS_ENDPOINT:
        rv->endpoints[rank] = m->endpoint;
        rv->ranks[rank].came = m->count;
        return true;
    case DP_RENDEZVOUS_WAITING:
        if (m->value >= rv->size)
            return false;
        if (m->count == rv->epoch)
            note_waiting(rv, rank, m->value, dp_now_ns() - m->waited_ns);
        return true;
    case DP_RENDEZVOUS_ABORT:
        if (m->rank < -1 || m->rank >= rv->size || m->value >= 0)
            return false;
        if (m->count == rv->epoch) {
            const struct dp_abort why = message_record(m);
            accuse(rv, rank, &why);
        }
        return true;
    case DP_RENDEZVOUS_BUSY:
        note_busy(rv, m);
        return m->value >= 0;
    case DP_RENDEZVOUS_DOING:
        if (m->count == rv->epoch)
            rv->ranks[rank].doing = m->doing;
        return true;
    case DP_RENDEZVOUS_UNANSWERED:
        if (m->rank || m->value >= 0)
            return false;
        if (m->count == rv->epoch) { /* it counts as it is: this rank has gone on since */
            const struct dp_abort why = message_record(m);
            settle(rv, &why);
        }
        return true;
    case DP_RENDEZVOUS_PRESENT:
        rv->present[rank] |= m->count == rv->epoch;
        return true;
    case DP_RENDEZVOUS_LEFT:
        note_left(rv, rank);
        return true;
    }
    return false;
}

static void answer_probe(struct dp_rendezvous *rv)
{
    const struct dp_rendezvous_message m = {
        .kind = DP_RENDEZVOUS_PRESENT, .count = rv->epoch, .rank = rv->rank};

    tell(&rv->peers[0], &m);
}

static bool handle_at_member(struct dp_rendezvous *rv, const struct dp_rendezvous_message *m)
{
    const bool may_name_none = m->kind == DP_RENDEZVOUS_FAILED || m->kind == DP_RENDEZVOUS_VERDICT;
    struct dp_abort why = message_record(m);

    if (m->rank < (may_name_none ? -1 : 0) || m->rank >= rv->size)
        return false;
    switch (m->kind) {
    case DP_RENDEZVOUS_FAILED:
        if (m->count == rv->gather)
            rv->failure = why;
        return true;
    case DP_RENDEZVOUS_VERDICT:
        if (m->count == rv->epoch)
            dp_abort_record_put(&rv->abort_record, &why);
        return true;
    case DP_RENDEZVOUS_BUSY:
        note_busy(rv, m);
        return m->value >= 0;
    case DP_RENDEZVOUS_DOING:
        if (m->count == rv->epoch)
            rv->ranks[m->rank].doing = m->doing;
        return true;
    case DP_RENDEZVOUS_PROBE:
        answer_probe(rv);
        return true;
    case DP_RENDEZVOUS_LEFT:
        note_left(rv, m->rank);
        return true;
    }
    return false;
}

/* All ranks have come to the gather: what was before is over. On a member this happens as soon as
 * it is told, since the next message may already belong to the new epoch. */
static void begin_epoch(struct dp_rendezvous *rv)
{
    rv->epoch = rv->gather;
    for (int i = 0; i < rv->size; i++) {
        atomic_store(&rv->waiting_for[i], -1);
        rv->ranks[i].doing = 0;
    }
    rv->accusation.error = 0;
    rv->accused_ns = rv->probed_ns = 0;
    dp_abort_record_clear(&rv->abort_record);
}

static bool handle_table(struct dp_rendezvous *rv, const struct dp_rendezvous_peer *p)
{
    const size_t bytes = (size_t)rv->size * sizeof(*rv->endpoints);

    if (p->receive.moved != bytes)
        return false;
    if (!rv->is_gathering || p->receive.tag >> 32 != rv->gather)
        return true;
    memcpy(rv->endpoints, p->in, bytes);
    begin_epoch(rv);
    return true;
}

static bool handle(struct dp_rendezvous *rv, int rank, const struct dp_rendezvous_peer *p)
{
    const struct dp_rendezvous_message *m = p->in;

    if (rv->rank && (p->receive.tag & UINT32_MAX) == DP_RENDEZVOUS_TABLE)
        return handle_table(rv, p);
    if (!dp_rendezvous_is_message(m, p->receive.moved) || m->kind != p->receive.tag)
        return false;
    return rv->rank ? handle_at_member(rv, m) : handle_at_root(rv, rank, m);
}

static void poll_peer(struct dp_rendezvous *rv, int rank, struct dp_rendezvous_peer *p)
{
    if (!is_here(p))
        return;
    p->wire->ops->progress(p->wire);
    while (is_here(p) && p->receive.status != DP_EAGAIN) {
        if (p->receive.status || !handle(rv, rank, p))
            lose(rv, rank);
        else
            dp_wire_irecv(p->wire, p->in, rv->in_room, &p->receive);
    }
}

/* The root reads all connections before it decides: the WAITING messages that lead to the culprit
 * may have arrived together with the abort. */
static void poll_all(struct dp_rendezvous *rv)
{
    for (int i = 0; i < dp_rendezvous_peer_count(rv); i++)
        poll_peer(rv, rv->rank ? 0 : i, &rv->peers[i]);
    consider(rv);
}

void dp_rendezvous_poll(struct dp_rendezvous *rv)
{
    pthread_mutex_lock(&rv->lock);
    poll_all(rv);
    pthread_mutex_unlock(&rv->lock);
}

static int arm(struct dp_rendezvous *rv, struct pollfd *fds)
{
    int count = 0;

    for (int i = 0; i < dp_rendezvous_peer_count(rv); i++) {
        struct dp_wire *wire = rv->peers[i].wire;
        if (!is_here(&rv->peers[i]))
            continue;
        if (rv->peers[i].receive.status != DP_EAGAIN || !wire->ops->arm(wire, &fds[count]))
            return -1;
        count++;
    }
    return count;
}

int dp_rendezvous_arm(struct dp_rendezvous *rv, struct pollfd *fds)
{
    pthread_mutex_lock(&rv->lock);
    int count = arm(rv, fds);
    pthread_mutex_unlock(&rv->lock);
    return count;
}

int dp_poll_call(const struct dp_poll *poll)
{
    const int err = poll->fn ? poll->fn(poll->user) : 0;

    return err ? dp_fail(err < 0 ? err : DP_EINTERRUPTED,
                         "a wait was interrupted by the caller's poll function")
               : 0;
}

/* Sleep a little, or until something comes, and handle that. Not locked while asleep; each sleeper
 * would need fds of its own, so that this is for one thread at a time. */
static void sleep_a_little(struct dp_rendezvous *rv)
{
    const int at_most_ms = rv->polls && rv->poll.fn ? 1 : 20;
    int count = arm(rv, rv->fds);

    pthread_mutex_unlock(&rv->lock);
    if (count >= 0)
        poll(rv->fds, (nfds_t)count, at_most_ms);
    if (rv->polls && !rv->interrupted)
        rv->interrupted = dp_poll_call(&rv->poll);
    pthread_mutex_lock(&rv->lock);
    poll_all(rv);
}

/* ---- gather ------------------------------------------------------------------------------------ */

static bool have_all_come(const struct dp_rendezvous *rv)
{
    for (int i = 0; i < rv->size; i++)
        if (rv->ranks[i].came != rv->gather)
            return false;
    return true;
}

/* The gather has failed, on all ranks for one reason. */
static int fail_gather(struct dp_rendezvous *rv, int rank, int error, const char *text)
{
    struct dp_abort why = {.rank = rank, .error = error};

    snprintf(why.text, sizeof(why.text), "%s", text);
    struct dp_rendezvous_message m = make_record(rv, DP_RENDEZVOUS_FAILED, &why);
    m.count = rv->gather;
    tell_all(rv, &m);
    return dp_fail(error, "%s", why.text);
}

static int report_missing(struct dp_rendezvous *rv)
{
    struct dp_text t = {0};
    int first = -1;

    for (int i = 0; i < rv->size; i++)
        if (rv->ranks[i].came != rv->gather) {
            dp_text_addf(&t, "%s%d", t.len ? ", " : "", i);
            first = first < 0 ? i : first;
        }
    char text[200];
    dp_snprintf(text, sizeof(text), "no message from rank %s within %.1f s", t.data ? t.data : "?",
                (double)rv->timeout_ns / DP_NS_PER_S);
    dp_text_fini(&t);
    return fail_gather(rv, first, DP_ETIMEDOUT, text);
}

/* The root's look at the gather: DP_EAGAIN while it may still succeed. */
static int check_gather(struct dp_rendezvous *rv, bool anew, int64_t until_ns)
{
    struct dp_abort why;
    char text[sizeof(why.text)];

    for (int i = 1; i < rv->size; i++)
        if (rv->peers[i].is_gone) {
            if (rv->ranks[i].left)
                snprintf(text, sizeof(text), "rank %d has left the group", i);
            else
                dp_rendezvous_describe_loss(&rv->peers[i], i, text, sizeof(text));
            return fail_gather(rv, i, DP_ECOMM, text);
        }
    if (!anew && dp_abort_record_get(&rv->abort_record, &why))
        return fail_gather(rv, why.rank, why.error, why.text);
    if (have_all_come(rv))
        return 0;
    if (rv->interrupted)
        return fail_gather(rv, 0, rv->interrupted, "rank 0 was interrupted");
    return dp_now_ns() > until_ns ? report_missing(rv) : DP_EAGAIN;
}

static void send_table(struct dp_rendezvous *rv, int64_t until_ns)
{
    const uint64_t tag = (uint64_t)rv->gather << 32 | DP_RENDEZVOUS_TABLE;
    const size_t bytes = (size_t)rv->size * sizeof(*rv->endpoints);
    bool sending = true;

    memcpy(rv->table, rv->endpoints, bytes); /* endpoints for the next gather may come meanwhile */
    for (int i = 1; i < rv->size; i++)
        dp_wire_isend(rv->peers[i].wire, tag, rv->table, bytes, &rv->peers[i].table);
    while (sending && dp_now_ns() < until_ns) {
        sending = false;
        for (int i = 1; i < rv->size; i++)
            sending |= rv->peers[i].table.status == DP_EAGAIN;
        if (sending)
            sleep_a_little(rv);
    }
}

static int gather_at_root(struct dp_rendezvous *rv, const struct dp_endpoint *mine, bool anew,
                          int64_t until_ns)
{
    int err;

    rv->endpoints[0] = *mine;
    rv->ranks[0].came = rv->gather;
    while ((err = check_gather(rv, anew, until_ns)) == DP_EAGAIN)
        sleep_a_little(rv);
    if (err)
        return err;
    begin_epoch(rv);
    send_table(rv, until_ns);
    return 0;
}

static int fail_without_root(const struct dp_rendezvous *rv)
{
    char text[sizeof(rv->failure.text)];

    if (rv->ranks[0].left)
        return dp_fail(DP_ECOMM, "rank 0 has left the group");
    dp_rendezvous_describe_loss(&rv->peers[0], 0, text, sizeof(text));
    return dp_fail(DP_ECOMM, "%s", text);
}

static int gather_at_member(struct dp_rendezvous *rv, const struct dp_endpoint *mine,
                            int64_t until_ns)
{
    const struct dp_rendezvous_message m = {
        .kind = DP_RENDEZVOUS_ENDPOINT, .count = rv->gather, .rank = rv->rank, .endpoint = *mine};
    int err = 0;

    rv->failure.error = 0;
    tell(&rv->peers[0], &m);
    while (rv->epoch != rv->gather && !rv->failure.error && !err) {
        if (rv->peers[0].is_gone || rv->ranks[0].left)
            err = fail_without_root(rv);
        else if (rv->interrupted)
            err = rv->interrupted;
        else if (dp_now_ns() > until_ns)
            err = dp_fail(DP_ETIMEDOUT, "no message from rank 0 within %.1f s",
                          (double)rv->timeout_ns / DP_NS_PER_S);
        else
            sleep_a_little(rv);
    }
    if (rv->failure.error)
        err = dp_fail(rv->failure.error, "%s", rv->failure.text);
    return err;
}

int dp_rendezvous_gather(struct dp_rendezvous *rv, const struct dp_endpoint *mine, bool anew,
                         int64_t until_ns)
{
    pthread_mutex_lock(&rv->lock);
    rv->gather++;
    rv->is_gathering = rv->polls = true;
    rv->interrupted = 0;
    int err = rv->rank ? gather_at_member(rv, mine, until_ns + DP_NS_PER_S)
                       : gather_at_root(rv, mine, anew, until_ns);
    rv->is_gathering = rv->polls = false;
    pthread_mutex_unlock(&rv->lock);
    return err;
}

/* ---- messages of this rank ------------------------------------------------------------------- */

void dp_rendezvous_tell_waiting(struct dp_rendezvous *rv, int peer, int64_t since_ns)
{
    const struct dp_rendezvous_message m = {.kind = DP_RENDEZVOUS_WAITING,
                                            .count = rv->epoch,
                                            .rank = rv->rank,
                                            .value = peer,
                                            .waited_ns = dp_now_ns() - since_ns};

    pthread_mutex_lock(&rv->lock);
    if (rv->rank)
        tell(&rv->peers[0], &m);
    else
        note_waiting(rv, 0, peer, since_ns);
    pthread_mutex_unlock(&rv->lock);
}

bool dp_rendezvous_tell_doing(struct dp_rendezvous *rv, uint64_t doing)
{
    const struct dp_rendezvous_message m = {
        .kind = DP_RENDEZVOUS_DOING, .count = rv->epoch, .rank = rv->rank, .doing = doing};
    bool all = true;

    pthread_mutex_lock(&rv->lock);
    for (int i = 0; i < dp_rendezvous_peer_count(rv); i++) {
        struct dp_rendezvous_peer *p = &rv->peers[i];
        all &= !is_here(p) || p->doing.status != DP_EAGAIN;
        if (!is_here(p) || p->doing.status == DP_EAGAIN)
            continue;
        p->out_doing = m;
        dp_wire_isend(p->wire, m.kind, &p->out_doing, dp_rendezvous_message_bytes(&m), &p->doing);
    }
    pthread_mutex_unlock(&rv->lock);
    return all;
}

int64_t dp_rendezvous_decides_ns(struct dp_rendezvous *rv)
{
    pthread_mutex_lock(&rv->lock);
    const int64_t from_ns = rv->probed_ns > rv->accused_ns ? rv->probed_ns : rv->accused_ns;
    pthread_mutex_unlock(&rv->lock);
    return from_ns ? from_ns + DP_ABORT_GRACE_MS * DP_NS_PER_MS : INT64_MAX;
}

void dp_rendezvous_busy(struct dp_rendezvous *rv, int64_t ns)
{
    const int64_t ms = (ns + DP_NS_PER_MS - 1) / DP_NS_PER_MS;
    const struct dp_rendezvous_message m = {.kind = DP_RENDEZVOUS_BUSY,
                                            .rank = rv->rank,
                                            .value = ms < INT32_MAX ? (int32_t)ms : INT32_MAX};

    pthread_mutex_lock(&rv->lock);
    dp_rendezvous_note_busy(rv, rv->rank, ns);
    tell_all(rv, &m);
    pthread_mutex_unlock(&rv->lock);
}

int64_t dp_rendezvous_busy_until(const struct dp_rendezvous *rv)
{
    int64_t latest_ns = 0;

    for (int i = 0; i < rv->size; i++) {
        const int64_t end_ns = atomic_load(&rv->ranks[i].busy_until);
        latest_ns = end_ns > latest_ns ? end_ns : latest_ns;
    }
    return latest_ns;
}

/* No verdict came: the root does not answer, or has left. */
static void record_own(struct dp_rendezvous *rv, const struct dp_abort *why)
{
    struct dp_abort own = *why;

    if (own.error == DP_ETIMEDOUT && !rv->ranks[0].left) {
        size_t len = strlen(own.text);
        snprintf(own.text + len, sizeof(own.text) - len, ", and rank 0 does not answer");
        own.rank = 0;
        own.doing = doing_of(rv, 0);
        /* Once it goes on it must not decide otherwise. */
        const struct dp_rendezvous_message m =
            make_record(rv, DP_RENDEZVOUS_UNANSWERED, &own);
        tell(&rv->peers[0], &m);
    }
    if (!own.doing)
        own.doing = doing_of(rv, own.rank);
    dp_abort_record_put(&rv->abort_record, &own);
}

static void ask_root(struct dp_rendezvous *rv, const struct dp_abort *why)
{
    struct dp_rendezvous_message m = make_record(rv, DP_RENDEZVOUS_ABORT, why);
    const int64_t until_ns = dp_now_ns() + VERDICT_NS;
    struct pollfd fd;

    if (why->rank == rv->rank && !m.doing)
        m.doing = doing_of(rv, rv->rank);

    tell(&rv->peers[0], &m);
    while (!dp_abort_record_get(&rv->abort_record, NULL) && is_here(&rv->peers[0]) &&
           dp_now_ns() < until_ns) {
        struct dp_wire *wire = rv->peers[0].wire;
        bool armed = wire->ops->arm(wire, &fd);
        pthread_mutex_unlock(&rv->lock);
        if (armed)
            poll(&fd, 1, 20);
        pthread_mutex_lock(&rv->lock);
        poll_all(rv);
    }
    if (!dp_abort_record_get(&rv->abort_record, NULL))
        record_own(rv, why);
}

/* Only a wait in vain takes time, and only the thread that waits gets that far. */
static void decide_at_root(struct dp_rendezvous *rv, const struct dp_abort *why)
{
    accuse(rv, 0, why);
    consider(rv);
    while (!dp_abort_record_get(&rv->abort_record, NULL))
        sleep_a_little(rv);
}

void dp_rendezvous_abort(struct dp_rendezvous *rv, const struct dp_abort *why)
{
    pthread_mutex_lock(&rv->lock);
    poll_all(rv);
    if (!dp_abort_record_get(&rv->abort_record, NULL)) {
        if (rv->rank)
            ask_root(rv, why);
        else
            decide_at_root(rv, why);
    }
    pthread_mutex_unlock(&rv->lock);
}

/* ---- end ----------------------------------------------------------------------------------- */

static bool is_any_peer_here(const struct dp_rendezvous *rv)
{
    for (int i = 0; i < dp_rendezvous_peer_count(rv); i++)
        if (is_here(&rv->peers[i]))
            return true;
    return false;
}

static bool is_anything_unsent(const struct dp_rendezvous *rv)
{
    for (int i = 0; i < dp_rendezvous_peer_count(rv); i++)
        if (is_here(&rv->peers[i]) && dp_wire_is_sending(rv->peers[i].wire))
            return true;
    return false;
}

/* Whether a rank that leaves must stay. A member that closes a socket with unread bytes in it resets
 * the connection, and what it has sent, that it leaves, is lost if the root's system has not got it
 * yet: so it waits until the root says that it knows. */
static bool must_stay(const struct dp_rendezvous *rv, bool waits, bool aborted)
{
    if (waits)
        return is_any_peer_here(rv);
    return is_anything_unsent(rv) ||
           (rv->rank && !aborted && !rv->ranks[rv->rank].left && is_here(&rv->peers[0]));
}

void dp_rendezvous_leave(struct dp_rendezvous *rv)
{
    const struct dp_rendezvous_message m = {.kind = DP_RENDEZVOUS_LEFT, .rank = rv->rank};

    pthread_mutex_lock(&rv->lock);
    /* After an abort all ranks have been sent the record, and the root is not needed any more; but
     * the record must be read before the connection is closed. */
    const bool aborted = dp_abort_record_get(&rv->abort_record, NULL);
    const bool waits = !rv->rank && !rv->survives;
    int64_t until_ns = dp_now_ns() + (aborted || !waits ? DP_NS_PER_S : rv->timeout_ns);
    poll_all(rv);
    tell_all(rv, &m);
    rv->interrupted = 0;
    rv->polls = true;
    while (must_stay(rv, waits, aborted) && dp_now_ns() < until_ns && !rv->interrupted)
        sleep_a_little(rv);
    pthread_mutex_unlock(&rv->lock);
    dp_rendezvous_free(rv);
}

void dp_rendezvous_drain(struct dp_rendezvous *rv)
{
    const int64_t until_ns = dp_now_ns() + DP_NS_PER_S;

    pthread_mutex_lock(&rv->lock);
    while (!rv->rank && is_any_peer_here(rv) && dp_now_ns() < until_ns)
        sleep_a_little(rv);
    pthread_mutex_unlock(&rv->lock);
}

void dp_rendezvous_free(struct dp_rendezvous *rv)
{
    if (!rv)
        return;
    for (int i = 0; rv->peers && i < dp_rendezvous_peer_count(rv); i++) {
        dp_wire_close(rv->peers[i].wire);
        free(rv->peers[i].in);
    }
    pthread_mutex_destroy(&rv->lock);
    free(rv->table);
    free(rv->endpoints);
    free(rv->ranks);
    free(rv->waiting_for);
    free(rv->suspects);
    free(rv->present);
    free(rv->fds);
    free(rv->peers);
    free(rv);
}

/* ---- beginning ----------------------------------------------------------------------------- */

static bool allocate(struct dp_rendezvous *rv)
{
    const size_t n = (size_t)rv->size, peers = (size_t)dp_rendezvous_peer_count(rv);

    rv->peers = calloc(peers, sizeof(*rv->peers));
    rv->fds = calloc(n, sizeof(*rv->fds));
    rv->waiting_for = calloc(n, sizeof(*rv->waiting_for));
    rv->suspects = calloc(n, sizeof(*rv->suspects));
    rv->present = calloc(n, sizeof(*rv->present));
    rv->ranks = calloc(n, sizeof(*rv->ranks));
    rv->endpoints = calloc(n, sizeof(*rv->endpoints));
    rv->table = calloc(n, sizeof(*rv->table));
    bool ok = rv->peers && rv->present && rv->fds && rv->waiting_for && rv->suspects &&
              rv->ranks && rv->endpoints && rv->table;
    for (size_t i = 0; ok && i < peers; i++)
        ok = (rv->peers[i].in = malloc(rv->in_room));
    return ok;
}

int dp_rendezvous_new(int rank, int size, int64_t timeout_ns, struct dp_rendezvous **out)
{
    struct dp_rendezvous *rv = calloc(1, sizeof(*rv));

    if (!rv)
        return dp_fail(DP_ENOMEM, "no memory for a group of %d ranks", size);
    rv->rank = rank;
    rv->size = size;
    rv->timeout_ns = timeout_ns;
    rv->in_room = sizeof(struct dp_rendezvous_message);
    if (rank && (size_t)size * sizeof(struct dp_endpoint) > rv->in_room)
        rv->in_room = (size_t)size * sizeof(struct dp_endpoint);
    pthread_mutex_init(&rv->lock, NULL);
    if (!allocate(rv)) {
        dp_rendezvous_free(rv);
        return dp_fail(DP_ENOMEM, "no memory for a group of %d ranks", size);
    }
    for (int i = 0; i < size; i++)
        atomic_init(&rv->waiting_for[i], -1);
    *out = rv;
    return 0;
}

void dp_rendezvous_adopt(struct dp_rendezvous *rv, struct dp_rendezvous_peer *peer,
                         struct dp_wire *wire)
{
    peer->wire = wire;
    dp_wire_tcp_set_timeout(wire, rv->timeout_ns);
    dp_wire_irecv(wire, peer->in, rv->in_room, &peer->receive);
}

bool dp_rendezvous_has_left(struct dp_rendezvous *rv, int rank)
{
    pthread_mutex_lock(&rv->lock);
    bool left = rv->ranks[rank].left;
    pthread_mutex_unlock(&rv->lock);
    return left;
}

unsigned dp_rendezvous_ends(struct dp_rendezvous *rv)
{
    return atomic_load(&rv->ends);
}

bool dp_rendezvous_has_ended(struct dp_rendezvous *rv, int rank)
{
    pthread_mutex_lock(&rv->lock);
    bool ended = rv->ranks[rank].lost;
    pthread_mutex_unlock(&rv->lock);
    return ended;
}

bool dp_rendezvous_find_address(const struct dp_rendezvous *rv, union dp_sockaddr *out)
{
    for (int i = 0; i < dp_rendezvous_peer_count(rv); i++)
        if (rv->peers[i].wire && !dp_wire_tcp_local(rv->peers[i].wire, out) &&
            !dp_sockaddr_is_loopback(out))
            return true;
    return false;
}
