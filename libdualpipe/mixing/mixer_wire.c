/* SPDX-License-Identifier: Apache-2.0
 *
 * mixer_wire.c - whether what workers send each other may be compressed, or late.
 */
#include "base/fail.h"
#include "mixing/mixer_state.h"

#include <stdio.h>

enum { STALENESS_MAX = 1024 };

static const char *const compressions[DP_COMPRESSIONS] = {"none", "int8", "topk"};

const char *dp_mixer_compression_name(enum dp_mixer_compression compression)
{
    return (unsigned)compression < DP_COMPRESSIONS ? compressions[compression] : NULL;
}

double dp_mixer_wire_factor(const struct dp_mixer_config *c)
{
    return c->compression == DP_COMPRESSION_TOPK ? c->fraction : 1;
}

static int check_fraction(const struct dp_mixer_config *c)
{
    const bool topk = c->compression == DP_COMPRESSION_TOPK;

    if (topk ? c->fraction > 0 && c->fraction <= 1 : c->fraction == 0)
        return 0;
    return dp_fail(DP_EINVAL, "compression %s with a fraction of %g, expected %s",
                   compressions[c->compression], c->fraction, topk ? "above 0, up to 1" : "0");
}

/* What differences are defined for. */
static int check_method(const struct dp_mixer_config *c, const char *what)
{
    if (c->algorithm != DP_MIXER_DPSGD)
        return dp_fail(DP_EINVAL, "%s with %s, expected d-psgd", what,
                       dp_mixer_algorithm_name(c->algorithm));
    if (c->graph->push_sum)
        return dp_fail(DP_EINVAL, "%s over mixing graph %s, expected one without push-sum", what,
                       c->graph->name);
    if (c->compat)
        return dp_fail(DP_EINVAL, "%s with compat, expected one of the two", what);
    return 0;
}

static int check_types(const struct dp_mixer_config *c)
{
    for (int32_t i = 0; i < c->count; i++)
        if (!(c->parameters[i].flags & DP_PARAMETER_FROZEN) &&
            c->parameters[i].value->dtype.bits < 32)
            return dp_fail(DP_EUNSUPPORTED,
                           "compression %s of parameter '%s', expected float32 or float64",
                           compressions[c->compression], c->parameters[i].name);
    return 0;
}

static int check_staleness(const struct dp_mixer_config *c)
{
    int32_t round, i, j;

    if (c->staleness < 0 || c->staleness > STALENESS_MAX)
        return dp_fail(DP_EINVAL, "staleness: %d rounds, expected 0 to %d", c->staleness,
                       STALENESS_MAX);
    if (!c->staleness)
        return 0;
    int err = check_method(c, "staleness");
    if (err)
        return err;
    if (c->compression)
        return dp_fail(DP_EINVAL, "staleness with compression %s, expected one of the two",
                       compressions[c->compression]);
    if (dp_graph_is_symmetric(c->graph, &round, &i, &j))
        return 0;
    return dp_fail(DP_EINVAL,
                   "staleness over mixing graph %s, in which workers %d and %d give each other "
                   "%g and %g in round %d, expected the same",
                   c->graph->name, i, j, dp_graph_weight(c->graph, round, j, i),
                   dp_graph_weight(c->graph, round, i, j), round);
}

int dp_mixer_check_wire(const struct dp_mixer_config *c)
{
    char what[32];

    if (!dp_mixer_compression_name(c->compression))
        return dp_fail(DP_EINVAL, "compression: %d, expected 0 to %d", (int)c->compression,
                       DP_COMPRESSIONS - 1);
    int err = check_fraction(c);
    if (!err)
        err = check_staleness(c);
    if (err || !c->compression)
        return err;
    snprintf(what, sizeof(what), "compression %s", compressions[c->compression]);
    err = check_method(c, what);
    return err ? err : check_types(c);
}
