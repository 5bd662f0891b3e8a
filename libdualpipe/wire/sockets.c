/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: accept4, dup3 */
#include "config.h" /* GNU extensions: MSG_CMSG_CLOEXEC */

#include "wire/sockets.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FILES = 1 << 20, WORD = 64 }; /* as many as Linux lets a process have */

/* Held while a file is opened, and not while one is closed, which may take as long as a socket lingers.
 * A fork waits until none is being closed, so no child has a file that is not known. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t all_closed = PTHREAD_COND_INITIALIZER;
static int closing;
static uint64_t ours[FILES / WORD]; /* a bit for each; what was never used takes no memory */
static int end;                     /* all of them are below */

unsigned dp_forks_passed; /* written only in a child that has one thread yet */

/* ---- which there are --------------------------------------------------------------------------- */

static int add_locked(int fd)
{
    if (fd < 0 || fd >= FILES)
        return fd;
    ours[fd / WORD] |= UINT64_C(1) << fd % WORD;
    if (fd >= end)
        end = fd + 1;
    return fd;
}

int dp_socket_open(int family)
{
    pthread_mutex_lock(&lock);
    const int fd = add_locked(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    pthread_mutex_unlock(&lock);
    return fd;
}

int dp_socket_accept(int listening)
{
    pthread_mutex_lock(&lock);
    const int fd = add_locked(accept4(listening, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
    pthread_mutex_unlock(&lock);
    return fd;
}

int dp_socket_epoll(void)
{
    pthread_mutex_lock(&lock);
    const int fd = add_locked(epoll_create1(EPOLL_CLOEXEC));
    pthread_mutex_unlock(&lock);
    return fd;
}

void dp_fd_close(int fd)
{
    if (fd < 0)
        return;
    pthread_mutex_lock(&lock);
    if (fd < FILES)
        ours[fd / WORD] &= ~(UINT64_C(1) << fd % WORD);
    closing++;
    pthread_mutex_unlock(&lock);
    close(fd);
    pthread_mutex_lock(&lock);
    if (!--closing)
        pthread_cond_broadcast(&all_closed);
    pthread_mutex_unlock(&lock);
}

/* ---- forks ------------------------------------------------------------------------------------- */

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
    while (closing)
        pthread_cond_wait(&all_closed, &lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

/* The first one is closed before there is a socket for all, so that there is room for that. */
static void replace(int fd, int *nowhere)
{
    if (*nowhere < 0) {
        close(fd);
        *nowhere = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    }
    if (*nowhere >= 0 && *nowhere != fd)
        dup3(*nowhere, fd, O_CLOEXEC);
}

/* System calls only: other threads of the parent may have been anywhere. */
static void after_fork_in_child(void)
{
    const int saved = errno;
    int nowhere = -1;

    dp_forks_passed++;
    for (int fd = 0; fd < end; fd++)
        if (ours[fd / WORD] >> fd % WORD & 1)
            replace(fd, &nowhere);
    /* It has taken a lower number than the first of them. */
    if (nowhere >= 0 && !(ours[nowhere / WORD] >> nowhere % WORD & 1))
        close(nowhere);
    errno = saved;
    after_fork();
}

void dp_sockets_stay(void)
{
    static atomic_bool is_known;

    if (!atomic_exchange(&is_known, true))
        pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

/* ---- fds ------------------------------------------------------------------------------------- */

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
