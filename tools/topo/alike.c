/* SPDX-License-Identifier: Apache-2.0
 *
 * alike.c - a thousand hosts are mostly one host a thousand times, and are shown as such.
 */
#include "topo/topo.h"

#include <stdlib.h>
#include <string.h>

/* ---- comparing two -------------------------------------------------------------------------- */

static bool same_text(const struct dp_topology *t, uint32_t a, uint32_t b)
{
    return a == b || !strcmp(dp_topology_text(t, a), dp_topology_text(t, b));
}

static bool alike_nodes(const struct dp_topology *t, int32_t x, int32_t y, int32_t shift)
{
    const struct dp_topo_node *a = &t->nodes[x], *b = &t->nodes[y];

    return a->kind == b->kind && (a->kind == DP_TOPO_HOST || a->parent + shift == b->parent) &&
           a->end + shift == b->end && same_text(t, a->model, b->model) &&
           same_text(t, a->cpus, b->cpus) && a->memory_bytes == b->memory_bytes && a->sm == b->sm;
}

/* A node outside the host counts by its kind alone: rail 3 of one is rail 3 of the other. */
static bool alike_links(const struct dp_topology *t, int32_t x, int32_t y, int32_t shift)
{
    const struct dp_topo_link *a = &t->links[x], *b = &t->links[y];

    return a->kind == b->kind && a->a + shift == b->a && a->count == b->count &&
           a->flags == b->flags && a->bytes_per_ns == b->bytes_per_ns && a->gen == b->gen &&
           a->width == b->width &&
           (t->nodes[a->b].host < 0 ? a->b == b->b : a->b + shift == b->b);
}

/* Nodes and links of a host are neighbours, so that both are compared in step. */
static bool alike(const struct dp_topology *t, int32_t x, int32_t y, int32_t x_link, int32_t y_link)
{
    int32_t shift = y - x;

    for (int32_t i = x; i < t->nodes[x].end; i++)
        if (i + shift >= t->node_count || !alike_nodes(t, i, i + shift, shift))
            return false;
    for (; x_link < t->link_count && t->links[x_link].a < t->nodes[x].end; x_link++, y_link++)
        if (y_link >= t->link_count || !alike_links(t, x_link, y_link, shift))
            return false;
    return y_link >= t->link_count || t->links[y_link].a >= t->nodes[y].end;
}

static int32_t first_link_of(const struct dp_topology *t, int32_t host)
{
    int32_t low = 0, high = t->link_count;

    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (t->links[middle].a < host)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ---- all of them ---------------------------------------------------------------------------- */

enum { KINDS_MAX = 64 }; /* of hosts that are looked for again; more are each for itself */

struct topo_hosts *topo_hosts_compare(const struct dp_topology *t)
{
    size_t n = (size_t)t->host_count;
    struct topo_hosts *h = malloc(sizeof(*h) + 2 * n * sizeof(int32_t));
    int32_t kinds[KINDS_MAX], kind_count = 0, host = 0;

    if (!h)
        return NULL;
    h->first = (int32_t *)(h + 1);
    h->nodes = h->first + n;
    for (int32_t i = 0; i < t->host_count; i++, host = t->nodes[host].end) {
        int32_t link = first_link_of(t, host), k = 0;
        h->nodes[i] = host;
        while (k < kind_count && !alike(t, h->nodes[kinds[k]], host,
                                        first_link_of(t, h->nodes[kinds[k]]), link))
            k++;
        h->first[i] = k < kind_count ? kinds[k] : i;
        if (k == kind_count && kind_count < KINDS_MAX)
            kinds[kind_count++] = i;
    }
    return h;
}

void topo_hosts_put(const struct dp_topology *t, const struct topo_hosts *h, int32_t first,
                    FILE *to)
{
    char label[DP_TOPO_LABEL_LEN];
    int32_t count = 0;

    for (int32_t i = first; i < t->host_count;) {
        int32_t end = i;
        while (end < t->host_count && h->first[end] == first)
            end++;
        if (end == i) {
            i++;
            continue;
        }
        fprintf(to, "%s%s", count ? ", " : "", dp_topology_label(t, h->nodes[i], label));
        if (end - i > 1)
            fprintf(to, "%s%s", end - i > 2 ? " to " : ", ",
                    dp_topology_label(t, h->nodes[end - 1], label));
        count += end - i;
        i = end;
    }
    if (count > 1)
        fprintf(to, " (%d hosts alike)", count);
}
