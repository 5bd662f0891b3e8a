/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c - `dualpipe COMMAND ...`: finds the sub-command and hands over.
 */
#include "command.h"

#include <dualpipe/dualpipe.h>

#include <stdio.h>
#include <string.h>

static const struct command commands[] = {
    {NULL, NULL, NULL},
};

static void print_help(FILE *to)
{
    fprintf(to, "usage: dualpipe COMMAND [OPTION...]\n\n");
    for (const struct command *c = commands; c->name; c++)
        fprintf(to, "  %-10s %s\n", c->name, c->summary);
    fprintf(to, "\n'dualpipe COMMAND --help' explains one. dualpipe %s\n", dp_version());
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return EXIT_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "help")) {
        print_help(stdout);
        return EXIT_OK;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("dualpipe %s\n", dp_version());
        return EXIT_OK;
    }
    for (const struct command *c = commands; c->name; c++)
        if (!strcmp(argv[1], c->name))
            return c->run(argc - 1, argv + 1);
    fprintf(stderr, "dualpipe: no command '%s'; 'dualpipe --help' lists them\n", argv[1]);
    return EXIT_USAGE;
}
