/* SPDX-License-Identifier: Apache-2.0
 *
 * assignment_read.c - a placement's file, token by token. What an object may have is a table of fields;
 * members that are in none are passed over.
 */
#include "base/array.h"
#include "base/fail.h"
#include "base/json_scan.h"
#include "base/number.h"
#include "base/text.h"
#include "base/utf8.h"
#include "placement/assignment_read.h"
#include "placement/assignment_resolve.h"

#include <stdlib.h>
#include <string.h>

struct reader {
    struct dp_json_scan json;
    const char *name;
    char path[64]; /* workers[3].gpu: what is being read; cut off where it is longer */
    struct dp_assignment *s;
    struct dp_placement_rest *rest; /* NULL: not asked for */
    struct dp_text text;
    bool has_version;
    size_t node_room, port_room, worker_room, flow_room;
};

typedef int read_fn(struct reader *r, void *member);

struct field {
    const char *key;
    read_fn *read;
    size_t offset; /* of the member in what is read, or in the rest */
    bool is_rest;
};

static int fail_here(const struct reader *r, const char *why)
{
    return dp_fail(DP_EINVAL, "%s:%d: %s%s%s", r->name, r->json.line, r->path, *r->path ? ": " : "",
                   why);
}

/* What dp_json_scan_next found is not what belongs here. */
static int unexpected(const struct reader *r, enum dp_scan_type found, const char *expected)
{
    return fail_here(r, found == DP_SCAN_BAD ? r->json.why : expected);
}

/* One more of a list, zeroed. NULL: no memory. */
static void *append(void **list, int32_t *count, size_t *room, size_t size)
{
    void *moved = *count < INT32_MAX ? dp_array_grow(*list, room, (size_t)*count + 1, size) : NULL;

    if (!moved)
        return NULL;
    *list = moved;
    return memset((char *)*list + (size_t)(*count)++ * size, 0, size);
}

static int no_memory(const struct reader *r)
{
    return dp_fail(DP_ENOMEM, "%s: no memory for the placement", r->name);
}

/* ---- values --------------------------------------------------------------------------------- */

static int skip_value(struct reader *r)
{
    int depth = 0;

    do {
        enum dp_scan_type type = dp_json_scan_next(&r->json);
        if (type <= DP_SCAN_END)
            return unexpected(r, type, "expected a value");
        depth += (type == DP_SCAN_OBJECT || type == DP_SCAN_LIST) -
                 (type == DP_SCAN_OBJECT_END || type == DP_SCAN_LIST_END);
    } while (depth);
    return 0;
}

static int to_int(const struct reader *r, enum dp_scan_type type, int32_t *out)
{
    char *end;
    long number = strtol(r->json.text, &end, 10);

    if (type != DP_SCAN_NUMBER || *end || number < 0 || number > 1 << 26)
        return unexpected(r, type, "expected a whole number from 0 to 67108864");
    *out = (int32_t)number;
    return 0;
}

static int read_int(struct reader *r, void *member)
{
    return to_int(r, dp_json_scan_next(&r->json), member);
}

static int read_number(struct reader *r, void *member)
{
    enum dp_scan_type type = dp_json_scan_next(&r->json);
    double number = type == DP_SCAN_NUMBER ? dp_strtod(r->json.text, NULL) : -1;

    if (!(number >= 0) || number > 1e300)
        return unexpected(r, type, "expected a number that is not negative");
    *(double *)member = number;
    return 0;
}

/* Empty strings are all at 0. */
static int read_text(struct reader *r, void *member)
{
    enum dp_scan_type type = dp_json_scan_next(&r->json);

    if (type != DP_SCAN_STRING)
        return unexpected(r, type, "expected a string");
    if (r->text.len > UINT32_MAX - DP_SCAN_TEXT)
        return fail_here(r, "expected less text than 4 GiB");
    *(uint32_t *)member = *r->json.text ? (uint32_t)r->text.len : 0;
    if (*r->json.text)
        dp_text_add(&r->text, r->json.text, strlen(r->json.text) + 1);
    return 0;
}

static int read_flow_kind(struct reader *r, void *member)
{
    enum dp_scan_type type = dp_json_scan_next(&r->json);
    int kind = 0;

    if (type != DP_SCAN_STRING)
        return unexpected(r, type, "expected the kind of a flow");
    while (kind < DP_FLOW_KINDS && strcmp(r->json.text, dp_flow_kind_name((enum dp_flow_kind)kind)))
        kind++;
    *(enum dp_flow_kind *)member = (enum dp_flow_kind)kind;
    return 0;
}

static int read_version(struct reader *r, void *member)
{
    enum dp_scan_type type = dp_json_scan_next(&r->json);

    (void)member;
    r->has_version = type == DP_SCAN_NUMBER && !strcmp(r->json.text, "1");
    return r->has_version ? 0 : unexpected(r, type, "expected 1, the version of the file that this "
                                                    "build reads");
}

static int read_bool(struct reader *r, void *member)
{
    enum dp_scan_type type = dp_json_scan_next(&r->json);

    if (type != DP_SCAN_WORD || !strcmp(r->json.text, "null"))
        return unexpected(r, type, "expected true or false");
    *(bool *)member = !strcmp(r->json.text, "true");
    return 0;
}

static int read_numbers(struct reader *r, int32_t *numbers, int32_t most, int32_t *count)
{
    enum dp_scan_type type = dp_json_scan_next(&r->json);
    int err = type == DP_SCAN_LIST ? 0 : unexpected(r, type, "expected a list of numbers");

    *count = 0;
    while (!err && (type = dp_json_scan_next(&r->json)) != DP_SCAN_LIST_END) {
        if (*count == most)
            return fail_here(r, "expected at most 16 numbers");
        err = to_int(r, type, &numbers[(*count)++]);
    }
    return err;
}

/* ---- objects and lists ---------------------------------------------------------------------- */

/* Until the path is cut to the length that is returned. */
static size_t enter_member(struct reader *r, const char *key)
{
    const size_t len = strlen(r->path);

    dp_snprintf(r->path + len, sizeof(r->path) - len, "%s%s", len ? "." : "", key);
    return len;
}

static size_t enter_element(struct reader *r, int index)
{
    const size_t len = strlen(r->path);

    dp_snprintf(r->path + len, sizeof(r->path) - len, "[%d]", index);
    return len;
}

/* Up to its end; the opening brace was read. */
static int read_members(struct reader *r, const struct field *fields, size_t count, void *out)
{
    enum dp_scan_type type;
    int err = 0;

    while (!err && (type = dp_json_scan_next(&r->json)) != DP_SCAN_OBJECT_END) {
        size_t i = 0;
        if (type != DP_SCAN_KEY)
            return unexpected(r, type, "expected a name");
        while (i < count && strcmp(r->json.text, fields[i].key))
            i++;
        const size_t path_len = enter_member(r, r->json.text);
        const bool is_rest = i < count && fields[i].is_rest;
        void *into = is_rest ? (void *)r->rest : out;
        err = i == count || !into ? skip_value(r)
                                  : fields[i].read(r, (char *)into + fields[i].offset);
        if (!err)
            r->path[path_len] = '\0';
    }
    return err;
}

static int read_list(struct reader *r, int (*read_item)(struct reader *r))
{
    enum dp_scan_type type = dp_json_scan_next(&r->json);
    int err = type == DP_SCAN_LIST ? 0 : unexpected(r, type, "expected a list");

    for (int i = 0; !err && (type = dp_json_scan_next(&r->json)) != DP_SCAN_LIST_END; i++) {
        const size_t path_len = enter_element(r, i);
        err = type == DP_SCAN_OBJECT ? read_item(r) : unexpected(r, type, "expected an object");
        if (!err)
            r->path[path_len] = '\0';
    }
    return err;
}

#define FIELDS(list) (list), sizeof(list) / sizeof((list)[0])
#define AT(type, member) .offset = offsetof(struct type, member)

static const struct field port_fields[] = {
    {"number", read_int, AT(dp_assigned_port, number)},
    {"rdma", read_text, AT(dp_assigned_port, rdma)},
    {"net", read_text, AT(dp_assigned_port, net)},
};

static int read_port(struct reader *r)
{
    struct dp_assigned_port *port =
        append((void **)&r->s->ports, &r->s->port_count, &r->port_room, sizeof(*port));

    return port ? read_members(r, FIELDS(port_fields), port) : no_memory(r);
}

/* The list of nodes does not move meanwhile. */
static int read_ports(struct reader *r, void *member)
{
    struct dp_assigned_node *node = member;

    node->first_port = r->s->port_count;
    int err = read_list(r, read_port);
    node->port_count = r->s->port_count - node->first_port;
    return err;
}

static const struct field node_fields[] = {
    {"id", read_int, AT(dp_assigned_node, id)},
    {"kind", read_text, AT(dp_assigned_node, kind)},
    {"label", read_text, AT(dp_assigned_node, label)},
    {"host", read_text, AT(dp_assigned_node, host)},
    {"pci", read_text, AT(dp_assigned_node, pci)},
    {"cpus", read_text, AT(dp_assigned_node, cpus)},
    {"os_index", read_int, AT(dp_assigned_node, os_index)},
    {"ports", read_ports, .offset = 0},
};

static int read_node(struct reader *r)
{
    struct dp_assigned_node *node =
        append((void **)&r->s->nodes, &r->s->node_count, &r->node_room, sizeof(*node));

    if (!node)
        return no_memory(r);
    node->id = node->os_index = DP_ASSIGNED_ABSENT;
    return read_members(r, FIELDS(node_fields), node);
}

static int read_nics(struct reader *r, void *member)
{
    struct dp_assigned_worker *worker = member;
    return read_numbers(r, worker->nics, DP_PLACEMENT_NICS_MAX, &worker->nic_count);
}

static int read_qps(struct reader *r, void *member)
{
    struct dp_assigned_worker *worker = member;
    return read_numbers(r, worker->qps, DP_PLACEMENT_NICS_MAX, &worker->qps_count);
}

static int read_copy(struct reader *r, void *member)
{
    struct dp_assigned_worker *worker = member;
    return read_numbers(r, worker->copy, DP_ASSIGNED_COPY_MAX, &worker->copy_count);
}

static const struct field worker_fields[] = {
    {"replica", read_int, AT(dp_assigned_worker, replica)},
    {"rank", read_int, AT(dp_assigned_worker, rank)},
    {"gpu", read_int, AT(dp_assigned_worker, gpu)},
    {"came_as", read_int, AT(dp_assigned_worker, process)},
    {"memory", read_int, AT(dp_assigned_worker, memory)},
    {"nics", read_nics, .offset = 0},
    {"qps", read_qps, .offset = 0},
    {"copy", read_copy, .offset = 0},
};

static int read_worker(struct reader *r)
{
    struct dp_assigned_worker *worker =
        append((void **)&r->s->workers, &r->s->worker_count, &r->worker_room, sizeof(*worker));

    if (!worker)
        return no_memory(r);
    worker->replica = worker->rank = worker->gpu = worker->process = worker->memory = DP_ASSIGNED_ABSENT;
    return read_members(r, FIELDS(worker_fields), worker);
}

/* Of the flow that is being read. */
static int read_class(struct reader *r, void *member)
{
    (void)member;
    return read_text(r, &r->rest->classes[r->rest->class_count - 1]);
}

static const struct field flow_fields[] = {
    {"kind", read_flow_kind, AT(dp_assigned_flow, kind)},
    {"from", read_int, AT(dp_assigned_flow, from)},
    {"to", read_int, AT(dp_assigned_flow, to)},
    {"bytes", read_number, AT(dp_assigned_flow, bytes)},
    {"nic_from", read_int, AT(dp_assigned_flow, nic_from)},
    {"nic_to", read_int, AT(dp_assigned_flow, nic_to)},
    {"rail", read_int, AT(dp_assigned_flow, rail)},
    {"traffic_class", read_int, AT(dp_assigned_flow, traffic_class)},
    {"class", read_class, .is_rest = true},
};

static int read_flow(struct reader *r)
{
    struct dp_assigned_flow *flow =
        append((void **)&r->s->flows, &r->s->flow_count, &r->flow_room, sizeof(*flow));

    if (!flow || (r->rest && !append((void **)&r->rest->classes, &r->rest->class_count,
                                     &r->rest->class_room, sizeof(*r->rest->classes))))
        return no_memory(r);
    flow->kind = DP_FLOW_KINDS;
    flow->from = flow->to = flow->nic_from = flow->nic_to = flow->rail = DP_ASSIGNED_ABSENT;
    return read_members(r, FIELDS(flow_fields), flow);
}

static const struct field link_fields[] = {
    {"from", read_int, AT(dp_assigned_link, from)},
    {"to", read_int, AT(dp_assigned_link, to)},
    {"before_ns", read_number, AT(dp_assigned_link, before_ns)},
    {"after_ns", read_number, AT(dp_assigned_link, after_ns)},
};

static int read_link(struct reader *r)
{
    struct dp_assigned_link *link = append((void **)&r->rest->links, &r->rest->link_count,
                                           &r->rest->link_room, sizeof(*link));

    if (!link)
        return no_memory(r);
    link->from = link->to = DP_ASSIGNED_ABSENT;
    return read_members(r, FIELDS(link_fields), link);
}

static int read_nodes(struct reader *r, void *member)
{
    (void)member;
    return read_list(r, read_node);
}

static int read_workers(struct reader *r, void *member)
{
    (void)member;
    return read_list(r, read_worker);
}

static int read_flows(struct reader *r, void *member)
{
    (void)member;
    return read_list(r, read_flow);
}

static int read_links(struct reader *r, void *member)
{
    (void)member;
    return read_list(r, read_link);
}

static const struct field rate_fields[] = {
    {"intra_gbs", read_number, AT(dp_assignment, intra_gbs)},
    {"inter_gbs", read_number, AT(dp_assignment, inter_gbs)},
    {"nodes", read_int, AT(dp_assignment, node_total)},
};

static int read_rates(struct reader *r, void *member)
{
    enum dp_scan_type type = dp_json_scan_next(&r->json);

    return type == DP_SCAN_OBJECT ? read_members(r, FIELDS(rate_fields), member)
                                  : unexpected(r, type, "rates: expected an object");
}

/* ---- all of it ------------------------------------------------------------------------------ */

static const struct field file_fields[] = {
    {"dualpipe_placement", read_version, .offset = 0},
    {"ranks", read_int, AT(dp_assignment, ranks)},
    {"replicas", read_int, AT(dp_assignment, replicas)},
    {"rates", read_rates, .offset = 0},
    {"nodes", read_nodes, .offset = 0},
    {"workers", read_workers, .offset = 0},
    {"flows", read_flows, .offset = 0},
    {"exact", read_bool, AT(dp_placement_rest, exact), .is_rest = true},
    {"before_ns", read_number, AT(dp_placement_rest, before_ns), .is_rest = true},
    {"after_ns", read_number, AT(dp_placement_rest, after_ns), .is_rest = true},
    {"links", read_links, .is_rest = true},
};

static int read_file(struct reader *r)
{
    enum dp_scan_type type = dp_json_scan_next(&r->json);
    int err = type == DP_SCAN_OBJECT ? read_members(r, FIELDS(file_fields), r->s)
                                     : unexpected(r, type, "expected an object");

    if (!err && (type = dp_json_scan_next(&r->json)) != DP_SCAN_END)
        err = unexpected(r, type, "expected the end");
    if (!err && !r->has_version)
        err = fail_here(r, "no \"dualpipe_placement\": 1, expected a file of `dualpipe topo place "
                           "--format json`");
    return err;
}

int dp_assignment_read_all(const char *text, size_t len, const char *name,
                           struct dp_placement_rest *rest, struct dp_assignment **out)
{
    int err = dp_utf8_begin(&text, &len, name);

    if (err)
        return err;
    struct reader r = {.json = dp_json_scan_begin(text, len), .name = name,
                       .s = calloc(1, sizeof(*r.s)), .rest = rest};
    if (!r.s)
        return no_memory(&r);
    r.s->name = strdup(name);
    dp_text_add(&r.text, "", 1); /* the empty string, at 0 */
    err = r.s->name ? read_file(&r) : no_memory(&r);
    if (!err)
        err = dp_text_take(&r.text, &r.s->text, NULL);
    if (!err)
        err = dp_assignment_resolve(r.s);
    dp_text_fini(&r.text);
    if (err)
        dp_assignment_free(r.s);
    else
        *out = r.s;
    return err;
}

int dp_assignment_read(const char *text, size_t len, const char *name, struct dp_assignment **out)
{
    return dp_assignment_read_all(text, len, name, NULL, out);
}
