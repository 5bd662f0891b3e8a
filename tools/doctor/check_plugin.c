/* SPDX-License-Identifier: Apache-2.0
 *
 * check_plugin.c - which files NCCL would load as net plugin and as tuner, and what it would take
 * of them. The rules are those of NCCL's plugin loader:
 *
 *      unset or empty     libnccl-net.so
 *      none               nothing (since 2.28)
 *      a prefix of        the program itself: "s" and "static" too
 *      STATIC_PLUGIN
 *      NAME               NAME as it is; then libnccl-net-NAME.so, unless NAME has a slash or is
 *                         lib*.so itself. Up to 2.20: of a net plugin only libnccl-net-NAME.so,
 *                         of a tuner only NAME
 *      A,B                a list since 2.27, at most 14; blanks belong to the names
 */
#include "config.h"

#include "doctor/doctor.h"
#include "doctor/library.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { NCCL_NAMES = 22100, NCCL_LISTS = 22700, NCCL_NONE = 22803, LIST_MAX = 14 };

struct kind {
    const char *variable, *file, *symbol, *word;
};
static const struct kind net = {"NCCL_NET_PLUGIN", "libnccl-net", "ncclNetPlugin_v", "net plugin"};
static const struct kind tuner = {"NCCL_TUNER_PLUGIN", "libnccl-tuner", "ncclTunerPlugin_v",
                                  "tuner"};

/* Without an NCCL to ask, a recent one. */
static int nccl_version(const struct doctor *d)
{
    return d->nccl.version ? d->nccl.version : 22809;
}

/* ---- one name ------------------------------------------------------------------------------- */

static bool is_static(const char *name)
{
    return *name && !strncasecmp(name, "STATIC_PLUGIN", strlen(name));
}

static bool is_old(const struct doctor *d)
{
    return nccl_version(d) < NCCL_NAMES;
}

static bool find_file(struct doctor *d, const char *name, struct tree_path *path, const char **how)
{
    const char *rule;

    if (!library_find(d, name, path, &rule))
        return false;
    *how = doctor_text(d, "as '%s', by %s", name, rule);
    return true;
}

static bool find_named(struct doctor *d, const struct kind *kind, const char *name,
                       struct tree_path *path, const char **how)
{
    if (!(is_old(d) && kind == &net) && find_file(d, name, path, how))
        return true;
    if (is_old(d) ? kind == &tuner : strchr(name, '/') || !fnmatch("lib*.so", name, 0))
        return false;
    return find_file(d, doctor_text(d, "%s-%s.so", kind->file, name), path, how);
}

/* A name with a slash is a path, and nothing is put around it. */
static const char *remedy_of_missing(struct doctor *d, const struct kind *kind, const char *name)
{
    if (*name == ' ' || (*name && name[strlen(name) - 1] == ' '))
        return "take the blanks out: they belong to the name";
    if (is_old(d))
        return kind == &net
                   ? "NCCL before 2.21 takes no path: put the directory of libnccl-net-NAME.so "
                     "into LD_LIBRARY_PATH, and give the NAME"
                   : "NCCL before 2.21 looks for this file and for no other: give its path";
    if (strchr(name, '/'))
        return "give the path of a file that is there";
    return doctor_text(d, "put the directory of %s-%s.so into LD_LIBRARY_PATH, or give its path",
                       kind->file, name);
}

static void add_missing(struct doctor *d, const struct kind *kind, const char *name)
{
    doctor_say(d, DOCTOR_FAULT,
               "no library for the %s '%s'\v%s\v"
               "NCCL goes on without it, and says so only with NCCL_DEBUG=INFO\v%s", kind->word, name,
               doctor_origin(d, kind->variable), remedy_of_missing(d, kind, name));
}

static void add_static(struct doctor *d, const struct kind *kind, const char *name)
{
    doctor_say(d, DOCTOR_FAULT,
               "'%s' begins the word STATIC_PLUGIN\v%s\v"
               "NCCL looks for the symbols in the program itself, not in a library\v"
               "give the library's full name or its path", name, doctor_origin(d, kind->variable));
}

/* ---- what is in it -------------------------------------------------------------------------- */

static void add_lacking(struct doctor *d, const struct library *library, const char *path)
{
    char *names = strdup(library->needs), *rest = names, *name;
    struct tree_path found;
    const char *rule;

    while (names && (name = strsep(&rest, "\n")))
        if (*name && !library_find(d, name, &found, &rule))
            doctor_say(d, DOCTOR_FAULT,
                       "%s needs %s, which is not there\v%s\v"
                       "dlopen fails, and NCCL goes on without the plugin\v"
                       "install %s, or put its directory into LD_LIBRARY_PATH", tree_base(path), name,
                       path, name);
    free(names);
}

/* The version that NCCL would take, 0 if it would take none. */
static int taken(const struct doctor *d, const struct kind *kind, const struct library *library)
{
    return d->nccl.strings && library_newest(d->nccl.strings, kind->symbol)
               ? library_common(library->exports, d->nccl.strings, kind->symbol)
               : library_newest(library->exports, kind->symbol);
}

static const char *has(struct doctor *d, const struct kind *kind, const struct library *library)
{
    const int newest = library_newest(library->exports, kind->symbol);

    return newest ? doctor_text(d, "it has %d", newest) : "it has none at all";
}

static void add_found(struct doctor *d, const struct kind *kind, const char *file, const char *how)
{
    const char *path = doctor_text(d, "%s", file);
    struct library library;

    if (!library_read(d, path, &library)) {
        doctor_say(d, DOCTOR_FAULT,
                   "%s is no shared library of this kind of machine\v%s\v"
                   "dlopen fails, and NCCL goes on without it\vinstall it again", tree_base(path),
                   path);
        return;
    }
    int version = taken(d, kind, &library);
    if (version)
        doctor_say(d, DOCTOR_FINE, "%s %s is found %s; NCCL takes %s%d\v%s", kind->word,
                   tree_base(path), how, kind->symbol, version, path);
    else
        doctor_say(d, DOCTOR_FAULT,
                   "%s has no %s that NCCL %s knows (%s)\v%s\v%s\v%s", tree_base(path), kind->symbol,
                   d->nccl.version_text, has(d, kind, &library), path,
                   kind == &tuner ? "there is no tuner: a tuner inside the net plugin is hidden by it"
                                  : "NCCL loads the file and does not use it",
                   kind == &tuner ? "remove the file, or set NCCL_TUNER_PLUGIN to the net plugin's path"
                                  : "install the plugin's release for this NCCL");
    add_lacking(d, &library, path);
    library_free(&library);
}

static bool look_at(struct doctor *d, const struct kind *kind, const char *name,
                    struct tree_path *path)
{
    const char *how;

    if (is_static(name)) {
        add_static(d, kind, name);
        return false;
    }
    if (!find_named(d, kind, name, path, &how)) {
        add_missing(d, kind, name);
        return false;
    }
    add_found(d, kind, path->text, how);
    return true;
}

/* ---- the net plugin ------------------------------------------------------------------------- */

static void look_at_list(struct doctor *d, const char *value)
{
    char *names = strdup(value), *rest = names, *name;
    struct tree_path path;
    int count = 0;

    /* An old NCCL takes the whole for one name. */
    const char *between = nccl_version(d) >= NCCL_LISTS ? "," : "";
    while (names && (name = strsep(&rest, between))) {
        if (count++ < LIST_MAX && look_at(d, &net, name, &path) && !*d->net_plugin.text)
            d->net_plugin = path;
    }
    if (count > LIST_MAX)
        doctor_say(d, DOCTOR_WARNING,
                   "%d net plugins are named, NCCL takes the first %d\v%s\v"
                   "the others are not looked at\vname fewer", count, LIST_MAX,
                   doctor_origin(d, net.variable));
    free(names);
}

static void look_at_default(struct doctor *d)
{
    const char *how;

    if (find_file(d, "libnccl-net.so", &d->net_plugin, &how)) {
        add_found(d, &net, d->net_plugin.text, how);
        return;
    }
    d->net_plugin.text[0] = 0;
    doctor_say(d, DOCTOR_NOTE,
               "no net plugin is asked for, and there is no libnccl-net.so\v%s\v"
               "NCCL uses its own network code\v"
               "export NCCL_NET_PLUGIN=dualpipe to use the one of this program",
               doctor_origin(d, net.variable));
}

/* Nothing follows from a variable that may be set all the same. */
static void add_unseen(struct doctor *d, const struct kind *kind)
{
    doctor_say(d, DOCTOR_UNKNOWN,
               "which %s the process asks for is not known\v%s\v"
               "whether the plugin is used is not known either\v"
               "NCCL_DEBUG=INFO in the job says what it has taken", kind->word,
               doctor_origin(d, kind->variable));
}

/* A running process shows what has really been loaded. `asked`: a net plugin was meant to be. */
static void look_at_process(struct doctor *d, bool asked)
{
    struct tree_path path;
    size_t len;
    char *maps = tree_read(&d->tree, &len, "/proc/%s/maps", d->process);
    const bool is_read = maps;

    free(maps);
    if (!is_read)
        doctor_say(d, DOCTOR_UNKNOWN,
                   "the libraries of the process cannot be seen\v/proc/%s/maps\v"
                   "whether NCCL and a plugin are loaded is not known\v"
                   "run as the user of that process, or as root", d->process);
    else if (library_mapped(d, "libnccl-net", &path))
        doctor_say(d, DOCTOR_FINE, "process %s has loaded %s\v/proc/%s/maps", d->process,
                   tree_base(path.text), d->process);
    else if (library_mapped(d, "libnccl.so", &path))
        doctor_say(d, asked ? DOCTOR_FAULT : DOCTOR_NOTE,
                   "process %s has NCCL but no net plugin\v/proc/%s/maps\v"
                   "it uses NCCL's own network code, or has made no communicator yet\v"
                   "see the other findings about the plugin; NCCL_DEBUG=INFO shows why", d->process,
                   d->process);
}

void doctor_plugin(struct doctor *d)
{
    const char *value = doctor_variable(d, net.variable);

    if (value && !strcasecmp(value, "none") && nccl_version(d) >= NCCL_NONE)
        doctor_say(d, DOCTOR_NOTE,
                   "net plugins are switched off\v%s\vNCCL uses its own network code\v"
                   "export NCCL_NET_PLUGIN=dualpipe to use the one of this program",
                   doctor_origin(d, net.variable));
    else if (value && *value)
        look_at_list(d, value);
    else if (!value && d->variables.unseen)
        add_unseen(d, &net);
    else
        look_at_default(d);
    if (strcmp(d->process, "self"))
        look_at_process(d, value && *value && strcasecmp(value, "none"));
}

/* ---- the tuner ------------------------------------------------------------------------------ */

/* Where no tuner library opens, NCCL looks for the symbol in the net plugin. */
static void look_into_net(struct doctor *d)
{
    struct library library;

    if (!*d->net_plugin.text || !library_read(d, d->net_plugin.text, &library)) {
        doctor_say(d, DOCTOR_FINE, "no tuner: NCCL decides by itself\v%s",
                   doctor_origin(d, tuner.variable));
        return;
    }
    int version = taken(d, &tuner, &library);
    if (version)
        doctor_say(d, DOCTOR_FINE, "the net plugin is the tuner too; NCCL takes %s%d\v%s",
                   tuner.symbol, version, d->net_plugin.text);
    else
        doctor_say(d, DOCTOR_FINE, "no tuner: NCCL decides by itself, as the net plugin has none\v%s",
                   d->net_plugin.text);
    library_free(&library);
}

void doctor_tuner(struct doctor *d)
{
    const char *value = doctor_variable(d, tuner.variable), *how;
    struct tree_path path;

    if (!value && d->variables.unseen)
        add_unseen(d, &tuner);
    else if (value && !strcasecmp(value, "none") && nccl_version(d) >= NCCL_NONE)
        doctor_say(d, DOCTOR_FINE, "tuners are switched off\v%s", doctor_origin(d, tuner.variable));
    else if (is_old(d) && (!value || !*value))
        doctor_say(d, DOCTOR_FINE,
                   "no tuner: NCCL before 2.21 has one only where NCCL_TUNER_PLUGIN names its file\v"
                   "%s", doctor_origin(d, tuner.variable));
    else if (is_old(d))
        (void)look_at(d, &tuner, value, &path);
    else if ((!value || !*value) && find_file(d, "libnccl-tuner.so", &path, &how))
        add_found(d, &tuner, path.text, how);
    else if (!value || !*value || !look_at(d, &tuner, value, &path))
        look_into_net(d);
}
