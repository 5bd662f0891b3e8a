/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/net_placement.h"

#include "base/fail.h"
#include "base/launchers.h"
#include "base/options.h"
#include "seats/bind.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HOST_LEN = 256, WHY_LEN = 512 };

/* Stays as long as the process: connections look at it at any time. */
static struct dp_seats *seats;
static int32_t worker = -1;

/* ---- who this process is -------------------------------------------------------------------- */

/* A process is one worker and has one GPU. Where the launcher says how many there are, it can be told
 * that a process drives several, or that the file is of another job: the first ranks would then take
 * the places of others, on the host where these are and without a word. */
static bool is_job_of(const struct dp_seats *s, const struct dp_launcher *launcher,
                      const char *(*get)(const char *name), char *why, size_t why_len)
{
    const char *text = get(launcher->size);
    char *end;
    long size = text ? strtol(text, &end, 10) : 0;

    if (!text || end == text || *end || size == s->seat_count)
        return true;
    snprintf(why, why_len, "%s is %ld, expected %d: a process with one GPU for each worker",
             launcher->size, size, s->seat_count);
    return false;
}

int32_t dpn_placement_find(const struct dp_seats *s, const char *(*get)(const char *name),
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
    const int32_t found = rank < s->seat_count ? dp_seats_find(s, (int)rank) : -1;
    if (found < 0) {
        snprintf(why, why_len, "rank %ld, expected one from 0 to %d", rank, s->seat_count - 1);
        return -1;
    }
    const char *home = dp_seats_text(s, s->nodes[s->seats[found].gpu].host);
    if (dp_seats_is_host(home, host))
        return found;
    snprintf(why, why_len, "rank %ld belongs on host %s, and this is %s", rank, home, host);
    return -1;
}

void dpn_placement_open(void)
{
    char host[HOST_LEN] = "", why[WHY_LEN];

    dp_seats_free(seats);
    seats = NULL;
    worker = -1;
    if (dp_seats_from_env(&seats) || !seats) /* the sentence has been said */
        return;
    gethostname(host, sizeof(host) - 1);
    worker = dpn_placement_find(seats, dp_foreign_variable, host, why, sizeof(why));
    if (worker < 0)
        dp_log(DP_LOG_WARN, "%s: going on without it: %s", seats->name, why);
    else
        dp_log(DP_LOG_INFO, "%s: this is worker %d, replica %d rank %d", seats->name, worker,
               seats->seats[worker].replica, seats->seats[worker].rank);
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

static void add_nics(const struct dp_seat_flow *f, struct dpn_flow *out)
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

static int qps_of(const struct dp_seat *seat, int32_t nic)
{
    for (int32_t i = 0; i < seat->nic_count; i++)
        if (seat->nics[i] == nic)
            return seat->qps[i];
    return 1;
}

void dpn_placement_flow(int32_t from, int32_t to, enum dpn_traffic traffic, struct dpn_flow *out)
{
    *out = (struct dpn_flow){.qps = 1};
    if (!seats || from < 0 || from >= seats->seat_count || to < 0 || to >= seats->seat_count)
        return;
    for (int32_t i = 0; i < seats->flow_count; i++) {
        const struct dp_seat_flow *f = &seats->flows[i];
        if (f->from != from || f->to != to || f->nic_from < 0 || f->nic_to < 0 ||
            !is_of(f->kind, traffic))
            continue;
        const int qps = qps_of(&seats->seats[from], f->nic_from);
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
    const struct dp_seat_node *n = &seats->nodes[nic];
    bool has_name = false;

    for (int32_t i = n->first_port; i < n->first_port + n->port_count; i++) {
        const char *rdma = dp_seats_text(seats, seats->ports[i].rdma);
        if (!strcmp(rdma, device) && seats->ports[i].number == number)
            return true;
        has_name |= *rdma;
    }
    return !has_name && ends_in(pci_path, dp_seats_text(seats, n->pci));
}
