/* SPDX-License-Identifier: Apache-2.0
 *
 * test_pages.c - on which NUMA node the pages are of what the preload library places, as the kernel
 * says: allocated and registered memory of the simulated CUDA, and the ring of staging. A process
 * of its own for each node, as options are read once. With two nodes, one of them is not the node
 * that memory comes from by itself; tests/rdma-vm has such a machine.
 */
#include "config.h" /* GNU extensions: syscall */

#include "cmocka_all.h"

#include "offload/preload/node.h"
#include "offload/preload/ring.h"
#include "offload/preload/state.h"
#include "simcuda/cuda_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, BATCH = 256, WRONG = 1, CANNOT = 77 };
static const size_t bytes = (size_t)2 << 20;

int cudaMallocHost(void **out, size_t bytes);
int cuMemHostAlloc(void **out, size_t bytes, unsigned flags);
int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags);

/* ---- in the process of a node ---------------------------------------------------------------- */

static size_t count_elsewhere(char *at, size_t len, int node)
{
    size_t elsewhere = 0;

    for (size_t done = 0; done < len; done += (size_t)BATCH * PAGE) {
        void *pages[BATCH];
        int nodes[BATCH];
        size_t count = 0;
        for (; count < BATCH && done + count * PAGE < len; count++)
            pages[count] = at + done + count * PAGE;
        if (syscall(SYS_move_pages, 0, count, pages, NULL, nodes, 0))
            exit(CANNOT);
        for (size_t i = 0; i < count; i++)
            elsewhere += nodes[i] != node;
    }
    return elsewhere;
}

static int failed(const char *what, char *at, size_t len, int node)
{
    const size_t elsewhere = count_elsewhere(at, len, node);

    if (elsewhere)
        fprintf(stderr, "%s: %zu of %zu pages are not on node %d\n", what, elsewhere, len / PAGE,
                node);
    return elsewhere != 0;
}

static int allocate_plain(void **out, size_t len, unsigned flags)
{
    (void)flags;
    return cudaMallocHost(out, len);
}

static int check_allocated(const char *what, int (*allocate)(void **, size_t, unsigned), int node)
{
    void *at = NULL;

    return allocate(&at, bytes, 0) || failed(what, at, bytes, node) || cudaFreeHost(at);
}

static int check_registered(const char *what, int (*enter)(void *, size_t, unsigned), int node)
{
    char *at = aligned_alloc(PAGE, bytes);

    memset(at, 1, bytes); /* the pages are there already, wherever that is */
    const int wrong =
        enter(at, bytes, 0) || failed(what, at, bytes, node) || cudaHostUnregister(at);
    free(at);
    return wrong;
}

static int take_chunks(struct dpo_chunk *out[DPO_RING_TAKE])
{
    const struct dpo_driver *driver = dpo_driver(__builtin_return_address(0));
    void *context = NULL;

    return driver && !driver->get_context(&context)
               ? dpo_ring_take(driver, context, DPO_NO_NODE, out)
               : 0;
}

static int check_ring(int node)
{
    struct dpo_chunk *chunks[DPO_RING_TAKE];
    char *host = malloc(2 * DPO_RING_CHUNK_BYTES);
    void *device;
    int wrong = 0;

    memset(host, 1, 2 * DPO_RING_CHUNK_BYTES);
    if (cudaMalloc(&device, 2 * DPO_RING_CHUNK_BYTES) ||
        cudaMemcpy(device, host, 2 * DPO_RING_CHUNK_BYTES, 1) || cudaDeviceSynchronize() ||
        dpo_counted(DPO_STAGED_TO_DEVICE) != 1)
        return WRONG;
    const int count = take_chunks(chunks);
    for (int i = 0; i < count; i++)
        wrong |= failed("the ring", chunks[i]->at, DPO_RING_CHUNK_BYTES, node);
    free(host);
    return wrong || count != DPO_RING_TAKE;
}

static int check_node(int node)
{
    int wrong = check_allocated("cudaHostAlloc", cudaHostAlloc, node);

    wrong |= check_allocated("cudaMallocHost", allocate_plain, node);
    wrong |= check_allocated("cuMemHostAlloc", cuMemHostAlloc, node);
    wrong |= check_registered("cudaHostRegister", cudaHostRegister, node);
    wrong |= check_registered("cuMemHostRegister_v2", cuMemHostRegister_v2, node);
    if (dpo_counted(DPO_WITHOUT_NODE))
        return CANNOT;
    wrong |= dpo_counted(DPO_PAGES) != 5 * bytes / PAGE ||
             dpo_counted(DPO_PAGES_ON_NODE) != 5 * bytes / PAGE;
    return wrong | check_ring(node);
}

/* ---- all nodes ------------------------------------------------------------------------------- */

static const char *self;

static int run_self(int node)
{
    const pid_t child = fork();
    char number[16];
    int status = -1;

    snprintf(number, sizeof(number), "%d", node);
    if (!child) {
        setenv("DUALPIPE_PRELOAD_NODE", number, 1);
        setenv("DUALPIPE_PRELOAD_STAGE", "1", 1);
        setenv("DUALPIPE_PRELOAD_STAGE_MIN", "2097152", 1);
        execl(self, self, number, (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void all_pages_are_on_the_node(void **state)
{
    char path[64];
    int nodes = 0;

    (void)state;
    for (; nodes < 64; nodes++) {
        snprintf(path, sizeof(path), "/sys/devices/system/node/node%d", nodes);
        if (access(path, F_OK))
            break;
        const int status = run_self(nodes);
        if (status == CANNOT)
            skip_because("the system refuses memory policies, or does not tell where pages are");
        assert_int_equal(status, 0);
    }
    if (!nodes)
        skip_because("the system has no NUMA nodes in /sys");
    print_message("memory of the preload library was on each of %d nodes\n", nodes);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_pages_are_on_the_node),
    };

    self = argv[0];
    if (argc == 2)
        return check_node(atoi(argv[1]));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
