/* SPDX-License-Identifier: Apache-2.0
 *
 * net.c - `dualpipe bench net`: the command line, and which contenders it means.
 */
#include "config.h"

#include "bench/net.h"
#include "command.h"
#include "commands.h"
#include "files.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- lists ----------------------------------------------------------------------------------- */

static bool parse_list(const char *text, struct net_list *list, double most,
                       bool (*parse)(const char *, double *))
{
    char *copy = strdup(text);
    bool good = copy;

    list->count = 0;
    for (char *rest = copy, *word; good && (word = strsep(&rest, ","));) {
        double *item = &list->items[list->count];
        good = list->count < NET_LIST_MAX && parse(word, item) && *item >= 1 && *item <= most &&
               *item == floor(*item);
        list->count += good;
    }
    free(copy);
    return good && list->count;
}

static bool parse_sizes(const char *text, void *member, char *why, size_t why_len)
{
    snprintf(why, why_len, "up to %d sizes from 1 to 1GiB, such as 8,4KiB,512KiB", NET_LIST_MAX);
    return parse_list(text, member, 1 << 30, args_parse_bytes);
}

static bool parse_count(const char *text, double *value)
{
    char *end;

    *value = strtod(text, &end);
    return end != text && !*end;
}

static bool parse_connections(const char *text, void *member, char *why, size_t why_len)
{
    snprintf(why, why_len, "up to %d numbers from 1 to %d, such as 1,4", NET_LIST_MAX,
             NET_CONNECTIONS_MAX);
    return parse_list(text, member, NET_CONNECTIONS_MAX, parse_count);
}

/* ---- contenders ------------------------------------------------------------------------------ */

/* "NAME=VALUE " at the beginning of text: its length, else 0. */
static size_t assignment_len(const char *text)
{
    size_t len = 0;

    while (isupper((unsigned char)text[len]) || text[len] == '_' ||
           (len && isdigit((unsigned char)text[len])))
        len++;
    if (!len || text[len] != '=')
        return 0;
    len += strcspn(text + len, " ");
    return len + strspn(text + len, " ");
}

/* "[NAME=VALUE ...] FILE" */
static int read_plugin(const char *text, struct net_contender *c)
{
    const char *file = text;

    for (size_t len; (len = assignment_len(file)) > 0;)
        file += len;
    c->file = file;
    c->assignments = strndup(text, (size_t)(file - text));
    if (!*file)
        return command_misused("--plugin '%s': %s, expected [NAME=VALUE ...] FILE", text,
                               *text ? "no file behind the variables" : "no file");
    return c->assignments ? 0 : command_broke("no memory for a name");
}

static int read_own_plugin(struct net_contender *c)
{
    static char path[PLUGIN_PATH_LEN]; /* the contender keeps a pointer into it */

    plugin_path(NET_PLUGIN, path);
    return read_plugin(path, c);
}

static int list_plugins(const struct net_values *v, struct net_contender *list, int *count)
{
    int status = 0;

    if (v->plugins.count > NET_PLUGINS_MAX)
        return command_misused("%zu plugins, expected at most %d", v->plugins.count,
                               NET_PLUGINS_MAX);
    for (size_t i = 0; i < v->plugins.count && !status; i++)
        status = read_plugin(v->plugins.items[i], &list[(*count)++]);
    if (!v->plugins.count)
        status = read_own_plugin(&list[(*count)++]);
    for (int i = 0; i < *count && !status; i++) {
        snprintf(list[i].label, sizeof(list[i].label), "%c", 'A' + i);
        status = net_probe(v, &list[i]);
    }
    return status;
}

/* Ranks that a launcher has started must be the two sides of one plugin. */
static int check_launched(const struct net_values *v, struct dp_comm_config *launched)
{
    int err = dp_comm_config_from_env(launched);

    if (err)
        return err == DP_ENOENT ? 0 : command_failed(err);
    if (launched->size != 2)
        return command_misused("started as one of %d ranks, expected 2: the sides of a connection",
                               launched->size);
    if (v->plugins.count > 1)
        return command_misused("%zu plugins, expected one for ranks that a launcher has started",
                               v->plugins.count);
    return 0;
}

static int measure(const struct net_values *v)
{
    struct net_contender list[NET_PLUGINS_MAX] = {0};
    struct dp_comm_config launched = {0};
    int count = 0, status = check_launched(v, &launched);

    if (!status)
        status = list_plugins(v, list, &count);
    if (!status)
        status = net_run(v, list, count, &launched);
    for (int i = 0; i < count; i++)
        free(list[i].assignments);
    return status;
}

/* ---- the command line ------------------------------------------------------------------------ */

#define AT(member) .offset = offsetof(struct net_values, member)

static const struct arg args[] = {
    {"plugin", 0, "FILE", "a net plugin, NAME=VALUE ... may stand in front of the file; again for "
     "more", ARG_LIST, AT(plugins)},
    {"sizes", 0, "SIZE,...", "of a message", ARG_PARSE, AT(sizes),
     .fallback = "8,4KiB,64KiB,512KiB,4MiB", .parse = parse_sizes},
    {"connections", 0, "N,...", "that carry a stream at once", ARG_PARSE, AT(connections),
     .fallback = "1,4", .parse = parse_connections},
    {"device", 0, "NAME", "a plugin's device: its name, or a number from 0", ARG_STRING, AT(device)},
    {"abi", 0, "N", "use this version of a plugin's table; 0: the newest", ARG_INT,
     AT(abi), .fallback = "0", .min = 0, .max = 12},
};

int run_bench_net(int argc, char **argv)
{
    const struct arg_group groups[] = {ARG_GROUP("what", args), bench_group, {0}};
    const struct usage usage = {
        .command = "dualpipe bench net", .groups = groups,
        .about = "Drive net plugins for NCCL as NCCL does, each between two processes on cores of\n"
                 "their own: latency, bandwidth and message rate, by size and number of\n"
                 "connections. Without --plugin this program's own. NCCL's own Socket and IB nets are\n"
                 "no files, so they cannot take part. Started twice with RANK=0 and 1, WORLD_SIZE=2,\n"
                 "MASTER_ADDR and MASTER_PORT, it measures one plugin between two machines.",
        .examples = "  dualpipe bench net\n"
                    "  dualpipe bench net --sizes 8,512KiB --connections 1\n"
                    "  dualpipe bench net --plugin libnccl-net-dualpipe.so --plugin other.so --json\n",
    };
    struct operands operands;
    struct net_values v;
    int status;

    if (!args_parse(&usage, argc, argv, &v, &operands, &status))
        return status;
    return measure(&v);
}
