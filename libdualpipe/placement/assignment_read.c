/* SPDX-License-Identifier: Apache-2.0
 *
 * assignment_read.c - the file of a placement, line by line: a word that says what the row is, and
 * KEY=VALUE for each of its fields. What a row may have is a table. Rows refer to those above them, so
 * everything is checked where it stands.
 */
#include "base/array.h"
#include "base/fail.h"
#include "base/text.h"
#include "placement/internal.h"

#include <dualpipe/assignment.h>
#include <dualpipe/options.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char version[] = "dualpipe assignment 1";

enum { ABSENT = -1, NUMBER_MAX = 1 << 26, WORKERS_MAX = 1 << 20, QPS_MAX = 256, FIELDS_MAX = 16 };

struct reader {
    struct dp_lines lines;
    const char *row; /* the name of what is being read */
    struct dp_assignment *s;
    struct dp_text text;
    size_t node_room, port_room, worker_room, flow_room;
    bool has_placement, has_end;
};

/* ---- values: NULL, or what was expected ------------------------------------------------------- */

static const char *read_int(struct reader *r, const char *value, void *member)
{
    char *end;
    const long number = strtol(value, &end, 10);

    (void)r;
    if (*value < '0' || *value > '9' || *end || number > NUMBER_MAX)
        return "a whole number from 0 to 67108864";
    *(int32_t *)member = (int32_t)number;
    return NULL;
}

static const char *read_number(struct reader *r, const char *value, void *member)
{
    char *end;
    const double number = dp_strtod(value, &end);

    (void)r;
    if (end == value || *end || !(number >= 0) || number > 1e300)
        return "a number that is not negative";
    *(double *)member = number;
    return NULL;
}

static int digit_of(char c)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = c ? strchr(digits, c) : NULL;

    return at ? (int)(at - digits) : -1;
}

/* "%20" is a blank, and so on for ASCII. Empty texts are all at 0. */
static const char *read_text(struct reader *r, const char *value, void *member)
{
    *(uint32_t *)member = *value ? (uint32_t)r->text.len : 0;
    for (const char *at = value; *at; at++) {
        char c = *at;
        if (c == '%') {
            const int high = digit_of(at[1]), low = high < 0 ? -1 : digit_of(at[2]);
            if (low < 0 || high > 7 || !(high + low))
                return "two digits from 01 to 7f behind every %";
            c = (char)(16 * high + low);
            at += 2;
        }
        dp_text_add(&r->text, &c, 1);
    }
    if (*value)
        dp_text_add(&r->text, "", 1);
    return NULL;
}

static const char *read_flow_kind(struct reader *r, const char *value, void *member)
{
    int kind = 0;

    (void)r;
    while (kind < DP_FLOW_KINDS && strcmp(value, dp_flow_kind_name((enum dp_flow_kind)kind)))
        kind++;
    *(enum dp_flow_kind *)member = (enum dp_flow_kind)kind;
    return kind < DP_FLOW_KINDS ? NULL : "activation, gradient, mirror, mixing or offload";
}

/* "7,9". */
static const char *read_list(struct reader *r, const char *value, int32_t *numbers, int32_t *count)
{
    char one[16];
    const char *problem = NULL;

    *count = 0;
    for (bool is_last = false; !is_last && !problem; ++*count) {
        const size_t len = strcspn(value, ",");
        if (*count == DP_PLACEMENT_NICS_MAX || len >= sizeof(one))
            return "at most 16 numbers with commas between them";
        snprintf(one, sizeof(one), "%.*s", (int)len, value);
        problem = read_int(r, one, &numbers[*count]);
        is_last = !value[len];
        value += len + 1;
    }
    return problem;
}

static const char *read_nics(struct reader *r, const char *value, void *member)
{
    struct dp_assigned_worker *worker = member;

    return read_list(r, value, worker->nics, &worker->nic_count);
}

static const char *read_qps(struct reader *r, const char *value, void *member)
{
    struct dp_assigned_worker *worker = member;

    return read_list(r, value, worker->qps, &worker->qps_count);
}

/* ---- rows ------------------------------------------------------------------------------------- */

static int fail_here(const struct reader *r, const char *why)
{
    return dp_fail(DP_EINVAL, "%s:%d: %s: %s", r->lines.name, r->lines.number, r->row, why);
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

static int compare_ids(const void *a, const void *b)
{
    const struct dp_assigned_node *x = a, *y = b;

    return (x->id > y->id) - (x->id < y->id);
}

/* An id becomes the place of its node, if there is one and it is of this kind. */
static bool resolve(const struct dp_assignment *s, const char *kind, int32_t *id)
{
    const struct dp_assigned_node key = {.id = *id};
    const struct dp_assigned_node *found =
        s->node_count ? bsearch(&key, s->nodes, (size_t)s->node_count, sizeof(key), compare_ids)
                      : NULL;

    if (!found || strcmp(s->text + found->kind, kind))
        return false;
    *id = (int32_t)(found - s->nodes);
    return true;
}

static bool resolve_maybe(const struct dp_assignment *s, const char *kind, int32_t *id)
{
    return *id == ABSENT || resolve(s, kind, id);
}

static void *begin_placement(struct reader *r)
{
    return r->s;
}

static int check_placement(struct reader *r, void *item)
{
    const struct dp_assignment *s = item;

    if (r->has_placement)
        return fail_here(r, "twice, expected one such row");
    r->has_placement = true;
    if (s->ranks < 1 || s->replicas < 1 || s->ranks > WORKERS_MAX / s->replicas)
        return fail_here(r, "ranks, replicas: expected numbers whose product is from 1 to 1048576");
    return 0;
}

static void *begin_node(struct reader *r)
{
    struct dp_assignment *s = r->s;
    struct dp_assigned_node *node =
        append((void **)&s->nodes, &s->node_count, &r->node_room, sizeof(*node));

    if (node) {
        node->id = node->os_index = ABSENT;
        node->first_port = s->port_count;
    }
    return node;
}

static int check_node(struct reader *r, void *item)
{
    const struct dp_assigned_node *node = item;

    if (node->id < 0 || (node != r->s->nodes && node->id <= node[-1].id))
        return fail_here(r, "id: expected a number, more than that of the node above");
    return 0;
}

static void *begin_port(struct reader *r)
{
    return append((void **)&r->s->ports, &r->s->port_count, &r->port_room, sizeof(*r->s->ports));
}

static int check_port(struct reader *r, void *item)
{
    (void)item;
    if (!r->s->node_count)
        return fail_here(r, "expected a node above it, whose port it is");
    r->s->nodes[r->s->node_count - 1].port_count++;
    return 0;
}

static void *begin_worker(struct reader *r)
{
    struct dp_assigned_worker *worker =
        append((void **)&r->s->workers, &r->s->worker_count, &r->worker_room, sizeof(*worker));

    if (worker)
        worker->replica = worker->rank = worker->gpu = worker->process = worker->memory = ABSENT;
    return worker;
}

static int check_worker(struct reader *r, void *item)
{
    const struct dp_assignment *s = r->s;
    struct dp_assigned_worker *worker = item;
    const int32_t w = s->worker_count - 1;

    if (!r->has_placement)
        return fail_here(r, "expected the row placement above it");
    if (worker->replica != w / s->ranks || worker->rank != w % s->ranks)
        return fail_here(r, "replica, rank: expected workers in order of replica, then rank");
    if (!resolve(s, "gpu", &worker->gpu))
        return fail_here(r, "gpu: expected the id of a GPU above");
    if (!resolve_maybe(s, "numa", &worker->memory))
        return fail_here(r, "memory: expected the id of a NUMA node above");
    if (worker->qps_count != worker->nic_count)
        return fail_here(r, "qps: expected as many as nics");
    for (int32_t i = 0; i < worker->nic_count; i++) {
        if (!resolve(s, "nic", &worker->nics[i]))
            return fail_here(r, "nics: expected ids of NICs above");
        if (worker->qps[i] < 1 || worker->qps[i] > QPS_MAX)
            return fail_here(r, "qps: expected numbers from 1 to 256");
    }
    return 0;
}

static void *begin_flow(struct reader *r)
{
    struct dp_assigned_flow *flow =
        append((void **)&r->s->flows, &r->s->flow_count, &r->flow_room, sizeof(*flow));

    if (flow) {
        flow->kind = DP_FLOW_KINDS;
        flow->from = flow->to = flow->nic_from = flow->nic_to = flow->rail = ABSENT;
    }
    return flow;
}

static int check_flow(struct reader *r, void *item)
{
    const struct dp_assignment *s = r->s;
    struct dp_assigned_flow *f = item;

    if (f->kind == DP_FLOW_KINDS)
        return fail_here(r, "kind is missing");
    if (f->from < 0 || f->from >= s->worker_count || f->to < 0 || f->to >= s->worker_count)
        return fail_here(r, "from, to: expected workers, counted from 0 on");
    if (!resolve_maybe(s, "nic", &f->nic_from) || !resolve_maybe(s, "nic", &f->nic_to))
        return fail_here(r, "nic_from, nic_to: expected ids of NICs above");
    if (!resolve_maybe(s, "rail", &f->rail))
        return fail_here(r, "rail: expected the id of a rail above");
    if (f->traffic_class > 255)
        return fail_here(r, "traffic_class: expected a number from 0 to 255");
    return 0;
}

static void *begin_end(struct reader *r)
{
    r->has_end = true;
    return r->s;
}

static int check_end(struct reader *r, void *item)
{
    const struct dp_assignment *s = item;

    if (!r->has_placement)
        return fail_here(r, "expected the row placement above it");
    if (s->worker_count == s->ranks * s->replicas)
        return 0;
    return dp_fail(DP_EINVAL, "%s:%d: end: %d workers above it, expected %d, one for each rank of each "
                              "replica", r->lines.name, r->lines.number, s->worker_count,
                   s->ranks * s->replicas);
}

/* ---- the file --------------------------------------------------------------------------------- */

struct field {
    const char *key;
    const char *(*read)(struct reader *r, const char *value, void *member);
    size_t offset; /* of the member in the item of the row */
};

#define AT(type, member) offsetof(struct type, member)

static const struct row {
    const char *name;
    void *(*begin)(struct reader *r); /* the item; NULL: no memory */
    int (*check)(struct reader *r, void *item);
    struct field fields[FIELDS_MAX];
} rows[] = {
    {"placement", begin_placement, check_placement,
     {{"ranks", read_int, AT(dp_assignment, ranks)},
      {"replicas", read_int, AT(dp_assignment, replicas)},
      {"intra_gbs", read_number, AT(dp_assignment, intra_gbs)},
      {"inter_gbs", read_number, AT(dp_assignment, inter_gbs)},
      {"nodes", read_int, AT(dp_assignment, node_total)}}},
    {"node", begin_node, check_node,
     {{"id", read_int, AT(dp_assigned_node, id)},
      {"kind", read_text, AT(dp_assigned_node, kind)},
      {"label", read_text, AT(dp_assigned_node, label)},
      {"host", read_text, AT(dp_assigned_node, host)},
      {"pci", read_text, AT(dp_assigned_node, pci)},
      {"cpus", read_text, AT(dp_assigned_node, cpus)},
      {"os_index", read_int, AT(dp_assigned_node, os_index)}}},
    {"port", begin_port, check_port,
     {{"number", read_int, AT(dp_assigned_port, number)},
      {"rdma", read_text, AT(dp_assigned_port, rdma)},
      {"net", read_text, AT(dp_assigned_port, net)}}},
    {"worker", begin_worker, check_worker,
     {{"replica", read_int, AT(dp_assigned_worker, replica)},
      {"rank", read_int, AT(dp_assigned_worker, rank)},
      {"gpu", read_int, AT(dp_assigned_worker, gpu)},
      {"came_as", read_int, AT(dp_assigned_worker, process)},
      {"memory", read_int, AT(dp_assigned_worker, memory)},
      {"nics", read_nics, 0},
      {"qps", read_qps, 0}}},
    {"flow", begin_flow, check_flow,
     {{"kind", read_flow_kind, AT(dp_assigned_flow, kind)},
      {"from", read_int, AT(dp_assigned_flow, from)},
      {"to", read_int, AT(dp_assigned_flow, to)},
      {"bytes", read_number, AT(dp_assigned_flow, bytes)},
      {"nic_from", read_int, AT(dp_assigned_flow, nic_from)},
      {"nic_to", read_int, AT(dp_assigned_flow, nic_to)},
      {"rail", read_int, AT(dp_assigned_flow, rail)},
      {"traffic_class", read_int, AT(dp_assigned_flow, traffic_class)}}},
    {"end", begin_end, check_end, {{NULL, NULL, 0}}},
};
enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

static int refuse_key(const struct reader *r, const struct row *row, const char *key)
{
    const char *keys[FIELDS_MAX];
    size_t count = 0;

    for (; row->fields[count].key; count++)
        keys[count] = row->fields[count].key;
    const char *near = count ? dp_nearest(key, keys, count) : NULL;
    return dp_fail(DP_EINVAL, "%s:%d: %s: '%.40s' is no key of such a row%s%s%s", r->lines.name,
                   r->lines.number, r->row, key, near ? "; did you mean " : "", near ? near : "",
                   near ? "?" : "");
}

static int read_field(struct reader *r, const struct row *row, char *field, void *item, unsigned *seen)
{
    char *equals = strchr(field, '=');
    size_t i = 0;

    if (!equals)
        return dp_fail(DP_EINVAL, "%s:%d: %s: '%.40s', expected KEY=VALUE", r->lines.name,
                       r->lines.number, r->row, field);
    *equals = '\0';
    while (row->fields[i].key && strcmp(field, row->fields[i].key))
        i++;
    if (!row->fields[i].key)
        return refuse_key(r, row, field);
    if (*seen & 1u << i)
        return dp_fail(DP_EINVAL, "%s:%d: %s: %s twice, expected once", r->lines.name,
                       r->lines.number, r->row, field);
    *seen |= 1u << i;
    const char *expected = row->fields[i].read(r, equals + 1, (char *)item + row->fields[i].offset);
    if (expected)
        return dp_fail(DP_EINVAL, "%s:%d: %s: %s: '%.40s', expected %s", r->lines.name,
                       r->lines.number, r->row, field, equals + 1, expected);
    return 0;
}

static int no_memory(const struct reader *r)
{
    return dp_fail(DP_ENOMEM, "%s: no memory for the placement", r->lines.name);
}

static int read_row(struct reader *r, char *line)
{
    const struct row *row = rows;
    unsigned seen = 0;
    int err = 0;

    r->row = strsep(&line, " \t");
    while (row < rows + ROWS && strcmp(row->name, r->row))
        row++;
    if (row == rows + ROWS || r->has_end)
        return dp_fail(DP_EINVAL, "%s:%d: '%.40s', expected %s", r->lines.name, r->lines.number, r->row,
                       r->has_end ? "nothing behind the row end"
                                  : "placement, node, port, worker, flow or end");
    void *item = row->begin(r);
    if (!item)
        return no_memory(r);
    for (char *field; !err && (field = strsep(&line, " \t"));)
        err = *field ? read_field(r, row, field, item, &seen) : 0;
    if (!err && r->text.failed)
        return no_memory(r);
    r->s->text = r->text.data; /* moves as it grows; until the end it is the reader's */
    return err ? err : row->check(r, item);
}

static int read_rows(struct reader *r)
{
    char *line;
    int err = dp_lines_next(&r->lines, &line);

    if (!err && (!line || strcmp(line, version)))
        return dp_fail(DP_EINVAL,
                       "%s:%d: '%.40s', expected '%s', as `dualpipe topo place -f assignment` begins",
                       r->lines.name, r->lines.number + !line, line ? line : "", version);
    while (!err && line) {
        err = dp_lines_next(&r->lines, &line);
        if (!err && line)
            err = read_row(r, line);
    }
    if (!err && !r->has_end)
        err = dp_fail(DP_EINVAL, "%s: no row end, expected all of the file", r->lines.name);
    return err;
}

/* Every process has one worker. */
static int check_processes(const struct dp_assignment *s)
{
    bool *is_taken = calloc((size_t)s->worker_count, sizeof(*is_taken));
    int err = is_taken ? 0 : dp_fail(DP_ENOMEM, "%s: no memory for %d workers", s->name,
                                     s->worker_count);

    for (int32_t w = 0; !err && w < s->worker_count; w++) {
        const int32_t process = s->workers[w].process;
        if (process < 0 || process >= s->worker_count || is_taken[process])
            err = dp_fail(DP_EINVAL, "%s: worker %d: came_as: %d, expected each of 0 to %d once",
                          s->name, w, process, s->worker_count - 1);
        else
            is_taken[process] = true;
    }
    free(is_taken);
    return err;
}

int dp_assignment_read(const char *text, size_t len, const char *name, struct dp_assignment **out)
{
    struct reader r = {.s = NULL};
    int err = dp_lines_begin(&r.lines, text, len, name, "dualpipe topo place --convert");

    if (err)
        return err;
    r.s = calloc(1, sizeof(*r.s));
    if (!r.s || !(r.s->name = strdup(name)))
        err = no_memory(&r);
    dp_text_add(&r.text, "", 1); /* the empty string, at 0 */
    if (!err && len > UINT32_MAX)
        err = dp_fail(DP_EINVAL, "%s: expected less text than 4 GiB", name);
    if (!err)
        err = read_rows(&r);
    if (!err)
        err = check_processes(r.s);
    if (r.s)
        r.s->text = NULL;
    if (!err)
        err = dp_text_take(&r.text, &r.s->text, NULL);
    dp_text_fini(&r.text);
    if (err)
        dp_assignment_free(r.s);
    else
        *out = r.s;
    return err;
}
