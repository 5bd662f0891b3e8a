/* SPDX-License-Identifier: Apache-2.0
 *
 * test_fake_ibverbs_processes.c - the simulated libibverbs connects processes, one of which may be
 * killed, and is found as libibverbs is.
 */
#include "config.h" /* GNU extensions: dlvsym, process_vm_readv */

#include "cmocka_all.h"
#include "fork_at_rest.h"
#include "unit/plugin/fake_fabric.h"

#include <dlfcn.h>
#include <sys/uio.h>

static struct end a;
static struct card of_a;

/* Sandboxes forbid it. */
static bool may_reach_children(void)
{
    char byte;
    struct iovec here = {&byte, 1}, there = {&a, 1};
    const pid_t child = fork();

    if (!child)
        for (;;)
            pause();
    const bool may = process_vm_readv(child, &here, 1, &there, 1, 0) == 1;
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return may;
}

static int open_one(void **state)
{
    end_open(&a, 0, 3);
    of_a = end_card(&a);
    return 0;
}

static int close_one(void **state)
{
    end_close(&a);
    return fake_verbs.alive();
}

static void assert_done(struct end *e, enum ibv_wc_status status)
{
    assert_string_equal(ibv_wc_status_str(end_wait(e).status), ibv_wc_status_str(status));
}

/* A child with an end of its own. It is sent the parent's card, and answers with its own. */
struct child {
    pid_t pid;
    int to, from;
};

static void be_the_child(int from, int to)
{
    struct card parent, mine;
    struct ibv_wc wc = {0};
    struct end e;

    end_open(&e, 1, 3);
    mine = end_card(&e);
    if (write(to, &mine, sizeof(mine)) != sizeof(mine) ||
        read(from, &parent, sizeof(parent)) != sizeof(parent))
        _exit(1);
    end_connect(&e, &parent);
    if (end_post_recv(&e, 5, 0, 100) || write(to, "", 1) != 1)
        _exit(2);
    wc = end_wait(&e);
    if (wc.status != IBV_WC_SUCCESS || wc.byte_len != 100 || e.data[99] != 9)
        _exit(3);
    char byte;
    if (write(to, "", 1) != 1 || read(from, &byte, 1))
        _exit(4);
    end_close(&e);
    _exit(fake_verbs.alive());
}

static struct child start_child(struct card *out)
{
    int there[2], back[2];
    char byte;

    assert_int_equal(pipe(there), 0);
    assert_int_equal(pipe(back), 0);
    struct child c = {fork_at_rest(), there[1], back[0]};
    if (!c.pid) {
        close(there[1]);
        close(back[0]);
        be_the_child(there[0], back[1]);
    }
    close(there[0]);
    close(back[1]);
    assert_int_equal(read(c.from, out, sizeof(*out)), sizeof(*out));
    assert_int_equal(write(c.to, &of_a, sizeof(of_a)), sizeof(of_a));
    end_connect(&a, out);
    assert_int_equal(read(c.from, &byte, 1), 1);
    struct request r;
    memset(a.data, 9, 100);
    request_init(&r, &a, IBV_WR_SEND, 0, 100, NULL);
    assert_int_equal(end_post(&a, &r), 0);
    assert_done(&a, IBV_WC_SUCCESS);
    assert_int_equal(read(c.from, &byte, 1), 1);
    return c;
}

static int end_child(struct child *c)
{
    int status;

    close(c->to);
    close(c->from);
    assert_int_equal(waitpid(c->pid, &status, 0), c->pid);
    return status;
}

CASE_BETWEEN(messages_go_between_processes, open_one, close_one)
{
    struct card peer;
    struct request r;

    if (!may_reach_children())
        skip_because("this process may not reach the memory of its children");
    struct child c = start_child(&peer);
    request_init(&r, &a, IBV_WR_RDMA_READ, 0, 100, &peer);
    memset(a.data, 0, 100);
    assert_int_equal(end_post(&a, &r), 0);
    assert_done(&a, IBV_WC_SUCCESS);
    assert_int_equal(a.data[0], 9);
    assert_int_equal(end_child(&c), 0);
}

CASE_BETWEEN(a_process_that_died_does_not_answer, open_one, close_one)
{
    struct card peer;
    struct request r;

    if (!may_reach_children())
        skip_because("this process may not reach the memory of its children");
    struct child c = start_child(&peer);
    kill(c.pid, SIGKILL);
    assert_int_equal(end_child(&c), SIGKILL);
    request_init(&r, &a, IBV_WR_RDMA_WRITE, 0, 1, &peer);
    assert_int_equal(end_post(&a, &r), 0);
    assert_done(&a, IBV_WC_RETRY_EXC_ERR);
}

/* Lines "NAME VERSION" of functions that a program of libibverbs may look for. */
CASE(the_symbols_have_the_versions_of_libibverbs)
{
    static const char *const all[][2] = {
        {"ibv_create_comp_channel", "IBVERBS_1.0"}, {"ibv_open_device", "IBVERBS_1.1"},
        {"ibv_query_port", "IBVERBS_1.1"},          {"ibv_get_pkey_index", "IBVERBS_1.5"},
        {"ibv_reg_mr_iova", "IBVERBS_1.7"},         {"ibv_reg_mr_iova2", "IBVERBS_1.8"},
        {"ibv_set_ece", "IBVERBS_1.10"},            {"_ibv_query_gid_ex", "IBVERBS_1.11"},
        {"ibv_reg_dmabuf_mr", "IBVERBS_1.12"},      {"ibv_is_fork_initialized", "IBVERBS_1.13"},
    };
    void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);

    assert_non_null(library);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (!dlvsym(library, all[i][0], all[i][1]))
            fail_msg("no %s of version %s", all[i][0], all[i][1]);
    dlclose(library);
}

int main(void)
{
    fabric_begin();
    const int failed = run_cases(NULL, NULL);
    fabric_end();
    return failed;
}
