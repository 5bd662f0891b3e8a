/* SPDX-License-Identifier: Apache-2.0
 *
 * doctor.c - `dualpipe doctor`: runs the checks and prints what they found, the worst first.
 */
#include "config.h"

#include "doctor/doctor.h"
#include "doctor/library.h"

#include "args.h"
#include "command.h"
#include "commands.h"

#include <jansson.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Above what the program itself returns. */
enum { EXIT_WARNING = 3, EXIT_FAULT = 4 };

struct report {
    const char *check; /* the one at work */
    struct finding {
        enum doctor_severity severity;
        const char *check;
        const char *what;        /* a sentence */
        const char *evidence;    /* the file, the variable or the call that says so */
        const char *consequence; /* NULL where it is fine */
        const char *remedy;      /* NULL where it is fine */
    } *findings;
    size_t count;
    char **texts; /* of doctor_text */
    size_t text_count;
};

static const struct doctor_check {
    const char *name;
    void (*run)(struct doctor *d);
} checks[] = {
    {"nccl", doctor_nccl},
    {"plugin", doctor_plugin},
    {"tuner", doctor_tuner},
    {"versions", doctor_versions},
    {"gpu", doctor_gpu},
    {"variables", doctor_variables},
    {"limits", doctor_limits},
    {"memory", doctor_memory},
    {"rdma", doctor_rdma},
    {"links", doctor_links},
    {"isolation", doctor_isolation},
    {"places", doctor_places},
    {"placement", doctor_placement},
};
enum { CHECKS = sizeof(checks) / sizeof(checks[0]) };

/* ---- for the checks ------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 0)))
static char *keep(struct report *r, const char *fmt, va_list args)
{
    char **more = realloc(r->texts, (r->text_count + 1) * sizeof(*more)), *text;

    if (!more)
        return NULL;
    r->texts = more;
    if (vasprintf(&text, fmt, args) < 0)
        return NULL;
    return r->texts[r->text_count++] = text;
}

const char *doctor_text(struct doctor *d, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    const char *text = keep(d->report, fmt, args);
    va_end(args);
    return text ? text : "(no memory)";
}

/* The part of a text behind the nth \v of its format, which becomes the end of the part before; the
 * format up to there says how long that is. NULL: it is empty, or there are not so many. */
__attribute__((format(printf, 3, 0)))
static const char *cut(char *text, int n, const char *fmt, va_list args)
{
    const char *end = fmt;

    while (n-- && end)
        end = (end = strchr(end, '\v')) ? end + 1 : NULL;
    char *before = end ? strndup(fmt, (size_t)(end - fmt)) : NULL;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* the beginning of one that has been checked */
    const int at = before ? vsnprintf(NULL, 0, before, args) : -1;
#pragma GCC diagnostic pop
    free(before);
    if (at < 0)
        return NULL;
    if (at)
        text[at - 1] = 0;
    return text[at] ? text + at : NULL;
}

void doctor_say(struct doctor *d, enum doctor_severity severity, const char *fmt, ...)
{
    struct report *r = d->report;
    struct finding *more = realloc(r->findings, (r->count + 1) * sizeof(*more));
    struct finding f = {.severity = severity, .check = r->check};
    const char **const parts[] = {&f.what, &f.evidence, &f.consequence, &f.remedy};
    va_list args;

    va_start(args, fmt);
    char *text = keep(r, fmt, args);
    va_end(args);
    for (int i = 3; i >= 0 && text; i--) {
        va_start(args, fmt);
        const char *part = cut(text, i, fmt, args);
        va_end(args);
        if (i < 2 || severity != DOCTOR_FINE)
            *parts[i] = part;
    }
    if (!f.what)
        f.what = "(no memory)";
    if (!more)
        return;
    r->findings = more;
    r->findings[r->count++] = f;
}

bool doctor_has_said(const struct doctor *d)
{
    for (size_t i = 0; i < d->report->count; i++)
        if (!strcmp(d->report->findings[i].check, d->report->check))
            return true;
    return false;
}

/* ---- what is printed ------------------------------------------------------------------------ */

static const char *const names[] = {"fine", "note", "unknown", "warning", "fault"};
static const char *const titles[] = {"Fine", "Notes", "Could not be seen", "Warnings", "Faults"};

static size_t count_of(const struct report *r, enum doctor_severity severity)
{
    size_t count = 0;

    for (size_t i = 0; i < r->count; i++)
        count += r->findings[i].severity == severity;
    return count;
}

static void print_line(const char *label, const char *text)
{
    if (text)
        printf("      %-12s %s\n", label, text);
}

static void print_severity(const struct report *r, enum doctor_severity severity)
{
    if (!count_of(r, severity))
        return;
    printf("%s\n", titles[severity]);
    for (size_t i = 0; i < r->count; i++) {
        const struct finding *f = &r->findings[i];
        if (f->severity != severity)
            continue;
        printf("  %-10s %s\n", f->check, f->what);
        print_line("seen in", f->evidence);
        print_line("therefore", f->consequence);
        print_line("remedy", f->remedy);
    }
    putchar('\n');
}

static void print_text(const struct report *r)
{
    for (int severity = DOCTOR_FAULT; severity >= DOCTOR_FINE; severity--)
        print_severity(r, (enum doctor_severity)severity);
    printf("faults: %zu, warnings: %zu, not seen: %zu, notes: %zu, fine: %zu\n",
           count_of(r, DOCTOR_FAULT), count_of(r, DOCTOR_WARNING), count_of(r, DOCTOR_UNKNOWN),
           count_of(r, DOCTOR_NOTE), count_of(r, DOCTOR_FINE));
}

static void print_json(const struct report *r)
{
    json_t *list = json_array();

    for (size_t i = 0; i < r->count; i++) {
        const struct finding *f = &r->findings[i];
        json_array_append_new(list, json_pack("{ss, ss, ss, ss?, ss?, ss?}", "check", f->check,
                                              "severity", names[f->severity], "what", f->what,
                                              "evidence", f->evidence, "consequence",
                                              f->consequence, "remedy", f->remedy));
    }
    json_t *all = json_pack("{si, so}", "version", 1, "findings", list);
    json_dumpf(all, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(all);
}

/* ---- the process ---------------------------------------------------------------------------- */

/* The children of the process, "12 34 "; to be freed. */
static char *children_of(struct doctor *d)
{
    size_t len;

    return tree_read(&d->tree, &len, "/proc/%s/task/%s/children", d->process, d->process);
}

static bool is_run(struct doctor *d)
{
    size_t len;
    char *words = tree_read(&d->tree, &len, "/proc/%s/cmdline", d->process);
    const char *program = words ? tree_base(words) : "",
               *command = words ? words + strlen(words) + 1 : "";
    const bool found =
        !strcmp(program, "dualpipe") && command < words + len && !strcmp(command, "run");

    free(words);
    return found;
}

/* To the first process below this one that has NCCL, itself included; false: none. */
static bool descend(struct doctor *d, int depth)
{
    struct tree_path path;
    char process[sizeof(d->process)], *children, *at;

    if (library_mapped(d, "libnccl.so", &path))
        return true;
    memcpy(process, d->process, sizeof(process));
    children = at = depth ? children_of(d) : NULL;
    for (int len; at && sscanf(at, "%15s%n", d->process, &len) == 1; at += len)
        if (descend(d, depth - 1)) {
            free(children);
            return true;
        }
    free(children);
    memcpy(d->process, process, sizeof(process));
    return false;
}

/* `dualpipe run` stays the parent of the job, which has the variables and the libraries. */
static void follow(struct doctor *d)
{
    enum { DEEPEST = 8 };
    const char *evidence = doctor_text(d, "/proc/%s/cmdline", d->process);

    if (!is_run(d))
        return;
    char *children = descend(d, DEEPEST) ? NULL : children_of(d);
    if (children)
        sscanf(children, "%15s", d->process);
    free(children);
    d->report->check = "nccl";
    doctor_say(d, DOCTOR_FINE, "process %s is looked at, of what dualpipe run has started\v%s",
               d->process, evidence);
}

/* ---- the command ---------------------------------------------------------------------------- */

struct doctor_options {
    const char *root;
    int64_t pid;
    struct arg_list only;
    bool json;
};

static void offer_checks(const char *before)
{
    for (size_t i = 0; i < CHECKS; i++)
        args_offer(before, checks[i].name, NULL);
}

#define AT(member) .offset = offsetof(struct doctor_options, member)

static const struct arg args[] = {
    {"pid", 'p', "N", "look at a running process, not at what would be started from here", ARG_INT,
     AT(pid), .min = 1, .max = 1 << 22},
    {"sysfs", 0, "DIR",
     "look at the files of another machine, /sys, /proc and others, captured below DIR", ARG_STRING,
     AT(root), .fallback = "", .old_name = "root"},
    {"only", 0, "CHECK", "report this check only; may be given again", ARG_LIST,
     AT(only), .offer = offer_checks},
    {"json", 0, NULL, "print JSON", ARG_FLAG, AT(json)},
};
static const struct arg_group groups[] = {{"options", args, 4}, {0}};
static const struct usage usage = {
    .command = "dualpipe doctor", .groups = groups,
    .about = "Say why NCCL is slow here, or does not use the plugin: looks at files and at the\n"
             "environment, and prints what is wrong, where that can be seen, what follows from\n"
             "it and what helps. The exit status is 0 if nothing is wrong, 3 after a warning,\n"
             "4 after a fault. Root sees more. The checks are nccl, plugin, tuner, versions,\n"
             "variables, limits, memory, rdma, gpu, links, isolation, places and\n"
             "placement.",
    .examples = "  NCCL_NET_PLUGIN=dualpipe dualpipe doctor\n"
                "  dualpipe doctor --pid 4711\n"
                "  dualpipe doctor --only plugin --only rdma\n"
                "  dualpipe doctor --json | jq '.findings[] | select(.severity == \"fault\")'\n",
};

static bool is_chosen(const struct arg_list *only, const char *name)
{
    for (size_t i = 0; i < only->count; i++)
        if (!strcmp(only->items[i], name))
            return true;
    return !only->count;
}

static bool is_check(const char *name)
{
    for (size_t i = 0; i < CHECKS; i++)
        if (!strcmp(checks[i].name, name))
            return true;
    return false;
}

/* A name of no check is the user's mistake. */
static int know_all(const struct arg_list *only)
{
    char known[256] = "";

    for (size_t i = 0, at = 0; i < CHECKS; i++)
        at +=
            (size_t)snprintf(known + at, sizeof(known) - at, "%s%s", i ? ", " : "", checks[i].name);
    for (size_t i = 0; i < only->count; i++)
        if (!is_check(only->items[i]))
            return command_misused("no check '%s'; expected one of %s", only->items[i], known);
    return EXIT_OK;
}

/* All run, since later ones build on earlier ones; what was not asked for is dropped. */
static void run_checks(struct doctor *d, const struct arg_list *only)
{
    struct report *r = d->report;

    r->check = "variables";
    doctor_variables_read(d);
    for (size_t i = 0; i < CHECKS; i++) {
        r->check = checks[i].name;
        checks[i].run(d);
    }
    size_t kept = 0;
    for (size_t i = 0; i < r->count; i++)
        if (is_chosen(only, r->findings[i].check))
            r->findings[kept++] = r->findings[i];
    r->count = kept;
}

static void doctor_free(struct doctor *d)
{
    for (size_t i = 0; i < d->variables.count; i++) {
        free(d->variables.list[i].name);
        free(d->variables.list[i].value);
    }
    for (size_t i = 0; i < d->report->text_count; i++)
        free(d->report->texts[i]);
    free(d->variables.list);
    free(d->report->findings);
    free(d->report->texts);
    free(d->nccl.strings);
}

int run_doctor(int argc, char **argv)
{
    struct doctor_options o;
    struct operands operands;
    struct report report = {0};
    struct doctor d = {.process = "self", .report = &report};
    int status;

    if (!args_parse(&usage, argc, argv, &o, &operands, &status))
        return status;
    if ((status = know_all(&o.only)))
        return status;
    d.tree.root = o.root;
    if (o.pid)
        snprintf(d.process, sizeof(d.process), "%lld", (long long)o.pid);
    if (!tree_has(&d.tree, "/."))
        return command_misused("no directory %s: expected the files of a machine", o.root);
    if (o.pid && !tree_has(&d.tree, "/proc/%s", d.process))
        return command_misused("no process %s in %s/proc", d.process, o.root);
    follow(&d);
    run_checks(&d, &o.only);
    if (o.json)
        print_json(&report);
    else
        print_text(&report);
    status = count_of(&report, DOCTOR_FAULT)     ? EXIT_FAULT
             : count_of(&report, DOCTOR_WARNING) ? EXIT_WARNING
                                                 : EXIT_OK;
    doctor_free(&d);
    return status;
}
