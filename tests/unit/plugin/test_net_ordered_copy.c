/* SPDX-License-Identifier: Apache-2.0
 *
 * test_net_ordered_copy.c - copies into memory that another thread polls.
 */
#include "cmocka_all.h"

#include "nccl-plugin/net/ordered_copy.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

CASE(what_is_copied_is_all_there_and_nothing_else)
{
    enum { ROOM = 700 };
    char src[ROOM], want[ROOM], got[ROOM + 128];

    for (int i = 0; i < ROOM; i++)
        src[i] = (char)(i * 7 + 1);
    for (size_t at = 0; at < 140; at += 3)
        for (size_t len = 0; len + at < ROOM; len += 11) {
            memset(want, 0x5a, sizeof(want));
            memset(got, 0x5a, sizeof(got));
            memcpy(want + at, src + len % 9, len);
            dpn_ordered_copy(got + at, src + len % 9, len);
            assert_memory_equal(got, want, sizeof(want));
        }
}

/* Lines in which every word is the round; the last word is the flag. */
enum { LINES = 64, WORDS = DPN_LINE_BYTES / 8, ROUNDS = 3000 };

struct watched {
    _Alignas(DPN_LINE_BYTES) _Atomic(uint64_t) words[LINES * WORDS];
    atomic_uint seen; /* the round that the watcher has seen whole */
    atomic_int early; /* words that were older than their line's flag */
};

static void *watch(void *arg)
{
    struct watched *w = arg;

    for (unsigned round = 1; round <= ROUNDS; round++) {
        for (int line = LINES; line-- > 0;) {
            _Atomic(uint64_t) *words = &w->words[line * WORDS];
            while (atomic_load_explicit(&words[WORDS - 1], memory_order_acquire) != round)
                sched_yield();
            for (int i = 0; i < WORDS - 1; i++)
                if (atomic_load_explicit(&words[i], memory_order_relaxed) != round)
                    atomic_fetch_add(&w->early, 1);
        }
        atomic_store(&w->seen, round);
    }
    return NULL;
}

CASE(the_last_word_of_a_line_is_seen_last)
{
    struct watched *w = aligned_alloc(DPN_LINE_BYTES, sizeof(*w));
    uint64_t src[LINES * WORDS];
    pthread_t watcher;

    memset(w, 0, sizeof(*w));
    assert_int_equal(pthread_create(&watcher, NULL, watch, w), 0);
    for (unsigned round = 1; round <= ROUNDS; round++) {
        for (int i = 0; i < LINES * WORDS; i++)
            src[i] = round;
        dpn_ordered_copy(w->words, src, sizeof(src));
        while (atomic_load(&w->seen) != round)
            sched_yield();
    }
    pthread_join(watcher, NULL);
    assert_int_equal(atomic_load(&w->early), 0);
    free(w);
}
