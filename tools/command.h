/* SPDX-License-Identifier: Apache-2.0
 *
 * command.h - a sub-command of `dualpipe`: a row of a table and a file of its own. main.c has the
 * table of the program; a command with sub-commands of its own has one more.
 */
#ifndef DP_TOOLS_COMMAND_H
#define DP_TOOLS_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* What the program returns to the shell. */
enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

struct command {
    const char *name;
    const char *summary;               /* one line */
    int (*run)(int argc, char **argv); /* argv[0] is the command's name; returns an EXIT_ value */
};

struct command_set {
    const char *name;               /* "dualpipe", "dualpipe schedule" */
    const char *about;              /* a paragraph for --help */
    const struct command *commands; /* ends with a row of NULLs */
    const char *examples;           /* lines for --help */
};

/* Find argv[1] in the set and run it; --help prints the set. An unknown name is an EXIT_USAGE with
 * one line that names the nearest. */
int command_dispatch(const struct command_set *set, int argc, char **argv);

/* For the shells' completion: `dualpipe --complete WORD...` prints, a line each, what the last of the
 * words may become, a tab and what it means; or COMMAND_FILE where any file may stand. It is said by
 * the tables that the commands are parsed by: where this is set, command_dispatch and args_parse print
 * and do nothing else. */
#define COMMAND_FILE ":file"
extern bool command_completes;
/* One line of these. what may be NULL. */
void command_offer(const char *word, const char *what);

/* Start and end of the program: messages of the library appear as "dualpipe: ...", and output that
 * could not be written is a failure. */
void command_open(void);
int command_close(int status);
/* Write what is buffered. The errno of the first write that failed, of all so far; 0: none. */
int command_flush(void);

/* While muted, messages of the library are dropped: for a question whose answer may be no. */
void command_mute(bool muted);

/* What a reader of the library returned for a file while muted: unmutes, and says what was wrong in
 * which file ("-": standard input). err 0: 0. */
int command_read(const char *path, int err);

/* What to return after err: EXIT_USAGE where the user's input was at fault (DP_EINVAL, DP_ENOENT),
 * else EXIT_FAILED. Prints dp_last_error() unless this thread has printed the reason already. */
int command_failed(int err);

/* One line on standard error, "dualpipe: ...": the user's mistake, which returns EXIT_USAGE, or
 * what went wrong at run time, which returns EXIT_FAILED. */
int command_misused(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
int command_broke(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* command_misused if it is wrong; returns whether it is. */
bool refuse_if(bool is_wrong, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* From now on `explain` may write more to such a line, and to errors of the library; NULL: no more. */
void command_explain(void (*explain)(void *user, const char *line, char *more, size_t room), void *user);

/* ---- the terminal ---------------------------------------------------------------------------- */

/* COLUMNS, otherwise the columns of `to`; 0: it is no terminal. */
int terminal_columns(FILE *to);

/* Whether to use colours there: a terminal, and NO_COLOR is not set. */
bool terminal_colour(FILE *to);

/* Columns of a line of `to` that begins with `indent` spaces: at least wide enough for a
 * word behind them; INT_MAX where nothing limits it. */
int fold_columns(FILE *to, int indent);

/* From now on what is no terminal limits lines, too. */
enum { HELP_COLUMNS = 100 };
void fold_at(int columns);

/* Print a line and its end. `used` columns of its first line are taken already; the lines below begin
 * with `indent` spaces. */
void fold_line(FILE *to, const char *text, int used, int indent);

/* Print text with the breaks of its author as it is where there is no terminal, otherwise as one
 * paragraph that is folded anew. */
void fold_paragraph(FILE *to, const char *text);

#endif
