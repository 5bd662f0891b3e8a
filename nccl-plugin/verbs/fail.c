/* SPDX-License-Identifier: Apache-2.0
 *
 * fail.c - the error of a connection.
 */
#include "base/clock.h"
#include "nccl-plugin/verbs/comm.h"

#include <stdarg.h>
#include <stdio.h>

void dpn_verbs_fail(struct dpn_verbs *v, int error, const char *fmt, ...)
{
    va_list args;

    if (v->error)
        return;
    v->error = error;
    va_start(args, fmt);
    vsnprintf(v->why, sizeof(v->why), fmt, args);
    va_end(args);
    v->failed_ns = dp_now_ns();
}
