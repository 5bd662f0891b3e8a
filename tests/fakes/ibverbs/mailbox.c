/* SPDX-License-Identifier: Apache-2.0 */
#include "fabric.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void name_pipe(int mailbox, char *out, size_t len)
{
    snprintf(out, len, "%s/mailbox-%d", getenv("FAKE_VERBS_FABRIC"), mailbox);
}

int fv_mailbox_open(const char *host, const char *device, int *fd)
{
    char path[512];
    int i = 0;

    while (i < FV_MAILBOXES && fv->mailboxes[i].used)
        i++;
    if (i == FV_MAILBOXES) {
        errno = EMFILE;
        return -1;
    }
    name_pipe(i, path, sizeof(path));
    unlink(path);
    if (mkfifo(path, 0600))
        return -1;
    *fd = open(path, O_RDWR | O_CLOEXEC);
    if (*fd < 0)
        return -1;
    struct fv_mailbox *m = &fv->mailboxes[i];
    *m = (struct fv_mailbox){.used = true, .pid = getpid()};
    snprintf(m->host, sizeof(m->host), "%s", host);
    snprintf(m->device, sizeof(m->device), "%s", device);
    return i;
}

void fv_mailbox_close(int mailbox, int fd)
{
    char path[512];

    name_pipe(mailbox, path, sizeof(path));
    unlink(path);
    close(fd);
    fv->mailboxes[mailbox].used = false;
}

/* A full box loses what is new, and so does one whose process is gone. */
void fv_post_letter(int mailbox, int type, uint64_t element)
{
    struct fv_mailbox *m = mailbox < 0 ? NULL : &fv->mailboxes[mailbox];
    char path[512];

    if (!m || !m->used || m->count == FV_LETTERS)
        return;
    name_pipe(mailbox, path, sizeof(path));
    int fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    m->letters[(m->head + m->count) % FV_LETTERS] = (struct fv_letter){element, type};
    if (write(fd, "", 1) == 1)
        m->count++;
    close(fd);
}

void fv_post_port_event(const struct fv_port *port, enum ibv_event_type type)
{
    for (int i = 0; i < FV_MAILBOXES; i++) {
        const struct fv_mailbox *m = &fv->mailboxes[i];
        if (m->used && !strcmp(m->device, port->device) && !strcmp(m->host, port->host))
            fv_post_letter(i, (int)type, (uint64_t)port->number);
    }
}

bool fv_is_mailbox_of(int mailbox, pid_t pid, const char *device)
{
    const struct fv_mailbox *m = &fv->mailboxes[mailbox];

    return m->used && m->pid == pid && !strcmp(m->device, device);
}

void fv_forget_letters(int mailbox, uint64_t element)
{
    struct fv_mailbox *m = &fv->mailboxes[mailbox];
    unsigned kept = 0;

    for (unsigned i = 0; i < m->count; i++) {
        const struct fv_letter l = m->letters[(m->head + i) % FV_LETTERS];
        if (l.element != element)
            m->letters[(m->head + kept++) % FV_LETTERS] = l;
    }
    m->count = kept;
}

static bool take_byte(int fd)
{
    char byte;
    ssize_t n;

    do
        n = read(fd, &byte, 1);
    while (n < 0 && errno == EINTR);
    return n == 1;
}

/* A byte without a letter is of one that was forgotten. */
int fv_wait_letter(int mailbox, int fd, struct fv_letter *out)
{
    struct fv_mailbox *m = &fv->mailboxes[mailbox];
    bool is_there = false;

    while (!is_there) {
        if (!take_byte(fd))
            return -1;
        fv_lock();
        is_there = m->count > 0;
        if (is_there) {
            *out = m->letters[m->head];
            m->head = (m->head + 1) % FV_LETTERS;
            m->count--;
        }
        fv_unlock();
    }
    return 0;
}
