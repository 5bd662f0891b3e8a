/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_device.h - what NCCL leaves in memory for its kernels, in our own words: the structures that
 * our stand-in of the kernels reads, with the layouts of the releases that it knows. Members are
 * named for what they mean, those that no one reads are `skipped`. nccl_device.c has the asserts.
 */
#ifndef DP_TESTS_SIMCUDA_NCCL_DEVICE_H
#define DP_TESTS_SIMCUDA_NCCL_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum nccl_function {
    NCCL_BROADCAST,
    NCCL_REDUCE,
    NCCL_ALL_GATHER,
    NCCL_REDUCE_SCATTER,
    NCCL_ALL_REDUCE,
    NCCL_SEND_RECV,
};
enum nccl_algorithm {
    NCCL_TREE,
    NCCL_RING,
    NCCL_COLLNET_DIRECT,
    NCCL_COLLNET_CHAIN,
    NCCL_NVLS,
    NCCL_NVLS_TREE,
    NCCL_PAT,
};
enum nccl_protocol { NCCL_LL, NCCL_LL128, NCCL_SIMPLE, NCCL_PROTOCOLS };
enum nccl_device_op {
    NCCL_SUM,
    NCCL_PROD,
    NCCL_MIN_MAX,
    NCCL_PRE_MUL_SUM,
    NCCL_SUM_POST_DIV,
    NCCL_DEVICE_OPS,
};

enum {
    NCCL_TYPES = 12,
    NCCL_CHANNELS = 64,
    NCCL_SLOTS = 8,               /* of a connection's buffer */
    NCCL_FLAG_USER_BUFFERS = 4,   /* the network reads and writes the user's memory itself */
    NCCL_SLOT_HAS_OFFSET = 1,     /* nccl_slot.mode: it lies where .offset says */
    NCCL_CLEANING_STEPS = 0x7ffffff8,
};
/* The most bytes of one message of the network where user buffers are registered. */
#define NCCL_LONGEST_MESSAGE ((size_t)1024 * 1024 * 1024)

/* A slot as the kernel and the proxy thread tell each other of it. */
struct nccl_slot {
    int32_t mode, offset;
    int64_t bytes;
    void *skipped;
};

struct nccl_connection {
    char *buffers[NCCL_PROTOCOLS];
    void *skipped_handles[NCCL_PROTOCOLS];
    uint64_t *tail, *head; /* steps that were written, and that were read */
    int32_t flags, skipped_shared, slot_bytes;
    void *skipped_exchange[2];
    struct nccl_slot *slots;
    uint64_t step;
    uint64_t skipped_cleaning, skipped_device[4];
};

struct nccl_peer {
    struct nccl_connection send[2], recv[2]; /* 0: collectives, 1: send and receive */
};

struct nccl_ring {
    int prev, next;
    int *ranks; /* from this rank on */
    int index;
};

struct nccl_tree {
    int depth, up, down[3];
};

/* A channel as 2.28 and as 2.30 lay it out; what follows the tree is for switches and counters. */
struct nccl_channel_28 {
    struct nccl_peer **peers;
    struct nccl_ring ring;
    struct nccl_tree tree;
    char skipped[316];
};
struct nccl_channel_30 {
    struct nccl_peer **peers;
    int prev, next;
    int *ranks;
    void *skipped_indices;
    int index, skipped_pad;
    struct nccl_tree tree;
    char skipped[308];
};

struct nccl_comm {
    int rank, rank_count, skipped_nodes[2];
    int buffer_bytes[NCCL_PROTOCOLS];
    int p2p_chunk_bytes;
    void *skipped[2];
    uint32_t *abort_flag;
    void *channels; /* NCCL_CHANNELS of them */
    char skipped_rest[24];
};

struct nccl_launch {
    struct nccl_comm *comm;
    uint64_t channels; /* a bit for each; block b runs on the b-th of them */
    uint8_t storage;   /* 0: works lie behind this structure, else in a ring */
    uint32_t ring_mask;
    char *ring;
};

struct nccl_batch {
    uint32_t jump : 14, is_continued : 1, kind : 2, function : 15;
    uint32_t offset;
    uint64_t works; /* a bit for each, from the offset on */
};
enum { NCCL_WORK_P2P, NCCL_WORK_COLLECTIVE, NCCL_WORK_REGISTERED };

struct nccl_p2p {
    char *send_addr, *recv_addr;
    size_t send_bytes, recv_bytes;
    int send_rank, recv_rank;
    uint8_t channel_count, channel_base, send_channels, recv_channels;
    uint8_t send_chunk, recv_chunk; /* nccl_chunk_bytes */
    uint8_t is_send_ll : 1, is_recv_ll : 1, is_send_registered : 1, is_recv_registered : 1;
};

/* How a collective is cut: the first and the last of its channels may get less than the others. */
struct nccl_cut {
    size_t first, middle, last;
    uint64_t first_grains : 21, middle_grains : 21, last_grains : 21;
};

struct nccl_collective {
    uint32_t first_channel : 8, last_channel : 8, skipped_warps : 8;
    uint32_t is_arg_pointer : 1, is_registered : 1, is_net_registered : 1, skipped_one_node : 1;
    uint32_t skipped_direct : 2, is_rank_a_node : 1, skipped_profiler : 1;
    uint32_t root;
    char *out, *in;
    struct nccl_cut cut;
    uint64_t arg;
};
/* The same as 2.28 and as 2.30 lay it out. */
struct nccl_collective_28 {
    uint32_t flags, root;
    char *out, *in;
    void *skipped[4];
    struct nccl_cut cut;
    uint64_t arg;
};
struct nccl_collective_30 {
    uint32_t flags, root;
    void *skipped_pad[2];
    char *out, *in;
    void *skipped[5];
    struct nccl_cut cut;
    uint64_t arg;
    void *skipped_end;
};

/* What differs from release to release. */
struct nccl_release {
    int first_version, last_version; /* as ncclGetVersion counts */
    bool has_all_gather_v;           /* in the table of functions, behind broadcast */
    size_t collective_bytes;
    struct nccl_collective (*collective)(const void *work);
    struct nccl_ring (*ring)(const void *channel);
    struct nccl_tree (*tree)(const void *channel);
};

/* NULL: not one that we know. */
const struct nccl_release *nccl_release_find(int version);
/* Those versions, in words. */
const char *nccl_release_names(void);

#endif
