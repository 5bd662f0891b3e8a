/* SPDX-License-Identifier: Apache-2.0
 *
 * What a connection counts, call by call, and what a reader may see meanwhile.
 */
#include "config.h"

#include "cmocka_all.h"
#include "nccl-plugin/net/comm.h"
#include "scratch.h"
#include "stat/pages.h"

#include <sys/prctl.h>

static char directory[SCRATCH_LEN];

static uint64_t counted(const struct dpn_stat *stat, enum dpn_stat_value what)
{
    return atomic_load(&stat->on->values[what]);
}

static uint64_t timed(const struct dpn_stat *stat)
{
    uint64_t all = 0;

    for (int i = 0; i < DPN_STAT_TIMES; i++)
        all += atomic_load(&stat->on->values[DPN_STAT_TIME + i]);
    return all;
}

static void open_sender(struct dpn_stat *stat)
{
    *stat = (struct dpn_stat){0};
    dpn_stat_name_device(0, "test0", 0);
    dpn_stat_open(stat, 0, true, "test", "nobody");
    assert_non_null(stat->on);
}

static void send_one(struct dpn_stat *stat, int size)
{
    struct dpn_stat_mark mark;

    dpn_stat_began(stat, 1, (size_t)size, &mark);
    dpn_stat_ended(stat, &mark, &size);
}

/* ---- one connection -------------------------------------------------------------------------- */

CASE(sizes_and_times_have_a_place_by_their_digits)
{
    assert_int_equal(dpn_stat_place(0, 32), 0);
    assert_int_equal(dpn_stat_place(1, 32), 1);
    assert_int_equal(dpn_stat_place(2, 32), 2);
    assert_int_equal(dpn_stat_place(3, 32), 2);
    assert_int_equal(dpn_stat_place(4, 32), 3);
    assert_int_equal(dpn_stat_place(DPN_MAX_BYTES, DPN_STAT_SIZES), DPN_STAT_SIZES - 1);
    assert_int_equal(dpn_stat_place(UINT64_MAX, 40), 39);
}

CASE(one_short_message_in_thirteen_is_timed)
{
    struct dpn_stat stat;
    open_sender(&stat);
    for (int i = 0; i < 10 * DPN_STAT_EVERY; i++)
        send_one(&stat, 8);
    assert_int_equal(counted(&stat, DPN_STAT_MESSAGES), 10 * DPN_STAT_EVERY);
    assert_int_equal(timed(&stat), 10);
    dpn_stat_close(&stat);
}

CASE(every_long_message_is_timed)
{
    struct dpn_stat stat;
    open_sender(&stat);
    for (int i = 0; i < 20; i++)
        send_one(&stat, DPN_STAT_LONG_BYTES);
    assert_int_equal(timed(&stat), 20);
    assert_true(counted(&stat, DPN_STAT_TIMED_NS) > 0);
    dpn_stat_close(&stat);
}

CASE(a_send_that_is_tried_often_stalls_once)
{
    struct dpn_stat stat;
    open_sender(&stat);
    for (int i = 0; i < 50; i++)
        dpn_stat_held_up(&stat);
    assert_int_equal(counted(&stat, DPN_STAT_STALLS), 1);
    assert_int_equal(counted(&stat, DPN_STAT_STALL_NS), 0);
    send_one(&stat, 1);
    assert_true(counted(&stat, DPN_STAT_STALL_NS) > 0);
    dpn_stat_held_up(&stat);
    assert_int_equal(counted(&stat, DPN_STAT_STALLS), 2);
    assert_int_equal(counted(&stat, DPN_STAT_FULL), 0);
    dpn_stat_close(&stat);
}

CASE(with_all_requests_in_use_it_is_no_stall)
{
    struct dpn_stat stat;
    struct dpn_stat_mark mark;
    open_sender(&stat);
    for (int i = 0; i < DPN_STAT_REQUESTS_MAX; i++)
        dpn_stat_began(&stat, 1, 1, &mark);
    dpn_stat_held_up(&stat);
    assert_int_equal(counted(&stat, DPN_STAT_FULL), 1);
    assert_int_equal(counted(&stat, DPN_STAT_STALLS), 0);
    dpn_stat_close(&stat);
}

CASE(a_transport_adds_what_it_alone_knows)
{
    struct dpn_stat stat, off = {0};
    open_sender(&stat);
    dpn_stat_count(&stat, DPN_STAT_RETRIES, 3);
    dpn_stat_count(&stat, DPN_STAT_FAILOVERS, 1);
    assert_int_equal(counted(&stat, DPN_STAT_RETRIES), 3);
    assert_int_equal(counted(&stat, DPN_STAT_FAILOVERS), 1);
    dpn_stat_close(&stat);
    dpn_stat_count(&off, DPN_STAT_RETRIES, 3); /* nothing happens */
    dpn_stat_close(&off);
}

/* ---- many, and a reader ---------------------------------------------------------------------- */

/* Runs `work` in a process of its own, for which the test is the reader. */
static pid_t start(void (*job)(int ready))
{
    int ends[2];
    char byte;

    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ends[0]);
        job(ends[1]);
        _exit(0);
    }
    assert_true(pid > 0);
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    return pid;
}

static void stop(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void tell_ready(int ready)
{
    if (write(ready, "", 1) != 1)
        _exit(1);
}

enum { TOO_MANY = DPN_STAT_CONNECTIONS + 6 };

static void open_too_many(int ready)
{
    static struct dpn_stat all[TOO_MANY];

    for (int i = 0; i < TOO_MANY; i++) {
        open_sender(&all[i]);
        send_one(&all[i], 10);
    }
    for (int i = TOO_MANY - 2; i < TOO_MANY; i++)
        dpn_stat_close(&all[i]);
    tell_ready(ready);
    for (;;)
        pause();
}

/* By device and way; what its connections, open and closed, have counted. */
static const struct stat_kind by_device = {
    .page = &dpn_stat_kind, .fields = {2, 5}, .has_process = true};

static uint64_t sum_of(const struct stat_page *p, enum dpn_stat_value what)
{
    uint64_t sum = 0;

    for (int i = 0; i < p->sums[0].count; i++)
        sum += p->sums[0].list[i].values[what];
    return sum;
}

CASE(connections_without_a_place_count_once_they_are_closed)
{
    struct stat_list list;
    pid_t pid = start(open_too_many);
    assert_int_equal(stat_read(&by_device, directory, &list), 0);
    assert_int_equal(list.count, 1);
    const struct stat_page *p = &list.pages[0];
    assert_int_equal(p->sums[1].count, DPN_STAT_CONNECTIONS);
    assert_int_equal(sum_of(p, DPN_STAT_OPENED), TOO_MANY);
    assert_int_equal(sum_of(p, DPN_STAT_LEFT_OUT), 4);
    assert_string_equal(stat_field(&p->sums[0].list[DPN_STAT_SEND], 1), "send");
    assert_int_equal(p->sums[0].list[DPN_STAT_SEND].values[DPN_STAT_MESSAGES],
                     DPN_STAT_CONNECTIONS + 2);
    stat_list_fini(&list);
    stop(pid);
}

static void close_what_is_inherited(int ready)
{
    static struct dpn_stat all[TOO_MANY], own;

    for (int i = 0; i < TOO_MANY; i++)
        open_sender(&all[i]);
    if (fork())
        for (;;)
            pause();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    open_sender(&own);
    dpn_stat_close(&all[0]);            /* on the page of the parent */
    dpn_stat_close(&all[TOO_MANY - 1]); /* without a place there */
    tell_ready(ready);
    for (;;)
        pause();
}

CASE(a_child_counts_nothing_that_it_has_inherited)
{
    struct stat_list list;
    int children = 0;
    pid_t pid = start(close_what_is_inherited);
    assert_int_equal(stat_read(&by_device, directory, &list), 0);
    assert_int_equal(list.count, 2);
    for (size_t i = 0; i < 2; i++) {
        const struct stat_page *p = &list.pages[i];
        const bool is_child = sum_of(p, DPN_STAT_OPENED) == 1;
        children += is_child;
        assert_int_equal(sum_of(p, DPN_STAT_LEFT_OUT), is_child ? 0 : TOO_MANY - DPN_STAT_CONNECTIONS);
    }
    assert_int_equal(children, 1);
    stat_list_fini(&list);
    stop(pid);
}

static void come_and_go(int ready)
{
    struct dpn_stat stat[8];

    for (int i = 0; i < 8; i++)
        open_sender(&stat[i]);
    tell_ready(ready);
    for (unsigned n = 0;; n++) {
        send_one(&stat[n % 8], 7);
        if (n % 101)
            continue;
        dpn_stat_close(&stat[n % 8]);
        open_sender(&stat[n % 8]);
    }
}

CASE(a_sum_never_shrinks_while_connections_come_and_go)
{
    uint64_t messages = 0, bytes = 0;
    pid_t pid = start(come_and_go);
    for (int i = 0; i < 300 || !messages; i++) {
        struct stat_list list;
        assert_int_equal(stat_read(&by_device, directory, &list), 0);
        if (!list.count) {
            stat_list_fini(&list);
            continue; /* the writer was put aside in the middle of a change: nothing is shown */
        }
        const uint64_t *now = list.pages[0].sums[0].list[DPN_STAT_SEND].values;
        assert_true(now[DPN_STAT_MESSAGES] >= messages);
        assert_true(now[DPN_STAT_BYTES] >= bytes);
        messages = now[DPN_STAT_MESSAGES];
        bytes = now[DPN_STAT_BYTES];
        stat_list_fini(&list);
    }
    stop(pid);
}

/* ---- all ------------------------------------------------------------------------------------- */

static int set_up(void **state)
{
    struct dpn_net *net;

    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    if (!scratch_directory(directory, "counters") || dpn_net_init(NULL, &net))
        return -1;
    dpn_net_finalize(net);
    dpn_options.stat = true;
    dpn_options.stat_dir = directory;
    return 0;
}

static int tear_down(void **state)
{
    return scratch_remove(directory);
}

RUN_CASES(set_up, tear_down)
