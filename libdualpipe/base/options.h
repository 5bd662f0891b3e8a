/* SPDX-License-Identifier: Apache-2.0
 *
 * options.h - DUALPIPE_<AREA>_<NAME>: one table per component, read once when it opens. This is the
 * only place that reads those variables. An unknown name in a component's area, or a value outside
 * what the table allows, is an error that names it, and the nearest known name.
 *
 *      struct options { int64_t timeout_ms; const char *transport; };
 *      static const struct dp_option table[] = {
 *          {"TIMEOUT", DP_OPTION_INT, "60000", "longest wait, in ms",
 *           offsetof(struct options, timeout_ms), .min = 1, .max = 86400000},
 *          {"TRANSPORT", DP_OPTION_CHOICE, "auto", "how messages travel",
 *           offsetof(struct options, transport), .choices = transports},
 *      };
 *      const struct dp_option_area dp_comm_options = {"COMM", table, 2};
 */
#ifndef DP_BASE_OPTIONS_H
#define DP_BASE_OPTIONS_H

#include <dualpipe/options.h>

struct dp_option_area {
    const char *area;
    const struct dp_option *options;
    size_t count;
};

extern const struct dp_option_area dp_log_option_area;

/* Fill the component's struct from the environment and the defaults. DP_EINVAL. */
int dp_options_read(const struct dp_option_area *area, void *values);
/* The same, but what is not in the environment stays as it is. */
int dp_options_read_over(const struct dp_option_area *area, void *values);

/* A variable that belongs to another program (RANK, SLURM_JOB_ID, ...): its value, NULL if it is not
 * set or empty. */
const char *dp_foreign_variable(const char *name);
/* The same where code is loaded from what it says: NULL also in a setuid program. */
const char *dp_trusted_variable(const char *name);

/* dp_options_each for these areas: a DUALPIPE_ variable that is in none of them is a problem. A
 * component adds itself to the list of all, libdualpipe/areas.c. */
int dp_options_show(const struct dp_option_area *const *areas, size_t count, dp_option_fn fn,
                    void *user);

#endif
