/* SPDX-License-Identifier: Apache-2.0 */
#include "failing_memory.h"

#include "cmocka_all.h"

#include <dualpipe/dualpipe.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_aligned_alloc(size_t align, size_t size);
/* A library may refer to them, as the linker sees it. */
#define VISIBLE __attribute__((visibility("default")))
VISIBLE void *__wrap_malloc(size_t size);
VISIBLE void *__wrap_calloc(size_t count, size_t size);
VISIBLE void *__wrap_realloc(void *p, size_t size);
VISIBLE void *__wrap_aligned_alloc(size_t align, size_t size);

_Thread_local int allocations;
_Thread_local int until_no_memory = -1;

static bool fails(void)
{
    allocations++;
    return until_no_memory >= 0 && until_no_memory-- == 0;
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
        until_no_memory = failures;
        err = call();
        bool done = until_no_memory >= 0;
        until_no_memory = -1;
        if (done)
            break;
        assert_int_equal(err, DP_ENOMEM);
        assert_true(*dp_last_error() != '\0');
    }
    assert_int_equal(err, 0);
    assert_in_range(failures, at_least, 4000);
}
