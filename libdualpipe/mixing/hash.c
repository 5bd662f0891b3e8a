/* SPDX-License-Identifier: Apache-2.0 */
#include "mixing/hash.h"

#include "base/fail.h"
#include "comm/comm_core.h"
#include "base/hash.h"

#include <stdio.h>
#include <stdlib.h>

uint64_t dp_hash_parameters(const struct dp_parameter *parameters, int32_t count)
{
    uint64_t hash = DP_HASH_BEGIN;

    for (int32_t i = 0; i < count; i++) {
        const struct dp_parameter *p = &parameters[i];
        hash = dp_hash_text(hash, p->name);
        hash = dp_hash_bytes(hash, &p->value->dtype, sizeof(p->value->dtype));
        hash = dp_hash_number(hash, dp_parameter_elements(p));
        hash = dp_hash_number(hash, (int64_t)p->flags);
    }
    return hash;
}

struct described {
    char text[160];
};

static struct described describe(const struct dp_parameter *p)
{
    static const char *const codes[] = {"int", "uint", "float", "handle", "bfloat"};
    struct described d;
    const DLDataType t = p->value->dtype;

    snprintf(d.text, sizeof(d.text), "'%.100s' of %lld elements, %s%d%s", p->name,
             (long long)dp_parameter_elements(p), t.code < 5 ? codes[t.code] : "type", t.bits,
             p->flags & DP_PARAMETER_FROZEN     ? ", frozen"
             : p->flags & DP_PARAMETER_NO_DECAY ? ", without decay"
                                                : "");
    return d;
}

/* *rank: the first that has another number than rank 0; 0: none. */
static int find_other(struct dp_comm *comm, uint64_t number, uint64_t *all, int *rank)
{
    int err = dp_comm_allgather(comm, &number, all, sizeof(number));

    *rank = 0;
    for (int i = dp_comm_size(comm) - 1; i > 0 && !err; i--)
        *rank = all[i] != all[0] ? i : *rank;
    return err;
}

static int name_difference(struct dp_comm *comm, const struct dp_parameter *p, int32_t number, int rank)
{
    struct described *all = calloc((size_t)dp_comm_size(comm), sizeof(*all)), mine = describe(p);
    int err = all ? dp_comm_allgather(comm, &mine, all, sizeof(mine)) : DP_ENOMEM;

    if (!err)
        err = dp_fail(DP_EMISMATCH, "parameter %d: all ranks must agree; rank 0 has %s, but rank %d "
                      "has %s", number, all[0].text, rank, all[rank].text);
    free(all);
    return err;
}

int dp_agree_on_parameters(struct dp_comm *comm, const struct dp_parameter *parameters, int32_t count)
{
    uint64_t *all = calloc((size_t)dp_comm_size(comm), sizeof(*all));
    int rank = 0;

    if (!all) {
        const int err = dp_fail(DP_ENOMEM, "no memory to ask %d ranks", dp_comm_size(comm));
        dp_comm_fail(comm, err);
        return err;
    }
    int err = find_other(comm, dp_hash_parameters(parameters, count), all, &rank);
    const bool differs = rank;
    if (!err && differs)
        err = dp_comm_agree(comm, "number of parameters", (uint64_t)count);
    for (int32_t i = 0; i < count && differs && !err; i++) {
        err = find_other(comm, dp_hash_parameters(&parameters[i], 1), all, &rank);
        if (!err && rank)
            err = name_difference(comm, &parameters[i], i, rank);
    }
    free(all);
    return err;
}

int dp_agree_on_graph(struct dp_comm *comm, const struct dp_graph *g, const char *what,
                      uint64_t options)
{
    char *text;
    size_t len;
    int err = dp_graph_write(g, DP_GRAPH_FORMAT_TEXT, &text, &len);

    if (err)
        return dp_comm_abort(comm, err, dp_last_error()), err;
    const uint64_t hash = dp_hash_bytes(DP_HASH_BEGIN, text, len);
    free(text);
    return dp_comm_agree(comm, what, dp_hash_bytes(hash, &options, sizeof(options)));
}
