/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_pytorch.c - any bytes read as a list of PyTorch's. What can be read can be checked, has an
 * evaluation unless its forwards block each other, can be written, and comes back the same.
 */
#include "fuzz.h"
#include "schedule/internal.h"

#include <dualpipe/schedule.h>

#include <stdlib.h>

static void write_and_read_back(const struct dp_schedule *s, enum dp_format format)
{
    struct dp_schedule *back;
    char *text;
    size_t len;

    must(!dp_schedule_write(s, format, &text, &len));
    must(!dp_schedule_read(text, len, format, &back));
    must(dp_schedule_equal(s, back));
    dp_schedule_free(back);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dp_schedule *s, *forward;
    struct dp_finding finding;

    if (dp_schedule_read((const char *)data, size, DP_FORMAT_PYTORCH, &s)) {
        must(*dp_last_error());
        return 0;
    }
    const bool valid = !dp_schedule_check(s, NULL, &finding);
    must(valid || *finding.text);
    const bool evaluates = !dp_schedule_new_forward(s, &forward);
    must(evaluates || !valid);
    if (evaluates) {
        must(!valid || !dp_schedule_check(forward, NULL, &finding));
        dp_schedule_free(forward);
    }
    if (valid) /* else a B may stand beside a W, which is read as the input's part */
        write_and_read_back(s, DP_FORMAT_PYTORCH);
    write_and_read_back(s, DP_FORMAT_TEXT);
    dp_schedule_free(s);
    return 0;
}
