/* SPDX-License-Identifier: Apache-2.0
 *
 * checkpoint.c - `dualpipe checkpoint COMMAND ...`: the table of its commands, what they share, and each
 * of them: show, without reading data; export, parameters as one file; verify.
 */
#include "args.h"
#include "command.h"
#include "commands.h"
#include "files.h"
#include "train/host.h"

#include <dualpipe/checkpoint.h>

#include <jansson.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct saved_state {
    char path[CHECKPOINT_PATH]; /* of the index, or the file */
    struct dp_checkpoint *checkpoint;
    json_t *about; /* what train/settings.h describes; {} of another program */
};

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

/* Open the newest checkpoint at `where`. 0, else an EXIT_ value after one line. */
static int saved_state_open(const char *where, struct saved_state *out)
{
    int status = input_checkpoint("", where, out->path);
    int err = status ? 0 : dp_checkpoint_open(out->path, &out->checkpoint);

    if (status)
        return status;
    if (err)
        return command_failed(err);
    out->about = json_loads(dp_checkpoint_json(out->checkpoint), 0, NULL);
    return EXIT_OK;
}

static void saved_state_close(struct saved_state *s)
{
    json_decref(s->about);
    dp_checkpoint_close(s->checkpoint);
    *s = (struct saved_state){0};
}

/* `dualpipe train` wrote it. */
static bool saved_state_is_train(const struct saved_state *s)
{
    const char *program = json_string_value(json_object_get(s->about, "program"));

    return program && !strcmp(program, "dualpipe train");
}

/* The names of a state have a '/': "NAME/mean", "replica 1/NAME". */
static bool saved_state_is_parameter(const struct saved_state *s, const struct dp_checkpoint_tensor *t)
{
    return !saved_state_is_train(s) || !strchr(t->name, '/');
}

/* The name of the file that holds a tensor, without its folder. */
static const char *saved_state_file(const struct dp_checkpoint_tensor *t)
{
    const char *slash = strrchr(t->file, '/');

    return slash ? slash + 1 : t->file;
}

/* ---- show: what there is, without reading data ----------------------------------------------- */

enum { SHAPE_LEN = 96, TYPE_LEN = 16, SIZE_LEN = 24 };

struct show_args {
    bool json;
};

/* As the format writes it: F32, BF16, U8 ... */
static const char *type_name(DLDataType t, char out[static TYPE_LEN])
{
    const char *letters = t.code == kDLFloat    ? "F"
                          : t.code == kDLBfloat ? "BF"
                          : t.code == kDLInt    ? "I"
                          : t.code == kDLUInt   ? "U"
                                                : "";

    snprintf(out, TYPE_LEN, "%s%d", letters, t.bits);
    return out;
}

static const char *shape_text(const struct dp_checkpoint_tensor *t, char out[static SHAPE_LEN])
{
    size_t len = 0;

    snprintf(out, SHAPE_LEN, "-");
    for (int32_t i = 0; i < t->ndim && len < SHAPE_LEN - 1; i++)
        len += (size_t)snprintf(out + len, SHAPE_LEN - len, "%s%" PRId64, i ? " x " : "",
                                t->shape[i]);
    return out;
}

static const char *size_text(uint64_t bytes, char out[static SIZE_LEN])
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double size = (double)bytes;
    int unit = 0;

    for (; size >= 1024 && unit < 4; unit++)
        size /= 1024;
    snprintf(out, SIZE_LEN, unit ? "%.1f %s" : "%.0f %s", size, units[unit]);
    return out;
}

/* ---- sums ----------------------------------------------------------------------------------- */

struct sum {
    int32_t tensors;
    uint64_t bytes;
};

static void add(struct sum *s, const struct dp_checkpoint_tensor *t)
{
    s->tensors++;
    s->bytes += t->bytes;
}

static bool seen_before(const struct dp_checkpoint *c, int32_t index)
{
    for (int32_t i = 0; i < index; i++)
        if (!strcmp(dp_checkpoint_at(c, i)->file, dp_checkpoint_at(c, index)->file))
            return true;
    return false;
}

static struct sum sum_of_file(const struct dp_checkpoint *c, const char *file)
{
    struct sum s = {0};

    for (int32_t i = 0; i < dp_checkpoint_count(c); i++)
        if (!strcmp(dp_checkpoint_at(c, i)->file, file))
            add(&s, dp_checkpoint_at(c, i));
    return s;
}

static struct sum sum_of(const struct saved_state *s, bool parameters)
{
    struct sum sum = {0};

    for (int32_t i = 0; i < dp_checkpoint_count(s->checkpoint); i++) {
        const struct dp_checkpoint_tensor *t = dp_checkpoint_at(s->checkpoint, i);
        if (saved_state_is_parameter(s, t) == parameters)
            add(&sum, t);
    }
    return sum;
}

/* ---- for people ----------------------------------------------------------------------------- */

static void print_words(const char *title, const json_t *list)
{
    if (!json_array_size(list))
        return;
    printf("%-11s", title);
    for (size_t i = 0; i < json_array_size(list); i++)
        printf(" %s", json_string_value(json_array_get(list, i)));
    putchar('\n');
}

static void print_sum(const char *title, struct sum s)
{
    char size[SIZE_LEN];

    printf("%-11s %d tensor%s, %s\n", title, s.tensors, s.tensors == 1 ? "" : "s",
           size_text(s.bytes, size));
}

static void print_head(const struct saved_state *s)
{
    const json_t *step = json_object_get(s->about, "step");
    const char *program = json_string_value(json_object_get(s->about, "program"));

    printf("checkpoint  %s\n", s->path);
    if (program)
        printf("program     %s\n", program);
    if (json_is_integer(step))
        printf("step        %" JSON_INTEGER_FORMAT "\n", json_integer_value(step));
    print_words("options", json_object_get(s->about, "options"));
    print_words("layout", json_object_get(s->about, "layout"));
    print_sum("parameters", sum_of(s, true));
    print_sum("state", sum_of(s, false));
}

static int width_of_names(const struct dp_checkpoint *c)
{
    int width = 6;

    for (int32_t i = 0; i < dp_checkpoint_count(c); i++) {
        int len = (int)strlen(dp_checkpoint_at(c, i)->name);
        width = len > width ? len : width;
    }
    return width;
}

static void print_text(const struct saved_state *s)
{
    const struct dp_checkpoint *c = s->checkpoint;
    const int width = width_of_names(c);
    char shape[SHAPE_LEN], type[TYPE_LEN];

    print_head(s);
    for (int32_t i = 0; i < dp_checkpoint_count(c); i++)
        if (!seen_before(c, i))
            print_sum(saved_state_file(dp_checkpoint_at(c, i)),
                      sum_of_file(c, dp_checkpoint_at(c, i)->file));
    printf("\n%-*s  type  %-14s %12s  file\n", width, "tensor", "shape", "bytes");
    for (int32_t i = 0; i < dp_checkpoint_count(c); i++) {
        const struct dp_checkpoint_tensor *t = dp_checkpoint_at(c, i);
        printf("%-*s  %-4s  %-14s %12" PRIu64 "  %s\n", width, t->name, type_name(t->dtype, type),
               shape_text(t, shape), t->bytes, saved_state_file(t));
    }
}

/* ---- for programs --------------------------------------------------------------------------- */

static json_t *json_tensor(const struct saved_state *s, const struct dp_checkpoint_tensor *t)
{
    json_t *shape = json_array(), *o;
    char type[TYPE_LEN], sum[16];

    for (int32_t i = 0; i < t->ndim; i++)
        json_array_append_new(shape, json_integer(t->shape[i]));
    o = json_pack("{s:s, s:s, s:o, s:I, s:b, s:s}", "name", t->name, "dtype",
                  type_name(t->dtype, type), "shape", shape, "bytes", (json_int_t)t->bytes,
                  "parameter", saved_state_is_parameter(s, t), "file", saved_state_file(t));
    snprintf(sum, sizeof(sum), "%08" PRIx32, t->checksum);
    json_object_set_new(o, "crc32c", t->has_checksum ? json_string(sum) : json_null());
    return o;
}

static json_t *json_files(const struct dp_checkpoint *c)
{
    json_t *files = json_array();

    for (int32_t i = 0; i < dp_checkpoint_count(c); i++) {
        const struct dp_checkpoint_tensor *t = dp_checkpoint_at(c, i);
        if (seen_before(c, i))
            continue;
        const struct sum s = sum_of_file(c, t->file);
        json_array_append_new(files, json_pack("{s:s, s:i, s:I}", "name", saved_state_file(t),
                                               "tensors", s.tensors, "bytes", (json_int_t)s.bytes));
    }
    return files;
}

static void print_json(const struct saved_state *s)
{
    json_t *o = json_object(), *tensors = json_array();

    json_object_set_new(o, "path", json_string(s->path));
    json_object_update(o, s->about);
    json_object_set_new(o, "files", json_files(s->checkpoint));
    for (int32_t i = 0; i < dp_checkpoint_count(s->checkpoint); i++)
        json_array_append_new(tensors, json_tensor(s, dp_checkpoint_at(s->checkpoint, i)));
    json_object_set_new(o, "tensors", tensors);
    json_dumpf(o, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(o);
}

/* ---- the command ---------------------------------------------------------------------------- */

static const struct arg show_rows[] = {
    {"json", 0, NULL, "one JSON object", ARG_FLAG, .offset = offsetof(struct show_args, json)},
};

int run_checkpoint_show(int argc, char **argv)
{
    static const struct arg_group groups[] = {{"output", show_rows, 1}, {0}};
    static const struct usage usage = {
        .command = "dualpipe checkpoint show", .operands = "DIR", .min_operands = 1,
        .max_operands = 1, .groups = groups,
        .about = "Say what a checkpoint holds: the step, the options that the numbers depend on,\n"
                 "the layout that it was saved under, files, and every tensor with type and shape.",
        .examples = "  dualpipe checkpoint show saved\n"
                    "  dualpipe checkpoint show saved/step-000500 --json\n",
    };
    struct saved_state state = {0};
    struct show_args a = {0};
    struct operands where;
    int status;

    if (!args_parse(&usage, argc, argv, &a, &where, &status))
        return status;
    if ((status = saved_state_open(where.items[0], &state)))
        return status;
    if (a.json)
        print_json(&state);
    else
        print_text(&state);
    saved_state_close(&state);
    return EXIT_OK;
}

/* ---- export: the parameters as one file ------------------------------------------------------ */

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

static const struct arg export_rows[] = {
    {"output", 'o', "FILE", "the safetensors file to write", ARG_STRING,
     .offset = offsetof(struct export_args, output), .written = true},
};

int run_checkpoint_export(int argc, char **argv)
{
    static const struct arg_group groups[] = {{"output", export_rows, 1}, {0}};
    static const struct usage usage = {
        .command = "dualpipe checkpoint export", .operands = "DIR", .min_operands = 1,
        .max_operands = 1, .groups = groups,
        .about = "Write the parameters of a checkpoint under their logical names as one safetensors\n"
                 "file, whatever schedule and number of ranks it was saved under. The state of the\n"
                 "optimizer stays behind.",
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

/* ---- verify: every checksum, and every part -------------------------------------------------- */

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
        .command = "dualpipe checkpoint verify", .operands = "DIR", .min_operands = 1,
        .max_operands = 1, .groups = groups,
        .about = "Read a checkpoint, compare the checksum of every tensor, and look whether every\n"
                 "file, tensor and piece of the optimizer's state is there that\n"
                 "'dualpipe train --resume' reads. Each fault is named with the file and the\n"
                 "tensor. Exit status 1: there is one.",
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
    if ((status = input_checkpoint("", where.items[0], state.path)))
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
