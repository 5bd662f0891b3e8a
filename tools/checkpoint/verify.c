/* SPDX-License-Identifier: Apache-2.0
 *
 * verify.c - `dualpipe checkpoint verify`: every damaged tensor and every part that is missing is
 * named, not the first alone.
 */
#include "args.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/piece.h"
#include "command.h"
#include "commands.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct findings {
    const struct saved_state *state;
    int32_t tensors, unchecked, faults;
    uint64_t bytes;
};

static void missing(struct findings *f, const char *what, const char *of)
{
    f->faults++;
    command_broke("checkpoint '%s': %s%s is missing", f->state->path, what, of);
}

/* ---- checksums ------------------------------------------------------------------------------ */

static void compare(struct findings *f, const struct dp_checkpoint_tensor *t)
{
    f->tensors++;
    f->bytes += t->bytes;
    f->unchecked += !t->has_checksum;
    /* Which says what is wrong. */
    f->faults += dp_checkpoint_verify_tensor(f->state->checkpoint, t->name) != 0;
}

/* ---- what a job must have saved ------------------------------------------------------------- */

/* Elements of the parameter that a piece is of; -1: it is not there. */
static int64_t elements_of_parameter(const struct findings *f, const char *name,
                                     const struct piece *p)
{
    char whole[256];

    if (p->name_len >= (int)sizeof(whole))
        return -1;
    memcpy(whole, name, (size_t)p->name_len);
    whole[p->name_len] = '\0';
    const struct dp_checkpoint_tensor *t = dp_checkpoint_find(f->state->checkpoint, whole);
    return t ? piece_elements(t->ndim, t->shape) : -1;
}

/* Pieces do not overlap: together they are as long as the parameter. Each set of pieces is looked at
 * when its first one is met. */
static void check_pieces(struct findings *f, const struct dp_checkpoint_tensor *t)
{
    const struct dp_checkpoint *c = f->state->checkpoint;
    const struct piece p = piece_of(t->name, piece_elements(t->ndim, t->shape));
    int64_t sum = 0, whole;
    char what[320];

    for (int32_t i = 0; i < dp_checkpoint_count(c); i++) {
        const struct dp_checkpoint_tensor *other = dp_checkpoint_at(c, i);
        const struct piece q = piece_of(other->name, piece_elements(other->ndim, other->shape));
        if (!piece_same(t->name, &p, other->name, &q))
            continue;
        if (!sum && other != t)
            return; /* not the first */
        sum += q.end - q.first;
    }
    whole = elements_of_parameter(f, t->name, &p);
    if (whole < 0) {
        snprintf(what, sizeof(what), "the parameter of '%s'", t->name);
        missing(f, what, "");
    } else if (t->ndim && sum < whole) {
        snprintf(what, sizeof(what), "a part of '%.*s%s' (%" PRId64 " of %" PRId64 " elements)",
                 p.name_len, t->name, p.suffix, whole - sum, whole);
        missing(f, what, "");
    }
}

/* Is there a tensor, or a piece, of NAME/mean or so? */
static bool has_state(const struct findings *f, const char *name, const char *suffix)
{
    const struct dp_checkpoint *c = f->state->checkpoint;
    const struct piece wanted = {suffix, (int)strlen(name), 0, 0};
    char whole[256];

    snprintf(whole, sizeof(whole), "%s%s", name, suffix);
    if (dp_checkpoint_find(c, whole))
        return true;
    for (int32_t i = 0; i < dp_checkpoint_count(c); i++) {
        const struct piece p = piece_of(dp_checkpoint_at(c, i)->name, 0);
        if (piece_same(name, &wanted, dp_checkpoint_at(c, i)->name, &p))
            return true;
    }
    return false;
}

/* A parameter whose state of the optimizer is there has all of it. */
static void check_state(struct findings *f, const struct dp_checkpoint_tensor *t)
{
    static const char *const parts[] = {"/mean", "/square", "/step"};
    enum { PARTS = sizeof(parts) / sizeof(parts[0]) };
    bool has[PARTS], any = false;
    char name[256];

    for (int i = 0; i < PARTS; i++) {
        has[i] = has_state(f, t->name, parts[i]);
        any = any || has[i];
    }
    for (int i = 0; i < PARTS && any; i++)
        if (!has[i]) {
            snprintf(name, sizeof(name), "tensor '%s%s'", t->name, parts[i]);
            missing(f, name, "");
        }
}

/* The number of "--layers=8" in the options; 0: not there. */
static int layers_of(const struct saved_state *s)
{
    const json_t *options = json_object_get(s->about, "options");
    static const char word[] = "--layers=";

    for (size_t i = 0; i < json_array_size(options); i++) {
        const char *text = json_string_value(json_array_get(options, i));
        if (text && !strncmp(text, word, sizeof(word) - 1))
            return atoi(text + sizeof(word) - 1);
    }
    return 0;
}

/* What there is of one block there is of each. */
static void check_blocks(struct findings *f, const struct dp_checkpoint_tensor *t)
{
    const int layers = layers_of(f->state);
    char name[256];
    int block, begin = 0;

    if (sscanf(t->name, "block %d %n", &block, &begin) != 1 || !begin)
        return;
    for (int i = 1; i <= layers; i++) {
        snprintf(name, sizeof(name), "block %d %s", i, t->name + begin);
        if (dp_checkpoint_find(f->state->checkpoint, name))
            continue;
        /* Said once: by the first block that has it. */
        for (int before = 1; before < block; before++) {
            char earlier[256];
            snprintf(earlier, sizeof(earlier), "block %d %s", before, t->name + begin);
            if (dp_checkpoint_find(f->state->checkpoint, earlier))
                return;
        }
        snprintf(name, sizeof(name), "tensor 'block %d %s'", i, t->name + begin);
        missing(f, name, "");
    }
}

static void check_tensor(struct findings *f, const struct dp_checkpoint_tensor *t)
{
    compare(f, t);
    if (!saved_state_is_train(f->state))
        return;
    if (saved_state_is_parameter(f->state, t)) {
        check_blocks(f, t);
        check_state(f, t);
    } else if (strncmp(t->name, "replica ", 8)) {
        check_pieces(f, t);
    }
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
                 "file, tensor and piece of the optimizer's state is there. Each fault is named\n"
                 "with the file and the tensor. Exit status 1: there is one.",
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
        check_tensor(&f, dp_checkpoint_at(state.checkpoint, i));
    status = report(&f);
    saved_state_close(&state);
    return status;
}
