/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: MSG_CMSG_CLOEXEC */

#include "wire/fds.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* asm-generic/socket.h */
#endif

void dp_fds_allow(int socket, bool allow)
{
    const int on = allow;

    setsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &on, sizeof(on));
}

union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
};

ssize_t dp_fds_send(int socket, const void *bytes, size_t len, int fd)
{
    union control control = {0};
    struct iovec iov = {(void *)bytes, len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (fd >= 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof(int));
    }
    return sendmsg(socket, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Keep the last file; there may be more of them than were asked for. */
static void take_files(struct msghdr *msg, int *fd)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            if (*fd >= 0)
                close(*fd);
            memcpy(fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
        }
    }
}

ssize_t dp_fds_receive(int socket, void *bytes, size_t len, int *fd)
{
    union control control;
    struct iovec iov = {bytes, len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes,
                         .msg_controllen = sizeof(control.bytes)};
    const ssize_t n = recvmsg(socket, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

    if (n >= 0)
        take_files(&msg, fd);
    return n;
}
