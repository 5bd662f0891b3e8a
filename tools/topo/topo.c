/* SPDX-License-Identifier: Apache-2.0
 *
 * topo.c - `dualpipe topo COMMAND ...`: the table of its commands; without one, show.
 */
#include "topo/topo.h"

#include "command.h"
#include "commands.h"

#include <string.h>

/* ---- the table ------------------------------------------------------------------------------ */

static const struct command commands[] = {
    {"show", "print hosts as trees (also without a command)", run_topo_show},
    {"matrix", "print how near devices are to one another, and how wide the routes are",
     run_topo_matrix},
    {"path", "print the route between two nodes", run_topo_path},
    {"place", "print which GPU should do whose work, and which routes its bytes should take",
     run_topo_place},
    {"nics", "print which NICs each GPU should use", run_topo_nics},
    {"diff", "print in what two topologies differ", run_topo_diff},
    {"json", "write all of it, for --topology and for programs", run_topo_json},
    {"nccl-xml", "write a host for NCCL_TOPO_FILE, also as a guest on it sees it", run_topo_nccl_xml},
    {"svg", "draw hosts for a report, with the routes that are asked for", run_topo_svg},
    {0},
};

static const struct command_set set = {
    .name = "dualpipe topo",
    .about = "What is near what, and how wide the routes are: this machine, a machine whose /sys was\n"
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

    return is_command || command_completes ? command_dispatch(&set, argc, argv)
                                           : run_topo_show(argc, argv);
}
