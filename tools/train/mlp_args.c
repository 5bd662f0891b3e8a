/* SPDX-License-Identifier: Apache-2.0 */
#include "train/mlp_args.h"

#include "command.h"

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
