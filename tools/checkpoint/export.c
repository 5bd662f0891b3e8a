/* SPDX-License-Identifier: Apache-2.0
 *
 * export.c - `dualpipe checkpoint export`: the parameters as one safetensors file.
 */
#include "args.h"
#include "checkpoint/checkpoint.h"
#include "command.h"
#include "commands.h"
#include "files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct export_args {
    const char *output;
};

struct model {
    struct dp_named_tensor *tensors;
    int32_t count;
};

static void model_free(struct model *m)
{
    for (int32_t i = 0; i < m->count; i++)
        free(m->tensors[i].tensor.data);
    free(m->tensors);
}

static int add_tensor(struct model *m, const struct saved_state *s,
                      const struct dp_checkpoint_tensor *t)
{
    struct dp_named_tensor *at = &m->tensors[m->count];

    *at = (struct dp_named_tensor){.name = t->name,
                                   .tensor = {.data = malloc(t->bytes + 1),
                                              .device = {kDLCPU, 0},
                                              .ndim = t->ndim,
                                              .dtype = t->dtype,
                                              .shape = (int64_t *)(uintptr_t)t->shape}};
    if (!at->tensor.data)
        return DP_ENOMEM;
    m->count++;
    return dp_checkpoint_read(s->checkpoint, t->name, &at->tensor);
}

static int read_model(const struct saved_state *s, struct model *m)
{
    const int32_t count = dp_checkpoint_count(s->checkpoint);
    int err = 0;

    m->tensors = calloc((size_t)count + 1, sizeof(*m->tensors));
    if (!m->tensors)
        return DP_ENOMEM;
    for (int32_t i = 0; i < count && !err; i++) {
        const struct dp_checkpoint_tensor *t = dp_checkpoint_at(s->checkpoint, i);
        if (saved_state_is_parameter(s, t))
            err = add_tensor(m, s, t);
    }
    return err;
}

static int write_model(const struct saved_state *s, const char *output)
{
    struct model m = {0};
    int err = read_model(s, &m);

    if (!err)
        err = dp_checkpoint_write(output, m.tensors, m.count, NULL);
    if (!err)
        printf("%s: %d tensors of %s\n", output, m.count, s->path);
    model_free(&m);
    if (!err)
        return EXIT_OK;
    command_failed(err);
    return EXIT_FAILED; /* a damaged checkpoint is no mistake of the command line */
}

/* The checkpoint's own files are read. */
static bool output_is_apart(const struct saved_state *s, const char *output)
{
    const int32_t count = dp_checkpoint_count(s->checkpoint);
    struct file_use *uses = calloc((size_t)count + 2, sizeof(*uses));
    bool good = uses;

    if (good) {
        uses[0] = (struct file_use){"--output", output, true};
        uses[1] = (struct file_use){"", s->path, false};
        for (int32_t i = 0; i < count; i++)
            uses[2 + i] = (struct file_use){"", dp_checkpoint_at(s->checkpoint, i)->file, false};
        good = files_are_apart(uses, (size_t)count + 2);
    }
    free(uses);
    return good;
}

static const struct arg args[] = {
    {"output", 'o', "FILE", "the safetensors file to write", ARG_STRING,
     .offset = offsetof(struct export_args, output), .written = true},
};

int run_checkpoint_export(int argc, char **argv)
{
    static const struct arg_group groups[] = {{"output", args, 1}, {0}};
    static const struct usage usage = {
        .command = "dualpipe checkpoint export",
        .operands = "DIR",
        .min_operands = 1,
        .max_operands = 1,
        .about = "Write the parameters of a checkpoint under their logical names as one safetensors\n"
                 "file, whatever schedule and number of ranks it was saved under. The state of the\n"
                 "optimizer stays behind.",
        .groups = groups,
        .examples = "  dualpipe checkpoint export saved -o model.safetensors\n"
                    "  dualpipe checkpoint export saved/step-000500 -o model.safetensors\n",
    };
    struct saved_state state = {0};
    struct export_args a = {0};
    struct operands where;
    int status;

    if (!args_parse(&usage, argc, argv, &a, &where, &status))
        return status;
    if (!a.output || !strcmp(a.output, "-"))
        return command_misused("--output %s: expected the file to write, for instance "
                               "-o model.safetensors", a.output ? a.output : "is missing");
    if ((status = saved_state_open(where.items[0], &state)))
        return status;
    status = output_is_apart(&state, a.output) ? write_model(&state, a.output) : EXIT_USAGE;
    saved_state_close(&state);
    return status;
}
