/* SPDX-License-Identifier: Apache-2.0
 *
 * checkpoint.c - `dualpipe checkpoint COMMAND ...`: the table of its commands, and what they share.
 */
#include "checkpoint/checkpoint.h"

#include "command.h"
#include "commands.h"

#include <string.h>

static const struct command commands[] = {
    {"verify", "compare every checksum, and look whether every part is there",
     run_checkpoint_verify},
    {"show", "its step, options, layout, files and tensors", run_checkpoint_show},
    {"export", "its parameters as one safetensors file", run_checkpoint_export},
    {0},
};

static const struct command_set set = {
    .name = "dualpipe checkpoint",
    .about = "Saved states of 'dualpipe train' (or of another program that has the library write\n"
             "them). DIR is a folder with checkpoints, of which the newest is taken, or the folder\n"
             "of one; or a safetensors file.",
    .commands = commands,
    .examples = "  dualpipe checkpoint verify saved\n"
                "  dualpipe checkpoint show saved/step-000500\n"
                "  dualpipe checkpoint export saved -o model.safetensors\n",
};

int run_checkpoint(int argc, char **argv)
{
    return command_dispatch(&set, argc, argv);
}

/* ---- what the commands share ---------------------------------------------------------------- */

int saved_state_open(const char *where, struct saved_state *out)
{
    int status = checkpoint_find("", where, out->path);
    int err = status ? 0 : dp_checkpoint_open(out->path, &out->checkpoint);

    if (status)
        return status;
    if (err)
        return command_failed(err);
    out->about = json_loads(dp_checkpoint_json(out->checkpoint), 0, NULL);
    return EXIT_OK;
}

void saved_state_close(struct saved_state *s)
{
    json_decref(s->about);
    dp_checkpoint_close(s->checkpoint);
    *s = (struct saved_state){0};
}

bool saved_state_is_train(const struct saved_state *s)
{
    const char *program = json_string_value(json_object_get(s->about, "program"));

    return program && !strcmp(program, "dualpipe train");
}

/* The names of a state have a '/': "NAME/mean", "replica 1/NAME". */
bool saved_state_is_parameter(const struct saved_state *s, const struct dp_checkpoint_tensor *t)
{
    return !saved_state_is_train(s) || !strchr(t->name, '/');
}

const char *saved_state_file(const struct dp_checkpoint_tensor *t)
{
    const char *slash = strrchr(t->file, '/');

    return slash ? slash + 1 : t->file;
}
