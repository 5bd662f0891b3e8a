/* SPDX-License-Identifier: Apache-2.0 */
#include "cmocka_all.h"

#include "comm_cases.h"

static const char *const what_lacks[] = {
    "its messages have no tags, and their lengths are not checked",
    "it has no receives from any rank",
    "its parts have neither messages nor collectives",
    "its group lasts from case to case",
};

static void skip_for(const struct comm_kind *kind, unsigned lacking)
{
    char why[200];
    int i = 0;

    while (!(lacking >> i & 1))
        i++;
    snprintf(why, sizeof(why), "%s: %s", kind->name, what_lacks[i]);
    skip_because(why);
}

void on_kinds_with(unsigned needs, int size, int64_t deadline_ns, rank_fn fn, void *arg)
{
    const struct comm_kind *last = NULL;
    int count = 0;

    for (const struct comm_kind *kind = comm_kinds; kind->name; kind++) {
        last = kind;
        if (kind->lacks & needs)
            continue;
        count++;
        int killed, failed = kind->run(kind, size, deadline_ns, fn, arg, &killed);
        if (failed)
            fail_msg("%s: %d of %d ranks failed", kind->name, failed, size);
    }
    if (!count)
        skip_for(last, last->lacks & needs);
}

void on_all_kinds(int size, int64_t deadline_ns, rank_fn fn, void *arg)
{
    on_kinds_with(0, size, deadline_ns, fn, arg);
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
        on_kinds_with(NEEDS_PARTS, cases[i].size + 1, deadline_ns, run_in_part, (void *)(uintptr_t)&cases[i]);
}

void *case_alloc(size_t len)
{
    void *out = comm_kinds->alloc ? comm_kinds->alloc(len + 1) : malloc(len + 1);

    return out ? memset(out, 0, len + 1) : NULL;
}

void case_free(void *ptr)
{
    if (comm_kinds->alloc)
        comm_kinds->free(ptr);
    else
        free(ptr);
}

static int send_from(struct dp_comm *comm, int peer, int channel, uint64_t tag, const void *buf,
                     size_t len)
{
    struct dp_request req;
    int err = dp_comm_isend(comm, peer, channel, tag, buf, len, &req);

    return err ? err : dp_comm_wait(comm, &req, peer);
}

static int receive_into(struct dp_comm *comm, int peer, int channel, uint64_t tag, void *buf,
                        size_t len)
{
    struct dp_request req;
    int err = dp_comm_irecv(comm, peer, channel, tag, buf, len, &req);

    return err ? err : dp_comm_wait(comm, &req, peer);
}

int blocking_send(struct dp_comm *comm, int peer, int channel, uint64_t tag, const void *buf,
                  size_t len)
{
    void *copy = comm_kinds->alloc ? case_alloc(len) : NULL;

    if (!copy)
        return send_from(comm, peer, channel, tag, buf, len);
    memcpy(copy, buf, len);
    const int err = send_from(comm, peer, channel, tag, copy, len);
    case_free(copy);
    return err;
}

int blocking_receive(struct dp_comm *comm, int peer, int channel, uint64_t tag, void *buf,
                     size_t len)
{
    void *copy = comm_kinds->alloc ? case_alloc(len) : NULL;

    if (!copy)
        return receive_into(comm, peer, channel, tag, buf, len);
    const int err = receive_into(comm, peer, channel, tag, copy, len);
    if (!err)
        memcpy(buf, copy, len);
    case_free(copy);
    return err;
}
