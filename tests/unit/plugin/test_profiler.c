/* SPDX-License-Identifier: Apache-2.0
 *
 * test_profiler.c - the profiler plugin: the events of every version of NCCL's interface become the
 * same lines of traffic, and these a matrix.
 */
#include "cmocka_all.h"

#include "nccl-plugin/profiler/profiler.h"
#include "scratch.h"

#include <dualpipe/placement.h>

static char path[SCRATCH_LEN];

/* A descriptor: members at byte offsets, as nccl-profiler's headers lay them out. */
struct descriptor {
    char bytes[136];
};

static void put(struct descriptor *d, int offset, const void *value, size_t size)
{
    memcpy(d->bytes + offset, value, size);
}

static void put_u64(struct descriptor *d, int offset, uint64_t value)
{
    put(d, offset, &value, sizeof(value));
}

static void put_int(struct descriptor *d, int offset, int value)
{
    put(d, offset, &value, sizeof(value));
}

static void put_text(struct descriptor *d, int offset, const char *text)
{
    put_u64(d, offset, (uint64_t)(uintptr_t)text);
}

/* 1000 float32 to peer 1, as each version describes it. */
static struct descriptor send_of(int version)
{
    struct descriptor d;

    memset(&d, 0xaa, sizeof(d)); /* NCCL does not clear what a version does not use */
    d.bytes[0] = 4;
    if (version >= 5)
        put_u64(&d, 0, 4);
    put_int(&d, 16, 0);
    if (version <= 3) {
        put_text(&d, 24, "named");
        put_u64(&d, 32, 0xfeed);
        d.bytes[40] = 6;
        d.bytes[56] = 7;
        if (version > 1) {
            put_text(&d, 40, "Send");
            put_text(&d, 56, "ncclFloat32");
        }
        put_u64(&d, 64, 1000);
        put_int(&d, 72, 1);
    } else {
        put_text(&d, 24, "Send");
        put_text(&d, 40, "ncclFloat32");
        put_u64(&d, 48, 1000);
        put_int(&d, 56, 1);
    }
    return d;
}

/* An all-reduce of 300 bytes, which NCCL calls "Unknown". */
static struct descriptor all_reduce_of(int version)
{
    struct descriptor d;
    const int offset = version <= 3 ? 48 : 32;

    memset(&d, 0xaa, sizeof(d));
    d.bytes[0] = 2;
    if (version >= 5)
        put_u64(&d, 0, 2);
    put_int(&d, 16, 0);
    put_text(&d, 24, "named");
    if (version <= 3)
        put_u64(&d, 32, 0xfeed);
    d.bytes[48] = 4;
    d.bytes[84] = 1;
    if (version > 1) {
        put_text(&d, offset, "AllReduce");
        put_text(&d, version <= 3 ? 88 : 72, "Unknown");
    }
    put_u64(&d, version <= 3 ? 72 : 56, 300);
    return d;
}

/* What was written since the last call. */
static char *written(void)
{
    static char text[4096];
    FILE *file = fopen(path, "r");

    assert_non_null(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    assert_int_equal(truncate(path, 0), 0);
    return text;
}

static int set_up(void **state)
{
    assert_true(scratch_file(path, "traffic"));
    setenv("DUALPIPE_PROFILER_TRAFFIC", path, 1);
    return 0;
}

static int tear_down(void **state)
{
    return unlink(path);
}

CASE(every_version_counts_the_same)
{
    for (int version = 1; version <= DPN_PROFILER_VERSIONS; version++) {
        const struct descriptor send = send_of(version), sum = all_reduce_of(version);
        const struct dpn_profiled told = {0xfeed, "named", 0, 4, 2};
        void *context = NULL, *handle = &context;

        assert_int_equal(
            dpn_profiler_open(version <= 3 ? &(struct dpn_profiled){0} : &told, &context), 0);
        dpn_profiler_event(version, context, &handle, &send);
        assert_null(handle);
        dpn_profiler_event(version, context, &handle, &send);
        dpn_profiler_event(version, context, &handle, &sum);
        dpn_profiler_close(context);
        const char *line = written();
        assert_non_null(strstr(line, "\"comm\": \"000000000000feed\", \"name\": \"named\""));
        assert_non_null(strstr(line, "\"sent\": [[1, 8000]]"));
        assert_non_null(strstr(line, "\"AllReduce\": [1, 300]"));
        assert_non_null(strstr(line, "\"Send\": [2, 8000]"));
    }
}

CASE(a_group_gets_a_handle)
{
    struct descriptor d = {{1}};
    void *context, *handle = NULL;

    assert_int_equal(dpn_profiler_open(&(struct dpn_profiled){.ranks = 2}, &context), 0);
    dpn_profiler_event(4, context, &handle, &d);
    assert_non_null(handle);
    dpn_profiler_close(context);
    written();
}

CASE(a_context_that_has_ended_counts_nothing)
{
    void *old, *new;

    assert_int_equal(dpn_profiler_open(&(struct dpn_profiled){.hash = 1, .ranks = 2}, &old), 0);
    dpn_profiler_close(old);
    assert_int_equal(dpn_profiler_open(&(struct dpn_profiled){.hash = 2, .ranks = 2}, &new), 0);
    written();
    dpn_profiler_sent(old, 1, 77);
    dpn_profiler_close(old);
    dpn_profiler_sent(NULL, 1, 77);
    dpn_profiler_sent(new, 1, 5);
    dpn_profiler_close(new);
    assert_non_null(strstr(written(), "\"sent\": [[1, 5]]"));
}

CASE(a_name_cannot_break_the_line)
{
    void *context;

    assert_int_equal(
        dpn_profiler_open(&(struct dpn_profiled){.name = "a\"b\\c\nd", .ranks = 2}, &context), 0);
    dpn_profiler_close(context);
    assert_non_null(strstr(written(), "\"name\": \"abcd\""));
}

RUN_CASES(set_up, tear_down)
