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
