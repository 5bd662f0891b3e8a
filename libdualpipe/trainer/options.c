/* SPDX-License-Identifier: Apache-2.0
 *
 * options.c - a trainer's config as options: the rows that the environment (DUALPIPE_TRAIN_...) and
 * command lines read.
 */
#include "base/sized.h"
#include "trainer/options.h"

#include <dualpipe/trainer.h>

#include <stdio.h>
#include <string.h>

enum { MOST_GRAPHS = 62 };

/* ---- what is more than a number or a name ---------------------------------------------------- */

static const char *const schedules[] = {"none",      "gpipe",       "1f1b", "zb1p", "dualpipe",
                                        "dualpipev", "interleaved", "zbv",  NULL};
static const char *const offloads[] = {"params", NULL};
static const char *const dtypes[] = {"f32", "bf16", "f16", NULL};
static const char *const optimizers[] = {"sgd", "adam", "adamw", "accum-adam", "accum-adamw", NULL};

static int find(const char *const *names, const char *text, char *expected, size_t room)
{
    size_t used = (size_t)snprintf(expected, room, "one of ");
    int count = 0, at = -1;

    for (; names[count]; count++) {
        at = strcmp(text, names[count]) ? at : count;
        if (used < room)
            used += (size_t)snprintf(expected + used, room - used, "%s%s", count ? ", " : "",
                                     names[count]);
    }
    const char *near = at < 0 ? dp_nearest(text, names, (size_t)count) : NULL;
    if (near && used < room)
        snprintf(expected + used, room - used, "; did you mean %s?", near);
    return at;
}

/* "none" is a pipeline of one rank. */
static bool parse_schedule(const char *text, void *values, char *expected, size_t room)
{
    struct dp_trainer_config *c = values;
    const int at = find(schedules, text, expected, room);

    if (at < 0 || !c)
        return at >= 0;
    c->schedule.kind = DP_SCHEDULE_USER;
    if (at)
        dp_schedule_kind_parse(text, &c->schedule.kind);
    else
        c->schedule.ranks = 1;
    return true;
}

static bool parse_offload(const char *text, void *values, char *expected, size_t room)
{
    struct dp_trainer_config *c = values;

    if (find(offloads, text, expected, room) < 0)
        return false;
    if (c)
        c->offload.parameters = true;
    return true;
}

/* All of it is that kind's, but for a decay that was set before. */
static bool parse_optimizer(const char *text, void *values, char *expected, size_t room)
{
    struct dp_trainer_config *c = values;
    const int at = find(optimizers, text, expected, room);
    enum dp_optimizer_kind kind;

    if (at < 0 || !c)
        return at >= 0;
    const double decay = c->optimizer.weight_decay;
    const bool was_set = decay != 0 && decay != dp_optimizer_defaults(c->optimizer.kind).weight_decay;
    dp_optimizer_kind_find(text, &kind);
    c->optimizer = dp_optimizer_defaults(kind);
    if (was_set)
        c->optimizer.weight_decay = decay;
    return true;
}

static bool parse_dtype(const char *text, void *values, char *expected, size_t room)
{
    static const DLDataType types[] = {{0}, {kDLBfloat, 16, 1}, {kDLFloat, 16, 1}};
    struct dp_trainer_config *c = values;
    const int at = find(dtypes, text, expected, room);

    if (at >= 0 && c)
        c->dtype = types[at];
    return at >= 0;
}

/* Later ones as dp_loss_scale_defaults has it. */
static bool parse_loss_scale(const char *text, void *values, char *expected, size_t room)
{
    static const struct dp_option scale = {.type = DP_OPTION_REAL, .max = 1 << 24};
    struct dp_trainer_config *c = values;
    struct dp_loss_scale s = dp_loss_scale_defaults();

    if (!dp_option_set(&scale, text, &s.scale, expected, room))
        return false;
    s.least = s.scale < s.least ? s.scale : s.least;
    if (c)
        c->loss_scale = s;
    return true;
}

/* The way of summing gradients, or the name of a graph by which replicas mix. */
static bool parse_mix(const char *text, void *values, char *expected, size_t room)
{
    const char *names[MOST_GRAPHS + 2] = {"all-reduce", "reduce-scatter"};
    struct dp_trainer_config *c = values;

    for (int i = 0; i < MOST_GRAPHS - 1 && dp_graph_name(i); i++)
        names[2 + i] = dp_graph_name(i);
    const int at = find(names, text, expected, room);
    if (at < 0 || !c)
        return at >= 0;
    c->sums = at < DP_SUMS_MIXING ? (enum dp_sums)at : DP_SUMS_MIXING;
    c->mixing.graph.name = at < DP_SUMS_MIXING ? NULL : names[at];
    return true;
}

/* ---- the table ------------------------------------------------------------------------------- */

static const char *const recomputes[] = {"never", "except_last", "always", NULL};
static const char *const algorithms[] = {"d-psgd", "local-sgd", NULL};
static const char *const compressions[] = {"none", "int8", NULL};

#define AT(member) .offset = offsetof(struct dp_trainer_config, member)

static const struct dp_option table[] = {
    {"schedule", DP_OPTION_PARSE, NULL,
     "order of the work; none: one rank, one micro-batch after the other", .choices = schedules,
     .letter = 's', .parse = parse_schedule},
    {"ranks", DP_OPTION_INT32, NULL, "ranks of a pipeline (default: what replicas leave)",
     AT(schedule.ranks), 1, 1024, .letter = 'P', .value = "N"},
    {"replicas", DP_OPTION_INT32, NULL,
     "copies of the pipeline, each with its share of the micro-batches", AT(replicas), 1, 1024,
     .letter = 'D', .value = "N"},
    {"microbatches", DP_OPTION_INT32, NULL, "micro-batches of a step, of all replicas",
     AT(microbatches), 1, 65536, .letter = 'M', .value = "N"},
    {"batch", DP_OPTION_INT, NULL, "rows of a step, over all micro-batches", AT(rows), 1,
     1 << 30, .value = "N"},
    {"virtual-stages", DP_OPTION_INT32, NULL, "stages of a rank (interleaved; default 2)",
     AT(schedule.virtual_stages), 1, DP_MAX_SLOTS, .value = "N"},
    {"slack", DP_OPTION_INT32, NULL,
     "1: one more forward of warm-up at every border, which hides the latency of messages "
     "(dualpipe, dualpipev; up to twice the activations)", AT(schedule.slack), 0, 1,
     .value = "0|1"},
    {"fixed-order", DP_OPTION_BOOL, NULL, "add gradients up in one order under every schedule",
     AT(fixed_order)},
    {"order-blocks", DP_OPTION_INT32, NULL,
     "blocks of micro-batches that the fixed order sums pairwise: a power of two (default: 4, "
     "or as many as streams and replicas need)",
     AT(order_blocks), 2, 64, .value = "N"},
    {"checkpoint", DP_OPTION_ENUM, NULL,
     "micro-batches whose forward is recomputed, to save memory", AT(schedule.recompute),
     .choices = recomputes},
    {"offload", DP_OPTION_PARSE, NULL,
     "what may live on the host: params (with the optimizer's state)", .choices = offloads,
     .parse = parse_offload},
    {"device-memory", DP_OPTION_BYTES, NULL,
     "how much of the model may be on the device, with --offload", AT(offload.device_bytes),
     .value = "SIZE"},
    {"device-share", DP_OPTION_REAL, NULL,
     "share of each stage's parameters that stays on the device with the optimizer's state, with "
     "--offload params", AT(offload.kept_share), 0, 1, .value = "X"},
    {"delay-update", DP_OPTION_BOOL, NULL, "use the gradients of a step in the next one",
     AT(delay_update)},
    {"survive", DP_OPTION_BOOL, NULL,
     "go on without ranks that are killed, where replicas (with a graph: of --schedule none) or "
     "--schedule dualpipe hold what they had",
     AT(survive)},
    {"mix", DP_OPTION_PARSE, NULL,
     "all-reduce: sum the replicas' gradients; reduce-scatter: the same, each with a share of "
     "the optimizer's state; or average their weights by a graph of 'dualpipe mix'",
     .value = "HOW", .parse = parse_mix},
    {"mix-local", DP_OPTION_INT32, NULL,
     "replicas of a node, for alternating-exp-ring and hierarchical (default: what the launcher "
     "says, or 1)", AT(mixing.graph.local), 1, 1024, .value = "N"},
    {"mix-algorithm", DP_OPTION_ENUM, NULL, "how weights are updated and averaged, with a graph",
     AT(mixing.algorithm), .choices = algorithms},
    {"mix-factor", DP_OPTION_REAL, NULL, "how far weights go to the average (default 1)",
     AT(mixing.factor), 0, 1, .above = true, .value = "A"},
    {"mix-compress", DP_OPTION_ENUM, NULL,
     "d-psgd: what values are sent as; what is rounded off is sent later",
     AT(mixing.compression), .choices = compressions},
    {"mix-staleness", DP_OPTION_INT32, NULL,
     "d-psgd: rounds in a row that may be left out where a replica is late (default 0: wait)",
     AT(mixing.staleness), 0, 1024, .value = "N"},
    {"local-steps", DP_OPTION_INT32, NULL,
     "local-sgd: updates from one average to the next (default 8)",
     AT(mixing.local_steps), 1, 1000000, .value = "N"},
    {"outer-rate", DP_OPTION_REAL, NULL, "local-sgd: how far weights go to the average (default 1)",
     AT(mixing.outer_rate), 0, 10, .above = true, .value = "X"},
    {"outer-momentum", DP_OPTION_REAL, NULL, "local-sgd: of these steps, below 1",
     AT(mixing.outer_momentum), 0, 1, .value = "X"},
    {"optimizer", DP_OPTION_PARSE, NULL,
     "how weights follow from gradients; what it is not told is as its kind has it",
     .choices = optimizers, .parse = parse_optimizer},
    {"decay", DP_OPTION_REAL, NULL, "weight decay of matrices", AT(optimizer.weight_decay), 0,
     10, .value = "X"},
    {"lr", DP_OPTION_REAL, NULL, "learning rate at its peak", AT(rate.peak), 0, 10,
     .value = "X"},
    {"warmup", DP_OPTION_INT, NULL, "steps until the peak", AT(rate.warmup), 0, 1000000000,
     .value = "N"},
    {"clip", DP_OPTION_REAL, NULL, "largest norm of the whole gradient; 0: any", AT(clip), 0,
     1000000000, .value = "X"},
    {"loss-scale", DP_OPTION_PARSE, NULL,
     "what the loss is multiplied with at first, so that small gradients survive; 0: nothing",
     .value = "X", .parse = parse_loss_scale},
    {"dtype", DP_OPTION_PARSE, NULL, "what layers are given the weights as, too, rounded",
     .choices = dtypes, .parse = parse_dtype},
    {"seed", DP_OPTION_INT, NULL, "of initial weights and of random numbers", AT(seed), 0,
     INT64_MAX, .value = "N"},
    {"save", DP_OPTION_STRING, NULL,
     "write the state at the end as a checkpoint below this folder", AT(checkpoint.folder),
     .value = "DIR"},
    {"save-every", DP_OPTION_INT, NULL, "and after every N steps; 0: at the end only",
     AT(checkpoint.every), 0, 1000000000, .value = "N"},
    {"save-keep", DP_OPTION_INT32, NULL, "of these the newest N stay; 0: all",
     AT(checkpoint.keep), 0, 1000000, .value = "N"},
    {"save-on-signal", DP_OPTION_BOOL, NULL, "and when a rank is told to end, by SIGTERM",
     AT(checkpoint.on_signal)},
    {"resume", DP_OPTION_STRING, NULL, "go on from the newest checkpoint there",
     AT(checkpoint.from), .value = "DIR"},
};

const struct dp_option_area dp_train_option_area = {"TRAIN", table,
                                                    sizeof(table) / sizeof(table[0])};

const struct dp_option *dp_trainer_options(int32_t *count)
{
    *count = (int32_t)dp_train_option_area.count;
    return table;
}

int dp_trainer_config_from_env_sized(struct dp_trainer_config *config, size_t size)
{
    struct dp_trainer_config own;
    int err = dp_sized_take(&own, sizeof(own), config, size, "struct dp_trainer_config");

    if (!err)
        err = dp_options_read_over(&dp_train_option_area, &own);
    if (!err)
        dp_sized_give(config, size, &own, sizeof(own));
    return err;
}
