/* SPDX-License-Identifier: Apache-2.0
 *
 * json.c - a topology as JSON, a node or link a line, written and read. What an object may have is a
 * table. What is left out has its usual value (see README.md): no, none, 0, not known. Members that
 * the reader does not know are passed over, so that a later version may add some.
 */
#include "base/fail.h"
#include "base/json.h"
#include "topology/build.h"
#include "topology/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- members -------------------------------------------------------------------------------- */

enum type {
    TEXT,   /* an offset in the topology's text; left out where it is "" */
    INT,    /* left out where it is `usual` */
    SIZE,   /* left out where it is 0 */
    NUMBER, /* not negative */
    FLAG,   /* the bit `most` of a mask; left out where it is not set */
    BOOL,
    FABRIC, /* a word */
    GUID    /* hexadecimal digits; left out where it is 0 */
};
enum { NODE_NUMBER = -1, PORT_NUMBER = -2 }; /* as `most`: the largest one in the file */

struct member {
    const char *key;
    enum type type;
    size_t offset; /* in the node, link or port */
    int32_t usual, least, most;
};

#define NODE(member) offsetof(struct dp_topo_node, member)
#define LINK(member) offsetof(struct dp_topo_link, member)
#define PORT(member) offsetof(struct dp_topo_port, member)

static const struct member node_members[] = {
    {"name", TEXT, NODE(name), 0, 0, 0},
    {"model", TEXT, NODE(model), 0, 0, 0},
    {"os_index", INT, NODE(os_index), -1, -1, INT32_MAX},
    {"cpus", TEXT, NODE(cpus), 0, 0, 0},
    {"uuid", TEXT, NODE(uuid), 0, 0, 0},
    {"arch", TEXT, NODE(arch), 0, 0, 0},
    {"vendor", TEXT, NODE(vendor), 0, 0, 0},
    {"family", INT, NODE(family), -1, -1, INT32_MAX},
    {"cpu_model", INT, NODE(cpu_model), -1, -1, INT32_MAX},
    {"package", INT, NODE(package), -1, -1, INT32_MAX},
    {"memory_node", INT, NODE(memory_node), -1, -1, INT32_MAX},
    {"sm", INT, NODE(sm), 0, 0, 999},
    {"memory_bytes", SIZE, NODE(memory_bytes), 0, 0, 0},
    {"cache_bytes", SIZE, NODE(cache_bytes), 0, 0, 0},
    {0},
};
static const struct member link_members[] = {
    {"bytes_per_ns", NUMBER, LINK(bytes_per_ns), 0, 0, 0},
    {"latency_ns", NUMBER, LINK(latency_ns), 0, 0, 0},
    {"count", INT, LINK(count), 1, 1, 65536},
    {"port", INT, LINK(port), -1, 0, PORT_NUMBER},
    {"gen", INT, LINK(gen), 0, 0, DP_PCI_GEN_MAX},
    {"width", INT, LINK(width), 0, 0, 256},
    {"gen_max", INT, LINK(gen_max), 0, 0, DP_PCI_GEN_MAX},
    {"width_max", INT, LINK(width_max), 0, 0, 256},
    {"rate_assumed", FLAG, LINK(flags), 0, 0, DP_TOPO_RATE_ASSUMED},
    {"rate_unknown", FLAG, LINK(flags), 0, 0, DP_TOPO_RATE_UNKNOWN},
    {"degraded", FLAG, LINK(flags), 0, 0, DP_TOPO_DEGRADED},
    {0},
};
static const struct member port_members[] = {
    {"rail", INT, PORT(rail), -1, 0, NODE_NUMBER},
    {"fabric", FABRIC, PORT(fabric), 0, 0, 0},
    {"up", BOOL, PORT(up), 0, 0, 0},
    {"rdma", TEXT, PORT(rdma), 0, 0, 0},
    {"net", TEXT, PORT(net), 0, 0, 0},
    {"subnet", TEXT, PORT(subnet), 0, 0, 0},
    {"mtu_bytes", INT, PORT(mtu_bytes), 0, 0, INT32_MAX},
    {"guid", GUID, PORT(guid), 0, 0, 0},
    {"bytes_per_ns", NUMBER, PORT(bytes_per_ns), 0, 0, 0},
    {0},
};

/* ---- writing -------------------------------------------------------------------------------- */

struct writer {
    const struct dp_topology *t;
    struct dp_text *out;
};

static void add_member(const struct writer *w, const struct member *m, const void *value)
{
    struct dp_text *out = w->out;
    const uint32_t word = m->type == SIZE || m->type == GUID ? !!*(const uint64_t *)value
                          : m->type == NUMBER || m->type == BOOL ? true
                                                                 : *(const uint32_t *)value;

    if (m->type == FLAG ? !(word & (uint32_t)m->most)
                        : m->type != FABRIC && word == (uint32_t)m->usual)
        return;
    dp_text_addf(out, ", \"%s\": ", m->key);
    switch (m->type) {
    case TEXT:
        dp_json_add_string(out, dp_topology_text(w->t, word));
        break;
    case INT:
        dp_text_addf(out, "%" PRId32, *(const int32_t *)value);
        break;
    case SIZE:
        dp_text_addf(out, "%" PRIu64, *(const uint64_t *)value);
        break;
    case NUMBER:
        dp_text_add_number(out, *(const double *)value);
        break;
    case FLAG:
        dp_text_adds(out, "true");
        break;
    case BOOL:
        dp_text_adds(out, *(const bool *)value ? "true" : "false");
        break;
    case FABRIC:
        dp_text_addf(out, "\"%s\"", dp_topo_fabric_names[word]);
        break;
    case GUID:
        dp_text_addf(out, "\"%016" PRIx64 "\"", *(const uint64_t *)value);
        break;
    }
}

static void add_members(const struct writer *w, const struct member *m, const void *item)
{
    for (; m->key; m++)
        add_member(w, m, (const char *)item + m->offset);
}

static void add_pci(const struct writer *w, const struct dp_topo_pci *pci)
{
    char address[DP_TOPO_PCI_LEN];

    if (!pci->known)
        return;
    dp_text_addf(w->out, ", \"pci\": \"%s\", \"pci_class\": \"%06x\"",
                 dp_topo_pci_text(pci, address), pci->class_code);
    if (pci->vendor_id || pci->device_id)
        dp_text_addf(w->out, ", \"pci_id\": \"%04x:%04x\"", pci->vendor_id, pci->device_id);
    if (pci->subsystem_vendor_id || pci->subsystem_device_id)
        dp_text_addf(w->out, ", \"pci_subsystem\": \"%04x:%04x\"", pci->subsystem_vendor_id,
                     pci->subsystem_device_id);
}

static void add_node(const struct writer *w, int32_t i)
{
    const struct dp_topo_node *n = &w->t->nodes[i];
    char label[DP_TOPO_LABEL_LEN];

    dp_text_addf(w->out, "{\"id\": %" PRId32 ", \"kind\": \"%s\"", i, dp_topo_kind_name(n->kind));
    if (n->parent >= 0)
        dp_text_addf(w->out, ", \"parent\": %" PRId32, n->parent);
    dp_text_adds(w->out, ", \"label\": ");
    dp_json_add_string(w->out, dp_topology_label(w->t, i, label));
    add_members(w, node_members, n);
    add_pci(w, &n->pci);
}

static void add_link(const struct writer *w, int32_t i)
{
    const struct dp_topo_link *l = &w->t->links[i];

    dp_text_addf(w->out, "{\"kind\": \"%s\", \"a\": %" PRId32 ", \"b\": %" PRId32,
                 dp_topo_link_kind_name(l->kind), l->a, l->b);
    add_members(w, link_members, l);
}

static void add_port(const struct writer *w, int32_t i)
{
    const struct dp_topo_port *p = &w->t->ports[i];

    dp_text_addf(w->out, "{\"nic\": %" PRId32 ", \"number\": %" PRId32, p->nic, p->number);
    add_members(w, port_members, p);
    for (int32_t k = 0; k < p->gid_count; k++) {
        const struct dp_topo_gid *g = &w->t->gids[p->first_gid + k];
        dp_text_addf(w->out, "%s{\"index\": %d, \"type\": \"%s\", \"gid\": \"",
                     k ? ", " : ", \"gids\": [", g->index, dp_topo_gid_type_names[g->type]);
        for (int at = 0; at < 16; at += 2)
            dp_text_addf(w->out, "%s%02x%02x", at ? ":" : "", g->raw[at], g->raw[at + 1]);
        dp_text_adds(w->out, k + 1 < p->gid_count ? "\"}" : "\"}]");
    }
}

static void add_note(const struct writer *w, int32_t i)
{
    const struct dp_topo_note *n = &w->t->notes[i];

    dp_text_addf(w->out, "{\"kind\": \"%s\"", dp_topo_note_kind_names[n->kind]);
    if (n->node >= 0)
        dp_text_addf(w->out, ", \"node\": %" PRId32, n->node);
    dp_text_adds(w->out, ", \"text\": ");
    dp_json_add_string(w->out, dp_topology_text(w->t, n->text));
}

static void add_list(const struct writer *w, const char *name, int32_t count,
                     void (*add)(const struct writer *w, int32_t i))
{
    dp_text_addf(w->out, ",\n\"%s\": [", name);
    for (int32_t i = 0; i < count; i++) {
        dp_text_adds(w->out, i ? ",\n" : "\n");
        add(w, i);
        dp_text_adds(w->out, "}");
    }
    dp_text_adds(w->out, "]");
}

void dp_topo_write_json(const struct dp_topology *t, struct dp_text *out)
{
    const struct writer w = {t, out};

    dp_text_addf(out, "{\"dualpipe_topology\": %d, \"source\": \"dualpipe %s\"", DP_TOPO_JSON_VERSION,
                 dp_version());
    add_list(&w, "nodes", t->node_count, add_node);
    add_list(&w, "links", t->link_count, add_link);
    add_list(&w, "ports", t->port_count, add_port);
    add_list(&w, "notes", t->note_count, add_note);
    dp_text_adds(out, "}\n");
}

/* ---- reading -------------------------------------------------------------------------------- */

/* sscanf and strtoull take signs, blanks and 0x, too. */
#define HEX "0123456789abcdefABCDEF"

struct reader {
    struct dp_topo_builder b;
    int32_t node_count, port_count;
};

static int take_text(struct reader *r, const struct dp_json *at, const char *key, uint32_t *out)
{
    const char *string = NULL;
    int err = dp_json_take_string(at, key, &string);

    if (!err)
        *out = dp_topo_add_text(&r->b, string);
    return err;
}

static int take_flag(const struct dp_json *at, const char *key, uint32_t flag, uint32_t *flags)
{
    bool is_set;
    int err = dp_json_get_bool(at, key, false, &is_set);

    if (!err && is_set)
        *flags |= flag;
    return err;
}

static int take_guid(const struct dp_json *at, const char *key, uint64_t *guid)
{
    struct dp_json in = dp_json_member(at, key);
    const char *string = json_string_value(in.value);
    const size_t len = string ? strlen(string) : 0;

    if (!in.value)
        return 0;
    if (len < 1 || len > 16 || strspn(string, HEX) != len)
        return dp_json_expected(&in, "hexadecimal digits");
    *guid = strtoull(string, NULL, 16);
    return 0;
}

static int take_member(struct reader *r, const struct dp_json *at, const struct member *m,
                       void *value)
{
    const int most = m->most == NODE_NUMBER   ? r->node_count - 1
                     : m->most == PORT_NUMBER ? r->port_count - 1
                                              : m->most;

    switch (m->type) {
    case TEXT:
        return take_text(r, at, m->key, value);
    case INT:
        return dp_json_take_int(at, m->key, m->least, most, value);
    case SIZE:
        return dp_json_take_size(at, m->key, value);
    case NUMBER:
        return dp_json_take_number(at, m->key, value);
    case FLAG:
        return take_flag(at, m->key, (uint32_t)most, value);
    case BOOL:
        return dp_json_get_bool(at, m->key, false, value);
    case FABRIC:
        return dp_json_take_word(at, m->key, dp_topo_fabric_names, value);
    case GUID:
        return take_guid(at, m->key, value);
    }
    return 0;
}

static int take_members(struct reader *r, const struct dp_json *at, const struct member *m,
                        void *item)
{
    int err = 0;

    for (; m->key && !err; m++)
        err = take_member(r, at, m, (char *)item + m->offset);
    return err;
}

/* One number of at most six digits, or two of at most four with a colon between them. */
static int take_hex(const struct dp_json *at, const char *key, int count, unsigned numbers[2])
{
    struct dp_json in = dp_json_member(at, key);
    const char *string = NULL;
    int found = 0, end = 0, err = dp_json_take_string(at, key, &string);

    if (err || !string)
        return err;
    if (strspn(string, HEX ":") == strlen(string))
        found = count == 2 ? sscanf(string, "%4x:%4x%n", &numbers[0], &numbers[1], &end)
                           : sscanf(string, "%6x%n", &numbers[0], &end);
    return found == count && !string[end]
               ? 0
               : dp_json_expected(&in, count == 2 ? "two numbers such as \"10de:2330\""
                                                  : "six hexadecimal digits");
}

static int read_pci(const struct dp_json *at, struct dp_topo_pci *pci)
{
    struct dp_json in = dp_json_member(at, "pci");
    const char *address = NULL;
    unsigned code[2] = {0}, id[2] = {0}, subsystem[2] = {0};
    int err = dp_json_take_string(at, "pci", &address);

    if (err || !address)
        return err;
    if (!dp_topo_parse_pci(address, pci))
        return dp_json_expected(&in, "an address such as \"0000:1b:00.0\"");
    err = take_hex(at, "pci_class", 1, code);
    if (!err)
        err = take_hex(at, "pci_id", 2, id);
    if (!err)
        err = take_hex(at, "pci_subsystem", 2, subsystem);
    pci->class_code = code[0];
    pci->vendor_id = (uint16_t)id[0];
    pci->device_id = (uint16_t)id[1];
    pci->subsystem_vendor_id = (uint16_t)subsystem[0];
    pci->subsystem_device_id = (uint16_t)subsystem[1];
    return err;
}

static int read_node(struct reader *r, const struct dp_json *at)
{
    int kind = -1, parent = -1, err = dp_json_take_word(at, "kind", dp_topo_kind_names, &kind);

    if (!err && kind < 0)
        err = dp_json_expected(at, "a node: {\"kind\": ...}");
    if (!err)
        err = dp_json_take_int(at, "parent", 0, r->b.t.node_count - 1, &parent);
    if (err)
        return err;
    struct dp_topo_node *n = dp_topo_node(
        &r->b, dp_topo_add_node(&r->b, (enum dp_topo_kind)kind, parent));
    err = take_members(r, at, node_members, n);
    return err ? err : read_pci(at, &n->pci);
}

static int read_link(struct reader *r, const struct dp_json *at)
{
    int kind = -1, a, b, err = dp_json_take_word(at, "kind", dp_topo_link_kind_names, &kind);

    if (!err && kind < 0)
        err = dp_json_expected(at, "a link: {\"kind\": ...}");
    if (!err)
        err = dp_json_get_int(at, "a", 0, r->node_count - 1, &a);
    if (!err)
        err = dp_json_get_int(at, "b", 0, r->node_count - 1, &b);
    return err ? err
               : take_members(r, at, link_members,
                              dp_topo_add_link(&r->b, (enum dp_topo_link_kind)kind, a, b, 0));
}

static int read_gid(struct reader *r, const struct dp_json *at)
{
    struct dp_json in = dp_json_member(at, "gid");
    const char *string = json_string_value(in.value);
    uint8_t raw[16];
    int index, type = 0, err = dp_json_get_int(at, "index", 0, INT32_MAX, &index);

    if (!err)
        err = dp_json_take_word(at, "type", dp_topo_gid_type_names, &type);
    if (!err && (!string || !dp_topo_parse_gid(string, raw)))
        err = dp_json_expected(&in, "eight groups of four hexadecimal digits");
    if (!err)
        dp_topo_add_gid(&r->b, index, (enum dp_topo_gid_type)type, raw);
    return err;
}

static int read_list(struct reader *r, const struct dp_json *list,
                     int (*read)(struct reader *r, const struct dp_json *at))
{
    int err = 0;

    for (size_t i = 0; i < json_array_size(list->value) && !err; i++) {
        struct dp_json at = dp_json_element(list, i);
        err = read(r, &at);
    }
    return err;
}

static int read_port(struct reader *r, const struct dp_json *at)
{
    struct dp_json gids = dp_json_member(at, "gids");
    int nic, number, err = dp_json_get_int(at, "nic", 0, r->node_count - 1, &nic);

    if (!err)
        err = dp_json_get_int(at, "number", 0, 65535, &number);
    if (!err)
        err = take_members(r, at, port_members, dp_topo_add_port(&r->b, nic, number));
    if (!err && gids.value && !json_is_array(gids.value))
        err = dp_json_expected(&gids, "a list");
    return err ? err : read_list(r, &gids, read_gid);
}

static int read_note(struct reader *r, const struct dp_json *at)
{
    const char *text = "";
    int kind = 0, node = -1, err = dp_json_take_word(at, "kind", dp_topo_note_kind_names, &kind);

    if (!err)
        err = dp_json_take_int(at, "node", 0, r->node_count - 1, &node);
    if (!err)
        err = dp_json_take_string(at, "text", &text);
    if (!err)
        dp_topo_add_note(&r->b, (enum dp_topo_note_kind)kind, node, "%s", text);
    return err;
}

static int read_file(struct reader *r, const struct dp_json *file)
{
    struct dp_json nodes, links, ports, notes = dp_json_member(file, "notes");
    int version, err = dp_json_get_int(file, "dualpipe_topology", 1, DP_TOPO_JSON_VERSION, &version);

    if (!err)
        err = dp_json_get_array(file, "nodes", &nodes);
    if (!err)
        err = dp_json_get_array(file, "links", &links);
    if (!err)
        err = dp_json_get_array(file, "ports", &ports);
    if (!err && json_array_size(nodes.value) > DP_TOPO_NODES_MAX)
        err = dp_fail(DP_EINVAL, "nodes: %zu of them, expected at most %d",
                      json_array_size(nodes.value), DP_TOPO_NODES_MAX);
    if (err)
        return err;
    r->node_count = (int32_t)json_array_size(nodes.value);
    r->port_count = (int32_t)json_array_size(ports.value);
    err = read_list(r, &nodes, read_node);
    if (!err)
        err = read_list(r, &ports, read_port);
    if (!err)
        err = read_list(r, &links, read_link);
    return err ? err : read_list(r, &notes, read_note);
}

int dp_topo_read_json(const char *text, size_t len, struct dp_topology **out)
{
    struct reader r = {.node_count = 0};
    json_t *value;
    int err = dp_json_load(text, len, &value);

    if (err)
        return err;
    struct dp_json file = {.value = value};
    err = read_file(&r, &file);
    json_decref(value);
    if (err)
        dp_topo_builder_fini(&r.b);
    return err ? err : dp_topo_finish(&r.b, out);
}
