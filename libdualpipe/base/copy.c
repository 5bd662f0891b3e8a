/* SPDX-License-Identifier: Apache-2.0 */
#include "base/copy.h"

#include "base/clock.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { LINE = 64, PAGE = 4096, AHEAD = 2048 };

static void copy_libc(char *dst, const char *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}

#if defined(__x86_64__)

/* Stores past the caches write whole lines and never read them first, which saves a third of the
 * traffic. dst on a line's border. A fetch past the caches is right on an EPYC; on a Xeon it halves
 * the speed, and one into them is right. */
__attribute__((target("avx2"))) static inline void stream_line(char *dst, const char *src,
                                                               bool past)
{
    __m256i low = _mm256_loadu_si256((const __m256i *)src);
    __m256i high = _mm256_loadu_si256((const __m256i *)(src + 32));

    if (past)
        _mm_prefetch(src + AHEAD, _MM_HINT_NTA); /* beyond the end it is ignored */
    else
        _mm_prefetch(src + AHEAD, _MM_HINT_T0);
    _mm256_stream_si256((__m256i *)dst, low);
    _mm256_stream_si256((__m256i *)(dst + 32), high);
}

/* Lines are taken from `pages` neighbouring pages in turn: 1 is plain sequential order; 4 keeps
 * four rows of memory open at once. */
__attribute__((target("avx2"))) static inline void copy_streaming(char *dst, const char *src,
                                                                  size_t bytes, size_t pages,
                                                                  bool past)
{
    size_t head = (size_t)(-(uintptr_t)dst % LINE), block = pages * PAGE;

    head = head < bytes ? head : bytes;
    memcpy(dst, src, head);
    for (dst += head, src += head, bytes -= head; bytes >= block; bytes -= block) {
        for (size_t line = 0; line < PAGE; line += LINE)
            for (size_t page = 0; page < pages; page++)
                stream_line(dst + page * PAGE + line, src + page * PAGE + line, past);
        dst += block;
        src += block;
    }
    memcpy(dst, src, bytes);
    _mm_sfence(); /* or a thread that is told of the copy may still read what was there before */
}

__attribute__((target("avx2"))) static void copy_in_order(char *dst, const char *src, size_t bytes)
{
    copy_streaming(dst, src, bytes, 1, true);
}

__attribute__((target("avx2"))) static void copy_four_pages(char *dst, const char *src,
                                                            size_t bytes)
{
    copy_streaming(dst, src, bytes, 4, true);
}

__attribute__((target("avx2"))) static void copy_four_near(char *dst, const char *src, size_t bytes)
{
    copy_streaming(dst, src, bytes, 4, false);
}

#endif

enum { WAYS = 4, TURNS = 4, PAST_WAY = 3 };
static const size_t least_timed = (size_t)256 << 10; /* less than this says nothing */

dp_copy_fn dp_copy_way(int way)
{
    static const dp_copy_fn ways[WAYS + 1] = {
        copy_libc,
#if defined(__x86_64__)
        copy_in_order,
        copy_four_pages,
        copy_four_near,
#endif
    };
#if defined(__x86_64__)
    if (way > 0 && !__builtin_cpu_supports("avx2"))
        return NULL;
#endif
    return ways[way];
}

/* What was measured for copies of one size class. Threads that measure at once may overwrite each
 * other's figures; a turn more or less does no harm. */
struct tuning {
    _Atomic int turns;           /* taken so far, over all ways */
    _Atomic int64_t cost[WAYS];  /* best so far, in ns per MiB; 0: none yet */
};

/* Class i holds sizes from DP_COPY_LARGE << i on, the last one everything above. */
enum { CLASSES = 6 };
static struct tuning tunings[CLASSES];

static int size_class(size_t bytes)
{
    int class = 63 - __builtin_clzll(bytes / DP_COPY_LARGE);

    return class < CLASSES ? class : CLASSES - 1;
}

static int count_ways(void)
{
    int n = 0;

    while (dp_copy_way(n))
        n++;
    return n;
}

static int best_way(struct tuning *t, int ways)
{
    int best = 0;

    for (int i = 1; i < ways; i++)
        if (atomic_load_explicit(&t->cost[i], memory_order_relaxed) <
            atomic_load_explicit(&t->cost[best], memory_order_relaxed))
            best = i;
    return best;
}

/* The thread's CPU time: it stands still while others have the core. */
static int64_t cpu_time_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * DP_NS_PER_S + t.tv_nsec;
}

static void take_turn(struct tuning *t, int way, void *dst, const void *src, size_t bytes)
{
    int64_t start = cpu_time_ns();

    dp_copy_way(way)(dst, src, bytes);
    int64_t cost = (cpu_time_ns() - start) * (1 << 20) / (int64_t)bytes + 1;
    int64_t best = atomic_load_explicit(&t->cost[way], memory_order_relaxed);
    if (!best || cost < best)
        atomic_store_explicit(&t->cost[way], cost, memory_order_relaxed);
}

void dp_copy_large(void *dst, const void *src, size_t bytes, size_t whole)
{
    struct tuning *t = &tunings[size_class(whole)];
    int ways = count_ways(), turns = atomic_load_explicit(&t->turns, memory_order_relaxed);
    if (turns >= TURNS * ways || bytes < least_timed) {
        dp_copy_way(best_way(t, ways))(dst, src, bytes);
        return;
    }
    atomic_store_explicit(&t->turns, turns + 1, memory_order_relaxed);
    take_turn(t, turns % ways, dst, src, bytes);
}

void dp_copy_nt(void *dst, const void *src, size_t bytes)
{
    dp_copy_fn past = dp_copy_way(PAST_WAY);

    (past ? past : copy_libc)(dst, src, bytes);
}
