/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule/form.h"

#include "base/fail.h"

int dp_schedule_write(const struct dp_schedule *s, enum dp_format format, char **out, size_t *len)
{
    struct dp_text t = {0};

    switch (format) {
    case DP_FORMAT_JSON:
        dp_write_json(s, &t);
        return dp_text_take(&t, out, len);
    default:
        return dp_fail(DP_EINVAL, "format: %d, expected DP_FORMAT_TEXT, _JSON or _CSV", format);
    }
}
