/* SPDX-License-Identifier: Apache-2.0
 *
 * rendezvous_join.c - how the ranks of a rendezvous find each other; the messages are in
 * rendezvous.h.
 *
 * The root accepts every connection as pending and serves all of them without waiting for any one.
 * A connection that sends a wrong message is refused or dropped. A silent one is dropped when its
 * time is over or its slot is needed. The others are not affected.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "base/text.h"
#include "comm/backoff.h"
#include "comm/rendezvous.h"
#include "wire/tcp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* No secret: it only says that this is the control port of a group and not another kind of
 * service. */
static const uint8_t CONTROL_COOKIE[DP_COOKIE_BYTES] = "dualpipe-control";

enum { PENDING_MAX = 32, MAX_ADDRESSES = 8 };
static const int64_t HANDSHAKE_TIMEOUT_NS = 5 * DP_NS_PER_S;

/* ---- root ---------------------------------------------------------------------------------- */

enum stage { FREE, HELLO_EXPECTED, PROOF_EXPECTED, WELCOMED, REFUSED };

struct pending {
    enum stage stage;
    struct dp_wire *wire;
    int64_t until_ns;
    struct dp_handshake handshake;
    struct dp_rendezvous_message in, out;
    struct dp_wire_request receive, send;
};

struct acceptor {
    struct dp_rendezvous *rv;
    const char *secret;
    struct dp_poll poll;
    int first_new; /* see dp_rendezvous_config */
    struct dp_wire_listener *listener;
    struct pending pending[PENDING_MAX];
    int missing;
};

static void drop(struct pending *c)
{
    dp_wire_close(c->wire);
    c->wire = NULL;
    c->stage = FREE;
}

static void answer(struct pending *c, enum dp_rendezvous_kind kind, enum stage next)
{
    c->out.kind = kind;
    c->stage = next;
    dp_wire_isend(c->wire, kind, &c->out, dp_rendezvous_message_bytes(&c->out), &c->send);
    if (next == PROOF_EXPECTED)
        dp_wire_irecv(c->wire, &c->in, sizeof(c->in), &c->receive);
}

static void refuse(struct pending *c, const char *why)
{
    dp_log(DP_LOG_WARN, "a connection that claims to be rank %d of %d was refused: %s",
           c->handshake.rank, c->handshake.size, why);
    c->out = (struct dp_rendezvous_message){.value = DP_EMISMATCH};
    snprintf(c->out.text, sizeof(c->out.text), "%s", why);
    answer(c, DP_RENDEZVOUS_REFUSAL, REFUSED);
}

static void handle_hello(struct acceptor *r, struct pending *c)
{
    const int known = r->first_new ? r->first_new : r->rv->size;
    char why[80] = "";

    c->handshake.rank = c->in.rank;
    c->handshake.size = c->in.value;
    memcpy(c->handshake.member_nonce, c->in.auth.nonce, DP_NONCE_BYTES);
    if (c->in.rank == -1 && !r->first_new)
        snprintf(why, sizeof(why), "this group does not grow (dp_comm_grow)");
    else if (c->in.rank == -1)
        c->handshake.size = 0;
    else if (c->in.value != r->rv->size)
        snprintf(why, sizeof(why), "this group has %d ranks, not %d", r->rv->size, c->in.value);
    else if (c->in.rank < 1 || c->in.rank >= known)
        snprintf(why, sizeof(why), "rank %d: expected 1 to %d", c->in.rank, known - 1);
    if (why[0]) {
        refuse(c, why);
        return;
    }
    if (dp_random_bytes(c->handshake.root_nonce, DP_NONCE_BYTES)) {
        drop(c);
        return;
    }
    c->out = (struct dp_rendezvous_message){0};
    memcpy(c->out.auth.nonce, c->handshake.root_nonce, DP_NONCE_BYTES);
    answer(c, DP_RENDEZVOUS_CHALLENGE, PROOF_EXPECTED);
}

static bool is_promised(const struct acceptor *r, int rank)
{
    for (int i = 0; i < PENDING_MAX; i++)
        if (r->pending[i].stage == WELCOMED && r->pending[i].handshake.rank == rank)
            return true;
    return r->rv->peers[rank].wire;
}

/* false: all new ranks have come. */
static bool give_rank(const struct acceptor *r, struct dp_handshake *handshake)
{
    int rank = r->first_new;

    while (rank < r->rv->size && is_promised(r, rank))
        rank++;
    handshake->rank = rank;
    handshake->size = r->rv->size;
    return rank < r->rv->size;
}

/* The rank is used only after the proof: an unauthenticated connection cannot claim one. */
static void handle_proof(struct acceptor *r, struct pending *c)
{
    if (!dp_secret_is_proof(r->secret, DP_PROVER_MEMBER, &c->handshake, c->in.auth.proof)) {
        refuse(c, "the secret is not the same (DUALPIPE_COMM_SECRET)");
        return;
    }
    if (c->handshake.rank < 0 && !give_rank(r, &c->handshake)) {
        refuse(c, "all new ranks of this group have come");
        return;
    }
    if (r->rv->peers[c->handshake.rank].wire) {
        refuse(c, "this rank is here already");
        return;
    }
    c->out = (struct dp_rendezvous_message){.rank = c->handshake.rank, .value = c->handshake.size};
    dp_secret_prove(r->secret, DP_PROVER_ROOT, &c->handshake, c->out.auth.proof);
    answer(c, DP_RENDEZVOUS_WELCOME, WELCOMED);
}

/* A complete message has arrived. */
static void handle_message(struct acceptor *r, struct pending *c)
{
    const uint32_t expected =
        c->stage == HELLO_EXPECTED ? DP_RENDEZVOUS_HELLO : DP_RENDEZVOUS_PROOF;

    if (c->receive.status || !dp_rendezvous_is_message(&c->in, c->receive.moved) ||
        c->in.kind != expected)
        drop(c);
    else if (c->stage == HELLO_EXPECTED)
        handle_hello(r, c);
    else
        handle_proof(r, c);
}

static void add_member(struct acceptor *r, struct pending *c)
{
    struct dp_rendezvous_peer *peer = &r->rv->peers[c->handshake.rank];

    if (peer->wire) { /* two connections of one rank at a time: the first one holds */
        drop(c);
        return;
    }
    dp_rendezvous_adopt(r->rv, peer, c->wire);
    c->wire = NULL;
    c->stage = FREE;
    r->missing--;
}

static void progress_pending(struct acceptor *r, struct pending *c, int64_t now_ns)
{
    if (c->stage == FREE)
        return;
    c->wire->ops->progress(c->wire);
    if (c->wire->error || now_ns > c->until_ns) {
        drop(c);
        return;
    }
    if (c->stage == WELCOMED || c->stage == REFUSED) {
        if (c->send.status == DP_EAGAIN)
            return;
        if (c->stage == WELCOMED)
            add_member(r, c);
        else
            drop(c);
    } else if (c->receive.status != DP_EAGAIN) {
        handle_message(r, c);
    }
}

/* Of those that may be strangers: a member that is dropped before its welcome comes again, and after it
 * would take the group for ended. */
static struct pending *find_oldest(struct acceptor *r)
{
    struct pending *oldest = NULL;

    for (int i = 0; i < PENDING_MAX; i++) {
        struct pending *c = &r->pending[i];
        if (c->stage != FREE && c->stage != WELCOMED &&
            (!oldest || c->until_ns < oldest->until_ns))
            oldest = c;
    }
    return oldest;
}

/* The oldest leaves if it has had its minimum time, in which a member says what it has to. NULL: none
 * does. */
static struct pending *drop_oldest(struct acceptor *r, int64_t now_ns)
{
    struct pending *oldest = find_oldest(r);

    if (!oldest || now_ns < oldest->until_ns - HANDSHAKE_TIMEOUT_NS + DP_ACCEPTOR_EVICT_NS)
        return NULL;
    drop(oldest);
    return oldest;
}

static struct pending *find_slot(struct acceptor *r, int64_t now_ns)
{
    for (int i = 0; i < PENDING_MAX; i++)
        if (r->pending[i].stage == FREE)
            return &r->pending[i];
    return drop_oldest(r, now_ns);
}

/* There may be a file again once a stranger has left. */
static int handle_shortage(struct acceptor *r, int64_t now_ns)
{
    if (!find_oldest(r))
        return DP_EIO;
    drop_oldest(r, now_ns);
    return 0;
}

/* 0, or DP_EIO: a connection waits, and this process may open no file for it, though no stranger holds
 * one. */
static int accept_connections(struct acceptor *r, int64_t now_ns)
{
    struct pending *c;
    uint64_t label;

    for (int i = 0; i < PENDING_MAX && (c = find_slot(r, now_ns)); i++) {
        struct dp_wire *wire;
        const int err = dp_wire_tcp.accept(r->listener, &label, &wire);
        if (err)
            return err == DP_EIO ? handle_shortage(r, now_ns) : 0;
        *c = (struct pending){
            .stage = HELLO_EXPECTED, .wire = wire, .until_ns = now_ns + HANDSHAKE_TIMEOUT_NS};
        dp_wire_irecv(wire, &c->in, sizeof(c->in), &c->receive);
    }
    return 0;
}

/* The ranks that came must not wait for those that did not. */
static int fail_join(struct acceptor *r, int error, const char *text)
{
    struct dp_rendezvous_message m = {.kind = DP_RENDEZVOUS_FAILED, .count = 1, .value = error};

    /* Of one process; the others learn whose. */
    if (error == DP_EIO)
        m.value = DP_ECOMM;
    dp_snprintf(m.text, sizeof(m.text), "%s%s", error == DP_EIO ? "rank 0: " : "", text);
    for (int i = 1; i < r->rv->size; i++) {
        struct dp_rendezvous_peer *p = &r->rv->peers[i];
        if (p->wire) {
            p->out[0] = m;
            dp_wire_isend(p->wire, m.kind, &p->out[0], dp_rendezvous_message_bytes(&m),
                          &p->sends[0]);
        }
    }
    return dp_fail(error, "%s", text);
}

static int report_missing(struct acceptor *r)
{
    char text[sizeof(((struct dp_rendezvous_message *)0)->text)];
    struct dp_text t = {0};

    for (int i = 1; i < r->rv->size; i++)
        if (!r->rv->peers[i].wire)
            dp_text_addf(&t, "%s%d", t.len ? ", " : "", i);
    dp_snprintf(text, sizeof(text), "of %d ranks, these did not come within %.1f s: %s",
                r->rv->size, (double)r->rv->timeout_ns / DP_NS_PER_S, t.data ? t.data : "?");
    dp_text_fini(&t);
    return fail_join(r, DP_ETIMEDOUT, text);
}

static int receive_members(struct acceptor *r)
{
    const int64_t until_ns = dp_now_ns() + r->rv->timeout_ns;
    unsigned backoff_us = 0;

    while (r->missing) {
        const int64_t now_ns = dp_now_ns();
        const int missing = r->missing;
        if (accept_connections(r, now_ns))
            return fail_join(r, DP_EIO, dp_last_error());
        for (int i = 0; i < PENDING_MAX; i++)
            progress_pending(r, &r->pending[i], now_ns);
        if (now_ns > until_ns)
            return report_missing(r);
        const int interrupted = dp_poll_call(&r->poll);
        if (interrupted)
            return fail_join(r, interrupted, "rank 0 was interrupted");
        if (r->missing < missing)
            backoff_us = 0;
        dp_backoff(&backoff_us);
    }
    return 0;
}

const char *dp_rendezvous_interface(const char *host)
{
    if (!strcmp(host, "localhost") || !strcmp(host, "127.0.0.1"))
        return "127.0.0.1";
    return strcmp(host, "::1") ? NULL : "::1";
}

int dp_rendezvous_listen(const char *host, int port, int socket, struct dp_wire_listener **out)
{
    struct dp_wire_address unused;
    struct dp_wire_config listening = {.interface = host ? dp_rendezvous_interface(host) : NULL,
                                       .port = port,
                                       .listener = socket,
                                       .most_sockets = 1,
                                       .handshake_timeout_ns = HANDSHAKE_TIMEOUT_NS,
                                       .needs_files = true};

    memcpy(listening.cookie, CONTROL_COOKIE, sizeof(listening.cookie));
    return dp_wire_tcp.listen(&listening, out, &unused);
}

static int join_as_root(const struct dp_rendezvous_config *config, struct dp_rendezvous **out)
{
    struct acceptor *r = calloc(1, sizeof(*r));
    struct dp_rendezvous *rv = NULL;
    int err = r ? dp_rendezvous_new(0, config->size, config->timeout_ns, &rv)
                : dp_fail(DP_ENOMEM, "no memory to receive %d ranks", config->size);

    if (err) {
        dp_wire_tcp.unlisten(config->listener);
        free(r);
        return err;
    }
    r->rv = rv;
    r->secret = config->secret;
    r->poll = config->poll;
    r->first_new = config->first_new;
    r->missing = config->size - 1;
    r->listener = config->listener;
    if (!r->listener)
        err = dp_rendezvous_listen(config->host, config->port, 0, &r->listener);
    if (!err)
        err = receive_members(r);
    dp_wire_tcp.unlisten(r->listener);
    for (int i = 0; i < PENDING_MAX; i++)
        drop(&r->pending[i]);
    free(r);
    if (!err) {
        *out = rv;
        return 0;
    }
    dp_rendezvous_drain(rv);
    dp_rendezvous_free(rv);
    return err;
}

/* ---- member -------------------------------------------------------------------------------- */

struct attempt {
    const struct dp_rendezvous_config *config;
    char where[280];
    struct dp_wire_address addresses[MAX_ADDRESSES];
    int address_count;
    struct dp_wire *wire;
    int64_t until_ns;
    int64_t turn_until_ns; /* of the address that is tried */
    int interrupted;
    struct dp_handshake handshake;
    struct dp_rendezvous_message in, out;
};

/* DP_ECOMM: the connection is no good; another one may be. DP_ETIMEDOUT. */
static int wait_for(struct attempt *v, const struct dp_wire_request *req)
{
    unsigned backoff_us = 0;

    while (req->status == DP_EAGAIN) {
        v->wire->ops->progress(v->wire);
        if (!v->wire->connected && *v->wire->why) /* it would try again: another address is next */
            break;
        if (dp_now_ns() > v->turn_until_ns)
            return dp_fail_quietly(DP_ETIMEDOUT, "no answer");
        v->interrupted = dp_poll_call(&v->config->poll);
        if (v->interrupted)
            return v->interrupted;
        if (req->status == DP_EAGAIN)
            dp_backoff(&backoff_us);
    }
    return req->status ? dp_fail_quietly(DP_ECOMM, "%s", v->wire->why) : 0;
}

/* Send one message and receive the answer, which must be of the expected kind. */
static int exchange(struct attempt *v, enum dp_rendezvous_kind kind,
                    enum dp_rendezvous_kind expected)
{
    struct dp_wire_request send, receive;

    v->out.kind = kind;
    v->out.rank = v->config->rank;
    v->out.value = v->config->size;
    dp_wire_isend(v->wire, kind, &v->out, dp_rendezvous_message_bytes(&v->out), &send);
    dp_wire_irecv(v->wire, &v->in, sizeof(v->in), &receive);
    int err = wait_for(v, &send);
    if (!err)
        err = wait_for(v, &receive);
    if (err)
        return err;
    const bool is_message = dp_rendezvous_is_message(&v->in, receive.moved);
    if (is_message && v->in.kind == DP_RENDEZVOUS_REFUSAL && v->config->rank < 0)
        return dp_fail(DP_EMISMATCH, "rank 0 at %s refused this process: %s", v->where, v->in.text);
    if (is_message && v->in.kind == DP_RENDEZVOUS_REFUSAL)
        return dp_fail(DP_EMISMATCH, "rank 0 at %s refused rank %d: %s", v->where, v->config->rank,
                       v->in.text);
    if (!is_message || v->in.kind != expected)
        return dp_fail_quietly(DP_ECOMM, "rank 0 sent an unexpected message");
    return 0;
}

/* What the root says is what this rank has asked for, or a rank if it has asked for any. */
static bool is_own_rank(const struct attempt *v)
{
    const int rank = v->handshake.rank, size = v->handshake.size;

    if (v->config->rank >= 0)
        return rank == v->config->rank && size == v->config->size;
    return rank > 0 && rank < size && size <= UINT16_MAX;
}

static int authenticate(struct attempt *v)
{
    int err = dp_random_bytes(v->handshake.member_nonce, DP_NONCE_BYTES);

    v->handshake.rank = v->config->rank;
    v->handshake.size = v->config->size;
    if (err)
        return err;
    memcpy(v->out.auth.nonce, v->handshake.member_nonce, DP_NONCE_BYTES);
    err = exchange(v, DP_RENDEZVOUS_HELLO, DP_RENDEZVOUS_CHALLENGE);
    if (err)
        return err;
    v->turn_until_ns = v->until_ns; /* there is a rank 0 */
    memcpy(v->handshake.root_nonce, v->in.auth.nonce, DP_NONCE_BYTES);
    dp_secret_prove(v->config->secret, DP_PROVER_MEMBER, &v->handshake, v->out.auth.proof);
    err = exchange(v, DP_RENDEZVOUS_PROOF, DP_RENDEZVOUS_WELCOME);
    if (err)
        return err;
    v->handshake.rank = v->in.rank;
    v->handshake.size = v->in.value;
    if (!dp_secret_is_proof(v->config->secret, DP_PROVER_ROOT, &v->handshake, v->in.auth.proof))
        return dp_fail(DP_EMISMATCH, "the process that answers at %s does not know the secret",
                       v->where);
    return is_own_rank(v) ? 0
                          : dp_fail(DP_EMISMATCH, "rank 0 at %s answers for rank %d of %d",
                                    v->where, v->handshake.rank, v->handshake.size);
}

/* A host may have several addresses, of which one leads nowhere: the others must get a turn. */
static int64_t turn_of_address(const struct attempt *v)
{
    int64_t turn_ns = v->config->timeout_ns / (2 * v->address_count);

    if (v->address_count == 1)
        return v->until_ns;
    turn_ns = dp_now_ns() + (turn_ns < HANDSHAKE_TIMEOUT_NS ? turn_ns : HANDSHAKE_TIMEOUT_NS);
    return turn_ns < v->until_ns ? turn_ns : v->until_ns;
}

/* One try at one address. On success the wire is the caller's. */
static int try_address(struct attempt *v, const struct dp_wire_address *address)
{
    int err = dp_wire_tcp.connect(address, 0, &v->wire);

    v->turn_until_ns = turn_of_address(v);
    if (!err)
        err = authenticate(v);
    if (err && v->wire) {
        dp_wire_close(v->wire);
        v->wire = NULL;
    }
    return err;
}

static int find_addresses(struct attempt *v)
{
    const struct dp_rendezvous_config *config = v->config;
    union dp_sockaddr found[MAX_ADDRESSES];

    if (config->address) {
        snprintf(v->where, sizeof(v->where), "the address that rank 0 passed on");
        v->addresses[0] = *config->address;
        v->address_count = 1;
        return 0;
    }
    snprintf(v->where, sizeof(v->where), strchr(config->host, ':') ? "[%s]:%d" : "%s:%d",
             config->host, config->port);
    int err = dp_net_resolve(config->host, config->port, found, MAX_ADDRESSES, &v->address_count);
    for (int i = 0; !err && i < v->address_count; i++)
        dp_wire_tcp_address(&found[i], CONTROL_COOKIE, &v->addresses[i]);
    return err;
}

/* Try until rank 0 listens: it may start later than this rank. */
static int join_as_member(const struct dp_rendezvous_config *config, struct dp_rendezvous **out)
{
    struct attempt v = {.config = config, .until_ns = dp_now_ns() + config->timeout_ns};
    char reason[160] = "";
    unsigned backoff_us = 1000;
    int err = find_addresses(&v);

    if (err)
        return err;
    for (int i = 0;; i = (i + 1) % v.address_count) {
        err = try_address(&v, &v.addresses[i]);
        if ((err != DP_ECOMM && err != DP_ETIMEDOUT) || v.interrupted)
            break;
        snprintf(reason, sizeof(reason), "%s", dp_last_error());
        if (dp_now_ns() > v.until_ns)
            return dp_fail(DP_ETIMEDOUT, "no rank 0 at %s within %.1f s (%s)", v.where,
                           (double)config->timeout_ns / DP_NS_PER_S, reason);
        err = dp_poll_call(&config->poll);
        if (err)
            break;
        dp_backoff(&backoff_us);
    }
    if (!err)
        err = dp_rendezvous_new(v.handshake.rank, v.handshake.size, config->timeout_ns, out);
    if (!err)
        dp_rendezvous_adopt(*out, &(*out)->peers[0], v.wire);
    else
        dp_wire_close(v.wire);
    return err;
}

int dp_rendezvous_join(const struct dp_rendezvous_config *config, struct dp_rendezvous **out)
{
    int err = config->rank ? join_as_member(config, out) : join_as_root(config, out);

    if (!err)
        (*out)->poll = config->poll;
    return err;
}
