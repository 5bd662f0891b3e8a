/* SPDX-License-Identifier: Apache-2.0
 *
 * text.h - a string that grows. Zeroed memory is an empty one. A failed allocation is remembered,
 * so that a writer appends without looking and asks once, at the end.
 *
 *      struct dp_text t = {0};
 *      dp_text_addf(&t, "%d ranks", n);
 *      return dp_text_take(&t, out, len);
 */
#ifndef DP_BASE_TEXT_H
#define DP_BASE_TEXT_H

#include <dualpipe/dualpipe.h>

struct dp_text {
    char *data; /* NUL-terminated once anything was added */
    size_t len, capacity;
    bool failed;
};

void dp_text_add(struct dp_text *t, const char *s, size_t len);
void dp_text_adds(struct dp_text *t, const char *s);
void dp_text_addf(struct dp_text *t, const char *fmt, ...) DP_PRINTF(2, 3);
/* With as few digits as give it back, and a point in every locale. */
void dp_text_add_number(struct dp_text *t, double number);
/* Hand the malloc'ed string to *out (never NULL on success) and its length, if wanted, to *len; t is
 * empty again. DP_ENOMEM if any addition failed. */
int dp_text_take(struct dp_text *t, char **out, size_t *len);
/* Add all of a file, at most `most` bytes of it; expected: what it should be, for the sentence that
 * says that it is longer. DP_ENOENT, DP_EIO, DP_EINVAL, DP_ENOMEM. */
int dp_text_add_file(struct dp_text *t, const char *path, size_t most, const char *expected);
/* A number for what has been added. DP_ENOMEM if any addition failed. */
int dp_text_hash(const struct dp_text *t, uint64_t *hash);
void dp_text_fini(struct dp_text *t);

#endif
