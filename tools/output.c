/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "output.h"

#include "command.h"

#include <dualpipe/dualpipe.h>

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

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

void output_drop(struct output *out)
{
    if (!out->path)
        return;
    fclose(out->file);
    if (out->temporary)
        unlink(out->temporary);
    free(out->temporary);
    free(out->target);
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
