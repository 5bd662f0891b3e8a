/* SPDX-License-Identifier: Apache-2.0
 *
 * export.c - `dualpipe topo json` and `nccl-xml`: a topology as files for others.
 */
#include "command.h"
#include "commands.h"
#include "topo/topo.h"

#include <stdlib.h>

struct export_args {
    struct topo_args common;
    const char *host, *map;
};

static int put_form(const struct dp_topology *t, enum dp_topology_format format, FILE *to)
{
    char *text;
    size_t len;
    int err = dp_topology_write(t, format, &text, &len);

    if (err)
        return err;
    fwrite(text, 1, len, to);
    free(text);
    return topo_finish(to);
}

/* ---- json ----------------------------------------------------------------------------------- */

static int write_json(const void *values, const struct operands *operands,
                      const struct dp_topology *t, FILE *to)
{
    (void)values, (void)operands;
    return put_form(t, DP_TOPOLOGY_JSON, to);
}

int run_topo_json(int argc, char **argv)
{
    const struct arg_group groups[] = {topo_source_group, {0}};
    const struct usage usage = {
        .command = "dualpipe topo json", .groups = groups,
        .about = "Write all of the topology as JSON, which --topology reads. Its members are\n"
                 "described in dualpipe-topo(1).",
        .examples = "  dualpipe topo json -o here.json\n"
                    "  dualpipe topo json --topology a.json --topology b.json -o cluster.json\n"
                    "  dualpipe topo json --synthetic hgx-a100 | jq '.nodes | length'\n",
    };
    struct topo_args a = {.format = NULL};

    return topo_run(&usage, argc, argv, &a, write_json);
}

/* ---- one host ------------------------------------------------------------------------------- */

/* The host that was asked for, else the first, alone. */
static int take_host(const struct export_args *a, const struct dp_topology *t, struct dp_topology **out)
{
    int32_t host;
    int err = topo_find_host(t, a->host, &host);

    return err ? err : dp_topology_take_host(t, host, out);
}

/* Put a machine as a guest sees it in its place. */
static int remap(const char *path, struct dp_topology **t)
{
    struct dp_topology *seen;
    size_t len;
    char *map = topo_read_file(path, &len);

    if (!map)
        return DP_EINVAL;
    command_mute(true);
    int err = dp_topology_remap(*t, map, &seen);
    free(map);
    command_read(path, err);
    if (err)
        return err;
    dp_topology_free(*t);
    *t = seen;
    return 0;
}

static int write_nccl(const void *values, const struct operands *operands,
                      const struct dp_topology *t, FILE *to)
{
    const struct export_args *a = values;
    struct dp_topology *host;
    int err = take_host(a, t, &host);

    (void)operands;
    if (err)
        return err;
    if (a->map)
        err = remap(a->map, &host);
    if (!err)
        err = put_form(host, DP_TOPOLOGY_NCCL_XML, to);
    dp_topology_free(host);
    return err;
}

#define AT(member) .offset = offsetof(struct export_args, member)

static const struct arg args[] = {
    {"host", 0, "NAME", "this host (default: the first)", ARG_STRING, AT(host)},
    {"map", 'm', "FILE", "lines of a device here and its PCI address in a guest", ARG_STRING, AT(map)},
};

int run_topo_nccl_xml(int argc, char **argv)
{
    const struct arg_group groups[] = {topo_source_group, ARG_GROUP("output", args), {0}};
    const struct usage usage = {
        .command = "dualpipe topo nccl-xml", .groups = groups,
        .about = "Write a host as NCCL_TOPO_FILE wants it. With --map, write it as a virtual machine\n"
                 "on it needs it, whose PCI bus is shown flat: the map has a line for each device that\n"
                 "was passed on, its name here and its address there ('mlx5_3 0002:00:00.0'), and may\n"
                 "have one for each NUMA node ('numa0 0-47'). Other devices are left out.",
        .examples = "  dualpipe topo nccl-xml -o topo.xml\n"
                    "  dualpipe topo nccl-xml --synthetic dgx-h100\n"
                    "  dualpipe topo nccl-xml --map passed-on.txt -o guest.xml\n",
    };
    struct export_args a = {.host = NULL};

    return topo_run(&usage, argc, argv, &a, write_nccl);
}
