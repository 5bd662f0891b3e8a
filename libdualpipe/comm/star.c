/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/star.h"

#include "base/clock.h"
#include "base/fail.h"
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

void dp_star_tell(struct dp_star_peer *p, const struct dp_star_message *m)
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

void dp_star_tell_all(struct dp_star *star, const struct dp_star_message *m)
{
    for (int i = 0; i < dp_star_peer_count(star); i++)
        dp_star_tell(&star->peers[i], m);
}

struct dp_star_message dp_star_record(const struct dp_star *star, enum dp_star_kind kind,
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
    struct dp_star_message m = dp_star_record(star, DP_STAR_VERDICT, &why);
    dp_star_tell_all(star, &m);
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
        dp_star_tell_all(star, &m);
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

static bool handle_table(struct dp_star *star, const struct dp_star_peer *p)
{
    const size_t bytes = (size_t)star->size * sizeof(*star->cards);

    if (p->receive.moved != bytes)
        return false;
    if (!star->is_gathering || p->receive.tag >> 32 != star->gather)
        return true;
    memcpy(star->cards, p->in, bytes);
    dp_star_begin_epoch(star);
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

/* The root hears everybody before it decides: who waits for whom may be news as old as the
 * abort. */
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

void dp_star_sleep(struct dp_star *star)
{
    enum { AT_MOST_MS = 20 };
    int count = arm(star, star->fds);

    pthread_mutex_unlock(&star->lock);
    if (count >= 0)
        poll(star->fds, (nfds_t)count, AT_MOST_MS);
    pthread_mutex_lock(&star->lock);
    poll_all(star);
}

/* ---- what a rank says ------------------------------------------------------------------------ */

void dp_star_tell_waiting(struct dp_star *star, int peer)
{
    const struct dp_star_message m = {
        .kind = DP_STAR_WAITING, .count = star->epoch, .rank = star->rank, .value = peer};

    pthread_mutex_lock(&star->lock);
    if (star->rank)
        dp_star_tell(&star->peers[0], &m);
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
    const struct dp_star_message m = dp_star_record(star, DP_STAR_ABORT, why);
    const int64_t until_ns = dp_now_ns() + VERDICT_NS;
    struct pollfd fd;

    dp_star_tell(&star->peers[0], &m);
    while (!dp_blame_get(&star->blame, NULL) && is_here(&star->peers[0]) &&
           dp_now_ns() < until_ns) {
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
    dp_star_tell_all(star, &m);
    while ((star->rank ? is_anything_unsent(star) : is_anybody_here(star)) &&
           dp_now_ns() < until_ns)
        dp_star_sleep(star);
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
