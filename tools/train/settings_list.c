/* SPDX-License-Identifier: Apache-2.0
 *
 * settings_list.c - which schedule is carried out: one that is built (--schedule), or the list of a
 * file (--file).
 */
#include "train/settings.h"

#include "command.h"
#include "schedule_args.h"

#include <stdio.h>
#include <string.h>

static bool has_kind(const struct dp_schedule *s, enum dp_op_kind kind)
{
    for (size_t i = 0; i < s->first[s->ranks]; i++)
        if (s->ops[i].kind == kind)
            return true;
    return false;
}

/* What no list can be trained with. */
static bool check_list(const struct settings *s)
{
    const struct dp_schedule *list = s->training;

    if (list->forward_only || (!has_kind(list, DP_OP_B) && !has_kind(list, DP_OP_I)))
        command_misused("--file %s: no backward, expected a schedule of training steps", s->file);
    else if (has_kind(list, DP_OP_REDUCE))
        command_misused("--file %s: has REDUCE, expected none; they are added where gradients are "
                        "complete",
                        s->file);
    else if (s->offload.any && (has_kind(list, DP_OP_RECOMPUTE) || has_kind(list, DP_OP_EVICT)))
        command_misused("--offload with --file %s: has RECOMPUTE or EVICT, expected none; they are "
                        "added where the device's memory needs them",
                        s->file);
    else if (s->placement)
        command_misused("--placement with --file %s: expected one of them", s->file);
    else
        return true;
    return false;
}

/* false, after one line, if the option was given another number than the list has. */
static bool take_number(const struct settings *s, const char *option, int64_t has, int64_t *member)
{
    if (*member && *member != has) {
        command_misused("%s %d: expected %d, as in --file %s", option, (int)*member, (int)has,
                        s->file);
        return false;
    }
    *member = has;
    return true;
}

static bool read_list(struct settings *s, int *status)
{
    if (s->schedule_name || s->slack)
        *status = command_misused("%s %s and --file %s: expected one of them",
                                  s->slack ? "--slack" : "--schedule",
                                  s->slack ? "1" : s->schedule_name, s->file);
    else
        *status = schedule_file_read(s->file, &s->training);
    if (*status)
        return false;
    *status = EXIT_USAGE;
    s->schedule_name = dp_schedule_kind_name(s->training->kind);
    return check_list(s) && take_number(s, "-P", s->training->ranks, &s->ranks) &&
           take_number(s, "-M", s->training->microbatches * s->how.replicas, &s->microbatches);
}

bool settings_take_list(struct settings *s, int *status)
{
    if (s->file)
        return read_list(s, status);
    if (!s->schedule_name)
        s->schedule_name = "dualpipe";
    if (!s->microbatches)
        s->microbatches = 8;
    if (s->how.schedule.virtual_stages && strcmp(s->schedule_name, "interleaved"))
        *status = command_misused("--virtual-stages %d: expected --schedule interleaved",
                                  (int)s->how.schedule.virtual_stages);
    else if (s->slack && strncmp(s->schedule_name, "dualpipe", 8))
        *status = command_misused("--slack 1: expected --schedule dualpipe or dualpipev");
    else
        return true;
    return false;
}

bool settings_finish_list(struct settings *s, int *status)
{
    struct dp_finding finding;
    int err = dp_schedule_check(s->training, NULL, &finding);

    if (!err)
        err = recompute_add(s->training, s->checkpoint, &s->checkpoint_stages);
    if (!err && settings_reduce_early(s))
        err = dp_schedule_add_all_reduces(s->training);
    else if (!err && s->training->streams > 1)
        err = dp_schedule_add_reduces(s->training);
    if (!err)
        err = dp_schedule_new_forward(s->training, &s->forward);
    if (err)
        *status = command_failed(err);
    return !err;
}
