/* SPDX-License-Identifier: Apache-2.0
 *
 * net_load.c - from a file to a net plugin with a device, or to the sentence that says why not.
 */
#include "bench/net_plugin.h"
#include "command.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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

int net_refused(struct net_side *s, const char *call, ncclResult_t result)
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
            return net_refused(s, "getProperties", result);
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

int net_load(struct net_side *s, struct net_plugin *p)
{
    struct net_properties properties;
    int err = find_table(s, p);

    if (err)
        return err;
    ncclResult_t result = p->net->init(&p->ctx, keep_warning);
    if (result)
        return net_refused(s, "init", result);
    result = p->net->devices(&p->facts.device_count);
    if (result)
        return net_refused(s, "devices", result);
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
        found.err = net_load(&side, p);
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
