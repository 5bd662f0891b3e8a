/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_plan.c - any bytes read as a plan of `dualpipe plan`. What can be read is words of a command
 * line; where these can be parsed they are the plan, which comes back the same when it is written.
 */
#include "config.h"

#include "fuzz.h"

#include "args.h"
#include "train/settings.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct settings values, back;

/* A file's name for the bytes, until it is closed. */
static int make_file(const void *data, size_t size, char path[32])
{
    const int fd = memfd_create("plan", MFD_CLOEXEC);

    must(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, 32, "/proc/self/fd/%d", fd);
    return fd;
}

/* false: there is no such plan. */
static bool read_plan(const void *data, size_t size, struct settings *out, struct word_list *plan)
{
    static char program[] = "train";
    char *argv[] = {program, NULL}, path[32];
    const int fd = make_file(data, size, path);
    struct operands none;
    int argc = 1, status = plan_file_read(path, plan);

    close(fd);
    memset(out, 0, sizeof(*out));
    char **line = word_list_before(plan, &argc, argv);
    const bool good = !status && args_parse(&settings_usage, argc, line, out, &none, &status);
    free(line);
    if (!good)
        word_list_fini(plan);
    return good;
}

static void write_and_read_back(void)
{
    static const size_t rank_bytes[1024];
    struct word_list plan = {0};
    char *text = NULL;
    size_t len;
    FILE *to = open_memstream(&text, &len);

    must(to && !plan_file_write(to, &values, 1, rank_bytes));
    fclose(to);
    must(read_plan(text, len, &back, &plan));
    must(settings_same(&back, &values, PLANNED | OFFLOADED, "as in", "the plan", ""));
    word_list_fini(&plan);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool quiet;
    struct word_list plan = {0};

    if (!quiet)
        must(freopen("/dev/null", "w", stderr)); /* what is wrong with a plan is said there */
    quiet = true;
    if (!read_plan(data, size, &values, &plan))
        return 0;
    write_and_read_back();
    word_list_fini(&plan);
    return 0;
}
