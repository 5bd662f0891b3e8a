/* SPDX-License-Identifier: Apache-2.0
 *
 * text.c - strings that grow, UTF-8, lines of files, reports, the nearest of some words.
 */
#include "base/array.h"
#include "base/fail.h"
#include "base/hash.h"
#include "base/text.h"
#include <dualpipe/options.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* ---- utf8 ------------------------------------------------------------------------------------ */

static const char byte_order_mark[] = "\xef\xbb\xbf";

int dp_utf8_begin(const char **text, size_t *len, const char *name)
{
    const char *s = *text, *end = s + *len;
    int line = 1, column = 1;

    if (*len >= 3 && !memcmp(s, byte_order_mark, 3))
        s += 3;
    const char *begin = s;
    for (size_t n; s < end; s += n) {
        n = dp_utf8_len(s, (size_t)(end - s));
        if (!n)
            return dp_fail(DP_EINVAL, "%s%sline %d, column %d: byte 0x%02x, expected UTF-8",
                           name ? name : "", name ? ": " : "", line, column, (unsigned char)*s);
        column = *s == '\n' ? 1 : column + 1;
        line += *s == '\n';
    }
    *text = begin;
    *len = (size_t)(end - begin);
    return 0;
}

int dp_check_utf8(const char *text, size_t len, const char *name)
{
    return dp_utf8_begin(&text, &len, name);
}

/* ---- lines ----------------------------------------------------------------------------------- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

char *dp_trim(char *from, char *end)
{
    while (from < end && is_blank(*from))
        from++;
    while (end > from && is_blank(end[-1]))
        end--;
    *end = '\0';
    return from;
}

/* No line of text begins with a bracket. */
static bool is_json(const char *text, const char *end)
{
    while (text < end && (is_blank(*text) || *text == '\n'))
        text++;
    return text < end && (*text == '{' || *text == '[');
}

int dp_lines_begin(struct dp_lines *l, const char *text, size_t len, const char *name,
                   const char *converter)
{
    int err = dp_utf8_begin(&text, &len, name);

    l->name = name;
    l->at = text;
    l->end = text + len;
    l->number = 0;
    if (!err && is_json(text, l->end))
        err = dp_fail(DP_EINVAL, "%s: JSON, expected lines of text: `%s %s` writes them", name,
                      converter, name);
    return err;
}

int dp_lines_next(struct dp_lines *l, char **line)
{
    for (*line = NULL; l->at < l->end && (!*line || !**line);) {
        const char *stop = memchr(l->at, '\n', (size_t)(l->end - l->at));
        const size_t len = (size_t)((stop ? stop : l->end) - l->at);
        l->number++;
        if (len > DP_LINE_MAX_LEN || memchr(l->at, '\0', len))
            return dp_fail(DP_EINVAL, "%s:%d: %s", l->name, l->number,
                           len > DP_LINE_MAX_LEN ? "a line of more than 4095 characters"
                                                 : "a NUL, expected text");
        memcpy(l->text, l->at, len);
        l->text[len] = '\0';
        *line = dp_trim(l->text, l->text + strcspn(l->text, "#"));
        l->at = stop ? stop + 1 : l->end;
    }
    if (*line && !**line)
        *line = NULL;
    return 0;
}

/* ---- append ---------------------------------------------------------------------------------- */

void dp_append(const char *option, const char *path, const char *text, size_t len)
{
    const bool is_stderr = !strcmp(path, "-");
    const int fd =
        is_stderr ? STDERR_FILENO : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    const ssize_t n = fd < 0 ? -1 : write(fd, text, len);

    if (n < 0)
        dp_log(DP_LOG_WARN, "%s=%s: not written: %s", option, path, dp_errno_text(errno));
    else if (n != (ssize_t)len)
        dp_log(DP_LOG_WARN, "%s=%s: only %zd of %zu bytes are written", option, path, n, len);
    if (fd >= 0 && !is_stderr)
        close(fd);
}

/* ---- nearest --------------------------------------------------------------------------------- */

enum { LONGEST = 63 };

static unsigned min3(unsigned a, unsigned b, unsigned c)
{
    unsigned m = a < b ? a : b;
    return m < c ? m : c;
}

/* Levenshtein's distance, one row at a time; longer names are compared by their beginnings. */
static unsigned edit_distance(const char *a, const char *b)
{
    unsigned row[LONGEST + 1];
    size_t na = strnlen(a, LONGEST), nb = strnlen(b, LONGEST);

    for (size_t j = 0; j <= nb; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= na; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= nb; j++) {
            unsigned above = row[j];
            row[j] = min3(above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[nb];
}

const char *dp_nearest(const char *name, const char *const *names, size_t count)
{
    unsigned limit = (unsigned)strlen(name) / 3, best = (limit < 2 ? 2 : limit) + 1;
    const char *found = NULL;

    for (size_t i = 0; i < count; i++) {
        unsigned distance = edit_distance(name, names[i]);
        if (distance < best) {
            best = distance;
            found = names[i];
        }
    }
    return found;
}
