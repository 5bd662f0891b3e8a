/* SPDX-License-Identifier: Apache-2.0
 *
 * sockets.h - the files that wires keep open, all made and closed here, so that it is known which there
 * are. A child that the process forks has them, too, and as long as it lives the peer of a wire does not
 * see that its process has ended: no end of the stream arrives, and at a listener's door calls go on
 * to be taken that nobody will answer. So a process may keep them to itself.
 */
#ifndef DP_WIRE_SOCKETS_H
#define DP_WIRE_SOCKETS_H

/* From now on a child that is forked gets, in place of each of these files, a socket that leads nowhere:
 * what it has inherited fails, and closing that closes nothing else. Any number of times, any thread.
 * Not for children of vfork, posix_spawn or clone: they are about to become another program, which gets
 * none. */
void dp_sockets_stay(void);

/* As socket, accept and epoll_create: -1 and errno. None waits (SOCK_NONBLOCK), nor is passed to another
 * program. Any thread. */
int dp_socket_open(int family);
int dp_socket_accept(int listening);
int dp_socket_epoll(void);

/* Any file; -1 is fine. */
void dp_fd_close(int fd);

#endif
