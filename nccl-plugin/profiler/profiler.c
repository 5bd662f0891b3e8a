/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: gethostname */

#include "nccl-plugin/profiler/profiler.h"

#include "base/fail.h"
#include "base/text.h"
#include "nccl-plugin/profiler/counters.h"
#include "nccl-plugin/options.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SLOTS = 1024, /* communicators at once; a power of 2 */
    PEERS_MAX = 1 << 20,
    NAME_LEN = DPN_PROFILE_NAME_LEN
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
    uint64_t receives; /* which are no calls of their own in the file: the sender has them */
    pid_t pid; /* a forked child writes nothing of what it inherits */
    struct dpn_network_comm network;
} slots[SLOTS];

static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic pid_t own_pid;

static void start(void)
{
    for (int i = 0; i < SLOTS; i++)
        pthread_mutex_init(&slots[i].lock, NULL);
}

bool dpn_profiler_has_network(void)
{
    const struct dpn_profiler_options *o = dpn_profiler_options();

    return o->stat || (o->trace && *o->trace);
}

pid_t dpn_profiler_pid(void)
{
    return atomic_load_explicit(&own_pid, memory_order_relaxed);
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

/* Where the network's events of the communicator are counted. */
static void open_network(struct slot *s)
{
    const struct dpn_profiled c = {s->hash, s->name, s->rank, s->ranks, s->nodes};

    s->network = (struct dpn_network_comm){dpn_counters_open(&c), dpn_trace_comm(&c)};
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
    s->pid = getpid();
    atomic_store_explicit(&own_pid, s->pid, memory_order_relaxed);
    dpn_counters_name(s->name, NAME_LEN, comm->name);
    memset(s->calls, 0, sizeof(s->calls));
    memset(s->bytes, 0, sizeof(s->bytes));
    s->receives = 0;
    s->network = (struct dpn_network_comm){DPN_PROFILE_COMMS, 0};
    if (dpn_profiler_has_network())
        open_network(s);
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
        dpn_counters_name(s->name, NAME_LEN, name);
    }
    s->rank = rank;
    pthread_mutex_unlock(&s->lock);
}

/* Locked. The operation's handle, for what the network does of it. */
static void *count(struct slot *s, enum dpn_function function, int peer, uint64_t bytes)
{
    struct dpn_profile_row *c = dpn_counters_comm(s->network.counters);

    s->calls[function]++;
    s->bytes[function] += bytes;
    if (!dpn_profiler_has_network())
        return NULL;
    if (c) {
        dp_page_set(&c->values[DPN_PROFILE_CALLS + function], s->calls[function]);
        dp_page_set(&c->values[DPN_PROFILE_CALLS_BYTES + function], s->bytes[function]);
    }
    return dpn_network_operation(&s->network, function, peer, bytes, s->calls[function] - 1);
}

void *dpn_profiler_sent(void *context, int peer, uint64_t bytes)
{
    struct slot *s = lock_slot(context);

    if (!s)
        return NULL;
    void *handle = count(s, DPN_SEND, peer, bytes);
    if (peer >= 0 && has_room(s, peer))
        s->sent[peer] += bytes;
    pthread_mutex_unlock(&s->lock);
    return handle;
}

void *dpn_profiler_received(void *context, int peer, uint64_t bytes)
{
    struct slot *s = dpn_profiler_has_network() ? lock_slot(context) : NULL;

    if (!s)
        return NULL;
    void *handle = dpn_network_operation(&s->network, DPN_RECV, peer, bytes, s->receives++);
    pthread_mutex_unlock(&s->lock);
    return handle;
}

void *dpn_profiler_collective(void *context, enum dpn_function function, uint64_t bytes)
{
    struct slot *s = lock_slot(context);

    if (!s)
        return NULL;
    void *handle = count(s, function, -1, bytes);
    pthread_mutex_unlock(&s->lock);
    return handle;
}

bool dpn_profiler_comm(void *context, struct dpn_network_comm *out)
{
    struct slot *s = lock_slot(context);

    if (!s)
        return false;
    *out = s->network;
    pthread_mutex_unlock(&s->lock);
    return true;
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
            dp_text_addf(t, "%s\"%s\": [%" PRIu64 ", %" PRIu64 "]", comma,
                         dpn_function_name((enum dpn_function)i), s->calls[i], s->bytes[i]);
            comma = ", ";
        }
}

struct list {
    struct dp_text *text;
    const char *comma;
};

static void put_flow(const struct dpn_profile_row *f, void *user)
{
    const uint64_t key = dp_page_get(&f->use);
    struct list *l = user;

    dp_text_addf(l->text,
                 "%s{\"peer\": %d, \"way\": \"%s\", \"channel\": %u, \"rail\": \"%s\", "
                 "\"bytes\": %" PRIu64 ", \"chunks\": %" PRIu64 ", \"wait_ns\": {",
                 l->comma, dpn_profile_key_peer(key),
                 dpn_profile_key_is_send(key) ? "send" : "receive", dpn_profile_key_channel(key),
                 dpn_counters_rail(dp_page_get(&f->values[DPN_PROFILE_RAIL])),
                 dp_page_get(&f->values[DPN_PROFILE_BYTES]),
                 dp_page_get(&f->values[DPN_PROFILE_CHUNKS]));
    for (int i = 0; i < DPN_WAITS; i++)
        dp_text_addf(l->text, "%s\"%s\": %" PRIu64, i ? ", " : "",
                     dpn_wait_name((enum dpn_profile_wait)i),
                     dp_page_get(&f->values[DPN_PROFILE_WAIT_NS + i]));
    dp_text_adds(l->text, "}}");
    l->comma = ", ";
}

/* What the network's events have counted. */
static void put_network(struct dp_text *t, const struct slot *s)
{
    if (!dpn_profiler_has_network())
        return;
    dp_text_adds(t, ", \"network\": [");
    dpn_counters_each(s->network.counters, put_flow, &(struct list){t, ""});
    dp_text_adds(t, "]");
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
    dp_text_adds(t, "}");
    put_network(t, s);
    dp_text_adds(t, "}\n");
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
    dp_append("DUALPIPE_PROFILER_TRAFFIC", dpn_profiler_options()->traffic, line, len);
    free(line);
}

static void close_slot(struct slot *s)
{
    const char *traffic = dpn_profiler_options()->traffic;

    if (dpn_profiler_has_network())
        dpn_network_close(&s->network);
    if (traffic && *traffic)
        append_line(s);
    dpn_counters_close(s->network.counters);
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
        if (s->use % 2 && s->pid == getpid() && !pthread_mutex_trylock(&s->lock))
            close_slot(s);
    dpn_trace_write();
}
