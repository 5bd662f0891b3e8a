/* SPDX-License-Identifier: Apache-2.0
 *
 * pace.c - which NICs a GPU's copies meet on their way, as the placement and /sys tell it: those below
 * the same root port.
 *
 *      /sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0      GPU
 *                              root port    switch       its port     0000:02:01.0/...  NIC
 */
#include <dualpipe/offload.h>

#include "base/fail.h"
#include "offload/pacer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NICS = 32 };
_Static_assert((int)DP_COPY_DIRECTIONS == DPO_PACER_DIRECTIONS, "the same directions");

/* Where a PCI device hangs: the path up to its root port, to be freed; NULL: /sys does not know it. */
static char *root_port(const char *root, const char *pci)
{
    char path[512];

    snprintf(path, sizeof(path), "%s/sys/bus/pci/devices/%s", root ? root : "", pci);
    char *at = realpath(path, NULL), *bus = at ? strstr(at, "/pci") : NULL;
    char *port = bus ? strchr(bus + 1, '/') : NULL, *end = port ? strchr(port + 1, '/') : NULL;
    if (end)
        *end = '\0';
    if (!port) {
        free(at);
        return NULL;
    }
    return at;
}

/* What is not known is taken to share it. */
static bool shares_port(const char *root, const char *a, const char *b)
{
    char *first = root_port(root, a), *second = root_port(root, b);
    bool same = !first || !second || !strcmp(first, second);

    free(first);
    free(second);
    return same;
}

static int add_ports(const struct dp_assignment *s, const struct dp_assigned_node *nic,
                     const char **names, int count)
{
    for (int32_t i = 0; i < nic->port_count; i++) {
        const struct dp_assigned_port *port = &s->ports[nic->first_port + i];
        const uint32_t texts[] = {port->rdma, port->net};
        for (int k = 0; k < 2 && count < NICS; k++)
            if (texts[k])
                names[count++] = dp_assignment_text(s, texts[k]);
    }
    return count;
}

/* Names of the NICs of the worker's host that share its GPU's root port. */
static int find_nics(const struct dp_pacer_config *c, const char **names)
{
    const struct dp_assignment *s = c->assignment;
    const struct dp_assigned_node *gpu = &s->nodes[s->workers[c->worker].gpu];
    int count = 0;

    for (int32_t i = 0; i < s->node_count; i++) {
        const struct dp_assigned_node *n = &s->nodes[i];
        if (!strcmp(dp_assignment_text(s, n->kind), "nic") &&
            !strcmp(dp_assignment_text(s, n->host), dp_assignment_text(s, gpu->host)) &&
            shares_port(c->root, dp_assignment_text(s, n->pci), dp_assignment_text(s, gpu->pci)))
            count = add_ports(s, n, names, count);
    }
    return count;
}

int dp_pacer_new(const struct dp_pacer_config *config, struct dp_pacer **out)
{
    /* Where none shares the switch, one that no device is called. */
    const char *names[NICS] = {"no NIC"};
    struct dpo_pacer_config c = {
        .directory = config->directory,
        .devices = config->devices,
        .device_count = config->device_count,
        .switch_bytes_per_s = config->switch_bytes_per_s,
        .least_bytes_per_s = config->least_bytes_per_s,
        .window_ns = config->window_ns,
    };
    const struct dp_assignment *s = config->assignment;

    if (s && (config->worker < 0 || config->worker >= s->worker_count))
        return dp_fail(DP_EINVAL, "pacer: worker %d of %s, expected 0 to %d", config->worker, s->name,
                       s->worker_count - 1);
    if (s) {
        int count = find_nics(config, names);
        c.devices = names;
        c.device_count = count ? count : 1;
    }
    struct dpo_pacer *pacer;
    int err = dpo_pacer_new(&c, &pacer);
    if (!err)
        *out = (struct dp_pacer *)pacer;
    return err;
}

void dp_pacer_free(struct dp_pacer *pacer)
{
    dpo_pacer_free((struct dpo_pacer *)pacer);
}

bool dp_pacer_pass(void *user, enum dp_copy_direction direction, size_t bytes)
{
    return dpo_pacer_pass(user, direction, bytes);
}
