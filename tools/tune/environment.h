/* SPDX-License-Identifier: Apache-2.0
 *
 * environment.h - the variables of the tuner plugin, for a command that answers as the plugin
 * would.
 */
#ifndef DP_TOOLS_TUNE_ENVIRONMENT_H
#define DP_TOOLS_TUNE_ENVIRONMENT_H

/* What is set; NULL: not set, or empty. The strings are the environment's. */
struct tune_environment {
    const char *table;      /* DUALPIPE_TUNER_TABLE */
    const char *links;      /* DUALPIPE_TUNER_LINKS, unless it is "placement" */
    const char *placement;  /* DUALPIPE_PLACEMENT, if the links are to come from there */
    const char *registered; /* DUALPIPE_TUNER_REGISTERED */
};

/* 0, else an EXIT_ value: a variable that the plugin would refuse, and the sentence has been
 * printed. */
int tune_read_environment(struct tune_environment *out);

#endif
