/* SPDX-License-Identifier: Apache-2.0 */
#include "args.h"

#include "command.h"
#include "files.h"

#include <dualpipe/topology.h>

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_ARGS = 96, HELP_ID = 1000 };

const char *const args_text_or_json[] = {"text", "json", NULL};
static const struct arg help_arg = {"help", 'h', NULL, "print this", .type = ARG_FLAG};

/* ---- numbers with units --------------------------------------------------------------------- */

struct unit {
    const char *name;
    double factor;
};

static const struct unit no_unit[] = {{"", 1}, {0}};
static const struct unit time_units[] = {
    {"", 1e6}, {"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {0},
};
static const struct unit byte_units[] = {
    {"", 1},      {"B", 1},          {"k", 1e3},         {"kB", 1e3},       {"KB", 1e3},
    {"MB", 1e6},  {"GB", 1e9},       {"K", 1024},        {"M", 1048576},    {"G", 1073741824},
    {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824}, {0},
};
static const struct unit rate_units[] = {
    {"", 1},          {"GB/s", 1},       {"MB/s", 1e-3},      {"kB/s", 1e-6},
    {"Gb/s", 1 / 8.}, {"Mb/s", 1e-3 / 8}, {"GiB/s", 1.073741824}, {0},
};

/* What a type is: bytes of its member, 0: its owner's affair; units of a number, and its name. */
static const struct kind {
    size_t bytes;
    const struct unit *units;
    const char *noun;
} kinds[] = {
    [ARG_FLAG] = {sizeof(bool), NULL, NULL},
    [ARG_INT] = {sizeof(int64_t), no_unit, "a whole number"},
    [ARG_REAL] = {sizeof(double), no_unit, "a number"},
    [ARG_TIME] = {sizeof(double), time_units, "a time such as 5us or 2.5ms (a bare number is in ms)"},
    [ARG_BYTES] = {sizeof(double), byte_units, "a size such as 4096, 64KiB or 1.5MB"},
    [ARG_RATE] = {sizeof(double), rate_units,
                  "a rate such as 25GB/s or 400Gb/s (a bare number is in GB/s)"},
    [ARG_STRING] = {sizeof(char *), NULL, NULL},
    [ARG_CHOICE] = {sizeof(char *), NULL, NULL},
    [ARG_LIST] = {sizeof(struct arg_list), NULL, NULL},
    [ARG_OPTION] = {0, NULL, NULL},
};

static bool parse_number(const char *text, const struct unit *units, double *value)
{
    char *end;
    double number = strtod(text, &end);

    if (end == text || !isfinite(number))
        return false;
    for (const struct unit *u = units; u->name; u++)
        if (!strcmp(end, u->name)) {
            *value = number * u->factor;
            return true;
        }
    return false;
}

bool args_parse_time(const char *text, double *ns)
{
    return parse_number(text, time_units, ns);
}

bool args_parse_bytes(const char *text, double *bytes)
{
    return parse_number(text, byte_units, bytes);
}

/* ---- one value ------------------------------------------------------------------------------ */

struct arg args_resolve(const struct arg *a)
{
    static const enum arg_type types[] = {
        [DP_OPTION_INT] = ARG_INT,   [DP_OPTION_INT32] = ARG_INT,     [DP_OPTION_REAL] = ARG_REAL,
        [DP_OPTION_BOOL] = ARG_FLAG, [DP_OPTION_STRING] = ARG_STRING, [DP_OPTION_ENUM] = ARG_CHOICE,
    };
    struct arg r = *a;
    int32_t count = 0;
    const struct dp_option *o = a->type == ARG_OPTION ? a->options(&count) : NULL;

    while (count && strcmp(o->name, a->name))
        o++, count--;
    if (!count)
        return r;
    r.type = types[o->type];
    r.option = o;
    r.offset += o->offset;
    r.letter = o->letter;
    r.value = o->value;
    r.help = a->help ? a->help : o->help;
    r.min = (double)o->min;
    r.max = (double)o->max;
    r.choices = o->choices;
    return r;
}

static bool parse_int(const char *text, int64_t *value)
{
    char *end;

    errno = 0;
    *value = strtoll(text, &end, 0);
    return !errno && end != text && !*end;
}

/* As it is read: in the largest unit of which it is a whole number; the first unit has no name. */
static const char *with_unit(double number, const struct unit *units, char *text, size_t len)
{
    const struct unit *best = units;

    for (const struct unit *u = units + 1; u->name; u++)
        if (number == floor(number / u->factor) * u->factor &&
            (!*best->name || u->factor > best->factor))
            best = u;
    snprintf(text, len, "%.15g%s", *best->name ? number / best->factor : number, best->name);
    return text;
}

/* Within the arg's bounds? Else says so in why. */
static bool bounded(const struct arg *a, double number, char *why, size_t why_len)
{
    bool any = a->min == 0 && a->max == 0;
    char min[32], max[32];

    if (any ? number >= 0 : number >= a->min && number <= a->max)
        return true;
    if (any)
        snprintf(why, why_len, "%s that is not negative", kinds[a->type].noun);
    else
        snprintf(why, why_len, "%s from %s to %s", kinds[a->type].noun,
                 with_unit(a->min, kinds[a->type].units, min, sizeof(min)),
                 with_unit(a->max, kinds[a->type].units, max, sizeof(max)));
    return false;
}

static bool set_number(const struct arg *a, const char *text, void *member, char *why,
                       size_t why_len)
{
    int64_t whole = 0;
    double number = 0;
    bool good = a->type == ARG_INT ? parse_int(text, &whole)
                                   : parse_number(text, kinds[a->type].units, &number);

    if (!good) {
        snprintf(why, why_len, "%s", kinds[a->type].noun);
        return false;
    }
    if (!bounded(a, a->type == ARG_INT ? (double)whole : number, why, why_len))
        return false;
    if (a->type == ARG_INT)
        *(int64_t *)member = whole;
    else
        *(double *)member = number;
    return true;
}

static size_t count_names(const char *const *names)
{
    size_t count = 0;

    while (names[count])
        count++;
    return count;
}

static void join_choices(const struct arg *a, const char *separator, char *out, size_t len)
{
    size_t used = 0;

    *out = '\0';
    for (size_t i = 0; a->choices[i] && used < len; i++)
        used += (size_t)snprintf(out + used, len - used, "%s%s", i ? separator : "",
                                 a->choices[i]);
}

static bool set_choice(const struct arg *a, const char *text, const char **member, char *why,
                       size_t why_len)
{
    char list[256];

    for (size_t i = 0; a->choices[i]; i++)
        if (!strcmp(text, a->choices[i])) {
            *member = a->choices[i];
            return true;
        }
    join_choices(a, ", ", list, sizeof(list));
    const char *near = dp_nearest(text, a->choices, count_names(a->choices));
    if (near)
        snprintf(why, why_len, "one of %s; did you mean %s?", list, near);
    else
        snprintf(why, why_len, "one of %s", list);
    return false;
}

static bool add_to_list(struct arg_list *list, const char *text, char *why, size_t why_len)
{
    if (list->count == ARG_LIST_MAX) {
        snprintf(why, why_len, "at most %d of them", ARG_LIST_MAX);
        return false;
    }
    list->items[list->count++] = text;
    return true;
}

static bool set_option(const struct arg *a, const char *text, void *values, char *why,
                       size_t why_len)
{
    const char *name = text ? text : "1"; /* a flag */

    if (a->type == ARG_CHOICE && !set_choice(a, text, &name, why, why_len))
        return false;
    values = (char *)values + a->offset - a->option->offset; /* the struct that the table is of */
    return dp_option_set(a->option, name, values, why, why_len);
}

static bool set_value(const struct arg *a, const char *text, void *values, char *why,
                      size_t why_len)
{
    void *member = (char *)values + a->offset;

    if (a->option)
        return set_option(a, text, values, why, why_len);
    switch (a->type) {
    case ARG_FLAG:
        *(bool *)member = true;
        return true;
    case ARG_STRING:
        *(const char **)member = text;
        return true;
    case ARG_CHOICE:
        return set_choice(a, text, member, why, why_len);
    case ARG_LIST:
        return add_to_list(member, text, why, why_len);
    case ARG_PARSE:
        return a->parse(text, member, why, why_len);
    case ARG_OPTION: /* resolved */
        return false;
    default:
        return set_number(a, text, member, why, why_len);
    }
}

/* What ARG_PARSE fills its owner zeroes, or gives a fallback. */
static void set_empty(const struct arg *a, void *values)
{
    const bool is_int32 =
        a->option && (a->type == ARG_CHOICE || a->option->type == DP_OPTION_INT32);

    memset((char *)values + a->offset, 0, is_int32 ? sizeof(int32_t) : kinds[a->type].bytes);
}

/* ---- --help --------------------------------------------------------------------------------- */

static void print_arg(const struct arg *a)
{
    /* Beside the options where a line has room for it, otherwise below them. */
    const int indent = fold_columns(stdout, 0) < 60 ? 8 : 31;
    char left[96], value[256] = "", help[512];
    int len = a->letter ? snprintf(left, sizeof(left), "  -%c, --%s", a->letter, a->name)
                        : snprintf(left, sizeof(left), "      --%s", a->name);

    if (a->type == ARG_CHOICE)
        join_choices(a, "|", value, sizeof(value));
    else if (a->value)
        snprintf(value, sizeof(value), "%s", a->value);
    if (*value)
        len += snprintf(left + len, sizeof(left) - (size_t)len, " %s", value);
    if (len >= indent)
        printf("%s\n%*s", left, indent, "");
    else
        printf("%-*s", indent, left);
    if (a->fallback && *a->fallback)
        snprintf(help, sizeof(help), "%s (default %s)", a->help, a->fallback);
    else
        snprintf(help, sizeof(help), "%s", a->help);
    fold_line(stdout, help, indent, indent);
}

static void print_help(const struct usage *u)
{
    fold_at(HELP_COLUMNS);
    printf("usage: %s%s%s [OPTION...]\n\n", u->command, u->operands ? " " : "",
           u->operands ? u->operands : "");
    fold_paragraph(stdout, u->about);
    if (u->operand_choices) {
        printf("\n  %-29s", u->operands);
        fold_line(stdout, u->operand_choices, 31, 31);
    }
    for (const struct arg_group *g = u->groups; g->title; g++) {
        printf("\n%s:\n", g->title);
        for (size_t i = 0; i < g->count; i++) {
            const struct arg a = args_resolve(&g->args[i]);
            print_arg(&a);
        }
    }
    putchar('\n');
    print_arg(&help_arg);
    printf("\nexamples:\n%s", u->examples);
}

/* ---- the command line ----------------------------------------------------------------------- */

/* All args of all groups, as a flat list and as getopt wants them. */
struct parser {
    const struct usage *usage;
    struct arg args[MAX_ARGS];
    size_t count, long_count;
    struct option longs[2 * MAX_ARGS + 1];
    char shorts[4 * MAX_ARGS + 3];
};

/* What getopt_long returns for an option by its name: HELP_ID + its number, and for its old name: */
enum { OLD_ID = HELP_ID + MAX_ARGS };

static void add_letter(struct parser *p, char letter, bool has_value)
{
    const char added[] = {letter, has_value ? ':' : '\0', '\0'};

    if (letter)
        strcat(p->shorts, added);
}

static void add_arg(struct parser *p, const struct arg *given)
{
    const struct arg *a = &p->args[p->count];
    const int number = (int)p->count;

    p->args[p->count++] = args_resolve(given);
    const int has_value = a->type != ARG_FLAG;

    p->longs[p->long_count++] = (struct option){a->name, has_value, NULL, HELP_ID + number};
    if (a->old_name)
        p->longs[p->long_count++] = (struct option){a->old_name, has_value, NULL, OLD_ID + number};
    add_letter(p, a->letter, has_value);
    add_letter(p, a->old_letter, has_value);
}

static void init_parser(struct parser *p, const struct usage *u)
{
    *p = (struct parser){.usage = u, .shorts = ":"}; /* ':' asks getopt to tell a missing value */
    add_arg(p, &help_arg);
    for (const struct arg_group *g = u->groups; g->title; g++)
        for (size_t i = 0; i < g->count && p->count < MAX_ARGS; i++)
            add_arg(p, &g->args[i]);
}

static const struct arg *find_arg(const struct parser *p, int id)
{
    if (id >= OLD_ID)
        return &p->args[id - OLD_ID];
    if (id >= HELP_ID)
        return &p->args[id - HELP_ID];
    for (size_t i = 0; i < p->count; i++)
        if (p->args[i].letter == id || p->args[i].old_letter == id)
            return &p->args[i];
    return NULL;
}

/* getopt has stopped at `word`: it is unknown, ambiguous, or a flag that was given a value. */
static int bad_option(const struct parser *p, const char *word)
{
    const char *names[MAX_ARGS], *command = p->usage->command, *near;
    const struct arg *flag = optopt >= HELP_ID ? find_arg(p, optopt) : NULL;
    char name[64];

    if (flag)
        return command_misused("--%s takes no value", flag->name);
    if (optopt)
        return command_misused("-%c is no option of '%s'; '%s --help' lists them", optopt, command,
                               command);
    for (size_t i = 0; i < p->count; i++)
        names[i] = p->args[i].name;
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(word + 2, "="), word + 2);
    near = dp_nearest(name, names, p->count);
    if (near)
        return command_misused("--%s is no option of '%s'; did you mean --%s?", name, command,
                               near);
    return command_misused("--%s is no option of '%s'; '%s --help' lists them", name, command,
                           command);
}

static int missing_value(const struct parser *p)
{
    const struct arg *a = find_arg(p, optopt);
    char choices[256];

    if (a->type != ARG_CHOICE)
        return command_misused("--%s needs a value: %s: %s", a->name, a->value, a->help);
    join_choices(a, ", ", choices, sizeof(choices));
    return command_misused("--%s needs a value: one of %s", a->name, choices);
}

static void warn_of_old_name(const struct arg *a, int id)
{
    if (id >= OLD_ID)
        fprintf(stderr, "dualpipe: --%s is now called --%s; the next release drops the old name\n",
                a->old_name, a->name);
    else if (id < HELP_ID && a->old_letter == id)
        fprintf(stderr, "dualpipe: -%c is now called -%c; the next release drops the old letter\n",
                id, a->letter);
}

static int take_option(const struct parser *p, int id, void *values)
{
    const struct arg *a = find_arg(p, id);
    char why[512] = "something else";

    warn_of_old_name(a, id);
    if (set_value(a, optarg, values, why, sizeof(why)))
        return EXIT_OK;
    return command_misused("--%s %s: expected %s", a->name, optarg, why);
}

static int take_operands(const struct usage *u, int argc, char **argv, struct operands *operands)
{
    *operands = (struct operands){argc - optind, argv + optind};
    if (operands->count < u->min_operands)
        return command_misused("'%s' needs %s; '%s --help' explains", u->command, u->operands,
                               u->command);
    if (u->operands && !u->max_operands)
        return EXIT_OK;
    if (operands->count > u->max_operands)
        return command_misused("'%s' is too much: '%s' takes %s", operands->items[u->max_operands],
                               u->command, u->operands ? u->operands : "options only");
    return EXIT_OK;
}

/* ---- files ---------------------------------------------------------------------------------- */

enum { MAX_FILES = 256 };

struct file_list {
    struct file_use uses[MAX_FILES];
    size_t count;
};

static void add_file(struct file_list *list, const char *option, const char *path, bool written)
{
    if (path && list->count < MAX_FILES)
        list->uses[list->count++] = (struct file_use){option, path, written};
}

static void add_files_of_arg(struct file_list *list, const struct arg *a, const void *values,
                             char option[static 32])
{
    const void *member = (const char *)values + a->offset;

    if (!a->value || (strncmp(a->value, "FILE", 4) && !a->or_file))
        return;
    snprintf(option, 32, "--%s", a->name);
    if (a->type == ARG_STRING)
        add_file(list, option, *(const char *const *)member, a->written);
    for (size_t i = 0; a->type == ARG_LIST && i < ((const struct arg_list *)member)->count; i++)
        add_file(list, option, ((const struct arg_list *)member)->items[i], a->written);
}

/* "ring/ll128=FILE" is a file with a label. */
static const char *file_of_operand(const char *operand)
{
    const char *equals = strchr(operand, '=');

    return equals && access(operand, F_OK) ? equals + 1 : operand;
}

static int check_files(const struct parser *p, const void *values, const struct operands *operands)
{
    struct file_list list = {.count = 0};
    char options[MAX_ARGS][32];

    for (int i = 0; p->usage->operand_files && i < operands->count; i++)
        add_file(&list, "", file_of_operand(operands->items[i]), false);
    for (size_t i = 1; i < p->count; i++) /* 0 is --help, which has no member */
        add_files_of_arg(&list, &p->args[i], values, options[i]);
    return files_are_apart(list.uses, list.count) ? EXIT_OK : EXIT_USAGE;
}

/* ---- completion ----------------------------------------------------------------------------- */

/* The option that `word` is, with the text behind its '=' in *value; NULL: none, or not whole. */
static const struct arg *option_of(const struct parser *p, const char *word, const char **value)
{
    const size_t len = strcspn(word, "=");

    *value = word[len] ? word + len + 1 : NULL;
    for (size_t i = 0; i < p->count; i++) {
        const struct arg *a = &p->args[i];
        if (len > 2 && !strncmp(word, "--", 2) && strlen(a->name) == len - 2 &&
            !strncmp(word + 2, a->name, len - 2))
            return a;
        if (len == 2 && word[0] == '-' && a->letter && word[1] == a->letter)
            return a;
    }
    return NULL;
}

static bool is_path(const char *value)
{
    return value && (!strncmp(value, "FILE", 4) || !strncmp(value, "DIR", 3));
}

/* before: "--format=", which a shell that does not split there wants again. */
void args_offer(const char *before, const char *word, const char *what)
{
    char whole[256];

    snprintf(whole, sizeof(whole), "%s%s", before, word);
    command_offer(whole, what);
}

void args_offer_presets(const char *before)
{
    for (const struct dp_topology_preset *p = dp_topology_presets(); p->name; p++)
        args_offer(before, p->name, p->about);
}

static void offer_value(const struct arg *a, const char *before)
{
    for (size_t i = 0; a->type == ARG_CHOICE && a->choices[i]; i++)
        args_offer(before, a->choices[i], NULL);
    if (a->offer)
        a->offer(before);
    if (is_path(a->value))
        command_offer(COMMAND_FILE, NULL);
}

/* Any program, with words of its own. */
static bool takes_command(const struct usage *u)
{
    return u->operands && strstr(u->operands, "COMMAND");
}

static void offer_operands(const struct usage *u)
{
    const char *at = u->operand_choices ? u->operand_choices : "";

    for (size_t len; *at; at += len + (at[len] == '|')) {
        len = strcspn(at, "|");
        printf("%.*s\n", (int)len, at);
    }
    if (u->operand_files || is_path(u->operands) || is_path(u->operands ? u->operands + 1 : NULL) ||
        takes_command(u))
        command_offer(COMMAND_FILE, NULL);
}

static void offer_options(const struct parser *p)
{
    char word[64];

    for (size_t i = 0; i < p->count; i++) {
        snprintf(word, sizeof(word), "--%s", p->args[i].name);
        command_offer(word, p->args[i].help);
    }
}

/* The last word is the one that is being typed. */
static void offer(const struct parser *p, int argc, char **argv)
{
    const char *word = argv[argc - 1], *value;
    const struct arg *before = argc > 2 ? option_of(p, argv[argc - 2], &value) : NULL;
    char option[64];

    for (int i = 1; i < argc - 1; i++)
        if (!strcmp(argv[i], "--")) {
            offer_operands(p->usage);
            return;
        }
    if (before && !value && before->type != ARG_FLAG) {
        offer_value(before, "");
        return;
    }
    const struct arg *this = option_of(p, word, &value);
    if (this && value && this->type != ARG_FLAG) {
        snprintf(option, sizeof(option), "%.*s", (int)(value - word), word);
        offer_value(this, option);
    } else if (*word == '-') {
        offer_options(p);
    } else {
        offer_operands(p->usage);
    }
}

/* ---- all of it ------------------------------------------------------------------------------ */

static void set_defaults(const struct parser *p, void *values)
{
    char why[512];

    for (size_t i = 1; i < p->count; i++) { /* 0 is --help, which has no member */
        set_empty(&p->args[i], values);
        if (p->args[i].fallback)
            set_value(&p->args[i], p->args[i].fallback, values, why, sizeof(why));
    }
}

bool args_parse(const struct usage *u, int argc, char **argv, void *values,
                struct operands *operands, int *status)
{
    struct parser p;
    int id;

    init_parser(&p, u);
    *status = EXIT_OK;
    if (command_completes) {
        offer(&p, argc, argv);
        return false;
    }
    set_defaults(&p, values);
    opterr = 0;
    optind = 0; /* GNU: begin anew */
    while (*status == EXIT_OK && (id = getopt_long(argc, argv, p.shorts, p.longs, NULL)) != -1) {
        if (id == '?')
            *status = bad_option(&p, argv[optind - 1]);
        else if (id == ':')
            *status = missing_value(&p);
        else if (id == 'h' || id == HELP_ID) {
            print_help(u);
            return false;
        } else
            *status = take_option(&p, id, values);
    }
    if (*status == EXIT_OK)
        *status = take_operands(u, argc, argv, operands);
    if (*status == EXIT_OK)
        *status = check_files(&p, values, operands);
    return *status == EXIT_OK;
}
