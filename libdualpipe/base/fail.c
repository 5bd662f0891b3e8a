/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"

#include "base/text.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static _Thread_local char last_error[DP_FAIL_TEXT];

static dp_log_fn log_fn;
static void *log_user;
static atomic_int log_level = -1; /* -1: DUALPIPE_LOG_LEVEL has not been read yet */

static const char *const level_names[] = {"error", "warn", "info", "debug"};

static void put(enum dp_log_level level, const char *line)
{
    if (log_fn)
        log_fn(log_user, level, line);
    else
        fprintf(stderr, "dualpipe: %s: %s\n", level_names[level], line);
}

static void warn_once_of(const char *name)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    char line[160];

    if (atomic_flag_test_and_set(&told))
        return;
    snprintf(line, sizeof(line),
             "DUALPIPE_LOG_LEVEL=%.40s: expected one of error, warn, info, debug; going on with warn",
             name);
    put(DP_LOG_WARN, line);
}

/* Logging must work before and without the option tables, so this one variable is read here; in the
 * list of options (base/options.c) a bad value is an error like any other. */
static int current_level(void)
{
    int level = atomic_load_explicit(&log_level, memory_order_relaxed);
    if (level >= 0)
        return level;

    const char *name = getenv("DUALPIPE_LOG_LEVEL");
    for (level = DP_LOG_DEBUG; name && level >= 0 && strcmp(name, level_names[level]); level--)
        ;
    const bool is_bad = name && level < 0;
    if (!name || is_bad)
        level = DP_LOG_WARN;
    atomic_store_explicit(&log_level, level, memory_order_relaxed);
    if (is_bad)
        warn_once_of(name);
    return level;
}

void dp_log_set(dp_log_fn fn, void *user, enum dp_log_level level)
{
    log_fn = fn;
    log_user = user;
    atomic_store_explicit(&log_level, (int)level, memory_order_relaxed);
    current_level(); /* so that a bad one is said before any message, and before any fork */
}

static void emit(enum dp_log_level level, const char *line)
{
    if ((int)level <= current_level())
        put(level, line);
}

void dp_log(enum dp_log_level level, const char *fmt, ...)
{
    char line[DP_FAIL_TEXT];
    va_list args;

    if ((int)level > current_level())
        return;
    va_start(args, fmt);
    dp_vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    emit(level, line);
}

/* The sentence may quote the one before it, so it is made beside it first. */
DP_PRINTF(1, 0) static void keep(const char *fmt, va_list args)
{
    char line[sizeof(last_error)];

    dp_vsnprintf(line, sizeof(line), fmt, args);
    memcpy(last_error, line, strlen(line) + 1);
}

int dp_fail(int err, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    keep(fmt, args);
    va_end(args);
    emit(DP_LOG_ERROR, last_error);
    return err;
}

int dp_fail_quietly(int err, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    keep(fmt, args);
    va_end(args);
    return err;
}

const char *dp_errno_text(int error)
{
    static _Thread_local char text[160];
    struct rlimit files;

    if (error == ENFILE)
        snprintf(text, sizeof(text), "%s (for all processes together: raise fs.file-max)",
                 strerror(error));
    else if (error == EMFILE && !getrlimit(RLIMIT_NOFILE, &files))
        snprintf(text, sizeof(text),
                 "%s (this process may have %llu: raise it with 'ulimit -n')", strerror(error),
                 (unsigned long long)files.rlim_cur);
    else
        return strerror(error);
    return text;
}

const char *dp_last_error(void)
{
    return last_error;
}

const char *dp_strerror(int err)
{
    switch (err) {
    case 0:
        return "success";
    case DP_EAGAIN:
        return "DP_EAGAIN";
    case DP_EINVAL:
        return "DP_EINVAL";
    case DP_EINTERRUPTED:
        return "DP_EINTERRUPTED";
    case DP_ENOMEM:
        return "DP_ENOMEM";
    case DP_ENODEV:
        return "DP_ENODEV";
    case DP_ENOENT:
        return "DP_ENOENT";
    case DP_EUNSUPPORTED:
        return "DP_EUNSUPPORTED";
    case DP_ESTATE:
        return "DP_ESTATE";
    case DP_EMISMATCH:
        return "DP_EMISMATCH";
    case DP_ECOMM:
        return "DP_ECOMM";
    case DP_ETIMEDOUT:
        return "DP_ETIMEDOUT";
    case DP_EIO:
        return "DP_EIO";
    case DP_ECALLBACK:
        return "DP_ECALLBACK";
    case DP_EABORTED:
        return "DP_EABORTED";
    default:
        return strerror(err < 0 ? -err : err);
    }
}

#define TEXT_OF(x)    #x
#define TEXT_OF_VALUE(x) TEXT_OF(x)

const char *dp_version(void)
{
    return TEXT_OF_VALUE(DP_VERSION_MAJOR) "." TEXT_OF_VALUE(DP_VERSION_MINOR) "." TEXT_OF_VALUE(
        DP_VERSION_PATCH);
}
