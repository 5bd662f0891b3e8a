/* SPDX-License-Identifier: Apache-2.0
 *
 * fds.h - bytes on a unix socket, and a file that goes along with them.
 */
#ifndef DP_WIRE_FDS_H
#define DP_WIRE_FDS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Whether the kernel accepts files that are sent to this unix socket, or to the connections of a
 * listening one that it does not have yet. Kernels before 6.16 always do. */
void dp_fds_allow(int socket, bool allow);

/* As send and recv, without ever waiting: what they return, and errno. fd: goes along with the first
 * byte, -1 none; it stays the caller's. */
ssize_t dp_fds_send(int socket, const void *bytes, size_t len, int fd);
/* *fd: -1, or a file that came before and is closed if another one comes. Behind the bytes with which a
 * file came no others follow in the same call. */
ssize_t dp_fds_receive(int socket, void *bytes, size_t len, int *fd);

#endif
