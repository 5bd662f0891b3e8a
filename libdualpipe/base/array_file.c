/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "base/array_file.h"

#include "base/clock.h"
#include "base/fail.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/uio.h>
#include <unistd.h>

static const char head[] = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n";
static const char tail[] = "\n]}\n";
enum { HEAD_LEN = sizeof(head) - 1, TAIL_LEN = sizeof(tail) - 1, LOCK_S = 10, LOCK_PAUSE_NS = 1000000 };

/* 0 or an errno. */
static int lock_file(int fd)
{
    const int64_t until_ns = dp_now_ns() + LOCK_S * DP_NS_PER_S;
    const struct timespec pause = {.tv_nsec = LOCK_PAUSE_NS};

    while (flock(fd, LOCK_EX | LOCK_NB)) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return errno;
        if (dp_now_ns() > until_ns)
            return ETIMEDOUT;
        nanosleep(&pause, NULL);
    }
    return 0;
}

/* Where the tail of the array is; 0: the file is empty; -1: it is no trace. */
static off_t find_tail(int fd)
{
    char begin[HEAD_LEN], end[TAIL_LEN];
    const off_t len = lseek(fd, 0, SEEK_END);

    if (!len)
        return 0;
    const bool is_trace = len >= HEAD_LEN + TAIL_LEN &&
                          pread(fd, begin, HEAD_LEN, 0) == HEAD_LEN &&
                          pread(fd, end, TAIL_LEN, len - TAIL_LEN) == TAIL_LEN &&
                          !memcmp(begin, head, HEAD_LEN) && !memcmp(end, tail, TAIL_LEN);
    return is_trace ? len - TAIL_LEN : -1;
}

/* NULL or why not. */
static const char *add(int fd, const char *text, size_t len)
{
    const off_t at = find_tail(fd);
    const char *before = at ? ",\n" : head;

    if (at < 0)
        return "it is no trace that can be added to: expected one of dualpipe, whole";
    const struct iovec parts[] = {{(void *)(uintptr_t)before, strlen(before)},
                                  {(void *)(uintptr_t)text, len},
                                  {(void *)(uintptr_t)tail, TAIL_LEN}};
    const size_t all = parts[0].iov_len + len + TAIL_LEN;
    const ssize_t n = pwritev(fd, parts, 3, at);
    return n < 0 ? dp_errno_text(errno) : (size_t)n != all ? "only a part of it" : NULL;
}

void dp_array_file_add(const char *option, const char *path, const char *text, size_t len)
{
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    const int err = fd < 0 ? errno : lock_file(fd);
    const char *why = err ? dp_errno_text(err) : add(fd, text, len);

    if (why)
        dp_log(DP_LOG_WARN, "%s=%s: not written: %s", option, path, why);
    if (fd >= 0)
        close(fd);
}
