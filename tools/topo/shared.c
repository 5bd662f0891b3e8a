/* SPDX-License-Identifier: Apache-2.0
 *
 * shared.c - what the commands of `dualpipe topo` share: where a topology comes from, words for what it
 * says, and hosts that are alike: a thousand hosts are mostly one host a thousand times.
 */
#include "command.h"
#include "files.h"
#include "topo/topo.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define AT(member) .offset = offsetof(struct topo_args, member)

static const struct arg source_args[] = {
    {"topology", 't', "FILE",
     "JSON, XML, nvidia-smi topo -m, a description (- for stdin); several: a cluster", ARG_LIST,
     AT(inputs), .old_name = "input", .old_letter = 'i'},
    {"hwloc", 0, NULL, "this machine as hwloc sees it, instead of as /sys describes it", ARG_FLAG,
     AT(hwloc)},
    {"sysfs", 0, "DIR", "a machine whose /sys (and /proc) was captured below DIR", ARG_STRING,
     AT(sysfs)},
    {"synthetic", 's', "STR", "a description such as 'dgx-h100 host:4' or 'numa:2 gpu:4'",
     ARG_STRING, AT(synthetic), .offer = args_offer_presets},
    {"output", 'o', "FILE", "where to (default standard output)", ARG_STRING, AT(output),
     .written = true},
};
const struct arg_group topo_source_group = ARG_GROUP("topology (default: this machine)", source_args);

/* ---- loading -------------------------------------------------------------------------------- */

char *topo_read_file(const char *path, size_t *len)
{
    char *text = input_read(path, INPUT_MOST, len);

    if (!text)
        command_misused("cannot read %s: %s", path, input_error(errno));
    return text;
}

int topo_load_file(const char *path, struct dp_topology **out)
{
    size_t len;
    char *text = topo_read_file(path, &len);

    if (!text)
        return EXIT_USAGE;
    command_mute(true);
    int err = dp_topology_read(text, len, DP_TOPOLOGY_AUTO, out);
    free(text);
    return command_read(path, err);
}

/* Several files are the hosts of a cluster. */
static int load_files(const struct arg_list *files, struct dp_topology **out)
{
    struct dp_topology *parts[ARG_LIST_MAX] = {NULL};
    int status = 0, err;

    if (files->count == 1)
        return topo_load_file(files->items[0], out);
    for (size_t i = 0; i < files->count && !status; i++)
        status = topo_load_file(files->items[i], &parts[i]);
    if (!status && (err = dp_topology_merge((const struct dp_topology *const *)parts, files->count,
                                            out)))
        status = command_failed(err);
    for (size_t i = 0; i < files->count; i++)
        dp_topology_free(parts[i]);
    return status;
}

int topo_load(const struct topo_args *a, struct dp_topology **out)
{
    int sources = !!a->inputs.count + !!a->sysfs + !!a->synthetic + a->hwloc;
    int err;

    if (sources > 1)
        return command_misused("expected one of --topology, --sysfs, --synthetic and --hwloc");
    if (a->inputs.count)
        return load_files(&a->inputs, out);
    if (a->synthetic)
        err = dp_topology_new_synthetic(a->synthetic, out);
    else if (a->hwloc)
        err = dp_topology_read_hwloc(out);
    else
        err = dp_topology_read_sysfs(a->sysfs ? a->sysfs : "", out);
    return err ? command_failed(err) : 0;
}

int topo_find_host(const struct dp_topology *t, const char *name, int32_t *host)
{
    int32_t node = 0;
    int err = name ? dp_topology_find(t, name, &node) : 0;

    if (!err && t->nodes[node].host < 0) {
        command_misused("--host %s: is a %s, expected a host", name,
                        dp_name(DP_NAMES_NODE, t->nodes[node].kind));
        return DP_EINVAL;
    }
    if (!err)
        *host = t->nodes[node].host;
    return err;
}

/* ---- running -------------------------------------------------------------------------------- */

int topo_finish(FILE *to)
{
    return fflush(to) || ferror(to) ? DP_EIO : 0;
}

int topo_run(const struct usage *usage, int argc, char **argv, void *values, topo_write_fn write)
{
    const struct topo_args *a = values; /* every values struct begins with one */
    struct operands operands;
    struct dp_topology *t = NULL;
    struct output out;
    int status;

    if (!args_parse(usage, argc, argv, values, &operands, &status))
        return status;
    status = a->convert ? 0 : topo_load(a, &t);
    if (status)
        return status;
    status = output_open(a->output, &out);
    if (!status)
        status = output_close(&out, write(values, &operands, t, out.file));
    dp_topology_free(t);
    return status;
}

const char *topo_rate(const struct dp_topo_link *l, char out[TOPO_WORD])
{
    if (l->flags & DP_TOPO_RATE_UNKNOWN)
        snprintf(out, TOPO_WORD, "unknown rate");
    else if (l->bytes_per_ns <= 0)
        snprintf(out, TOPO_WORD, "unlimited");
    else
        snprintf(out, TOPO_WORD, "%s%.3g GB/s", l->flags & DP_TOPO_RATE_ASSUMED ? "~" : "",
                 l->bytes_per_ns);
    return out;
}

static void describe_pci(const struct dp_topo_link *l, char out[TOPO_WORD])
{
    int len = l->gen ? snprintf(out, TOPO_WORD, "PCIe %d.0 x%d", l->gen, l->width)
                     : snprintf(out, TOPO_WORD, "PCIe");

    if (l->flags & DP_TOPO_DEGRADED)
        snprintf(out + len, TOPO_WORD - (size_t)len, " (could be %d.0 x%d)",
                 l->gen_max ? l->gen_max : l->gen, l->width_max ? l->width_max : l->width);
}

const char *topo_link(const struct dp_topo_link *l, char out[TOPO_WORD])
{
    int len;

    switch (l->kind) {
    case DP_TOPO_PCI:
        describe_pci(l, out);
        break;
    case DP_TOPO_NVLINK:
        len = snprintf(out, TOPO_WORD, "%d NVLink%s", l->count, l->count == 1 ? "" : "s");
        if (l->gen)
            snprintf(out + len, TOPO_WORD - (size_t)len, " of version %d", l->gen);
        break;
    case DP_TOPO_XGMI:
        snprintf(out, TOPO_WORD, "%d xGMI link%s", l->count, l->count == 1 ? "" : "s");
        break;
    case DP_TOPO_C2C:
        snprintf(out, TOPO_WORD, "C2C");
        break;
    case DP_TOPO_CPU:
        snprintf(out, TOPO_WORD, "between NUMA nodes");
        break;
    case DP_TOPO_NET:
        snprintf(out, TOPO_WORD, "network");
        break;
    default:
        snprintf(out, TOPO_WORD, "in the CPU");
    }
    return out;
}

const char *topo_size(uint64_t bytes, char out[TOPO_WORD])
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;

    while (value >= 1024 && unit < 4) {
        value /= 1024;
        unit++;
    }
    snprintf(out, TOPO_WORD, value < 99.5 ? "%.3g %s" : "%.0f %s", value, units[unit]);
    return out;
}

const char *topo_class(const struct dp_topo_path *p, char out[TOPO_WORD])
{
    if (p->class_ == DP_TOPO_NV || p->class_ == DP_TOPO_XG)
        snprintf(out, TOPO_WORD, "%s%d", dp_name(DP_NAMES_PATH, p->class_), p->nvlinks);
    else
        snprintf(out, TOPO_WORD, "%s", dp_name(DP_NAMES_PATH, p->class_));
    return out;
}

const char *topo_nic(const struct dp_topology *t, int32_t nic, char label[DP_TOPO_LABEL_LEN])
{
    const char *name = dp_topology_text(t, t->nodes[nic].name);

    return *name ? name : dp_topology_label(t, nic, label);
}

const char *topo_port(const struct dp_topo_port *p, char out[TOPO_WORD])
{
    static const char *const fabrics[] = {"Ethernet", "InfiniBand", "unknown fabric"};

    if (p->bytes_per_ns > 0)
        snprintf(out, TOPO_WORD, "%.4g Gb/s %s", 8 * p->bytes_per_ns, fabrics[p->fabric]);
    else
        snprintf(out, TOPO_WORD, "%s of unknown rate", fabrics[p->fabric]);
    return out;
}

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
