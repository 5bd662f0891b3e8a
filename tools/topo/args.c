/* SPDX-License-Identifier: Apache-2.0
 *
 * args.c - where a topology comes from.
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
const struct arg_group topo_source_group = {"topology (default: this machine)", source_args,
                                            sizeof(source_args) / sizeof(source_args[0])};

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
