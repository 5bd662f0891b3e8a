/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "files.h"

#include "command.h"

#include <dualpipe/dualpipe.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_same_inode(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* The directory and the last part of a path that need not exist. */
static bool split(const char *path, struct stat *directory, char name[static 256])
{
    char copy[4096];

    if ((size_t)snprintf(copy, sizeof(copy), "%s", path) >= sizeof(copy))
        return false;
    if ((size_t)snprintf(name, 256, "%s", basename(copy)) >= 256)
        return false;
    snprintf(copy, sizeof(copy), "%s", path); /* basename may have changed it */
    return !stat(dirname(copy), directory);
}

/* Neither exists: both would be made. */
static bool will_be_same(const char *a, const char *b)
{
    struct stat directory_a, directory_b;
    char name_a[256], name_b[256];

    return split(a, &directory_a, name_a) && split(b, &directory_b, name_b) &&
           is_same_inode(&directory_a, &directory_b) && !strcmp(name_a, name_b);
}

static bool is_same_file(const char *a, const char *b)
{
    struct stat there_a, there_b;
    const bool has_a = !stat(a, &there_a), has_b = !stat(b, &there_b);

    if (has_a && has_b)
        return S_ISREG(there_a.st_mode) && is_same_inode(&there_a, &there_b);
    return !has_a && !has_b && will_be_same(a, b);
}

static bool is_standard(const struct file_use *use)
{
    return !strcmp(use->path, "-");
}

/* A file that is read twice does no harm. */
static bool collide(const struct file_use *a, const struct file_use *b)
{
    if (!a->written && !b->written)
        return false;
    if (is_standard(a) || is_standard(b))
        return is_standard(a) && is_standard(b) && a->written && b->written;
    return is_same_file(a->path, b->path);
}

static bool refuse(const struct file_use *out, const struct file_use *other)
{
    command_misused("%s %s: is also %s%s%s; expected a file of its own", out->option, out->path,
                    other->written ? "what " : "an input",
                    other->written ? other->option : *other->option ? ", " : "",
                    other->written ? " writes" : other->option);
    return false;
}

bool files_are_apart(const struct file_use *uses, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < i; k++)
            if (collide(&uses[i], &uses[k]))
                return uses[i].written ? refuse(&uses[i], &uses[k]) : refuse(&uses[k], &uses[i]);
    return true;
}

/* ---- input ----------------------------------------------------------------------------------- */

enum { FIRST_ROOM = 4096 };
static const char byte_order_mark[] = "\xef\xbb\xbf";

/* Doubled each time; freed where that fails. */
static char *grow(char *text, size_t room)
{
    char *more = realloc(text, room + 1);

    if (!more) {
        free(text);
        errno = ENOMEM;
    }
    return more;
}

static char *read_all(FILE *file, size_t most, size_t *len)
{
    size_t room = FIRST_ROOM, used = 0, got;
    char *text = grow(NULL, room);

    while (text && used <= most && (got = fread(text + used, 1, room - used, file))) {
        used += got;
        if (used == room)
            text = grow(text, room *= 2);
    }
    if (!text)
        return NULL;
    if (!ferror(file) && used > most)
        errno = EFBIG;
    if (ferror(file) || used > most) {
        free(text);
        return NULL;
    }
    text[used] = '\0';
    *len = used;
    return text;
}

char *input_bytes(const char *path, size_t most, size_t *len)
{
    if (!strcmp(path, "-"))
        return read_all(stdin, most, len);
    FILE *file = fopen(path, "re");
    if (!file)
        return NULL;
    char *text = read_all(file, most, len);
    int err = errno;
    fclose(file);
    errno = err;
    return text;
}

char *input_read(const char *path, size_t most, size_t *len)
{
    char *text = input_bytes(path, most, len);

    if (text && *len >= 3 && !memcmp(text, byte_order_mark, 3))
        memmove(text, text + 3, 1 + (*len -= 3));
    return text;
}

const char *input_error(int error)
{
    return error == EFBIG ? "more than 256 MiB, expected a file of less" : strerror(error);
}

int input_checkpoint(const char *option, const char *path, char out[static CHECKPOINT_PATH])
{
    struct stat st;

    if (stat(path, &st))
        return command_misused("%s%s: %s; expected a folder with checkpoints", option, path,
                               strerror(errno));
    return checkpoint_find(path, out)
               ? EXIT_OK
               : command_misused("%s%s: no checkpoint there; expected index.json, or step-N/index.json",
                                 option, path);
}

/* ---- output ---------------------------------------------------------------------------------- */

/* A device, a pipe: written in place, since nothing can be renamed over it. */
static bool is_special(const char *path)
{
    struct stat st;

    return !stat(path, &st) && !S_ISREG(st.st_mode);
}

/* Part of a name that is not to be guessed; if it is, the file that has it stays what it is. */
static uint64_t draw(void)
{
    uint64_t random = 0;

    return getrandom(&random, sizeof(random), 0) < 0 ? (uint64_t)getpid() : random;
}

static FILE *create(const char *name)
{
    const int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);

    return fd < 0 ? NULL : fdopen(fd, "w");
}

int output_open(const char *path, struct output *out)
{
    *out = (struct output){.file = stdout};
    if (!path || !strcmp(path, "-"))
        return 0;

    out->path = path;
    if (!is_special(path)) {
        out->target = realpath(path, NULL);
        if (!out->target)
            out->target = strdup(path); /* it is not there yet */
        if (!out->target || asprintf(&out->temporary, "%s.%016" PRIx64, out->target, draw()) < 0)
            return free(out->target), command_broke("no memory for the name of %s", path);
    }
    out->file = out->temporary ? create(out->temporary) : fopen(path, "we");
    if (out->file)
        return 0;
    command_broke("cannot write %s: %s", path, strerror(errno));
    free(out->temporary);
    free(out->target);
    return EXIT_FAILED;
}

/* Close, and give the file its name. */
static int finish_file(struct output *out, int err)
{
    bool broken = ferror(out->file);

    if ((fclose(out->file) || broken) && !err)
        err = DP_EIO;
    if (!out->temporary)
        return err;
    if (!err && rename(out->temporary, out->target))
        err = DP_EIO;
    if (err)
        unlink(out->temporary);
    free(out->temporary);
    free(out->target);
    return err;
}

int output_close(struct output *out, int err)
{
    if (out->path)
        err = finish_file(out, err);
    if (!err)
        return EXIT_OK;
    if (err != DP_EIO)
        return command_failed(err);
    if (out->path)
        return command_broke("cannot write %s: %s", out->path, strerror(errno));
    return EXIT_FAILED; /* command_close will say so */
}

/* ---- plugins --------------------------------------------------------------------------------- */

bool plugin_path(const char *file, char out[PLUGIN_PATH_LEN])
{
    static const char *const places[] = {"/../../nccl-plugin/.libs/", "/../../offload/.libs/",
                                         "/../nccl-plugin/.libs/", "/../offload/.libs/",
                                         "/../lib/"};
    char self[PATH_MAX], real[PATH_MAX];
    ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);
    char *slash = len > 0 ? (self[len] = '\0', strrchr(self, '/')) : NULL;

    for (size_t i = 0; slash && i < sizeof(places) / sizeof(places[0]); i++) {
        snprintf(out, PLUGIN_PATH_LEN, "%.*s%s%s", (int)(slash - self), self, places[i], file);
        if (!access(out, R_OK) && realpath(out, real)) {
            snprintf(out, PLUGIN_PATH_LEN, "%s", real);
            return true;
        }
    }
    snprintf(out, PLUGIN_PATH_LEN, "%s/%s", DP_PLUGIN_DIR, file);
    if (!access(out, R_OK))
        return true;
    snprintf(out, PLUGIN_PATH_LEN, "%s", file);
    return false;
}
