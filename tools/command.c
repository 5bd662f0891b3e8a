/* SPDX-License-Identifier: Apache-2.0 */
#include "command.h"

#include <dualpipe/dualpipe.h>
#include <dualpipe/options.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { MAX_COMMANDS = 32 };

/* ---- messages ------------------------------------------------------------------------------- */

/* What has been printed in this thread: the library's last error, and whether there was anything.
 * command_failed does not say it again. */
static _Thread_local char printed[1024];
static _Thread_local bool said;

static void (*explainer)(void *user, const char *line, char *more, size_t room);
static void *explainer_user;

void command_explain(void (*explain)(void *user, const char *line, char *more, size_t room), void *user)
{
    explainer = explain;
    explainer_user = user;
}

static void print_line(const char *word, const char *line)
{
    char more[1024] = "";

    if (explainer)
        explainer(explainer_user, line, more, sizeof(more));
    fprintf(stderr, "dualpipe: %s%s%s\n", word, line, more);
}

static void print_message(void *user, enum dp_log_level level, const char *line)
{
    static const char *const words[] = {"", "warning: ", "info: ", "debug: "};

    (void)user;
    print_line(words[level], line);
    if (level == DP_LOG_ERROR) {
        snprintf(printed, sizeof(printed), "%s", line);
        said = true;
    }
}

static void drop_message(void *user, enum dp_log_level level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
}

void command_mute(bool muted)
{
    dp_log_set(muted ? drop_message : print_message, NULL, DP_LOG_DEFAULT);
}

/* A file or a socket must not take the number of a standard stream that is closed: what is printed would
 * go there. Opened in the direction that it is not used in, the stream fails as before; what is executed
 * finds it closed. */
static void occupy_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", (fd ? O_RDONLY : O_WRONLY) | O_CLOEXEC) != fd)
            _exit(EXIT_FAILED);
}

void command_open(void)
{
    occupy_standard_streams();
    command_mute(false);
}

int command_flush(void)
{
    static int lost;

    if ((fflush(stdout) || ferror(stdout)) && !lost)
        lost = errno ? errno : EIO;
    return lost;
}

int command_close(int status)
{
    const int error = command_flush();

    if (!error)
        return status;
    fprintf(stderr, "dualpipe: cannot write to standard output: %s\n", strerror(error));
    return EXIT_FAILED;
}

int command_failed(int err)
{
    const char *why = dp_last_error();

    if (*why && strcmp(why, printed))
        fprintf(stderr, "dualpipe: %s\n", why);
    else if (!said)
        fprintf(stderr, "dualpipe: %s\n", dp_strerror(err));
    return err == DP_EINVAL || err == DP_ENOENT ? EXIT_USAGE : EXIT_FAILED;
}

DP_PRINTF(1, 0) static void complain(const char *fmt, va_list args)
{
    char line[1024];

    vsnprintf(line, sizeof(line), fmt, args);
    print_line("", line);
    snprintf(printed, sizeof(printed), "%s", dp_last_error());
    said = true;
}

int command_misused(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    complain(fmt, args);
    va_end(args);
    return EXIT_USAGE;
}

int command_broke(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    complain(fmt, args);
    va_end(args);
    return EXIT_FAILED;
}

bool refuse_if(bool is_wrong, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    if (is_wrong)
        complain(fmt, args);
    va_end(args);
    return is_wrong;
}

int command_read(const char *path, int err)
{
    const char *name = strcmp(path, "-") ? path : "standard input";

    command_mute(false);
    if (!err)
        return 0;
    return err == DP_EINVAL ? command_misused("%s: %s", name, dp_last_error())
                            : command_broke("%s: %s", name, dp_last_error());
}

/* ---- completion ----------------------------------------------------------------------------- */

bool command_completes;

void command_offer(const char *word, const char *what)
{
    printf("%s%s%.*s\n", word, what ? "\t" : "", what ? (int)strcspn(what, "\n") : 0,
           what ? what : "");
}

static int offer_commands(const struct command_set *set, int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[1], "help"))
        return offer_commands(set, argc - 1, argv + 1);
    for (const struct command *c = set->commands; c->name; c++) {
        if (argc > 2 && !strcmp(argv[1], c->name))
            return c->run(argc - 1, argv + 1);
        if (argc == 2 && *argv[1] != '-')
            command_offer(c->name, c->summary);
    }
    return EXIT_OK;
}

/* ---- finding the command -------------------------------------------------------------------- */

static void print_set(const struct command_set *set, FILE *to)
{
    fold_at(HELP_COLUMNS);
    fprintf(to, "usage: %s COMMAND [OPTION...]\n\n", set->name);
    fold_paragraph(to, set->about);
    fprintf(to, "\ncommands:\n");
    for (const struct command *c = set->commands; c->name; c++) {
        fprintf(to, "  %-10s ", c->name);
        fold_line(to, c->summary, 13, 13);
    }
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

/* "help schedule show" is "schedule show --help". */
static void turn_help(int argc, char **argv)
{
    static char option[] = "--help";

    memmove(argv + 1, argv + 2, (size_t)(argc - 2) * sizeof(*argv));
    argv[argc - 1] = option;
}

int command_dispatch(const struct command_set *set, int argc, char **argv)
{
    if (command_completes)
        return offer_commands(set, argc, argv);
    if (argc > 2 && !strcmp(argv[1], "help"))
        turn_help(argc, argv);
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

/* ---- the terminal ---------------------------------------------------------------------------- */

int terminal_columns(FILE *to)
{
    struct winsize size;

    const char *columns = getenv("COLUMNS");
    if (columns && atoi(columns) > 0)
        return atoi(columns);
    if (!isatty(fileno(to)))
        return 0;
    return ioctl(fileno(to), TIOCGWINSZ, &size) || !size.ws_col ? 80 : size.ws_col;
}

bool terminal_colour(FILE *to)
{
    const char *no_colour = getenv("NO_COLOR"), *term = getenv("TERM");

    return isatty(fileno(to)) && !(no_colour && *no_colour) && !(term && !strcmp(term, "dumb"));
}

/* ---- folding -------------------------------------------------------------------------------- */

static int other_columns = INT_MAX;

void fold_at(int columns)
{
    other_columns = columns;
}

int fold_columns(FILE *to, int indent)
{
    const int columns = terminal_columns(to);

    if (!columns)
        return other_columns;
    return columns < indent + 20 ? indent + 20 : columns;
}

/* Where a line of at most `room` characters ends: before a space or behind a |, or in a word that
 * is longer. */
static size_t line_length(const char *text, size_t room)
{
    size_t len = strlen(text), end = room;

    if (len <= room)
        return len;
    while (end > 0 && text[end] != ' ' && text[end - 1] != '|')
        end--;
    while (end > 0 && text[end - 1] == ' ')
        end--;
    return end > 0 ? end : strcspn(text, " ");
}

void fold_line(FILE *to, const char *text, int used, int indent)
{
    const int columns = fold_columns(to, indent);
    size_t len = line_length(text, (size_t)(columns > used ? columns - used : 1));

    fprintf(to, "%.*s\n", (int)len, text);
    for (text += len; *text; text += len) {
        text += strspn(text, " ");
        len = line_length(text, (size_t)(columns - indent));
        if (len)
            fprintf(to, "%*s%.*s\n", indent, "", (int)len, text);
    }
}

void fold_paragraph(FILE *to, const char *text)
{
    char joined[4096];

    if (!terminal_columns(to)) {
        fprintf(to, "%s\n", text);
        return;
    }
    snprintf(joined, sizeof(joined), "%s", text);
    for (char *end = joined; (end = strchr(end, '\n'));)
        *end = ' ';
    fold_line(to, joined, 0, 0);
}
