/* SPDX-License-Identifier: Apache-2.0
 *
 * topo.c - `dualpipe topo COMMAND ...`: the table of its commands; without one, show.
 */
#include "topo/topo.h"

#include "command.h"
#include "commands.h"

#include <stdlib.h>
#include <string.h>

/* ---- json ----------------------------------------------------------------------------------- */

static int write_json(const void *values, const struct operands *operands,
                      const struct dp_topology *t, FILE *to)
{
    char *text;
    size_t len;
    int err = dp_topology_write(t, DP_TOPOLOGY_JSON, &text, &len);

    (void)values, (void)operands;
    if (err)
        return err;
    fwrite(text, 1, len, to);
    free(text);
    return topo_finish(to);
}

int run_topo_json(int argc, char **argv)
{
    const struct arg_group groups[] = {topo_source_group, {0}};
    const struct usage usage = {
        .command = "dualpipe topo json",
        .about = "Write all of the topology as JSON, which --input reads back. Its members are\n"
                 "described in dualpipe-topo(1).",
        .groups = groups,
        .examples = "  dualpipe topo json -o here.json\n"
                    "  dualpipe topo json --synthetic 'hgx-a100 host:8' | jq '.nodes | length'\n",
    };
    struct topo_args a = {.format = NULL};

    return topo_run(&usage, argc, argv, &a, write_json);
}

/* ---- the table ------------------------------------------------------------------------------ */

static const struct command commands[] = {
    {"show", "print hosts as trees (also without a command)", run_topo_show},
    {"matrix", "print how near devices are to one another, and how wide the ways are",
     run_topo_matrix},
    {"path", "print the way between two nodes", run_topo_path},
    {"place", "print which GPU should do whose work, and which ways its bytes should take",
     run_topo_place},
    {"nics", "print which NICs each GPU should use", run_topo_nics},
    {"json", "write all of it, for --input and for programs", run_topo_json},
    {0},
};

static const struct command_set set = {
    .name = "dualpipe topo",
    .about = "What is near what, and how wide is the way: this machine, a machine whose /sys was\n"
             "captured, or one that a few words describe.",
    .commands = commands,
    .examples = "  dualpipe topo\n"
                "  dualpipe topo matrix --synthetic dgx-h100\n"
                "  dualpipe topo path gpu0 nic3 --synthetic hgx-a100\n"
                "  dualpipe topo json -o here.json\n",
};

int run_topo(int argc, char **argv)
{
    bool is_command = argc > 1 && (argv[1][0] != '-' || !strcmp(argv[1], "-h") ||
                                   !strcmp(argv[1], "--help"));

    return is_command ? command_dispatch(&set, argc, argv) : run_topo_show(argc, argv);
}
