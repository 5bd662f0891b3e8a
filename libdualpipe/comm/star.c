/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/star.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/text.h"
#include "wire/tcp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How long a member waits for the root's verdict before it takes its own word. */
static const int64_t VERDICT_NS = 800 * DP_NS_PER_MS;

/* ---- messages out ---------------------------------------------------------------------------- */

static bool is_here(const struct dp_star_peer *p)
{
    return p->wire && !p->is_gone;
}

/* A peer that has not read what it was told for so long is told no more: nothing here is worth waiting
 * for it. */
static void tell(struct dp_star_peer *p, const struct dp_star_message *m)
{
    if (!is_here(p))
        return;
    for (int i = 0; i < DP_STAR_OUTBOX; i++) {
        if (p->sends[i].status == DP_EAGAIN)
            continue;
        p->out[i] = *m;
        dp_wire_isend(p->wire, m->kind, &p->out[i], sizeof(*m), &p->sends[i]);
        return;
    }
}

static void tell_all(struct dp_star *star, const struct dp_star_message *m)
{
    for (int i = 0; i < dp_star_peer_count(star); i++)
        tell(&star->peers[i], m);
}

static struct dp_star_message record_message(const struct dp_star *star, enum dp_star_kind kind,
                                             const struct dp_abort *why)
{
    struct dp_star_message m = {
        .kind = kind, .count = star->epoch, .rank = why->rank, .value = why->error};

    memcpy(m.text, why->text, sizeof(m.text));
    return m;
}

static struct dp_abort message_record(const struct dp_star_message *m)
{
    struct dp_abort why = {.rank = m->rank, .error = m->value};

    memcpy(why.text, m->text, sizeof(why.text));
    why.text[sizeof(why.text) - 1] = '\0';
    return why;
}
_Static_assert(sizeof(((struct dp_abort *)0)->text) == sizeof(((struct dp_star_message *)0)->text),
               "a record fits into a message");

/* ---- failure ------------------------------------------------------------------------------- */

/* The root's decision is everybody's. */
static void decide(struct dp_star *star, struct dp_abort why)
{
    if (why.error == DP_ETIMEDOUT)
        dp_blame_follow(&why, star->waiting_for, star->size);
    if (!dp_blame_put(&star->blame, &why))
        return;
    struct dp_star_message m = record_message(star, DP_STAR_VERDICT, &why);
    tell_all(star, &m);
}

static void lose(struct dp_star *star, int rank, const char *reason)
{
    struct dp_abort why = {.rank = rank, .error = DP_ECOMM};

    star->peers[star->rank ? 0 : rank].is_gone = true;
    if (star->left[rank])
        return;
    snprintf(why.text, sizeof(why.text), "the process of rank %d has ended (%s)", rank, reason);
    if (star->rank)
        dp_blame_put(&star->blame, &why);
    else
        decide(star, why);
}

/* ---- messages in ----------------------------------------------------------------------------- */

static void note_left(struct dp_star *star, int rank)
{
    const struct dp_star_message m = {.kind = DP_STAR_LEFT, .rank = rank};

    star->left[rank] = true;
    if (star->rank == 0) {
        star->peers[rank].is_gone = true;
        tell_all(star, &m);
    } else if (rank == 0) {
        star->peers[0].is_gone = true;
    }
}

/* false: nonsense. */
static bool handle_at_root(struct dp_star *star, int rank, const struct dp_star_message *m)
{
    if (m->kind != DP_STAR_ABORT && m->rank != rank)
        return false;
    switch (m->kind) {
    case DP_STAR_CARD:
        star->cards[rank] = m->card;
        star->came[rank] = m->count;
        return true;
    case DP_STAR_WAITING:
        if (m->value >= star->size)
            return false;
        if (m->count == star->epoch)
            atomic_store(&star->waiting_for[rank], m->value);
        return true;
    case DP_STAR_ABORT:
        if (m->rank < 0 || m->rank >= star->size || m->value >= 0)
            return false;
        if (m->count == star->epoch && !star->accusation.error)
            star->accusation = message_record(m);
        return true;
    case DP_STAR_LEFT:
        note_left(star, rank);
        return true;
    }
    return false;
}

static bool handle_at_member(struct dp_star *star, const struct dp_star_message *m)
{
    struct dp_abort why = message_record(m);

    if (m->rank < 0 || m->rank >= star->size)
        return false;
    switch (m->kind) {
    case DP_STAR_FAILED:
        if (m->count == star->gather)
            star->failure = why;
        return true;
    case DP_STAR_VERDICT:
        if (m->count == star->epoch)
            dp_blame_put(&star->blame, &why);
        return true;
    case DP_STAR_LEFT:
        note_left(star, m->rank);
        return true;
    }
    return false;
}

/* All ranks have come to the gather: what was before is over. On a member this happens as soon as it
 * is told, since the next message may already belong to the new epoch. */
static void begin_epoch(struct dp_star *star)
{
    star->epoch = star->gather;
    for (int i = 0; i < star->size; i++)
        atomic_store(&star->waiting_for[i], -1);
    dp_blame_clear(&star->blame);
}

static bool handle_table(struct dp_star *star, const struct dp_star_peer *p)
{
    const size_t bytes = (size_t)star->size * sizeof(*star->cards);

    if (p->receive.moved != bytes)
        return false;
    if (!star->is_gathering || p->receive.tag >> 32 != star->gather)
        return true;
    memcpy(star->cards, p->in, bytes);
    begin_epoch(star);
    return true;
}

static bool handle(struct dp_star *star, int rank, const struct dp_star_peer *p)
{
    const struct dp_star_message *m = p->in;

    if (star->rank && (p->receive.tag & UINT32_MAX) == DP_STAR_TABLE)
        return handle_table(star, p);
    if (p->receive.moved != sizeof(*m) || m->kind != p->receive.tag)
        return false;
    return star->rank ? handle_at_member(star, m) : handle_at_root(star, rank, m);
}

static void poll_peer(struct dp_star *star, int rank, struct dp_star_peer *p)
{
    if (!is_here(p))
        return;
    p->wire->ops->progress(p->wire);
    while (is_here(p) && p->receive.status != DP_EAGAIN) {
        if (p->receive.status)
            lose(star, rank, p->wire->error ? p->wire->why : "it sent too long a message");
        else if (!handle(star, rank, p))
            lose(star, rank, "it sent nonsense");
        else
            dp_wire_irecv(p->wire, p->in, star->in_room, &p->receive);
    }
}

/* The root hears everybody before it decides: who waits for whom may be news as old as the abort. */
static void poll_all(struct dp_star *star)
{
    for (int i = 0; i < dp_star_peer_count(star); i++)
        poll_peer(star, star->rank ? 0 : i, &star->peers[i]);
    if (star->accusation.error)
        decide(star, star->accusation);
    star->accusation.error = 0;
}

void dp_star_poll(struct dp_star *star)
{
    pthread_mutex_lock(&star->lock);
    poll_all(star);
    pthread_mutex_unlock(&star->lock);
}

static int arm(struct dp_star *star, struct pollfd *fds)
{
    int count = 0;

    for (int i = 0; i < dp_star_peer_count(star); i++) {
        struct dp_wire *wire = star->peers[i].wire;
        if (!is_here(&star->peers[i]))
            continue;
        if (star->peers[i].receive.status != DP_EAGAIN || !wire->ops->arm(wire, &fds[count]))
            return -1;
        count++;
    }
    return count;
}

int dp_star_arm(struct dp_star *star, struct pollfd *fds)
{
    pthread_mutex_lock(&star->lock);
    int count = arm(star, fds);
    pthread_mutex_unlock(&star->lock);
    return count;
}

/* Sleep a little, or until something comes, and handle that. The lock is held, but not while asleep;
 * each sleeper would need fds of its own, so that this is for one thread at a time. */
static void sleep_and_poll(struct dp_star *star)
{
    enum { AT_MOST_MS = 20 };
    int count = arm(star, star->fds);

    pthread_mutex_unlock(&star->lock);
    if (count >= 0)
        poll(star->fds, (nfds_t)count, AT_MOST_MS);
    pthread_mutex_lock(&star->lock);
    poll_all(star);
}

/* ---- gathering ------------------------------------------------------------------------------- */

static bool have_all_come(const struct dp_star *star)
{
    for (int i = 0; i < star->size; i++)
        if (star->came[i] != star->gather)
            return false;
    return true;
}

/* The gather has failed, on all ranks for one reason. */
static int fail_gather(struct dp_star *star, int rank, int error, const char *text)
{
    struct dp_abort why = {.rank = rank, .error = error};

    snprintf(why.text, sizeof(why.text), "%s", text);
    struct dp_star_message m = record_message(star, DP_STAR_FAILED, &why);
    m.count = star->gather;
    tell_all(star, &m);
    return dp_fail(error, "%s", why.text);
}

static int say_missing(struct dp_star *star)
{
    struct dp_text t = {0};
    int first = -1;

    for (int i = 0; i < star->size; i++)
        if (star->came[i] != star->gather) {
            dp_text_addf(&t, "%s%d", t.len ? ", " : "", i);
            first = first < 0 ? i : first;
        }
    char text[200];
    snprintf(text, sizeof(text), "no word from rank %s within %.1f s", t.data ? t.data : "?",
             (double)star->timeout_ns / DP_NS_PER_S);
    dp_text_fini(&t);
    return fail_gather(star, first, DP_ETIMEDOUT, text);
}

/* The root's look at the gather: DP_EAGAIN while it may still succeed. */
static int check_gather(struct dp_star *star, bool anew, int64_t until_ns)
{
    struct dp_abort why;
    char text[64];

    for (int i = 1; i < star->size; i++)
        if (star->peers[i].is_gone) {
            snprintf(text, sizeof(text), "rank %d %s", i,
                     star->left[i] ? "has left the group" : "is gone: its process has ended");
            return fail_gather(star, i, DP_ECOMM, text);
        }
    if (!anew && dp_blame_get(&star->blame, &why))
        return fail_gather(star, why.rank, why.error, why.text);
    if (have_all_come(star))
        return 0;
    return dp_now_ns() > until_ns ? say_missing(star) : DP_EAGAIN;
}

static void send_table(struct dp_star *star, int64_t until_ns)
{
    const uint64_t tag = (uint64_t)star->gather << 32 | DP_STAR_TABLE;
    const size_t bytes = (size_t)star->size * sizeof(*star->cards);
    bool sending = true;

    memcpy(star->table, star->cards, bytes); /* cards for the next gather may come meanwhile */
    for (int i = 1; i < star->size; i++)
        dp_wire_isend(star->peers[i].wire, tag, star->table, bytes, &star->peers[i].table);
    while (sending && dp_now_ns() < until_ns) {
        sending = false;
        for (int i = 1; i < star->size; i++)
            sending |= star->peers[i].table.status == DP_EAGAIN;
        if (sending)
            sleep_and_poll(star);
    }
}

static int gather_at_root(struct dp_star *star, const struct dp_card *mine, bool anew,
                          int64_t until_ns)
{
    int err;

    star->cards[0] = *mine;
    star->came[0] = star->gather;
    while ((err = check_gather(star, anew, until_ns)) == DP_EAGAIN)
        sleep_and_poll(star);
    if (err)
        return err;
    begin_epoch(star);
    send_table(star, until_ns);
    return 0;
}

static int gather_at_member(struct dp_star *star, const struct dp_card *mine, int64_t until_ns)
{
    const struct dp_star_message m = {
        .kind = DP_STAR_CARD, .count = star->gather, .rank = star->rank, .card = *mine};
    int err = 0;

    star->failure.error = 0;
    tell(&star->peers[0], &m);
    while (star->epoch != star->gather && !star->failure.error && !err) {
        if (star->peers[0].is_gone)
            err = dp_fail(DP_ECOMM, "rank 0 is gone: its process has ended");
        else if (dp_now_ns() > until_ns)
            err = dp_fail(DP_ETIMEDOUT, "no word from rank 0 within %.1f s",
                          (double)star->timeout_ns / DP_NS_PER_S);
        else
            sleep_and_poll(star);
    }
    if (star->failure.error)
        err = dp_fail(star->failure.error, "%s", star->failure.text);
    return err;
}

int dp_star_gather(struct dp_star *star, const struct dp_card *mine, bool anew, int64_t until_ns)
{
    pthread_mutex_lock(&star->lock);
    star->gather++;
    star->is_gathering = true;
    int err = star->rank ? gather_at_member(star, mine, until_ns + DP_NS_PER_S)
                         : gather_at_root(star, mine, anew, until_ns);
    star->is_gathering = false;
    pthread_mutex_unlock(&star->lock);
    return err;
}

/* ---- what a rank says ------------------------------------------------------------------------ */

void dp_star_tell_waiting(struct dp_star *star, int peer)
{
    const struct dp_star_message m = {
        .kind = DP_STAR_WAITING, .count = star->epoch, .rank = star->rank, .value = peer};

    pthread_mutex_lock(&star->lock);
    if (star->rank)
        tell(&star->peers[0], &m);
    else
        atomic_store(&star->waiting_for[0], peer);
    pthread_mutex_unlock(&star->lock);
}

/* No verdict: then the root is the one who does not answer, or has left. */
static void take_own_word(struct dp_star *star, const struct dp_abort *why)
{
    struct dp_abort own = *why;

    if (own.error == DP_ETIMEDOUT && !star->left[0]) {
        size_t len = strlen(own.text);
        snprintf(own.text + len, sizeof(own.text) - len, ", and rank 0 does not answer");
        own.rank = 0;
    }
    dp_blame_put(&star->blame, &own);
}

static void ask_root(struct dp_star *star, const struct dp_abort *why)
{
    const struct dp_star_message m = record_message(star, DP_STAR_ABORT, why);
    const int64_t until_ns = dp_now_ns() + VERDICT_NS;
    struct pollfd fd;

    tell(&star->peers[0], &m);
    while (!dp_blame_get(&star->blame, NULL) && is_here(&star->peers[0]) && dp_now_ns() < until_ns) {
        struct dp_wire *wire = star->peers[0].wire;
        bool armed = wire->ops->arm(wire, &fd);
        pthread_mutex_unlock(&star->lock);
        if (armed)
            poll(&fd, 1, 20);
        pthread_mutex_lock(&star->lock);
        poll_all(star);
    }
    if (!dp_blame_get(&star->blame, NULL))
        take_own_word(star, why);
}

void dp_star_abort(struct dp_star *star, const struct dp_abort *why)
{
    pthread_mutex_lock(&star->lock);
    poll_all(star);
    if (!dp_blame_get(&star->blame, NULL)) {
        if (star->rank)
            ask_root(star, why);
        else
            decide(star, *why);
    }
    pthread_mutex_unlock(&star->lock);
}

/* ---- end ----------------------------------------------------------------------------------- */

static bool is_anybody_here(const struct dp_star *star)
{
    for (int i = 0; i < dp_star_peer_count(star); i++)
        if (is_here(&star->peers[i]))
            return true;
    return false;
}

static bool is_anything_unsent(const struct dp_star *star)
{
    for (int i = 0; i < dp_star_peer_count(star); i++)
        if (is_here(&star->peers[i]) && star->peers[i].wire->sends.head)
            return true;
    return false;
}

void dp_star_leave(struct dp_star *star)
{
    const struct dp_star_message m = {.kind = DP_STAR_LEFT, .rank = star->rank};

    pthread_mutex_lock(&star->lock);
    /* After an abort everybody has been told why, and nobody needs the root any more; but let them
     * read it before the connection goes. */
    const bool aborted = dp_blame_get(&star->blame, NULL);
    int64_t until_ns = dp_now_ns() + (aborted || star->rank ? DP_NS_PER_S : star->timeout_ns);
    poll_all(star);
    tell_all(star, &m);
    while ((star->rank ? is_anything_unsent(star) : is_anybody_here(star)) &&
           dp_now_ns() < until_ns)
        sleep_and_poll(star);
    pthread_mutex_unlock(&star->lock);
    dp_star_free(star);
}

void dp_star_free(struct dp_star *star)
{
    if (!star)
        return;
    for (int i = 0; star->peers && i < dp_star_peer_count(star); i++) {
        dp_wire_close(star->peers[i].wire);
        free(star->peers[i].in);
    }
    pthread_mutex_destroy(&star->lock);
    free(star->came);
    free(star->table);
    free(star->cards);
    free(star->left);
    free(star->waiting_for);
    free(star->fds);
    free(star->peers);
    free(star);
}

/* ---- beginning ----------------------------------------------------------------------------- */

static bool allocate(struct dp_star *star)
{
    const size_t n = (size_t)star->size, peers = (size_t)dp_star_peer_count(star);

    star->peers = calloc(peers, sizeof(*star->peers));
    star->fds = calloc(n, sizeof(*star->fds));
    star->waiting_for = calloc(n, sizeof(*star->waiting_for));
    star->left = calloc(n, sizeof(*star->left));
    star->cards = calloc(n, sizeof(*star->cards));
    star->table = calloc(n, sizeof(*star->table));
    star->came = calloc(n, sizeof(*star->came));
    bool ok = star->peers && star->fds && star->waiting_for && star->left && star->cards &&
              star->table && star->came;
    for (size_t i = 0; ok && i < peers; i++)
        ok = (star->peers[i].in = malloc(star->in_room));
    return ok;
}

int dp_star_new(int rank, int size, int64_t timeout_ns, struct dp_star **out)
{
    struct dp_star *star = calloc(1, sizeof(*star));

    if (!star)
        return dp_fail(DP_ENOMEM, "no memory for a group of %d ranks", size);
    star->rank = rank;
    star->size = size;
    star->timeout_ns = timeout_ns;
    star->in_room = sizeof(struct dp_star_message);
    if (rank && (size_t)size * sizeof(struct dp_card) > star->in_room)
        star->in_room = (size_t)size * sizeof(struct dp_card);
    pthread_mutex_init(&star->lock, NULL);
    if (!allocate(star)) {
        dp_star_free(star);
        return dp_fail(DP_ENOMEM, "no memory for a group of %d ranks", size);
    }
    for (int i = 0; i < size; i++)
        atomic_init(&star->waiting_for[i], -1);
    *out = star;
    return 0;
}

void dp_star_adopt(struct dp_star *star, struct dp_star_peer *peer, struct dp_wire *wire)
{
    peer->wire = wire;
    dp_wire_tcp_set_patience(wire, star->timeout_ns);
    dp_wire_irecv(wire, peer->in, star->in_room, &peer->receive);
}

bool dp_star_has_left(struct dp_star *star, int rank)
{
    pthread_mutex_lock(&star->lock);
    bool left = star->left[rank];
    pthread_mutex_unlock(&star->lock);
    return left;
}

bool dp_star_find_address(const struct dp_star *star, union dp_sockaddr *out)
{
    for (int i = 0; i < dp_star_peer_count(star); i++)
        if (star->peers[i].wire && !dp_wire_tcp_local(star->peers[i].wire, out) &&
            !dp_sockaddr_is_loopback(out))
            return true;
    return false;
}
