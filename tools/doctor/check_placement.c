/* SPDX-License-Identifier: Apache-2.0
 *
 * check_placement.c - whether the file that DUALPIPE_PLACEMENT names can be read, and speaks of
 * this host and of the RDMA devices that it has.
 */
#include "doctor/doctor.h"

#include "command.h"

#include <dualpipe/assignment.h>

#include <stdlib.h>
#include <string.h>

static const char variable[] = "DUALPIPE_PLACEMENT";
static const char remake[] =
    "dualpipe topo place ... -f assignment -o FILE, on the cluster as it is; "
    "the same file on all hosts";

static void add(struct doctor *d, enum doctor_severity severity, const char *what,
                const char *consequence)
{
    doctor_say(d, severity, "%s\v%s\v%s\v%s", what, doctor_origin(d, variable), consequence, remake);
}

static struct dp_assignment *read_file(struct doctor *d, const char *path)
{
    struct dp_assignment *s = NULL;
    size_t len;
    char *text = tree_read(&d->tree, &len, "%s", path);

    if (!text) {
        add(d, DOCTOR_FAULT, doctor_text(d, "the placement %s cannot be read", path),
            "the plugins go on without it; dualpipe train refuses");
        return NULL;
    }
    command_mute(true);
    if (dp_assignment_read(text, len, path, &s))
        add(d, DOCTOR_FAULT, doctor_text(d, "no placement: %s", dp_last_error()),
            "the plugins go on without it; dualpipe train refuses");
    command_mute(false);
    free(text);
    return s;
}

static int32_t count_workers(const struct dp_assignment *s, const char *host)
{
    int32_t count = 0;

    for (int32_t w = 0; w < s->worker_count; w++)
        count +=
            dp_assignment_is_host(dp_assignment_text(s, s->nodes[s->workers[w].gpu].host), host);
    return count;
}

/* A NIC of this host by the file that it does not have; NULL: there is none. */
static const char *find_stranger(const struct doctor *d, const struct dp_assignment *s,
                                 const char *host)
{
    for (int32_t i = 0; i < s->node_count; i++) {
        const struct dp_assigned_node *n = &s->nodes[i];
        if (!dp_assignment_is_host(dp_assignment_text(s, n->host), host))
            continue;
        for (int32_t k = n->first_port; k < n->first_port + n->port_count; k++) {
            const char *rdma = dp_assignment_text(s, s->ports[k].rdma);
            if (*rdma && !strchr(rdma, '/') &&
                !tree_has(&d->tree, "/sys/class/infiniband/%s", rdma))
                return rdma;
        }
    }
    return NULL;
}

static void look_at(struct doctor *d, const struct dp_assignment *s, const char *host)
{
    const int32_t workers = count_workers(s, host);
    const char *stranger = find_stranger(d, s, host);

    if (!workers)
        add(d, DOCTOR_WARNING,
            doctor_text(d, "%s places no worker on this host, %s", s->name, host),
            "processes here are neither bound nor given their NICs");
    else if (stranger)
        add(d, DOCTOR_WARNING,
            doctor_text(d, "%s wants the RDMA device %s, which this host does not have", s->name,
                        stranger),
            "flows that were placed there go where NCCL likes");
    else
        add(d, DOCTOR_FINE, doctor_text(d, "%s places %d workers on this host", s->name, workers), "");
}

void doctor_placement(struct doctor *d)
{
    const char *path = doctor_variable(d, variable);
    char host[256];

    if (!path || !*path)
        return;
    struct dp_assignment *s = read_file(d, path);
    if (s && tree_line(&d->tree, host, "/proc/sys/kernel/hostname"))
        look_at(d, s, host);
    dp_assignment_free(s);
}
