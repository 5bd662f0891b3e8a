/* SPDX-License-Identifier: Apache-2.0
 *
 * join.c - how the ranks of a star find each other. See star.h for who says what.
 *
 * The root takes every connection for a candidate, and hears all of them without waiting for any
 * one: who says something else than he should is refused or dropped, who says nothing goes when his
 * time is over or his place is wanted, and the rest goes on.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "base/number.h"
#include "base/text.h"
#include "comm/nap.h"
#include "comm/star.h"
#include "wire/door.h"
#include "wire/tcp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* No secret: it only says that this is the control port of a group and not another kind of
 * service. */
static const uint8_t CONTROL_COOKIE[DP_COOKIE_BYTES] = "dualpipe-control";

enum { CANDIDATES = 128, MAX_PLACES = 8 };
static const int64_t PATIENCE_NS = 5 * DP_NS_PER_S;

/* ---- root ---------------------------------------------------------------------------------- */

enum stage { NOBODY, HELLO_EXPECTED, PROOF_EXPECTED, WELCOMED, REFUSED };

struct candidate {
    enum stage stage;
    struct dp_wire *wire;
    int64_t until_ns;
    struct dp_meeting meeting;
    struct dp_star_message in, out;
    struct dp_wire_request receive, send;
};

struct reception {
    struct dp_star *star;
    const char *secret;
    struct dp_wire_listener *listener;
    struct candidate candidates[CANDIDATES];
    int missing;
};

static void drop(struct candidate *c)
{
    dp_wire_close(c->wire);
    c->wire = NULL;
    c->stage = NOBODY;
}

static void answer(struct candidate *c, enum dp_star_kind kind, enum stage next)
{
    c->out.kind = kind;
    c->stage = next;
    dp_wire_isend(c->wire, kind, &c->out, sizeof(c->out), &c->send);
    if (next == PROOF_EXPECTED)
        dp_wire_irecv(c->wire, &c->in, sizeof(c->in), &c->receive);
}

static void refuse(struct candidate *c, const char *why)
{
    dp_log(DP_LOG_WARN, "somebody who says to be rank %d of %d was refused: %s", c->meeting.rank,
           c->meeting.size, why);
    c->out = (struct dp_star_message){.value = DP_EMISMATCH};
    snprintf(c->out.text, sizeof(c->out.text), "%s", why);
    answer(c, DP_STAR_REFUSAL, REFUSED);
}

static void hear_hello(struct reception *r, struct candidate *c)
{
    char why[80] = "";

    c->meeting.rank = c->in.rank;
    c->meeting.size = c->in.value;
    memcpy(c->meeting.member_nonce, c->in.auth.nonce, DP_NONCE_BYTES);
    if (c->in.value != r->star->size)
        snprintf(why, sizeof(why), "this group has %d ranks, not %d", r->star->size, c->in.value);
    else if (c->in.rank < 1 || c->in.rank >= r->star->size)
        snprintf(why, sizeof(why), "rank %d: expected 1 to %d", c->in.rank, r->star->size - 1);
    if (why[0]) {
        refuse(c, why);
        return;
    }
    if (dp_random_bytes(c->meeting.root_nonce, DP_NONCE_BYTES)) {
        drop(c);
        return;
    }
    c->out = (struct dp_star_message){0};
    memcpy(c->out.auth.nonce, c->meeting.root_nonce, DP_NONCE_BYTES);
    answer(c, DP_STAR_CHALLENGE, PROOF_EXPECTED);
}

/* The rank is only looked at behind the proof: a stranger cannot even take a place. */
static void hear_proof(struct reception *r, struct candidate *c)
{
    if (!dp_secret_is_proof(r->secret, DP_PROVER_MEMBER, &c->meeting, c->in.auth.proof)) {
        refuse(c, "the secret is not the same (DUALPIPE_COMM_SECRET)");
        return;
    }
    if (r->star->peers[c->meeting.rank].wire) {
        refuse(c, "this rank is here already");
        return;
    }
    c->out = (struct dp_star_message){0};
    dp_secret_prove(r->secret, DP_PROVER_ROOT, &c->meeting, c->out.auth.proof);
    answer(c, DP_STAR_WELCOME, WELCOMED);
}

/* What he said, now that it is all there. */
static void hear(struct reception *r, struct candidate *c)
{
    const uint32_t expected = c->stage == HELLO_EXPECTED ? DP_STAR_HELLO : DP_STAR_PROOF;

    if (c->receive.status || c->receive.moved != sizeof(c->in) || c->in.kind != expected)
        drop(c);
    else if (c->stage == HELLO_EXPECTED)
        hear_hello(r, c);
    else
        hear_proof(r, c);
}

static void adopt(struct reception *r, struct candidate *c)
{
    struct dp_star_peer *peer = &r->star->peers[c->meeting.rank];

    if (peer->wire) { /* two of the same rank were quick; the first one has it */
        drop(c);
        return;
    }
    dp_star_adopt(r->star, peer, c->wire);
    c->wire = NULL;
    c->stage = NOBODY;
    r->missing--;
}

static void attend(struct reception *r, struct candidate *c, int64_t now_ns)
{
    if (c->stage == NOBODY)
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
            adopt(r, c);
        else
            drop(c);
    } else if (c->receive.status != DP_EAGAIN) {
        hear(r, c);
    }
}

/* A free place, or that of the eldest if he has had time enough to speak. */
static struct candidate *find_place(struct reception *r, int64_t now_ns)
{
    struct candidate *eldest = r->candidates;

    for (int i = 0; i < CANDIDATES; i++) {
        if (r->candidates[i].stage == NOBODY)
            return &r->candidates[i];
        if (r->candidates[i].until_ns < eldest->until_ns)
            eldest = &r->candidates[i];
    }
    if (now_ns < eldest->until_ns - PATIENCE_NS + DP_DOOR_STAY_NS)
        return NULL;
    drop(eldest);
    return eldest;
}

static void let_in(struct reception *r, int64_t now_ns)
{
    struct candidate *c;
    uint64_t label;

    while ((c = find_place(r, now_ns))) {
        struct dp_wire *wire;
        if (dp_wire_tcp.accept(r->listener, &label, &wire))
            return;
        *c = (struct candidate){
            .stage = HELLO_EXPECTED, .wire = wire, .until_ns = now_ns + PATIENCE_NS};
        dp_wire_irecv(wire, &c->in, sizeof(c->in), &c->receive);
    }
}

/* Those who did come must not wait for those who did not. */
static int say_who_did_not_come(struct reception *r)
{
    struct dp_text t = {0};
    struct dp_star_message m = {.kind = DP_STAR_FAILED, .count = 1, .value = DP_ETIMEDOUT};

    for (int i = 1; i < r->star->size; i++)
        if (!r->star->peers[i].wire)
            dp_text_addf(&t, "%s%d", t.len ? ", " : "", i);
    dp_snprintf(m.text, sizeof(m.text), "of %d ranks, these did not come within %.1f s: %s",
                r->star->size, (double)r->star->timeout_ns / DP_NS_PER_S, t.data ? t.data : "?");
    dp_text_fini(&t);
    for (int i = 1; i < r->star->size; i++) {
        struct dp_star_peer *p = &r->star->peers[i];
        if (p->wire) {
            p->out[0] = m;
            dp_wire_isend(p->wire, m.kind, &p->out[0], sizeof(m), &p->sends[0]);
        }
    }
    return dp_fail(DP_ETIMEDOUT, "%s", m.text);
}

static int receive_members(struct reception *r)
{
    const int64_t until_ns = dp_now_ns() + r->star->timeout_ns;
    unsigned nap_us = 0;

    while (r->missing) {
        const int64_t now_ns = dp_now_ns();
        const int missing = r->missing;
        let_in(r, now_ns);
        for (int i = 0; i < CANDIDATES; i++)
            attend(r, &r->candidates[i], now_ns);
        if (now_ns > until_ns)
            return say_who_did_not_come(r);
        if (r->missing < missing)
            nap_us = 0;
        dp_nap(&nap_us);
    }
    return 0;
}

/* Rank 0 of a group on one host need not be heard by others. */
static const char *choose_interface(const char *host)
{
    if (!strcmp(host, "localhost") || !strncmp(host, "127.", 4))
        return "127.0.0.1";
    return strcmp(host, "::1") ? NULL : host;
}

static int listen_for_members(const struct dp_star_config *config, struct dp_wire_listener **out)
{
    struct dp_wire_address unused;
    struct dp_wire_config listening = {.interface = choose_interface(config->host),
                                       .port = config->port,
                                       .patience_ns = PATIENCE_NS};

    memcpy(listening.cookie, CONTROL_COOKIE, sizeof(listening.cookie));
    return dp_wire_tcp.listen(&listening, out, &unused);
}

static int join_as_root(struct dp_star *star, const struct dp_star_config *config)
{
    struct reception *r = calloc(1, sizeof(*r));

    if (!r) {
        dp_wire_tcp.unlisten(config->listener);
        return dp_fail(DP_ENOMEM, "no memory to receive %d ranks", config->size);
    }
    r->star = star;
    r->secret = config->secret;
    r->missing = config->size - 1;
    r->listener = config->listener;
    int err = r->listener ? 0 : listen_for_members(config, &r->listener);
    if (!err)
        err = receive_members(r);
    dp_wire_tcp.unlisten(r->listener);
    for (int i = 0; i < CANDIDATES; i++)
        drop(&r->candidates[i]);
    free(r);
    return err;
}

/* ---- member -------------------------------------------------------------------------------- */

struct visit {
    const struct dp_star_config *config;
    char where[280];
    struct dp_wire_address places[MAX_PLACES];
    int place_count;
    struct dp_wire *wire;
    int64_t until_ns;
    struct dp_meeting meeting;
    struct dp_star_message in, out;
};

/* DP_ECOMM: the connection is no good; another one may be. DP_ETIMEDOUT. */
static int wait_for(struct visit *v, const struct dp_wire_request *req)
{
    unsigned nap_us = 0;

    while (req->status == DP_EAGAIN) {
        if (dp_now_ns() > v->until_ns)
            return dp_fail_quietly(DP_ETIMEDOUT, "no answer");
        v->wire->ops->progress(v->wire);
        if (req->status == DP_EAGAIN)
            dp_nap(&nap_us);
    }
    return req->status ? dp_fail_quietly(DP_ECOMM, "%s", v->wire->why) : 0;
}

/* Say one thing and hear the answer, which should be of a kind. */
static int ask(struct visit *v, enum dp_star_kind say, enum dp_star_kind expected)
{
    struct dp_wire_request send, receive;

    v->out.kind = say;
    v->out.rank = v->config->rank;
    v->out.value = v->config->size;
    dp_wire_isend(v->wire, say, &v->out, sizeof(v->out), &send);
    dp_wire_irecv(v->wire, &v->in, sizeof(v->in), &receive);
    int err = wait_for(v, &send);
    if (!err)
        err = wait_for(v, &receive);
    if (err)
        return err;
    v->in.text[sizeof(v->in.text) - 1] = '\0';
    if (receive.moved == sizeof(v->in) && v->in.kind == DP_STAR_REFUSAL)
        return dp_fail(DP_EMISMATCH, "rank 0 at %s refused rank %d: %s", v->where, v->config->rank,
                       v->in.text);
    if (receive.moved != sizeof(v->in) || v->in.kind != expected)
        return dp_fail_quietly(DP_ECOMM, "rank 0 said something unexpected");
    return 0;
}

static int introduce(struct visit *v)
{
    int err = dp_random_bytes(v->meeting.member_nonce, DP_NONCE_BYTES);

    v->meeting.rank = v->config->rank;
    v->meeting.size = v->config->size;
    if (err)
        return err;
    memcpy(v->out.auth.nonce, v->meeting.member_nonce, DP_NONCE_BYTES);
    err = ask(v, DP_STAR_HELLO, DP_STAR_CHALLENGE);
    if (err)
        return err;
    memcpy(v->meeting.root_nonce, v->in.auth.nonce, DP_NONCE_BYTES);
    dp_secret_prove(v->config->secret, DP_PROVER_MEMBER, &v->meeting, v->out.auth.proof);
    err = ask(v, DP_STAR_PROOF, DP_STAR_WELCOME);
    if (err)
        return err;
    if (!dp_secret_is_proof(v->config->secret, DP_PROVER_ROOT, &v->meeting, v->in.auth.proof))
        return dp_fail(DP_EMISMATCH, "who answers at %s does not know the secret", v->where);
    return 0;
}

/* One try at one address. On success the wire is the caller's. */
static int visit(struct visit *v, const struct dp_wire_address *place)
{
    int err = dp_wire_tcp.connect(place, 0, &v->wire);

    if (!err)
        err = introduce(v);
    if (err && v->wire) {
        dp_wire_close(v->wire);
        v->wire = NULL;
    }
    return err;
}

static int find_places(struct visit *v)
{
    const struct dp_star_config *config = v->config;
    union dp_sockaddr found[MAX_PLACES];

    if (config->address) {
        snprintf(v->where, sizeof(v->where), "the address it told");
        v->places[0] = *config->address;
        v->place_count = 1;
        return 0;
    }
    snprintf(v->where, sizeof(v->where), "%s:%d", config->host, config->port);
    int err = dp_net_resolve(config->host, config->port, found, MAX_PLACES, &v->place_count);
    for (int i = 0; !err && i < v->place_count; i++)
        dp_wire_tcp_address(&found[i], CONTROL_COOKIE, &v->places[i]);
    return err;
}

/* Until somebody is there: rank 0 may be slower than we are. */
static int join_as_member(struct dp_star *star, const struct dp_star_config *config)
{
    struct visit v = {.config = config, .until_ns = dp_now_ns() + config->timeout_ns};
    char reason[160] = "";
    unsigned nap_us = 1000;
    int err = find_places(&v);

    if (err)
        return err;
    for (int i = 0;; i = (i + 1) % v.place_count) {
        err = visit(&v, &v.places[i]);
        if (err != DP_ECOMM && err != DP_ETIMEDOUT)
            break;
        snprintf(reason, sizeof(reason), "%s", dp_last_error());
        if (dp_now_ns() > v.until_ns)
            return dp_fail(DP_ETIMEDOUT, "no rank 0 at %s within %.1f s (%s)", v.where,
                           (double)config->timeout_ns / DP_NS_PER_S, reason);
        dp_nap(&nap_us);
    }
    if (!err)
        dp_star_adopt(star, &star->peers[0], v.wire);
    return err;
}

int dp_star_join(const struct dp_star_config *config, struct dp_star **out)
{
    struct dp_star *star;
    int err = dp_star_new(config->rank, config->size, config->timeout_ns, &star);

    if (err)
        return err;
    err = config->rank ? join_as_member(star, config) : join_as_root(star, config);
    if (err) {
        dp_star_free(star);
        return err;
    }
    *out = star;
    return 0;
}
