/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_device.c - our declarations have the layouts of nccl_device_layout.h, or this does not
 * compile; and what differs between releases, made the same.
 */
#include "simcuda/nccl_device.h"

#include <string.h>

#define AT(type, member, offset)                                                                   \
    _Static_assert(offsetof(struct type, member) == (offset), #type "." #member);
#define SIZE(type, bytes) _Static_assert(sizeof(struct type) == (bytes), #type);
#include "simcuda/nccl_device_layout.h"
#undef AT
#undef SIZE

static struct nccl_collective collective(uint32_t flags, uint32_t root)
{
    struct nccl_collective work;

    memset(&work, 0, sizeof(work));
    memcpy(&work, &flags, sizeof(flags));
    work.root = root;
    return work;
}

static struct nccl_collective collective_28(const void *at)
{
    const struct nccl_collective_28 *from = at;
    struct nccl_collective work = collective(from->flags, from->root);

    work.out = from->out;
    work.in = from->in;
    work.cut = from->cut;
    work.arg = from->arg;
    return work;
}

static struct nccl_collective collective_30(const void *at)
{
    const struct nccl_collective_30 *from = at;
    struct nccl_collective work = collective(from->flags, from->root);

    work.out = from->out;
    work.in = from->in;
    work.cut = from->cut;
    work.arg = from->arg;
    return work;
}

static struct nccl_ring ring_28(const void *channel)
{
    const struct nccl_channel_28 *from = channel;

    return from->ring;
}

static struct nccl_ring ring_30(const void *channel)
{
    const struct nccl_channel_30 *from = channel;

    return (struct nccl_ring){from->prev, from->next, from->ranks, from->index};
}

static struct nccl_tree tree_28(const void *channel)
{
    const struct nccl_channel_28 *from = channel;

    return from->tree;
}

static struct nccl_tree tree_30(const void *channel)
{
    const struct nccl_channel_30 *from = channel;

    return from->tree;
}

static const struct nccl_release releases[] = {
    {22807, 22809, false, 96, collective_28, ring_28, tree_28},
    {23003, 23007, true, 128, collective_30, ring_30, tree_30},
};

const char *nccl_release_names(void)
{
    return "2.28.7 to 2.28.9 and 2.30.3 to 2.30.7";
}

const struct nccl_release *nccl_release_find(int version)
{
    for (size_t i = 0; i < sizeof(releases) / sizeof(releases[0]); i++)
        if (version >= releases[i].first_version && version <= releases[i].last_version)
            return &releases[i];
    return NULL;
}
