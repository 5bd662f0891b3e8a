/* SPDX-License-Identifier: Apache-2.0
 *
 * settings.h - what the command line of `dualpipe train` asks for, checked as far as it can be
 * before any rank has started.
 */
#ifndef DP_TRAIN_SETTINGS_H
#define DP_TRAIN_SETTINGS_H

#include "args.h"
#include "train/params.h"

#include <dualpipe/schedule.h>
#include <dualpipe/seats.h>

struct settings {
    struct arg_list data;
    const char *schedule_name, *transport, *placement, *trace, *timeline;
    int64_t ranks, microbatches, layers, width, heads, context, batch, steps, warmup, eval_every;
    int64_t sample, seed, port;
    double rate, decay, clip, dropout;
    bool fixed_order, any_order, json;

    /* What follows from these. */
    struct gpt_config model;
    struct dp_schedule *training, *forward; /* NULL: sequential */
    struct dp_seats *seats;                 /* NULL: ranks as they come */
};

/* The command line, into *s. `world` is the number of ranks that were started from outside, 0 if
 * none were. false: the command is over, with *status, and one line has said why. The caller ends
 * with settings_fini. */
bool settings_parse(int argc, char **argv, int world, struct settings *s, int *status);
void settings_fini(struct settings *s);

#endif
