/* SPDX-License-Identifier: Apache-2.0
 *
 * explain.c - `dualpipe tune explain`: the answers of the tuner for sizes from small to large,
 * beside what NCCL would choose, and where each answer comes from.
 *
 * NCCL's own choice is that of the model with NCCL's latencies and nothing added to them: NCCL's
 * formulas in outline, without its corrections by size and its limits by channel.
 */
#include "command.h"
#include "commands.h"
#include "topo/topo.h"
#include "tune/tune.h"

#include <jansson.h>

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <dualpipe/options.h>

/* ---- the plugin's variables ------------------------------------------------------------------ */

/* What is set; NULL: not set, or empty. The strings are the environment's. */
struct tune_environment {
    const char *table;      /* DUALPIPE_TUNER_TABLE */
    const char *links;      /* DUALPIPE_TUNER_LINKS, unless it is "placement" */
    const char *placement;  /* DUALPIPE_PLACEMENT, if the links are to come from there */
    const char *registered; /* DUALPIPE_TUNER_REGISTERED */
};

struct search {
    struct tune_environment *out;
    int status;
};

static void take(void *user, const struct dp_option_info *option)
{
    struct search *s = user;
    const struct {
        const char *name;
        const char **to;
    } wanted[] = {{"DUALPIPE_TUNER_TABLE", &s->out->table},
                  {"DUALPIPE_TUNER_LINKS", &s->out->links},
                  {"DUALPIPE_TUNER_REGISTERED", &s->out->registered},
                  {"DUALPIPE_PLACEMENT", &s->out->placement}};

    if (option->problem && !s->status && !strncmp(option->name, "DUALPIPE_TUNER_", 15))
        s->status = command_misused("%s", option->problem);
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        if (!strcmp(option->name, wanted[i].name) && option->from_environment && *option->value)
            *wanted[i].to = option->value;
}

/* 0, else an EXIT_ value: a variable that the plugin would refuse, and the sentence has been
 * printed. */
static int read_variables(struct tune_environment *out)
{
    struct search s = {out, 0};

    *out = (struct tune_environment){0};
    dp_options_each(take, &s);
    if (s.status)
        return s.status;
    if (!out->links || strcmp(out->links, "placement"))
        out->placement = NULL;
    else if (!out->placement)
        return command_misused("DUALPIPE_TUNER_LINKS=placement: DUALPIPE_PLACEMENT names no file");
    else
        out->links = NULL;
    return 0;
}

enum { CELLS = DP_TUNING_CROSSINGS_MAX, NVLINK_GBS = 70 /* see struct dp_tuning_links */ };

struct values {
    int64_t ranks, nodes, pipe_ops;
    struct tune_source source;
    const char *placement, *table, *algorithms, *protocols, *links, *format;
    double smallest, largest;
    bool is_registered;
};

struct explained {
    const struct values *v;
    int function;
    int64_t ranks, nodes;
    struct dp_tuning_links links;
    bool has_nvls;
    bool knows_nvls; /* whether there is NVLS was said, or could be told from the topology */
    struct tune_environment environment; /* what is used of it */
    struct dp_tuning_table *table;       /* NULL: none */
    struct dp_tuner *tuner, *plain;      /* as the plugin would be; as NCCL is */
    bool allowed[CELLS];
};

/* "example.csv:3", with the longest name that a file can have. */
enum { RULE_TEXT = NAME_MAX + 16 };

/* One size. */
struct row {
    int64_t bytes;
    int algorithm, protocol; /* NCCL's; DP_TUNING_DEFAULT: not known */
    double default_us;
    struct dp_tuning_answer answer;
    char because[RULE_TEXT + 96];
};

/* ---- a row ---------------------------------------------------------------------------------- */

/* Without links nothing is known of costs, and all that may be chosen costs the same. */
static void fill_costs(const struct explained *e, int64_t bytes, float *costs)
{
    const bool is_known =
        dp_tuner_time_us(e->plain, e->function, DP_TUNING_RING, DP_TUNING_LL, bytes) >= 0;

    for (int i = 0; i < CELLS; i++) {
        double us = dp_tuner_time_us(e->plain, e->function, i / DP_TUNING_PROTOCOLS,
                                     i % DP_TUNING_PROTOCOLS, bytes);
        costs[i] = !e->allowed[i] ? -1 : is_known ? (float)us : 1;
    }
}

static void find_default(const struct explained *e, const float *costs, struct row *row)
{
    int best = -1;

    for (int i = 0; i < CELLS; i++)
        if (costs[i] >= 0 && (best < 0 || costs[i] < costs[best]))
            best = i;
    row->algorithm = row->protocol = DP_TUNING_DEFAULT;
    row->default_us = best < 0 ? -1
                               : dp_tuner_time_us(e->tuner, e->function, best / DP_TUNING_PROTOCOLS,
                                                  best % DP_TUNING_PROTOCOLS, row->bytes);
    if (row->default_us < 0)
        return;
    row->algorithm = best / DP_TUNING_PROTOCOLS;
    row->protocol = best % DP_TUNING_PROTOCOLS;
}

/* The headline has the path of the table: here its last part does. */
static void name_rule(const struct explained *e, const struct dp_tuning_rule *rule, char *text)
{
    const char *slash = strrchr(e->table->name, '/');

    snprintf(text, RULE_TEXT, "%.*s:%d", NAME_MAX, slash ? slash + 1 : e->table->name, rule->line);
}

static void say_why(const struct explained *e, struct row *row)
{
    const struct dp_tuning_answer *a = &row->answer;
    const bool has_model = row->default_us >= 0;
    char rule[RULE_TEXT] = "";

    if (a->rule)
        name_rule(e, a->rule, rule);
    if (a->source == DP_TUNING_FROM_TABLE && a->rule->time_us > 0 && a->rule->default_us > 0)
        snprintf(row->because, sizeof(row->because), "%s: measured %.0f us, NCCL's own %.0f us",
                 rule, a->rule->time_us, a->rule->default_us);
    else if (a->source == DP_TUNING_FROM_TABLE)
        snprintf(row->because, sizeof(row->because), "%s", rule);
    else if (a->source == DP_TUNING_FROM_MODEL)
        snprintf(row->because, sizeof(row->because), "model: %.0f %% less%s%s",
                 100 * (1 - a->time_us / a->default_us), *rule ? "; not there: " : "", rule);
    else if (a->rule && a->rule->algorithm == DP_TUNING_DEFAULT)
        snprintf(row->because, sizeof(row->because), "%s leaves it to NCCL", rule);
    else if (a->rule)
        snprintf(row->because, sizeof(row->because), "NCCL: what %s says is not there", rule);
    else
        snprintf(row->because, sizeof(row->because), "NCCL: %s",
                 has_model ? "nothing else is 10 % faster" : "no rule applies");
}

static void explain_size(const struct explained *e, int64_t bytes, struct row *row)
{
    float costs[CELLS];
    const struct dp_tuning_question q = {
        .function = e->function,
        .bytes = bytes,
        .is_registered = e->v->is_registered,
        .pipe_ops = e->v->pipe_ops,
        .costs = costs,
        .algorithms = DP_TUNING_ALGORITHMS,
        .protocols = DP_TUNING_PROTOCOLS,
    };

    *row = (struct row){.bytes = bytes};
    fill_costs(e, bytes, costs);
    find_default(e, costs, row);
    dp_tuner_ask(e->tuner, &q, &row->answer);
    if (row->answer.source == DP_TUNING_FROM_NCCL) {
        row->answer.algorithm = row->algorithm;
        row->answer.protocol = row->protocol;
    }
    if (row->answer.time_us <= 0)
        row->answer.time_us = dp_tuner_time_us(e->tuner, e->function, row->answer.algorithm,
                                               row->answer.protocol, bytes);
    say_why(e, row);
    if (row->default_us < 0) /* no model, but perhaps a measurement */
        row->default_us = row->answer.default_us;
}

/* ---- reports -------------------------------------------------------------------------------- */

static int count_crossings(const struct explained *e, struct dp_tuning_crossing *c)
{
    float costs[CELLS];

    for (int i = 0; i < CELLS; i++)
        costs[i] = e->allowed[i] ? 1 : -1;
    return dp_tuner_crossings(e->tuner, e->function, costs, c);
}

static void print_heading(const struct explained *e)
{
    char links[DP_TUNING_LINKS_LEN];

    printf("%s, %lld ranks on %lld node%s", dp_name(DP_NAMES_FUNCTION, e->function),
           (long long)e->ranks, (long long)e->nodes, e->nodes == 1 ? "" : "s");
    if (*dp_tuning_links_text(&e->links, links))
        printf(", links %s", links);
    if (e->table)
        printf(", %zu rule%s of %s", e->table->count, e->table->count == 1 ? "" : "s",
               e->table->name);
    if (e->environment.table || e->environment.links || e->environment.placement)
        printf("\nfrom the environment:%s%s%s", e->environment.table ? " DUALPIPE_TUNER_TABLE" : "",
               e->environment.links || e->environment.placement ? " DUALPIPE_TUNER_LINKS" : "",
               e->environment.placement ? " DUALPIPE_PLACEMENT" : "");
    printf("\n\n%10s  %-22s %10s  %-22s %10s %8s  %s\n", "size", "NCCL's model", "us", "answer",
           "us", "channels", "because");
}

static void print_time(double us)
{
    if (us > 0)
        printf(us < 100 ? " %10.1f" : " %10.0f", us);
    else
        printf(" %10s", "-");
}

static void print_row(const struct row *r)
{
    char size[TOPO_WORD], cell[TUNE_CELL_LEN], channels[16] = "-";

    if (r->answer.channels)
        snprintf(channels, sizeof(channels), "%d", r->answer.channels);
    printf("%10s  %-22s", topo_size((uint64_t)r->bytes, size),
           r->algorithm < 0 ? "NCCL's own" : tune_cell_text(r->algorithm, r->protocol, cell));
    print_time(r->default_us);
    printf("  %-22s", r->answer.algorithm < 0 ? "NCCL's own"
                                              : tune_cell_text(r->answer.algorithm,
                                                               r->answer.protocol, cell));
    print_time(r->answer.time_us);
    printf(" %8s  %s\n", channels, r->because);
}

static void print_crossings(const struct explained *e)
{
    struct dp_tuning_crossing c[CELLS];
    int count = count_crossings(e, c);
    char size[TOPO_WORD], cell[TUNE_CELL_LEN];

    for (int i = 0; i < count; i++)
        printf("%s%s from %s", i ? ", " : "\nfastest by the model: ",
               tune_cell_text(c[i].algorithm, c[i].protocol, cell),
               topo_size((uint64_t)c[i].bytes, size));
    if (count)
        putchar('\n');
}

/* The one of a job of this size; NULL: the collective has none. */
static const char *nvls_of(const struct explained *e)
{
    if (e->function == DP_TUNING_BROADCAST || e->function == DP_TUNING_REDUCE)
        return NULL;
    if (e->nodes > 1)
        return e->function == DP_TUNING_ALLREDUCE ? "nvls_tree" : NULL;
    return "nvls";
}

static void print_text(const struct explained *e)
{
    struct row row;

    print_heading(e);
    for (double bytes = e->v->smallest; bytes <= e->v->largest; bytes *= 2) {
        explain_size(e, (int64_t)bytes, &row);
        print_row(&row);
    }
    print_crossings(e);
    if (!e->knows_nvls && nvls_of(e))
        printf("\nNVLS is left out: the links do not say whether NVSwitches add up\n"
               "(--topology does; or --algorithms ring,tree,pat,%s).\n",
               nvls_of(e));
}

static json_t *json_cell(int algorithm, int protocol, double us)
{
    if (algorithm < 0)
        return json_null();
    json_t *j = json_pack("{ss, ss}", "algorithm", dp_name(DP_NAMES_ALGORITHM, algorithm), "protocol",
                          dp_name(DP_NAMES_PROTOCOL, protocol));
    if (us > 0)
        json_object_set_new(j, "us", json_real(us));
    return j;
}

static json_t *json_row(const struct row *r)
{
    static const char *const sources[] = {"nccl", "table", "model"};
    json_t *j = json_pack("{sI, so, so, ss, ss}", "bytes", (json_int_t)r->bytes, "default",
                          json_cell(r->algorithm, r->protocol, r->default_us), "answer",
                          json_cell(r->answer.algorithm, r->answer.protocol, r->answer.time_us),
                          "source", sources[r->answer.source], "because", r->because);

    if (r->answer.channels)
        json_object_set_new(j, "channels", json_integer(r->answer.channels));
    if (r->answer.rule && r->answer.rule->default_us > 0)
        json_object_set_new(j, "measured",
                            json_pack("{sf, sf}", "us", r->answer.rule->time_us, "default_us",
                                      r->answer.rule->default_us));
    return j;
}

static void print_json(const struct explained *e)
{
    char links[DP_TUNING_LINKS_LEN];
    struct dp_tuning_crossing c[CELLS];
    json_t *sizes = json_array(), *crossings = json_array(), *one;
    struct row row;

    for (double bytes = e->v->smallest; bytes <= e->v->largest; bytes *= 2) {
        explain_size(e, (int64_t)bytes, &row);
        json_array_append_new(sizes, json_row(&row));
    }
    int count = count_crossings(e, c);
    for (int i = 0; i < count; i++) {
        one = json_cell(c[i].algorithm, c[i].protocol, 0);
        json_object_set_new(one, "from_bytes", json_integer(c[i].bytes));
        json_array_append_new(crossings, one);
    }
    json_t *j = json_pack("{ss, sI, sI, ss, so, so}", "collective",
                          dp_name(DP_NAMES_FUNCTION, e->function), "ranks", (json_int_t)e->ranks,
                          "nodes", (json_int_t)e->nodes, "links", dp_tuning_links_text(&e->links, links),
                          "sizes", sizes, "crossings", crossings);
    json_dumpf(j, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(j);
}

/* ---- what is asked for ---------------------------------------------------------------------- */

/* "ring,tree": which of them, in a set of bits. */
static int parse_words(const char *option, const char *text, enum dp_names names, int count,
                       unsigned *set)
{
    *set = 0;
    for (const char *at = text; *at; at += *at == ',') {
        size_t len = strcspn(at, ",");
        int found = tune_find(names, count, at, len);
        if (found < 0)
            return command_misused("--%s: '%.*s', expected words of which '%s' is one", option,
                                   (int)len, at, dp_name(names, 0));
        *set |= 1u << found;
        at += len;
    }
    return 0;
}

static int choose_cells(struct explained *e)
{
    unsigned algorithms, protocols;
    const char *names = e->v->algorithms ? e->v->algorithms
                        : e->has_nvls    ? "ring,tree,pat,nvls,nvls_tree"
                                         : "ring,tree,pat";
    int status = parse_words("algorithms", names, DP_NAMES_ALGORITHM, DP_TUNING_ALGORITHMS,
                             &algorithms);

    if (!status)
        status = parse_words("protocols", e->v->protocols, DP_NAMES_PROTOCOL,
                             DP_TUNING_PROTOCOLS, &protocols);
    for (int i = 0; i < CELLS && !status; i++)
        e->allowed[i] = algorithms >> i / DP_TUNING_PROTOCOLS & 1 &&
                        protocols >> i % DP_TUNING_PROTOCOLS & 1;
    return status;
}

/* What is not given, as the plugin would find it. */
static int read_environment(struct explained *e, struct values *v)
{
    struct tune_environment *env = &e->environment;
    const bool has_links = v->links || tune_has_source(&v->source) || v->placement;
    int status = read_variables(env);

    if (status)
        return status;
    if (v->is_registered && (!env->registered || strcmp(env->registered, "trust")))
        fprintf(stderr, "dualpipe: --registered: to the plugin no buffer is registered unless "
                        "DUALPIPE_TUNER_REGISTERED=trust\n");
    if (v->table)
        env->table = NULL;
    if (has_links)
        env->links = env->placement = NULL;
    v->table = v->table ? v->table : env->table;
    v->links = v->links ? v->links : env->links;
    v->placement = v->placement ? v->placement : env->placement;
    return 0;
}

/* What --links says comes before what the topology says. */
static void merge_links(struct dp_tuning_links *into, const struct dp_tuning_links *from)
{
    double *const to[] = {&into->intra_gbs, &into->inter_gbs, &into->intra_us, &into->inter_us};
    const double given[] = {from->intra_gbs, from->inter_gbs, from->intra_us, from->inter_us};

    for (int i = 0; i < 4; i++)
        if (given[i] > 0)
            *to[i] = given[i];
}

static int find_place(struct explained *e)
{
    struct dp_tuning_links given;
    struct tune_place place = {0};
    const struct values *v = e->v;

    if (!tune_has_source(&v->source) && !v->placement && !v->links && !v->table)
        return command_misused("nothing to answer with: expected --topology, --placement, --links or "
                               "--table, or DUALPIPE_TUNER_LINKS or DUALPIPE_TUNER_TABLE");
    if (tune_has_source(&v->source) && v->placement)
        return command_misused("--topology and --placement: expected one of the two");
    int status = tune_has_source(&v->source) ? tune_read_topology(&v->source, &place)
                 : v->placement              ? tune_read_placement(v->placement, &place)
                                             : 0;
    e->links = place.links;
    e->has_nvls = place.has_nvls;
    if (!status && v->links) {
        int err = dp_tuning_links_parse(v->links, &given);
        status = err ? command_failed(err) : EXIT_OK;
        merge_links(&e->links, err ? &e->links : &given);
    }
    if (status)
        return status;
    e->ranks = v->ranks ? v->ranks : place.ranks;
    e->nodes = v->nodes ? v->nodes : place.nodes ? place.nodes : 1;
    e->knows_nvls = v->algorithms || tune_has_source(&v->source) || e->links.intra_gbs < NVLINK_GBS;
    if (!e->ranks)
        return command_misused(tune_has_source(&v->source)
                                   ? "the topology has no GPUs, expected some, or --ranks"
                                   : "--ranks is missing, which --topology would say");
    if (e->ranks < e->nodes)
        return command_misused("%lld ranks on %lld nodes, expected at least one on each",
                               (long long)e->ranks, (long long)e->nodes);
    return 0;
}

static int make_tuners(struct explained *e)
{
    const struct dp_tuning_links plain = {.intra_gbs = e->links.intra_gbs,
                                          .inter_gbs = e->links.inter_gbs};
    struct dp_tuner_config c = {.ranks = e->ranks, .nodes = e->nodes, .links = &plain,
                                .trusts_registration = true};
    int err = e->v->table ? dp_tuning_table_load(e->v->table, &e->table) : 0;

    if (!err)
        err = dp_tuner_new(&c, &e->plain);
    c.links = &e->links;
    c.table = e->table;
    if (!err)
        err = dp_tuner_new(&c, &e->tuner);
    return err ? command_failed(err) : EXIT_OK;
}

static int explain(struct values *v, int function)
{
    struct explained e = {.v = v, .function = function};
    int status = read_environment(&e, v);

    if (!status)
        status = find_place(&e);
    if (!status)
        status = choose_cells(&e);
    if (!status)
        status = make_tuners(&e);
    if (!status && e.table)
        tune_warn_of_size(e.table, function, e.ranks, e.nodes, stderr);
    if (!status)
        (strcmp(v->format, "json") ? print_text : print_json)(&e);
    dp_tuner_free(e.tuner);
    dp_tuner_free(e.plain);
    dp_tuning_table_free(e.table);
    return status;
}

/* ---- the command ---------------------------------------------------------------------------- */

#define AT(member) .offset = offsetof(struct values, member)

static const struct arg place_args[] = {
    {"ranks", 'n', "N", "ranks of the communicator (all GPUs of the topology)", ARG_INT, AT(ranks),
     .min = 1, .max = 1 << 20},
    {"nodes", 'N', "N", "nodes that they are on (all hosts of the topology)", ARG_INT, AT(nodes),
     .min = 1, .max = 1 << 20},
    {"topology", 't', "FILE", "of topo json, or of NCCL or hwloc", ARG_STRING, AT(source.topology)},
    {"synthetic", 's', "STR", "a description in a few words, as in 'dgx-h100 host:4'", ARG_STRING,
     AT(source.synthetic), .offer = args_offer_presets},
    {"sysfs", 0, "DIR", "a machine whose /sys (and /proc) was captured below DIR", ARG_STRING,
     AT(source.sysfs)},
    {"placement", 0, "FILE", "of topo place: its links and its workers", ARG_STRING, AT(placement)},
    {"links", 'l', "LINKS", "as in intra=450,inter=400,inter_us=3: GB/s, us", ARG_STRING, AT(links)},
    {"table", 'T', "FILE", "rules", ARG_STRING, AT(table)},
    {"algorithms", 0, "NAME,...",
     "those that NCCL has here (ring, tree, pat; NVLS where a topology has it)", ARG_STRING,
     AT(algorithms)},
    {"protocols", 0, "NAME,...", "the same", ARG_STRING, AT(protocols), .fallback = "ll,ll128,simple"},
};
static const struct arg what_args[] = {
    {"smallest", 0, "SIZE", "first size", ARG_BYTES, AT(smallest), .fallback = "1KiB", .min = 1,
     .max = 1e15},
    {"largest", 0, "SIZE", "last size", ARG_BYTES, AT(largest), .fallback = "1GiB", .min = 1,
     .max = 1e15},
    {"registered", 0, NULL, "buffers are registered on all ranks", ARG_FLAG, AT(is_registered)},
    {"pipe-ops", 0, "N", "collectives of a group that a channel runs", ARG_INT, AT(pipe_ops),
     .fallback = "1", .min = 1, .max = 1 << 20},
    {"format", 'f', NULL, "what to print", ARG_CHOICE, AT(format), .fallback = "text",
     .choices = args_text_or_json},
};

int run_tune_explain(int argc, char **argv)
{
    const struct arg_group groups[] = {
        ARG_GROUP("where", place_args), ARG_GROUP("what", what_args), {0}
    };
    const struct usage usage = {
        .command = "dualpipe tune explain", .operands = "[COLLECTIVE]",
        .operand_choices = "allreduce|allgather|reducescatter|broadcast|reduce", .max_operands = 1,
        .groups = groups,
        .about =
            "Print what the tuner would answer for sizes from small to large, beside what NCCL\n"
            "would choose by its own model (in outline), and where each answer comes from: a\n"
            "rule of the table, the cost model, or NCCL. Times are those of the cost model,\n"
            "or what the rule says was measured. Without --table and without links the\n"
            "plugin's variables count: DUALPIPE_TUNER_TABLE, DUALPIPE_TUNER_LINKS.",
        .examples =
            "  dualpipe tune explain --ranks 16 --nodes 2 --links intra=450,inter=400,inter_us=3\n"
            "  dualpipe tune explain allgather --synthetic 'dgx-h100 host:2'\n"
            "  dualpipe tune explain --ranks 8 --table cluster.csv --format json\n",
    };
    struct operands operands;
    struct values v;
    int status, function = DP_TUNING_ALLREDUCE;

    if (!args_parse(&usage, argc, argv, &v, &operands, &status))
        return status;
    if (operands.count)
        function = tune_find(DP_NAMES_FUNCTION, DP_TUNING_FUNCTIONS, operands.items[0],
                             strlen(operands.items[0]));
    if (function < 0)
        return command_misused("'%s', expected one of %s", operands.items[0],
                               usage.operand_choices);
    return explain(&v, function);
}
