/* SPDX-License-Identifier: Apache-2.0 */
#include "simcuda/kernel.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Looks for what is missing before a block sleeps in between. */
static unsigned eager_looks;

static void read_eager_looks(void)
{
    eager_looks = (unsigned)sim_setting("SIMCUDA_LOOKS", 1000);
}

bool kernel_pause(struct kernel_block *block, unsigned *looks)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, read_eager_looks);
    if (__atomic_load_n(block->comm->abort_flag, __ATOMIC_ACQUIRE))
        atomic_store(&block->is_aborted, true);
    if (atomic_load(&block->is_aborted))
        return false;
    if (++*looks < eager_looks)
        sched_yield();
    else
        nanosleep(&(struct timespec){0, 20000}, NULL);
    return true;
}

static bool await(struct kernel_block *block, const uint64_t *at, uint64_t ahead, uint64_t step)
{
    unsigned looks = 0;

    while (kernel_load(at) + ahead < step)
        if (!kernel_pause(block, &looks))
            return false;
    return true;
}

bool kernel_await_tail(struct kernel_block *block, const struct nccl_connection *from,
                       uint64_t step)
{
    return await(block, from->tail, 0, step);
}

/* The head starts at minus NCCL_SLOTS where the proxy first has to say where the slots are; the sum
 * wraps around to 0. */
bool kernel_await_room(struct kernel_block *block, const struct nccl_connection *to, uint64_t step)
{
    return await(block, to->head, NCCL_SLOTS, step);
}

/* ---- the release: known once the first kernel runs ------------------------------------------- */

static const struct nccl_release *the_release;

static void find_release(void)
{
    const void *get_version = sim_nccl_symbol("ncclGetVersion");
    int (*call)(int *);
    int version = 0;

    memcpy(&call, &get_version, sizeof(call));
    if (get_version)
        call(&version);
    the_release = nccl_release_find(version);
    if (!the_release)
        sim_die("NCCL %d: its kernels' structures are known for %s only", version,
                nccl_release_names());
}

const char *sim_known_instead(int nccl_version)
{
    return nccl_release_find(nccl_version) ? NULL : nccl_release_names();
}

/* ---- batches of work ------------------------------------------------------------------------- */

enum { MOST_WORKS = 64 };
#define MOST_WORK_BYTES 128

/* The works of a batch and of those that continue it, one kind all. */
struct works {
    int count;
    _Alignas(16) char works[MOST_WORKS][MOST_WORK_BYTES];
};

static size_t work_bytes(const struct kernel_block *block, unsigned kind)
{
    switch (kind) {
    case NCCL_WORK_P2P:
        return sizeof(struct nccl_p2p);
    case NCCL_WORK_COLLECTIVE:
        return block->release->collective_bytes;
    default:
        sim_die("work of kind %u: collectives on registered NVLink buffers are not simulated",
                kind);
    }
}

static void collect(const struct kernel_block *block, const struct nccl_launch *launch,
                    const struct nccl_batch *batch, struct works *out)
{
    size_t bytes = work_bytes(block, batch->kind);

    for (unsigned i = 0; i < 64; i++) {
        size_t at = batch->offset + i * bytes;
        if (!(batch->works >> i & 1))
            continue;
        if (out->count == MOST_WORKS)
            sim_die("a batch of more than %d works", MOST_WORKS);
        memcpy(out->works[out->count++],
               launch->storage == 0 ? (const char *)launch + at
                                    : launch->ring + (at & launch->ring_mask),
               bytes);
    }
}

static void run_collective(struct kernel_block *block, const struct kernel_function *function,
                           const void *at)
{
    struct nccl_collective work = block->release->collective(at);

    if (function->algorithm == NCCL_RING)
        kernel_run_ring(block, function, &work);
    else if (function->algorithm == NCCL_TREE && function->function == NCCL_ALL_REDUCE)
        kernel_run_tree(block, function, &work);
    else
        sim_die("algorithm %d of collective %d is not simulated; set NCCL_ALGO=Ring,Tree and "
                "NCCL_PAT_ENABLE=0",
                function->algorithm, function->function);
}

static void run_p2p(struct kernel_block *block, const struct works *works)
{
    struct nccl_p2p list[MOST_WORKS];

    for (int i = 0; i < works->count; i++)
        memcpy(&list[i], works->works[i], sizeof(list[i]));
    kernel_run_p2p(block, list, works->count);
}

static void run_works(struct kernel_block *block, const struct nccl_batch *batch,
                      const struct works *works)
{
    struct kernel_function function = kernel_function_of(batch->function, block->release);

    if (!function.is_known)
        sim_die("function %u is not in the table of this NCCL", (unsigned)batch->function);
    if (batch->kind == NCCL_WORK_P2P)
        run_p2p(block, works);
    else
        for (int i = 0; i < works->count; i++)
            run_collective(block, &function, works->works[i]);
}

static void run_batches(struct kernel_block *block, const struct nccl_launch *launch,
                        unsigned first)
{
    const struct nccl_batch *batches = (const void *)(launch + 1), *batch = &batches[first];
    struct works works;

    for (;;) {
        works.count = 0;
        collect(block, launch, batch, &works);
        while (batch->is_continued) {
            batch += batch->jump;
            collect(block, launch, batch, &works);
        }
        run_works(block, batch, &works);
        if (!batch->jump || atomic_load(&block->is_aborted))
            return;
        batch += batch->jump;
    }
}

/* ---- a launch: a thread for every block ------------------------------------------------------ */

struct job {
    const struct nccl_launch *launch;
    unsigned index;
    pthread_t thread;
};

static int channel_of(uint64_t channels, unsigned index)
{
    for (int c = 0; c < NCCL_CHANNELS; c++)
        if (channels >> c & 1 && index-- == 0)
            return c;
    sim_die("a launch has more blocks than channels");
}

static void *run_block(void *arg)
{
    const struct job *job = arg;
    const struct nccl_comm *comm = job->launch->comm;
    int index = channel_of(job->launch->channels, job->index);
    char *channel = (char *)comm->channels + (size_t)index * sizeof(struct nccl_channel_28);
    struct kernel_block block = {
        .comm = comm,
        .release = the_release,
        .channel = channel,
        .channel_index = index,
    };

    memcpy(&block.peers, channel, sizeof(block.peers));
    run_batches(&block, job->launch, job->index);
    return NULL;
}

void kernel_run(unsigned blocks, const void *args)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct job jobs[NCCL_CHANNELS];

    pthread_once(&once, find_release);
    if (blocks > NCCL_CHANNELS)
        sim_die("a launch of %u blocks, more than there are channels", blocks);
    for (unsigned i = 0; i < blocks; i++) {
        jobs[i] = (struct job){.launch = args, .index = i};
        if (pthread_create(&jobs[i].thread, NULL, run_block, &jobs[i]))
            sim_die("no thread for a block");
    }
    for (unsigned i = 0; i < blocks; i++)
        pthread_join(jobs[i].thread, NULL);
}
