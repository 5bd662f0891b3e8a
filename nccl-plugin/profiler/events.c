/* SPDX-License-Identifier: Apache-2.0 */

#include "nccl-plugin/nccl_log.h"
#include "nccl-plugin/profiler/profiler.h"

#include <stdio.h>
#include <string.h>

/* Types of events. */
enum { GROUP = 1, COLL = 2, P2P = 4, PROXY_OP = 8, PROXY_STEP = 16, NET_PLUGIN = 128, COLL_API = 512 };
enum { NET_PLUGIN_FROM = 3 }; /* the first version that has it */

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
enum { PARENT = 8 };
enum { PART_PID = 24, PART_CHANNEL = 28, PART_PEER = 32, PART_IS_SEND = 44 };
enum { STEP_NUMBER = 24 };
enum { NET_ID = 24, NET_DATA = 32, NET_IB = 0x10001, NET_IB_DEVICE = 8 };
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
    while (i < DPN_FUNCTIONS && (!name || strcmp(name, dpn_function_name((enum dpn_function)i))))
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
static void *count_p2p(const struct layout *l, void *context, const void *descriptor)
{
    const enum dpn_function function = read_function(l, descriptor, l->p2p.function);
    const int peer = read_int(descriptor, l->p2p.peer);
    const uint64_t bytes =
        read_u64(descriptor, l->p2p.count) * read_size(l, descriptor, l->p2p.datatype);

    if (function == DPN_RECV)
        return dpn_profiler_received(context, peer, bytes);
    if (function != DPN_SEND)
        return NULL;
    identify(l, context, descriptor);
    return dpn_profiler_sent(context, peer, bytes);
}

static void *count_coll(int version, void *context, const void *descriptor)
{
    const struct layout *l = &layouts[version];
    const enum dpn_function function = read_function(l, descriptor, l->coll.function);

    if (function == DPN_FUNCTIONS || (function == DPN_BROADCAST && version >= BROADCAST_FROM_API))
        return NULL;
    identify(l, context, descriptor);
    return dpn_profiler_collective(context, function,
                                   read_u64(descriptor, l->coll.count) *
                                       read_size(l, descriptor, l->coll.datatype));
}

static void *count_call(const struct layout *l, void *context, const void *descriptor)
{
    if (read_function(l, descriptor, API_FUNCTION) != DPN_BROADCAST)
        return NULL;
    return dpn_profiler_collective(context, DPN_BROADCAST,
                                   read_u64(descriptor, API_COUNT) *
                                       read_size(l, descriptor, API_DATATYPE));
}

/* ---- of the network -------------------------------------------------------------------------- */

/* Another process's messages may go through this one (PXN): context and parent are that process's. */
static void *start_part(void *context, const void *descriptor)
{
    struct dpn_network_comm comm = {DPN_PROFILE_COMMS, 0};
    const bool is_own = read_int(descriptor, PART_PID) == dpn_profiler_pid();

    if (is_own && !dpn_profiler_comm(context, &comm))
        return NULL;
    return dpn_network_part(
        &comm, &(struct dpn_network_part){
                   .operation =
                       is_own ? (void *)(uintptr_t)read_u64(descriptor, PARENT) : NULL,
                   .peer = read_int(descriptor, PART_PEER),
                   .channel = read_byte(descriptor, PART_CHANNEL),
                   .is_send = read_int(descriptor, PART_IS_SEND),
               });
}

/* Of this project's net plugin the name of the device, of NCCL's own for InfiniBand the number. */
static void start_net(const void *descriptor)
{
    void *step = (void *)(uintptr_t)read_u64(descriptor, PARENT);
    const void *data = read_text(descriptor, NET_DATA);
    char name[32];

    if (!data)
        return;
    switch (read_u64(descriptor, NET_ID)) {
    case DPN_PROFILE_NET_ID:
        dpn_network_rail(step, data);
        break;
    case NET_IB:
        snprintf(name, sizeof(name), "InfiniBand device %d", read_int(data, NET_IB_DEVICE));
        dpn_network_rail(step, name);
        break;
    default:
        break;
    }
}

void dpn_profiler_state(void *handle, int state, const void *arguments)
{
    dpn_network_state(handle, state, arguments);
}

/* The events that version asks NCCL for: a mask of its types. */
static int mask_of(int version)
{
    const int network = PROXY_OP | PROXY_STEP | (version >= NET_PLUGIN_FROM ? NET_PLUGIN : 0);

    return COLL | P2P | (version >= BROADCAST_FROM_API ? COLL_API : 0) |
           (dpn_profiler_has_network() ? network : 0);
}

/* Up to 2.27 a group without a handle has no events: it gets one, which means nothing. */
void dpn_profiler_event(int version, void *context, void **handle, const void *descriptor)
{
    static char group;
    const struct layout *l = &layouts[version];

    *handle = NULL;
    switch (read_type(l, descriptor)) {
    case GROUP:
        *handle = &group;
        break;
    case COLL:
        *handle = count_coll(version, context, descriptor);
        break;
    case P2P:
        *handle = count_p2p(l, context, descriptor);
        break;
    case PROXY_OP:
        *handle = start_part(context, descriptor);
        break;
    case PROXY_STEP:
        *handle = dpn_network_step((void *)(uintptr_t)read_u64(descriptor, PARENT),
                                   read_int(descriptor, STEP_NUMBER));
        break;
    case NET_PLUGIN:
        start_net(descriptor);
        break;
    case COLL_API:
        if (version >= BROADCAST_FROM_API)
            *handle = count_call(l, context, descriptor);
        break;
    default:
        break;
    }
}

/* ---- what NCCL looks for --------------------------------------------------------------------- */

/* ncclProfiler_v1 to _v7. init always succeeds and stores a context, as no release of NCCL handles an
 * error there; without memory the context is stale, and events are ignored. */

#define EXPORT __attribute__((visibility("default")))

static void *const no_comm = (void *)1; /* the use of a slot is odd, so this is of none */

static ncclResult_t open_comm(void **context, int version, int *mask,
                              const struct dpn_profiled *comm)
{
    if (dpn_profiler_open(comm, context))
        *context = no_comm;
    *mask = mask_of(version);
    return ncclSuccess;
}

static ncclResult_t stop_event(void *handle)
{
    dpn_network_stop(handle);
    return ncclSuccess;
}

static ncclResult_t record_state(void *handle, int state, void *args)
{
    dpn_profiler_state(handle, state, args);
    return ncclSuccess;
}

static ncclResult_t finalize(void *context)
{
    dpn_profiler_close(context);
    return ncclSuccess;
}

/* The members of the table are pointers to functions of 48 bytes in all versions; init differs. */
#define TABLE(version, init_arguments, ...)                                                        \
    static ncclResult_t init_v##version init_arguments                                             \
    {                                                                                              \
        return open_comm(context, version, mask, &(struct dpn_profiled){__VA_ARGS__});             \
    }                                                                                              \
    static ncclResult_t start_v##version(void *context, void **handle, void *descriptor)           \
    {                                                                                              \
        dpn_profiler_event(version, context, handle, descriptor);                                  \
        return ncclSuccess;                                                                        \
    }                                                                                              \
    struct ncclProfiler_v##version {                                                               \
        const char *name;                                                                          \
        ncclResult_t(*init) init_arguments;                                                        \
        ncclResult_t (*startEvent)(void *, void **, void *);                                       \
        ncclResult_t (*stopEvent)(void *);                                                         \
        ncclResult_t (*recordEventState)(void *, int, void *);                                     \
        ncclResult_t (*finalize)(void *);                                                          \
    };                                                                                             \
    extern const struct ncclProfiler_v##version ncclProfiler_v##version;                           \
    EXPORT const struct ncclProfiler_v##version ncclProfiler_v##version = {                        \
        "dualpipe", init_v##version, start_v##version, stop_event, record_state, finalize};        \
    _Static_assert(sizeof(struct ncclProfiler_v##version) == 48, "as in NCCL")

TABLE(1, (void **context, int *mask), .ranks = 0);
TABLE(2, (void **context, int *mask), .ranks = 0);
TABLE(3, (void **context, int *mask), .ranks = 0);

/* Their last arguments, and what they say of the communicator `id`. */
#define RANKS_AND_LOG int nodes, int ranks, int rank, ncclDebugLogger_t log
#define SAID(id)                                                                                   \
    .hash = (dpn_log_to(log), id), .name = comm_name, .rank = rank, .ranks = ranks, .nodes = nodes
#define WITH_ID (void **context, uint64_t comm_id, int *mask, const char *comm_name, RANKS_AND_LOG)

TABLE(4, (void **context, int *mask, const char *comm_name, uint64_t comm_hash, RANKS_AND_LOG),
      SAID(comm_hash));
TABLE(5, WITH_ID, SAID(comm_id));
TABLE(6, WITH_ID, SAID(comm_id));
TABLE(7, WITH_ID, SAID(comm_id));
