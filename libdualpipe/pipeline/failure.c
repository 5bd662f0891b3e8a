/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/failure.h"

#include "base/fail.h"
#include "comm/comm_core.h"

#include <dualpipe/stage.h>

#include <stdio.h>

void dp_failure_tell(struct dp_comm *comm, int error)
{
    char text[DP_ABORT_TEXT];

    if (!comm || error == DP_EABORTED)
        return;
    snprintf(text, sizeof(text), "%s", dp_last_error());
    const int failed = dp_comm_survives(comm) ? dp_comm_revoke(comm, error, text) : error;
    if (failed)
        dp_comm_fail(comm, failed);
    dp_fail_quietly(error, "%s", text);
}

static _Thread_local struct {
    int err;
    char text[DP_ABORT_TEXT];
} reason;

int dp_callback_error_text(int err, const char *text)
{
    snprintf(reason.text, sizeof(reason.text), "%s", text ? text : "");
    reason.err = err;
    return err;
}

const char *dp_callback_reason(int err)
{
    bool given = reason.err == err;

    reason.err = 0;
    return given ? reason.text : "";
}
