/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/net/placement.h"

#include "base/fail.h"
#include "base/launchers.h"
#include "base/options.h"
#include "placement/assignment_bind.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HOST_LEN = 256, WHY_LEN = 512 };

/* Stays as long as the process: connections look at it at any time. */
static struct dp_assignment *assignment;
static int32_t worker = -1;

/* ---- which worker this process is ------------------------------------------------------------ */

/* A process is one worker and has one GPU. Where the launcher says how many there are, it can be
 * told that a process drives several, or that the file is of another job: the first ranks would
 * then take the places of others, on the host where these are and without a word. */
static bool is_job_of(const struct dp_assignment *s, const struct dp_launcher *launcher,
                      const char *(*get)(const char *name), char *why, size_t why_len)
{
    const char *text = get(launcher->size);
    char *end;
    long size = text ? strtol(text, &end, 10) : 0;

    if (!text || end == text || *end || size == s->worker_count)
        return true;
    snprintf(why, why_len, "%s is %ld, expected %d: a process with one GPU for each worker",
             launcher->size, size, s->worker_count);
    return false;
}

int32_t dpn_placement_find(const struct dp_assignment *s, const char *(*get)(const char *name),
                           const char *host, char *why, size_t why_len)
{
    const struct dp_launcher *launcher = dp_launcher_find(get);
    const char *text = launcher ? get(launcher->rank) : NULL;
    char *end;
    long rank = text ? strtol(text, &end, 10) : -1;

    if (!text || *end || rank < 0) {
        snprintf(why, why_len, "no rank in the environment, expected RANK as launchers set it");
        return -1;
    }
    if (!is_job_of(s, launcher, get, why, why_len))
        return -1;
    const int32_t found = rank < s->worker_count ? dp_assignment_find(s, (int)rank) : -1;
    if (found < 0) {
        snprintf(why, why_len, "rank %ld, expected one from 0 to %d", rank, s->worker_count - 1);
        return -1;
    }
    const char *home = dp_assignment_text(s, s->nodes[s->workers[found].gpu].host);
    if (dp_assignment_is_host(home, host))
        return found;
    snprintf(why, why_len, "rank %ld belongs on host %s, and this is %s", rank, home, host);
    return -1;
}

void dpn_placement_open(void)
{
    char host[HOST_LEN] = "", why[WHY_LEN];

    dp_assignment_free(assignment);
    assignment = NULL;
    worker = -1;
    if (dp_assignment_from_env(&assignment) || !assignment) /* the sentence has been said */
        return;
    gethostname(host, sizeof(host) - 1);
    worker = dpn_placement_find(assignment, dp_foreign_variable, host, why, sizeof(why));
    if (worker < 0)
        dp_log(DP_LOG_WARN, "%s: going on without it: %s", assignment->name, why);
    else
        dp_log(DP_LOG_INFO, "%s: this is worker %d, replica %d rank %d", assignment->name, worker,
               assignment->workers[worker].replica, assignment->workers[worker].rank);
}

int32_t dpn_placement_worker(void)
{
    return worker;
}

/* ---- flows ---------------------------------------------------------------------------------- */

static bool is_of(enum dp_flow_kind kind, enum dpn_traffic traffic)
{
    const bool is_pipeline = kind == DP_FLOW_ACTIVATION || kind == DP_FLOW_GRADIENT;

    return traffic == DPN_TRAFFIC_ANY || is_pipeline == (traffic == DPN_TRAFFIC_PIPELINE);
}

static void add_nics(const struct dp_assigned_flow *f, struct dpn_flow *out)
{
    for (int i = 0; i < out->count; i++)
        if (out->nics[i].from == f->nic_from && out->nics[i].to == f->nic_to)
            return;
    if (out->count == DPN_FLOW_RAILS)
        return;
    out->nics[out->count].from = f->nic_from;
    out->nics[out->count].to = f->nic_to;
    out->count++;
}

static int qps_of(const struct dp_assigned_worker *w, int32_t nic)
{
    for (int32_t i = 0; i < w->nic_count; i++)
        if (w->nics[i] == nic)
            return w->qps[i];
    return 1;
}

void dpn_placement_flow(int32_t from, int32_t to, enum dpn_traffic traffic, struct dpn_flow *out)
{
    *out = (struct dpn_flow){.qps = 1};
    if (!assignment || from < 0 || from >= assignment->worker_count || to < 0 ||
        to >= assignment->worker_count)
        return;
    for (int32_t i = 0; i < assignment->flow_count; i++) {
        const struct dp_assigned_flow *f = &assignment->flows[i];
        if (f->from != from || f->to != to || f->nic_from < 0 || f->nic_to < 0 ||
            !is_of(f->kind, traffic))
            continue;
        const int qps = qps_of(&assignment->workers[from], f->nic_from);
        add_nics(f, out);
        out->qps = qps > out->qps ? qps : out->qps;
        out->traffic_class = out->traffic_class ? out->traffic_class : f->traffic_class;
    }
}

/* ---- ports ---------------------------------------------------------------------------------- */

static bool ends_in(const char *path, const char *name)
{
    const char *slash = path ? strrchr(path, '/') : NULL;

    return slash && *name && !strcmp(slash + 1, name);
}

bool dpn_placement_is_port(int32_t nic, const char *device, int number, const char *pci_path)
{
    const struct dp_assigned_node *n = &assignment->nodes[nic];
    bool has_name = false;

    for (int32_t i = n->first_port; i < n->first_port + n->port_count; i++) {
        const char *rdma = dp_assignment_text(assignment, assignment->ports[i].rdma);
        const int32_t placed = assignment->ports[i].number; /* 0: not known */
        if (!strcmp(rdma, device) && (!placed || placed == number))
            return true;
        has_name |= *rdma;
    }
    return !has_name && ends_in(pci_path, dp_assignment_text(assignment, n->pci));
}

/* ---- what a connection is for ---------------------------------------------------------------- */

/* SendRecv, Send, Recv, AlltoAll, Scatter and Gather in NCCL's count. */
static const uint32_t point_to_point = 0x7e0;

enum dpn_traffic dpn_traffic_of(uint32_t ops)
{
    if (!ops || ops == UINT32_MAX)
        return DPN_TRAFFIC_ANY;
    return ops & ~point_to_point ? DPN_TRAFFIC_GRADIENT : DPN_TRAFFIC_PIPELINE;
}

int dpn_traffic_choose(int64_t by_kind, int by_operator, int by_communicator, int most)
{
    const int chosen = by_kind >= 0 ? (int)by_kind : by_operator >= 0 ? by_operator
                                                                      : by_communicator;

    return chosen >= 0 && chosen <= most ? chosen : 0;
}
