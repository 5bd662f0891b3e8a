/* SPDX-License-Identifier: Apache-2.0
 *
 * options.h - the DUALPIPE_<AREA>_<NAME> environment variables, as a program shows them.
 *
 * Each component reads its own when it opens, and fails there on a variable of its area that it
 * does not know or cannot accept. These functions read nothing into effect; they list.
 */
#ifndef DUALPIPE_OPTIONS_H
#define DUALPIPE_OPTIONS_H

#include <dualpipe/dualpipe.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dp_option_type {
    DP_OPTION_INT,    /* int64_t, decimal or 0x */
    DP_OPTION_INT32,  /* int32_t */
    DP_OPTION_REAL,   /* double */
    DP_OPTION_BYTES,  /* size_t, "4096", "64K" or "64KiB", "1.5MB" */
    DP_OPTION_BOOL,   /* bool: 0 1 no yes off on false true; of a command line a flag */
    DP_OPTION_STRING, /* const char *, lives as long as the text */
    DP_OPTION_SECRET, /* the same, but the value is never shown */
    DP_OPTION_CHOICE, /* const char *, one of choices */
    DP_OPTION_ENUM,   /* an enum that counts from 0, by its choice's place */
    DP_OPTION_PARSE   /* whatever parse makes of it */
};

/* A row of a table of options: how one member of a struct is set by text, from the environment or from a
 * command line. */
struct dp_option {
    const char *name;     /* of the environment without DUALPIPE_<AREA>_, "" for DUALPIPE_<AREA>; or as a
                           * command line has it, "mix-factor" for DUALPIPE_<AREA>_MIX_FACTOR, too */
    enum dp_option_type type;
    const char *fallback; /* the default, as text; NULL: none (strings), or what the struct has */
    const char *help;     /* one line, with the unit */
    size_t offset;        /* of the member in the struct */
    int64_t min, max;     /* of a number; both 0: any INT, any REAL that is not negative */
    const char *const *choices; /* NULL-terminated; of PARSE those that are always there, or NULL */
    bool is_code;         /* STRING: where code is loaded from; not read, with a warning, in a program
                           * that has more rights than its caller (setuid) */
    const char *old_name; /* what the option was called in the release before: still read, with a
                           * warning, where the new name is not set; NULL: none */
    char letter;          /* of a command line: 'P' for -P; 0: none */
    bool above;           /* REAL: it must be more than min */
    const char *value;    /* what a help calls the value; NULL: by the type */
    /* PARSE: set the struct `values`, NULL: see whether it could be; false with what was expected. */
    bool (*parse)(const char *text, void *values, char *expected, size_t room);
};

/* Set what one option of `values` is, the struct that the table is of. false: nothing is changed, and
 * *expected says what would do: "a whole number from 1 to 8". Any thread. */
DP_PUBLIC bool dp_option_set(const struct dp_option *option, const char *text, void *values,
                             char *expected, size_t room);

/* One variable. The strings are valid during the call; value as long as the environment. */
struct dp_option_info {
    const char *name;     /* in full: DUALPIPE_LOG_LEVEL */
    const char *value;    /* the one in effect, as text; NULL: none */
    const char *fallback; /* the default; NULL: none */
    const char *help;     /* one line; NULL for a variable that no component knows */
    const char *expected; /* "a number from 1 to 100", "one of fast, slow" */
    const char *problem;  /* NULL, or the sentence that says why it cannot be used */
    bool from_environment; /* else value is the default */
};

typedef void (*dp_option_fn)(void *user, const struct dp_option_info *option);

/* Call fn for every option of the library in order of area, then for every DUALPIPE_ variable of
 * the environment that is none of them (its problem names the nearest). Returns the number of
 * options that have a problem. Nothing is logged. Any thread, while none changes the environment. */
DP_PUBLIC int dp_options_each(dp_option_fn fn, void *user);

/* "Did you mean": the name of names[count] with the smallest edit distance to `name`, or NULL if
 * none comes within a third of its length (two edits at least are allowed). */
DP_PUBLIC const char *dp_nearest(const char *name, const char *const *names, size_t count);

/* As the readers of the library's text formats do: DP_EINVAL unless all len bytes of text are UTF-8,
 * with name, line and column of the first that is not. Any thread. */
DP_PUBLIC int dp_check_utf8(const char *text, size_t len, const char *name);

#ifdef __cplusplus
}
#endif
#endif
