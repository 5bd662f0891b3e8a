/* SPDX-License-Identifier: Apache-2.0
 *
 * verify.c - `dualpipe checkpoint verify`: every damaged tensor and every part that is missing is
 * named, not the first alone.
 */
#include "args.h"
#include "checkpoint/checkpoint.h"
#include "command.h"
#include "commands.h"
#include "train/host.h"

#include <inttypes.h>
#include <stdio.h>

struct findings {
    const struct saved_state *state;
    int32_t tensors, unchecked, faults;
    uint64_t bytes;
};

static void fault(void *user, const char *sentence)
{
    struct findings *f = user;

    f->faults++;
    command_broke("checkpoint '%s': %s", f->state->path, sentence);
}

/* ---- checksums ------------------------------------------------------------------------------ */

static void compare(struct findings *f, const struct dp_checkpoint_tensor *t)
{
    f->tensors++;
    f->bytes += t->bytes;
    f->unchecked += !t->has_checksum;
    /* Which says what is wrong. */
    f->faults += dp_checkpoint_read(f->state->checkpoint, t->name, NULL) != 0;
}

/* ---- the command ---------------------------------------------------------------------------- */

static int report(const struct findings *f)
{
    if (f->faults) {
        printf("%s: CANNOT be used: %d fault%s in %d tensors\n", f->state->path, f->faults,
               f->faults > 1 ? "s" : "", f->tensors);
        return EXIT_FAILED;
    }
    printf("%s: whole: %d tensors, %" PRIu64 " bytes", f->state->path, f->tensors, f->bytes);
    if (f->unchecked)
        printf("; %d of them have no checksum to compare with", f->unchecked);
    putchar('\n');
    return EXIT_OK;
}

int run_checkpoint_verify(int argc, char **argv)
{
    static const struct arg_group groups[] = {{0}};
    static const struct usage usage = {
        .command = "dualpipe checkpoint verify",
        .operands = "DIR",
        .min_operands = 1,
        .max_operands = 1,
        .about = "Read a checkpoint, compare the checksum of every tensor, and look whether every\n"
                 "file, tensor and piece of the optimizer's state is there that\n"
                 "'dualpipe train --resume' reads. Each fault is named with the file and the\n"
                 "tensor. Exit status 1: there is one.",
        .groups = groups,
        .examples = "  dualpipe checkpoint verify saved\n"
                    "  dualpipe checkpoint verify saved/step-000500\n"
                    "  dualpipe checkpoint verify model.safetensors\n",
    };
    struct saved_state state = {0};
    struct findings f = {.state = &state};
    struct operands where;
    int status, none;

    if (!args_parse(&usage, argc, argv, &none, &where, &status))
        return status;
    if ((status = checkpoint_find("", where.items[0], state.path)))
        return status; /* the mistake is in the command line */
    if ((status = saved_state_open(where.items[0], &state)))
        return EXIT_FAILED;
    for (int32_t i = 0; i < dp_checkpoint_count(state.checkpoint); i++)
        compare(&f, dp_checkpoint_at(state.checkpoint, i));
    const int err = saved_state_is_train(&state)
                        ? host_verify(state.checkpoint, state.path, fault, &f)
                        : 0;
    status = err ? command_failed(err) : report(&f);
    saved_state_close(&state);
    return status;
}
