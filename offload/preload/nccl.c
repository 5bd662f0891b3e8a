/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl.c - calls of NCCL, counted where its profiler interface does not do it: NCCL before 2.23 has
 * none, other releases take one profiler only, and some do not find ours. Lines are those of the
 * profiler plugin (nccl-plugin/profiler/README.md), which counts here too, and only where
 * DUALPIPE_PROFILER_TRAFFIC names their file. Everything is passed on as it is.
 *
 * A communicator is known to be the same on all ranks by its identity, or by that of the one
 * that it was split from. Of others only the size is known, and how many of it came before.
 */
#include "offload/preload/real.h"
#include "offload/preload/state.h"

#include "base/hash.h"
#include "base/options.h"
#include "nccl-plugin/profiler/options.h"
#include "nccl-plugin/profiler/profiler.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define CALLER __builtin_return_address(0)

enum { NCCL_ABSENT = 2 /* ncclSystemError */, NCCL_IN_PROGRESS = 7 };
struct nccl_id {
    char bytes[128];
};

/* ---- whether --------------------------------------------------------------------------------- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool is_wanted;

static void read_wish(void)
{
    const struct dpo_preload_options *options = dpo_preload_options();
    struct dpn_profiler_options profiler;

    is_wanted = options && options->nccl &&
                !dp_options_read(&dpn_profiler_option_area, &profiler) && profiler.traffic &&
                *profiler.traffic;
}

/* NCCL loads its profiler with the first communicator, and there is one by now. */
static bool counts_here(void)
{
    static atomic_int answer; /* 0: not known yet */

    pthread_once(&once, read_wish);
    if (!is_wanted || dpo_depth)
        return false;
    if (!atomic_load_explicit(&answer, memory_order_relaxed))
        atomic_store_explicit(&answer, dpo_is_loaded("libnccl-profiler-dualpipe") ? 1 : 2,
                              memory_order_relaxed);
    return atomic_load_explicit(&answer, memory_order_relaxed) == 2;
}

/* ---- communicators --------------------------------------------------------------------------- */

enum { COMMS = 256 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct comm {
    const void *handle; /* NULL: none */
    uint64_t hash;
    void *context; /* of the profiler; NULL: nothing was sent yet */
    int ranks, rank; /* with it */
    uint64_t splits;
} comms[COMMS];
static int comm_count; /* of the table, that have ever been in use */

/* Never 0, with which it begins. */
static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t len)
{
    hash = dp_hash_bytes(hash ? hash : DP_HASH_BEGIN, bytes, len);
    return hash ? hash : 1;
}

/* With the lock, as the next ones. */
static struct comm *find(const void *handle)
{
    for (int i = 0; i < comm_count; i++)
        if (comms[i].handle == handle)
            return &comms[i];
    return NULL;
}

static struct comm *add(const void *handle, uint64_t hash)
{
    struct comm *c = find(NULL);

    if (!c && comm_count == COMMS)
        return NULL;
    if (!c)
        c = &comms[comm_count++];
    *c = (struct comm){.handle = handle, .hash = hash};
    return c;
}

static uint64_t hash_of_size(int ranks)
{
    static uint64_t number;
    const uint64_t what[] = {(uint64_t)ranks, number++};

    return hash_bytes(0, what, sizeof(what));
}

/* The profiler's context; NULL: it has none, as there are too many. */
static void *open_context(struct comm *c, const void *caller)
{
    int (*get_count)(const void *, int *) = dpo_real("ncclCommCount", NULL, caller);
    int (*get_rank)(const void *, int *) = dpo_real("ncclCommUserRank", NULL, caller);
    struct dpn_profiled about = {.hash = c->hash};

    if (!get_count || !get_rank || get_count(c->handle, &about.ranks) ||
        get_rank(c->handle, &about.rank))
        return NULL;
    if (!about.hash)
        about.hash = c->hash = hash_of_size(about.ranks);
    c->ranks = about.ranks;
    c->rank = about.rank;
    return dpn_profiler_open(&about, &c->context) ? NULL : c->context;
}

/* Before an operation, as another thread may abort the communicator beside it, and free it so. NULL: the
 * operation is not counted. */
static void *prepare(const void *handle, const void *caller)
{
    void *context = NULL;

    if (!counts_here())
        return NULL;
    pthread_mutex_lock(&lock);
    struct comm *c = find(handle);
    if (!c)
        c = add(handle, 0);
    if (c)
        context = c->context ? c->context : open_context(c, caller);
    pthread_mutex_unlock(&lock);
    return context;
}

static void remember(const void *handle, uint64_t hash)
{
    pthread_mutex_lock(&lock);
    if (!find(handle))
        add(handle, hash);
    pthread_mutex_unlock(&lock);
}

/* Before NCCL frees it: another thread may get its address anew. */
static void forget(const void *handle)
{
    void *context = NULL;

    if (!handle || !counts_here())
        return;
    pthread_mutex_lock(&lock);
    struct comm *c = find(handle);
    if (c) {
        context = c->context;
        *c = (struct comm){.handle = NULL};
    }
    pthread_mutex_unlock(&lock);
    dpn_profiler_close(context);
}

/* ---- communicators that come in a group are there at its end --------------------------------- */

enum { PENDING = 64 };
static _Thread_local struct {
    int count;
    struct {
        void **out;
        uint64_t hash;
    } items[PENDING];
} pending;

static void came(void **out, uint64_t hash)
{
    if (!counts_here())
        return;
    if (*out)
        remember(*out, hash);
    else if (pending.count < PENDING) {
        pending.items[pending.count].out = out;
        pending.items[pending.count++].hash = hash;
    }
}

EXPORT int ncclGroupEnd(void);
EXPORT int ncclGroupEnd(void)
{
    int (*real)(void) = dpo_real("ncclGroupEnd", (void *)ncclGroupEnd, CALLER);

    if (!real)
        return NCCL_ABSENT;
    const int status = real();
    const int error = errno;
    for (int i = 0; !status && i < pending.count; i++)
        if (*pending.items[i].out)
            remember(*pending.items[i].out, pending.items[i].hash);
    pending.count = 0;
    errno = error;
    return status;
}

EXPORT int ncclCommInitRank(void **out, int ranks, struct nccl_id id, int rank);
EXPORT int ncclCommInitRank(void **out, int ranks, struct nccl_id id, int rank)
{
    int (*real)(void **, int, struct nccl_id, int) =
        dpo_real("ncclCommInitRank", (void *)ncclCommInitRank, CALLER);

    if (!real)
        return NCCL_ABSENT;
    const int status = real(out, ranks, id, rank), error = errno;
    if (!status)
        came(out, hash_bytes(0, &id, sizeof(id)));
    errno = error;
    return status;
}

EXPORT int ncclCommInitRankConfig(void **out, int ranks, struct nccl_id id, int rank, void *config);
EXPORT int ncclCommInitRankConfig(void **out, int ranks, struct nccl_id id, int rank, void *config)
{
    int (*real)(void **, int, struct nccl_id, int, void *) =
        dpo_real("ncclCommInitRankConfig", (void *)ncclCommInitRankConfig, CALLER);

    if (!real)
        return NCCL_ABSENT;
    const int status = real(out, ranks, id, rank, config), error = errno;
    if (!status || status == NCCL_IN_PROGRESS)
        came(out, hash_bytes(0, &id, sizeof(id)));
    errno = error;
    return status;
}

/* All ranks are of this process. */
EXPORT int ncclCommInitAll(void **out, int count, const int *devices);
EXPORT int ncclCommInitAll(void **out, int count, const int *devices)
{
    static atomic_uint_least64_t number;
    int (*real)(void **, int, const int *) =
        dpo_real("ncclCommInitAll", (void *)ncclCommInitAll, CALLER);

    if (!real)
        return NCCL_ABSENT;
    const int status = real(out, count, devices), error = errno;
    const uint64_t what[] = {(uint64_t)getpid(), atomic_fetch_add(&number, 1)};
    for (int i = 0; !status && i < count; i++)
        came(&out[i], hash_bytes(0, what, sizeof(what)));
    errno = error;
    return status;
}

static uint64_t hash_of_split(const void *parent, int color)
{
    uint64_t hash = 0;

    pthread_mutex_lock(&lock);
    struct comm *c = find(parent);
    if (c && c->hash) {
        const uint64_t what[] = {(uint64_t)color, c->splits++};
        hash = hash_bytes(c->hash, what, sizeof(what));
    }
    pthread_mutex_unlock(&lock);
    return hash;
}

EXPORT int ncclCommSplit(void *comm, int color, int key, void **out, void *config);
EXPORT int ncclCommSplit(void *comm, int color, int key, void **out, void *config)
{
    int (*real)(void *, int, int, void **, void *) =
        dpo_real("ncclCommSplit", (void *)ncclCommSplit, CALLER);

    if (!real)
        return NCCL_ABSENT;
    const int status = real(comm, color, key, out, config), error = errno;
    const bool is_begun = !status || status == NCCL_IN_PROGRESS;
    const uint64_t hash = is_begun && counts_here() ? hash_of_split(comm, color) : 0;
    if (hash && color >= 0) /* a negative one takes part, and gets no communicator */
        came(out, hash);
    errno = error;
    return status;
}

/* `name` ends the communicator. */
#define ENDS(name)                                                                                 \
    EXPORT int name(void *comm);                                                                   \
    EXPORT int name(void *comm)                                                                    \
    {                                                                                              \
        int (*real)(void *) = dpo_real(#name, (void *)name, CALLER);                               \
        if (!real)                                                                                 \
            return NCCL_ABSENT;                                                                    \
        forget(comm);                                                                              \
        return real(comm);                                                                         \
    }
ENDS(ncclCommDestroy)
ENDS(ncclCommAbort)

/* ---- operations ------------------------------------------------------------------------------ */

/* ncclDataType_t; of one that is not known, a byte. */
static uint64_t bytes_of(size_t count, int type)
{
    static const unsigned char sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

    return count * (type >= 0 && type < (int)sizeof(sizes) ? sizes[type] : 1u);
}

/* Of those that NCCL carries out by messages to peers, each block is one, as its profiler has them. */
static void count_operation(const struct comm *c, enum dpn_function function, int peer,
                            uint64_t bytes)
{
    const bool to_all =
        function == DPN_ALL_TO_ALL || (function == DPN_SCATTER && peer == c->rank);

    if (function == DPN_SEND || (function == DPN_GATHER && peer != c->rank))
        dpn_profiler_sent(c->context, peer, bytes);
    for (int r = 0; to_all && r < c->ranks; r++)
        if (r != c->rank)
            dpn_profiler_sent(c->context, r, bytes);
    if (function < DPN_SEND_RECV)
        dpn_profiler_collective(c->context, function, bytes);
}

/* peer: or the root, of DPN_GATHER and DPN_SCATTER. context: prepare's, which `forget` closes after the
 * lock was free. */
static int done(int status, int error, enum dpn_function function, int peer, uint64_t bytes,
                const void *comm, const void *context)
{
    if (!status && context) {
        pthread_mutex_lock(&lock);
        const struct comm *c = find(comm);
        if (c && c->context == context)
            count_operation(c, function, peer, bytes);
        pthread_mutex_unlock(&lock);
    }
    errno = error;
    return status;
}

/* The real call, one deeper: NCCL's functions may call each other by their global names. `count`,
 * `type` and `comm` are there. */
#define OPERATION(name, function, peer, arguments, ...)                                            \
    EXPORT int name arguments;                                                                     \
    EXPORT int name arguments                                                                      \
    {                                                                                              \
        int(*real) arguments = dpo_real(#name, (void *)name, CALLER);                              \
        if (!real)                                                                                 \
            return NCCL_ABSENT;                                                                    \
        void *context = prepare(comm, CALLER);                                                     \
        dpo_depth++;                                                                               \
        const int status = real(__VA_ARGS__);                                                      \
        const int error = errno;                                                                   \
        dpo_depth--;                                                                               \
        return done(status, error, function, peer, bytes_of(count, type), comm, context);          \
    }

OPERATION(ncclSend, DPN_SEND, peer,
          (const void *from, size_t count, int type, int peer, void *comm, void *stream), from,
          count, type, peer, comm, stream)
OPERATION(ncclAllReduce, DPN_ALL_REDUCE, -1,
          (const void *from, void *to, size_t count, int type, int op, void *comm, void *stream),
          from, to, count, type, op, comm, stream)
OPERATION(ncclReduceScatter, DPN_REDUCE_SCATTER, -1,
          (const void *from, void *to, size_t count, int type, int op, void *comm, void *stream),
          from, to, count, type, op, comm, stream)
OPERATION(ncclAllGather, DPN_ALL_GATHER, -1,
          (const void *from, void *to, size_t count, int type, void *comm, void *stream), from, to,
          count, type, comm, stream)
OPERATION(ncclBroadcast, DPN_BROADCAST, -1,
          (const void *from, void *to, size_t count, int type, int root, void *comm, void *stream),
          from, to, count, type, root, comm, stream)
OPERATION(ncclBcast, DPN_BROADCAST, -1,
          (void *at, size_t count, int type, int root, void *comm, void *stream), at, count, type,
          root, comm, stream)
OPERATION(ncclReduce, DPN_REDUCE, -1,
          (const void *from, void *to, size_t count, int type, int op, int root, void *comm,
           void *stream),
          from, to, count, type, op, root, comm, stream)
/* NCCL 2.28 has these as functions. */
OPERATION(ncclAlltoAll, DPN_ALL_TO_ALL, -1,
          (const void *from, void *to, size_t count, int type, void *comm, void *stream), from, to,
          count, type, comm, stream)
OPERATION(ncclGather, DPN_GATHER, root,
          (const void *from, void *to, size_t count, int type, int root, void *comm, void *stream),
          from, to, count, type, root, comm, stream)
OPERATION(ncclScatter, DPN_SCATTER, root,
          (const void *from, void *to, size_t count, int type, int root, void *comm, void *stream),
          from, to, count, type, root, comm, stream)
