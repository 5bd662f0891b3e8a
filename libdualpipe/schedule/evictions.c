/* SPDX-License-Identifier: Apache-2.0
 *
 * evictions.c - the pass that sends to the host what forwards have saved, and brings it back in time.
 *
 *      F 0.3  ...  F 0.4  ...  F 0.5  ...  B 0.3
 *             ev0.3              fe0.3                   lead = 2: two computes before the B
 *
 * An EVICT stands right behind its forward, a FETCH right before a compute; neither ever comes between
 * an overlapped pair, which counts as one compute. A set whose FETCH would follow its EVICT without a
 * compute between them stays.
 */
#include "base/fail.h"
#include "schedule/build.h"

#include <stdlib.h>
#include <string.h>

struct eviction_rule {
    bool (*wanted)(void *user, int rank, const struct dp_slot *slot, int32_t mb);
    void *user;
    uint32_t lead;
    /* Of the rank at hand: which compute, counted from 0, is the forward, and which the backward, of
     * each micro-batch of each slot; and the op with which each compute begins. */
    uint32_t *forward, *backward, *begins;
};

static const uint32_t nowhere = UINT32_MAX;

static size_t index_of(const struct dp_rank_view *view, struct dp_op op)
{
    return op.slot * (size_t)view->s->mb_per_stream + op.mb;
}

static bool is_second_of_pair(const struct dp_op *in, size_t i)
{
    return i && in[i - 1].kind == DP_OP_F && in[i - 1].overlap;
}

/* Returns how many computes there are. */
static uint32_t count_computes(const struct dp_rank_view *view, const struct dp_op *in, size_t count)
{
    const struct eviction_rule *rule = view->arg;
    size_t sets = (size_t)view->slot_count * (size_t)view->s->mb_per_stream;
    uint32_t computes = 0;

    memset(rule->forward, 0xFF, sets * sizeof(*rule->forward));
    memset(rule->backward, 0xFF, sets * sizeof(*rule->backward));
    for (size_t i = 0; i < count; i++) {
        if (!dp_op_is_compute((enum dp_op_kind)in[i].kind))
            continue;
        if (!is_second_of_pair(in, i))
            rule->begins[computes++] = (uint32_t)i;
        if (in[i].kind == DP_OP_F && !in[i].recomputed)
            rule->forward[index_of(view, in[i])] = computes - 1;
        if (in[i].kind == DP_OP_B || in[i].kind == DP_OP_I)
            rule->backward[index_of(view, in[i])] = computes - 1;
    }
    return computes;
}

/* Whether what the F of this set saved goes to the host. */
static bool is_evicted(const struct dp_rank_view *view, struct dp_op op)
{
    const struct eviction_rule *rule = view->arg;
    uint32_t f = rule->forward[index_of(view, op)], b = rule->backward[index_of(view, op)];

    return f != nowhere && b != nowhere && b >= f + 2 + rule->lead &&
           rule->wanted(rule->user, view->rank, &view->slots[op.slot], (int32_t)op.mb);
}

static void put(struct dp_op_list *out, enum dp_op_kind kind, struct dp_op of)
{
    dp_op_list_put(out, (struct dp_op){
                            .kind = kind, .unit = of.unit, .slot = of.slot, .mb = of.mb,
                            .argument = DP_SAVE_ALL});
}

/* Before compute k: what the one `lead` computes later reads. */
static void put_fetches(const struct dp_rank_view *view, const struct dp_op *in, uint32_t k,
                        uint32_t computes, struct dp_op_list *out)
{
    const struct eviction_rule *rule = view->arg;
    uint32_t later = k + rule->lead;

    if (later >= computes || later < k)
        return;
    for (size_t i = rule->begins[later], end = i + (is_second_of_pair(in, i + 1) ? 2 : 1); i < end;
         i++)
        if ((in[i].kind == DP_OP_B || in[i].kind == DP_OP_I) && is_evicted(view, in[i]))
            put(out, DP_OP_FETCH, in[i]);
}

static void add_evictions(const struct dp_rank_view *view, const struct dp_op *in, size_t count,
                          struct dp_op_list *out)
{
    uint32_t computes = count_computes(view, in, count), k = 0;

    if (!dp_op_list_reserve(out, 3 * count))
        return;
    for (size_t i = 0; i < count; i++) {
        bool compute = dp_op_is_compute((enum dp_op_kind)in[i].kind);
        bool pair = compute && in[i].kind == DP_OP_F && in[i].overlap && i + 1 < count;
        if (compute)
            put_fetches(view, in, k++, computes, out);
        dp_op_list_put(out, in[i]);
        if (pair)
            dp_op_list_put(out, in[i + 1]);
        if (in[i].kind == DP_OP_F && is_evicted(view, in[i]))
            put(out, DP_OP_EVICT, in[i]);
        i += pair;
    }
}

static size_t longest_list(const struct dp_schedule *s)
{
    size_t most = 0;

    for (int rank = 0; rank < s->ranks; rank++)
        if (dp_schedule_count(s, rank) > most)
            most = dp_schedule_count(s, rank);
    return most;
}

static int check_has_none(const struct dp_schedule *s)
{
    for (size_t i = 0; i < s->first[s->ranks]; i++)
        if (s->ops[i].kind == DP_OP_EVICT || s->ops[i].kind == DP_OP_FETCH)
            return dp_fail(DP_ESTATE, "add evictions: op %zu is a %s, expected none", i,
                           dp_op_kind_name((enum dp_op_kind)s->ops[i].kind));
    return 0;
}

int dp_schedule_add_evictions(struct dp_schedule *s, int lead,
                              bool (*wanted)(void *user, int rank, const struct dp_slot *slot,
                                             int32_t mb),
                              void *user)
{
    size_t sets = (size_t)s->max_slots * (size_t)s->mb_per_stream + 1, ops = longest_list(s) + 1;
    struct eviction_rule rule = {.wanted = wanted, .user = user, .lead = (uint32_t)lead};

    if (lead < 0)
        return dp_fail(DP_EINVAL, "add evictions: a lead of %d computes, expected 0 or more", lead);
    int err = check_has_none(s);
    if (err || s->forward_only)
        return err;
    rule.forward = malloc((2 * sets + ops) * sizeof(*rule.forward));
    if (!rule.forward)
        return dp_fail(DP_ENOMEM, "no memory to evict %d micro-batches", s->mb_per_stream);
    rule.backward = rule.forward + sets;
    rule.begins = rule.backward + sets;
    err = dp_schedule_rewrite_with(s, add_evictions, &rule);
    free(rule.forward);
    return err;
}
