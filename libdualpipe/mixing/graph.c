/* SPDX-License-Identifier: Apache-2.0
 *
 * graph.c - find a graph's name, build it, check it; and equality.
 */
#include "mixing/graph.h"

#include "base/fail.h"
#include "base/nearest.h"
#include "base/options.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---------------------------------------------------------------------------------- */

struct registered {
    char name[DP_GRAPH_NAME_LEN];
    struct dp_graph_kind kind;
};

enum { REGISTERED_MAX = 256 };
static struct registered registered[REGISTERED_MAX];
static int registered_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int count_builtins(void)
{
    int count = 0;

    while (dp_graph_builtins[count].name)
        count++;
    return count;
}

static const char *name_of(int i)
{
    const int builtins = count_builtins();

    if (i < 0 || i >= builtins + registered_count)
        return NULL;
    return i < builtins ? dp_graph_builtins[i].name : registered[i - builtins].name;
}

/* The number of a name, -1 if there is none. */
static int find_name(const char *name)
{
    for (int i = 0; name_of(i); i++)
        if (!strcmp(name_of(i), name))
            return i;
    return -1;
}

const char *dp_graph_name(int i)
{
    pthread_mutex_lock(&lock);
    const char *name = name_of(i);
    pthread_mutex_unlock(&lock);
    return name;
}

static int check_name(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
    size_t len = name ? strlen(name) : 0;

    if (!len || len >= DP_GRAPH_NAME_LEN || strspn(name, letters) != len)
        return dp_fail(DP_EINVAL, "name of a mixing graph: '%s', expected 1 to %d of a-z, 0-9 and -",
                       name ? name : "", DP_GRAPH_NAME_LEN - 1);
    return 0;
}

static int add_name(const char *name, const struct dp_graph_kind *kind)
{
    if (find_name(name) >= 0)
        return dp_fail(DP_EINVAL, "mixing graph '%s' is registered already, expected a new name",
                       name);
    if (registered_count == REGISTERED_MAX)
        return dp_fail(DP_ENOMEM, "mixing graph '%s': %d names are registered already", name,
                       REGISTERED_MAX);
    strcpy(registered[registered_count].name, name);
    registered[registered_count++].kind = *kind;
    return 0;
}

int dp_graph_register(const char *name, const struct dp_graph_kind *kind)
{
    int err = check_name(name);

    if (!err && (!kind || !kind->build))
        err = dp_fail(DP_EINVAL, "mixing graph '%s': no build function, expected one", name);
    if (err)
        return err;
    pthread_mutex_lock(&lock);
    err = add_name(name, kind);
    pthread_mutex_unlock(&lock);
    return err;
}

/* ---- building ------------------------------------------------------------------------------- */

/* As launchers of processes say it. */
static int default_local(int *local)
{
    const char *text = dp_foreign_variable("LOCAL_WORLD_SIZE");
    char *end;

    if (*local)
        return 0;
    long value = text ? strtol(text, &end, 10) : 1;
    if (text && (*end || value < 1 || value > DP_GRAPH_MAX_WORKERS))
        return dp_fail(DP_EINVAL, "LOCAL_WORLD_SIZE: '%s', expected the number of workers of a node",
                       text);
    *local = (int)value;
    return 0;
}

static int unknown_name(const char *name)
{
    const char *names[REGISTERED_MAX + 32];
    struct dp_text list = {0};
    size_t count = 0;

    for (const char *known; count < sizeof(names) / sizeof(names[0]) &&
                            (known = dp_graph_name((int)count)) != NULL; count++) {
        names[count] = known;
        dp_text_addf(&list, "%s%s", count ? ", " : "", known);
    }
    const char *near = dp_nearest(name, names, count);
    int err = dp_fail(DP_EINVAL, "mixing graph '%s', expected one of %s%s%s%s", name,
                      list.data ? list.data : "the known ones", near ? "; did you mean " : "",
                      near ? near : "", near ? "?" : "");
    dp_text_fini(&list);
    return err;
}

static int find_kind(const char *name, int *builtin, struct dp_graph_kind *kind)
{
    const int builtins = count_builtins();

    pthread_mutex_lock(&lock);
    int i = find_name(name);
    *builtin = i < builtins ? i : -1;
    if (i >= builtins)
        *kind = registered[i - builtins].kind;
    pthread_mutex_unlock(&lock);
    return i < 0 ? unknown_name(name) : 0;
}

static int build(const struct dp_graph_spec *spec, int builtin, const struct dp_graph_kind *kind,
                 struct dp_graph **out)
{
    struct dp_graph_builder *b;
    struct dp_graph *unused;
    int err = dp_graph_builder_new(spec->name, spec->workers, spec->local, &b);

    if (err)
        return err;
    err = builtin >= 0 ? dp_graph_builtins[builtin].build(spec, b) : kind->build(spec, b, kind->user);
    if (!err)
        return dp_graph_builder_end(b, out);
    if (!dp_graph_builder_end(b, &unused))
        dp_graph_free(unused);
    return err;
}

int dp_graph_new(const struct dp_graph_spec *spec, struct dp_graph **out)
{
    struct dp_graph_spec s = *spec;
    struct dp_graph_kind kind = {0};
    struct dp_graph *g;
    int builtin, err = default_local(&s.local);

    if (!err && !s.name)
        err = dp_fail(DP_EINVAL, "no name of a mixing graph, expected one like ring");
    if (!err)
        err = find_kind(s.name, &builtin, &kind);
    if (!err)
        err = build(&s, builtin, &kind, &g);
    if (err)
        return err;
    if ((err = dp_graph_check(g, NULL))) {
        dp_graph_free(g);
        return err;
    }
    *out = g;
    return 0;
}

/* ---- equality ------------------------------------------------------------------------------- */

static bool same_groups(const struct dp_graph *a, const struct dp_graph *b)
{
    if (a->group_count != b->group_count || a->member_count != b->member_count)
        return false;
    for (size_t i = 0; i < a->group_count; i++) {
        const struct dp_mix_group *x = &a->groups[i], *y = &b->groups[i];
        if (x->first != y->first || x->count != y->count || x->self != y->self)
            return false;
    }
    return !a->member_count ||
           !memcmp(a->members, b->members, a->member_count * sizeof(*a->members));
}

static bool same_links(const struct dp_graph *a, const struct dp_graph *b)
{
    if (a->link_count != b->link_count)
        return false;
    for (size_t i = 0; i < a->link_count; i++) {
        const struct dp_mix_link *x = &a->links[i], *y = &b->links[i];
        if (x->from != y->from || x->to != y->to || x->weight != y->weight)
            return false;
    }
    return true;
}

bool dp_graph_equal(const struct dp_graph *a, const struct dp_graph *b)
{
    if (a->workers != b->workers || a->local != b->local || a->period != b->period ||
        a->push_sum != b->push_sum)
        return false;
    for (int32_t t = 0; t < a->period; t++)
        if (a->rounds[t].group_count != b->rounds[t].group_count ||
            a->rounds[t].link_count != b->rounds[t].link_count)
            return false;
    return same_groups(a, b) && same_links(a, b);
}
