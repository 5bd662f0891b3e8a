/* SPDX-License-Identifier: Apache-2.0
 *
 * table.c - a table, from a text or a file.
 */
#include "base/fail.h"
#include "base/number.h"
#include "base/text.h"
#include "base/utf8.h"
#include "tuning/rule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A table is read whenever a communicator is made; this is a hundred thousand rules. */
enum { MAX_FILE = 8 << 20 };

static int make_table(struct dp_tuning_draft *draft, struct dp_tuning_table **out)
{
    struct dp_tuning_table *table = calloc(1, sizeof(*table));
    char *name = strdup(draft->name);

    if (!table || !name) {
        free(table);
        free(name);
        return dp_fail(DP_ENOMEM, "%s: no memory for the table", draft->name);
    }
    *table = (struct dp_tuning_table){name, draft->count, draft->rules};
    *out = table;
    return 0;
}

/* No rule of a CSV file begins with a bracket. */
static bool is_json(const char *text, size_t len)
{
    size_t i = 0;

    while (i < len && strchr(" \t\r\n", text[i]) && text[i])
        i++;
    return i < len && (text[i] == '{' || text[i] == '[');
}

/* Words are the same in any letters, by the C locale: in a Turkish one a RING is no ring. */
int dp_tuning_table_read(const char *text, size_t len, const char *name,
                         struct dp_tuning_table **out)
{
    struct dp_tuning_draft draft = {.name = name};
    int err = dp_utf8_begin(&text, &len, name);

    if (err)
        return err;
    locale_t before = dp_point_begin();
    err = (is_json(text, len) ? dp_tuning_read_json : dp_tuning_read_csv)(text, len, &draft);
    dp_point_end(before);
    if (!err && !draft.count)
        err = dp_fail(DP_EINVAL, "%s: no rules, expected at least one", name);
    if (!err)
        err = make_table(&draft, out);
    if (err)
        free(draft.rules);
    return err;
}

int dp_tuning_table_load(const char *path, struct dp_tuning_table **out)
{
    struct dp_text text = {0};
    int err = dp_text_add_file(&text, path, MAX_FILE, "a table");

    if (!err)
        err = dp_tuning_table_read(text.data ? text.data : "", text.len, path, out);
    dp_text_fini(&text);
    return err;
}

void dp_tuning_table_free(struct dp_tuning_table *table)
{
    if (!table)
        return;
    free(table->name);
    free(table->rules);
    free(table);
}
