/* SPDX-License-Identifier: Apache-2.0
 *
 * graph_text.c - mixing graphs written and read as text, a line a round:
 *
 *      mixing ring workers=4 local=1
 *      round 0: {0 1} {2 3}
 *      round 1: {0 3}*0.7 {1 2}             each of 0 and 3 keeps 0.7; without a weight the mean
 *
 *      mixing mine workers=2 local=1 push-sum
 *      round 0: 0>0*0.5 0>1*0.5 1>1*1       worker 0 gives half of its value to worker 1
 *
 * '#' begins a comment, and a line that begins with a blank goes on with the round before.
 */
#include "base/array.h"
#include "base/fail.h"
#include "base/text.h"
#include "mixing/graph.h"

#include <stdlib.h>
#include <string.h>

/* ---- writing --------------------------------------------------------------------------------- */

static void write_group(const struct dp_graph *g, const struct dp_mix_group *group,
                        struct dp_text *t)
{
    dp_text_adds(t, " {");
    for (int32_t i = 0; i < group->count; i++)
        dp_text_addf(t, "%s%d", i ? " " : "", g->members[group->first + (size_t)i]);
    dp_text_adds(t, "}");
    if (group->self != 1.0 / group->count) {
        dp_text_adds(t, "*");
        dp_text_add_number(t, group->self);
    }
}

static void write_link(const struct dp_mix_link *l, struct dp_text *t)
{
    dp_text_addf(t, " %d>%d*", l->from, l->to);
    dp_text_add_number(t, l->weight);
}

int dp_graph_write(const struct dp_graph *g, char **out, size_t *len)
{
    struct dp_text t = {0};

    dp_text_addf(&t, "mixing %s workers=%d local=%d%s\n", g->name, g->workers, g->local,
                 g->push_sum ? " push-sum" : "");
    for (int32_t k = 0; k < g->period; k++) {
        const struct dp_mix_round *r = &g->rounds[k];
        dp_text_addf(&t, "round %d:", k);
        for (size_t i = 0; i < r->group_count; i++)
            write_group(g, &g->groups[r->first_group + i], &t);
        for (size_t i = 0; i < r->link_count; i++)
            write_link(&g->links[r->first_link + i], &t);
        dp_text_adds(&t, "\n");
    }
    return dp_text_take(&t, out, len);
}

/* ---- reading --------------------------------------------------------------------------------- */

struct reader {
    const char *at;
    int line;
    int rounds;
    struct dp_graph_builder *b;
    int32_t *ranks; /* of the group being read */
    int32_t count;
    size_t capacity;
};

static int expected(const struct reader *r, const char *what)
{
    int len = (int)strcspn(r->at, " \t\r\n");

    if (!*r->at || !len)
        return dp_fail(DP_EINVAL, "line %d: the line ends, expected %s", r->line, what);
    return dp_fail(DP_EINVAL, "line %d: '%.*s', expected %s", r->line, len > 40 ? 40 : len, r->at,
                   what);
}

/* Over blanks and a comment; not over the end of the line. */
static void skip_blanks(struct reader *r)
{
    r->at += strspn(r->at, " \t\r");
    if (*r->at == '#')
        r->at += strcspn(r->at, "\n");
}

static void skip_empty_lines(struct reader *r)
{
    for (skip_blanks(r); *r->at == '\n'; skip_blanks(r)) {
        r->at++;
        r->line++;
    }
}

static bool take(struct reader *r, const char *word)
{
    size_t len = strlen(word);

    if (strncmp(r->at, word, len))
        return false;
    r->at += len;
    return true;
}

static bool take_int(struct reader *r, int32_t *out)
{
    char *end;
    long value = *r->at >= '0' && *r->at <= '9' ? strtol(r->at, &end, 10) : -1;

    if (value < 0 || value > DP_GRAPH_MAX_WORKERS)
        return false;
    r->at = end;
    *out = (int32_t)value;
    return true;
}

static bool take_weight(struct reader *r, double *out)
{
    char *end;

    *out = dp_strtod(r->at, &end);
    if (end == r->at)
        return false;
    r->at = end;
    return true;
}

static int add_rank(struct reader *r, int32_t rank)
{
    int32_t *ranks = dp_array_grow(r->ranks, &r->capacity, (size_t)r->count + 1, sizeof(*ranks));

    if (!ranks)
        return dp_fail(DP_ENOMEM, "line %d: no memory for a group", r->line);
    r->ranks = ranks;
    r->ranks[r->count++] = rank;
    return 0;
}

static int read_group(struct reader *r)
{
    int32_t rank;
    double self = -1;
    int err = 0;

    r->count = 0;
    for (skip_blanks(r); !err && take_int(r, &rank); skip_blanks(r))
        err = add_rank(r, rank);
    if (err)
        return err;
    if (!r->count || !take(r, "}"))
        return expected(r, "workers and '}'");
    if (take(r, "*") && !take_weight(r, &self))
        return expected(r, "what each worker of the group keeps, 0 to 1");
    dp_graph_add_group(r->b, r->ranks, r->count, self);
    return 0;
}

static int read_link(struct reader *r)
{
    int32_t from, to;
    double weight;

    if (!take_int(r, &from) || !take(r, ">") || !take_int(r, &to) || !take(r, "*") ||
        !take_weight(r, &weight))
        return expected(r, "a group like {0 3} or a link like 0>3*0.5");
    dp_graph_add_link(r->b, from, to, weight);
    return 0;
}

/* A line of rounds goes on where the next one begins with a blank and says something. */
static bool goes_on(struct reader *r)
{
    skip_blanks(r);
    while (*r->at == '\n' && (r->at[1] == ' ' || r->at[1] == '\t')) {
        r->at++;
        r->line++;
        skip_blanks(r);
    }
    return *r->at && *r->at != '\n';
}

static int read_round(struct reader *r)
{
    const char *line = r->at;
    int32_t number;
    int err = 0;

    if (!take(r, "round ") || !take_int(r, &number) || number != r->rounds || !take(r, ":"))
        return dp_fail(DP_EINVAL, "line %d: '%.*s', expected 'round %d:'", r->line,
                       (int)strcspn(line, "\n") > 40 ? 40 : (int)strcspn(line, "\n"), line,
                       r->rounds);
    dp_graph_add_round(r->b);
    r->rounds++;
    while (!err && goes_on(r))
        err = take(r, "{") ? read_group(r) : read_link(r);
    return err;
}

static int read_header(struct reader *r)
{
    char name[DP_GRAPH_NAME_LEN];
    int32_t workers, local = 1;
    bool push_sum = false;

    if (!take(r, "mixing "))
        return expected(r, "'mixing NAME workers=N'");
    skip_blanks(r);
    size_t len = strcspn(r->at, " \t\r\n");
    if (!len || len >= sizeof(name))
        return expected(r, "a name of up to 31 letters");
    memcpy(name, r->at, len);
    name[len] = '\0';
    r->at += len;
    skip_blanks(r);
    if (!take(r, "workers=") || !take_int(r, &workers))
        return expected(r, "workers=N");
    skip_blanks(r);
    if (take(r, "local=") && !take_int(r, &local))
        return expected(r, "local=N");
    skip_blanks(r);
    push_sum = take(r, "push-sum");
    skip_blanks(r);
    if (*r->at && *r->at != '\n')
        return expected(r, "local=N, push-sum or the end of the line");
    int err = dp_graph_builder_new(name, workers, local, &r->b);
    if (!err && push_sum)
        dp_graph_set_push_sum(r->b);
    return err;
}

static int read_copy(const char *copy, struct dp_graph **out)
{
    struct reader r = {.at = copy, .line = 1};
    struct dp_graph *unused;
    int err;

    skip_empty_lines(&r);
    err = read_header(&r);
    for (skip_empty_lines(&r); !err && *r.at; skip_empty_lines(&r))
        err = read_round(&r);
    free(r.ranks);
    if (!err)
        return dp_graph_builder_end(r.b, out);
    if (r.b && !dp_graph_builder_end(r.b, &unused))
        dp_graph_free(unused);
    return err;
}

int dp_graph_read(const char *text, size_t len, struct dp_graph **out)
{
    int err = dp_utf8_begin(&text, &len, NULL);

    if (err)
        return err;
    char *copy = malloc(len + 1);
    if (!copy)
        return dp_fail(DP_ENOMEM, "no memory for a mixing graph of %zu bytes", len);
    memcpy(copy, text, len);
    copy[len] = '\0';
    err = strlen(copy) == len ? read_copy(copy, out)
                              : dp_fail(DP_EINVAL, "a NUL at byte %zu, expected text", strlen(copy));
    free(copy);
    return err;
}
