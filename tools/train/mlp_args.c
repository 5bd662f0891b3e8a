/* SPDX-License-Identifier: Apache-2.0 */
#include "train/mlp_args.h"

#include "command.h"

#include <string.h>

enum { BATCH = 128, LEAST = 2 }; /* samples; one alone has no variance */

bool mlp_args_take(struct settings *s)
{
    if (!s->batch)
        s->batch = BATCH;
    s->sample = 0; /* a classifier writes no text */
    if (s->data.count > 0)
        command_misused("--data %s: expected none with --model mlp-bn, whose samples are generated",
                        s->data.items[0]);
    else if (s->offload.any)
        command_misused("--offload: expected --model gpt; mlp-bn keeps what it holds");
    else if (s->dropout > 0)
        command_misused("--dropout %g: expected 0 with --model mlp-bn, which has none", s->dropout);
    else if (s->batch < LEAST * s->microbatches)
        command_misused("--batch %d: expected at least %d with --model mlp-bn, %d samples for each "
                        "micro-batch (-M), which are normalised together",
                        (int)s->batch, (int)(LEAST * s->microbatches), LEAST);
    else
        return true;
    return false;
}

const char *const mlp_norm_forms[] = {"corrected", "compat", NULL};
const char *const mlp_norm_variances[] = {"biased", "unbiased", NULL};
const char *const mlp_norm_scopes[] = {"all", "replica", NULL};

static bool is_given_as(const char *value, const char *word)
{
    return value && !strcmp(value, word);
}

static bool check_norm(const struct settings *s, const struct norm_form *norm)
{
    const char *option = s->batch_norm            ? "--batch-norm"
                         : s->batch_norm_variance ? "--batch-norm-variance"
                         : s->batch_norm_over     ? "--batch-norm-over"
                                                  : NULL;

    if (option && strcmp(s->model_name, "mlp-bn"))
        command_misused("%s: expected --model mlp-bn; %s has no batch normalisation", option,
                        s->model_name);
    else if (norm->compat && norm->unbiased)
        command_misused("--batch-norm compat with --batch-norm-variance unbiased: expected biased, "
                        "which is the only one there");
    else if (norm->compat && s->replicas > 1)
        command_misused("--batch-norm compat: expected -D 1, not %d; its sums are of one replica",
                        (int)s->replicas);
    else if (norm->compat && s->training && s->training->streams > 1)
        command_misused("--batch-norm compat: expected a schedule that holds each layer once, such as "
                        "async, not %s; its sums are of one rank",
                        s->schedule_name);
    else
        return true;
    return false;
}

bool mlp_args_take_norm(struct settings *s)
{
    s->model.norm = (struct norm_form){
        .compat = is_given_as(s->batch_norm, "compat"),
        .unbiased = is_given_as(s->batch_norm_variance, "unbiased"),
        .per_replica = is_given_as(s->batch_norm_over, "replica"),
    };
    return check_norm(s, &s->model.norm);
}
