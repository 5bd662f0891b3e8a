/* SPDX-License-Identifier: Apache-2.0
 *
 * test_wire_cma.c - a side that has ended a rendezvous transfer waits for the chunk that the other
 * side is just copying, also if that chunk cannot be copied. The kernel's calls fail here, at that
 * moment.
 */
#include "config.h" /* GNU extensions: process_vm_readv, process_vm_writev */

#include "cmocka_all.h"

#include "wire/cma.h"

#include <sys/uio.h>

enum { LEN = 4 << 20 };

static struct dp_cma_part sender, receiver;

/* In place of the C library's. */
ssize_t process_vm_readv(pid_t pid, const struct iovec *local, unsigned long local_count,
                         const struct iovec *remote, unsigned long remote_count,
                         unsigned long flags)
{
    dp_cma_end(&sender);
    errno = EFAULT;
    return -1;
}

ssize_t process_vm_writev(pid_t pid, const struct iovec *local, unsigned long local_count,
                          const struct iovec *remote, unsigned long remote_count,
                          unsigned long flags)
{
    dp_cma_end(&receiver);
    errno = EFAULT;
    return -1;
}

static char *from, *to;
static struct dp_cma_identity peer;
static struct dp_cma_transfer transfer;

static struct dp_cma begin(void)
{
    dp_cma_offer(&sender, &transfer, from, LEN, false);
    dp_cma_take(&receiver, &transfer, (uintptr_t)from, to, LEN, false);
    dp_cma_accept(&receiver, 1);
    assert_true(dp_cma_is_accepted(&sender, 1));
    return (struct dp_cma){
        .peer_pid = (uint32_t)getpid(), .theirs = &peer, .reaches = true};
}

CASE(a_chunk_that_cannot_be_pulled_is_not_waited_for)
{
    struct dp_cma d = begin();
    assert_int_equal(dp_cma_pull(&d, &receiver), 0);
    assert_true(dp_cma_is_ended(&receiver));
    assert_int_equal(sender.others, 1);
    assert_false(dp_cma_is_busy(&sender));
    assert_false(dp_cma_is_complete(&receiver));
}

CASE(a_chunk_that_cannot_be_pushed_is_not_waited_for)
{
    struct dp_cma d = begin();
    assert_int_equal(dp_cma_push(&d, &sender), 0);
    assert_true(dp_cma_is_ended(&sender));
    assert_int_equal(receiver.others, 1);
    assert_false(dp_cma_is_busy(&receiver));
    assert_false(dp_cma_is_complete(&receiver));
}

static int set_up(void **state)
{
    from = calloc(1, LEN);
    to = calloc(1, LEN);
    return from && to ? 0 : -1;
}

static int tear_down(void **state)
{
    free(from);
    free(to);
    return 0;
}

RUN_CASES(set_up, tear_down)
