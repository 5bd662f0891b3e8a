/* SPDX-License-Identifier: Apache-2.0 */
#include "command.h"

#include <dualpipe/dualpipe.h>
#include <dualpipe/options.h>

#include <stdio.h>
#include <string.h>

enum { MAX_COMMANDS = 32 };

/* ---- messages ------------------------------------------------------------------------------ */

/* The error printed last in this thread: command_failed does not say it again. */
static _Thread_local char printed[1024];

static void print_message(void *user, enum dp_log_level level, const char *line)
{
    static const char *const words[] = {"", "warning: ", "info: ", "debug: "};

    (void)user;
    fprintf(stderr, "dualpipe: %s%s\n", words[level], line);
    if (level == DP_LOG_ERROR)
        snprintf(printed, sizeof(printed), "%s", line);
}

void command_open(void)
{
    dp_log_set(print_message, NULL, DP_LOG_DEFAULT);
}

int command_close(int status)
{
    if (!fflush(stdout) && !ferror(stdout))
        return status;
    fprintf(stderr, "dualpipe: cannot write to standard output: %s\n", strerror(errno));
    return status == EXIT_OK ? EXIT_FAILED : status;
}

int command_failed(int err)
{
    const char *why = dp_last_error();

    if (strcmp(why, printed))
        fprintf(stderr, "dualpipe: %s\n", *why ? why : dp_strerror(err));
    return err == DP_EINVAL || err == DP_ENOENT ? EXIT_USAGE : EXIT_FAILED;
}

int command_misused(const char *fmt, ...)
{
    char line[1024];
    va_list args;

    va_start(args, fmt);
    vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    fprintf(stderr, "dualpipe: %s\n", line);
    return EXIT_USAGE;
}

/* ---- finding the command ------------------------------------------------------------------- */

static void print_set(const struct command_set *set, FILE *to)
{
    fprintf(to, "usage: %s COMMAND [OPTION...]\n\n%s\n\ncommands:\n", set->name, set->about);
    for (const struct command *c = set->commands; c->name; c++)
        fprintf(to, "  %-10s %s\n", c->name, c->summary);
    fprintf(to, "\nexamples:\n%s\n'%s COMMAND --help' explains one command.\n", set->examples,
            set->name);
}

static int no_such_command(const struct command_set *set, const char *name)
{
    const char *names[MAX_COMMANDS];
    size_t count = 0;

    for (const struct command *c = set->commands; c->name && count < MAX_COMMANDS; c++)
        names[count++] = c->name;
    const char *near = dp_nearest(name, names, count);
    if (near)
        return command_misused("'%s' is no command of '%s'; did you mean '%s'?", name, set->name,
                               near);
    return command_misused("'%s' is no command of '%s'; '%s --help' lists them", name, set->name,
                           set->name);
}

int command_dispatch(const struct command_set *set, int argc, char **argv)
{
    if (argc < 2)
        return command_misused("'%s' needs a command; '%s --help' lists them", set->name,
                               set->name);
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        print_set(set, stdout);
        return EXIT_OK;
    }
    for (const struct command *c = set->commands; c->name; c++)
        if (!strcmp(argv[1], c->name))
            return c->run(argc - 1, argv + 1);
    return no_such_command(set, argv[1]);
}
