/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/net/handle.h"

#include "base/fail.h"

#include <stddef.h>
#include <string.h>

enum { VERSION = 5 };
static const uint16_t VERBS = 1u << 15; /* among the wires */
static const uint32_t MAGIC = 0x4e507044; /* "DpPN" in memory */

struct handle {
    uint32_t magic;
    uint16_t version;
    uint16_t wires; /* 1 << DPN_SHM | ...; their addresses follow each other in bytes */
    uint32_t check; /* of all that follows and of wires */
    int32_t worker; /* see net/placement.h */
    uint8_t bytes[NCCL_NET_HANDLE_MAXSIZE - 16];
};
_Static_assert(sizeof(struct handle) == NCCL_NET_HANDLE_MAXSIZE, "a handle fits");

const struct dp_wire_ops *const dpn_wires[DPN_WIRES] = {&dp_wire_shm, &dp_wire_tcp};

/* FNV-1a: against mistakes; against malice there is the cookie. */
static uint32_t checksum(const struct handle *h)
{
    const size_t from = offsetof(struct handle, worker);
    uint32_t sum = 2166136261u ^ h->wires;

    for (size_t i = from; i < sizeof(*h); i++)
        sum = (sum ^ ((const uint8_t *)h)[i]) * 16777619u;
    return sum;
}

int dpn_handle_write(const struct dpn_addresses *addresses, void *handle)
{
    struct handle h = {.magic = MAGIC, .version = VERSION, .worker = addresses->worker};
    size_t at = 0;

    for (int w = 0; w < DPN_WIRES; w++) {
        const size_t len = dpn_wires[w]->address_bytes;
        if (!addresses->present[w])
            continue;
        if (at + len > sizeof(h.bytes))
            return dp_fail(DP_EINVAL, "the addresses of a listener do not fit into a handle");
        memcpy(h.bytes + at, &addresses->on[w], len);
        h.wires |= (uint16_t)(1u << w);
        at += len;
    }
    h.wires |= addresses->offers_verbs ? VERBS : 0;
    h.check = checksum(&h);
    memcpy(handle, &h, sizeof(h));
    return 0;
}

static int check(const struct handle *h)
{
    if (h->magic != MAGIC)
        return dp_fail(DP_EMISMATCH,
                       "the peer's handle begins with 0x%08x, expected 0x%08x: it is not one of "
                       "dualpipe; does every rank use the same NCCL_NET_PLUGIN?",
                       h->magic, MAGIC);
    if (h->version != VERSION)
        return dp_fail(DP_EMISMATCH,
                       "the peer's handle is of version %u, expected %u: it runs another version "
                       "of dualpipe",
                       h->version, VERSION);
    if (h->check != checksum(h) || !(h->wires & ~VERBS) ||
        (h->wires & ~VERBS) >> DPN_WIRES)
        return dp_fail(DP_EMISMATCH, "the peer's handle was damaged on its way (checksum 0x%08x, "
                       "expected 0x%08x, wires 0x%x)", h->check, checksum(h), h->wires);
    return 0;
}

int dpn_handle_read(const void *handle, struct dpn_addresses *out)
{
    struct handle h;
    size_t at = 0;

    memcpy(&h, handle, sizeof(h));
    int err = check(&h);
    if (err)
        return err;
    memset(out, 0, sizeof(*out));
    out->offers_verbs = h.wires & VERBS;
    out->worker = h.worker;
    for (int w = 0; w < DPN_WIRES; w++) {
        if (!(h.wires & 1u << w))
            continue;
        out->present[w] = true;
        memcpy(&out->on[w], h.bytes + at, dpn_wires[w]->address_bytes);
        at += dpn_wires[w]->address_bytes;
    }
    return 0;
}
