/* SPDX-License-Identifier: Apache-2.0
 *
 * load.c - the file of a placement, and the one that the environment names.
 */
#include "base/fail.h"
#include "base/text.h"
#include "placement/assignment_options.h"

#include <dualpipe/assignment.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A placement of 4096 GPUs has 30 MiB. */
enum { MAX_FILE = 1 << 30 };

int dp_assignment_load(const char *path, struct dp_assignment **out)
{
    struct dp_text text = {0};
    int err = dp_text_add_file(&text, path, MAX_FILE, "a placement");

    if (!err)
        err = dp_assignment_read(text.data ? text.data : "", text.len, path, out);
    dp_text_fini(&text);
    return err;
}

static void number(struct dp_assignment *s)
{
    for (int32_t w = 0; w < s->worker_count; w++)
        s->workers[w].process = w;
}

int dp_assignment_from_env(struct dp_assignment **out)
{
    struct dp_assignment_options options;
    struct dp_assignment *assignment = NULL;
    int err = dp_options_read(&dp_assignment_option_area, &options);

    if (!err && options.file && *options.file) {
        if (access(options.file, R_OK))
            return dp_fail(errno == ENOENT ? DP_ENOENT : DP_EIO, "DUALPIPE_PLACEMENT=%s: %s",
                           options.file, strerror(errno));
        err = dp_assignment_load(options.file, &assignment);
    }
    if (!err && assignment && options.numbered)
        number(assignment);
    if (!err)
        *out = assignment;
    return err;
}
