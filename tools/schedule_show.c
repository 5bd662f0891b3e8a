/* SPDX-License-Identifier: Apache-2.0
 *
 * schedule_show.c - `dualpipe schedule show` and `export`: one schedule, in any of its forms. The
 * two differ in what they do if no format is named: show draws, export writes JSON.
 */
#include "command.h"
#include "commands.h"
#include "draw/draw.h"
#include "files.h"
#include "schedule_args.h"

#include <dualpipe/trace.h>

#include <stdlib.h>
#include <string.h>

enum { PLAIN_WIDTH = 100 }; /* where there is no terminal to fit */

struct show_args {
    struct schedule_args common;
    const char *format, *output, *detail, *colour, *title;
    int64_t width;
    bool arrows, critical;
};

/* ---- pictures: simulate, then draw ---------------------------------------------------------- */

typedef int (*draw_fn)(FILE *to, const struct dp_timeline *t, const struct dp_schedule *s,
                       const struct draw_options *options);

static bool wants_colour(const struct show_args *a, FILE *to)
{
    if (!strcmp(a->colour, "auto"))
        return terminal_colour(to);
    return !strcmp(a->colour, "always");
}

static enum draw_detail detail_of(const char *name)
{
    return !strcmp(name, "labels") ? DRAW_LABELS : !strcmp(name, "shape") ? DRAW_SHAPE : DRAW_AUTO;
}

static struct draw_options ascii_options(const struct show_args *a, FILE *to)
{
    int columns = a->width ? (int)a->width : terminal_columns(to);

    return (struct draw_options){
        .title = a->title,
        .width = columns ? columns : PLAIN_WIDTH,
        .detail = detail_of(a->detail),
        .colour = wants_colour(a, to),
    };
}

static int write_ascii(const struct show_args *a, const struct dp_schedule *s,
                       const struct dp_simulation *sim, FILE *to)
{
    struct draw_options options = ascii_options(a, to);

    return draw_ascii(to, &sim->timeline, s, &options);
}

static int write_svg(const struct show_args *a, const struct dp_schedule *s,
                     const struct dp_simulation *sim, FILE *to)
{
    return draw_svg(to, &sim->timeline, s,
                    &(struct draw_options){
                        .title = a->title,
                        .width = (int)a->width,
                        .arrows = a->arrows,
                        .critical = sim->critical,
                        .critical_count = a->critical ? sim->critical_count : 0,
                    });
}

static int put_text(FILE *to, char *text, size_t len)
{
    size_t written = fwrite(text, 1, len, to);

    free(text);
    return written == len && !fflush(to) ? 0 : DP_EIO;
}

static int write_perfetto(const struct show_args *a, const struct dp_schedule *s,
                          const struct dp_simulation *sim, FILE *to)
{
    char *json;
    size_t len;
    int err = dp_timeline_write_perfetto(&sim->timeline, s, &json, &len);

    (void)a;
    return err ? err : put_text(to, json, len);
}

/* ---- formats -------------------------------------------------------------------------------- */

/* A format is the schedule itself in text, or a picture of its simulation. */
struct format {
    const char *name;
    enum dp_format format;
    int (*picture)(const struct show_args *a, const struct dp_schedule *s,
                   const struct dp_simulation *sim, FILE *to);
};

static const struct format formats[] = {
    {"ascii", 0, write_ascii},       {"svg", 0, write_svg},
    {"perfetto", 0, write_perfetto}, {"text", DP_FORMAT_TEXT, NULL},
    {"json", DP_FORMAT_JSON, NULL},  {"csv", DP_FORMAT_CSV, NULL},
    {"pytorch-csv", DP_FORMAT_PYTORCH, NULL},
};
static const char *const format_names[] = {"ascii", "svg", "perfetto", "text", "json", "csv",
                                           "pytorch-csv", NULL};

static const struct format *find_format(const char *name)
{
    const struct format *f = formats;

    while (strcmp(f->name, name))
        f++;
    return f;
}

static int simulate(const struct show_args *a, const struct dp_schedule *s,
                    struct dp_simulation *sim)
{
    struct dp_cost cost;
    int status = schedule_cost(&a->common, s, &cost), err;

    if (status)
        return status;
    if ((err = dp_schedule_simulate(s, &cost, DP_SIMULATE_TIMELINE | DP_SIMULATE_CRITICAL, sim)))
        return command_failed(err);
    return 0;
}

static int write_text(const struct dp_schedule *s, enum dp_format format, FILE *to)
{
    char *text;
    size_t len;
    int err = dp_schedule_write(s, format, &text, &len);

    return err ? err : put_text(to, text, len);
}

static int write_schedule(const void *values, const struct dp_schedule *s)
{
    const struct show_args *a = values;
    const struct format *format = find_format(a->format);
    struct dp_simulation sim = {0};
    struct output out;
    int status = format->picture ? simulate(a, s, &sim) : 0, err;

    if (status || (status = output_open(a->output, &out)))
        goto free_simulation;
    if (format->picture)
        err = format->picture(a, s, &sim, out.file);
    else
        err = write_text(s, format->format, out.file);
    status = output_close(&out, err);
free_simulation:
    dp_simulation_fini(&sim);
    return status;
}

/* ---- the commands --------------------------------------------------------------------------- */

#define AT(member) .offset = offsetof(struct show_args, member)

static const char *const details[] = {"auto", "labels", "shape", NULL};
static const char *const whens[] = {"auto", "always", "never", NULL};

/* The rows that show and export have in common; their default formats differ. */
#define OUTPUT_ARGS(default_format)                                                                \
    {"format", 'f', NULL, "what to write", ARG_CHOICE, AT(format), .fallback = default_format,     \
     .choices = format_names},                                                                     \
    {"output", 'o', "FILE", "where to (default standard output)", ARG_STRING, AT(output),          \
     .written = true},                                                                             \
    {"title", 0, "TEXT", "over a picture", ARG_STRING, AT(title)},                                 \
    {"width", 0, "N",                                                                              \
     "columns of ascii (default the terminal's, else 100), pixels of svg (default at most 1000)",  \
     ARG_INT, AT(width), .min = 20, .max = 100000},                                                \
    {"detail", 0, NULL, "ascii: every bar with its name, or only the shape", ARG_CHOICE,           \
     AT(detail), .fallback = "auto", .choices = details},                                          \
    {"colour", 0, NULL, "ascii: auto is in a terminal without NO_COLOR", ARG_CHOICE, AT(colour),   \
     .fallback = "auto", .choices = whens},                                                        \
    {"arrows", 0, NULL, "svg: draw messages", ARG_FLAG, AT(arrows)},                               \
    {"critical", 0, NULL, "svg: outline the critical path", ARG_FLAG, AT(critical)}

static const struct arg show_args[] = {OUTPUT_ARGS("ascii")};
static const struct arg export_args[] = {OUTPUT_ARGS("json")};
static const struct arg_group show_output = ARG_GROUP("output", show_args);
static const struct arg_group export_output = ARG_GROUP("output", export_args);

static int run(struct usage usage, struct arg_group output, int argc, char **argv)
{
    const struct arg_group groups[] = {schedule_size_group, schedule_file_group, schedule_cost_group,
                                       schedule_scale_group, output, {0}};
    struct show_args a = {0};

    usage.groups = groups;
    return schedule_run(&usage, argc, argv, &a, write_schedule);
}

int run_schedule_show(int argc, char **argv)
{
    const struct usage usage = {
        .command = "dualpipe schedule show",
        .about = "Draw a schedule: ranks down, time across. F3 is the forward of micro-batch 3, B\n"
                 "its backward, I and W the input and weight parts of a backward that was split,\n"
                 "F3&b1 an overlapped pair; lower case is the other direction; dots are idle\n"
                 "time.",
        .examples = "  dualpipe schedule show dualpipe -P 4 -M 8\n"
                    "  dualpipe schedule show dualpipe -P 8 -M 20 --cost f=1,i=1,w=1,fb=2.4\n"
                    "  dualpipe schedule show 1f1b -P 4 -M 8 --format svg --critical -o 1f1b.svg\n"
                    "  dualpipe schedule show --file mine.txt --format perfetto -o trace.json\n",
    };

    return run(usage, show_output, argc, argv);
}

int run_schedule_export(int argc, char **argv)
{
    const struct usage usage = {
        .command = "dualpipe schedule export",
        .about = "Write a schedule as JSON (an event trace), text (a line a rank) or CSV (a row a\n"
                 "rank). Each can be changed by hand or by a program and read back with --file; so can\n"
                 "pytorch-csv, the lists of torch.distributed.pipelining. Or as a picture of its\n"
                 "simulation: ascii, svg, perfetto.",
        .examples = "  dualpipe schedule export dualpipe -P 4 -M 8 -o dualpipe.json\n"
                    "  dualpipe schedule export gpipe -P 2 -M 4 --format text\n"
                    "  dualpipe schedule export --file mine.txt --format csv -o mine.csv\n"
                    "  dualpipe schedule export zbv -P 4 -M 8 --format pytorch-csv -o zbv.csv\n",
    };

    return run(usage, export_output, argc, argv);
}
