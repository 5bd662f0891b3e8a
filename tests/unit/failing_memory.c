/* SPDX-License-Identifier: Apache-2.0 */
#include "failing_memory.h"

#include "cmocka_all.h"

#include <dualpipe/dualpipe.h>

#include <stdlib.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_aligned_alloc(size_t align, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_aligned_alloc(size_t align, size_t size);

static int until_failure = -1; /* allocations that still succeed; -1: all do */

static bool fails(void)
{
    return until_failure >= 0 && until_failure-- == 0;
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *p, size_t size)
{
    return fails() ? NULL : __real_realloc(p, size);
}

void *__wrap_aligned_alloc(size_t align, size_t size)
{
    return fails() ? NULL : __real_aligned_alloc(align, size);
}

void expect_every_failure_reported(int (*call)(void), int at_least)
{
    int failures = 0, err;

    for (;; failures++) {
        until_failure = failures;
        err = call();
        bool done = until_failure >= 0;
        until_failure = -1;
        if (done)
            break;
        assert_int_equal(err, DP_ENOMEM);
        assert_true(*dp_last_error() != '\0');
    }
    assert_int_equal(err, 0);
    assert_in_range(failures, at_least, 1000);
}
