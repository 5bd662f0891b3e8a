/* SPDX-License-Identifier: Apache-2.0
 *
 * variables_read.c - the environment of a process, and the files that NCCL copies into it.
 */
#include "config.h"

#include "doctor/doctor.h"

#include <stdlib.h>
#include <string.h>

const char *doctor_variable(const struct doctor *d, const char *name)
{
    for (size_t i = 0; i < d->variable_count; i++)
        if (!strcmp(d->variables[i].name, name))
            return d->variables[i].value;
    return NULL;
}

const char *doctor_origin(struct doctor *d, const char *name)
{
    for (size_t i = 0; i < d->variable_count; i++)
        if (!strcmp(d->variables[i].name, name))
            return doctor_text(d, "%s=%s in %s", name, d->variables[i].value,
                               d->variables[i].origin);
    if (d->unseen)
        return doctor_text(d, "%s: %s cannot be read", name, d->unseen);
    return doctor_text(d, "%s is not set", name);
}

/* The first that sets a name wins, as in NCCL. */
static void add(struct doctor *d, const char *line, const char *origin)
{
    const char *equals = strchr(line, '=');
    struct variable *more;

    if (!equals || equals == line || *line == '#')
        return;
    char *name = strndup(line, (size_t)(equals - line)), *value = strdup(equals + 1);
    if (!name || !value || doctor_variable(d, name))
        goto none;
    more = realloc(d->variables, (d->variable_count + 1) * sizeof(*more));
    if (!more)
        goto none;
    d->variables = more;
    d->variables[d->variable_count++] = (struct variable){name, value, origin};
    return;
none:
    free(name);
    free(value);
}

/* The lines of a file, which end with `end`. false: it cannot be read. */
static bool add_file(struct doctor *d, char end, const char *path, const char *origin)
{
    size_t len;
    char *bytes = tree_read(&d->tree, &len, "%s", path);
    const bool is_read = bytes;

    for (size_t at = 0; bytes && at < len;) {
        size_t line = 0;
        while (at + line < len && bytes[at + line] != end)
            line++;
        bytes[at + line] = 0;
        add(d, bytes + at, origin);
        at += line + 1;
    }
    free(bytes);
    return is_read;
}

void doctor_variables_read(struct doctor *d)
{
    const char *file = doctor_text(d, "/proc/%s/environ", d->process);

    if (!add_file(d, 0, file, "the environment")) {
        d->unseen = file;
        doctor_add(d, (struct finding){
            .severity = DOCTOR_UNKNOWN,
            .what = "the environment of the process cannot be read",
            .evidence = file,
            .consequence = "whether a variable is set is not known, and nothing follows from it",
            .remedy = *d->tree.root ? "capture that file too"
                                    : "run as the user of that process, or as root"});
    }

    const char *home = doctor_variable(d, "HOME"), *other = doctor_variable(d, "NCCL_CONF_FILE");
    const char *mine = other ? other : doctor_text(d, "%s/.nccl.conf", home ? home : "");
    add_file(d, '\n', mine, mine);
    add_file(d, '\n', "/etc/nccl.conf", "/etc/nccl.conf");
}
