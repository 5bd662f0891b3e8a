/* SPDX-License-Identifier: Apache-2.0 */
#include "train/plan_file.h"

#include "command.h"
#include "files.h"
#include "train/settings.h"

#include <jansson.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PLAN_BYTES = 1 << 20 };
static const char program_name[] = "dualpipe plan";

/* ---- lists of blocks ------------------------------------------------------------------------ */

bool block_list_parse(const char *text, void *member, char *why, size_t why_len)
{
    struct block_list *list = member;
    bool good = true;
    char *end;

    list->count = 0;
    for (const char *at = text; good; at = end + 1) {
        const long n = strtol(at, &end, 10);
        good = *at >= '0' && *at <= '9' && n <= GPT_MAX_LAYERS && list->count < BLOCK_LIST_MAX;
        if (good)
            list->items[list->count++] = (int32_t)n;
        if (!good || *end != ',')
            break;
    }
    if (good && !*end)
        return true;
    snprintf(why, why_len, "at most %d numbers of blocks, as in 1,3,3,1", BLOCK_LIST_MAX);
    return false;
}

bool block_list_equal(const struct block_list *a, const struct block_list *b)
{
    return a->count == b->count &&
           !memcmp(a->items, b->items, (size_t)a->count * sizeof(*a->items));
}

/* ---- the members ---------------------------------------------------------------------------- */

/* What a plan decides, and what it is a plan of. Each is an option of train, too. Of the parts of a
 * model a plan offloads activations only. */
static const struct member {
    const char *name;
    enum { NUMBER, WORD, LIST } type;
    bool optional;
} members[] = {
    {"schedule", WORD, false},   {"checkpoint", WORD, false},     {"ranks", NUMBER, false},
    {"microbatches", NUMBER, false}, {"layers", NUMBER, false},   {"width", NUMBER, false},
    {"heads", NUMBER, false},    {"context", NUMBER, false},      {"batch", NUMBER, false},
    {"blocks", LIST, false},     {"slack", NUMBER, true},         {"offload", WORD, true},
    {"device-memory", NUMBER, true},
};
static const char *const expected[] = {"a number", "a word", "a list of numbers of blocks"};
enum { MEMBERS = sizeof(members) / sizeof(members[0]), WORD_LEN = 64 };

/* "1,3,3,1" into *at, which has room for it. */
static bool join_blocks(const json_t *list, char *at, size_t room)
{
    const size_t count = json_array_size(list);
    size_t used = 0;

    for (size_t i = 0; i < count && used < room; i++) {
        const json_t *item = json_array_get(list, i);
        const json_int_t n = json_integer_value(item);
        if (!json_is_integer(item) || n < 0 || n > GPT_MAX_LAYERS)
            return false;
        used += (size_t)snprintf(at + used, room - used, "%s%d", i ? "," : "", (int)n);
    }
    return count > 0 && count <= BLOCK_LIST_MAX && used < room;
}

/* "--layers=8" of the member that is there. */
static bool take_member(const json_t *root, const struct member *m, char *at, size_t room)
{
    const json_t *value = json_object_get(root, m->name);
    const int used = snprintf(at, room, "--%s=", m->name);
    const char *word = json_string_value(value);

    at += used;
    room -= (size_t)used;
    if (m->type == LIST)
        return join_blocks(value, at, room);
    if (m->type == WORD)
        return word && snprintf(at, room, "%s", word) < WORD_LEN;
    return json_is_integer(value) && json_integer_value(value) >= 0 &&
           snprintf(at, room, "%" JSON_INTEGER_FORMAT, json_integer_value(value)) > 0;
}

/* ---- reading -------------------------------------------------------------------------------- */

enum { LINE = 8 * BLOCK_LIST_MAX }; /* room for a word */

static int take_members(const char *path, const json_t *root, struct plan_file *plan)
{
    const char *program = json_string_value(json_object_get(root, "program"));

    if (!program || strcmp(program, program_name))
        return command_misused("--plan %s: program: expected \"%s\"", path, program_name);
    for (int i = 0; i < MEMBERS; i++) {
        char *at = plan->text + (size_t)i * LINE;
        if (members[i].optional && !json_object_get(root, members[i].name))
            continue;
        if (!take_member(root, &members[i], at, LINE))
            return command_misused("--plan %s: %s: %s, expected %s", path, members[i].name,
                                   json_object_get(root, members[i].name) ? "something else"
                                                                          : "missing",
                                   expected[members[i].type]);
        plan->argv[1 + plan->word_count++] = at;
    }
    plan->offloads = json_object_get(root, "offload");
    if (plan->offloads != !!json_object_get(root, "device-memory"))
        return command_misused("--plan %s: one of offload and device-memory, expected both or neither",
                               path);
    return 0;
}

static int read_root(const char *path, json_t **root)
{
    json_error_t error;
    size_t len;
    char *text = input_read(path, PLAN_BYTES, &len);

    if (!text)
        return command_misused("--plan %s: %s; expected a file of 'dualpipe plan'", path,
                               strerror(errno));
    *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (json_is_object(*root))
        return 0;
    if (*root)
        error = (json_error_t){.line = 1, .column = 1, .text = "no object"};
    json_decref(*root);
    return command_misused("--plan %s: line %d, column %d: %.100s; expected a JSON file of "
                           "'dualpipe plan'", path, error.line, error.column, error.text);
}

int plan_file_read(const char *path, int argc, char **argv, struct plan_file **out)
{
    json_t *root;
    int status = read_root(path, &root);

    if (status)
        return status;
    struct plan_file *plan = calloc(1, sizeof(*plan));
    if (plan) {
        plan->argv = calloc((size_t)argc + MEMBERS + 1, sizeof(*plan->argv));
        plan->text = calloc(MEMBERS, LINE);
    }
    if (plan && plan->argv && plan->text) {
        plan->argv[0] = argv[0];
        status = take_members(path, root, plan);
        plan->argc = argc + plan->word_count;
        memcpy(plan->argv + 1 + plan->word_count, argv + 1, (size_t)(argc - 1) * sizeof(*argv));
    } else {
        status = command_broke("--plan %s: out of memory", path);
    }
    json_decref(root);
    if (status)
        plan_file_free(plan);
    else
        *out = plan;
    return status;
}

void plan_file_free(struct plan_file *plan)
{
    if (!plan)
        return;
    free(plan->text);
    free(plan->argv);
    free(plan);
}

/* ---- is it what was parsed? ------------------------------------------------------------------ */

static bool differ(const struct settings *a, const struct settings *b, const struct member *m)
{
    char room[2][RESUME_WORD];

    if (m->type == LIST)
        return !block_list_equal(&a->blocks, &b->blocks);
    const char *x = settings_value(a, m->name, room[0]), *y = settings_value(b, m->name, room[1]);
    return strcmp(x ? x : "", y ? y : "");
}

int plan_file_check(const struct plan_file *plan, const char *path, const struct usage *usage,
                    const struct settings *values)
{
    struct settings *own = calloc(1, sizeof(*own));
    char *words[1 + MEMBERS];
    struct operands none;
    int status = own ? 0 : command_broke("--plan %s: out of memory", path);

    if (!own)
        return status;
    memcpy(words, plan->argv, (1 + (size_t)plan->word_count) * sizeof(*words));
    if (!args_parse(usage, 1 + plan->word_count, words, own, &none, &status))
        status = EXIT_USAGE;
    else if (values->file)
        status = command_misused("--plan %s with --file: expected one of them", path);
    for (int i = 0; i < MEMBERS && !status; i++) {
        const char *word = strchr(plan->text + (size_t)i * LINE, '=');
        if ((plan->offloads || i < MEMBERS - 2) && /* which are about that */
            differ(own, values, &members[i]))
            status = command_misused("--%s: expected %s, as in --plan %s", members[i].name,
                                     word ? word + 1 : "0", path);
    }
    free(own);
    return status;
}

/* ---- writing -------------------------------------------------------------------------------- */

static json_t *json_blocks(const struct block_list *list)
{
    json_t *blocks = json_array();

    for (int i = 0; i < list->count; i++)
        json_array_append_new(blocks, json_integer(list->items[i]));
    return blocks;
}

/* NULL: nothing was said. */
static json_t *json_member(const struct settings *s, const struct member *m)
{
    char room[RESUME_WORD];
    const char *text = m->type == LIST ? NULL : settings_value(s, m->name, room);

    return m->type == LIST   ? json_blocks(&s->blocks)
           : !text           ? NULL
           : m->type == WORD ? json_string(text)
                             : json_integer(strtoll(text, NULL, 10));
}

int plan_file_write(FILE *to, const struct settings *s, int64_t step_ns, const size_t *rank_bytes)
{
    json_t *root = json_pack("{s:s}", "program", program_name), *bytes = json_array();

    for (int i = 0; i < MEMBERS; i++)
        json_object_set_new(root, members[i].name, json_member(s, &members[i]));
    for (int rank = 0; rank < s->how.schedule.ranks; rank++)
        json_array_append_new(bytes, json_integer((json_int_t)rank_bytes[rank]));
    json_object_set_new(root, "step_ns", json_integer(step_ns));
    json_object_set_new(root, "rank_bytes", bytes);
    const int err = root && bytes ? json_dumpf(root, to, JSON_INDENT(1)) : -1;
    json_decref(root);
    putc('\n', to);
    return err || fflush(to) ? DP_EIO : 0;
}
