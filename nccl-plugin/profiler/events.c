/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/profiler/events.h"

#include "nccl-plugin/profiler/profiler.h"

#include <string.h>

/* Types of events. */
enum { GROUP = 1, COLL = 2, P2P = 4, COLL_API = 512 };

/* Byte offsets of members; 0: the version does not have it, as the type is at 0. */
struct layout {
    int type_bytes;
    int named_in_events; /* hash and name are in every coll and p2p, not in init */
    int names_are_numbers;
    struct {
        int function, datatype, count;
    } coll;
    struct {
        int function, datatype, count, peer;
    } p2p;
};
enum { RANK = 16, NAME = 24, HASH = 32 };
enum { API_FUNCTION = 24, API_COUNT = 32, API_DATATYPE = 40 };

static const struct layout layouts[DPN_PROFILER_VERSIONS + 1] = {
    [1] = {1, 1, 1, {48, 84, 72}, {40, 56, 64, 72}},
    [2] = {1, 1, 0, {48, 88, 72}, {40, 56, 64, 72}},
    [3] = {1, 1, 0, {48, 88, 72}, {40, 56, 64, 72}},
    [4] = {1, 0, 0, {32, 72, 56}, {24, 40, 48, 56}},
    [5] = {8, 0, 0, {32, 72, 56}, {24, 40, 48, 56}},
    [6] = {8, 0, 0, {32, 72, 56}, {24, 40, 48, 56}},
    [7] = {8, 0, 0, {32, 72, 56}, {24, 40, 48, 56}},
};
/* NCCL from 2.29 on, which speaks version 6, reports broadcasts of a user's call only. */
enum { BROADCAST_FROM_API = 6 };

/* ---- members --------------------------------------------------------------------------------- */

static uint64_t read_u64(const void *descriptor, int offset)
{
    uint64_t value;

    memcpy(&value, (const char *)descriptor + offset, sizeof(value));
    return value;
}

static int read_int(const void *descriptor, int offset)
{
    int value;

    memcpy(&value, (const char *)descriptor + offset, sizeof(value));
    return value;
}

static unsigned read_byte(const void *descriptor, int offset)
{
    return ((const unsigned char *)descriptor)[offset];
}

static const char *read_text(const void *descriptor, int offset)
{
    return (const char *)(uintptr_t)read_u64(descriptor, offset);
}

static uint64_t read_type(const struct layout *l, const void *descriptor)
{
    return l->type_bytes == 1 ? read_byte(descriptor, 0) : read_u64(descriptor, 0);
}

/* DPN_FUNCTIONS: another one. */
static enum dpn_function read_function(const struct layout *l, const void *descriptor, int offset)
{
    if (l->names_are_numbers) {
        const unsigned number = read_byte(descriptor, offset);
        return number <= DPN_RECV ? (enum dpn_function)number : DPN_FUNCTIONS;
    }
    const char *name = read_text(descriptor, offset);
    int i = 0;
    while (i < DPN_FUNCTIONS && (!name || strcmp(name, dpn_function_names[i])))
        i++;
    return (enum dpn_function)i;
}

/* Bytes of an element. NCCL calls ncclUint8 "Unknown". */
static size_t read_size(const struct layout *l, const void *descriptor, int offset)
{
    static const struct {
        const char *name;
        size_t size;
    } types[] = {
        {"ncclInt32", 4},   {"ncclUint32", 4},  {"ncclInt64", 8},   {"ncclUint64", 8},
        {"ncclFloat16", 2}, {"ncclFloat32", 4}, {"ncclFloat64", 8}, {"ncclBfloat16", 2},
    };
    static const size_t by_number[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1}; /* ncclDataType_t */

    if (l->names_are_numbers) {
        const unsigned number = read_byte(descriptor, offset);
        return number < sizeof(by_number) / sizeof(by_number[0]) ? by_number[number] : 1;
    }
    const char *name = read_text(descriptor, offset);
    for (size_t i = 0; name && i < sizeof(types) / sizeof(types[0]); i++)
        if (!strcmp(name, types[i].name))
            return types[i].size;
    return 1;
}

/* ---- events ---------------------------------------------------------------------------------- */

static void identify(const struct layout *l, void *context, const void *descriptor)
{
    if (l->named_in_events)
        dpn_profiler_identify(context, read_u64(descriptor, HASH), read_text(descriptor, NAME),
                              read_int(descriptor, RANK));
}

/* A receive is the send of another rank. */
static void count_p2p(const struct layout *l, void *context, const void *descriptor)
{
    if (read_function(l, descriptor, l->p2p.function) != DPN_SEND)
        return;
    identify(l, context, descriptor);
    dpn_profiler_sent(context, read_int(descriptor, l->p2p.peer),
                      read_u64(descriptor, l->p2p.count) *
                          read_size(l, descriptor, l->p2p.datatype));
}

static void count_coll(int version, void *context, const void *descriptor)
{
    const struct layout *l = &layouts[version];
    const enum dpn_function function = read_function(l, descriptor, l->coll.function);

    if (function == DPN_FUNCTIONS || (function == DPN_BROADCAST && version >= BROADCAST_FROM_API))
        return;
    identify(l, context, descriptor);
    dpn_profiler_collective(context, function,
                            read_u64(descriptor, l->coll.count) *
                                read_size(l, descriptor, l->coll.datatype));
}

static void count_call(const struct layout *l, void *context, const void *descriptor)
{
    if (read_function(l, descriptor, API_FUNCTION) == DPN_BROADCAST)
        dpn_profiler_collective(context, DPN_BROADCAST,
                                read_u64(descriptor, API_COUNT) *
                                    read_size(l, descriptor, API_DATATYPE));
}

int dpn_profiler_mask(int version)
{
    return COLL | P2P | (version >= BROADCAST_FROM_API ? COLL_API : 0);
}

/* Up to 2.27 a group without a handle has no events: it gets one, which means nothing. */
void dpn_profiler_event(int version, void *context, void **handle, const void *descriptor)
{
    static char group;
    const struct layout *l = &layouts[version];
    const uint64_t type = read_type(l, descriptor);

    *handle = type == GROUP ? &group : NULL;
    if (type == P2P)
        count_p2p(l, context, descriptor);
    else if (type == COLL)
        count_coll(version, context, descriptor);
    else if (type == COLL_API && version >= BROADCAST_FROM_API)
        count_call(l, context, descriptor);
}
