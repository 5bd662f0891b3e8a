/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: gethostname */

#include "nccl-plugin/profiler/profiler.h"

#include "base/append.h"
#include "base/fail.h"
#include "base/text.h"
#include "nccl-plugin/profiler/options.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const dpn_function_names[DPN_FUNCTIONS] = {
    [DPN_BROADCAST] = "Broadcast",
    [DPN_REDUCE] = "Reduce",
    [DPN_ALL_GATHER] = "AllGather",
    [DPN_REDUCE_SCATTER] = "ReduceScatter",
    [DPN_ALL_REDUCE] = "AllReduce",
    [DPN_SEND_RECV] = "SendRecv",
    [DPN_SEND] = "Send",
    [DPN_RECV] = "Recv",
    [DPN_ALL_TO_ALL] = "AlltoAll",
    [DPN_GATHER] = "Gather",
    [DPN_SCATTER] = "Scatter",
};

enum {
    SLOTS = 1024, /* communicators at once; a power of 2 */
    PEERS_MAX = 1 << 20,
    NAME_LEN = 64
};

static struct slot {
    pthread_mutex_t lock;
    uintptr_t use; /* counts up with every communicator; odd: there is one */
    uint64_t hash;
    char name[NAME_LEN];
    int rank, ranks, nodes;
    int peers;      /* room in sent */
    uint64_t *sent; /* [peers] bytes */
    uint64_t calls[DPN_FUNCTIONS], bytes[DPN_FUNCTIONS];
} slots[SLOTS];

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct dpn_profiler_options options;

static void start(void)
{
    for (int i = 0; i < SLOTS; i++)
        pthread_mutex_init(&slots[i].lock, NULL);
    if (dp_options_read(&dpn_profiler_option_area, &options))
        options.traffic = NULL; /* said once; NCCL goes on, and nothing is written */
}

/* ---- contexts -------------------------------------------------------------------------------- */

static void *context_of(const struct slot *s)
{
    return (void *)(s->use * SLOTS + (uintptr_t)(s - slots));
}

/* Locked; NULL, and not locked, if the context is of no communicator that there is. */
static struct slot *lock_slot(const void *context)
{
    struct slot *s = &slots[(uintptr_t)context % SLOTS];

    if (!context)
        return NULL;
    pthread_mutex_lock(&s->lock);
    if (s->use % 2 && context_of(s) == context)
        return s;
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* A free one, locked; NULL: none. */
static struct slot *lock_free_slot(void)
{
    for (struct slot *s = slots; s < slots + SLOTS; s++) {
        pthread_mutex_lock(&s->lock);
        if (s->use % 2 == 0)
            return s;
        pthread_mutex_unlock(&s->lock);
    }
    return NULL;
}

/* ---- counting -------------------------------------------------------------------------------- */

/* A name in a JSON string: what would need an escape is left out. */
static void set_name(struct slot *s, const char *name)
{
    size_t len = 0;

    for (; name && *name && len < NAME_LEN - 1; name++)
        if (*name >= ' ' && *name < 127 && *name != '"' && *name != '\\')
            s->name[len++] = *name;
    s->name[len] = '\0';
}

static bool has_room(struct slot *s, int peer)
{
    if (peer < s->peers)
        return true;
    if (peer >= PEERS_MAX)
        return false;
    const int peers = peer < s->ranks ? s->ranks : 2 * (peer + 1);
    uint64_t *sent = realloc(s->sent, (size_t)peers * sizeof(*sent));
    if (!sent)
        return false;
    memset(sent + s->peers, 0, (size_t)(peers - s->peers) * sizeof(*sent));
    s->sent = sent;
    s->peers = peers;
    return true;
}

int dpn_profiler_open(const struct dpn_profiled *comm, void **context)
{
    pthread_once(&once, start);
    struct slot *s = lock_free_slot();

    if (!s)
        return dp_fail(DP_ENOMEM, "profiler: more than %d communicators at once", SLOTS);
    s->use++;
    s->hash = comm->hash;
    s->rank = comm->rank;
    s->ranks = comm->ranks;
    s->nodes = comm->nodes;
    set_name(s, comm->name);
    memset(s->calls, 0, sizeof(s->calls));
    memset(s->bytes, 0, sizeof(s->bytes));
    *context = context_of(s);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

void dpn_profiler_identify(void *context, uint64_t hash, const char *name, int rank)
{
    struct slot *s = lock_slot(context);

    if (!s)
        return;
    if (!s->hash) {
        s->hash = hash;
        set_name(s, name);
    }
    s->rank = rank;
    pthread_mutex_unlock(&s->lock);
}

void dpn_profiler_sent(void *context, int peer, uint64_t bytes)
{
    struct slot *s = lock_slot(context);

    if (!s)
        return;
    s->calls[DPN_SEND]++;
    s->bytes[DPN_SEND] += bytes;
    if (peer >= 0 && has_room(s, peer))
        s->sent[peer] += bytes;
    pthread_mutex_unlock(&s->lock);
}

void dpn_profiler_collective(void *context, enum dpn_function function, uint64_t bytes)
{
    struct slot *s = lock_slot(context);

    if (!s)
        return;
    s->calls[function]++;
    s->bytes[function] += bytes;
    pthread_mutex_unlock(&s->lock);
}

/* ---- the traffic file ------------------------------------------------------------------------ */

static void put_sent(struct dp_text *t, const struct slot *s)
{
    const char *comma = "";

    for (int i = 0; i < s->peers; i++)
        if (s->sent[i]) {
            dp_text_addf(t, "%s[%d, %" PRIu64 "]", comma, i, s->sent[i]);
            comma = ", ";
        }
}

static void put_functions(struct dp_text *t, const struct slot *s)
{
    const char *comma = "";

    for (int i = 0; i < DPN_FUNCTIONS; i++)
        if (s->calls[i]) {
            dp_text_addf(t, "%s\"%s\": [%" PRIu64 ", %" PRIu64 "]", comma, dpn_function_names[i],
                         s->calls[i], s->bytes[i]);
            comma = ", ";
        }
}

/* A line: one JSON object. */
static void put_line(struct dp_text *t, const struct slot *s)
{
    char host[256] = "";

    gethostname(host, sizeof(host) - 1);
    dp_text_addf(t,
                 "{\"dualpipe_traffic\": 1, \"comm\": \"%016" PRIx64 "\", \"name\": \"%s\", "
                 "\"ranks\": %d, \"nodes\": %d, \"rank\": %d, \"host\": \"%s\", \"process\": %d, "
                 "\"sent\": [",
                 s->hash, s->name, s->ranks, s->nodes, s->rank, host, (int)getpid());
    put_sent(t, s);
    dp_text_addf(t, "], \"functions\": {");
    put_functions(t, s);
    dp_text_adds(t, "}}\n");
}

static void append_line(const struct slot *s)
{
    struct dp_text t = {0};
    char *line;
    size_t len;

    put_line(&t, s);
    if (dp_text_take(&t, &line, &len)) {
        dp_log(DP_LOG_WARN, "profiler: no memory for a line of traffic");
        return;
    }
    dp_append("DUALPIPE_PROFILER_TRAFFIC", options.traffic, line, len);
    free(line);
}

static void close_slot(struct slot *s)
{
    if (options.traffic && *options.traffic)
        append_line(s);
    free(s->sent);
    s->sent = NULL;
    s->peers = 0;
    s->hash = 0;
    s->use++;
    pthread_mutex_unlock(&s->lock);
}

void dpn_profiler_close(void *context)
{
    struct slot *s = lock_slot(context);

    if (s)
        close_slot(s);
}

/* What a job left open at its end. */
__attribute__((destructor)) static void close_all(void)
{
    for (struct slot *s = slots; s < slots + SLOTS; s++)
        if (s->use % 2 && !pthread_mutex_trylock(&s->lock))
            close_slot(s);
}
