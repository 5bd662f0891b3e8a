/* SPDX-License-Identifier: Apache-2.0
 *
 * sockets.h - the descriptors that wires keep open, all opened and closed here, so that the set is
 * known. A forked child inherits them, and as long as it lives the peer of a wire does not see that
 * the process has ended: no end of stream arrives, and a listener still accepts connections that no
 * process will answer. dp_sockets_stay prevents that.
 */
#ifndef DP_WIRE_SOCKETS_H
#define DP_WIRE_SOCKETS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* From now on a forked child gets an unconnected socket in place of each of these descriptors: its
 * inherited wires fail when it uses them, and closing them affects no other process. May be called
 * any number of times, from any thread. Children of vfork, posix_spawn and clone are not covered:
 * they are about to execute another program, which inherits none. */
void dp_sockets_stay(void);

/* How many forks lie between this process and the one that called dp_sockets_stay. What was made
 * under another number is the parent's, and this process may not use it. */
extern unsigned dp_forks_passed;

/* As socket, accept and epoll_create: -1 and errno. None waits (SOCK_NONBLOCK), nor is passed to another
 * program. Any thread. */
int dp_socket_open(int family);
int dp_socket_accept(int listening);
int dp_socket_epoll(void);

/* Any file; -1 is fine. */
void dp_fd_close(int fd);

/* ---- fds ------------------------------------------------------------------------------------- */

/* Bytes on a unix socket, and a file that goes along with them. */

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
