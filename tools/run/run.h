/* SPDX-License-Identifier: Apache-2.0
 *
 * run.h - the parts of `dualpipe run`: what the job gets (settings), where it runs (bind), the job
 * itself (job) and what is said of it in the end (report).
 */
#ifndef DP_TOOLS_RUN_RUN_H
#define DP_TOOLS_RUN_RUN_H

#include "files.h"
#include "stat/pages.h"
#include "tune/tune.h"

#include <dualpipe/comm.h>
#include <dualpipe/tuning.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The command line. */
struct run_values {
    struct tune_source source;
    const char *table, *links, *placement, *traffic, *trace, *report;
    bool no_net, no_tuner, no_preload, no_bind, no_reorder, only_prints, quiet, exec;
};

/* ---- settings -------------------------------------------------------------------------------- */

enum { RUN_SETTINGS_MAX = 28, RUN_PARTS_MAX = 8, RUN_WORDS_LEN = 512 };

struct run_setting {
    const char *name, *value;
    bool adds; /* the value has what was set before */
};

/* What is to be set, what there is to say of each part of it, and the memory that it needs. */
struct run_settings {
    size_t count, part_count;
    struct run_setting list[RUN_SETTINGS_MAX];
    struct run_part {
        const char *name; /* "net plugin" */
        char words[RUN_WORDS_LEN];
    } parts[RUN_PARTS_MAX];
    char *table, *placement, *preload, *traffic, *trace;
    char plugin[PLUGIN_PATH_LEN], tuner[PLUGIN_PATH_LEN], profiler[PLUGIN_PATH_LEN];
    char links[DP_TUNING_LINKS_LEN];
};

/* Zeroed memory first. 0, or an EXIT_ value after one line. */
int run_settings_choose(const struct run_values *v, const char *command, struct run_settings *s);
void run_settings_fini(struct run_settings *s);

/* What there is to say of a part: used, or not and why. */
void run_say(struct run_settings *s, const char *part, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- bind ------------------------------------------------------------------------------------ */

/* Bind this process next to the GPU that the rank drives, if that is known and it has not been bound
 * yet, and say so. Never a failure of the job. */
void run_bind(const struct run_values *v, const struct dp_process *process, struct run_settings *s);

/* ---- ranks ----------------------------------------------------------------------------------- */

/* With --placement and under torchrun: the job's rank here is the one that the placement has for this
 * place, in the environment and in *process. Otherwise ranks stay; either is said. 0, or an EXIT_
 * value after one line. */
int run_number(const struct run_values *v, const char *command, struct dp_process *process,
               struct run_settings *s);

/* ---- job ------------------------------------------------------------------------------------- */

enum { RUN_EXIT_CANNOT = 126, RUN_EXIT_NOT_FOUND = 127 };

struct run_outcome {
    int how;          /* as wait has it */
    double seconds, cpu_seconds;
    double most_bytes;    /* of memory, the largest of its processes */
    int processes;         /* that have counted in the net plugin */
    struct stat_page sent; /* what they have counted, by device and way */
    struct stat_page preload;
};

/* Start the command, pass signals on to it, wait until it has ended. It is killed if this process
 * is. has_begun is called once it has been started. 0, or an EXIT_ value after one line: it could
 * not be.
 */
int run_job(char **command, void (*has_begun)(void *user), void *user, struct run_outcome *out);
/* Become the command. Returns only if that cannot be: an EXIT_ value after one line. */
int run_become(char **command);

void run_outcome_fini(struct run_outcome *out);

/* The end of this program as the command ended: its exit status, or the same signal. */
int run_leave(const struct run_outcome *outcome);

/* ---- report ---------------------------------------------------------------------------------- */

/* A line of JSON for this rank joins the file of --report; what the first rank has done is also said on
 * standard error. 0 or an EXIT_ value. */
int run_report(const struct run_values *v, const struct dp_process *process,
               const struct run_settings *s, const struct run_outcome *outcome);

#endif
