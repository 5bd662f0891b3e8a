/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_all.h"

#include "comm_cases.h"

void on_all_kinds(int size, int64_t deadline_ns, rank_fn fn, void *arg)
{
    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++) {
        int killed, failed = kind->run(kind, size, deadline_ns, fn, arg, &killed);
        if (failed)
            fail_msg("%s: %d of %d ranks failed", kind->name, failed, size);
    }
}

/* Rank 0 is in no part, and the others are in reverse order. */
static int run_in_part(struct dp_comm *comm, void *arg)
{
    const struct comm_case *one = arg;
    const int rank = dp_comm_rank(comm);
    struct dp_comm *part;

    CHECK(!dp_comm_split(comm, rank ? 1 : -1, -rank, &part));
    int result = 0;
    if (part) {
        CHECK(dp_comm_size(part) == one->size && dp_comm_rank(part) == one->size - rank);
        result = one->fn(part, one->arg);
        dp_comm_close(part);
    }
    return result;
}

void on_parts_of_all_kinds(int64_t deadline_ns, const struct comm_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++)
        on_all_kinds(cases[i].size + 1, deadline_ns, run_in_part, (void *)(uintptr_t)&cases[i]);
}

int blocking_send(struct dp_comm *comm, int peer, int channel, uint64_t tag, const void *buf,
                  size_t len)
{
    struct dp_request req;
    int err = dp_comm_isend(comm, peer, channel, tag, buf, len, &req);

    return err ? err : dp_comm_wait(comm, &req, peer);
}

int blocking_receive(struct dp_comm *comm, int peer, int channel, uint64_t tag, void *buf,
                     size_t len)
{
    struct dp_request req;
    int err = dp_comm_irecv(comm, peer, channel, tag, buf, len, &req);

    return err ? err : dp_comm_wait(comm, &req, peer);
}
