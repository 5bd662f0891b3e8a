/* SPDX-License-Identifier: Apache-2.0
 *
 * tuner.c - a communicator's tuner, and a question of NCCL's put to it.
 *
 *      NCCL                  this file                                            dualpipe/tuning.h
 *      ncclTunerPlugin_vN -> arguments of that version -> what NCCL allows     -> rules, table
 *
 * All ranks of a communicator must give the same answer, or they hang. So an answer depends on what
 * NCCL guarantees to be equal on all ranks, and on the options and the table, which the user keeps
 * equal. The table is read when a communicator is made, never later.
 */
#include "base/fail.h"
#include "base/hash.h"
#include "base/options.h"
#include "nccl-plugin/nccl_abi.h"
#include "nccl-plugin/nccl_log.h"
#include "nccl-plugin/options.h"

#include <dualpipe/assignment.h>
#include <dualpipe/tuning.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* ---- what NCCL says and asks ------------------------------------------------------------------ */

/* Channels that a communicator can have: up to NCCL 2.24, and later. Version 4 serves both. */
enum { DPN_CHANNELS_MAX_V1 = 32, DPN_CHANNELS_MAX_V5 = 64 };

struct dpn_tuner_config {
    size_t ranks, nodes; /* 0: NCCL does not say which communicator it will ask for */
    ncclDebugLogger_t logger;
    /* There are costs to a question, so that the model can tell what NCCL would take. */
    bool has_costs;
    const struct ncclTunerConstants_v5 *constants; /* NCCL's own, or NULL */
};

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

static bool admits(const char *list, const char *word)
{
    return !list || dpn_list_admits(list, word);
}

static void read_allowed(struct dpn_allowed *allowed)
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
static void fill_costs(const struct dpn_allowed *allowed, const struct dpn_support *support,
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

static void close_tuner(struct dpn_tuner *t)
{
    if (!t)
        return;
    dp_tuner_free(t->tuner);
    free(t);
}

/* Messages go to the logger from now on. What is wrong with the options or the table is said there,
 * and leaves the choice to NCCL; with DUALPIPE_TUNER_STRICT it is an error. Also DP_ENOMEM. */
static int open_tuner(const struct dpn_tuner_config *config, struct dpn_tuner **out)
{
    struct dpn_tuner *t = calloc(1, sizeof(*t));
    bool is_strict = false;

    dpn_log_to(config->logger);
    if (!t)
        return dp_fail(DP_ENOMEM, "tuner: no memory for a communicator");
    t->ranks = config->ranks;
    t->nodes = config->nodes;
    read_allowed(&t->allowed);
    int err = open_by_options(t, config, &is_strict);
    if (err && is_strict) {
        close_tuner(t);
        return err;
    }
    if (err)
        dp_log(DP_LOG_WARN, "tuner: NCCL chooses by itself on this rank, for the reason above; all "
                            "ranks must, or they may hang (DUALPIPE_TUNER_STRICT=1 would fail)");
    *out = t;
    return 0;
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

static int64_t bytes_of(size_t bytes)
{
    return bytes < INT64_MAX ? (int64_t)bytes : INT64_MAX;
}

/* The cell of `costs` that is chosen becomes 0, which NCCL takes; cells below zero stay as they are.
 * *channels is written only if there is something to say about it; most: what any communicator of this
 * version of NCCL may have. */
static void choose(const struct dpn_tuner *t, struct dp_tuning_question q, float *costs, int most,
                   int *channels)
{
    struct dp_tuning_answer answer;

    if (!t || !t->tuner)
        return;
    q.costs = costs;
    q.pipe_ops = q.pipe_ops > 0 ? q.pipe_ops : 0;
    dp_tuner_ask(t->tuner, &q, &answer);
    if (answer.algorithm == DP_TUNING_DEFAULT)
        return;
    costs[answer.algorithm * q.protocols + answer.protocol] = 0;
    set_channels(&answer, most, channels);
}

/* For versions 1 and 2. Both of *algorithm and *protocol are written, or none. */
static void choose_without_costs(const struct dpn_tuner *t, ncclFunc_t function, size_t bytes,
                                 int pipe_ops, bool has_collnet, bool has_nvls, int *algorithm,
                                 int *protocol, int *channels)
{
    float costs[DPN_ALGORITHMS_V1][NCCL_NUM_PROTOCOLS];
    const struct dp_tuning_question q = {
        .function = (int)function,
        .bytes = bytes_of(bytes),
        .algorithms = DPN_ALGORITHMS_V1,
        .protocols = NCCL_NUM_PROTOCOLS,
        .pipe_ops = pipe_ops,
    };

    if (!t)
        return;
    const struct dpn_support support = {has_collnet, has_nvls, t->ranks, t->nodes};
    fill_costs(&t->allowed, &support, function, costs);
    choose(t, q, (float *)costs, DPN_CHANNELS_MAX_V1, channels);
    for (int a = 0; a < DPN_ALGORITHMS_V1; a++)
        for (int p = 0; p < NCCL_NUM_PROTOCOLS; p++)
            if (costs[a][p] == 0) {
                *algorithm = a;
                *protocol = p;
            }
}

/* ---- what NCCL looks for --------------------------------------------------------------------- */

/* ncclTunerPlugin_v1 to _v6. A function's name ends in the first version that has it. They always
 * succeed: NCCL would pass an error on to the application, where its own choice is a good answer too.
 * Only init may fail: if the user wants that, or without memory. */

#define TABLE(version, ...)                                                                        \
    extern const struct ncclTuner_v##version ncclTunerPlugin_v##version;                           \
    __attribute__((visibility("default")))                                                         \
    const struct ncclTuner_v##version ncclTunerPlugin_v##version = {.name = "dualpipe",            \
                                                                    __VA_ARGS__}

/* ---- what several versions have ------------------------------------------------------------- */

static ncclResult_t init_tuner(const struct dpn_tuner_config *config, void **context)
{
    struct dpn_tuner *tuner = NULL;
    int err = open_tuner(config, &tuner);

    *context = tuner;
    return dpn_result(err);
}

static ncclResult_t init_v2(size_t nRanks, size_t nNodes, ncclDebugLogger_t logFunction,
                            void **context)
{
    return init_tuner(&(struct dpn_tuner_config){nRanks, nNodes, logFunction, false, NULL},
                      context);
}

static ncclResult_t init_v3(size_t nRanks, size_t nNodes, ncclDebugLogger_t logFunction,
                            void **context)
{
    return init_tuner(&(struct dpn_tuner_config){nRanks, nNodes, logFunction, true, NULL}, context);
}

static ncclResult_t destroy_v2(void *context)
{
    close_tuner(context);
    return ncclSuccess;
}

static ncclResult_t answer(void *context, ncclFunc_t function, size_t bytes, int pipe_ops,
                           float **costs, int algorithms, int protocols, int registered,
                           int channels_max, int *channels)
{
    const struct dp_tuning_question q = {
        .function = (int)function,
        .bytes = bytes_of(bytes),
        .algorithms = algorithms,
        .protocols = protocols,
        .is_registered = registered,
        .pipe_ops = pipe_ops,
    };

    choose(context, q, (float *)costs /* it is one block, whatever its type says */, channels_max,
           channels);
    return ncclSuccess;
}

static ncclResult_t getCollInfo_v4(void *context, ncclFunc_t collType, size_t nBytes,
                                   int numPipeOps, float **collCostTable, int numAlgo, int numProto,
                                   int regBuff, int *nChannels)
{
    return answer(context, collType, nBytes, numPipeOps, collCostTable, numAlgo, numProto, regBuff,
                  DPN_CHANNELS_MAX_V1, nChannels);
}

static ncclResult_t init_v5(void **ctx, uint64_t commId, size_t nRanks, size_t nNodes,
                            ncclDebugLogger_t logFunction,
                            struct ncclNvlDomainInfo_v5 *nvlDomainInfo,
                            struct ncclTunerConstants_v5 *constants)
{
    (void)commId, (void)nvlDomainInfo;
    return init_tuner(&(struct dpn_tuner_config){nRanks, nNodes, logFunction, true, constants},
                      ctx);
}

static ncclResult_t getCollInfo_v5(void *context, ncclFunc_t collType, size_t nBytes,
                                   int numPipeOps, float **collCostTable, int numAlgo, int numProto,
                                   int regBuff, int *nChannels)
{
    return answer(context, collType, nBytes, numPipeOps, collCostTable, numAlgo, numProto, regBuff,
                  DPN_CHANNELS_MAX_V5, nChannels);
}

/* ---- versions ------------------------------------------------------------------------------- */

/* Version 1: NCCL 2.19 and 2.20: no context. A question does not say which communicator asks, so
 * one tuner answers for all of them, with rules for any number of ranks and nodes; it is made once,
 * as communicators that overlap must not see two tables. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct dpn_tuner *shared; /* stays, as a communicator may be asking */

static ncclResult_t init_v1(size_t nRanks, size_t nNodes, ncclDebugLogger_t logFunction)
{
    const struct dpn_tuner_config config = {.logger = logFunction};

    (void)nRanks, (void)nNodes;
    pthread_mutex_lock(&lock);
    int err = shared ? 0 : open_tuner(&config, &shared);
    pthread_mutex_unlock(&lock);
    return dpn_result(err);
}

static struct dpn_tuner *get_shared(void)
{
    pthread_mutex_lock(&lock);
    struct dpn_tuner *tuner = shared;
    pthread_mutex_unlock(&lock);
    return tuner;
}

static ncclResult_t get_coll_info_v1(ncclFunc_t collType, size_t nBytes, int collNetSupport,
                                     int nvlsSupport, int numPipeOps, int *algorithm, int *protocol,
                                     int *nChannels)
{
    choose_without_costs(get_shared(), collType, nBytes, numPipeOps, collNetSupport,
                                   nvlsSupport, algorithm, protocol, nChannels);
    return ncclSuccess;
}

static ncclResult_t destroy_v1(void)
{
    return ncclSuccess;
}

TABLE(1, .init = init_v1, .getCollInfo = get_coll_info_v1, .destroy = destroy_v1);

/* Version 2: a context for each communicator. */
static ncclResult_t get_coll_info_v2(void *context, ncclFunc_t collType, size_t nBytes,
                                     int collNetSupport, int nvlsSupport, int numPipeOps,
                                     int *algorithm, int *protocol, int *nChannels)
{
    choose_without_costs(context, collType, nBytes, numPipeOps, collNetSupport,
                                   nvlsSupport, algorithm, protocol, nChannels);
    return ncclSuccess;
}

TABLE(2, .init = init_v2, .getCollInfo = get_coll_info_v2, .destroy = destroy_v2);

/* Version 3: a table of costs instead of one choice. */
static ncclResult_t get_coll_info_v3(void *context, ncclFunc_t collType, size_t nBytes,
                                     int numPipeOps, float **collCostTable, int numAlgo,
                                     int numProto, int *nChannels)
{
    return getCollInfo_v4(context, collType, nBytes, numPipeOps, collCostTable, numAlgo, numProto,
                          0, nChannels);
}

TABLE(3, .init = init_v3, .getCollInfo = get_coll_info_v3, .destroy = destroy_v2);

/* Version 4: whether buffers are registered. */
TABLE(4, .init = init_v3, .getCollInfo = getCollInfo_v4, .destroy = destroy_v2);

/* Version 5: more is known when a communicator is made, more channels. */
TABLE(5, .init = init_v5, .getCollInfo = getCollInfo_v5, .finalize = destroy_v2);

/* Version 6: the size of a chunk. */
static ncclResult_t get_chunk_size_v6(void *context, ncclFunc_t collType, size_t nBytes,
                                      int algorithm, int protocol, int nChannels, size_t *chunkSize)
{
    const struct dpn_tuner *t = context;
    const int64_t asked = t && t->tuner ? dp_tuner_chunk_bytes(t->tuner, (int)collType,
                                                               bytes_of(nBytes), algorithm, protocol)
                                        : 0;

    (void)nChannels;
    if (asked)
        *chunkSize = (size_t)asked;
    return ncclSuccess;
}

/* NCCL limits chunks to its buffers only where there is a getChunkSize, so without a table of rules
 * there is none. The table is an option, so this is the same for all ranks and communicators. */
extern struct ncclTuner_v6 ncclTunerPlugin_v6;

static ncclResult_t init_v6(void **ctx, uint64_t commId, size_t nRanks, size_t nNodes,
                            ncclDebugLogger_t logFunction,
                            struct ncclNvlDomainInfo_v5 *nvlDomainInfo,
                            struct ncclTunerConstants_v5 *constants)
{
    const ncclResult_t result =
        init_v5(ctx, commId, nRanks, nNodes, logFunction, nvlDomainInfo, constants);

    if (!result && ((const struct dpn_tuner *)*ctx)->has_table)
        __atomic_store_n(&ncclTunerPlugin_v6.getChunkSize, get_chunk_size_v6, __ATOMIC_RELEASE);
    return result;
}

__attribute__((visibility("default"))) struct ncclTuner_v6 ncclTunerPlugin_v6 = {
    .name = "dualpipe",
    .init = init_v6,
    .getCollInfo = getCollInfo_v5,
    .finalize = destroy_v2,
};
