/* SPDX-License-Identifier: Apache-2.0 */
#include "base/append.h"

#include "base/fail.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

void dp_append(const char *option, const char *path, const char *text, size_t len)
{
    const bool is_stderr = !strcmp(path, "-");
    const int fd =
        is_stderr ? STDERR_FILENO : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    const ssize_t n = fd < 0 ? -1 : write(fd, text, len);

    if (n < 0)
        dp_log(DP_LOG_WARN, "%s=%s: not written: %s", option, path, dp_errno_text(errno));
    else if (n != (ssize_t)len)
        dp_log(DP_LOG_WARN, "%s=%s: only %zd of %zu bytes are written", option, path, n, len);
    if (fd >= 0 && !is_stderr)
        close(fd);
}
