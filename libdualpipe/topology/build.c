/* SPDX-License-Identifier: Apache-2.0
 *
 * build.c - the growing arrays of a topology that is being put together.
 */
#include "config.h" /* vasprintf */

#include "base/array.h"
#include "base/hash.h"
#include "base/text.h"

#include "topology/build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- arrays that grow ----------------------------------------------------------------------- */

/* Room for one more of `size` bytes behind count; the array, or NULL and b->failed. */
static void *grow(struct dp_topo_builder *b, void *array, int32_t count, size_t *room, size_t size)
{
    if (b->failed)
        return NULL;

    void *grown =
        count < 4 * DP_TOPO_NODES_MAX ? dp_array_grow(array, room, (size_t)count + 1, size) : NULL;
    b->failed = !grown;
    return grown;
}

#define GROW(b, what) grow(b, (b)->t.what##s, (b)->t.what##_count, &(b)->what##_room, \
                           sizeof(*(b)->t.what##s))

/* ---- texts ---------------------------------------------------------------------------------- */

static size_t hash_of(const char *s)
{
    const uint64_t h = dp_hash_text(DP_HASH_BEGIN, s);

    return (size_t)(h ^ h >> 32);
}

/* Where s is, or should be. */
static uint32_t *slot_of(const struct dp_topo_builder *b, const char *s)
{
    size_t mask = b->text_slots - 1, i = hash_of(s) & mask;

    while (b->texts[i] && strcmp(b->t.text + b->texts[i], s))
        i = (i + 1) & mask;
    return &b->texts[i];
}

static bool rehash(struct dp_topo_builder *b)
{
    struct dp_topo_builder old = *b;

    if (2 * (b->text_count + 1) <= b->text_slots)
        return true;
    b->text_slots = old.text_slots ? 2 * old.text_slots : 256;
    b->texts = calloc(b->text_slots, sizeof(*b->texts));
    if (!b->texts) {
        b->texts = old.texts;
        b->text_slots = old.text_slots;
        b->failed = true;
        return false;
    }
    for (size_t i = 0; i < old.text_slots; i++)
        if (old.texts[i])
            *slot_of(b, b->t.text + old.texts[i]) = old.texts[i];
    free(old.texts);
    return true;
}

/* The first byte is the empty text. */
static bool make_room(struct dp_topo_builder *b, size_t len)
{
    size_t room = b->text_room ? b->text_room : 1024;

    if (b->t.text && b->t.text_len + len <= b->text_room)
        return true;
    while (room < b->t.text_len + len + 1)
        room *= 2;
    char *text = room <= UINT32_MAX ? realloc(b->t.text, room) : NULL;
    if (!text) {
        b->failed = true;
        return false;
    }
    b->t.text = text;
    b->text_room = room;
    if (!b->t.text_len)
        text[b->t.text_len++] = '\0';
    return true;
}

uint32_t dp_topo_add_text(struct dp_topo_builder *b, const char *s)
{
    size_t len = s ? strlen(s) + 1 : 0;

    if (len <= 1 || b->failed || !make_room(b, len) || !rehash(b))
        return 0;
    char *copy = memcpy(b->t.text + b->t.text_len, s, len);
    for (size_t i = 0, n; i < len; i += n)
        if (!(n = dp_utf8_len(copy + i, len - i))) {
            copy[i] = '?'; /* a name of the system may be any bytes, which no format takes */
            n = 1;
        }
    uint32_t *slot = slot_of(b, copy);
    if (!*slot) {
        *slot = (uint32_t)b->t.text_len;
        b->t.text_len += len;
        b->text_count++;
    }
    return *slot;
}

DP_PRINTF(2, 0) static uint32_t add_formatted(struct dp_topo_builder *b, const char *fmt,
                                              va_list args)
{
    char *s;

    if (b->failed)
        return 0;
    if (vasprintf(&s, fmt, args) < 0) {
        b->failed = true;
        return 0;
    }
    uint32_t text = dp_topo_add_text(b, s);
    free(s);
    return text;
}

uint32_t dp_topo_add_textf(struct dp_topo_builder *b, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    uint32_t text = add_formatted(b, fmt, args);
    va_end(args);
    return text;
}

/* ---- nodes and links ------------------------------------------------------------------------ */

static bool is_too_wide(struct dp_topo_builder *b, int32_t host)
{
    b->numa_count = host == b->numa_host ? b->numa_count + 1 : 1;
    b->numa_host = host;
    if (b->numa_count > DP_TOPO_NUMAS_MAX)
        b->failed = b->is_too_wide = true;
    return b->is_too_wide;
}

int32_t dp_topo_add_node(struct dp_topo_builder *b, enum dp_topo_kind kind, int32_t parent)
{
    if (kind == DP_TOPO_NUMA && is_too_wide(b, parent))
        return 0;
    /* What has nodes has a text. */
    struct dp_topo_node *nodes = make_room(b, 0) ? GROW(b, node) : NULL;
    if (!nodes)
        return 0;
    b->t.nodes = nodes;
    nodes[b->t.node_count] = (struct dp_topo_node){
        .kind = kind, .parent = parent, .os_index = -1, .family = -1, .cpu_model = -1,
        .package = -1, .memory_node = -1,
    };
    return b->t.node_count++;
}

struct dp_topo_node *dp_topo_node(struct dp_topo_builder *b, int32_t node)
{
    return b->failed ? &b->no_node : &b->t.nodes[node];
}

struct dp_topo_link *dp_topo_add_link(struct dp_topo_builder *b, enum dp_topo_link_kind kind,
                                      int32_t from, int32_t to, double bytes_per_ns)
{
    struct dp_topo_link *links = GROW(b, link);

    if (!links)
        return &b->no_link;
    b->t.links = links;
    links[b->t.link_count] = (struct dp_topo_link){
        .kind = kind, .a = from, .b = to, .count = 1, .port = -1, .bytes_per_ns = bytes_per_ns,
        .latency_ns = dp_topo_assumed_latency(kind),
    };
    return &links[b->t.link_count++];
}

struct dp_topo_link *dp_topo_add_pci_link(struct dp_topo_builder *b, int32_t from, int32_t to,
                                          int gen, int width, int gen_max, int width_max)
{
    double rate = dp_pci_lane_rate(gen) * width;
    struct dp_topo_link *link = dp_topo_add_link(b, DP_TOPO_PCI, from, to, rate);
    bool slow = gen && gen_max > gen, narrow = width && width_max > width;

    link->gen = gen;
    link->width = width;
    link->gen_max = gen_max;
    link->width_max = width_max;
    link->flags = (rate > 0 ? 0 : DP_TOPO_RATE_UNKNOWN) | (slow || narrow ? DP_TOPO_DEGRADED : 0);
    return link;
}

void dp_topo_join_numas(struct dp_topo_builder *b, int32_t host)
{
    int32_t first = -1;

    for (int32_t i = host; i < b->t.node_count; i++) {
        if (b->t.nodes[i].kind != DP_TOPO_NUMA || b->t.nodes[i].parent != host)
            continue;
        first = first < 0 ? i : first;
        for (int32_t k = i + 1; k < b->t.node_count && !b->failed; k++) {
            const struct dp_topo_node *x = &b->t.nodes[i], *y = &b->t.nodes[k];
            if (y->kind != DP_TOPO_NUMA || y->parent != host)
                continue;
            const bool is_memory = !y->cpus && b->t.nodes[first].cpus;
            const bool same = x->package >= 0 && x->package == y->package;
            const uint32_t vendor = b->t.nodes[host].vendor;
            double rate = dp_topo_assumed_cpu_rate(b->t.text + vendor, same);
            if (!is_memory && (vendor || same))
                dp_topo_add_link(b, DP_TOPO_CPU, i, k, rate)->flags = DP_TOPO_RATE_ASSUMED;
            else if (!is_memory || x->cpus)
                dp_topo_add_link(b, DP_TOPO_CPU, i, k, 0)->flags = DP_TOPO_RATE_UNKNOWN;
        }
    }
}

/* ---- ports and notes ------------------------------------------------------------------------ */

struct dp_topo_port *dp_topo_add_port(struct dp_topo_builder *b, int32_t nic, int32_t number)
{
    struct dp_topo_port *ports = GROW(b, port);

    if (!ports)
        return &b->no_port;
    b->t.ports = ports;
    ports[b->t.port_count] = (struct dp_topo_port){
        .nic = nic, .number = number, .rail = -1, .first_gid = b->t.gid_count,
    };
    return &ports[b->t.port_count++];
}

void dp_topo_add_gid(struct dp_topo_builder *b, int index, enum dp_topo_gid_type type,
                     const uint8_t raw[16])
{
    struct dp_topo_gid *gids = GROW(b, gid);

    if (!gids)
        return;
    b->t.gids = gids;
    gids[b->t.gid_count] = (struct dp_topo_gid){.index = index, .type = type};
    memcpy(gids[b->t.gid_count++].raw, raw, 16);
    b->t.ports[b->t.port_count - 1].gid_count++;
}

void dp_topo_join_rail(struct dp_topo_builder *b, int32_t port, int32_t rail)
{
    if (b->failed)
        return;
    struct dp_topo_port *p = &b->t.ports[port];
    struct dp_topo_link *link = dp_topo_add_link(b, DP_TOPO_NET, p->nic, rail, p->bytes_per_ns);
    link->port = port;
    link->flags = p->bytes_per_ns > 0 ? 0 : DP_TOPO_RATE_UNKNOWN;
    p->rail = rail;
}

void dp_topo_add_note(struct dp_topo_builder *b, enum dp_topo_note_kind kind, int32_t node,
                      const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    uint32_t text = add_formatted(b, fmt, args);
    va_end(args);

    struct dp_topo_note *notes = GROW(b, note);
    if (!notes)
        return;
    b->t.notes = notes;
    notes[b->t.note_count++] = (struct dp_topo_note){kind, node, text};
}

/* ---- texts that several forms have ---------------------------------------------------------- */

bool dp_topo_parse_gid(const char *text, uint8_t raw[16])
{
    for (int i = 0; i < 8; i++, text += 5) {
        if (strspn(text, "0123456789abcdefABCDEF") != 4 || text[4] != (i < 7 ? ':' : '\0'))
            return false;
        const unsigned long group = strtoul(text, NULL, 16);
        raw[2 * i] = (uint8_t)(group >> 8);
        raw[2 * i + 1] = (uint8_t)group;
    }
    return true;
}

bool dp_topo_parse_pci(const char *text, struct dp_topo_pci *pci)
{
    unsigned domain, bus, device, function;
    int end = -1;

    if (strspn(text, "0123456789abcdefABCDEF:.") != strlen(text) || /* sscanf takes signs, blanks */
        sscanf(text, "%8x:%2x:%2x.%1x%n", &domain, &bus, &device, &function, &end) != 4 || text[end])
        return false;
    pci->known = true;
    pci->domain = domain;
    pci->bus = (uint8_t)bus;
    pci->device = (uint8_t)device;
    pci->function = (uint8_t)function;
    return true;
}

const char *dp_topo_pci_text(const struct dp_topo_pci *pci, char text[DP_TOPO_PCI_LEN])
{
    snprintf(text, DP_TOPO_PCI_LEN, "%04x:%02x:%02x.%x", pci->domain, pci->bus, pci->device,
             pci->function);
    return text;
}

uint64_t dp_topo_parse_guid(const char *text)
{
    static const char digits[] = "0123456789abcdef";
    uint64_t guid = 0;

    for (; *text; text++) {
        const char *digit = strchr(digits, *text);
        if (digit)
            guid = guid << 4 | (uint64_t)(digit - digits);
    }
    return guid;
}
