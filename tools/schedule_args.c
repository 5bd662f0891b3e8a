/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule_args.h"

#include "command.h"

#include <dualpipe/options.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEFAULT_RANKS = 4 };

/* ---- lists ---------------------------------------------------------------------------------- */

static bool parse_numbers(const char *text, void *member, char *why, size_t why_len)
{
    struct numbers *list = member;
    char *copy = strdup(text), *rest = copy, *item, *end;
    bool good = copy;

    list->count = 0;
    while (good && (item = strsep(&rest, ","))) {
        double number = strtod(item, &end);
        good = end != item && !*end && number >= 0 && isfinite(number) && list->count < NUMBERS_MAX;
        if (good)
            list->items[list->count++] = number;
    }
    free(copy);
    if (!good)
        snprintf(why, why_len, "at most %d numbers that are not negative, as in 1,0,2",
                 NUMBERS_MAX);
    return good;
}

static bool parse_ranks(const char *text, void *member, char *why, size_t why_len)
{
    const struct numbers *list = member;

    if (!parse_numbers(text, member, why, why_len))
        return false;
    for (size_t i = 0; i < list->count; i++)
        if (list->items[i] != floor(list->items[i]) || list->items[i] > INT32_MAX) {
            snprintf(why, why_len, "ranks, as in 1,0,2");
            return false;
        }
    return true;
}

static bool parse_stage(const char **text, char end, int32_t *stage)
{
    char *after;
    const long number = strtol(*text, &after, 10);

    if (after == *text || *after != end || number < 0 || number > INT32_MAX)
        return false;
    *text = after + !!end;
    *stage = (int32_t)number;
    return true;
}

static bool parse_skip(const char *item, struct skips *skips)
{
    struct dp_skip *skip = &skips->items[skips->count];

    if (skips->count == SKIPS_MAX || !parse_stage(&item, ':', &skip->from) ||
        !parse_stage(&item, '\0', &skip->to))
        return false;
    snprintf(skip->name, sizeof(skip->name), "skip%d", skips->count++);
    return true;
}

static bool parse_skips(const char *text, void *member, char *why, size_t why_len)
{
    struct skips *skips = member;
    char *copy = strdup(text), *rest = copy, *item;
    bool good = copy;

    skips->count = 0;
    while (good && (item = strsep(&rest, ",")))
        good = parse_skip(item, skips);
    free(copy);
    if (!good)
        snprintf(why, why_len, "at most %d pairs of stages, as in 0:3,1:2", SKIPS_MAX);
    return good;
}

static const char *const time_names[] = {"f", "i", "w", "b", "fb", "reduce"};
enum { TIMES = sizeof(time_names) / sizeof(time_names[0]) };

static double *time_of(struct op_times *times, const char *name)
{
    double *const members[TIMES] = {&times->f, &times->i,  &times->w,
                                    &times->b, &times->fb, &times->reduce};

    for (int i = 0; i < TIMES; i++)
        if (!strcmp(name, time_names[i]))
            return members[i];
    return NULL;
}

bool schedule_parse_times(const char *text, void *member, char *why, size_t why_len)
{
    char *copy = strdup(text), *rest = copy, *item;
    bool good = copy;

    while (good && (item = strsep(&rest, ","))) {
        char *value = strchr(item, '=');
        if (value)
            *value++ = '\0';
        double *time = time_of(member, item);
        good = value && time && args_parse_time(value, time) && *time >= 0;
    }
    free(copy);
    if (!good)
        snprintf(why, why_len, "times by op (f, i, w, b, fb, reduce), as in f=1,i=1,w=1,fb=2.4 or "
                               "f=250us,b=0.5ms");
    return good;
}

/* ---- the groups ----------------------------------------------------------------------------- */

#define AT(member) .offset = offsetof(struct schedule_args, member)

static const char *const recomputes[] = {"never", "except_last", "always", NULL};
static const struct arg size_args[] = {
    {"ranks", 'P', "N", "pipeline ranks (default 4)", ARG_INT, AT(ranks), .min = 1, .max = 65536},
    {"microbatches", 'M', "N", "micro-batches of a step (default 2 x ranks)", ARG_INT,
     AT(microbatches), .min = 1, .max = 1 << 20},
    {"virtual-stages", 0, "N", "stages of a rank (interleaved; default 2)", ARG_INT,
     AT(virtual_stages), .min = 1, .max = DP_MAX_SLOTS},
    {"recompute", 0, NULL, "micro-batches that keep their input only until their backward",
     ARG_CHOICE, AT(recompute), .fallback = "never", .choices = recomputes},
    {"forward-only", 0, NULL, "no backward: evaluation", ARG_FLAG, AT(forward_only)},
    {"return-outputs", 0, NULL, "keep the last stage's outputs to the end of the step", ARG_FLAG,
     AT(return_outputs)},
    {"no-overlap", 0, NULL, "do not pair forwards with backwards", ARG_FLAG, AT(no_overlap)},
    {"slack", 0, "0|1",
     "1: one more forward of warm-up at every border, which hides the latency of messages "
     "(dualpipe,\n" "                               dualpipev; twice the activations)",
     ARG_INT, AT(slack), "0", 0, 1},
    {"mirror-reduce", 0, NULL, "sum the gradients of DualPipe's two copies of a stage", ARG_FLAG,
     AT(mirror_reduce)},
    {"skips", 0, "LIST", "skip connections from stage to stage: 0:3,1:2", ARG_PARSE, AT(skips),
     .parse = parse_skips},
    {"rank-map", 0, "LIST", "pipeline rank of each group rank: 1,0,3,2", ARG_PARSE, AT(rank_map),
     .parse = parse_ranks},
};
static const struct arg file_args[] = {
    {"file", 0, "FILE",
     "your own schedule, as text, JSON, CSV or PyTorch's CSV, instead of KIND (- for stdin)",
     ARG_STRING, AT(file)},
};
static const struct arg cost_args[] = {
    {"cost", 0, "OP=TIME,..", "times of F, I, W, B and overlapped pairs FB; B is I + W and FB is F "
     "+ B\n" "                               if not given; a bare number is in ms",
     ARG_PARSE, AT(times), .fallback = "f=1,i=1,w=1", .parse = schedule_parse_times},
    {"latency", 0, "TIME", "of a message on its way", ARG_TIME, AT(latency_ns), .fallback = "0"},
    {"bandwidth", 0, "RATE", "of a link, as in 25GB/s; 0 is without limit", ARG_RATE, AT(bandwidth),
     .fallback = "0"},
    {"message-bytes", 0, "SIZE", "of an activation or gradient of one micro-batch", ARG_BYTES,
     AT(message_bytes), .fallback = "0"},
};
static const struct arg scale_args[] = {
    {"stage-scale", 0, "LIST", "multiplies the times of each stage: 1,1,1.5,1", ARG_PARSE,
     AT(stage_scale), .parse = parse_numbers},
    {"rank-scale", 0, "LIST", "multiplies the times of each rank", ARG_PARSE, AT(rank_scale),
     .parse = parse_numbers},
};

const struct arg_group schedule_size_group = ARG_GROUP("which schedule", size_args);
const struct arg_group schedule_file_group = ARG_GROUP("or", file_args);
const struct arg_group schedule_cost_group = ARG_GROUP("what it costs", cost_args);
const struct arg_group schedule_scale_group = ARG_GROUP("what is slower", scale_args);

/* ---- the schedule --------------------------------------------------------------------------- */

const char *schedule_kinds(void)
{
    static char list[256];
    size_t len = 0;

    for (int kind = DP_SCHEDULE_USER + 1; kind < DP_SCHEDULE_KINDS && len < sizeof(list); kind++)
        len += (size_t)snprintf(list + len, sizeof(list) - len, "%s%s", len ? "|" : "",
                                dp_name(DP_NAMES_SCHEDULE, (enum dp_schedule_kind)kind));
    return list;
}

struct dp_schedule_spec schedule_spec(const struct schedule_args *a, enum dp_schedule_kind kind,
                                      int *rank_map)
{
    struct dp_schedule_spec spec = {
        .kind = kind,
        .ranks = a->ranks ? (int)a->ranks : DEFAULT_RANKS,
        .forward_only = a->forward_only,
        .return_outputs = a->return_outputs,
        .no_overlap = a->no_overlap,
        .mirror_reduce = a->mirror_reduce,
        .virtual_stages = (int)a->virtual_stages,
        .slack = (int)a->slack,
        .skips = a->skips.items,
        .skip_count = a->skips.count,
        .rank_map = a->rank_map.count ? rank_map : NULL,
    };

    spec.microbatches = a->microbatches ? (int)a->microbatches : 2 * spec.ranks;
    if (a->recompute)
        (void)dp_recompute_parse(a->recompute, &spec.recompute);
    for (size_t i = 0; i < a->rank_map.count; i++)
        rank_map[i] = (int)a->rank_map.items[i];
    return spec;
}

int schedule_operand(const struct operands *operands, enum dp_schedule_kind *kind)
{
    int err = operands->count ? dp_schedule_kind_parse(operands->items[0], kind) : 0;

    if (!err && operands->count && *kind == DP_SCHEDULE_USER)
        return command_misused("'user' is the kind of schedules in files: expected --file FILE, or "
                               "one of %s", schedule_kinds());
    return err ? command_failed(err) : 0;
}

/* Of ops: up to ten of eight bytes for every slot and micro-batch. */
static double bytes_of(const struct dp_schedule_spec *spec)
{
    bool two = spec->kind == DP_SCHEDULE_DUALPIPEV || spec->kind == DP_SCHEDULE_ZBV;
    int slots = spec->kind == DP_SCHEDULE_INTERLEAVED && spec->virtual_stages ? spec->virtual_stages
                : spec->kind == DP_SCHEDULE_INTERLEAVED || two ? 2 : 1;

    return 10.0 * sizeof(struct dp_op) * spec->ranks * spec->microbatches * slots;
}

int schedule_fits(const struct schedule_args *a, const struct dp_schedule_spec *spec)
{
    double has = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    double needs = bytes_of(spec);

    if (spec->rank_map && a->rank_map.count != (size_t)spec->ranks)
        return command_misused("--rank-map: %zu ranks, expected %d, one for each rank",
                               a->rank_map.count, spec->ranks);
    if (a->outline || has <= 0 || needs <= has)
        return 0;
    return command_misused("%s of %d ranks and %d micro-batches takes about %.3g GB, expected at "
                           "most the %.3g GB of this machine's memory",
                           dp_name(DP_NAMES_SCHEDULE, spec->kind), spec->ranks, spec->microbatches,
                           needs / 1e9, has / 1e9);
}

static int build(const struct schedule_args *a, const struct operands *operands,
                 struct dp_schedule **out)
{
    enum dp_schedule_kind kind = DP_SCHEDULE_USER;
    int rank_map[NUMBERS_MAX], err = schedule_operand(operands, &kind);

    if (err)
        return err;
    struct dp_schedule_spec spec = schedule_spec(a, kind, rank_map);
    if ((err = schedule_fits(a, &spec)))
        return err;
    err = a->outline ? dp_schedule_new_outline(&spec, out) : dp_schedule_new(&spec, out);
    return err ? command_failed(err) : 0;
}

/* The first option that says what a file says, or that a list that is made already cannot follow. */
static const char *said_of_file(const struct schedule_args *a)
{
    const struct {
        const char *option;
        bool given;
    } options[] = {
        {"ranks", a->ranks},
        {"microbatches", a->microbatches},
        {"virtual-stages", a->virtual_stages},
        {"recompute", a->recompute && strcmp(a->recompute, "never")},
        {"forward-only", a->forward_only},
        {"return-outputs", a->return_outputs},
        {"no-overlap", a->no_overlap},
        {"slack", a->slack},
        {"mirror-reduce", a->mirror_reduce},
        {"skips", a->skips.count},
        {"rank-map", a->rank_map.count},
    };

    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        if (options[i].given)
            return options[i].option;
    return NULL;
}

int schedule_load(const struct schedule_args *a, const struct operands *operands,
                  struct dp_schedule **out)
{
    if (!a->file && !operands->count)
        return command_misused("which schedule? expected one of %s, or --file FILE",
                               schedule_kinds());
    if (!a->file)
        return build(a, operands, out);
    if (operands->count)
        return command_misused("'%s' and --file %s: expected one of the two", operands->items[0],
                               a->file);
    if (said_of_file(a))
        return command_misused("--%s: options of a KIND do not go with --file: the file has them",
                               said_of_file(a));
    return schedule_file_read(a->file, out);
}

int schedule_run(const struct usage *usage, int argc, char **argv, void *values,
                 int (*act)(const void *values, const struct dp_schedule *s))
{
    struct usage own = *usage;
    struct operands operands;
    struct dp_schedule *s;
    int status;

    own.operands = "[KIND]";
    own.operand_choices = schedule_kinds();
    own.max_operands = 1;
    if (!args_parse(&own, argc, argv, values, &operands, &status))
        return status;
    if ((status = schedule_load(values, &operands, &s)))
        return status;
    status = act(values, s);
    dp_schedule_free(s);
    return status;
}

/* ---- costs ---------------------------------------------------------------------------------- */

static int check_scale(const char *option, const struct numbers *list, int expected,
                       const char *what)
{
    if (!list->count || list->count == (size_t)expected)
        return 0;
    return command_misused("--%s: %zu numbers, expected %d, one for each %s", option, list->count,
                           expected, what);
}

struct dp_cost schedule_times_cost(const struct op_times *t)
{
    return (struct dp_cost){.f_ns = t->f, .i_ns = t->i, .w_ns = t->w, .b_ns = t->b, .fb_ns = t->fb,
                            .reduce_ns = t->reduce};
}

int schedule_cost(const struct schedule_args *a, const struct dp_schedule *s, struct dp_cost *cost)
{
    int status = check_scale("stage-scale", &a->stage_scale, s->stages, "stage");

    if (!status)
        status = check_scale("rank-scale", &a->rank_scale, s->ranks, "rank");
    *cost = schedule_times_cost(&a->times);
    cost->stage_scale = a->stage_scale.count ? a->stage_scale.items : NULL;
    cost->rank_scale = a->rank_scale.count ? a->rank_scale.items : NULL;
    cost->link_latency_ns = a->latency_ns;
    cost->link_bytes_per_ns = a->bandwidth;
    cost->message_bytes = a->message_bytes;
    return status;
}
