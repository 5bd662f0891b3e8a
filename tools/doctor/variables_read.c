/* SPDX-License-Identifier: Apache-2.0
 *
 * variables_read.c - the environment of a process, and the files that NCCL copies into it.
 */
#include "config.h"

#include "doctor/doctor.h"

#include <stdlib.h>
#include <string.h>

#define WORD "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"

const char *doctor_variable(const struct doctor *d, const char *name)
{
    for (size_t i = 0; i < d->variables.count; i++)
        if (!strcmp(d->variables.list[i].name, name))
            return d->variables.list[i].value;
    return NULL;
}

const char *doctor_origin(struct doctor *d, const char *name)
{
    for (size_t i = 0; i < d->variables.count; i++)
        if (!strcmp(d->variables.list[i].name, name))
            return doctor_text(d, "%s=%s in %s", name, d->variables.list[i].value,
                               d->variables.list[i].origin);
    if (d->variables.unseen)
        return doctor_text(d, "%s: %s cannot be read", name, d->variables.unseen);
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
    more = realloc(d->variables.list, (d->variables.count + 1) * sizeof(*more));
    if (!more)
        goto none;
    d->variables.list = more;
    d->variables.list[d->variables.count++] = (struct variable){name, value, origin};
    return;
none:
    free(name);
    free(value);
}

static void add_line(struct doctor *d, const char *path, int number, const char *what,
                     const char *consequence)
{
    doctor_say(d, DOCTOR_WARNING,
               "%s\vline %d of %s\v%s\v"
               "write NAME=VALUE, without export, quotes or blanks; NCCL reads the file, no shell",
               what, number, path, consequence);
}

/* NCCL takes all before the first '=' for the name and all behind it for the value; comments begin
 * in the first column. */
static void look_at_line(struct doctor *d, const char *line, const char *path, int number)
{
    const char *equals = strchr(line, '='), *name = strstr(line, "NCCL_");
    const char *value = equals ? equals + 1 : "";
    const size_t len = strlen(value), word = name ? strspn(name, WORD) : 0;

    if (*line == '#' || !name || (equals && name > equals))
        return;
    if (!equals)
        add_line(d, path, number, doctor_text(d, "'%s' has no '='", line), "NCCL passes it over");
    else if (name != line || name + word != equals)
        add_line(
            d, path, number,
            doctor_text(d, "'%.*s' is set, not %.*s", (int)(equals - line), line, (int)word, name),
            "it has no effect");
    else if (len && (strchr("\"' \t", *value) || strchr("\"' \t\r", value[len - 1])))
        add_line(
            d, path, number,
            doctor_text(d, "quotes or blanks are a part of the value of %.*s", (int)word, name),
            "it is not what was meant");
}

/* The lines of a file, which end with `end`; '\n' in those of NCCL. false: it cannot be read. */
static bool add_file(struct doctor *d, char end, const char *path, const char *origin)
{
    size_t len;
    char *bytes = tree_read(&d->tree, &len, "%s", path);
    const bool is_read = bytes;
    int number = 0;

    for (size_t at = 0; bytes && at < len;) {
        size_t line = 0;
        while (at + line < len && bytes[at + line] != end)
            line++;
        bytes[at + line] = 0;
        if (end == '\n')
            look_at_line(d, bytes + at, path, ++number);
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
        d->variables.unseen = file;
        doctor_say(d, DOCTOR_UNKNOWN,
                   "the environment of the process cannot be read\v%s\v"
                   "whether a variable is set is not known, and nothing follows from it\v%s", file,
                   *d->tree.root ? "capture that file too"
                                 : "run as the user of that process, or as root");
    }

    const char *home = doctor_variable(d, "HOME"), *other = doctor_variable(d, "NCCL_CONF_FILE");
    const bool is_named = other && *other;
    const char *mine = is_named ? other : doctor_text(d, "%s/.nccl.conf", home ? home : "");
    if (!add_file(d, '\n', mine, mine) && is_named)
        doctor_say(d, DOCTOR_WARNING,
                   "the file that NCCL_CONF_FILE names cannot be read\v%s\v"
                   "NCCL goes on without it, and without ~/.nccl.conf\v"
                   "name a file that is there, by its whole path", doctor_origin(d, "NCCL_CONF_FILE"));
    add_file(d, '\n', "/etc/nccl.conf", "/etc/nccl.conf");
}
