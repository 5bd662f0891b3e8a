/* SPDX-License-Identifier: Apache-2.0
 *
 * assignment_bind.c - what the environment says: the file of the placement, and whether to bind.
 */
#include "config.h"

#include "placement/assignment_bind.h"

#include "base/bind.h"
#include "base/fail.h"
#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { HOST_LEN = 256 };

/* ---- the file ------------------------------------------------------------------------------- */

static const struct dp_option table[] = {
    {"", DP_OPTION_STRING, NULL,
     "the file of `dualpipe topo place -f assignment`, the same on every rank",
     offsetof(struct dp_assignment_options, file), .choices = NULL},
    {"BIND", DP_OPTION_BOOL, "1",
     "keep a rank to the CPUs and the memory of the NUMA node that the placement says",
     offsetof(struct dp_assignment_options, binds), .choices = NULL},
    {"NUMBERED", DP_OPTION_BOOL, "0",
     "ranks are numbered as the placement has them, as `dualpipe run --placement` does under torchrun; "
     "otherwise by the order in which they came",
     offsetof(struct dp_assignment_options, numbered), .choices = NULL},
};
const struct dp_option_area dp_assignment_option_area = {"PLACEMENT", table,
                                                    sizeof(table) / sizeof(table[0])};

/* A placement of 4096 workers has 3.2 MB. */
enum { MAX_FILE = 1 << 30 };

int dp_assignment_load(const char *path, struct dp_assignment **out)
{
    struct dp_text text = {0};
    int err = dp_text_add_file(&text, path, MAX_FILE, "a placement");

    if (!err)
        err = dp_assignment_read(text.data ? text.data : "", text.len, path, out);
    dp_text_fini(&text);
    return err;
}

static void number(struct dp_assignment *s)
{
    for (int32_t w = 0; w < s->worker_count; w++)
        s->workers[w].process = w;
}

int dp_assignment_from_env(struct dp_assignment **out)
{
    struct dp_assignment_options options;
    struct dp_assignment *assignment = NULL;
    int err = dp_options_read(&dp_assignment_option_area, &options);

    if (!err && options.file && *options.file) {
        if (access(options.file, R_OK))
            return dp_fail(errno == ENOENT ? DP_ENOENT : DP_EIO, "DUALPIPE_PLACEMENT=%s: %s",
                           options.file, strerror(errno));
        err = dp_assignment_load(options.file, &assignment);
    }
    if (!err && assignment && options.numbered)
        number(assignment);
    if (!err)
        *out = assignment;
    return err;
}

/* ---- the site ------------------------------------------------------------------------------- */

bool dp_assignment_is_host(const char *name, const char *host)
{
    const size_t len = strcspn(name, ".");

    return len == strcspn(host, ".") && !strncmp(name, host, len);
}

int dp_assignment_site(const struct dp_assignment *s, int32_t worker, const char *root, const char *host,
                  const cpu_set_t *allowed, struct dp_assigned_site *out)
{
    const struct dp_assigned_worker *own = &s->workers[worker];
    const struct dp_assigned_node *memory = own->memory < 0 ? NULL : &s->nodes[own->memory];
    const char *home = dp_assignment_text(s, s->nodes[own->gpu].host);
    struct dp_assigned_site site = {.node = memory ? memory->os_index : -1};

    if (!dp_assignment_is_host(home, host))
        return dp_fail_quietly(DP_ENODEV, "this is %s, and not %s", host, home);
    if (site.node < 0 || site.node >= DP_BIND_NODES)
        return dp_fail_quietly(DP_ENODEV, "it names no NUMA node");
    if (!dp_node_cpus(root, site.node, &site.cpus))
        return dp_fail_quietly(DP_ENODEV, "%s has no NUMA node %d", host, site.node);
    const bool has_cpus = CPU_COUNT(&site.cpus) > 0;
    CPU_AND(&site.cpus, &site.cpus, allowed);
    if (has_cpus && !CPU_COUNT(&site.cpus))
        return dp_fail_quietly(DP_ENODEV, "this process may use no CPU of NUMA node %d", site.node);
    *out = site;
    return 0;
}

/* ---- binding -------------------------------------------------------------------------------- */

static void bind_to(const struct dp_assignment *s, int32_t worker, const struct dp_assigned_site *site)
{
    const int error = dp_bind(&site->cpus, site->node);

    if (error)
        dp_log(DP_LOG_WARN, "%s: rank %d is not bound to NUMA node %d: %s", s->name,
               s->workers[worker].rank, site->node, strerror(error));
    else
        dp_log(DP_LOG_INFO, "%s: rank %d is bound to NUMA node %d, %d CPUs", s->name,
               s->workers[worker].rank, site->node, CPU_COUNT(&site->cpus));
}

int dp_assignment_bind(const struct dp_assignment *s, int32_t worker)
{
    struct dp_assignment_options options;
    struct dp_assigned_site site;
    char host[HOST_LEN] = "";
    cpu_set_t allowed;
    int err = dp_options_read(&dp_assignment_option_area, &options);

    if (err || !options.binds)
        return err;
    if (worker < 0 || worker >= s->worker_count)
        return dp_fail(DP_EINVAL, "%s: worker %d, expected one from 0 to %d", s->name, worker,
                       s->worker_count - 1);
    gethostname(host, sizeof(host) - 1);
    if (sched_getaffinity(0, sizeof(allowed), &allowed))
        dp_log(DP_LOG_INFO, "%s: rank %d is not bound: %s", s->name, s->workers[worker].rank,
               strerror(errno));
    else if (dp_assignment_site(s, worker, "", host, &allowed, &site))
        dp_log(DP_LOG_INFO, "%s: rank %d is not bound: %s", s->name, s->workers[worker].rank,
               dp_last_error());
    else
        bind_to(s, worker, &site);
    return 0;
}
