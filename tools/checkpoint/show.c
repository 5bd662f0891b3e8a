/* SPDX-License-Identifier: Apache-2.0
 *
 * show.c - `dualpipe checkpoint show`: what a checkpoint holds, without reading its data.
 */
#include "args.h"
#include "checkpoint/checkpoint.h"
#include "command.h"
#include "commands.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

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

static const struct arg args[] = {
    {"json", 0, NULL, "one JSON object", ARG_FLAG, .offset = offsetof(struct show_args, json)},
};

int run_checkpoint_show(int argc, char **argv)
{
    static const struct arg_group groups[] = {{"output", args, 1}, {0}};
    static const struct usage usage = {
        .command = "dualpipe checkpoint show",
        .operands = "DIR",
        .min_operands = 1,
        .max_operands = 1,
        .about = "Say what a checkpoint holds: the step, the options that the numbers depend on,\n"
                 "the layout that it was saved under, files, and every tensor with type and shape.",
        .groups = groups,
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
