/* SPDX-License-Identifier: Apache-2.0 */
#include "optimizer/internal.h"
#include "optimizer/update.h"

#include "base/fail.h"
#include "base/sized.h"
#include "base/text.h"

#include <math.h>
#include <string.h>

static const char *const kind_names[DP_OPTIMIZER_KINDS] = {"sgd", "adam", "adamw", "accum-adam",
                                                               "accum-adamw"};

const char *dp_optimizer_kind_name(enum dp_optimizer_kind kind)
{
    return (unsigned)kind < DP_OPTIMIZER_KINDS ? kind_names[kind] : "?";
}

int dp_optimizer_kind_find(const char *name, enum dp_optimizer_kind *out)
{
    const char *near;

    for (int i = 0; i < DP_OPTIMIZER_KINDS; i++)
        if (!strcmp(name, kind_names[i])) {
            *out = (enum dp_optimizer_kind)i;
            return 0;
        }
    near = dp_nearest(name, kind_names, DP_OPTIMIZER_KINDS);
    if (near)
        return dp_fail(DP_EINVAL, "optimizer: '%s', did you mean '%s'?", name, near);
    return dp_fail(DP_EINVAL, "optimizer: '%s', expected sgd, adam, adamw, accum-adam or accum-adamw",
                   name);
}

struct dp_optimizer_config dp_optimizer_defaults(enum dp_optimizer_kind kind)
{
    static const double decays[DP_OPTIMIZER_KINDS] = {0, 1.0 / 32768, 0.1, 1.0 / 32768, 0.1};

    return (struct dp_optimizer_config){
        .kind = kind,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .epsilon = 1e-8,
        .accumulation = 4,
        .weight_decay = (unsigned)kind < DP_OPTIMIZER_KINDS ? decays[kind] : 0,
    };
}

/* ---- checking -------------------------------------------------------------------------------- */

static int check_share(const char *what, double value)
{
    if (value >= 0 && value < 1)
        return 0;
    return dp_fail(DP_EINVAL, "%s: %g, expected at least 0 and less than 1", what, value);
}

static int check_amount(const char *what, double value)
{
    if (value >= 0 && isfinite(value))
        return 0;
    return dp_fail(DP_EINVAL, "%s: %g, expected a finite number from 0 on", what, value);
}

static int check_groups(const struct dp_optimizer_config *c, const struct dp_parameter *parameters,
                        int32_t count)
{
    int err = 0;

    if (c->group_count < 1 || (count && !c->group_of))
        return dp_fail(DP_EINVAL, "groups: %d, of which group_of at %p names one for each parameter, "
                       "expected at least one and a list", c->group_count,
                       (const void *)c->group_of);
    for (int32_t i = 0; i < c->group_count && !err; i++) {
        err = check_amount("groups: weight_decay", c->groups[i].weight_decay);
        if (!err)
            err = check_amount("groups: rate_factor", c->groups[i].rate_factor);
    }
    for (int32_t i = 0; i < count && !err; i++)
        if (c->group_of[i] < 0 || c->group_of[i] >= c->group_count)
            err = dp_fail(DP_EINVAL, "parameter '%s' is of group %d, expected 0 to %d",
                          parameters[i].name, c->group_of[i], c->group_count - 1);
    return err;
}

int dp_optimizer_config_check(const struct dp_optimizer_config *c,
                              const struct dp_parameter *parameters, int32_t count)
{
    int err = check_share("beta1", c->beta1);

    DP_RESERVED(c, "config");
    if ((unsigned)c->kind >= DP_OPTIMIZER_KINDS)
        return dp_fail(DP_EINVAL, "kind: %d, expected 0 to %d", (int)c->kind, DP_OPTIMIZER_KINDS - 1);
    if (!err)
        err = check_share("beta2", c->beta2);
    if (!err)
        err = check_share("momentum", c->momentum);
    if (!err)
        err = check_amount("epsilon", c->epsilon);
    if (!err)
        err = check_amount("weight_decay", c->weight_decay);
    if (!err && c->nesterov && !(c->momentum > 0))
        err = dp_fail(DP_EINVAL, "nesterov: without momentum, expected momentum above 0");
    if (!err && c->accumulation < 1)
        err = dp_fail(DP_EINVAL, "accumulation: %d, expected at least 1, as in dp_optimizer_defaults, "
                      "which a config begins with", c->accumulation);
    if (!err && (unsigned)c->decay_rule > DP_DECAY_COMPAT)
        err = dp_fail(DP_EINVAL, "decay_rule: %d, expected 0 or 1", (int)c->decay_rule);
    if (!err && c->groups)
        err = check_groups(c, parameters, count);
    return err;
}

/* ---- groups ---------------------------------------------------------------------------------- */

int32_t dp_optimizer_group_count(const struct dp_optimizer_config *c)
{
    return c->groups ? c->group_count : 2;
}

struct dp_optimizer_group dp_optimizer_group_at(const struct dp_optimizer_config *c, int32_t group)
{
    if (c->groups)
        return c->groups[group];
    return (struct dp_optimizer_group){group ? c->weight_decay : 0, 1};
}

static bool decays(const struct dp_optimizer_config *c, const struct dp_parameter *p)
{
    if (c->decay_rule == DP_DECAY_COMPAT)
        return strstr(p->name, "bn") || strstr(p->name, "bias");
    return !(p->flags & DP_PARAMETER_NO_DECAY);
}

int32_t dp_optimizer_group_of(const struct dp_optimizer_config *c, const struct dp_parameter *p,
                              int32_t index)
{
    return c->groups ? c->group_of[index] : decays(c, p);
}

int dp_optimizer_step_check(const struct dp_optimizer_step *s)
{
    const struct dp_optimizer_mix *mix = s->mix;

    if (!isfinite(s->rate) || s->rate < 0)
        return dp_fail(DP_EINVAL, "rate: %g, expected a finite number from 0 on", s->rate);
    if (!isfinite(s->scale))
        return dp_fail(DP_EINVAL, "scale: %g, expected a finite number", s->scale);
    if (mix && !(isfinite(mix->keep) && isfinite(mix->take) && isfinite(mix->put) && mix->buffers))
        return dp_fail(DP_EINVAL, "mix: keep %g, take %g, put %g, buffers %p, expected finite "
                       "numbers and a list", mix->keep, mix->take, mix->put,
                       (const void *)mix->buffers);
    return 0;
}
