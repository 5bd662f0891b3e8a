/* SPDX-License-Identifier: Apache-2.0
 *
 * The events of a step: in the order of OffloadModel where that is asked for, and always sound.
 */
#include "cmocka_all.h"

#include "base/fail.h"
#include <dualpipe/offload.h>

enum { MOST = 6 * 64 };

/* "L0 F0 D0 ...", of shards. */
static const char *text_of(struct dp_offload_plan plan)
{
    static char text[MOST * 8];
    struct dp_offload_event events[MOST];
    size_t count, at = 0;

    assert_int_equal(dp_offload_plan(&plan, events, MOST, &count), 0);
    for (size_t i = 0; i < count; i++)
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%c%d", i ? " " : "",
                               "LDFB"[events[i].kind], events[i].shard);
    return text;
}

CASE(one_slot_is_the_order_of_OffloadModel)
{
    struct dp_offload_plan plan = {.shards = 3, .slots = 1, .drop_at_once = true};

    assert_string_equal(text_of(plan), "L0 F0 D0 L1 F1 D1 L2 F2 D2 L2 B2 D2 L1 B1 D1 L0 B0 D0");
    plan.forward_only = true;
    assert_string_equal(text_of(plan), "L0 F0 D0 L1 F1 D1 L2 F2 D2");
}

CASE(the_last_shards_are_not_loaded_twice)
{
    struct dp_offload_plan plan = {.shards = 4, .slots = 2, .distance = 1};

    assert_string_equal(text_of(plan), "L0 L1 F0 D0 L2 F1 D1 L3 F2 F3 B3 D3 L1 B2 D2 L0 B1 B0");
    plan.slots = 4;
    assert_string_equal(text_of(plan), "L0 L1 F0 L2 F1 L3 F2 F3 B3 B2 B1 B0");
}

struct model {
    int32_t in_slot[16]; /* -1: none */
    int32_t visits, loads;
};

/* What is used is there, what is loaded goes to an empty slot, and visits come in their order. */
static void follow(struct model *m, const struct dp_offload_plan *plan, struct dp_offload_event e)
{
    bool backward = m->visits >= plan->shards;

    assert_in_range(e.slot, 0, plan->slots - 1);
    if (e.kind == DP_OFFLOAD_LOAD) {
        for (int32_t s = 0; s < plan->slots; s++)
            assert_int_not_equal(m->in_slot[s], e.shard);
        assert_int_equal(m->in_slot[e.slot], -1);
        m->in_slot[e.slot] = e.shard;
        m->loads++;
        return;
    }
    assert_int_equal(m->in_slot[e.slot], e.shard);
    if (e.kind == DP_OFFLOAD_DROP) {
        m->in_slot[e.slot] = -1;
        return;
    }
    assert_int_equal(e.kind, backward ? DP_OFFLOAD_BACKWARD : DP_OFFLOAD_FORWARD);
    assert_int_equal(e.shard, backward ? 2 * plan->shards - 1 - m->visits : m->visits);
    m->visits++;
}

static void check_sound(struct dp_offload_plan plan)
{
    struct dp_offload_event events[MOST];
    struct model m = {.visits = 0};
    size_t count;

    memset(m.in_slot, -1, sizeof(m.in_slot));
    assert_int_equal(dp_offload_plan(&plan, events, MOST, &count), 0);
    assert_true(count <= 6 * (size_t)plan.shards);
    for (size_t i = 0; i < count; i++)
        follow(&m, &plan, events[i]);
    assert_int_equal(m.visits, plan.forward_only ? plan.shards : 2 * plan.shards);
    for (int32_t s = 0; s < plan.slots && plan.drop_at_once; s++)
        assert_int_equal(m.in_slot[s], -1);
    int32_t kept = plan.slots < plan.shards ? plan.slots : plan.shards;
    if (!plan.forward_only && !plan.drop_at_once)
        assert_int_equal(m.loads, 2 * plan.shards - kept);
}

CASE(every_plan_is_sound_and_loads_as_little_as_can_be)
{
    for (int32_t shards = 1; shards <= 20; shards++)
        for (int32_t slots = 1; slots <= 8; slots++)
            for (int32_t distance = 0; distance < slots; distance++)
                for (int how = 0; how < 4; how++)
                    check_sound((struct dp_offload_plan){.shards = shards, .slots = slots,
                                                         .distance = distance,
                                                         .forward_only = how % 2,
                                                         .drop_at_once = how / 2});
}

CASE(a_plan_that_cannot_be_is_refused)
{
    struct dp_offload_event event;
    size_t count = 7;

    assert_int_equal(dp_offload_plan(&(struct dp_offload_plan){.slots = 1}, &event, 1, &count),
                     DP_EINVAL);
    assert_int_equal(dp_offload_plan(&(struct dp_offload_plan){.shards = 1}, &event, 1, &count),
                     DP_EINVAL);
    assert_int_equal(
        dp_offload_plan(&(struct dp_offload_plan){.shards = 1, .slots = 2, .distance = 2}, &event,
                        1, &count),
        DP_EINVAL);
    assert_non_null(strstr(dp_last_error(), "2 shards loaded ahead, expected 0 to 1 with 2 slots"));
    assert_int_equal(count, 7);
    /* Too little memory: as many as fit, and the number that would be needed. */
    assert_int_equal(
        dp_offload_plan(&(struct dp_offload_plan){.shards = 2, .slots = 1}, &event, 1, &count), 0);
    assert_int_equal(event.kind, DP_OFFLOAD_LOAD);
    assert_true(count > 1);
}
