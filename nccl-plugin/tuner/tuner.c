/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/tuner/tuner.h"

#include "base/fail.h"
#include "base/hash.h"
#include "base/options.h"
#include "nccl-plugin/nccl_abi.h"
#include "nccl-plugin/nccl_log.h"
#include "nccl-plugin/options.h"

#include <dualpipe/assignment.h>
#include <dualpipe/tuning.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- what versions 1 and 2 may choose -------------------------------------------------------- */

enum { DPN_ALGORITHMS_V1 = 6 };

/* What the user's variables leave, read once for a communicator. */
struct dpn_allowed {
    bool algorithms[DPN_ALGORITHMS_V1], protocols[NCCL_NUM_PROTOCOLS];
};

/* What NCCL says with a call, and the communicator; 0: not known. */
struct dpn_support {
    bool has_collnet, has_nvls;
    size_t ranks, nodes;
};

enum { DIRECT_RANKS_MAX = 8 }; /* of a node, for CollNetDirect */

static const char *const algorithm_names[DPN_ALGORITHMS_V1] = {
    "Tree", "Ring", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree"};
static const char *const protocol_names[NCCL_NUM_PROTOCOLS] = {"LL", "LL128", "Simple"};

/* ---- the variables -------------------------------------------------------------------------- */

static bool has_word(const char *list, const char *word)
{
    for (const char *at = list + (*list == '^'); *at; at += *at == ',') {
        size_t len = strcspn(at, ",");
        if (len == strlen(word) && !strncasecmp(at, word, len))
            return true;
        at += len;
    }
    return false;
}

/* "LL,Simple" admits these, "^LL128" all others; not set: all. */
static bool admits(const char *list, const char *word)
{
    return !list || has_word(list, word) != (*list == '^');
}

static void dpn_allowed_read(struct dpn_allowed *allowed)
{
    const char *algorithms = dp_foreign_variable("NCCL_ALGO");
    const char *protocols = dp_foreign_variable("NCCL_PROTO");

    for (int a = 0; a < DPN_ALGORITHMS_V1; a++)
        allowed->algorithms[a] = admits(algorithms, algorithm_names[a]);
    for (int p = 0; p < NCCL_NUM_PROTOCOLS; p++)
        allowed->protocols[p] = admits(protocols, protocol_names[p]);
    if (!protocols || *protocols == '^')
        allowed->protocols[NCCL_PROTO_LL128] = false;
}

/* ---- what there is -------------------------------------------------------------------------- */

static bool is_possible(const struct dpn_support *s, ncclFunc_t function, int algorithm)
{
    const bool all_reduce = function == ncclFuncAllReduce;
    const bool one_of_all = all_reduce || function == ncclFuncAllGather ||
                            function == ncclFuncReduceScatter;

    switch (algorithm) {
    case NCCL_ALGO_RING:
        return true;
    case NCCL_ALGO_TREE:
        return all_reduce;
    case NCCL_ALGO_COLLNET_DIRECT:
        return all_reduce && s->has_collnet && s->nodes && s->ranks <= DIRECT_RANKS_MAX * s->nodes;
    case NCCL_ALGO_COLLNET_CHAIN:
        return all_reduce && s->has_collnet;
    case NCCL_ALGO_NVLS:
        return one_of_all && s->has_nvls && s->nodes == 1;
    case NCCL_ALGO_NVLS_TREE:
        return all_reduce && s->has_nvls && s->nodes > 1;
    default:
        return false;
    }
}

static bool has_protocol(int algorithm, int protocol)
{
    return protocol == NCCL_PROTO_SIMPLE || algorithm == NCCL_ALGO_TREE ||
           algorithm == NCCL_ALGO_RING;
}

/* 1 where a cell may be chosen, else NCCL_ALGO_PROTO_IGNORE. LL128 corrupts data on machines that
 * are not made for it, so only NCCL_PROTO can let it in, by name. */
static void dpn_allowed_costs(const struct dpn_allowed *allowed, const struct dpn_support *support,
                       ncclFunc_t function, float costs[DPN_ALGORITHMS_V1][NCCL_NUM_PROTOCOLS])
{
    for (int a = 0; a < DPN_ALGORITHMS_V1; a++)
        for (int p = 0; p < NCCL_NUM_PROTOCOLS; p++)
            costs[a][p] = allowed->algorithms[a] && allowed->protocols[p] && has_protocol(a, p) &&
                                  is_possible(support, function, a)
                              ? 1
                              : NCCL_ALGO_PROTO_IGNORE;
}

struct dpn_tuner {
    struct dp_tuner *tuner; /* NULL: nothing is known, and NCCL chooses by itself */
    size_t ranks, nodes;
    bool has_table;
    struct dpn_allowed allowed; /* for versions without costs */
};

/* ---- open ----------------------------------------------------------------------------------- */

static bool trusts_registration(const struct dpn_tuner_options *o)
{
    return !strcmp(o->registered, "trust");
}

static void warn_of_registration(const struct dp_tuning_table *table)
{
    size_t count = 0;

    for (size_t i = 0; i < table->count; i++)
        count += table->rules[i].registered == DP_TUNING_REGISTERED;
    if (count)
        dp_log(DP_LOG_WARN, "%s: %zu rules for registered buffers do not apply without "
                            "DUALPIPE_TUNER_REGISTERED=trust",
               table->name, count);
}

/* Of what the rules say, to compare the logs of two ranks. */
static uint64_t fingerprint(const struct dp_tuning_table *table)
{
    uint64_t hash = DP_HASH_BEGIN;

    for (size_t i = 0; i < table->count; i++) {
        const struct dp_tuning_rule *r = &table->rules[i];
        const int64_t facts[] = {r->function,    r->bytes.least, r->bytes.most, r->ranks.least,
                                 r->ranks.most,  r->nodes.least, r->nodes.most, r->registered,
                                 r->algorithm,   r->protocol,    r->channels,   r->chunk_bytes,
                                 r->pipe_ops.least, r->pipe_ops.most};
        hash = dp_hash_bytes(hash, facts, sizeof(facts));
    }
    return hash;
}

/* What the options name, until it is in the tuner. */
struct sources {
    struct dp_tuning_table *table; /* NULL: none */
    struct dp_tuning_links links;
    struct dp_tuning_latencies latencies;
};

static void say_sources(const struct dpn_tuner *t, const struct sources *s, bool has_links)
{
    char links[DP_TUNING_LINKS_LEN];

    if (s->table)
        dp_log(DP_LOG_INFO, "tuner: %zu ranks on %zu nodes, %zu rules of %s, fingerprint %016llx",
               t->ranks, t->nodes, s->table->count, s->table->name,
               (unsigned long long)fingerprint(s->table));
    if (has_links)
        dp_log(DP_LOG_INFO, "tuner: %zu ranks on %zu nodes, a model of links %s", t->ranks,
               t->nodes, dp_tuning_links_text(&s->links, links));
    if (!s->table && !has_links)
        dp_log(DP_LOG_INFO, "tuner: neither DUALPIPE_TUNER_TABLE nor DUALPIPE_TUNER_LINKS is set, "
                            "so NCCL chooses by itself");
}

/* NCCL's arrays and ours have the same shape. */
static void copy_latencies(const struct ncclTunerConstants_v5 *constants,
                           struct dp_tuning_latencies *out)
{
    _Static_assert(sizeof(out->base_us) == sizeof(constants->baseLatencies), "latencies to begin");
    _Static_assert(sizeof(out->hop_us) == sizeof(constants->hwLatencies), "latencies of hops");
    memcpy(out->base_us, constants->baseLatencies, sizeof(out->base_us));
    memcpy(out->hop_us, constants->hwLatencies, sizeof(out->hop_us));
}

/* The file is the same on all ranks, as the options are. */
static int read_placement_links(struct dp_tuning_links *out)
{
    struct dp_assignment *assignment = NULL;
    int err = dp_assignment_from_env(&assignment);

    if (!err && !assignment)
        return dp_fail(DP_EINVAL, "DUALPIPE_TUNER_LINKS=placement: DUALPIPE_PLACEMENT names no file");
    if (!err)
        *out = (struct dp_tuning_links){.intra_gbs = assignment->intra_gbs,
                                        .inter_gbs = assignment->inter_gbs};
    dp_assignment_free(assignment);
    return err;
}

static int find_links(const struct dpn_tuner_options *o, struct dp_tuning_links *out)
{
    if (!o->links || !*o->links)
        return 0;
    return strcmp(o->links, "placement") ? dp_tuning_links_parse(o->links, out)
                                         : read_placement_links(out);
}

static int open_sources(struct dpn_tuner *t, const struct dpn_tuner_config *config,
                        const struct dpn_tuner_options *o, struct sources *s)
{
    int err = config->has_costs ? find_links(o, &s->links) : 0;
    const bool has_links = s->links.intra_gbs > 0 || s->links.inter_gbs > 0;

    if (!err && t->has_table)
        err = dp_tuning_table_load(o->table, &s->table);
    if (err)
        return err;
    if (config->constants)
        copy_latencies(config->constants, &s->latencies);
    const struct dp_tuner_config c = {
        .table = s->table, .ranks = (int64_t)t->ranks, .nodes = (int64_t)t->nodes,
        .trusts_registration = trusts_registration(o), .links = has_links ? &s->links : NULL,
        .latencies = config->constants ? &s->latencies : NULL,
    };
    err = dp_tuner_new(&c, &t->tuner);
    if (!err && s->table && !c.trusts_registration)
        warn_of_registration(s->table);
    if (!err)
        say_sources(t, s, has_links);
    return err;
}

static int open_by_options(struct dpn_tuner *t, const struct dpn_tuner_config *config,
                           bool *is_strict)
{
    struct dpn_tuner_options o = {0};
    struct sources s = {0};
    int err = dp_options_read(&dpn_tuner_option_area, &o);

    *is_strict = o.is_strict;
    t->has_table = o.table && *o.table;
    if (!err)
        err = open_sources(t, config, &o, &s);
    dp_tuning_table_free(s.table);
    return err;
}

int dpn_tuner_open(const struct dpn_tuner_config *config, struct dpn_tuner **out)
{
    struct dpn_tuner *t = calloc(1, sizeof(*t));
    bool is_strict = false;

    dpn_log_to(config->logger);
    if (!t)
        return dp_fail(DP_ENOMEM, "tuner: no memory for a communicator");
    t->ranks = config->ranks;
    t->nodes = config->nodes;
    dpn_allowed_read(&t->allowed);
    int err = open_by_options(t, config, &is_strict);
    if (err && is_strict) {
        dpn_tuner_close(t);
        return err;
    }
    if (err)
        dp_log(DP_LOG_WARN, "tuner: NCCL chooses by itself on this rank, for the reason above; all "
                            "ranks must, or they may hang (DUALPIPE_TUNER_STRICT=1 would fail)");
    *out = t;
    return 0;
}

void dpn_tuner_close(struct dpn_tuner *t)
{
    if (!t)
        return;
    dp_tuner_free(t->tuner);
    free(t);
}

/* ---- choose --------------------------------------------------------------------------------- */

static bool is_collnet(int algorithm)
{
    return algorithm == NCCL_ALGO_COLLNET_DIRECT || algorithm == NCCL_ALGO_COLLNET_CHAIN;
}

/* NCCL brings a number that is too large down to what it has, but not for CollNet. */
static void set_channels(const struct dp_tuning_answer *answer, int most, int *channels)
{
    if (!answer->channels || is_collnet(answer->algorithm))
        return;
    *channels = answer->channels < most ? answer->channels : most;
}

void dpn_tuner_choose(const struct dpn_tuner *t, const struct dpn_tuner_question *q, int *channels)
{
    const struct dp_tuning_question question = {
        .function = (int)q->function,
        .bytes = q->bytes < INT64_MAX ? (int64_t)q->bytes : INT64_MAX,
        .is_registered = q->is_registered,
        .pipe_ops = q->pipe_ops > 0 ? q->pipe_ops : 0,
        .costs = q->costs,
        .algorithms = q->algorithms,
        .protocols = q->protocols,
    };
    struct dp_tuning_answer answer;

    if (!t || !t->tuner)
        return;
    dp_tuner_ask(t->tuner, &question, &answer);
    if (answer.algorithm == DP_TUNING_DEFAULT)
        return;
    q->costs[answer.algorithm * q->protocols + answer.protocol] = 0;
    set_channels(&answer, q->channels_max, channels);
}

void dpn_tuner_choose_without_costs(const struct dpn_tuner *t, ncclFunc_t function, size_t bytes,
                                    int pipe_ops, bool has_collnet, bool has_nvls, int *algorithm,
                                    int *protocol, int *channels)
{
    float costs[DPN_ALGORITHMS_V1][NCCL_NUM_PROTOCOLS];
    const struct dpn_tuner_question q = {
        .function = function,
        .bytes = bytes,
        .costs = (float *)costs,
        .algorithms = DPN_ALGORITHMS_V1,
        .protocols = NCCL_NUM_PROTOCOLS,
        .pipe_ops = pipe_ops,
        .channels_max = DPN_CHANNELS_MAX_V1,
    };

    if (!t)
        return;
    const struct dpn_support support = {has_collnet, has_nvls, t->ranks, t->nodes};
    dpn_allowed_costs(&t->allowed, &support, function, costs);
    dpn_tuner_choose(t, &q, channels);
    for (int a = 0; a < DPN_ALGORITHMS_V1; a++)
        for (int p = 0; p < NCCL_NUM_PROTOCOLS; p++)
            if (costs[a][p] == 0) {
                *algorithm = a;
                *protocol = p;
            }
}

bool dpn_tuner_has_table(const struct dpn_tuner *t)
{
    return t->has_table;
}

void dpn_tuner_chunk(const struct dpn_tuner *t, ncclFunc_t function, size_t bytes, int algorithm,
                     int protocol, size_t *chunk)
{
    if (!t || !t->tuner)
        return;
    int64_t asked = dp_tuner_chunk_bytes(t->tuner, (int)function,
                                         bytes < INT64_MAX ? (int64_t)bytes : INT64_MAX, algorithm,
                                         protocol);
    if (asked)
        *chunk = (size_t)asked;
}
