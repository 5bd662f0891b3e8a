/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: process_vm_readv, process_vm_writev, struct ucred */

#include "wire/cma.h"

#include "base/copy.h"
#include "base/fail.h"
#include "base/hmac.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* A call costs 1 to 3 us however little it copies; but the larger the chunks, the longer one side
 * waits for the last one of the other, which may copy at half its rate. So there are CHUNKS of
 * them, or more if they would be too large. */
enum {
    CHUNK = 128 << 10,
    CHUNKS = 16,
    FINE_CHUNK = 64 << 10, /* where there is no call, and both sides are as fast */
    FINE_CHUNKS = 8,
    LARGEST_CHUNK = 1 << 20,
    TURN_BYTES = 1 << 20 /* of one call of ours, so that one wire leaves time for others */
};

/* ---- permission ------------------------------------------------------------------------------ */

static bool is_yama_restricted(void)
{
    FILE *f = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
    bool restricted = f && fgetc(f) == '1';

    if (f)
        fclose(f);
    return restricted;
}

bool dp_cma_choose(struct dp_cma_rights *rights, uint32_t pid, uint32_t peer, bool peer_allows)
{
    if (rights->pid != pid) /* a child has none of its parent's */
        *rights = (struct dp_cma_rights){.pid = pid};
    bool is_known = false;
    for (int i = 0; i < rights->count; i++)
        is_known |= rights->admitting[i] == peer;
    if (peer_allows && !is_known && rights->count < DP_CMA_ADMITTING)
        rights->admitting[rights->count++] = peer;
    if (rights->admitted == 0 && peer != pid && !peer_allows && !is_known)
        rights->admitted = peer;
    rights->connections += rights->admitted == peer;
    return rights->admitted == peer;
}

bool dp_cma_release(struct dp_cma_rights *rights, uint32_t pid, uint32_t peer)
{
    if (rights->pid != pid || rights->admitted != peer || --rights->connections)
        return false;
    rights->admitted = 0;
    return true;
}

static pthread_mutex_t rights_lock = PTHREAD_MUTEX_INITIALIZER;
static struct dp_cma_rights own_rights;

/* Returns whether the peer is let in. */
static bool allow_attach(uint32_t peer, bool peer_allows)
{
    pthread_mutex_lock(&rights_lock);
    const bool allows = dp_cma_choose(&own_rights, (uint32_t)getpid(), peer, peer_allows);
    if (allows)
        prctl(PR_SET_PTRACER, (unsigned long)peer, 0, 0, 0);
    pthread_mutex_unlock(&rights_lock);
    return allows;
}

void dp_cma_fini(struct dp_cma *d)
{
    if (!d->admits)
        return;
    pthread_mutex_lock(&rights_lock);
    if (dp_cma_release(&own_rights, (uint32_t)getpid(), d->peer_pid))
        prctl(PR_SET_PTRACER, 0, 0, 0, 0);
    pthread_mutex_unlock(&rights_lock);
    d->admits = false;
}

/* ---- guards ---------------------------------------------------------------------------------- */

/* Between 2^(bits - 1) and 2^bits, where no system puts anything by itself: above heaps of programs
 * that begin low, and below those of others, shared objects and stacks. */
static uint64_t guess_address(int bits)
{
    const uint64_t half = UINT64_C(1) << (bits - 1);
    uint64_t random;

    if (dp_random_bytes(&random, sizeof(random)))
        return 0;
    return half + (random & (half - 1) & ~(uint64_t)(sysconf(_SC_PAGESIZE) - 1));
}

/* The page can be written to only once no child gets it. The system call itself, as sanitizers let
 * programs map at certain addresses only. */
static uint64_t map_guard(int bits)
{
    const uint64_t wanted = guess_address(bits);
    const size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;

    const long at = wanted ? syscall(SYS_mmap, wanted, bytes, PROT_NONE, flags, -1, 0) : -1;
    void *page = (void *)at;

    if (at == -1)
        return 0;
    /* A kernel that does not know the flag takes the address as a wish. */
    if ((uint64_t)at == wanted && !madvise(page, bytes, MADV_DONTFORK) &&
        !mprotect(page, bytes, PROT_READ | PROT_WRITE))
        return wanted;
    munmap(page, bytes);
    return 0;
}

void dp_cma_guards(uint64_t guards[DP_CMA_GUARDS])
{
    static const int bits[] = {46, 46, 46, 46, 41, 38}; /* of addresses; the last for small ones */
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint64_t ours[DP_CMA_GUARDS];
    static pid_t owner; /* a child has none yet */

    pthread_mutex_lock(&lock);
    for (int g = 0; g < DP_CMA_GUARDS && owner != getpid(); g++) {
        ours[g] = 0;
        for (size_t i = 0; i < sizeof(bits) / sizeof(bits[0]) && !ours[g]; i++)
            ours[g] = map_guard(bits[i]);
    }
    owner = getpid();
    memcpy(guards, ours, sizeof(ours));
    pthread_mutex_unlock(&lock);
}

/* ---- the peer -------------------------------------------------------------------------------- */

static void publish(struct dp_cma *d, bool peer_allows)
{
    d->admits = d->is_restricted && allow_attach(d->peer_pid, peer_allows);
    d->mine->allows = d->admits;
    atomic_store_explicit(&d->mine->ready, 1, memory_order_release);
}

void dp_cma_introduce(struct dp_cma *d, int socket, bool is_first, struct dp_cma_identity *mine,
                      struct dp_cma_identity *theirs)
{
    struct ucred peer = {.pid = 0};
    socklen_t len = sizeof(peer);

    d->mine = mine;
    d->theirs = theirs;
    d->pid = (uint32_t)getpid();
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &len) || peer.pid <= 0)
        return;
    if (dp_random_bytes(&d->token, sizeof(d->token)))
        return;
    d->peer_pid = (uint32_t)peer.pid;
    mine->pid = d->pid;
    mine->token_at = (uint64_t)(uintptr_t)&d->token;
    mine->token = d->token;
    dp_cma_guards(mine->guards);
    d->is_restricted = is_yama_restricted();
    d->waits = d->is_restricted && !is_first;
    if (!d->waits)
        publish(d, false);
}

/* Read the peer's token, and behind it len bytes at `from` to `to`. 0; DP_ECOMM: another process
 * has the number; DP_EUNSUPPORTED: it cannot be done, also where the peer's first thread has ended.
 * The socket tells whether the whole peer has ended. */
static int read_peer(struct dp_cma *d, uint64_t from, uint64_t to, size_t len)
{
    uint64_t token = 0;
    const struct iovec here[2] = {{&token, sizeof(token)}, {(void *)(uintptr_t)to, len}};
    const struct iovec there[2] = {{(void *)(uintptr_t)d->theirs->token_at, sizeof(token)},
                                   {(void *)(uintptr_t)from, len}};
    const unsigned long parts = len ? 2 : 1;
    ssize_t n = process_vm_readv((pid_t)d->peer_pid, here, parts, there, parts, 0);

    if (n < (ssize_t)sizeof(token))
        return DP_EUNSUPPORTED;
    if (token != d->theirs->token)
        return DP_ECOMM;
    return n == (ssize_t)(sizeof(token) + len) ? 0 : DP_EUNSUPPORTED;
}

/* Write len bytes at `from` to `to` of the peer, behind a word to each of its guards. */
static int write_peer(struct dp_cma *d, uint64_t from, uint64_t to, size_t len)
{
    const uint64_t words[DP_CMA_GUARDS] = {0, 0};
    const struct iovec here[2] = {{(void *)words, sizeof(words)}, {(void *)(uintptr_t)from, len}};
    const struct iovec there[DP_CMA_GUARDS + 1] = {
        {(void *)(uintptr_t)d->guards[0], sizeof(words[0])},
        {(void *)(uintptr_t)d->guards[1], sizeof(words[1])},
        {(void *)(uintptr_t)to, len}};
    const unsigned long more = len ? 1 : 0;
    ssize_t n =
        process_vm_writev((pid_t)d->peer_pid, here, 1 + more, there, DP_CMA_GUARDS + more, 0);

    return n == (ssize_t)(sizeof(words) + len) ? 0 : DP_EUNSUPPORTED;
}

static void say_that_neither_may(const struct dp_cma *d)
{
    static atomic_bool has_said;

    if (!atomic_exchange(&has_said, true))
        dp_log(DP_LOG_INFO,
               "messages to process %u go through shared memory, as under Yama (ptrace_scope 1) a "
               "process can let in one other only, and both have let in others; with "
               "kernel.yama.ptrace_scope=0 large ones are copied straight", d->peer_pid);
}

void dp_cma_try(struct dp_cma *d)
{
    if (!d->peer_pid) {
        d->tried = true;
        return;
    }
    if (!atomic_load_explicit(&d->theirs->ready, memory_order_acquire))
        return;
    if (d->waits)
        publish(d, d->theirs->allows);
    d->tried = true;
    memcpy(d->guards, d->theirs->guards, sizeof(d->guards));
    d->reaches = d->theirs->pid == d->peer_pid && d->guards[0] && d->guards[1] &&
                 !read_peer(d, 0, 0, 0) && !write_peer(d, 0, 0, 0);
    if (d->waits && !d->reaches && !d->mine->allows)
        say_that_neither_may(d);
    atomic_store_explicit(&d->mine->reaches, d->reaches, memory_order_release);
}

/* A child that has inherited the wire is another process than the one that the peer knows. */
bool dp_cma_is_known(const struct dp_cma *d)
{
    return d->pid == (uint32_t)getpid();
}

bool dp_cma_works(const struct dp_cma *d)
{
    return d->tried && d->peer_pid &&
           (d->reaches || atomic_load_explicit(&d->theirs->reaches, memory_order_acquire)) &&
           dp_cma_is_known(d);
}

/* ---- a transfer ------------------------------------------------------------------------------ */

static uint64_t pack(uint32_t front, uint32_t back)
{
    return (uint64_t)front << 32 | back;
}

static size_t chunk_bytes(size_t len, bool in_fine)
{
    const size_t least = in_fine ? FINE_CHUNK : CHUNK;
    size_t bytes = len / (in_fine ? FINE_CHUNKS : CHUNKS);

    if (bytes < least)
        bytes = len / 2 < least ? len / 2 : least;
    if (bytes > LARGEST_CHUNK)
        bytes = LARGEST_CHUNK;
    return (bytes + 4095) & ~(size_t)4095;
}

static void cut(struct dp_cma_part *p, struct dp_cma_transfer *transfer, const void *buf,
                size_t len, bool in_fine)
{
    const size_t bytes = chunk_bytes(len, in_fine);

    *p = (struct dp_cma_part){
        .transfer = transfer,
        .here = (uint64_t)(uintptr_t)buf,
        .len = len,
        .chunk_bytes = bytes,
        .count = (uint32_t)((len + bytes - 1) / bytes),
    };
}

void dp_cma_offer(struct dp_cma_part *p, struct dp_cma_transfer *transfer, const void *buf,
                  size_t len, bool in_fine)
{
    cut(p, transfer, buf, len, in_fine);
    p->is_sender = true;
    atomic_store_explicit(&transfer->pulled, 0, memory_order_relaxed);
    atomic_store_explicit(&transfer->pushed, 0, memory_order_relaxed);
    atomic_store_explicit(&transfer->pulled_failed, 0, memory_order_relaxed);
    atomic_store_explicit(&transfer->pushed_failed, 0, memory_order_relaxed);
    atomic_store_explicit(&transfer->chunks, pack(0, p->count), memory_order_relaxed);
}

void dp_cma_take(struct dp_cma_part *p, struct dp_cma_transfer *transfer, uint64_t source,
                 void *buf, size_t len, bool in_fine)
{
    cut(p, transfer, buf, len, in_fine);
    p->there = source;
}

void dp_cma_accept(struct dp_cma_part *p, unsigned number)
{
    atomic_store_explicit(&p->transfer->target, p->here, memory_order_relaxed);
    atomic_store_explicit(&p->transfer->accepted, number, memory_order_release);
}

bool dp_cma_is_accepted(struct dp_cma_part *p, unsigned number)
{
    if (p->there)
        return true;
    if (atomic_load_explicit(&p->transfer->accepted, memory_order_acquire) != number)
        return false;
    p->there = atomic_load_explicit(&p->transfer->target, memory_order_relaxed);
    return p->there;
}

/* The next chunk from one end. */
static bool take(const struct dp_cma_part *p, bool from_back, uint32_t *chunk)
{
    uint64_t v = atomic_load_explicit(&p->transfer->chunks, memory_order_acquire);

    for (;;) {
        const uint32_t front = (uint32_t)(v >> 32), back = (uint32_t)v;
        if (v == DP_CMA_ENDED || front >= back || back > p->count)
            return false;
        *chunk = from_back ? back - 1 : front;
        if (atomic_compare_exchange_weak_explicit(
                &p->transfer->chunks, &v, from_back ? pack(front, back - 1) : pack(front + 1, back),
                memory_order_acq_rel, memory_order_acquire))
            return true;
    }
}

static size_t chunk_len(const struct dp_cma_part *p, uint32_t chunk)
{
    const size_t at = chunk * p->chunk_bytes;

    return p->len - at < p->chunk_bytes ? p->len - at : p->chunk_bytes;
}

/* A side that ends a transfer is not copying at that moment. */
void dp_cma_end(struct dp_cma_part *p)
{
    const uint64_t v =
        atomic_exchange_explicit(&p->transfer->chunks, DP_CMA_ENDED, memory_order_acq_rel);

    if (v != DP_CMA_ENDED)
        p->others = p->is_sender ? (uint32_t)(v >> 32) : p->count - (uint32_t)v;
}

/* The caller's chunk could not be copied. The other side, which may have ended the transfer
 * meanwhile, waits for this chunk, so it is counted; not among those that are done, which would
 * make the message complete. */
static int give_up(struct dp_cma_part *p, int err)
{
    atomic_uint *failed = p->is_sender ? &p->transfer->pushed_failed : &p->transfer->pulled_failed;

    if (err != DP_ECOMM)
        dp_cma_end(p);
    atomic_fetch_add_explicit(failed, 1, memory_order_release);
    return err == DP_ECOMM ? err : 0;
}

static int pull_chunk(struct dp_cma *d, const struct dp_cma_part *p, size_t at, size_t len)
{
    if (!p->mapped)
        return read_peer(d, p->there + at, p->here + at, len);
    dp_copy_piece((char *)(uintptr_t)p->here + at, p->mapped + at, len, p->len);
    return 0;
}

int dp_cma_pull(struct dp_cma *d, struct dp_cma_part *p)
{
    uint32_t chunk;

    for (size_t moved = 0; dp_cma_can_copy(d, p) && moved < TURN_BYTES && take(p, false, &chunk);) {
        const size_t len = chunk_len(p, chunk);
        int err = pull_chunk(d, p, chunk * p->chunk_bytes, len);
        if (err)
            return give_up(p, err);
        atomic_store_explicit(&p->transfer->pulled, ++p->done, memory_order_release);
        moved += len;
    }
    return 0;
}

static int push_chunk(struct dp_cma *d, const struct dp_cma_part *p, size_t at, size_t len)
{
    if (!p->mapped)
        return write_peer(d, p->here + at, p->there + at, len);
    dp_copy_piece(p->mapped + at, (const char *)(uintptr_t)p->here + at, len, p->len);
    return 0;
}

int dp_cma_push(struct dp_cma *d, struct dp_cma_part *p)
{
    uint32_t chunk;

    for (size_t moved = 0; dp_cma_can_copy(d, p) && moved < TURN_BYTES && take(p, true, &chunk);) {
        const size_t len = chunk_len(p, chunk);
        int err = push_chunk(d, p, chunk * p->chunk_bytes, len);
        if (err)
            return give_up(p, err);
        atomic_store_explicit(&p->transfer->pushed, ++p->done, memory_order_release);
        moved += len;
    }
    return 0;
}

bool dp_cma_has_chunk(const struct dp_cma_part *p)
{
    const uint64_t v = atomic_load_explicit(&p->transfer->chunks, memory_order_acquire);

    return v != DP_CMA_ENDED && (uint32_t)(v >> 32) < (uint32_t)v;
}

bool dp_cma_is_ended(const struct dp_cma_part *p)
{
    return atomic_load_explicit(&p->transfer->chunks, memory_order_acquire) == DP_CMA_ENDED;
}

bool dp_cma_is_complete(const struct dp_cma_part *p)
{
    return !dp_cma_is_ended(p) &&
           p->done + atomic_load_explicit(&p->transfer->pushed, memory_order_acquire) == p->count;
}

bool dp_cma_is_busy(const struct dp_cma_part *p)
{
    const struct dp_cma_transfer *t = p->transfer;
    const atomic_uint *done = p->is_sender ? &t->pulled : &t->pushed;
    const atomic_uint *failed = p->is_sender ? &t->pulled_failed : &t->pushed_failed;

    return atomic_load_explicit(done, memory_order_acquire) +
               atomic_load_explicit(failed, memory_order_acquire) <
           p->others;
}
