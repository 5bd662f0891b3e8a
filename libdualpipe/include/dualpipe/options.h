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
