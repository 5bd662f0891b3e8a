/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_all.h"
#include "system/stat_command.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

char stat_work[SCRATCH_LEN], stat_pages[SCRATCH_LEN + 16];
char stat_out[1 << 20], stat_err[1 << 14];

/* ---- the directory --------------------------------------------------------------------------- */

int stat_make_directory(void **state)
{
    (void)state;
    if (!scratch_directory(stat_work, "stat"))
        return -1;
    snprintf(stat_pages, sizeof(stat_pages), "%s/pages", stat_work);
    return mkdir(stat_pages, 0700);
}

int stat_remove_directory(void **state)
{
    (void)state;
    return scratch_remove(stat_work);
}

/* ---- the command ----------------------------------------------------------------------------- */

void stat_read_file(const char *name, char *text, size_t len)
{
    char path[256];

    snprintf(path, sizeof(path), "%s/%s", stat_work, name);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t got = fread(text, 1, len - 1, f);
    fclose(f);
    text[got] = '\0';
}

int stat_run(const char *arguments)
{
    char command[8192];

    snprintf(command, sizeof(command), "'%s/tools/dualpipe' stat --dir '%s' %s >'%s/out' 2>'%s/err'",
             getenv("DP_TOP_BUILDDIR"), stat_pages, arguments, stat_work, stat_work);
    int status = system(command);
    stat_read_file("out", stat_out, sizeof(stat_out));
    stat_read_file("err", stat_err, sizeof(stat_err));
    return WEXITSTATUS(status);
}

json_t *stat_run_json(void)
{
    json_error_t why;

    assert_int_equal(stat_run("--json"), 0);
    assert_string_equal(stat_err, "");
    json_t *all = json_loads(stat_out, 0, &why);
    assert_non_null(all);
    assert_int_equal(json_integer_value(json_object_get(all, "format")), 1);
    return all;
}

json_t *stat_process_at(json_t *all, size_t at)
{
    return json_array_get(json_object_get(all, "processes"), at);
}

size_t stat_process_count(json_t *all)
{
    return json_array_size(json_object_get(all, "processes"));
}

int64_t stat_count(json_t *of, const char *name)
{
    json_t *value = json_object_get(of, name);

    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

json_t *stat_way(json_t *process, const char *name)
{
    return json_object_get(json_array_get(json_object_get(process, "devices"), 0), name);
}

int64_t stat_sum(json_t *histogram)
{
    int64_t all = 0;
    size_t i;
    json_t *place;

    json_array_foreach(histogram, i, place)
        all += stat_count(place, "count");
    return all;
}

int64_t stat_place(json_t *histogram, int64_t below)
{
    size_t i;
    json_t *one;

    json_array_foreach(histogram, i, one)
        if (stat_count(one, "below") == below)
            return stat_count(one, "count");
    return 0;
}
