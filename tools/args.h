/* SPDX-License-Identifier: Apache-2.0
 *
 * args.h - the command line of a sub-command as a table: what --help prints is what is parsed.
 *
 *      struct values { int64_t ranks; bool json; };
 *      static const struct arg args[] = {
 *          {"ranks", 'P', "N", "pipeline ranks", ARG_INT, .offset = offsetof(struct values, ranks),
 *           .fallback = "4", .min = 1, .max = 65536},
 *          {"json", 0, NULL, "print JSON", ARG_FLAG, .offset = offsetof(struct values, json)},
 *      };
 *      static const struct arg_group groups[] = {{"options", args, 2}, {0}};
 *      static const struct usage usage = {
 *          .command = "dualpipe demo", .operands = "KIND", .min_operands = 1, .max_operands = 1,
 *          .about = "Show how it is done.", .groups = groups,
 *          .examples = "  dualpipe demo gpipe -P 8\n"};
 *
 *      struct values v;
 *      struct operands operands;
 *      int status;
 *      if (!args_parse(&usage, argc, argv, &v, &operands, &status))
 *          return status;
 */
#ifndef DP_TOOLS_ARGS_H
#define DP_TOOLS_ARGS_H

#include <dualpipe/options.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum arg_type {
    ARG_FLAG,   /* bool: true if given */
    ARG_INT,    /* int64_t */
    ARG_REAL,   /* double */
    ARG_TIME,   /* double, in ns; "5us", "2.5ms", "1s", and a bare number is in ms */
    ARG_BYTES,  /* double; "64KiB", "1.5MB", "4096" */
    ARG_RATE,   /* double, in bytes per ns; "25GB/s", "400Gb/s"; a bare number is in GB/s */
    ARG_STRING, /* const char *, NULL if neither given nor defaulted */
    ARG_CHOICE, /* const char *, one of choices */
    ARG_LIST,   /* struct arg_list: every occurrence adds one */
    ARG_PARSE,  /* whatever parse makes of it */
    ARG_OPTION  /* as the row of that name in `options` has it, of the struct at `offset` */
};

/* "text", "json": choices of --format. */
extern const char *const args_text_or_json[];

enum { ARG_LIST_MAX = 64 };
struct arg_list {
    size_t count;
    const char *items[ARG_LIST_MAX];
};

struct arg {
    const char *name;  /* without its "--" */
    char letter;       /* 'P' for -P, 0: none */
    const char *value; /* what --help calls the value; NULL for a flag and for a choice */
    const char *help;  /* one line */
    enum arg_type type;
    size_t offset;     /* of the member in the values struct */
    const char *fallback; /* the default as text; NULL: false, 0, NULL, empty */
    double min, max;      /* of a number; both 0: any that is not negative */
    bool written;         /* a file that the command writes; other FILEs it reads */
    bool or_file;         /* its value may be a file that is read, though it is not called FILE */
    const char *const *choices; /* NULL-terminated */
    unsigned marks;       /* the command's own */
    const char *old_name; /* that is still understood, with a warning; NULL: none */
    char old_letter;      /* the same; 0: none */
    /* ARG_PARSE: store what text says into *member; false with what was expected in why. */
    bool (*parse)(const char *text, void *member, char *why, size_t why_len);
    /* For completion, of a value that is no choice: call args_offer with before for each likely
     * one. */
    void (*offer)(const char *before);
    /* ARG_OPTION: a table of the library's; what the arg says itself (help, fallback) holds. */
    const struct dp_option *(*options)(int32_t *count);
    const struct dp_option *option; /* of args_resolve; NULL: another type */
};

/* ARG_OPTION becomes what its row is: the type that a command line has for it, with letter, value,
 * bounds and choices, and the offset of the member, which has the type of the row. Others stay. */
struct arg args_resolve(const struct arg *a);

/* Options under a heading; a group may serve several commands. */
struct arg_group {
    const char *title;
    const struct arg *args;
    size_t count;
};

#define ARG_GROUP(title, args) {title, args, sizeof(args) / sizeof((args)[0])}

struct usage {
    const char *command;            /* "dualpipe schedule show" */
    const char *operands;           /* "KIND"; NULL: takes none */
    const char *operand_choices;    /* "gpipe|1f1b" for --help; NULL: anything */
    int min_operands, max_operands; /* max_operands 0 with operands set: any number */
    bool operand_files;             /* they are files to read, as they are or as NAME=FILE */
    const char *about;              /* what the command does, a paragraph */
    const struct arg_group *groups; /* ends with a title of NULL */
    const char *examples;           /* lines for --help */
};

struct operands {
    int count;
    char **items; /* of argv */
};

/* Fill *values (defaults first, then the command line) and *operands. false: the command is over,
 * *status says with what: EXIT_OK after --help, EXIT_USAGE after one line on standard error that
 * names what was wrong, what was expected and the nearest known name. A file to write that is also
 * read, or written twice, is such a mistake. */
bool args_parse(const struct usage *usage, int argc, char **argv, void *values,
                struct operands *operands, int *status);

void args_offer(const char *before, const char *word, const char *what);
/* The usual machines of --synthetic. */
void args_offer_presets(const char *before);

/* The number with a unit that ARG_TIME, ARG_BYTES and ARG_RATE take, for parsers of lists of
 * them. false if the text is none. */
bool args_parse_time(const char *text, double *ns);
bool args_parse_bytes(const char *text, double *bytes);

#endif
