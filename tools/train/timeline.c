/* SPDX-License-Identifier: Apache-2.0 */
#include "train/timeline.h"

#include "command.h"
#include "draw/draw.h"
#include "files.h"

#include <math.h>
#include <stdlib.h>

static int measure(const struct dp_trainer_parts *p, const struct dp_timeline *t,
                   struct step_times *times)
{
    struct dp_trace_report report;

    int err = dp_trace_report(t, p->schedule, &report);
    if (err)
        return err;
    times->step_ms = (double)report.makespan_ns * 1e-6;
    if (!p->queued) {
        times->bubble = report.bubble_ratio;
        times->simulated_ms = (double)report.simulated_ns * 1e-6;
    }
    return 0;
}

static int write_trace(FILE *f, const struct dp_timeline *t, const struct dp_schedule *s)
{
    char *json;
    size_t len;

    int err = dp_timeline_write_perfetto(t, s, &json, &len);
    if (err)
        return err;
    err = fwrite(json, 1, len, f) == len ? 0 : DP_EIO;
    free(json);
    return err;
}

static int write_drawing(FILE *f, const struct dp_timeline *t, const struct dp_schedule *s)
{
    return draw_svg(f, t, s, &(struct draw_options){.arrows = true});
}

static int write_page(FILE *f, const struct dp_timeline *t, const struct dp_schedule *s)
{
    return draw_html(f, t, s, &(struct draw_options){0});
}

typedef int (*write_fn)(FILE *f, const struct dp_timeline *t, const struct dp_schedule *s);

/* The sentence has been printed if it fails. */
static bool write_file(const char *path, write_fn write, const struct dp_trainer_parts *p,
                       const struct dp_timeline *t)
{
    struct output out;

    if (!path)
        return true;
    if (output_open(path, &out) != EXIT_OK)
        return false;
    return output_close(&out, write(out.file, t, p->schedule)) == EXIT_OK;
}

static int collect(const struct dp_trainer_parts *p, const struct timeline_files *files,
                   struct dp_watch *watch, struct step_times *times)
{
    struct dp_timeline t;
    bool first = !p->pipe || dp_comm_rank(p->pipe) == 0;

    *times = (struct step_times){.bubble = NAN, .step_ms = NAN, .simulated_ms = NAN};
    int err = dp_recorder_gather(p->recorder, p->schedule, p->pipe, &t);
    if (err || !first)
        return err;
    err = measure(p, &t, times);
    if (!err && watch)
        err = dp_watch_links(watch, &t);
    if (!err && files) {
        times->untraced = !write_file(files->trace, write_trace, p, &t);
        times->undrawn = !write_file(files->timeline, write_drawing, p, &t);
        times->unpaged = !write_file(files->page, write_page, p, &t);
    }
    dp_timeline_fini(&t);
    return err;
}

int timeline_write(const struct dp_trainer_parts *p, const struct timeline_files *files,
                   struct step_times *times)
{
    return collect(p, files, NULL, times);
}

int timeline_measure(const struct dp_trainer_parts *p, struct dp_watch *watch,
                     struct step_times *times)
{
    return collect(p, NULL, watch, times);
}
