/* SPDX-License-Identifier: Apache-2.0
 *
 * test_verbs_devices.c - the order of RDMA ports, the PCI paths that NCCL gets, and their speeds:
 * from the files of tests/data/topology/adapters.tree, and with each variable that changes them.
 * The devices are those of the simulated libibverbs.
 */
#include "config.h" /* asprintf */

#include "fake_fabric.h"
#include "unit/microbatch/tree.h"

#include "cmocka_all.h"

#include "nccl-plugin/verbs/device.h"
#include "nccl-plugin/verbs/load.h"
#include "nccl-plugin/verbs/options.h"

#include <pthread.h>
#include <sys/stat.h>

static char *root;
static struct dpn_ports ports;
enum { DEVICES = 5 };

static void find(const struct dpn_verbs_options *options)
{
    char why[128];

    memset(&ports, 0, sizeof(ports));
    dpn_ports_find(options, &ports, why, sizeof(why));
    assert_string_equal(why, "5 of 5 RDMA devices have an active port");
    assert_int_equal(ports.count, DEVICES);
}

static void close_all(void)
{
    for (int i = 0; i < ports.hca_count; i++) {
        struct dpn_hca *hca = &ports.hcas[i];
        assert_int_equal(dpn_ibv.dealloc_pd(hca->pd), 0);
        assert_int_equal(dpn_ibv.close_device(hca->context), 0);
        pthread_mutex_destroy(&hca->lock);
        free(hca->pci_path);
    }
}

static void must_be_named(const char *const names[DEVICES])
{
    for (int i = 0; i < DEVICES; i++)
        assert_string_equal(ports.list[i].name, names[i]);
}

/* The PCI path of the i-th port, below sys/devices. */
static void must_be_at(int i, const char *place)
{
    FREED char *expected = NULL;

    assert_true(asprintf(&expected, "%s/sys/devices/%s", root, place) > 0);
    assert_string_equal(ports.list[i].hca->pci_path, expected);
}

/* ---- cases ----------------------------------------------------------------------------------- */

CASE(ports_come_in_the_order_of_the_bus)
{
    find(&(struct dpn_verbs_options){.sorts_by_pci = true});
    must_be_named((const char *[]){"mlx5_1", "mlx5_2", "mlx5_0", "mlx5_4", "mlx5_3"});
    close_all();
}

CASE(or_in_that_of_libibverbs)
{
    find(&(struct dpn_verbs_options){.sorts_by_pci = false});
    must_be_named((const char *[]){"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4"});
    close_all();
}

/* "unknown", or no such file: the port's attributes are used. */
CASE(the_kernel_reports_the_speed_of_a_port)
{
    find(&(struct dpn_verbs_options){.asks_kernel_speed = true});
    assert_int_equal(ports.list[0].speed_mbps, 800000);
    assert_int_equal(ports.list[1].speed_mbps, 200000);
    assert_int_equal(ports.list[2].speed_mbps, 100000);
    assert_int_equal(ports.list[3].speed_mbps, 100000);
    close_all();
}

CASE(or_the_attributes_of_the_port_do)
{
    find(&(struct dpn_verbs_options){.asks_kernel_speed = false});
    for (int i = 0; i < DEVICES; i++)
        assert_int_equal(ports.list[i].speed_mbps, 100000);
    close_all();
}

/* Functions of one card have one path for NCCL, which fuses ports of one card only when it is told
 * to. */
CASE(the_first_function_stands_for_its_card)
{
    find(&(struct dpn_verbs_options){.merge_functions = true});
    must_be_at(0, "pci0000:42/0000:42:00.0");
    must_be_at(1, "pci0000:17/0000:17:00.0");
    must_be_at(2, "pci0000:17/0000:17:00.0");
    assert_null(ports.list[3].hca->pci_path);
    assert_int_equal(ports.list[1].hca->function, 1);
    assert_int_equal(ports.list[2].hca->function, 0);
    close_all();
}

CASE(virtual_functions_may_count_as_cards)
{
    find(&(struct dpn_verbs_options){.merge_functions = false});
    must_be_at(1, "pci0000:17/0000:17:00.0");
    must_be_at(2, "pci0000:17/0000:17:02.3");
    close_all();
}

/* ---- all of them ----------------------------------------------------------------------------- */

static int set_up(void **state)
{
    char *devices;

    root = tree_unpack("adapters");
    if (asprintf(&devices, "%s/rdma/adapters", getenv("DP_TEST_DATA")) < 0)
        return -1;
    setenv("FAKE_VERBS_DEVICES", devices, 1);
    setenv("FAKE_VERBS_SYSFS", root, 1);
    free(devices);
    fabric_begin();
    return 0;
}

static int tear_down(void **state)
{
    fabric_end();
    tree_remove(root);
    return 0;
}

RUN_CASES(set_up, tear_down)
