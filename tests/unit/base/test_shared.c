/* SPDX-License-Identifier: Apache-2.0
 *
 * test_shared.c - memory that other processes can map: what is handed out, what is refused, what is
 * found in it, and what becomes of it.
 */
#include "cmocka_all.h"

#include "base/shared.h"

#include <pthread.h>
#include <sys/stat.h>

static const size_t HUGE_PAGE = (size_t)2 << 20;

static char *new_shared(size_t len)
{
    void *at = NULL;

    assert_int_equal(dp_shared_alloc(len, -1, &at), 0);
    assert_non_null(at);
    return at;
}

CASE(it_is_zeroed_and_aligned)
{
    const size_t lens[] = {1, 4096, 100000, HUGE_PAGE, HUGE_PAGE + 1, 3 * HUGE_PAGE};

    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        char *at = new_shared(lens[i]);
        assert_int_equal((uintptr_t)at % (lens[i] < HUGE_PAGE ? 4096 : HUGE_PAGE), 0);
        for (size_t k = 0; k < lens[i]; k++)
            assert_int_equal(at[k], 0);
        memset(at, 1, lens[i]);
        assert_int_equal(dp_shared_free(at), 0);
    }
}

CASE(what_lies_in_it_is_found)
{
    enum { LEN = 3 * 4096 };
    char *a = new_shared(LEN), *b = new_shared(LEN), other[16];
    struct dp_shared_place at_a, at_b, place = {0};

    assert_true(dp_shared_find(a, LEN, &at_a));
    assert_int_equal(at_a.offset, 0);
    assert_int_equal(at_a.bytes, LEN);
    assert_true(dp_shared_is_sealed(at_a.fd));
    assert_true(dp_shared_find(b + 100, 50, &at_b));
    assert_int_equal(at_b.offset, 100);
    assert_true(at_b.id != at_a.id);
    assert_true(dp_shared_find(a + LEN - 1, 1, &place));
    assert_false(dp_shared_find(a + LEN - 1, 2, &place));
    assert_false(dp_shared_find(a, SIZE_MAX, &place));
    assert_false(dp_shared_find(other, sizeof(other), &place));
    assert_int_equal(dp_shared_free(a), 0);
    assert_false(dp_shared_find(a, 1, &place));
    assert_int_equal(dp_shared_free(b), 0);
    assert_false(dp_shared_find(NULL, 0, &place));
}

CASE(what_cannot_be_is_refused)
{
    void *at = "untouched";
    const struct {
        size_t bytes;
        int node, err;
    } cases[] = {{0, -1, DP_EINVAL},           {SIZE_MAX, -1, DP_ENOMEM},
                 {SIZE_MAX / 8, -1, DP_ENOMEM}, {4096, -2, DP_EINVAL},
                 {4096, 1024, DP_EINVAL}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(dp_shared_alloc(cases[i].bytes, cases[i].node, &at), cases[i].err);
    /* No machine of the tests has as many nodes; if none can be chosen, the error says that. */
    int err = dp_shared_alloc(4096, 1000, &at);
    assert_true(err == DP_EINVAL || err == DP_EUNSUPPORTED);
    assert_non_null(strstr(dp_last_error(), "NUMA node 1000"));
    assert_string_equal(at, "untouched");
}

CASE(it_can_be_put_on_a_node)
{
    void *at;
    int err = dp_shared_alloc(100000, 0, &at);

    if (err == DP_EUNSUPPORTED)
        skip_because("this system does not let processes say where memory shall be");
    assert_int_equal(err, 0);
    memset(at, 1, 100000);
    assert_int_equal(dp_shared_free(at), 0);
}

CASE(only_what_was_handed_out_is_freed)
{
    char *at = new_shared(8192);
    int other;

    assert_int_equal(dp_shared_free(NULL), 0);
    assert_int_equal(dp_shared_free(&other), DP_EINVAL);
    assert_int_equal(dp_shared_free(at + 4096), DP_EINVAL);
    assert_int_equal(dp_shared_free(at), 0);
    assert_int_equal(dp_shared_free(at), DP_EINVAL);
}

CASE(there_is_a_limit_to_their_number)
{
    char *all[DP_SHARED_MAX];
    void *one_more;

    for (int i = 0; i < DP_SHARED_MAX; i++)
        all[i] = new_shared(1);
    expect_error(dp_shared_alloc(1, -1, &one_more), DP_ENOMEM, "256 pieces");
    assert_int_equal(dp_shared_free(all[7]), 0);
    all[7] = new_shared(1);
    for (int i = 0; i < DP_SHARED_MAX; i++)
        assert_int_equal(dp_shared_free(all[i]), 0);
}

CASE(a_child_shares_it_and_frees_only_its_own_view)
{
    char *at = new_shared(4096);
    struct dp_shared_place place;
    struct stat st;
    int status;

    assert_true(dp_shared_find(at, 1, &place));
    pid_t child = fork();
    if (!child) {
        at[0] = 'c';
        _exit(dp_shared_free(at) || dp_shared_find(at, 1, &place));
    }
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(at[0], 'c');
    assert_true(!fstat(place.fd, &st) && st.st_blocks > 0);
    assert_int_equal(dp_shared_free(at), 0);
}

/* ---- threads --------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 300 };

static void *come_and_go(void *unused)
{
    struct dp_shared_place place;
    void *at;

    for (int i = 0; i < ROUNDS; i++) {
        const size_t len = (size_t)(1 + i % 5) * 4096;
        if (dp_shared_alloc(len, -1, &at) || !dp_shared_find((char *)at + len - 10, 10, &place) ||
            place.bytes != len || place.offset != len - 10 || dp_shared_free(at))
            return "failed";
    }
    return NULL;
}

CASE(threads_find_their_own)
{
    pthread_t threads[THREADS];
    void *failed;

    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, come_and_go, NULL), 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
}
