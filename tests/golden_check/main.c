/* SPDX-License-Identifier: Apache-2.0
 *
 * main.c - check every golden file of a directory: recorded traces and vectors that say what other
 * implementations did. What a file is, is told by its content.
 *
 *      golden-check [DIR]      DIR: by default the golden files of the tests
 *
 * Prints a line a file and the totals. Returns 1 if a file failed or there was none, 2 if it could
 * not look.
 */
#include "golden_check/golden.h"
#include "quiet.h"

#include <dualpipe/dualpipe.h>

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct golden_kind *const kinds[] = {
    &golden_schedule_traces, &golden_microbatch_sizes, &golden_mixing_graphs,
    &golden_asyncpipe_events, &golden_asyncpipe_partitions, &golden_optimizer_steps,
    &golden_mixing_buckets, &golden_mixing_runs, &golden_offload_shards,
};

static bool read_whole(FILE *f, struct golden *g)
{
    long size;

    if (fseek(f, 0, SEEK_END) || (size = ftell(f)) < 0 || fseek(f, 0, SEEK_SET))
        return false;
    g->text = malloc((size_t)size + 1);
    g->len = (size_t)size;
    return g->text && fread(g->text, 1, g->len, f) == g->len;
}

static bool load(struct golden *g)
{
    json_error_t error;
    FILE *f = fopen(g->name, "rb");
    bool read = f && read_whole(f, g);
    if (f)
        fclose(f);
    if (!read)
        return FAIL(g, "cannot be read");
    g->value = json_loadb(g->text, g->len, JSON_REJECT_DUPLICATES, &error);
    if (!g->value)
        return FAIL(g, "line %d: %s", error.line, error.text);
    return true;
}

static bool check_value(struct golden *g)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (kinds[i]->is(g->value))
            return kinds[i]->check(g);
    return FAIL(g, "of no kind that is known here");
}

static bool check_file(const char *name)
{
    struct golden g = {.name = name};
    bool passed = load(&g) && check_value(&g);

    printf("%s: %s: %s\n", passed ? "passed" : "failed", name, g.note);
    json_decref(g.value);
    free(g.text);
    return passed;
}

static int is_json(const struct dirent *entry)
{
    size_t len = strlen(entry->d_name);
    return len > 5 && !strcmp(entry->d_name + len - 5, ".json");
}

static int check_directory(const char *dir)
{
    struct dirent **entries;
    int passed = 0, count = -1;

    if (!chdir(dir))
        count = scandir(".", &entries, is_json, alphasort);
    if (count < 0) {
        fprintf(stderr, "golden-check: '%s' cannot be read, expected a directory\n", dir);
        return 2;
    }
    for (int i = 0; i < count; i++) {
        passed += check_file(entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    if (!count)
        printf("'%s' has no golden file (*.json)\n", dir);
    printf("%d passed, %d failed, 0 skipped\n", passed, count - passed);
    return passed < count || !count;
}

int main(int argc, char **argv)
{
    const char *data = getenv("DP_TEST_DATA");

    if (argc > 2 || (argc < 2 && (!data || chdir(data)))) {
        fprintf(stderr, "usage: golden-check DIR\n");
        return 2;
    }
    log_nothing(); /* the line of a file says it */
    return check_directory(argc == 2 ? argv[1] : "golden");
}
