/* SPDX-License-Identifier: Apache-2.0
 *
 * check_variables.c - NCCL_ and DUALPIPE_ variables that nothing knows, whose values cannot be, that
 * name what is not there, and that contradict each other; and whether NCCL_ALGO and NCCL_PROTO name what
 * NCCL has. Their form, as NCCL parses it without regard to case:
 *
 *      ring,tree                       these, for every collective
 *      ^tree                           all but these
 *      allreduce:tree;broadcast:ring   an entry a collective; only the first may lack its name
 */
#include "config.h"

#include "doctor/doctor.h"

#include <dualpipe/options.h>

#include <fnmatch.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- what NCCL reads ------------------------------------------------------------------------- */

/* The variables that some release of NCCL reads, 2.13 to 2.30: from NVIDIA's documentation, and
 * from what its libraries look up. A line of nccl_variables.txt each, behind them NULL. */
extern const char *const doctor_nccl_variables[];

/* ---- unknown names -------------------------------------------------------------------------- */

static bool has_line(const char *lines, const char *name)
{
    char line[128];

    return lines && (size_t)snprintf(line, sizeof(line), "\n%s\n", name) < sizeof(line) &&
           strstr(lines, line);
}

static bool is_listed(const char *name)
{
    for (const char *const *known = doctor_nccl_variables; *known; known++)
        if (!strcmp(*known, name))
            return true;
    return false;
}

static const char *nearest(const char *name)
{
    size_t count = 0;

    while (doctor_nccl_variables[count])
        count++;
    return dp_nearest(name, doctor_nccl_variables, count);
}

static void look_at_name(struct doctor *d, const char *name)
{
    if (has_line(d->nccl.strings, name) || strpbrk(name, " \t")) /* that is said of its line */
        return;
    bool other = is_listed(name);
    if (other && !d->nccl.strings)
        return;
    const char *near = other ? NULL : nearest(name);
    const char *what = other ? doctor_text(d, "NCCL %s does not know %s, other releases do",
                                           d->nccl.version_text, name)
                             : doctor_text(d, "no NCCL knows %s%s%s%s", name,
                                           near ? "; did you mean " : "", near ? near : "",
                                           near ? "?" : "");
    doctor_say(d, DOCTOR_WARNING, "%s\v%s%s%s\vit has no effect\vunset %s%s%s", what,
               doctor_origin(d, name), *d->nccl.path.text ? "; " : "", d->nccl.path.text, name,
               near ? ", set " : "", near ? near : "");
}

/* The library says by itself what is wrong with its own, in this process. */
static void add_option(void *user, const struct dp_option_info *option)
{
    struct doctor *d = user;

    if (!option->problem)
        return;
    doctor_say(d, DOCTOR_FAULT,
               "%s\vthe environment\vwhat reads it refuses to open\v"
               "dualpipe info --options lists what there is", option->problem);
}

/* ---- names of what is not there ------------------------------------------------------------- */

/* What there is of the things that a filter chooses from. */
struct things {
    const char *variable, *dir, *word;
    bool (*works)(struct doctor *d, const char *name, const char *port);
    const char *broken;
};

/* NCCL passes over what is not up or has no carrier. */
static bool interface_works(struct doctor *d, const char *name, const char *port)
{
    char state[256];

    (void)port;
    if (!tree_has(&d->tree, "/sys/class/net/%s/.", name)) /* such as the file bonding_masters */
        return false;
    return !tree_line(&d->tree, state, "/sys/class/net/%s/operstate", name) ||
           !strcmp(state, "up") || !strcmp(state, "unknown");
}

static bool device_has(struct doctor *d, const char *name, const char *port)
{
    return !*port || tree_has(&d->tree, "/sys/class/infiniband/%s/ports/%s", name, port);
}

static const struct things things[] = {
    {"NCCL_SOCKET_IFNAME", "/sys/class/net", "network interface", interface_works, "is up"},
    {"NCCL_OOB_NET_IFNAME", "/sys/class/net", "network interface", interface_works, "is up"},
    {"NCCL_IB_HCA", "/sys/class/infiniband", "RDMA device", device_has, "has such a port"},
};

/* Does an entry such as "mlx5_0:1" mean the thing, and which port of it? A prefix is enough where
 * the filter does not begin with '='. */
static bool names(const char *entry, bool exact, const char *name, char port[8])
{
    const size_t len = strcspn(entry, ":,"), all = strcspn(entry, ",");

    snprintf(port, 8, "%.*s", entry[len] == ':' ? (int)(all - len - 1) : 0, entry + len + 1);
    return !strncmp(name, entry, len) && (!exact || strlen(name) == len);
}

struct filter {
    bool except, exact; /* "^a,b" is all but those, "=a" exactly those */
    const char *entries;
};

static struct filter parse_filter(const char *text)
{
    struct filter f = {.except = *text == '^'};

    text += f.except;
    f.exact = *text == '=';
    f.entries = text + f.exact;
    return f;
}

static const char *next_entry(const char *entry)
{
    entry += strcspn(entry, ",");
    return entry + (*entry == ',');
}

/* Count the thing if the filter admits it, and if it works then, too. */
static void count_thing(struct doctor *d, const struct things *t, const struct filter *f,
                        const char *name, size_t counts[2])
{
    bool is_named = false, works = false;
    char port[8] = "";

    for (const char *e = f->entries; *e; e = next_entry(e))
        if (names(e, f->exact, name, port)) {
            is_named = true;
            works |= t->works(d, name, port);
        }
    if (f->except)
        works = !is_named && t->works(d, name, "");
    counts[0] += is_named != f->except;
    counts[1] += works;
}

static void add_filter(struct doctor *d, const struct things *t, enum doctor_severity severity,
                       const char *what, const char *consequence)
{
    doctor_say(d, severity, "%s\v%s; %s\v%s\vunset it, or name one of %s", what,
               doctor_origin(d, t->variable), t->dir, consequence, t->dir);
}

static void look_at_filter(struct doctor *d, const struct things *t)
{
    const char *text = doctor_variable(d, t->variable);
    const struct filter f = parse_filter(text ? text : "");
    struct tree_list list = tree_glob(&d->tree, "%s/*", t->dir);
    size_t all[2] = {0};

    for (size_t i = 0; i < list.count; i++)
        count_thing(d, t, &f, tree_base(list.paths[i]), all);
    if (text && *text && !all[1])
        add_filter(d, t, DOCTOR_FAULT,
                   doctor_text(d, "%s=%s admits no %s of this machine%s%s", t->variable, text,
                               t->word, all[0] ? " that " : "", all[0] ? t->broken : ""),
                   doctor_text(d, "no %s is used", t->word));
    for (const char *e = f.entries; *e && !f.except && all[1]; e = next_entry(e)) {
        bool found = false;
        char port[8];
        for (size_t i = 0; i < list.count && !found; i++)
            found = names(e, f.exact, tree_base(list.paths[i]), port);
        if (!found)
            add_filter(d, t, DOCTOR_WARNING,
                       doctor_text(d, "'%.*s' of %s is no %s of this machine", (int)strcspn(e, ","),
                                   e, t->variable, t->word),
                       "it chooses nothing");
    }
    tree_list_free(&list);
}

/* ---- values --------------------------------------------------------------------------------- */

/* A number, as strtoll() takes it, or one of some words with blanks around each. The first pattern
 * that a name fits counts. */
struct values {
    const char *pattern;
    long long least, most;
    const char *words;
};

/* InfiniBand's fields have so many bits; of levels numbers are an older form. */
#define LEVELS " LOC NVL NVB C2C PIX PXB P2C PXN PHB SYS DIS "
static const struct values values[] = {
    {"NCCL_IB_TIMEOUT", 0, 31, NULL},
    {"NCCL_IB_RETRY_CNT", 0, 7, NULL},
    {"NCCL_IB_SL", -1, 15, NULL},
    {"NCCL_IB_TC", -1, 255, NULL},
    {"NCCL_IB_FIFO_TC", -1, 255, NULL},
    {"NCCL_IB_GID_INDEX", -1, 255, NULL},
    {"NCCL_IB_PKEY", 0, 65535, NULL},
    {"NCCL_IB_ROCE_VERSION_NUM", 1, 2, NULL},
    {"NCCL_IB_QPS_PER_CONNECTION", 1, 128, NULL},
    {"NCCL_IB_PCI_RELAXED_ORDERING", 0, 2, NULL},
    {"NCCL_IB_DATA_DIRECT", 0, 2, NULL},
    {"NCCL_CROSS_NIC", 0, 2, NULL},
    {"NCCL_SOCKET_NTHREADS", 0, 16, NULL},
    {"NCCL_NSOCKS_PERTHREAD", 0, 64, NULL},
    {"NCCL_NTHREADS", 32, 1024, NULL},
    {"NCCL*_BUFFSIZE", 1, INT32_MAX, NULL},
    {"NCCL_M[AI][XN]_*NCHANNELS", 0, 64, NULL},
    {"NCCL_M[AI][XN]_*CTAS", 0, 64, NULL},
    {"NCCL_*_DISABLE", -2, 2, NULL},
    {"NCCL_*_ENABLE", -2, 2, NULL},
    {"NCCL_*_LEVEL", 0, 9, LEVELS},
    {"NCCL_*_FAMILY", 1, 0, " AF_INET AF_INET6 "},
    {"NCCL_DEBUG", 1, 0, " VERSION WARN INFO ABORT TRACE NONE "},
    {"NCCL_LAUNCH_MODE", 1, 0, " PARALLEL GROUP "},
};

static bool is_value(const struct values *v, const char *value)
{
    char *end, word[32];
    const long long number = strtoll(value, &end, 0);

    if (v->words && (size_t)snprintf(word, sizeof(word), " %s ", value) < sizeof(word) &&
        (strstr(v->words, word) ||
         (!strcmp(v->pattern, "NCCL_DEBUG") && strcasestr(v->words, word))))
        return true; /* NCCL compares all but NCCL_DEBUG with regard to case */
    return end != value && !*end && number >= v->least && number <= v->most;
}

static void look_at_value(struct doctor *d, const char *name, const char *value)
{
    const struct values *v = values, *end = v + sizeof(values) / sizeof(values[0]);

    while (v < end && fnmatch(v->pattern, name, 0))
        v++;
    if (v == end || !*value || is_value(v, value))
        return;
    const char *numbers = doctor_text(d, "a number from %lld to %lld", v->least, v->most);
    doctor_say(d, DOCTOR_FAULT,
               "%s=%s, expected %s%s%s\v%s\v"
               "NCCL refuses it, or takes its default or another value without a word\v"
               "unset %s, or set it to such a value", name, value, v->words ? "one of" : numbers,
               v->words ? v->words : "", v->words && v->most ? doctor_text(d, "or %s", numbers) : "",
               doctor_origin(d, name), name);
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
     "NCCL_DEBUG_FILE is set, NCCL_DEBUG is not", "nothing is written", "export NCCL_DEBUG=INFO"},
    {"NCCL_DEBUG_SUBSYS", NULL, "NCCL_DEBUG", "!", DOCTOR_WARNING,
     "NCCL_DEBUG_SUBSYS is set, NCCL_DEBUG is not", "nothing is printed", "export NCCL_DEBUG=INFO"},
    {"NCCL_DEBUG", "TRACE", NULL, NULL, DOCTOR_WARNING, "NCCL traces every call",
     "every message costs a line", "export NCCL_DEBUG=INFO"},
};

/* "!" is "not set", NULL any value at all; case does not matter. */
static bool is(const struct doctor *d, const char *value, const char *wanted)
{
    if (wanted && !strcmp(wanted, "!"))
        return (!value && !d->variables.unseen) || (value && !*value);
    return value && *value && (!wanted || !strcasecmp(value, wanted));
}

static void apply(struct doctor *d, const struct rule *r)
{
    if (!is(d, doctor_variable(d, r->variable), r->value) ||
        (r->other && !is(d, doctor_variable(d, r->other), r->other_value)))
        return;
    doctor_say(d, r->severity, "%s\v%s%s%s\v%s\v%s", r->what, doctor_origin(d, r->variable),
               r->other ? "; " : "", r->other ? doctor_origin(d, r->other) : "", r->consequence,
               r->remedy);
}

static void look_at_bounds(struct doctor *d, const char *least, const char *most)
{
    const char *from = doctor_variable(d, least), *to = doctor_variable(d, most);

    if (from && to && atoi(from) > atoi(to))
        doctor_say(d, DOCTOR_WARNING,
                   "%s is above %s\v%s; %s\vNCCL takes one of them\v"
                   "set the first to at most the second", least, most, doctor_origin(d, least),
                   doctor_origin(d, most));
}

/* ---- selections ------------------------------------------------------------------------------ */

enum { NAMES_MAX = 8 };

struct selection {
    const char *variable, *word;
    const char *names[NAMES_MAX];
};

static const struct selection selections[] = {
    {"NCCL_ALGO",
     "algorithm",
     {"Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"}},
    {"NCCL_PROTO", "protocol", {"LL", "LL128", "Simple"}},
};
static const struct selection collectives = {
    .word = "collective",
    .names = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"}};

static size_t count_names(const struct selection *s)
{
    size_t count = 0;

    while (count < NAMES_MAX && s->names[count])
        count++;
    return count;
}

static bool has_name(const struct selection *s, const char *name)
{
    for (size_t i = 0; i < count_names(s); i++)
        if (!strcasecmp(s->names[i], name))
            return true;
    return false;
}

static const char *list_names(struct doctor *d, const struct selection *s)
{
    const char *list = s->names[0];

    for (size_t i = 1; i < count_names(s); i++)
        list = doctor_text(d, "%s, %s", list, s->names[i]);
    return list;
}

static void expect_name(struct doctor *d, const struct selection *s, const char *name,
                        const char *variable)
{
    if (has_name(s, name))
        return;
    const char *near = dp_nearest(name, s->names, count_names(s));
    doctor_say(d, DOCTOR_FAULT,
               "%s: NCCL has no %s '%s'%s%s%s\v%s\v"
               "recent releases stop with 'invalid usage', older ones ignore the name\v"
               "unset %s, or name one of %s", variable, s->word, name, near ? "; did you mean " : "",
               near ? near : "", near ? "?" : "", doctor_origin(d, variable), variable,
               list_names(d, s));
}

/* "allreduce:tree,ring" or "^tree". */
static void look_at_entry(struct doctor *d, const struct selection *s, char *entry)
{
    char *colon = strchr(entry, ':'), *name;

    if (colon) {
        *colon = 0;
        expect_name(d, &collectives, entry, s->variable);
        entry = colon + 1;
    }
    entry += *entry == '^';
    while ((name = strsep(&entry, ",")))
        if (*name)
            expect_name(d, s, name, s->variable);
}

static void look_at_selections(struct doctor *d)
{
    for (size_t i = 0; i < sizeof(selections) / sizeof(selections[0]); i++) {
        const char *value = doctor_variable(d, selections[i].variable);
        char *copy = value ? strdup(value) : NULL, *rest = copy, *entry;

        while (copy && (entry = strsep(&rest, ";")))
            if (*entry)
                look_at_entry(d, &selections[i], entry);
        free(copy);
    }
}

void doctor_variables(struct doctor *d)
{
    for (size_t i = 0; i < d->variables.count; i++)
        if (!strncmp(d->variables.list[i].name, "NCCL_", 5)) {
            look_at_name(d, d->variables.list[i].name);
            look_at_value(d, d->variables.list[i].name, d->variables.list[i].value);
        }
    if (!*d->tree.root && !strcmp(d->process, "self"))
        dp_options_each(add_option, d);
    for (size_t i = 0; i < sizeof(things) / sizeof(things[0]); i++)
        look_at_filter(d, &things[i]);
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
        apply(d, &rules[i]);
    look_at_bounds(d, "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS");
    look_at_bounds(d, "NCCL_MIN_CTAS", "NCCL_MAX_CTAS");
    look_at_bounds(d, "NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS");
    look_at_selections(d);
    if (!d->variables.unseen && !doctor_has_said(d))
        doctor_say(d, DOCTOR_FINE,
                   "all NCCL_ variables are known and agree\v"
                   "the environment, ~/.nccl.conf, /etc/nccl.conf");
}
