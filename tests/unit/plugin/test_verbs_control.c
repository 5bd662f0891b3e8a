/* SPDX-License-Identifier: Apache-2.0
 *
 * test_verbs_control.c - what one side of an RDMA connection reads from the other: control
 * messages, which may have any contents; CTS entries and inline messages, which may be half
 * written; and numbers that are packed into few bits.
 */
#include "cmocka_all.h"

#include "nccl-plugin/verbs/comm.h"

/* ---- control messages ------------------------------------------------------------------------ */

static struct dpn_qp_info some_qp(void)
{
    return (struct dpn_qp_info){.number = 17, .psn = 1, .mtu = IBV_MTU_4096};
}

/* A valid message of each kind. */
static union dpn_control_body good(enum dpn_control_kind kind)
{
    union dpn_control_body t;

    memset(&t, 0, sizeof(t));
    switch (kind) {
    case DPN_HELLO:
        t.hello = (struct dpn_hello){.version = DPN_CONTROL_VERSION, .port_count = 1, .qps = 1,
                                     .max_message = 1 << 23,
                                     .ports = {{.name = "mlx5_0", .speed_mbps = 100000}}};
        break;
    case DPN_PLAN:
        t.plan = (struct dpn_plan){.agreed = 1, .rails = 1, .qps_per_rail = 1,
                                   .max_message = 1 << 23,
                                   .ports = {{.name = "mlx5_0", .speed_mbps = 100000}}};
        break;
    case DPN_OPEN:
        t.open = (struct dpn_open_qp){.index = 1, .epoch = 1, .qp = some_qp()};
        break;
    case DPN_OPENED:
        t.opened = (struct dpn_opened_qp){.index = 1, .is_open = 1, .epoch = 1, .qp = some_qp()};
        break;
    case DPN_READY:
    case DPN_CLOSED_SENDER:
    case DPN_CLOSED_RECEIVER:
    case DPN_REFUSED:
    case DPN_RESUME:
    case DPN_ACK:
    case DPN_STALLED:
    case DPN_FAILED:
        break;
    }
    return t;
}

static bool is_for_sender(enum dpn_control_kind kind)
{
    return kind == DPN_PLAN || kind == DPN_OPENED || kind == DPN_CLOSED_RECEIVER ||
           kind == DPN_STALLED;
}

CASE(control_messages_are_accepted_by_their_receiver)
{
    for (unsigned kind = DPN_HELLO; kind <= DPN_REFUSED; kind++) {
        const union dpn_control_body t = good(kind);
        const size_t len = dpn_control_len(kind);
        assert_int_equal(dpn_control_check(kind, is_for_sender(kind), &t, len), 0);
        assert_int_equal(dpn_control_check(kind, !is_for_sender(kind), &t, len), DP_EMISMATCH);
    }
}

CASE(control_messages_of_another_length_or_kind_are_refused)
{
    const union dpn_control_body t = good(DPN_HELLO);

    for (size_t len = 0; len < sizeof(struct dpn_hello); len++)
        assert_int_equal(dpn_control_check(DPN_HELLO, false, &t, len), DP_EMISMATCH);
    assert_non_null(strstr(dp_last_error(), " bytes, expected "));
    assert_int_equal(dpn_control_check(0, false, &t, 0), DP_EMISMATCH);
    assert_non_null(strstr(dp_last_error(), "of kind 0, which a receiver never receives"));
    assert_int_equal(dpn_control_check(DPN_REFUSED + 1, false, &t, 0), DP_EMISMATCH);
    assert_int_equal(dpn_control_check(UINT64_MAX, true, &t, 0), DP_EMISMATCH);
}

CASE(another_version_is_named)
{
    union dpn_control_body t = good(DPN_HELLO);

    t.hello.version = DPN_CONTROL_VERSION + 1;
    assert_int_equal(dpn_control_check(DPN_HELLO, false, &t, sizeof(t.hello)), DP_EMISMATCH);
    assert_non_null(strstr(dp_last_error(), "version 12"));
}

CASE(values_out_of_bounds_are_refused)
{
    union dpn_control_body t;

#define REFUSED(kind, member, value)                                                               \
    t = good(kind);                                                                                \
    t.member = (value);                                                                            \
    assert_int_equal(dpn_control_check(kind, is_for_sender(kind), &t, dpn_control_len(kind)),            \
                     DP_EMISMATCH);                                                                \
    assert_non_null(strstr(dp_last_error(), "with a value out of bounds"))
    REFUSED(DPN_HELLO, hello.port_count, 0);
    REFUSED(DPN_HELLO, hello.port_count, DPN_MAX_RAILS + 1);
    REFUSED(DPN_HELLO, hello.other_count, DPN_MAX_RAILS);
    REFUSED(DPN_HELLO, hello.subnet_bits, 33);
    REFUSED(DPN_HELLO, hello.eager_bytes, DPN_MAX_EAGER + 1);
    REFUSED(DPN_PLAN, plan.eager_bytes, DPN_MAX_EAGER + 1);
    REFUSED(DPN_STALLED, stalled.has.arrived[1].count, DPN_MAX_RECEIVES + 1);
    REFUSED(DPN_HELLO, hello.qps, DPN_MAX_QPS + 1);
    REFUSED(DPN_HELLO, hello.ports[0].speed_mbps, 0);
    REFUSED(DPN_PLAN, plan.rails, DPN_MAX_RAILS + 1);
    REFUSED(DPN_PLAN, plan.qps_per_rail, DPN_MAX_QPS + 1);
    REFUSED(DPN_PLAN, plan.rail[0].sender, DPN_MAX_RAILS);
    REFUSED(DPN_OPEN, open.index, DPN_MAX_QPS);
    REFUSED(DPN_OPEN, open.gids.count, DPN_MAX_GIDS + 1);
    REFUSED(DPN_OPEN, open.gids.count, -1);
    REFUSED(DPN_OPEN, open.qp.mtu, 0);
    REFUSED(DPN_OPENED, opened.sender.type, 3);
    REFUSED(DPN_READY, ready.qps, DPN_MAX_QPS + 1);
    REFUSED(DPN_CLOSED_SENDER, closed_sender.index, DPN_MAX_QPS);
    REFUSED(DPN_CLOSED_RECEIVER, closed_receiver.arrived[31].count, DPN_MAX_RECEIVES + 1);
    REFUSED(DPN_REFUSED, refused.slot, NCCL_NET_MAX_REQUESTS);
    t = good(DPN_PLAN);
    memset(t.plan.reason, 'x', sizeof(t.plan.reason));
    assert_int_equal(dpn_control_check(DPN_PLAN, true, &t, sizeof(t.plan)), DP_EMISMATCH);
}

/* Every message that is accepted has all indices within bounds: a sanitizer finds others. */
CASE(garbage_does_no_harm)
{
    uint32_t seed = 1;
    int let_through = 0;

    for (int turn = 0; turn < 20000; turn++) {
        const unsigned kind = DPN_HELLO + (unsigned)turn % DPN_REFUSED;
        union dpn_control_body t = good(kind);
        for (int i = 0; i < 1 + turn % 5; i++) {
            seed = seed * 1664525u + 1013904223u;
            ((uint8_t *)&t)[(seed >> 8) % dpn_control_len(kind)] = (uint8_t)(seed >> 24);
        }
        let_through += !dpn_control_check(kind, is_for_sender(kind), &t, dpn_control_len(kind));
    }
    assert_in_range(let_through, 1, 19999);
}

/* ---- CTS entries ----------------------------------------------------------------------------- */

static struct dpn_cts_entry some_entry(uint32_t number)
{
    struct dpn_cts_entry line = {.address = 0x7f0012345678, .bytes = 4096, .tag = 7, .keys = {1, 2, 3},
                            .slot = 31, .count = 1, .generation = 5, .number = number};

    dpn_cts_entry_seal(&line);
    return line;
}

CASE(an_entry_is_read_in_its_turn)
{
    const struct dpn_cts_entry line = some_entry(0), empty = {.number = 0};
    struct dpn_cts_entry out;

    assert_true(dpn_cts_entry_read(&line, 0, &out));
    assert_memory_equal(&line, &out, sizeof(out));
    assert_false(dpn_cts_entry_read(&line, 1, &out));
    assert_false(dpn_cts_entry_read(&empty, 0, &out));
}

/* A device may write an entry in pieces and in any order. */
CASE(an_entry_that_is_half_written_is_not_read)
{
    const struct dpn_cts_entry old = some_entry(3), new = some_entry(3 + DPN_CTS_ENTRIES);
    struct dpn_cts_entry out;

    for (size_t from = 0; from < sizeof(new); from++)
        for (size_t to = from + 1; to <= sizeof(new); to++) {
            struct dpn_cts_entry line = old;
            memcpy((char *)&line + from, (const char *)&new + from, to - from);
            if (dpn_cts_entry_read(&line, new.number, &out))
                assert_memory_equal(&out, &new, sizeof(out));
        }
}

/* ---- inline messages ------------------------------------------------------------------------- */

/* As in the receiver's memory. */
static struct dpn_inline_message some_inline(uint32_t number, uint32_t size, const char *data)
{
    const struct dpn_eager_head head = {.number = number, .size = size, .tag = 7, .cts = 40};
    struct dpn_inline_message message;

    memset(&message, 0xee, sizeof(message));
    const uint32_t len = dpn_inline_make(&message, &head, data);
    assert_true(len >= offsetof(struct dpn_inline_message, data) + size && len <= sizeof(message));
    memset((char *)&message + len, 0xdd, sizeof(message) - len);
    return message;
}

CASE(an_inline_message_arrives_in_its_turn)
{
    static const char data[DPN_INLINE_MESSAGE_BYTES] = "the bytes of a message";
    const struct dpn_inline_message empty = {.check = 0};

    assert_false(dpn_inline_has_arrived(&empty, 0));
    for (uint32_t size = 0; size <= DPN_INLINE_MESSAGE_BYTES; size++) {
        const struct dpn_inline_message message = some_inline(5, size, data);
        assert_true(dpn_inline_has_arrived(&message, 5));
        assert_false(dpn_inline_has_arrived(&message, 6));
        assert_false(dpn_inline_has_arrived(&message, 5 + DPN_EAGER_SLOTS));
        assert_memory_equal(message.data, data, size);
    }
}

/* A device may write it in pieces and in any order, over one of any length. */
CASE(an_inline_message_that_is_half_written_has_not_arrived)
{
    static const char before[DPN_INLINE_MESSAGE_BYTES] = "the one before";
    static const char after[DPN_INLINE_MESSAGE_BYTES] = "the next";
    static const uint32_t sizes[] = {0, 1, 8, 13, DPN_INLINE_MESSAGE_BYTES};
    enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

    for (unsigned i = 0; i < SIZES * SIZES; i++) {
        const struct dpn_inline_message old = some_inline(3, sizes[i / SIZES], before);
        const struct dpn_inline_message new = some_inline(3 + DPN_EAGER_SLOTS, sizes[i % SIZES], after);
        for (size_t from = 0; from < sizeof(new); from++)
            for (size_t to = from + 1; to <= sizeof(new); to++) {
                struct dpn_inline_message message = old;
                memcpy((char *)&message + from, (const char *)&new + from, to - from);
                if (dpn_inline_has_arrived(&message, new.head.number))
                    assert_memory_equal(&message, &new,
                                        offsetof(struct dpn_inline_message, data) + new.head.size);
            }
    }
}

/* Only a peer that breaks the protocol sends such a size. */
CASE(an_inline_message_that_is_too_long_is_refused)
{
    static const char data[DPN_INLINE_MESSAGE_BYTES];
    struct dpn_inline_message message = some_inline(5, DPN_INLINE_MESSAGE_BYTES, data);

    message.head.size = DPN_INLINE_MESSAGE_BYTES + 1;
    assert_false(dpn_inline_has_arrived(&message, 5));
    message.head.size = UINT32_MAX;
    assert_false(dpn_inline_has_arrived(&message, 5));
}

/* ---- numbers --------------------------------------------------------------------------------- */

CASE(immediates_and_work_round_trip)
{
    const struct dpn_imm mark = {31, 7, 15, 16, DPN_GENERATIONS - 1, true};
    const struct dpn_work work = {DPN_WORK_UNSIGNALED, 15, 0xffff, 31, 15, 3};

    const struct dpn_imm m = dpn_imm_unpack(dpn_imm_pack(mark));
    assert_true(m.slot == 31 && m.sub == 7 && m.stripe == 15 && m.count == 16 && m.has_record &&
                m.generation == DPN_GENERATIONS - 1);
    const struct dpn_work w = dpn_work_unpack(dpn_work_pack(work));
    assert_true(w.kind == DPN_WORK_UNSIGNALED && w.qp == 15 && w.epoch == 0xffff && w.slot == 31 &&
                w.stripe == 15 && w.requests == 3);
}
