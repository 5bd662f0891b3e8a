/* SPDX-License-Identifier: Apache-2.0
 *
 * dp_pipeline_move_state: every tensor reaches the ranks that need it from one that has it; what cannot be
 * is said on every rank.
 */
#include "cmocka_all.h"

#include "unit/comm/comm_group.h"

#include <dualpipe/pipeline.h>

enum { RANKS = 4, TENSORS = 12, ELEMENTS = 1000 };
static const int64_t deadline_ns = INT64_C(20000000000);

/* Which tensors a rank has and wants, as bits. */
struct layout {
    unsigned has[RANKS], wants[RANKS];
    int error;        /* expected on every rank */
    const char *says; /* of it */
};

static const struct layout layouts[] = {
    /* Rank 2 of DualPipe is gone: mirrors hold two stages each, and two ranks take all. */
    {{0xE07, 0x1F8, 0, 0xE07}, {0xFFF, 0xFFF}, 0, NULL},
    {{0xFFF}, {0, 0xFFF, 0xF0F, 0x0F0}, 0, NULL},
    {{0x3, 0xC, 0x30, 0xFC0}, {0xFFF, 0xFFF, 0xFFF, 0xFFF}, 0, NULL},
    {{0}, {0}, 0, NULL},
    {{0x3, 0xC, 0x30, 0x7C0}, {0, 0, 0x800}, DP_ENOENT, "'tensor 11', which rank 2 needs"},
};

struct values {
    float data[TENSORS][ELEMENTS];
    char names[TENSORS][16];
    int64_t shape[1];
};

static int32_t list(struct values *v, unsigned which, float sign, struct dp_named_tensor *out)
{
    int32_t count = 0;

    v->shape[0] = ELEMENTS;
    for (int t = 0; t < TENSORS; t++) {
        if (!(which >> t & 1))
            continue;
        snprintf(v->names[t], sizeof(v->names[t]), "tensor %d", t);
        for (int i = 0; i < ELEMENTS; i++)
            v->data[t][i] = sign * (float)(t * ELEMENTS + i);
        out[count++] = (struct dp_named_tensor){
            v->names[t],
            {.data = v->data[t], .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLFloat, 32, 1},
             .shape = v->shape}};
    }
    return count;
}

static int move(struct dp_comm *comm, void *arg)
{
    static _Thread_local struct values has, wants;
    const struct layout *l = arg;
    const int rank = dp_comm_rank(comm);
    struct dp_named_tensor have[TENSORS], want[TENSORS];
    const int32_t has_count = list(&has, l->has[rank], 1, have);
    const int32_t wants_count = list(&wants, l->wants[rank], -1, want);

    CHECK(dp_pipeline_move_state(comm, have, has_count, want, wants_count) == l->error);
    if (l->error)
        CHECK_SAYS(l->says);
    for (int t = 0; t < TENSORS && !l->error; t++)
        for (int i = 0; i < ELEMENTS && l->wants[rank] >> t & 1; i++)
            CHECK(wants.data[t][i] == (float)(t * ELEMENTS + i));
    CHECK(!dp_comm_barrier(comm)); /* it can still be used */
    return 0;
}

CASE(every_rank_gets_what_it_needs_or_all_say_what_is_missing)
{
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++)
        for (size_t i = 0; i < sizeof(layouts) / sizeof(*layouts); i++) {
            int killed;
            const int failed = kind->run(kind, RANKS, deadline_ns, move,
                                         (void *)(uintptr_t)&layouts[i], &killed);
            if (failed)
                fail_msg("%s, layout %zu: %d ranks failed", kind->name, i, failed);
        }
}

/* ---- pieces ---------------------------------------------------------------------------------- */

struct piece {
    char name[32];
    int64_t shape[1];
    float data[ELEMENTS];
};

static struct dp_named_tensor name_piece(struct piece *p, int first, int end, bool is_whole)
{
    snprintf(p->name, sizeof(p->name), is_whole ? "w/mean" : "w[%d:%d]/mean", first, end);
    p->shape[0] = end - first;
    for (int i = first; i < end; i++)
        p->data[i - first] = (float)i;
    return (struct dp_named_tensor){
        p->name,
        {.data = p->data, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLFloat, 32, 1}, .shape = p->shape}};
}

static bool has_all(const struct piece *p, int first)
{
    for (int i = 0; i < p->shape[0]; i++)
        if (p->data[i] != (float)(first + i))
            return false;
    return true;
}

/* Each has its own quarter and that of the rank before; of those that have died none has any. */
static int move_pieces(struct dp_comm *comm, void *arg)
{
    static _Thread_local struct piece own, copy, whole, other;
    enum { QUARTER = ELEMENTS / RANKS };
    const unsigned dead = *(const unsigned *)arg;
    const int rank = dp_comm_rank(comm), before = (rank + RANKS - 1) % RANKS, first = 1 + 100 * rank;
    float step = 7, got = 0, value = 0;
    const bool lives = !(dead >> rank & 1);
    const bool lost = dead & (dead >> 1 | dead << (RANKS - 1));
    const DLTensor count = {.data = &step, .device = {kDLCPU, 0}, .dtype = {kDLFloat, 32, 1}};
    const DLTensor alone = {.data = &step, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLFloat, 32, 1},
                            .shape = (int64_t[]){1}};
    const struct dp_named_tensor has[] = {
        name_piece(&own, QUARTER * rank, QUARTER * (rank + 1), false),
        name_piece(&copy, QUARTER * before, QUARTER * (before + 1), false),
        {rank % 2 ? "w[0:250]/step" : "w[250:1000]/step", count},
        {"v[0:1]", alone}};
    struct dp_named_tensor wants[] = {name_piece(&whole, 0, ELEMENTS, true),
                                      name_piece(&other, first, first + 600, false), {"w/step", count},
                                      {"v", count}};

    wants[2].tensor.data = &got;
    wants[3].tensor.data = &value;
    memset(whole.data, 0, sizeof(whole.data));
    memset(other.data, 0, sizeof(other.data));
    const int err = dp_pipeline_move_state(comm, has, lives ? 4 : 0, wants, lives ? 4 : 0);
    CHECK(err == (lost ? DP_ENOENT : 0));
    if (lost)
        CHECK_SAYS("needs: no rank has it");
    CHECK(lost || !lives || (has_all(&whole, 0) && has_all(&other, first) && got == 7 && value == 7));
    return 0;
}

CASE(pieces_become_other_pieces)
{
    static const unsigned dead[] = {0, 0x2, 0x5, 0xA, 0x6, 0x9};
    int killed;

    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++)
        for (size_t i = 0; i < sizeof(dead) / sizeof(*dead); i++)
            assert_int_equal(kind->run(kind, RANKS, deadline_ns, move_pieces,
                                       (void *)(uintptr_t)&dead[i], &killed), 0);
}

/* One rank has another shape. */
static int mismatch(struct dp_comm *comm, void *arg)
{
    static _Thread_local struct values v;
    struct dp_named_tensor t[TENSORS];
    const int rank = dp_comm_rank(comm);

    list(&v, 1, 1, t);
    v.shape[0] = rank == 1 ? ELEMENTS / 2 : ELEMENTS;
    CHECK(dp_pipeline_move_state(comm, t, rank == 0, t, rank == 1) == DP_EMISMATCH);
    CHECK_SAYS("'tensor 0': another type or shape on rank 0");
    t[0].tensor.device.device_type = rank == 1 ? kDLCUDA : kDLCPU;
    CHECK(dp_pipeline_move_state(comm, t, rank == 0, t, rank == 1) == DP_EINVAL);
    CHECK_SAYS("'tensor 0' of rank 1: expected a compact one in the host's memory");
    CHECK(dp_pipeline_move_state(comm, NULL, 1, NULL, 0) == DP_EINVAL);
    return 0;
}

CASE(another_shape_is_an_error_on_every_rank)
{
    int killed;

    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++)
        assert_int_equal(kind->run(kind, RANKS, deadline_ns, mismatch, NULL, &killed), 0);
}

RUN_QUIET_CASES(NULL, NULL)
