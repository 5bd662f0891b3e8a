/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* asprintf */
#include "topology/internal.h"

#include "topology_case.h"

#include "cmocka_all.h"
#include "same_topology.h"
#include "unit/microbatch/tree.h"

static void must(int err)
{
    if (err)
        fail_msg("%s", dp_last_error());
}

struct dp_topology *topology_made(const char *description)
{
    struct dp_topology *t = NULL;

    must(dp_topology_new_synthetic(description, &t));
    return t;
}

struct dp_topology *topology_unpacked(const char *tree)
{
    struct dp_topology *t = NULL;
    char *root = tree_unpack(tree);
    int err = dp_topology_read_sysfs(root, &t);

    tree_remove(root);
    must(err);
    must(dp_topo_check(t));
    return t;
}

static void name_file(const char *variable, const char *top, const char *directory, const char *name,
                      const char *ending)
{
    char *path;

    assert_true(asprintf(&path, "%s/%s/%s.%s", top ? top : ".", directory, name, ending) > 0);
    setenv(variable, path, 1);
    free(path);
}

struct dp_topology *topology_unpacked_with(const char *tree, const char *library, const char *gpus)
{
    name_file("DUALPIPE_TOPOLOGY_NVML_LIBRARY", getenv("DP_TOP_BUILDDIR"), "tests/fakes/.libs",
              library, "so");
    name_file("FAKE_NVML", getenv("DP_TEST_DATA"), "topology/nvml", gpus, "txt");
    struct dp_topology *t = topology_unpacked(tree);
    unsetenv("DUALPIPE_TOPOLOGY_NVML_LIBRARY");
    return t;
}

char *topology_written(const struct dp_topology *t, enum dp_topology_format format)
{
    char *text = NULL;

    must(dp_topology_write(t, format, &text, NULL));
    return text;
}

char *topology_file(const char *name)
{
    char path[4096], *text = calloc(1, 1 << 16);

    snprintf(path, sizeof(path), "%s/topology/%s", getenv("DP_TEST_DATA"), name);
    FILE *f = fopen(path, "re");
    assert_true(f && text);
    assert_true(fread(text, 1, (1 << 16) - 1, f) > 0);
    fclose(f);
    return text;
}

struct dp_topology *topology_said(const char *text, enum dp_topology_format format)
{
    struct dp_topology *t = NULL;

    must(dp_topology_read(text, strlen(text), format, &t));
    return t;
}

void topology_survives_json(const struct dp_topology *t)
{
    char *text = topology_written(t, DP_TOPOLOGY_JSON);
    struct dp_topology *back = topology_said(text, DP_TOPOLOGY_AUTO);
    char *again = topology_written(back, DP_TOPOLOGY_JSON);

    assert_true(is_same_topology(t, back));
    assert_true(dp_topology_equal(t, back));
    assert_string_equal(text, again);
    free(text);
    free(again);
    dp_topology_free(back);
}

int32_t topology_node(const struct dp_topology *t, const char *name)
{
    int32_t n = -1;

    must(dp_topology_find(t, name, &n));
    return n;
}

struct dp_topo_path topology_way(const struct dp_topology *t, const char *a, const char *b)
{
    struct dp_topo_path p;

    must(dp_topology_path(t, topology_node(t, a), topology_node(t, b), &p));
    return p;
}

int32_t topology_count(const struct dp_topology *t, enum dp_topo_kind kind)
{
    int32_t count = 0;

    for (int32_t i = -1; (i = dp_topology_next(t, kind, -1, i + 1)) >= 0;)
        count++;
    return count;
}

int32_t topology_count_links(const struct dp_topology *t, enum dp_topo_link_kind kind)
{
    int32_t count = 0;

    for (int32_t i = 0; i < t->link_count; i++)
        count += t->links[i].kind == kind;
    return count;
}

bool topology_notes(const struct dp_topology *t, const char *what)
{
    for (int32_t i = 0; i < t->note_count; i++)
        if (strstr(dp_topology_text(t, t->notes[i].text), what))
            return true;
    return false;
}

static void drop(void *user, enum dp_log_level level, const char *line)
{
}

void topology_quietly(void)
{
    dp_log_set(drop, NULL, DP_LOG_ERROR);
}
