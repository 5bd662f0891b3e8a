/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening: one file, or an index and the files that it names.
 */
#include "checkpoint/state.h"

#include "base/fail.h"
#include "base/json.h"
#include "base/tensor.h"
#include "checkpoint/crc32c.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char map_key[] = "weight_map", metadata_key[] = "metadata";
static const char json_key[] = "dualpipe.json", sum_key[] = "dualpipe.index_crc32c";

enum { SUM_DIGITS = 9 }; /* with the NUL */

static int no_memory(const char *path)
{
    return dp_fail(DP_ENOMEM, "checkpoint '%s': no memory to read it", path);
}

int dp_checkpoint_pread(const struct dp_checkpoint_file *f, void *to, size_t len, uint64_t at)
{
    char *p = to;

    while (len) {
        ssize_t n = pread(f->fd, p, len < (1u << 30) ? len : 1u << 30, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return dp_fail(DP_EIO, "checkpoint '%s': cannot read it: %s", f->path,
                           dp_errno_text(errno));
        if (!n)
            return dp_fail(DP_EINVAL, "checkpoint '%s' ends at byte %llu, expected more (cut off?)",
                           f->path, (unsigned long long)at);
        p += n;
        at += (uint64_t)n;
        len -= (size_t)n;
    }
    return 0;
}

/* ---- one file --------------------------------------------------------------------------------- */

static void file_free(struct dp_checkpoint_file *f)
{
    if (!f)
        return;
    dp_header_fini(&f->header);
    if (f->fd >= 0)
        close(f->fd);
    free(f->path);
    free(f->name);
    free(f);
}

static int file_new(const char *path, const char *name, struct dp_checkpoint_file **out)
{
    struct dp_checkpoint_file *f = calloc(1, sizeof(*f));
    int error;

    if (f)
        *f = (struct dp_checkpoint_file){.path = strdup(path), .name = strdup(name), .fd = -1};
    if (!f || !f->path || !f->name) {
        file_free(f);
        return no_memory(path);
    }
    f->fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a pipe is refused, and not waited for */
    error = errno;
    if (f->fd < 0) {
        file_free(f);
        return dp_fail(error == ENOENT || error == ENOTDIR ? DP_ENOENT : DP_EIO,
                       "checkpoint '%s': cannot open it: %s", path, dp_errno_text(error));
    }
    *out = f;
    return 0;
}

static int file_size(const struct dp_checkpoint_file *f, uint64_t *out)
{
    struct stat st;

    if (fstat(f->fd, &st) || !S_ISREG(st.st_mode))
        return dp_fail(DP_EINVAL, "checkpoint '%s' is no file", f->path);
    *out = (uint64_t)st.st_size;
    return 0;
}

static int read_header_text(struct dp_checkpoint_file *f, uint64_t len, uint64_t data_bytes)
{
    char *text = malloc((size_t)len + 1);
    int err = text ? dp_checkpoint_pread(f, text, (size_t)len, sizeof(len)) : no_memory(f->path);

    if (!err) {
        text[len] = '\0';
        err = dp_header_read(f->path, text, (size_t)len, data_bytes, &f->header);
    }
    free(text);
    return err;
}

static int file_read_header(struct dp_checkpoint_file *f)
{
    uint64_t size = 0, len = 0;
    int err = file_size(f, &size);

    if (!err && size < sizeof(len))
        err = dp_fail(DP_EINVAL, "checkpoint '%s' has %llu bytes, expected a header", f->path,
                      (unsigned long long)size);
    if (!err)
        err = dp_checkpoint_pread(f, &len, sizeof(len), 0);
    if (!err && (len > DP_HEADER_MOST || len > size - sizeof(len)))
        err = dp_fail(DP_EINVAL, "checkpoint '%s': a header of %llu bytes, expected at most %d and not "
                      "more than the file's %llu (cut off, or no safetensors file?)", f->path,
                      (unsigned long long)len, DP_HEADER_MOST, (unsigned long long)size);
    f->data = sizeof(len) + len;
    return err ? err : read_header_text(f, len, size - f->data);
}

/* ---- the table -------------------------------------------------------------------------------- */

static void add_entry(struct dp_checkpoint *c, const struct dp_checkpoint_file *f,
                      const struct dp_header_tensor *t)
{
    c->entries[c->count++] = (struct dp_checkpoint_entry){
        .tensor = {.name = t->name,
                   .dtype = t->dtype,
                   .ndim = t->ndim,
                   .shape = t->shape,
                   .bytes = t->end - t->begin,
                   .has_checksum = t->has_checksum,
                   .checksum = t->checksum,
                   .file = f->path},
        .file = f,
        .begin = f->data + t->begin,
    };
}

static int compare_entries(const void *a, const void *b)
{
    const struct dp_checkpoint_entry *s = a, *t = b;

    return strcmp(s->tensor.name, t->tensor.name);
}

static int add_all(struct dp_checkpoint *c, const struct dp_checkpoint_file *f)
{
    c->entries = calloc(f->header.count + 1, sizeof(*c->entries));
    if (!c->entries || f->header.count > INT32_MAX)
        return no_memory(f->path);
    for (size_t i = 0; i < f->header.count; i++)
        add_entry(c, f, &f->header.tensors[i]);
    return 0;
}

static int keep_file(struct dp_checkpoint *c, struct dp_checkpoint_file *f)
{
    struct dp_checkpoint_file **more =
        realloc(c->files, ((size_t)c->file_count + 1) * sizeof(struct dp_checkpoint_file *));

    if (!more) {
        int err = no_memory(f->path);
        file_free(f);
        return err;
    }
    c->files = more;
    c->files[c->file_count++] = f;
    return 0;
}

/* ---- an index --------------------------------------------------------------------------------- */

/* The path of a file that lies beside `path`. */
static char *beside(const char *path, const char *name)
{
    const char *slash = strrchr(path, '/');
    size_t dir = slash ? (size_t)(slash + 1 - path) : 0, len = strlen(name);
    char *joined = malloc(dir + len + 1);

    if (joined) {
        memcpy(joined, path, dir);
        memcpy(joined + dir, name, len + 1);
    }
    return joined;
}

/* The file of that name, opened if it is not yet. */
static int file_named(struct dp_checkpoint *c, const char *path, const char *name,
                      struct dp_checkpoint_file **out)
{
    struct dp_checkpoint_file *f = NULL;
    char *joined;
    int err;

    for (int32_t i = 0; i < c->file_count; i++)
        if (!strcmp(c->files[i]->name, name)) {
            *out = c->files[i];
            return 0;
        }
    if (!*name || strchr(name, '/'))
        return dp_fail(DP_EINVAL, "checkpoint '%s': file '%s', expected a name without '/'", path, name);
    joined = beside(path, name);
    err = joined ? file_new(joined, name, &f) : no_memory(path);
    free(joined);
    if (!err)
        err = keep_file(c, f);
    if (!err)
        err = file_read_header(f);
    *out = f;
    return err;
}

static int add_mapped(struct dp_checkpoint *c, const char *path, const char *name,
                      const json_t *file)
{
    const struct dp_header_tensor *t;
    struct dp_checkpoint_file *f;
    int err;

    if (!json_is_string(file))
        return dp_fail(DP_EINVAL, "checkpoint '%s': tensor '%s' has no file's name", path, name);
    err = file_named(c, path, json_string_value(file), &f);
    if (err)
        return err;
    t = dp_header_find(&f->header, name);
    if (!t)
        return dp_fail(DP_EINVAL, "checkpoint '%s': tensor '%s' is not in '%s'", path, name, f->path);
    add_entry(c, f, t);
    return 0;
}

static int read_map(struct dp_checkpoint *c, const char *path, const json_t *root)
{
    json_t *map = json_object_get(root, map_key), *file;
    const char *json = json_string_value(json_object_get(json_object_get(root, metadata_key), json_key));
    const char *name;
    int err = 0;

    if (!json_is_object(map))
        return dp_fail(DP_EINVAL, "checkpoint '%s': an index without the object '%s'", path, map_key);
    c->entries = calloc(json_object_size(map) + 1, sizeof(*c->entries));
    c->json = strdup(json ? json : "{}");
    if (!c->entries || !c->json)
        return no_memory(path);
    json_object_foreach(map, name, file)
        if (!err)
            err = add_mapped(c, path, name, file);
    return err ? err : dp_header_check_json(path, c->json);
}

/* Of all that an index says but its checksum, however it is laid out. */
static bool index_checksum(json_t *root, char out[SUM_DIGITS])
{
    json_object_del(json_object_get(root, metadata_key), sum_key);
    char *text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS);

    if (text)
        snprintf(out, SUM_DIGITS, "%08x", dp_crc32c(0, text, strlen(text)));
    free(text);
    return text;
}

static int check_index(const char *path, json_t *root)
{
    json_t *said = json_incref(json_object_get(json_object_get(root, metadata_key), sum_key));
    const char *digits = json_string_value(said);
    char is[SUM_DIGITS];
    int err = 0;

    if (said && !index_checksum(root, is))
        err = no_memory(path);
    else if (said && (!digits || strcmp(digits, is)))
        err = dp_fail(DP_EINVAL, "checkpoint '%s': it does not have the checksum that it says: it was "
                      "damaged or changed", path);
    json_decref(said);
    return err;
}

static int read_index(struct dp_checkpoint *c, const char *path)
{
    struct dp_text text = {0};
    json_t *root = NULL;
    json_error_t why;
    int err = dp_text_add_file(&text, path, DP_HEADER_MOST, "an index");

    if (!err) {
        root = json_loadb(text.data ? text.data : "", text.len, JSON_REJECT_DUPLICATES, &why);
        err = root ? check_index(path, root)
                   : dp_fail(DP_EINVAL, "checkpoint '%s': line %d: %s", path, why.line, why.text);
    }
    if (!err)
        err = read_map(c, path, root);
    json_decref(root);
    dp_text_fini(&text);
    return err;
}

/* An index begins with a '{'; as the length of a header that would be too long. */
static bool is_index(const struct dp_checkpoint_file *f)
{
    uint64_t len = 0;
    const ssize_t got = pread(f->fd, &len, sizeof(len), 0);

    return got > 0 && *(const char *)&len == '{' && (got < (ssize_t)sizeof(len) || len > DP_HEADER_MOST);
}

/* ---- open and close --------------------------------------------------------------------------- */

static int open_into(struct dp_checkpoint *c, const char *path)
{
    struct dp_checkpoint_file *f;
    uint64_t size;
    int err = file_new(path, "", &f);

    if (err)
        return err;
    err = file_size(f, &size);
    if (!err && is_index(f)) {
        file_free(f);
        return read_index(c, path);
    }
    if (!err)
        err = file_read_header(f);
    if (err) {
        file_free(f);
        return err;
    }
    err = keep_file(c, f);
    if (!err)
        err = add_all(c, f);
    if (!err) {
        c->json = strdup(f->header.json);
        err = c->json ? 0 : no_memory(path);
    }
    return err;
}

int dp_checkpoint_open(const char *path, struct dp_checkpoint **out)
{
    struct dp_checkpoint *c = calloc(1, sizeof(*c));
    int err = c ? open_into(c, path) : no_memory(path);

    if (err) {
        dp_checkpoint_close(c);
        return err;
    }
    if (c->count)
        qsort(c->entries, (size_t)c->count, sizeof(*c->entries), compare_entries);
    *out = c;
    return 0;
}

void dp_checkpoint_close(struct dp_checkpoint *c)
{
    if (!c)
        return;
    for (int32_t i = 0; i < c->file_count; i++)
        file_free(c->files[i]);
    free(c->files);
    free(c->entries);
    free(c->json);
    free(c);
}

/* ---- writing an index ------------------------------------------------------------------------- */

static bool same_tensor(const struct dp_header_tensor *a, const struct dp_header_tensor *b)
{
    bool same = a->dtype.code == b->dtype.code && a->dtype.bits == b->dtype.bits &&
                a->ndim == b->ndim;

    for (int32_t i = 0; i < a->ndim && same; i++)
        same = a->shape[i] == b->shape[i];
    return same && (!a->has_checksum || !b->has_checksum || a->checksum == b->checksum);
}

/* Map a file's tensors to it, unless a file before has them. */
static int map_file(struct dp_checkpoint *c, const char *path, const struct dp_checkpoint_file *f,
                    json_t *map)
{
    for (size_t i = 0; i < f->header.count; i++) {
        const struct dp_header_tensor *t = &f->header.tensors[i];
        const char *before = json_string_value(json_object_get(map, t->name));
        struct dp_checkpoint_file *other;
        if (!before) {
            if (json_object_set_new(map, t->name, json_string(f->name)))
                return no_memory(path);
            continue;
        }
        if (!file_named(c, path, before, &other) &&
            !same_tensor(dp_header_find(&other->header, t->name), t))
            return dp_fail(DP_EMISMATCH, "checkpoint '%s': tensor '%s' is not the same in '%s' and "
                           "'%s'", path, t->name, before, f->name);
    }
    return 0;
}

static uint64_t total_bytes(const struct dp_checkpoint *c)
{
    uint64_t sum = 0;

    for (int32_t i = 0; i < c->file_count; i++) {
        const struct dp_header *h = &c->files[i]->header;
        sum += h->count ? h->tensors[h->count - 1].end : 0;
    }
    return sum;
}

static int write_text(const char *path, json_t *root)
{
    char sum[SUM_DIGITS];
    const bool good = root && index_checksum(root, sum) &&
                      !json_object_set_new(json_object_get(root, metadata_key), sum_key,
                                           json_string(sum));
    char *text = good ? json_dumps(root, JSON_INDENT(2)) : NULL;
    struct dp_atomic_file f;
    int err;

    if (!text)
        return no_memory(path);
    err = dp_atomic_begin(&f, path);
    if (!err)
        err = dp_atomic_write(&f, text, strlen(text));
    if (!err)
        err = dp_atomic_write(&f, "\n", 1);
    free(text);
    return dp_atomic_end(&f, err);
}

int dp_checkpoint_write_index(const char *path, const char *const *files, int32_t count,
                              const char *json)
{
    struct dp_checkpoint c = {0};
    struct dp_checkpoint_file *f;
    json_t *map = json_object(), *root = NULL;
    int err = map ? dp_header_check_json(path, json) : no_memory(path);

    for (int32_t i = 0; i < count && !err; i++) {
        err = file_named(&c, path, files[i], &f);
        if (!err)
            err = map_file(&c, path, f, map);
    }
    if (!err) {
        root = json_pack("{s:{s:I, s:s}, s:O}", metadata_key, "total_size", (json_int_t)total_bytes(&c),
                         json_key, json ? json : "{}", map_key, map);
        err = write_text(path, root);
    }
    json_decref(root);
    json_decref(map);
    for (int32_t i = 0; i < c.file_count; i++)
        file_free(c.files[i]);
    free(c.files);
    return err;
}
