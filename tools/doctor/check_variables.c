/* SPDX-License-Identifier: Apache-2.0
 *
 * check_variables.c - NCCL_ and DUALPIPE_ variables that nothing knows, that name what is not there,
 * and that contradict each other.
 */
#include "config.h"

#include "doctor/doctor.h"
#include "doctor/names.h"

#include <dualpipe/options.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- unknown names -------------------------------------------------------------------------- */

static bool has_line(const char *lines, const char *name)
{
    char line[128];

    return lines && (size_t)snprintf(line, sizeof(line), "\n%s\n", name) < sizeof(line) &&
           strstr(lines, line);
}

static bool is_listed(const char *name)
{
    for (size_t i = 0; i < nccl_name_count; i++)
        if (!strcmp(nccl_names[i], name))
            return true;
    return false;
}

static void look_at_name(struct doctor *d, const char *name)
{
    if (has_line(d->nccl.strings, name))
        return;
    bool other = is_listed(name);
    if (other && !d->nccl.strings)
        return;
    const char *near = other ? NULL : dp_nearest(name, nccl_names, nccl_name_count);
    doctor_add(d, (struct finding){
        .severity = DOCTOR_WARNING,
        .what = other ? doctor_text(d, "NCCL %s does not know %s, other releases do",
                                    d->nccl.version_text, name)
                      : doctor_text(d, "no NCCL knows %s%s%s%s", name, near ? "; did you mean " : "",
                                    near ? near : "", near ? "?" : ""),
        .evidence = *d->nccl.path.text ? doctor_text(d, "%s; %s", doctor_origin(d, name),
                                                     d->nccl.path.text)
                                       : doctor_origin(d, name),
        .consequence = "it has no effect",
        .remedy = near ? doctor_text(d, "unset %s, set %s", name, near)
                       : doctor_text(d, "unset %s", name)});
}

/* The library says by itself what is wrong with its own, in this process. */
static void add_option(void *user, const struct dp_option_info *option)
{
    struct doctor *d = user;

    if (!option->problem)
        return;
    doctor_add(d, (struct finding){.severity = DOCTOR_FAULT,
                                   .what = doctor_text(d, "%s", option->problem),
                                   .evidence = "the environment",
                                   .consequence = "what reads it refuses to open",
                                   .remedy = "dualpipe info --options lists what there is"});
}

/* ---- names of what is not there ------------------------------------------------------------- */

/* Does "^=a,b:1" of NCCL's admit one of these? A prefix is enough without the '='. */
static bool admits(const char *filter, const char *name)
{
    bool except = *filter == '^', found = false;

    filter += except;
    bool exact = *filter == '=';
    filter += exact;
    for (size_t len; *filter && !found; filter += len + (filter[len] == ',')) {
        len = strcspn(filter, ",");
        size_t wanted = strcspn(filter, ":,");
        found = exact ? strlen(name) == wanted && !strncmp(name, filter, wanted)
                      : !strncmp(name, filter, wanted);
    }
    return found != except;
}

static void look_at_filter(struct doctor *d, const char *variable, const char *pattern,
                           const char *thing)
{
    const char *filter = doctor_variable(d, variable);
    struct tree_list list = tree_glob(&d->tree, "%s/*", pattern);
    bool any = false;

    for (size_t i = 0; filter && i < list.count && !any; i++)
        any = admits(filter, tree_base(list.paths[i]));
    tree_list_free(&list);
    if (!filter || !*filter || any)
        return;
    doctor_add(d, (struct finding){
        .severity = DOCTOR_FAULT,
        .what = doctor_text(d, "%s=%s admits no %s of this machine", variable, filter, thing),
        .evidence = doctor_text(d, "%s; %s", doctor_origin(d, variable), pattern),
        .consequence = doctor_text(d, "no %s is used", thing),
        .remedy = doctor_text(d, "unset it, or name one of %s", pattern)});
}

/* ---- against each other --------------------------------------------------------------------- */

/* Of the values NULL is any, "!" none: see is(). */
struct rule {
    const char *variable, *value;
    const char *other, *other_value; /* NULL: the first alone */
    enum doctor_severity severity;
    const char *what, *consequence, *remedy;
};

static const struct rule rules[] = {
    {"NCCL_NET", "IB", "NCCL_NET_PLUGIN", NULL, DOCTOR_FAULT,
     "NCCL_NET asks for NCCL's own network code, NCCL_NET_PLUGIN for a plugin",
     "the plugin is not used", "unset NCCL_NET, or set it to the plugin's name, dualpipe"},
    {"NCCL_NET", "Socket", "NCCL_NET_PLUGIN", NULL, DOCTOR_FAULT,
     "NCCL_NET asks for NCCL's own sockets, NCCL_NET_PLUGIN for a plugin", "the plugin is not used",
     "unset NCCL_NET, or set it to the plugin's name, dualpipe"},
    {"NCCL_NET", "dualpipe", "NCCL_NET_PLUGIN", "!", DOCTOR_FAULT,
     "NCCL_NET asks for a plugin that NCCL_NET_PLUGIN does not load",
     "NCCL stops, unless libnccl-net.so is that plugin", "export NCCL_NET_PLUGIN=dualpipe"},
    {"NCCL_IB_DISABLE", "1", "NCCL_IB_HCA", NULL, DOCTOR_WARNING,
     "NCCL_IB_HCA chooses RDMA devices, NCCL_IB_DISABLE switches all off", "none is used",
     "unset one of them"},
    {"NCCL_IB_DISABLE", "1", "NCCL_NET", "IB", DOCTOR_FAULT,
     "NCCL_NET asks for InfiniBand, NCCL_IB_DISABLE switches it off", "NCCL stops",
     "unset one of them"},
    {"NCCL_ALGO", NULL, NULL, NULL, DOCTOR_WARNING, "the algorithm is fixed for every size",
     "a tuner and NCCL's own choice among the others are overruled", "unset NCCL_ALGO"},
    {"NCCL_PROTO", NULL, NULL, NULL, DOCTOR_WARNING, "the protocol is fixed for every size",
     "a tuner and NCCL's own choice among the others are overruled", "unset NCCL_PROTO"},
    {"NCCL_P2P_DISABLE", "1", NULL, NULL, DOCTOR_WARNING,
     "GPUs of one host may not copy to each other", "their messages go through host memory",
     "unset NCCL_P2P_DISABLE"},
    {"NCCL_SHM_DISABLE", "1", NULL, NULL, DOCTOR_WARNING,
     "processes of one host may not share memory", "their messages go through the network",
     "unset NCCL_SHM_DISABLE"},
    {"NCCL_NET_GDR_LEVEL", "LOC", NULL, NULL, DOCTOR_WARNING, "GPUDirect is switched off",
     "every message is copied through host memory", "unset NCCL_NET_GDR_LEVEL"},
    {"NCCL_NET_GDR_LEVEL", "0", NULL, NULL, DOCTOR_WARNING, "GPUDirect is switched off",
     "every message is copied through host memory", "unset NCCL_NET_GDR_LEVEL"},
    {"NCCL_DEBUG_FILE", NULL, "NCCL_DEBUG", "!", DOCTOR_WARNING,
     "NCCL_DEBUG_FILE is set, NCCL_DEBUG is not", "nothing is written",
     "export NCCL_DEBUG=INFO"},
    {"NCCL_DEBUG_SUBSYS", NULL, "NCCL_DEBUG", "!", DOCTOR_WARNING,
     "NCCL_DEBUG_SUBSYS is set, NCCL_DEBUG is not", "nothing is printed",
     "export NCCL_DEBUG=INFO"},
    {"NCCL_DEBUG", "TRACE", NULL, NULL, DOCTOR_WARNING, "NCCL traces every call",
     "every message costs a line", "export NCCL_DEBUG=INFO"},
};

/* "!" is "not set", NULL any value at all; case does not matter. */
static bool is(const struct doctor *d, const char *value, const char *wanted)
{
    if (wanted && !strcmp(wanted, "!"))
        return (!value && !d->unseen) || (value && !*value);
    return value && *value && (!wanted || !strcasecmp(value, wanted));
}

static void apply(struct doctor *d, const struct rule *r)
{
    if (!is(d, doctor_variable(d, r->variable), r->value) ||
        (r->other && !is(d, doctor_variable(d, r->other), r->other_value)))
        return;
    doctor_add(d, (struct finding){
        .severity = r->severity,
        .what = r->what,
        .evidence = r->other ? doctor_text(d, "%s; %s", doctor_origin(d, r->variable),
                                           doctor_origin(d, r->other))
                             : doctor_origin(d, r->variable),
        .consequence = r->consequence,
        .remedy = r->remedy});
}

static void look_at_bounds(struct doctor *d, const char *least, const char *most)
{
    const char *from = doctor_variable(d, least), *to = doctor_variable(d, most);

    if (from && to && atoi(from) > atoi(to))
        doctor_add(d, (struct finding){
            .severity = DOCTOR_WARNING,
            .what = doctor_text(d, "%s is above %s", least, most),
            .evidence = doctor_text(d, "%s; %s", doctor_origin(d, least), doctor_origin(d, most)),
            .consequence = "NCCL takes one of them",
            .remedy = "set the first to at most the second"});
}

void doctor_variables(struct doctor *d)
{
    size_t before = d->finding_count;

    for (size_t i = 0; i < d->variable_count; i++)
        if (!strncmp(d->variables[i].name, "NCCL_", 5))
            look_at_name(d, d->variables[i].name);
    if (!*d->tree.root && !strcmp(d->process, "self"))
        dp_options_each(add_option, d);
    look_at_filter(d, "NCCL_SOCKET_IFNAME", "/sys/class/net", "network interface");
    look_at_filter(d, "NCCL_IB_HCA", "/sys/class/infiniband", "RDMA device");
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
        apply(d, &rules[i]);
    look_at_bounds(d, "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS");
    look_at_bounds(d, "NCCL_MIN_CTAS", "NCCL_MAX_CTAS");
    look_at_bounds(d, "NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS");
    doctor_selection(d);
    if (d->finding_count == before && !d->unseen)
        doctor_add(d,
                   (struct finding){.what = "all NCCL_ variables are known and agree",
                                    .evidence = "the environment, ~/.nccl.conf, /etc/nccl.conf"});
}
