/* SPDX-License-Identifier: Apache-2.0
 *
 * atomic_file.h - a file that gets its name when it is complete and on the disk.
 *
 *      err = dp_atomic_begin(&f, path);
 *      if (!err)
 *          err = dp_atomic_write(&f, data, len);
 *      err = dp_atomic_end(&f, err);
 */
#ifndef DP_CHECKPOINT_ATOMIC_FILE_H
#define DP_CHECKPOINT_ATOMIC_FILE_H

#include <stddef.h>

struct dp_atomic_file {
    const char *path; /* the caller's */
    char *target;     /* without symbolic links: they stay what they are */
    char *partial;    /* NULL: a device or a pipe, which is written in place */
    int fd;
};

/* Create PATH.*.partial, a name that cannot be guessed, and remove what earlier writers left so.
 * DP_EIO, DP_ENOENT, DP_ENOMEM. */
int dp_atomic_begin(struct dp_atomic_file *f, const char *path);
int dp_atomic_write(struct dp_atomic_file *f, const void *data, size_t len);
/* With err 0: sync the file, give it its name, sync its directory. Otherwise remove it. Returns err, or
 * what went wrong now. Must follow a begin, also one that failed. */
int dp_atomic_end(struct dp_atomic_file *f, int err);

#endif
