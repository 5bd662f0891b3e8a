/* SPDX-License-Identifier: Apache-2.0 */
#include "base/array.h"
#include "base/text.h"

#include "base/fail.h"
#include "base/hash.h"
#include "base/number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Room for `more` bytes and a NUL behind the text. */
static bool reserve(struct dp_text *t, size_t more)
{
    if (t->failed)
        return false;

    char *data = dp_array_grow(t->data, &t->capacity, t->len + more + 1, 1);
    t->failed = !data;
    if (data)
        t->data = data;
    return data;
}

void dp_text_add(struct dp_text *t, const char *s, size_t len)
{
    if (!reserve(t, len))
        return;
    memcpy(t->data + t->len, s, len);
    t->len += len;
    t->data[t->len] = '\0';
}

void dp_text_adds(struct dp_text *t, const char *s)
{
    dp_text_add(t, s, strlen(s));
}

void dp_text_addf(struct dp_text *t, const char *fmt, ...)
{
    va_list args;
    int len;

    if (!reserve(t, 256))
        return;
    va_start(args, fmt);
    len = dp_vsnprintf(t->data + t->len, t->capacity - t->len, fmt, args);
    va_end(args);
    if (len < 0) {
        t->failed = true;
        return;
    }
    if ((size_t)len >= t->capacity - t->len) {
        if (!reserve(t, (size_t)len))
            return;
        va_start(args, fmt);
        dp_vsnprintf(t->data + t->len, t->capacity - t->len, fmt, args);
        va_end(args);
    }
    t->len += (size_t)len;
}

void dp_text_add_number(struct dp_text *t, double number)
{
    char digits[40];

    dp_snprintf(digits, sizeof(digits), "%.15g", number);
    if (dp_strtod(digits, NULL) != number)
        dp_snprintf(digits, sizeof(digits), "%.17g", number);
    dp_text_adds(t, digits);
}

int dp_text_hash(const struct dp_text *t, uint64_t *hash)
{
    *hash = dp_hash_bytes(DP_HASH_BEGIN, t->data, t->len);
    return t->failed ? dp_fail(DP_ENOMEM, "no memory for a text") : 0;
}

int dp_text_take(struct dp_text *t, char **out, size_t *len)
{
    if (!reserve(t, 0)) {
        dp_text_fini(t);
        return dp_fail(DP_ENOMEM, "no memory for a text");
    }
    t->data[t->len] = '\0';
    if (len)
        *len = t->len;
    *out = t->data;
    *t = (struct dp_text){0};
    return 0;
}

static int add_stream(struct dp_text *t, FILE *file, const char *path, size_t most,
                      const char *expected)
{
    const size_t before = t->len;
    char block[4096];
    size_t n;

    while ((n = fread(block, 1, sizeof(block), file)) > 0 && t->len - before <= most)
        dp_text_add(t, block, n);
    if (ferror(file))
        return dp_fail(DP_EIO, "%s: %s", path, strerror(errno));
    if (t->len - before > most)
        return dp_fail(DP_EINVAL, "%s: more than %zu MiB, expected %s", path, most >> 20, expected);
    return t->failed ? dp_fail(DP_ENOMEM, "%s: no memory for the file", path) : 0;
}

int dp_text_add_file(struct dp_text *t, const char *path, size_t most, const char *expected)
{
    FILE *file = fopen(path, "re");

    if (!file)
        return dp_fail(errno == ENOENT ? DP_ENOENT : DP_EIO, "%s: %s", path, strerror(errno));
    int err = add_stream(t, file, path, most, expected);
    fclose(file);
    return err;
}

void dp_text_fini(struct dp_text *t)
{
    free(t->data);
    *t = (struct dp_text){0};
}
