/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: process_vm_readv, struct ucred */

#include "wire/direct.h"

#include "base/clock.h"
#include "base/copy.h"
#include "wire/net.h"

#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* A call costs 1 to 3 us however little it copies; but the larger the chunks, the longer one side waits
 * for the other's last one. So there are two, one for each, or more if they would be too large. */
enum {
    CHUNK = 256 << 10,
    FINE_CHUNK = 64 << 10, /* where there is no call */
    LARGEST_CHUNK = 1 << 20,
    CHUNKS = 8,          /* between the two */
    TURN_BYTES = 1 << 20 /* of one call of ours, so that one wire leaves time for the others */
};
static const int64_t PROOF_NS = DP_NS_PER_MS;

/* ---- who may ------------------------------------------------------------------------------- */

static bool is_yama_restricted(void)
{
    FILE *f = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
    bool restricted = f && fgetc(f) == '1';

    if (f)
        fclose(f);
    return restricted;
}

static void let_in(uint32_t pid)
{
    static atomic_bool has_let_in;

    if (pid != (uint32_t)getpid() && is_yama_restricted() && !atomic_exchange(&has_let_in, true))
        prctl(PR_SET_PTRACER, (unsigned long)pid, 0, 0, 0);
}

void dp_direct_introduce(struct dp_direct *d, int socket, struct dp_direct_card *mine,
                         struct dp_direct_card *theirs)
{
    struct ucred peer = {.pid = 0};
    socklen_t len = sizeof(peer);

    d->mine = mine;
    d->theirs = theirs;
    d->pid = (uint32_t)getpid();
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &len) || peer.pid <= 0)
        return;
    if (dp_random_bytes(&d->word, sizeof(d->word)))
        return;
    d->peer_pid = (uint32_t)peer.pid;
    let_in(d->peer_pid);
    mine->pid = d->pid;
    mine->word_at = (uint64_t)(uintptr_t)&d->word;
    mine->word = d->word;
    atomic_store_explicit(&mine->ready, 1, memory_order_release);
}

/* Read the peer's word, and behind it len bytes at `from` to `to`. 0, DP_ECOMM: somebody else is there;
 * DP_EUNSUPPORTED: it cannot be done, also where the peer's first thread has ended. Whether all of the
 * peer has, the socket tells. */
static int read_peer(struct dp_direct *d, uint64_t from, uint64_t to, size_t len)
{
    uint64_t word = 0;
    const struct iovec here[2] = {{&word, sizeof(word)}, {(void *)(uintptr_t)to, len}};
    const struct iovec there[2] = {{(void *)(uintptr_t)d->theirs->word_at, sizeof(word)},
                                   {(void *)(uintptr_t)from, len}};
    const unsigned long parts = len ? 2 : 1;
    ssize_t n = process_vm_readv((pid_t)d->peer_pid, here, parts, there, parts, 0);

    if (n < (ssize_t)sizeof(word))
        return DP_EUNSUPPORTED;
    if (word != d->theirs->word)
        return DP_ECOMM;
    d->proved_ns = dp_now_ns();
    return n == (ssize_t)(sizeof(word) + len) ? 0 : DP_EUNSUPPORTED;
}

void dp_direct_try(struct dp_direct *d)
{
    if (!d->peer_pid) {
        d->tried = true;
        return;
    }
    if (!atomic_load_explicit(&d->theirs->ready, memory_order_acquire))
        return;
    d->tried = true;
    d->reaches = d->theirs->pid == d->peer_pid && !read_peer(d, 0, 0, 0);
    atomic_store_explicit(&d->mine->reaches, d->reaches, memory_order_release);
}

/* A child that has inherited the wire is another process than the one that the peer knows. */
bool dp_direct_is_known(const struct dp_direct *d)
{
    return d->pid == (uint32_t)getpid();
}

bool dp_direct_works(const struct dp_direct *d)
{
    return d->tried && d->peer_pid &&
           (d->reaches || atomic_load_explicit(&d->theirs->reaches, memory_order_acquire)) &&
           dp_direct_is_known(d);
}

/* ---- a deal ---------------------------------------------------------------------------------- */

static uint64_t pack(uint32_t front, uint32_t back)
{
    return (uint64_t)front << 32 | back;
}

static size_t chunk_bytes(size_t len, size_t least)
{
    size_t bytes = len / CHUNKS;

    if (bytes < least)
        bytes = len / 2 < least ? len / 2 : least;
    if (bytes > LARGEST_CHUNK)
        bytes = LARGEST_CHUNK;
    return (bytes + 4095) & ~(size_t)4095;
}

static void cut(struct dp_direct_part *p, struct dp_direct_deal *deal, const void *buf, size_t len,
                bool in_fine)
{
    const size_t bytes = chunk_bytes(len, in_fine ? FINE_CHUNK : CHUNK);

    *p = (struct dp_direct_part){
        .deal = deal,
        .here = (uint64_t)(uintptr_t)buf,
        .len = len,
        .chunk_bytes = bytes,
        .count = (uint32_t)((len + bytes - 1) / bytes),
    };
}

void dp_direct_offer(struct dp_direct_part *p, struct dp_direct_deal *deal, const void *buf,
                     size_t len, bool in_fine)
{
    cut(p, deal, buf, len, in_fine);
    p->is_sender = true;
    atomic_store_explicit(&deal->pulled, 0, memory_order_relaxed);
    atomic_store_explicit(&deal->pushed, 0, memory_order_relaxed);
    atomic_store_explicit(&deal->chunks, pack(0, p->count), memory_order_relaxed);
}

void dp_direct_take(struct dp_direct_part *p, struct dp_direct_deal *deal, uint64_t source, void *buf,
                    size_t len, bool in_fine)
{
    cut(p, deal, buf, len, in_fine);
    p->there = source;
}

void dp_direct_accept(struct dp_direct_part *p, unsigned number)
{
    atomic_store_explicit(&p->deal->target, p->here, memory_order_relaxed);
    atomic_store_explicit(&p->deal->accepted, number, memory_order_release);
}

bool dp_direct_is_accepted(struct dp_direct_part *p, unsigned number)
{
    if (p->there)
        return true;
    if (atomic_load_explicit(&p->deal->accepted, memory_order_acquire) != number)
        return false;
    p->there = atomic_load_explicit(&p->deal->target, memory_order_relaxed);
    return p->there;
}

/* The next chunk from one end. */
static bool take(const struct dp_direct_part *p, bool from_back, uint32_t *chunk)
{
    uint64_t v = atomic_load_explicit(&p->deal->chunks, memory_order_acquire);

    for (;;) {
        const uint32_t front = (uint32_t)(v >> 32), back = (uint32_t)v;
        if (v == DP_DEAL_ENDED || front >= back || back > p->count)
            return false;
        *chunk = from_back ? back - 1 : front;
        if (atomic_compare_exchange_weak_explicit(
                &p->deal->chunks, &v, from_back ? pack(front, back - 1) : pack(front + 1, back),
                memory_order_acq_rel, memory_order_acquire))
            return true;
    }
}

static size_t chunk_len(const struct dp_direct_part *p, uint32_t chunk)
{
    const size_t at = chunk * p->chunk_bytes;

    return p->len - at < p->chunk_bytes ? p->len - at : p->chunk_bytes;
}

/* If the other side had ended it, it was not copying when it did. */
void dp_direct_end(struct dp_direct_part *p)
{
    const uint64_t v =
        atomic_exchange_explicit(&p->deal->chunks, DP_DEAL_ENDED, memory_order_acq_rel);

    if (v != DP_DEAL_ENDED)
        p->others = p->is_sender ? (uint32_t)(v >> 32) : p->count - (uint32_t)v;
}

/* The caller's chunk could not be copied. */
static int give_up(struct dp_direct_part *p, int err)
{
    if (err == DP_ECOMM)
        return err;
    dp_direct_end(p);
    return 0;
}

static int pull_chunk(struct dp_direct *d, const struct dp_direct_part *p, size_t at, size_t len)
{
    if (!p->mapped)
        return read_peer(d, p->there + at, p->here + at, len);
    dp_copy_piece((char *)(uintptr_t)p->here + at, p->mapped + at, len, p->len);
    return 0;
}

int dp_direct_pull(struct dp_direct *d, struct dp_direct_part *p)
{
    uint32_t chunk;

    for (size_t moved = 0;
         dp_direct_can_copy(d, p) && moved < TURN_BYTES && take(p, false, &chunk);) {
        const size_t len = chunk_len(p, chunk);
        int err = pull_chunk(d, p, chunk * p->chunk_bytes, len);
        if (err)
            return give_up(p, err);
        atomic_store_explicit(&p->deal->pulled, ++p->done, memory_order_release);
        moved += len;
    }
    return 0;
}

static int write_peer(struct dp_direct *d, const struct dp_direct_part *p, size_t at, size_t len)
{
    const struct iovec here = {(void *)(uintptr_t)(p->here + at), len};
    const struct iovec there = {(void *)(uintptr_t)(p->there + at), len};

    int err = dp_now_ns() - d->proved_ns > PROOF_NS ? read_peer(d, 0, 0, 0) : 0;

    if (err)
        return err;
    ssize_t n = process_vm_writev((pid_t)d->peer_pid, &here, 1, &there, 1, 0);
    return n == (ssize_t)len ? 0 : DP_EUNSUPPORTED;
}

static int push_chunk(struct dp_direct *d, const struct dp_direct_part *p, size_t at, size_t len)
{
    if (!p->mapped)
        return write_peer(d, p, at, len);
    dp_copy_piece(p->mapped + at, (const char *)(uintptr_t)p->here + at, len, p->len);
    return 0;
}

int dp_direct_push(struct dp_direct *d, struct dp_direct_part *p)
{
    uint32_t chunk;

    for (size_t moved = 0;
         dp_direct_can_copy(d, p) && moved < TURN_BYTES && take(p, true, &chunk);) {
        const size_t len = chunk_len(p, chunk);
        int err = push_chunk(d, p, chunk * p->chunk_bytes, len);
        if (err)
            return give_up(p, err);
        atomic_store_explicit(&p->deal->pushed, ++p->done, memory_order_release);
        moved += len;
    }
    return 0;
}

bool dp_direct_has_chunk(const struct dp_direct_part *p)
{
    const uint64_t v = atomic_load_explicit(&p->deal->chunks, memory_order_acquire);

    return v != DP_DEAL_ENDED && (uint32_t)(v >> 32) < (uint32_t)v;
}

bool dp_direct_is_ended(const struct dp_direct_part *p)
{
    return atomic_load_explicit(&p->deal->chunks, memory_order_acquire) == DP_DEAL_ENDED;
}

bool dp_direct_is_complete(const struct dp_direct_part *p)
{
    return !dp_direct_is_ended(p) &&
           p->done + atomic_load_explicit(&p->deal->pushed, memory_order_acquire) == p->count;
}

bool dp_direct_is_busy(const struct dp_direct_part *p)
{
    const atomic_uint *done = p->is_sender ? &p->deal->pulled : &p->deal->pushed;

    return atomic_load_explicit(done, memory_order_acquire) < p->others;
}
