/* SPDX-License-Identifier: Apache-2.0
 *
 * format.c - write and read schedules in any format; whether two are equal.
 */
#include "schedule/format.h"
#include "schedule/internal.h"

#include "base/fail.h"
#include "base/text.h"
#include "schedule/build.h"

#include <string.h>

static int no_format(enum dp_format format)
{
    return dp_fail(DP_EINVAL, "format: %d, expected DP_FORMAT_TEXT, _JSON, _CSV or _PYTORCH", format);
}

int dp_schedule_write(const struct dp_schedule *s, enum dp_format format, char **out, size_t *len)
{
    struct dp_text t = {0};
    int err = 0;

    switch (format) {
    case DP_FORMAT_TEXT:
        dp_write_text(s, ' ', &t);
        break;
    case DP_FORMAT_JSON:
        dp_write_json(s, &t);
        break;
    case DP_FORMAT_CSV:
        dp_write_text(s, ',', &t);
        break;
    case DP_FORMAT_PYTORCH:
        err = dp_write_pytorch(s, &t);
        break;
    default:
        err = no_format(format);
    }
    if (err) {
        dp_text_fini(&t);
        return err;
    }
    return dp_text_take(&t, out, len);
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool begins_with_brace(const char *text, size_t len)
{
    size_t at = 0;

    while (at < len && text[at] && strchr(" \t\r\n", text[at]))
        at++;
    return at < len && text[at] == '{';
}

int dp_schedule_read(const char *text, size_t len, enum dp_format format,
                     struct dp_schedule **out)
{
    struct dp_draft draft = {.streams = 1};
    int err = dp_utf8_begin(&text, &len, NULL);

    if (err)
        return err;
    switch (format) {
    case DP_FORMAT_TEXT:
    case DP_FORMAT_CSV:
        if (begins_with_brace(text, len))
            err = dp_fail(DP_EINVAL, "JSON, expected text; DP_FORMAT_JSON reads it");
        else
            err = dp_read_text(text, len, &draft);
        break;
    case DP_FORMAT_JSON:
        err = dp_read_json(text, len, &draft);
        break;
    case DP_FORMAT_PYTORCH:
        err = dp_read_pytorch(text, len, &draft);
        break;
    default:
        err = no_format(format);
    }
    if (!err)
        err = dp_draft_finish(&draft, out);
    dp_draft_fini(&draft);
    return err;
}

/* ---- equality -------------------------------------------------------------------------------- */

static bool same_header(const struct dp_schedule *a, const struct dp_schedule *b)
{
    return a->kind == b->kind && a->ranks == b->ranks && a->stages == b->stages &&
           a->streams == b->streams && a->max_slots == b->max_slots &&
           a->microbatches == b->microbatches && a->mb_per_stream == b->mb_per_stream &&
           a->forward_only == b->forward_only && a->return_outputs == b->return_outputs &&
           a->overlap == b->overlap && a->slack == b->slack;
}

bool dp_schedule_equal(const struct dp_schedule *a, const struct dp_schedule *b)
{
    size_t ranks = (size_t)a->ranks;

    if (!same_header(a, b))
        return false;
    if (memcmp(a->first_slot, b->first_slot, (ranks + 1) * sizeof(*a->first_slot)))
        return false;
    for (size_t i = 0; i < a->first_slot[ranks]; i++)
        if (!dp_slots_equal(&a->slots[i], &b->slots[i]))
            return false;
    return dp_skips_equal(a, b) &&
           !memcmp(a->group_rank, b->group_rank, ranks * sizeof(*a->group_rank)) &&
           !memcmp(a->first, b->first, (ranks + 1) * sizeof(*a->first)) &&
           (!a->first[ranks] || !memcmp(a->ops, b->ops, a->first[ranks] * sizeof(*a->ops)));
}
