/* SPDX-License-Identifier: Apache-2.0
 *
 * smi_read.c - what `nvidia-smi topo -m` prints: for every two devices how near they are, which is
 * enough for a tree, but for rates and addresses.
 *
 *              GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
 *      GPU0     X      NV18    PIX     0-31            0               N/A
 *      GPU1    NV18     X      NODE    0-31            0               N/A
 *      NIC0    PIX     NODE     X
 *
 *      NIC Legend:
 *        NIC0: mlx5_0
 *
 * Columns are words, since tabs do not line up. Devices that are at most so far from each other are
 * a group, and groups lie in one another: PIX a switch, PXB switches below one, PHB a root, NODE a
 * NUMA node. GPUs that NVLink joins do not say how PCI joins them; others that are near both may.
 */
#include "config.h" /* strndup */

#include "base/fail.h"
#include "topology/build.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES_MAX = 128, WORDS_MAX = DEVICES_MAX + 8, NAME_LEN = 32, NVLINKS_MAX = 18 };

enum nearness { PIX, PXB, PHB, NODE, SYS, NEARNESSES };
static const char *const nearness_names[NEARNESSES + 1] = {"PIX",  "PXB", "PHB",
                                                           "NODE", "SYS", NULL};

struct device {
    char name[NAME_LEN];    /* "GPU0", "NIC0" */
    char product[NAME_LEN]; /* of a NIC, "mlx5_0" where the legend says it; "" */
    bool is_gpu, has_row;
    uint32_t cpus;             /* text; 0: not said */
    int numa, memory_node;     /* -1: not said */
    int32_t group[NEARNESSES]; /* its first device, one for each nearness */
    int32_t node;
};

struct reader {
    struct dp_topo_builder b;
    struct device devices[DEVICES_MAX];
    int32_t count;
    int line;
    uint8_t nvlinks[DEVICES_MAX][DEVICES_MAX];
    int32_t host;
    int32_t nodes[NEARNESSES][DEVICES_MAX]; /* of each group, by its first device; -1: none yet */
};

/* ---- lines ---------------------------------------------------------------------------------- */

/* The words of a line, without the escapes that underline it on terminals. */
static int split(char *line, char *words[WORDS_MAX])
{
    int count = 0;
    char *rest = NULL;

    for (char *at; (at = strchr(line, '\033'));) { /* "\033[4m" */
        const size_t len = 1 + strspn(at + 1, "[0123456789;");
        memset(at, ' ', len + (at[len] != '\0'));
    }
    for (char *w = strtok_r(line, " \t\r", &rest); w && count < WORDS_MAX;
         w = strtok_r(NULL, " \t\r", &rest))
        words[count++] = w;
    return count;
}

static bool is_gpu(const char *word)
{
    return !strncmp(word, "GPU", 3) && isdigit((unsigned char)word[3]);
}

/* The line of names ends with "CPU Affinity" and more. */
static int read_names(struct reader *r, char *const *words, int count)
{
    for (int i = 0; i < count && strcmp(words[i], "CPU"); i++) {
        struct device *d = &r->devices[r->count];
        if (r->count == DEVICES_MAX || strlen(words[i]) >= NAME_LEN)
            return dp_fail(DP_EINVAL,
                           "line %d: more than %d devices, or a name of more than %d letters",
                           r->line, DEVICES_MAX, NAME_LEN - 1);
        *d = (struct device){.numa = -1, .memory_node = -1, .is_gpu = is_gpu(words[i]), .node = -1};
        strcpy(d->name, words[i]);
        for (int n = 0; n < NEARNESSES; n++)
            d->group[n] = r->count;
        r->count++;
    }
    return 0;
}

static int32_t find(const struct reader *r, const char *name)
{
    for (int32_t i = 0; i < r->count; i++)
        if (!strcmp(r->devices[i].name, name))
            return i;
    return -1;
}

/* Two groups of devices become one. */
static void unite(struct reader *r, int n, int32_t a, int32_t b)
{
    const int32_t x = r->devices[a].group[n], y = r->devices[b].group[n];

    for (int32_t i = 0; i < r->count; i++)
        if (r->devices[i].group[n] == (x > y ? x : y))
            r->devices[i].group[n] = x < y ? x : y;
}

static int read_cell(struct reader *r, int32_t row, int32_t column, const char *word)
{
    word = strcmp(word, "SOC") ? word : "SYS"; /* as old drivers say */
    const int near = dp_topo_name_index(word, strlen(word), nearness_names);
    char *end = NULL;
    const long nvlinks = strncmp(word, "NV", 2) ? 0 : strtol(word + 2, &end, 10);

    if (row == column && !strcmp(word, "X"))
        return 0;
    if (nvlinks > 0 && nvlinks < 256 && !*end) {
        r->nvlinks[row][column] = (uint8_t)nvlinks;
        return 0;
    }
    if (near < 0 || row == column)
        return dp_fail(DP_EINVAL,
                       "line %d: %s to %s: '%s', expected X, PIX, PXB, PHB, NODE, SYS or NV and a "
                       "number",
                       r->line, r->devices[row].name, r->devices[column].name, word);
    for (int n = near; n < SYS; n++)
        unite(r, n, row, column);
    return 0;
}

/* "0-31", "0", "N/A" behind the cells of a GPU. */
static void read_places(struct reader *r, struct device *d, char *const *words, int count)
{
    const char *of[3] = {"", "", ""};

    for (int i = 0; i < count && i < 3; i++)
        of[i] = isdigit((unsigned char)*words[i]) ? words[i] : "";
    d->cpus = dp_topo_add_text(&r->b, of[0]);
    d->numa = *of[1] ? atoi(of[1]) : -1;
    d->memory_node = *of[2] ? atoi(of[2]) : -1;
}

static int read_row(struct reader *r, int32_t row, char *const *words, int count)
{
    struct device *d = &r->devices[row];
    int err = 0;

    if (count < r->count)
        return dp_fail(DP_EINVAL, "line %d: %d columns of %s, expected %d", r->line, count, d->name,
                       r->count);
    d->has_row = true;
    for (int32_t i = 0; i < r->count && !err; i++)
        err = read_cell(r, row, i, words[i]);
    if (d->is_gpu)
        read_places(r, d, words + r->count, count - r->count);
    return err;
}

static int read_line(struct reader *r, char *line)
{
    char *words[WORDS_MAX];
    const int count = split(line, words);
    const int32_t row = count ? find(r, words[0]) : -1;

    r->line++;
    if (!r->count)
        return count && is_gpu(words[0]) ? read_names(r, words, count) : 0;
    if (row >= 0 && !r->devices[row].has_row)
        return read_row(r, row, words + 1, count - 1);
    if (count == 2 && words[0][strlen(words[0]) - 1] == ':') { /* "NIC0: mlx5_0" */
        words[0][strlen(words[0]) - 1] = '\0';
        const int32_t nic = find(r, words[0]);
        if (nic >= 0 && strlen(words[1]) < NAME_LEN)
            strcpy(r->devices[nic].product, words[1]);
    }
    return 0;
}

/* ---- the tree ------------------------------------------------------------------------------- */

/* What a group says of itself where one of its devices does. */
static const struct device *told_by(const struct reader *r, int32_t group)
{
    const struct device *first = &r->devices[group];

    for (int32_t i = 0; i < r->count; i++)
        if (r->devices[i].group[NODE] == group && r->devices[i].numa >= 0)
            return &r->devices[i];
    return first;
}

static int32_t count_in(const struct reader *r, int n, int32_t group)
{
    int32_t count = 0;

    for (int32_t i = 0; i < r->count; i++)
        count += r->devices[i].group[n] == group;
    return count;
}

static int32_t numa_of(struct reader *r, int32_t group)
{
    const struct device *d = told_by(r, group);

    for (int32_t i = r->host + 1; i < r->b.t.node_count; i++)
        if (r->b.t.nodes[i].kind == DP_TOPO_NUMA && r->b.t.nodes[i].os_index == d->numa &&
            d->numa >= 0)
            return i;
    int32_t numa = dp_topo_add_node(&r->b, DP_TOPO_NUMA, r->host);
    dp_topo_node(&r->b, numa)->os_index = d->numa;
    dp_topo_node(&r->b, numa)->cpus = d->cpus;
    return numa;
}

static int32_t add(struct reader *r, enum dp_topo_kind kind, int32_t parent)
{
    const int32_t node = dp_topo_add_node(&r->b, kind, parent);

    if (kind == DP_TOPO_ROOT)
        dp_topo_add_link(&r->b, DP_TOPO_MESH, parent, node, 0);
    else
        dp_topo_add_pci_link(&r->b, parent, node, 0, 0, 0, 0);
    return node;
}

/* The node of the group of a nearness that the device is in. A group of PXB is a switch only where
 * it holds several of PIX, and one of PIX only where it holds several devices or lies in such a
 * switch. */
static int32_t group_node(struct reader *r, int32_t device, int n)
{
    const int32_t group = r->devices[device].group[n],
                  inner = n ? r->devices[device].group[n - 1] : 0;
    int32_t *node = &r->nodes[n][group];

    if (n == NODE && *node < 0)
        return *node = numa_of(r, group);
    if (*node >= 0)
        return *node;
    const int32_t parent = group_node(r, device, n + 1);
    const bool is_switch = n == PXB ? count_in(r, PXB, group) > count_in(r, PIX, inner)
                                    : count_in(r, PIX, group) > 1 ||
                                          dp_topo_node(&r->b, parent)->kind == DP_TOPO_SWITCH;
    *node = n == PHB    ? add(r, DP_TOPO_ROOT, parent)
            : is_switch ? add(r, DP_TOPO_SWITCH, parent)
                        : parent;
    return *node;
}

static void add_device(struct reader *r, int32_t i)
{
    struct device *d = &r->devices[i];

    d->node = add(r, d->is_gpu ? DP_TOPO_GPU : DP_TOPO_NIC, group_node(r, i, PIX));
    const uint32_t name =
        dp_topo_add_text(&r->b, *d->product || !strncmp(d->name, "NIC", 3) ? d->product : d->name);
    struct dp_topo_node *n = dp_topo_node(&r->b, d->node);
    if (d->is_gpu) {
        n->os_index = atoi(d->name + 3);
        n->memory_node = d->memory_node;
    } else
        n->name = name;
}

/* Every two GPUs have their own links, or, where that would be more links than a GPU has, each has
 * as many to a switch. */
static void join_gpus(struct reader *r)
{
    int32_t hub = -1;

    for (int32_t i = 0; i < r->count && !r->b.failed; i++) {
        int sum = 0, most = 0;
        for (int32_t k = 0; k < r->count; k++) {
            sum += r->nvlinks[i][k];
            most = r->nvlinks[i][k] > most ? r->nvlinks[i][k] : most;
        }
        const bool is_switched = sum > NVLINKS_MAX;
        if (is_switched && hub < 0)
            hub = dp_topo_add_node(&r->b, DP_TOPO_NVSWITCH, r->host);
        for (int32_t k = is_switched ? i : i + 1; k < (is_switched ? i + 1 : r->count); k++) {
            const int count = is_switched ? most : r->nvlinks[i][k];
            if (!count)
                continue;
            struct dp_topo_link *l = dp_topo_add_link(&r->b, DP_TOPO_NVLINK, r->devices[i].node,
                                                      is_switched ? hub : r->devices[k].node, 0);
            l->count = count;
            l->flags = DP_TOPO_RATE_UNKNOWN;
        }
    }
}

/* ---- all of it ------------------------------------------------------------------------------ */

static int read_lines(struct reader *r, char *text)
{
    int err = 0;

    for (char *end; *text && !err; text = end) {
        end = text + strcspn(text, "\n");
        if (*end)
            *end++ = '\0';
        err = read_line(r, text);
    }
    if (!err && !r->count)
        err = dp_fail(DP_EINVAL, "no line of names that begins with GPU0");
    for (int32_t i = 0; i < r->count && !err; i++)
        if (!r->devices[i].has_row)
            err = dp_fail(DP_EINVAL, "there is no row of %s, expected one of each device",
                          r->devices[i].name);
    return err;
}

static void build(struct reader *r)
{
    memset(r->nodes, -1, sizeof(r->nodes));
    for (int32_t i = 0; i < r->count && !r->b.failed; i++)
        add_device(r, i);
    join_gpus(r);
    dp_topo_join_numas(&r->b, r->host);
    dp_topo_add_note(&r->b, DP_TOPO_MISSING, r->host,
                     "nvidia-smi says neither PCI addresses nor rates, of NICs "
                     "only their devices, and of GPUs with NVLink not how PCI joins them");
}

int dp_topo_read_smi(const char *text, size_t len, struct dp_topology **out)
{
    struct reader *r = calloc(1, sizeof(*r));
    char *copy = strndup(text, len);
    int err = r && copy ? 0 : dp_fail(DP_ENOMEM, "no memory for the text of nvidia-smi");

    if (!err) {
        r->host = dp_topo_add_node(&r->b, DP_TOPO_HOST, -1);
        err = read_lines(r, copy);
    }
    if (!err) {
        build(r);
        err = dp_topo_finish(&r->b, out);
    } else if (r) {
        dp_topo_builder_fini(&r->b);
    }
    free(copy);
    free(r);
    return err;
}
