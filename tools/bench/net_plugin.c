/* SPDX-License-Identifier: Apache-2.0
 *
 * net_plugin.c - a net plugin in NCCL's place: the newest table that it has, connections made by
 * turns, at most 8 requests of a connection in flight, only the oldest of them tested.
 */
#include "bench/net.h"

#include "command.h"
#include "nccl-plugin/net/caller.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Loaded and initialized. */
struct net_plugin {
    const struct net_caller *net;
    void *ctx;
    struct net_facts facts;
};

/* ---- from a file to a plugin with a device, or to the sentence that says why not ------------- */

enum { PROBE_S = 60 };

/* ---- what the plugin says -------------------------------------------------------------------- */

static char last_warning[160];

__attribute__((format(printf, 5, 6)))
static void keep_warning(ncclDebugLogLevel level, unsigned long flags, const char *file, int line,
                         const char *fmt, ...)
{
    va_list args;

    (void)flags;
    (void)file;
    (void)line;
    if (level != NCCL_LOG_WARN)
        return;
    va_start(args, fmt);
    vsnprintf(last_warning, sizeof(last_warning), fmt, args);
    va_end(args);
}

static const char *result_text(ncclResult_t result)
{
    static const char *const names[] = {
        "ncclSuccess",         "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError",
        "ncclInvalidArgument", "ncclInvalidUsage",       "ncclRemoteError", "ncclInProgress",
    };

    return (unsigned)result < sizeof(names) / sizeof(names[0]) ? names[result]
                                                               : "an unknown result";
}

static int report_refusal(struct net_side *s, const char *call, ncclResult_t result)
{
    return net_side_fail(s, DP_EIO, "%s: %s returns %s%s%s", s->contender->file, call,
                         result_text(result), *last_warning ? ": " : "", last_warning);
}

/* ---- loading --------------------------------------------------------------------------------- */

static int find_table(struct net_side *s, struct net_plugin *p)
{
    const int wanted = (int)s->values->abi;
    void *library = dlopen(s->contender->file, RTLD_NOW | RTLD_LOCAL);

    if (!library)
        return net_side_fail(s, DP_EINVAL, "cannot load the plugin: %s", dlerror());
    for (int v = NEWEST_VERSION; v >= OLDEST_VERSION && !p->net; v--)
        if (!wanted || v == wanted)
            p->net = net_caller_find(library, v);
    if (!p->net && wanted)
        return net_side_fail(s, DP_EINVAL, "%s has no ncclNetPlugin_v%d", s->contender->file,
                             wanted);
    if (!p->net)
        return net_side_fail(s, DP_EINVAL,
                             "%s is no net plugin: it has none of ncclNetPlugin_v%d to _v%d",
                             s->contender->file, OLDEST_VERSION, NEWEST_VERSION);
    return 0;
}

/* --device: a number from 0, or a name. */
static int choose_device(struct net_side *s, struct net_plugin *p,
                         struct net_properties *properties)
{
    const char *wanted = s->values->device;
    char *end;
    long number = wanted ? strtol(wanted, &end, 10) : 0;
    const bool by_name = wanted && (*end || !*wanted);

    for (int dev = 0; dev < p->facts.device_count; dev++) {
        ncclResult_t result = p->net->properties(dev, properties);
        if (result)
            return report_refusal(s, "getProperties", result);
        if (by_name ? !strcmp(properties->name, wanted) : dev == number) {
            p->facts.device_number = dev;
            return 0;
        }
    }
    return net_side_fail(s, DP_EINVAL,
                         "--device %s: %s has no such device; expected the name of one, "
                         "or a number from 0 to %d",
                         wanted, s->contender->file, p->facts.device_count - 1);
}

static int load_plugin(struct net_side *s, struct net_plugin *p)
{
    struct net_properties properties;
    int err = find_table(s, p);

    if (err)
        return err;
    ncclResult_t result = p->net->init(&p->ctx, keep_warning);
    if (result)
        return report_refusal(s, "init", result);
    result = p->net->devices(&p->facts.device_count);
    if (result)
        return report_refusal(s, "devices", result);
    if (p->facts.device_count < 1)
        return net_side_fail(s, DP_ENODEV, "%s has no device on this machine%s%s",
                             s->contender->file, *last_warning ? ": " : "", last_warning);
    err = choose_device(s, p, &properties);
    if (err)
        return err;
    p->facts.version = p->net->version;
    p->facts.speed_mbps = properties.speed;
    snprintf(p->facts.plugin, sizeof(p->facts.plugin), "%s", p->net->name);
    snprintf(p->facts.device, sizeof(p->facts.device), "%s", properties.name);
    return 0;
}

void net_set_environment(const struct net_contender *c)
{
    char *rest = NULL, *copy = strdup(c->assignments ? c->assignments : "");

    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        *value = '\0';
        setenv(word, value + 1, 1);
    }
    free(copy);
}

/* ---- looking at a plugin beforehand ---------------------------------------------------------- */

struct found {
    int err;
    char why[NET_WHY_LEN];
    struct net_facts facts;
};

static void probe_here(const struct net_values *values, const struct net_contender *c, int to)
{
    struct net_side side = {.values = values, .contender = c};
    struct net_plugin *p = calloc(1, sizeof(*p));
    struct found found = {.err = DP_ENOMEM};

    alarm(PROBE_S);
    net_set_environment(c);
    if (p)
        found.err = load_plugin(&side, p);
    memcpy(found.why, side.why, sizeof(found.why));
    if (p)
        found.facts = p->facts;
    _exit(write(to, &found, sizeof(found)) != sizeof(found));
}

/* Its own errors are the user's mistake; that it dies is its own fault. */
static int judge(const struct net_contender *c, const struct found *found, int status)
{
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        return command_broke("%s: loading it, or its init, takes longer than %d s", c->file, PROBE_S);
    if (WIFSIGNALED(status))
        return command_broke("%s: dies when it is loaded, or in its init (%s)%s", c->file,
                             strsignal(WTERMSIG(status)),
                             WTERMSIG(status) == SIGBUS ? ": is the file whole?" : "");
    if (found->err == DP_EINVAL)
        return command_misused("%s", found->why);
    return found->err ? command_broke("%s", found->why) : EXIT_OK;
}

int net_probe(const struct net_values *values, struct net_contender *c)
{
    struct found found = {.err = DP_EIO, .why = "the plugin has ended the process that loaded it"};
    int ends[2], status = 0;

    if (pipe(ends))
        return command_broke("cannot make a pipe: %s", strerror(errno));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        probe_here(values, c, ends[1]);
    close(ends[1]);
    if (child > 0) {
        if (read(ends[0], &found, sizeof(found)) < 0)
            found.err = DP_EIO;
        waitpid(child, &status, 0);
    }
    close(ends[0]);
    if (child < 0)
        return command_broke("cannot start a process: %s", strerror(errno));
    c->facts = found.facts;
    return judge(c, &found, status);
}

enum { TAG = 7 };

/* One direction of a connection, seen from one of its ends. */
struct end {
    bool is_sender;
    void *listener, *comm, *memory;
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    int begun, done; /* of a stream */
    void *requests[NET_WINDOW];
    size_t sizes[NET_WINDOW];
};

struct connections {
    struct net_plugin plugin;
    int out_count, in_count;
    struct end outs[NET_CONNECTIONS_MAX], ins[NET_CONNECTIONS_MAX];
};

/* ---- connecting ------------------------------------------------------------------------------ */

static int listen_all(struct net_side *s, struct connections *l)
{
    for (int i = 0; i < l->in_count; i++) {
        struct end *e = &l->ins[i];
        ncclResult_t result = l->plugin.net->listen(l->plugin.ctx, l->plugin.facts.device_number,
                                                    e->handle, &e->listener);
        if (result)
            return report_refusal(s, "listen", result);
    }
    return 0;
}

/* What the other side listens on: NCCL carries the handles by means of its own. */
static int exchange_handles(struct net_side *s, struct connections *l)
{
    static char ours[NET_CONNECTIONS_MAX][NCCL_NET_HANDLE_MAXSIZE];
    static char theirs[NET_CONNECTIONS_MAX][NCCL_NET_HANDLE_MAXSIZE];
    const size_t one = NCCL_NET_HANDLE_MAXSIZE;
    const int peer = dp_comm_rank(s->comm) ^ 1;
    struct dp_request in, out;

    for (int i = 0; i < l->in_count; i++)
        memcpy(ours[i], l->ins[i].handle, one);
    int err = dp_comm_irecv(s->comm, peer, DP_CHANNEL_ACTIVATION, TAG, theirs,
                            one * (size_t)l->out_count, &in);
    if (!err)
        err = dp_comm_isend(s->comm, peer, DP_CHANNEL_ACTIVATION, TAG, ours,
                            one * (size_t)l->in_count, &out);
    if (!err)
        err = dp_comm_wait(s->comm, &in, peer);
    if (!err)
        err = dp_comm_wait(s->comm, &out, peer);
    if (err)
        return net_side_fail(s, err, "%s", dp_last_error());
    for (int i = 0; i < l->out_count; i++)
        memcpy(l->outs[i].handle, theirs[i], one);
    return 0;
}

static int connect_or_accept(struct net_side *s, const struct net_plugin *p, struct end *e)
{
    ncclResult_t result = e->is_sender ? p->net->connect(p->ctx, p->facts.device_number, e->handle,
                                                         &e->comm)
                                       : p->net->accept(e->listener, &e->comm);

    if (result)
        return report_refusal(s, e->is_sender ? "connect" : "accept", result);
    if (!e->comm)
        return net_side_idle(s);
    net_side_moved(s);
    result = p->net->reg(e->comm, e->is_sender ? s->out : s->in, s->room, NCCL_PTR_HOST, &e->memory);
    return result ? report_refusal(s, "regMr", result) : 0;
}

static int connect_all(struct net_side *s, struct connections *l)
{
    for (int missing = 1; missing;) {
        missing = 0;
        for (int i = 0; i < l->in_count + l->out_count; i++) {
            struct end *e = i < l->in_count ? &l->ins[i] : &l->outs[i - l->in_count];
            int err = e->comm ? 0 : connect_or_accept(s, &l->plugin, e);
            if (err)
                return err;
            missing += !e->comm;
        }
    }
    return 0;
}

void net_close(struct net_side *s)
{
    struct connections *l = s->state;

    for (int i = 0; l && i < l->out_count; i++)
        if (l->outs[i].comm) {
            l->plugin.net->dereg(l->outs[i].comm, l->outs[i].memory);
            l->plugin.net->close_send(l->outs[i].comm);
        }
    for (int i = 0; l && i < l->in_count; i++) {
        if (l->ins[i].comm) {
            l->plugin.net->dereg(l->ins[i].comm, l->ins[i].memory);
            l->plugin.net->close_recv(l->ins[i].comm);
        }
        if (l->ins[i].listener)
            l->plugin.net->close_listen(l->ins[i].listener);
    }
    if (l && l->plugin.ctx)
        l->plugin.net->finalize(l->plugin.ctx);
    free(l);
    s->state = NULL;
}

int net_open(struct net_side *s)
{
    struct connections *l = calloc(1, sizeof(*l));

    if (!l)
        return net_side_fail(s, DP_ENOMEM, "no memory for %d connections", s->connections);
    s->state = l;
    int err = load_plugin(s, &l->plugin);
    if (err)
        return err;
    l->out_count = s->side ? 1 : s->connections;
    l->in_count = s->side ? s->connections : 1;
    for (int i = 0; i < l->out_count; i++)
        l->outs[i].is_sender = true;
    err = listen_all(s, l);
    if (!err)
        err = exchange_handles(s, l);
    return err ? err : connect_all(s, l);
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Begin message `at` of an end; false in *begun: the plugin wants to be asked again. */
static int begin(struct net_side *s, struct end *e, size_t size, int connection, int at,
                 bool *begun)
{
    const struct net_caller *net = ((struct connections *)s->state)->plugin.net;
    const int k = at % NET_WINDOW;
    void *data = (e->is_sender ? s->out : s->in) + net_slot(s->room, size, connection, at);
    int tag = TAG;

    e->requests[k] = NULL;
    e->sizes[k] = size;
    ncclResult_t result =
        e->is_sender
            ? net->isend(e->comm, data, size, tag, e->memory, &e->requests[k])
            : net->irecv(e->comm, 1, &data, &e->sizes[k], &tag, &e->memory, &e->requests[k]);
    if (result)
        return report_refusal(s, e->is_sender ? "isend" : "irecv", result);
    *begun = e->requests[k];
    return 0;
}

static int test(struct net_side *s, struct end *e, int at, bool *is_done)
{
    const struct net_caller *net = ((struct connections *)s->state)->plugin.net;
    const int k = at % NET_WINDOW;
    int done = 0, got[64];
    got[0] = 0; /* NCCL's are not zeroed either */
    ncclResult_t result = net->test(e->requests[k], &done, got);

    if (result)
        return report_refusal(s, "test", result);
    if (done && !e->is_sender && (size_t)got[0] != e->sizes[k])
        return net_side_fail(s, DP_EIO, "%s: %d bytes of a message of %zu have arrived",
                             s->contender->file, got[0], e->sizes[k]);
    *is_done = done;
    return 0;
}

/* One end of a window of messages: begin another if there is room, test the oldest. */
static int move(struct net_side *s, struct end *e, size_t size, int connection, int times)
{
    const int before = e->begun + e->done;
    bool yes = false;
    int err = 0;

    if (e->begun < times && e->begun - e->done < NET_WINDOW) {
        err = begin(s, e, size, connection, e->begun, &yes);
        e->begun += yes;
    }
    yes = false;
    if (!err && e->done < e->begun) {
        err = test(s, e, e->done, &yes);
        e->done += yes;
    }
    if (err)
        return err;
    if (e->begun + e->done == before)
        return net_side_idle(s);
    net_side_moved(s);
    return 0;
}

/* `times` messages on each of the ends. */
static int move_all(struct net_side *s, struct end *ends, int count, size_t size, int times)
{
    int err = 0;

    for (int i = 0; i < count; i++)
        ends[i].begun = ends[i].done = 0;
    for (int left = count; left && !err;) {
        left = 0;
        for (int i = 0; i < count && !err; i++) {
            if (ends[i].done < times)
                err = move(s, &ends[i], size, i, times);
            left += ends[i].done < times;
        }
    }
    return err;
}

/* Everything one way, then a word back: all have come. */
int net_stream(struct net_side *s, size_t size, int connections, int times)
{
    struct connections *l = s->state;
    int err = move_all(s, s->side ? l->ins : l->outs, connections, size, times);

    return err ? err : move_all(s, s->side ? l->outs : l->ins, 1, 1, 1);
}

/* Until so many messages have come, and all that were begun have gone. */
static int finish_both(struct net_side *s, struct end *in, int count, struct end *out)
{
    int err = 0;

    while (!err && (in->done < count || out->done < out->begun)) {
        bool in_done = false, out_done = false;
        if (in->done < count)
            err = test(s, in, in->done, &in_done);
        if (!err && out->done < out->begun)
            err = test(s, out, out->done, &out_done);
        in->done += in_done;
        out->done += out_done;
        if (in_done || out_done)
            net_side_moved(s);
        else if (!err)
            err = net_side_idle(s);
    }
    return err;
}

static int begin_surely(struct net_side *s, struct end *e, size_t size)
{
    bool begun = false;
    int err = 0;

    while (!err && !begun) {
        err = begin(s, e, size, 0, e->begun, &begun);
        if (!err && !begun)
            err = net_side_idle(s);
    }
    net_side_moved(s);
    e->begun += begun;
    return err;
}

/* As many receives as there may be are waiting. */
static int top_up(struct net_side *s, struct end *in, size_t size, int times)
{
    int err = 0;

    while (!err && in->begun < times && in->begun - in->done < NET_WINDOW)
        err = begin_surely(s, in, size);
    return err;
}

/* As NCCL sees to it, receives wait long before the messages to them can have been sent; the next
 * one is begun behind an answer, not before it. */
int net_ping_pong(struct net_side *s, size_t size, int times)
{
    struct connections *l = s->state;
    struct end *in = &l->ins[0], *out = &l->outs[0];
    int err = 0;

    in->begun = in->done = out->begun = out->done = 0;
    for (int i = 0; i < times && !err; i++) {
        if (!s->side)
            err = begin_surely(s, out, size);
        if (!err)
            err = top_up(s, in, size, times);
        if (!err)
            err = finish_both(s, in, i + 1, out);
        if (!err && s->side)
            err = begin_surely(s, out, size);
    }
    return err ? err : finish_both(s, in, times, out);
}
