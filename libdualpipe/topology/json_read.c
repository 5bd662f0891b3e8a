/* SPDX-License-Identifier: Apache-2.0
 *
 * json_read.c - read what json_write.c writes. Members that it does not know are passed over, so that
 * a later version may add some.
 */
#include "base/fail.h"
#include "base/json.h"
#include "topology/build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    struct dp_topo_builder b;
    int32_t node_count, port_count;
};

/* ---- members -------------------------------------------------------------------------------- */

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

/* Takes the numbers of a format such as "%x:%x" and nothing behind them. */
static int take_hex(const struct dp_json *at, const char *key, const char *format, int count,
                    uint32_t numbers[4])
{
    struct dp_json in = dp_json_member(at, key);
    const char *string = NULL;
    int end = -1, err = dp_json_take_string(at, key, &string);

    if (err || !string)
        return err;
    int found = count == 4   ? sscanf(string, "%x:%x:%x.%x%n", &numbers[0], &numbers[1], &numbers[2],
                                      &numbers[3], &end)
                : count == 2 ? sscanf(string, "%x:%x%n", &numbers[0], &numbers[1], &end)
                             : sscanf(string, "%x%n", &numbers[0], &end);
    return found == count && end > 0 && !string[end] ? 0 : dp_json_expected(&in, format);
}

/* ---- nodes ---------------------------------------------------------------------------------- */

static int read_pci(const struct dp_json *at, struct dp_topo_pci *pci)
{
    uint32_t address[4] = {0}, code[4] = {0}, id[4] = {0}, subsystem[4] = {0};
    int err;

    if (!dp_json_member(at, "pci").value)
        return 0;
    err = take_hex(at, "pci", "an address such as \"0000:1b:00.0\"", 4, address);
    if (!err)
        err = take_hex(at, "pci_class", "six hexadecimal digits", 1, code);
    if (!err)
        err = take_hex(at, "pci_id", "two numbers such as \"10de:2330\"", 2, id);
    if (!err)
        err = take_hex(at, "pci_subsystem", "two numbers such as \"10de:2330\"", 2, subsystem);
    *pci = (struct dp_topo_pci){
        .known = true, .domain = address[0], .bus = (uint8_t)address[1],
        .device = (uint8_t)address[2], .function = (uint8_t)address[3],
        .class_code = code[0] & 0xffffff, .vendor_id = (uint16_t)id[0], .device_id = (uint16_t)id[1],
        .subsystem_vendor_id = (uint16_t)subsystem[0],
        .subsystem_device_id = (uint16_t)subsystem[1],
    };
    return err;
}

static int read_numbers(const struct dp_json *at, struct dp_topo_node *n)
{
    int err = dp_json_take_int(at, "os_index", -1, INT32_MAX, &n->os_index);

    if (!err)
        err = dp_json_take_int(at, "family", -1, INT32_MAX, &n->family);
    if (!err)
        err = dp_json_take_int(at, "cpu_model", -1, INT32_MAX, &n->cpu_model);
    if (!err)
        err = dp_json_take_int(at, "package", -1, INT32_MAX, &n->package);
    if (!err)
        err = dp_json_take_int(at, "memory_node", -1, INT32_MAX, &n->memory_node);
    if (!err)
        err = dp_json_take_int(at, "sm", 0, 999, &n->sm);
    if (!err)
        err = dp_json_take_size(at, "memory_bytes", &n->memory_bytes);
    return err ? err : dp_json_take_size(at, "cache_bytes", &n->cache_bytes);
}

static int read_texts(struct reader *r, const struct dp_json *at, struct dp_topo_node *n)
{
    int err = take_text(r, at, "name", &n->name);

    if (!err)
        err = take_text(r, at, "model", &n->model);
    if (!err)
        err = take_text(r, at, "cpus", &n->cpus);
    if (!err)
        err = take_text(r, at, "uuid", &n->uuid);
    if (!err)
        err = take_text(r, at, "arch", &n->arch);
    return err ? err : take_text(r, at, "vendor", &n->vendor);
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
    err = read_texts(r, at, n);
    if (!err)
        err = read_numbers(at, n);
    return err ? err : read_pci(at, &n->pci);
}

/* ---- links and ports ------------------------------------------------------------------------ */

static int read_pci_speed(const struct dp_json *at, struct dp_topo_link *l)
{
    int err = dp_json_take_int(at, "gen", 0, DP_PCI_GEN_MAX, &l->gen);

    if (!err)
        err = dp_json_take_int(at, "width", 0, 256, &l->width);
    if (!err)
        err = dp_json_take_int(at, "gen_max", 0, DP_PCI_GEN_MAX, &l->gen_max);
    return err ? err : dp_json_take_int(at, "width_max", 0, 256, &l->width_max);
}

static int read_flags(const struct dp_json *at, uint32_t *flags)
{
    int err = take_flag(at, "rate_assumed", DP_TOPO_RATE_ASSUMED, flags);

    if (!err)
        err = take_flag(at, "rate_unknown", DP_TOPO_RATE_UNKNOWN, flags);
    return err ? err : take_flag(at, "degraded", DP_TOPO_DEGRADED, flags);
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
    if (err)
        return err;
    struct dp_topo_link *l = dp_topo_add_link(&r->b, (enum dp_topo_link_kind)kind, a, b, 0);
    err = dp_json_take_number(at, "bytes_per_ns", &l->bytes_per_ns);
    if (!err)
        err = dp_json_take_number(at, "latency_ns", &l->latency_ns);
    if (!err)
        err = dp_json_take_int(at, "count", 1, 65536, &l->count);
    if (!err)
        err = dp_json_take_int(at, "port", 0, r->port_count - 1, &l->port);
    if (!err)
        err = read_pci_speed(at, l);
    return err ? err : read_flags(at, &l->flags);
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

static int read_gids(struct reader *r, const struct dp_json *at)
{
    struct dp_json gids = dp_json_member(at, "gids");
    int err = !gids.value || json_is_array(gids.value) ? 0 : dp_json_expected(&gids, "a list");

    for (size_t i = 0; i < json_array_size(gids.value) && !err; i++) {
        struct dp_json gid = dp_json_element(&gids, i);
        err = read_gid(r, &gid);
    }
    return err;
}

static int read_guid(const struct dp_json *at, uint64_t *guid)
{
    struct dp_json in = dp_json_member(at, "guid");
    const char *string = json_string_value(in.value);
    char *end = NULL;

    if (!in.value)
        return 0;
    if (string)
        *guid = strtoull(string, &end, 16);
    return end && end != string && !*end ? 0 : dp_json_expected(&in, "hexadecimal digits");
}

static int read_port(struct reader *r, const struct dp_json *at)
{
    int nic, number, fabric = 0, err = dp_json_get_int(at, "nic", 0, r->node_count - 1, &nic);

    if (!err)
        err = dp_json_get_int(at, "number", 0, 65535, &number);
    if (!err)
        err = dp_json_take_word(at, "fabric", dp_topo_fabric_names, &fabric);
    if (err)
        return err;
    struct dp_topo_port *p = dp_topo_add_port(&r->b, nic, number);
    p->fabric = (enum dp_topo_fabric)fabric;
    err = dp_json_take_int(at, "rail", 0, r->node_count - 1, &p->rail);
    if (!err)
        err = dp_json_get_bool(at, "up", false, &p->up);
    if (!err)
        err = take_text(r, at, "rdma", &p->rdma);
    if (!err)
        err = take_text(r, at, "net", &p->net);
    if (!err)
        err = take_text(r, at, "subnet", &p->subnet);
    if (!err)
        err = dp_json_take_int(at, "mtu_bytes", 0, INT32_MAX, &p->mtu_bytes);
    if (!err)
        err = read_guid(at, &p->guid);
    if (!err)
        err = dp_json_take_number(at, "bytes_per_ns", &p->bytes_per_ns);
    return err ? err : read_gids(r, at);
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

/* ---- all of it ------------------------------------------------------------------------------ */

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
