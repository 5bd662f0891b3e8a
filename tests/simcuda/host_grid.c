/* SPDX-License-Identifier: Apache-2.0 */
#include "simcuda/host_grid.h"

#include "simcuda/sim.h"

#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { MOST_THREADS = 1024, LANES = 32, STACK_BYTES = 64 << 10 };

/* Those that wait for each other: a block, or a warp. */
struct meeting {
    int members, here;
    unsigned round;
    float values[LANES], result[2]; /* of a warp: given, and the sum of this round and the last */
    uint32_t words[2][LANES][HOST_WORDS]; /* given, of this round and the last */
};

struct fiber {
    void *sp;
    int id; /* of the thread that it runs */
    bool over;
};

static _Thread_local struct grid {
    void (*kernel)(const void *args);
    const void *args;
    char *stacks;
    void *scheduler;
    struct fiber fibers[MOST_THREADS], *running;
    int next; /* thread that has not begun */
    struct meeting block, warps[MOST_THREADS / LANES];
    unsigned long moves; /* changes whenever a thread gets further */
} *grid;

_Thread_local struct host_thread host_now;

/* Save what a call must keep on this stack, leave its address in *from, and go on with the other. */
void host_switch(void **from, void *to);
__asm__(".text\n"
        ".type host_switch, @function\n"
        "host_switch:\n"
        "push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15\n"
        "mov %rsp, (%rdi)\n"
        "mov %rsi, %rsp\n"
        "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp\n"
        "ret\n"
        ".size host_switch, .-host_switch\n");

static void yield(void)
{
    struct fiber *me = grid->running;

    host_switch(&me->sp, grid->scheduler);
    host_now.id = me->id;
}

static void end_round(struct meeting *m)
{
    m->here = 0;
    m->round++;
    grid->moves++;
}

/* Wait until all members are here. */
static void meet(struct meeting *m)
{
    const unsigned round = m->round;

    if (++m->here == m->members)
        end_round(m);
    while (m->round == round)
        yield();
}

void host_block_sync(void)
{
    meet(&grid->block);
}

/* The order of additions is that of the shuffles. */
static float combine(float *v, bool most)
{
    for (int mask = LANES / 2; mask; mask /= 2) {
        float next[LANES];
        for (int i = 0; i < LANES; i++)
            next[i] = most ? fmaxf(v[i], v[i ^ mask]) : v[i] + v[i ^ mask];
        memcpy(v, next, sizeof(next));
    }
    return v[0];
}

float host_warp(float x, bool most)
{
    struct meeting *m = &grid->warps[host_now.id / LANES];
    const unsigned round = m->round;

    m->values[host_now.id % LANES] = x;
    if (m->here + 1 == m->members)
        m->result[round % 2] = combine(m->values, most);
    meet(m);
    return m->result[round % 2];
}

/* A lane that is a round ahead writes to the other half, and cannot get further without this one. */
host_lanes host_exchange(const uint32_t mine[HOST_WORDS])
{
    struct meeting *m = &grid->warps[host_now.id / LANES];
    const unsigned round = m->round;

    memcpy(m->words[round % 2][host_now.id % LANES], mine, sizeof(m->words[0][0]));
    meet(m);
    return m->words[round % 2];
}

static void leave(struct meeting *m)
{
    if (--m->members == m->here && m->here)
        end_round(m);
}

/* A fiber runs a thread, and the next ones as long as none of them has to wait. */
static void fiber_main(void)
{
    struct fiber *me = grid->running;

    while (grid->next < host_now.count) {
        host_now.id = me->id = grid->next++;
        grid->kernel(grid->args);
        leave(&grid->block);
        leave(&grid->warps[me->id / LANES]);
        grid->moves++;
    }
    me->over = true;
    yield();
    sim_die("a thread of a kernel goes on after its end");
}

static void fiber_begin(struct fiber *f, char *stack)
{
    void **top = (void **)(stack + STACK_BYTES) - 1; /* as after a call: 8 beside a multiple of 16 */

    *--top = (void *)(uintptr_t)fiber_main;
    f->sp = top - 6; /* the registers that host_switch restores */
    f->over = false;
}

static void resume(struct fiber *f)
{
    grid->running = f;
    host_switch(&grid->scheduler, f->sp);
}

static void run_block(int threads)
{
    int fibers = 0, over = 0;

    grid->next = 0;
    grid->block = (struct meeting){.members = threads};
    for (int w = 0; w * LANES < threads; w++)
        grid->warps[w] =
            (struct meeting){.members = threads - w * LANES < LANES ? threads - w * LANES : LANES};
    while (over < fibers || grid->next < threads) {
        const unsigned long moves = grid->moves;
        if (grid->next < threads) {
            fiber_begin(&grid->fibers[fibers], grid->stacks + (size_t)fibers * STACK_BYTES);
            fibers++;
        }
        over = 0;
        for (int i = 0; i < fibers; i++) {
            if (!grid->fibers[i].over)
                resume(&grid->fibers[i]);
            over += grid->fibers[i].over;
        }
        if (moves == grid->moves && grid->next == threads && over < fibers)
            sim_die("a kernel's threads wait for each other at different places");
    }
}

void host_grid_run(void (*kernel)(const void *args), const void *args, const unsigned blocks[3],
                   unsigned threads, size_t memory_bytes)
{
    const size_t words = memory_bytes / sizeof(float) + 1;
    struct grid *g = calloc(1, sizeof(*g));
    float *memory = aligned_alloc(64, (words * sizeof(float) + 63) & ~(size_t)63);
    char *stacks = mmap(NULL, (size_t)threads * STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (!g || !memory || stacks == MAP_FAILED || threads > MOST_THREADS)
        sim_die("no room for a grid of %u threads", threads);
    g->kernel = kernel;
    g->args = args;
    g->stacks = stacks;
    grid = g;
    host_now = (struct host_thread){
        .count = (int)threads, .blocks = {(int)blocks[0], (int)blocks[1]}, .memory = memory};
    for (unsigned z = 0; z < blocks[2]; z++)
        for (unsigned y = 0; y < blocks[1]; y++)
            for (unsigned x = 0; x < blocks[0]; x++) {
                memcpy(host_now.block, (int[]){(int)x, (int)y, (int)z}, sizeof(host_now.block));
                for (size_t i = 0; i < words; i++)
                    memory[i] = NAN;
                run_block((int)threads);
            }
    munmap(stacks, (size_t)threads * STACK_BYTES);
    free(memory);
    free(g);
    grid = NULL;
}
