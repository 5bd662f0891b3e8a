/* SPDX-License-Identifier: Apache-2.0
 *
 * load.c - the file of a placement, and the one that the environment names.
 */
#include "base/fail.h"
#include "base/text.h"
#include "seats/seats_options.h"

#include <dualpipe/seats.h>

#include <stdio.h>
#include <string.h>

/* A placement of 4096 GPUs has 30 MiB. */
enum { MAX_FILE = 1 << 30, BLOCK = 1 << 16 };

static int read_all(FILE *file, const char *path, struct dp_text *text)
{
    char block[BLOCK];
    size_t n;

    while ((n = fread(block, 1, sizeof(block), file)) > 0 && text->len <= MAX_FILE)
        dp_text_add(text, block, n);
    if (ferror(file))
        return dp_fail(DP_EIO, "%s: %s", path, strerror(errno));
    if (text->len > MAX_FILE)
        return dp_fail(DP_EINVAL, "%s: more than 1 GiB, expected a placement", path);
    return text->failed ? dp_fail(DP_ENOMEM, "%s: no memory for the file", path) : 0;
}

int dp_seats_load(const char *path, struct dp_seats **out)
{
    struct dp_text text = {0};
    FILE *file = fopen(path, "re");

    if (!file)
        return dp_fail(errno == ENOENT ? DP_ENOENT : DP_EIO, "%s: %s", path, strerror(errno));
    int err = read_all(file, path, &text);
    fclose(file);
    if (!err)
        err = dp_seats_read(text.data ? text.data : "", text.len, path, out);
    dp_text_fini(&text);
    return err;
}

int dp_seats_from_env(struct dp_seats **out)
{
    struct dp_seats_options options;
    struct dp_seats *seats = NULL;
    int err = dp_options_read(&dp_seats_option_area, &options);

    if (!err && options.file && *options.file)
        err = dp_seats_load(options.file, &seats);
    if (!err)
        *out = seats;
    return err;
}
