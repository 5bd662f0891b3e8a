/* SPDX-License-Identifier: Apache-2.0
 *
 * place_mixing.c - which replicas mix: pairs, or a mixing graph whose rounds are averaged.
 */
#include "topo/place_mixing.h"

#include "command.h"
#include "input.h"
#include "mix/mix.h"

#include <dualpipe/mixing.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- pairs ---------------------------------------------------------------------------------- */

static int misuse(const char *text)
{
    return command_misused("--mixing %s: expected pairs of replicas such as 0-2,1-3, or none, or "
                           "all-reduce, or a mixing graph (%s), or a file with one",
                           text, mix_kinds());
}

/* "0-2,1-3" */
static int read_pairs(const char *text, struct place_mixing *out)
{
    const char *at = text;

    for (int end = 0; *at; at += end) {
        struct dp_replica_pair *p = &out->pairs[out->count];
        if (sscanf(at, "%d-%d%n", &p->a, &p->b, &end) != 2 || (at[end] && at[end] != ','))
            return misuse(text);
        end += at[end] == ',';
        out->count++;
    }
    return 0;
}

/* ---- a graph -------------------------------------------------------------------------------- */

static void add(struct place_mixing *out, int32_t from, int32_t to, double share)
{
    if (from != to)
        out->pairs[out->count++] =
            (struct dp_replica_pair){.a = from, .b = to, .share = share, .one_way = true};
}

/* Two swap; more exchange as a ring does, 2 (k - 1) / k of the parameters from each to the next. */
static void add_group(struct place_mixing *out, const struct dp_graph *g,
                      const struct dp_mix_group *group)
{
    const int32_t *members = g->members + group->first, k = group->count;
    const double share = (k == 2 ? 1 : 2.0 * (k - 1) / k) / g->period;

    for (int32_t i = 0; i < k; i++)
        add(out, members[i], members[(i + 1) % k], share);
}

static int compare(const void *a, const void *b)
{
    const struct dp_replica_pair *x = a, *y = b;

    return x->a != y->a ? x->a - y->a : x->b - y->b;
}

/* What several rounds send is added up. */
static void merge(struct place_mixing *out)
{
    int kept = 0;

    qsort(out->pairs, (size_t)out->count, sizeof(*out->pairs), compare);
    for (int i = 0; i < out->count; i++)
        if (kept && !compare(&out->pairs[kept - 1], &out->pairs[i]))
            out->pairs[kept - 1].share += out->pairs[i].share;
        else
            out->pairs[kept++] = out->pairs[i];
    out->count = kept;
}

static int take_graph(const struct dp_graph *g, struct place_mixing *out)
{
    out->pairs = calloc(g->member_count + g->link_count + 1, sizeof(*out->pairs));
    if (!out->pairs)
        return command_broke("no memory for a mixing graph of %d replicas", g->workers);
    for (size_t i = 0; i < g->group_count; i++)
        add_group(out, g, &g->groups[i]);
    for (size_t i = 0; i < g->link_count; i++)
        add(out, g->links[i].from, g->links[i].to, 1.0 / g->period);
    merge(out);
    return 0;
}

static int read_graph(const char *path, int replicas, struct dp_graph **out)
{
    size_t len;
    char *text = input_read(path, INPUT_MOST, &len);

    if (!text)
        return command_misused("--mixing %s: %s", path, input_error(errno));
    command_mute(true);
    int err = dp_graph_read(text, len, DP_GRAPH_FORMAT_GUESS, DP_GRAPH_WEIGHTS_GIVEN, 0, out);
    free(text);
    if (!err && (*out)->workers != replicas) {
        const int workers = (*out)->workers;
        dp_graph_free(*out);
        command_mute(false);
        return command_misused(
            "--mixing %s: a graph of %d workers, expected one of %d, the replicas", path, workers,
            replicas);
    }
    if (!err && (err = dp_graph_check(*out, NULL)))
        dp_graph_free(*out);
    return command_read(path, err);
}

static bool is_graph(const char *name)
{
    for (int i = 0; dp_graph_name(i); i++)
        if (!strcmp(name, dp_graph_name(i)))
            return true;
    return false;
}

static int find_graph(const char *text, int replicas, struct dp_graph **out)
{
    const char *name = strcmp(text, "all-reduce") ? text : "complete";

    if (is_graph(name))
        return mix_build(&(struct mix_args){.workers = replicas}, name, out);
    return access(text, F_OK) ? misuse(text) : read_graph(text, replicas, out);
}

/* ---- either --------------------------------------------------------------------------------- */

int place_read_mixing(const char *text, int replicas, struct place_mixing *out)
{
    const bool is_list = !strcmp(text, "none") || text[strspn(text, "0123456789,-")] == '\0';
    struct dp_graph *g;
    int status = 0;

    *out = (struct place_mixing){0};
    if (is_list) {
        out->pairs = calloc(strlen(text) + 1, sizeof(*out->pairs));
        if (!out->pairs)
            return command_broke("no memory for %zu characters of --mixing", strlen(text));
        status = strcmp(text, "none") ? read_pairs(text, out) : 0;
    } else if (replicas > 1 && !(status = find_graph(text, replicas, &g))) {
        status = take_graph(g, out);
        dp_graph_free(g);
    }
    if (status) {
        free(out->pairs);
        *out = (struct place_mixing){0};
    }
    return status;
}
