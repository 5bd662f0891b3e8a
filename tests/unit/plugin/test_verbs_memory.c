/* SPDX-License-Identifier: Apache-2.0
 *
 * test_verbs_memory.c - what is registered with a device, and how often. The functions of the
 * device are defined below.
 */
#include "cmocka_all.h"

#include "nccl-plugin/nccl_abi.h"
#include "nccl-plugin/verbs/device.h"
#include "nccl-plugin/verbs/load.h"

static int registered, given_back, error;
static unsigned last_access;
static size_t last_len;

static struct ibv_mr *make(size_t len, unsigned flags)
{
    if (error) {
        errno = error;
        return NULL;
    }
    registered++;
    last_len = len;
    last_access = flags;
    return calloc(1, sizeof(struct ibv_mr));
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *data, size_t len, int flags)
{
    return make(len, (unsigned)flags);
}

static struct ibv_mr *reg_mr_iova2(struct ibv_pd *pd, void *data, size_t len, uint64_t iova,
                                   unsigned flags)
{
    assert_true((uintptr_t)data == iova);
    return make(len, flags);
}

static struct ibv_mr *no_dmabuf(struct ibv_pd *pd, uint64_t offset, size_t len, uint64_t iova,
                                int fd, int flags)
{
    errno = EOPNOTSUPP;
    return NULL;
}

static int dereg_mr(struct ibv_mr *mr)
{
    given_back++;
    free(mr);
    return 0;
}

static struct dpn_hca hca;

static int set_up(void **state)
{
    registered = given_back = error = 0;
    hca = (struct dpn_hca){.name = "mlx5_0"};
    pthread_mutex_init(&hca.lock, NULL);
    dpn_ibv = (struct dpn_ibv){.reg_mr = reg_mr, .reg_mr_iova2 = reg_mr_iova2,
                               .reg_dmabuf_mr = no_dmabuf, .dereg_mr = dereg_mr};
    return 0;
}

static int tear_down(void **state)
{
    assert_int_equal(hca.cache.count, 0);
    assert_int_equal(registered, given_back);
    free(hca.cache.entries);
    return 0;
}

static struct dpn_region host(uintptr_t at, size_t size)
{
    return (struct dpn_region){(void *)at, size, NCCL_PTR_HOST, -1, 0};
}

static struct ibv_mr *get(uintptr_t at, size_t size)
{
    const struct dpn_region region = host(at, size);
    struct ibv_mr *mr = NULL;

    assert_int_equal(dpn_mr_get(&hca, &region, &mr), 0);
    return mr;
}

CASE_BETWEEN(the_same_pages_are_registered_once, set_up, tear_down)
{
    struct ibv_mr *a = get(0x10010, 100), *b = get(0x10800, 0x800), *c = get(0x10010, 100);

    assert_int_equal(last_len, 0x1000);
    assert_ptr_equal(a, b);
    assert_ptr_equal(a, c);
    assert_int_equal(registered, 1);
    dpn_mr_put(&hca, a);
    dpn_mr_put(&hca, b);
    assert_int_equal(given_back, 0);
    dpn_mr_put(&hca, c);
    assert_int_equal(given_back, 1);
}

/* Otherwise the pages around it would stay registered after the whole is deregistered. */
CASE_BETWEEN(a_part_is_registered_by_itself, set_up, tear_down)
{
    struct ibv_mr *whole = get(0x10000, 0x8000), *part = get(0x12000, 0x1000);

    assert_ptr_not_equal(whole, part);
    dpn_mr_put(&hca, whole);
    assert_int_equal(given_back, 1);
    dpn_mr_put(&hca, part);
}

CASE_BETWEEN(many_are_found_again, set_up, tear_down)
{
    enum { MANY = 300 };
    struct ibv_mr *mrs[MANY];

    for (int i = 0; i < MANY; i++)
        mrs[i] = get(0x100000 + (uintptr_t)(i * 7 % MANY) * 0x2000, 0x1000u + (i % 3) * 0x1000u);
    assert_int_equal(registered, MANY);
    for (int i = 0; i < MANY; i++)
        assert_ptr_equal(
            get(0x100000 + (uintptr_t)(i * 7 % MANY) * 0x2000, 0x1000u + (i % 3) * 0x1000u), mrs[i]);
    for (int i = 0; i < 2 * MANY; i++)
        dpn_mr_put(&hca, mrs[i % MANY]);
}

CASE_BETWEEN(ordering_is_relaxed_where_the_device_may, set_up, tear_down)
{
    dpn_mr_put(&hca, get(0x10000, 1));
    assert_false(last_access & IBV_ACCESS_RELAXED_ORDERING);
    hca.relaxed_ordering = true;
    dpn_mr_put(&hca, get(0x10000, 1));
    assert_true(last_access & IBV_ACCESS_RELAXED_ORDERING);
}

static struct ibv_mr *reg_buf(struct ibv_pd *pd, uint64_t offset, size_t len, uint64_t iova, int fd,
                              int flags)
{
    return make(len, (unsigned)flags);
}

/* A device accesses no byte of a dma-buf beyond what was registered, so whole pages are too much.
 */
CASE_BETWEEN(of_a_dma_buf_the_same_bytes_are_registered_once, set_up, tear_down)
{
    const struct dpn_region shorter = {(void *)0x10000, 0x100, NCCL_PTR_CUDA, 5, 0};
    struct dpn_region longer = shorter;
    struct ibv_mr *a, *b, *c;

    dpn_ibv.reg_dmabuf_mr = reg_buf;
    longer.size = 0x800; /* in the same page */
    assert_int_equal(dpn_mr_get(&hca, &shorter, &a), 0);
    assert_int_equal(dpn_mr_get(&hca, &longer, &b), 0);
    assert_int_equal(dpn_mr_get(&hca, &shorter, &c), 0);
    assert_ptr_equal(a, c);
    assert_ptr_not_equal(a, b);
    struct ibv_mr *pages = get(0x10000, 0x100); /* of the CPU, at the same address */
    assert_ptr_not_equal(pages, a);
    assert_int_equal(registered, 3);
    dpn_mr_put(&hca, a);
    dpn_mr_put(&hca, b);
    dpn_mr_put(&hca, c);
    dpn_mr_put(&hca, pages);
    assert_int_equal(given_back, 3);
    dpn_ibv.reg_dmabuf_mr = NULL;
}

CASE_BETWEEN(peer_memory_does_what_a_dma_buf_does_not, set_up, tear_down)
{
    const struct dpn_region region = {(void *)0x10000, 0x1000, NCCL_PTR_CUDA, 5, 0};
    struct ibv_mr *mr;

    assert_int_equal(dpn_mr_get(&hca, &region, &mr), DP_EUNSUPPORTED);
    hca.pointers = NCCL_PTR_CUDA;
    assert_int_equal(dpn_mr_get(&hca, &region, &mr), 0);
    dpn_mr_put(&hca, mr);
}

static int direct_error, direct_flags; /* 0: none; of the last call */

static struct ibv_mr *reg_direct(struct ibv_pd *pd, uint64_t offset, size_t len, uint64_t iova, int fd,
                                 int flags, int own)
{
    assert_true(offset == 64 && iova == 0x10000 && fd == 5);
    direct_flags = own;
    errno = direct_error;
    return direct_error ? NULL : make(len, (unsigned)flags);
}

static int give_direct_path(struct ibv_context *context, char *path, size_t room)
{
    snprintf(path, room, "/devices/pci0001:00/0001:00:00.0");
    return direct_error;
}

CASE_BETWEEN(dma_bufs_go_by_data_direct_where_it_is_taken, set_up, tear_down)
{
    const struct dpn_region region = {(void *)0x10000, 0x1000, NCCL_PTR_CUDA, 5, 64};
    struct ibv_mr *mr;

    dpn_mlx5 = (struct dpn_mlx5){.reg_dmabuf_mr = reg_direct,
                                 .get_data_direct_sysfs_path = give_direct_path};
    direct_error = 0;
    char *path = dpn_mlx5_find_direct(NULL);
    assert_string_equal(path, "/sys/devices/pci0001:00/0001:00:00.0");
    free(path);
    hca.has_data_direct = true;
    assert_int_equal(dpn_mr_get(&hca, &region, &mr), 0);
    assert_int_equal(direct_flags, 1);
    dpn_mr_put(&hca, mr);
    direct_error = ENOMEM; /* not a reason to give up Data Direct */
    assert_int_equal(dpn_mr_get(&hca, &region, &mr), DP_EUNSUPPORTED);
    assert_true(hca.has_data_direct);
    direct_error = EOPNOTSUPP;
    hca.pointers = NCCL_PTR_CUDA;
    assert_int_equal(dpn_mr_get(&hca, &region, &mr), 0); /* otherwise */
    assert_false(hca.has_data_direct);
    dpn_mr_put(&hca, mr);
    assert_null(dpn_mlx5_find_direct(NULL));
    dpn_mlx5 = (struct dpn_mlx5){.reg_dmabuf_mr = NULL};
    assert_null(dpn_mlx5_find_direct(NULL));
    assert_int_equal(errno, EOPNOTSUPP);
}

CASE_BETWEEN(an_error_names_the_limit_and_how_to_raise_it, set_up, tear_down)
{
    const struct dpn_region region = host(0x10000, 0x1000);
    struct ibv_mr *mr;

    error = ENOMEM;
    assert_int_equal(dpn_mr_get(&hca, &region, &mr), DP_ENOMEM);
    assert_non_null(strstr(dp_last_error(), "4096 bytes of host memory with mlx5_0"));
    assert_non_null(strstr(dp_last_error(), "ulimit -l"));
    error = EINVAL;
    assert_int_equal(dpn_mr_get(&hca, &region, &mr), DP_EIO);
}
