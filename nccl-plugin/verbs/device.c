/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: strverscmp */

#include "nccl-plugin/verbs/device.h"

#include "base/fail.h"
#include "base/number.h"
#include "nccl-plugin/nccl_abi.h"
#include "nccl-plugin/net/pci.h"
#include "nccl-plugin/verbs/load.h"
#include "nccl-plugin/verbs/mlx5.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- sysfs ----------------------------------------------------------------------------------- */

static bool read_line(const char *dir, const char *file, char *line, int len)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/%s", dir, file);
    FILE *f = fopen(path, "re");
    bool has = f && fgets(line, len, f);
    if (f)
        fclose(f);
    if (has)
        line[strcspn(line, "\n")] = '\0';
    return has;
}

/* A Soft-RoCE device has no PCI device of its own; its parent interface may have one. */
static char *find_pci(const char *dir)
{
    char path[PATH_MAX], interface[64];

    snprintf(path, sizeof(path), "%s/device", dir);
    char *found = dpn_pci_path(path);
    if (found || !read_line(dir, "parent", interface, sizeof(interface)))
        return found;
    snprintf(path, sizeof(path), "%s/../../net/%s/device", dir, interface);
    return dpn_pci_path(path);
}

/* "0000:17:00.1": 1 */
static int function_of(const char *pci_path)
{
    const char *dot = pci_path ? strrchr(pci_path, '.') : NULL;

    return dot && dot[1] >= '0' && dot[1] <= '9' && !dot[2] ? dot[1] - '0' : 0;
}

/* NCCL compares PCI paths to see which ports share a card, so all functions of a card get the path
 * of one: the physical function, or function 0. */
static void merge_card_functions(struct dpn_hca *hca, bool merge_functions)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/physfn", hca->pci_path ? hca->pci_path : "");
    char *physical = hca->pci_path && merge_functions ? realpath(path, NULL) : NULL;
    if (physical) {
        free(hca->pci_path);
        hca->pci_path = physical;
    }
    hca->function = function_of(hca->pci_path);
    if (!hca->function)
        return;
    char *digit = hca->pci_path + strlen(hca->pci_path) - 1;
    const char own = *digit;
    *digit = '0';
    if (access(hca->pci_path, F_OK))
        *digit = own;
}

/* ---- capabilities of a device ---------------------------------------------------------------- */

static bool has_peer_memory(void)
{
    return !access("/sys/kernel/mm/memory_peers/nv_mem/version", F_OK) ||
           !access("/sys/kernel/mm/memory_peers/nv_mem_nc/version", F_OK) ||
           !access("/sys/module/nvidia_peermem/version", F_OK);
}

/* No file is a valid dma-buf; the error tells whether dma-bufs are supported. */
static bool supports_dma_bufs(struct ibv_pd *pd)
{
    if (!dpn_ibv.reg_dmabuf_mr)
        return false;
    errno = 0;
    struct ibv_mr *mr = dpn_ibv.reg_dmabuf_mr(pd, 0, 0, 0, -1, 0);
    if (mr)
        dpn_ibv.dereg_mr(mr);
    return !mr && errno == EBADF;
}

enum { SOFT_VENDOR = 0xffffff };

/* NCCL gets the path of that PCI function, as it decides by the distance to the GPU. */
static void find_data_direct(struct dpn_hca *hca, const struct dpn_verbs_options *options)
{
    char *path = dpn_mlx5_find_direct(hca->context);

    if (!path) {
        if (options->data_direct > 0)
            dp_log(DP_LOG_INFO, "NCCL_IB_DATA_DIRECT=%d: %s has no Data Direct: %s",
                   options->data_direct, hca->name, strerror(errno));
        return;
    }
    dp_log(DP_LOG_INFO, "%s reaches GPU memory by Data Direct, %s", hca->name, path);
    free(hca->pci_path);
    hca->pci_path = path;
    hca->has_data_direct = true;
}

static void read_properties(struct ibv_device *device, const struct ibv_device_attr *attr,
                            const struct dpn_verbs_options *options, struct dpn_hca *hca)
{
    hca->pci_path = find_pci(device->ibdev_path);
    merge_card_functions(hca, options->merge_functions);
    hca->guid = be64toh(attr->sys_image_guid ? attr->sys_image_guid : attr->node_guid);
    hca->is_soft = attr->vendor_id == SOFT_VENDOR || !strncmp(hca->name, "rxe", 3);
    hca->relaxed_ordering = options->relaxed_ordering && dpn_ibv.reg_mr_iova2;
    hca->pointers = NCCL_PTR_HOST;
    if (has_peer_memory())
        hca->pointers |= NCCL_PTR_CUDA;
    if (supports_dma_bufs(hca->pd))
        hca->pointers |= NCCL_PTR_DMABUF;
    if (attr->vendor_id == DPN_MLX5_VENDOR)
        dpn_mlx5_load();
    if (options->data_direct && hca->pointers & NCCL_PTR_DMABUF)
        find_data_direct(hca, options);
}

/* ---- ports ----------------------------------------------------------------------------------- */

/* Mbit/s of a link lane by the bits of active_speed, number of lanes by the bits of active_width.
 */
static int speed_of(const struct ibv_port_attr *attr)
{
    static const int lane_mbps[] = {2500, 5000, 10000, 10000, 14000, 25000, 50000, 100000};
    static const int lanes[] = {1, 4, 8, 12, 2};
    const int s = attr->active_speed ? __builtin_ctz(attr->active_speed) : 0;
    const int w = attr->active_width ? __builtin_ctz(attr->active_width) : 0;

    return lane_mbps[s < 8 ? s : 7] * lanes[w < 5 ? w : 4];
}

/* The kernel reports speeds that the structure has no bits for: "800 Gb/sec (4X XDR)". */
static int read_speed(const char *dir, int port, const struct ibv_port_attr *attr,
                      const struct dpn_verbs_options *options)
{
    char file[64], line[64];

    if (!options->asks_kernel_speed)
        return speed_of(attr);
    snprintf(file, sizeof(file), "ports/%d/rate", port);
    double gbps = read_line(dir, file, line, sizeof(line)) ? dp_strtod(line, NULL) : 0;
    return gbps >= 1 && gbps < 1e6 ? (int)(gbps * 1000) : speed_of(attr);
}

/* Limits on the size of one work request. Soft-RoCE reports 8 MiB, and more fails. */
enum { MOST_BYTES = 1 << 30, LEAST_BYTES = 1 << 20 };

static void add_port(struct dpn_ports *ports, struct dpn_hca *hca, int number, int port_count,
                     int speed_mbps, const struct ibv_port_attr *attr, struct dpn_rail_place place)
{
    struct dpn_port *port = &ports->list[ports->count++];
    const uint32_t max = attr->max_msg_sz;

    *port = (struct dpn_port){
        .hca = hca, .number = number, .place = place,
        .is_ethernet = attr->link_layer == IBV_LINK_LAYER_ETHERNET,
        .mtu = (uint8_t)attr->active_mtu, .lid = attr->lid,
        .max_message = max > MOST_BYTES ? MOST_BYTES : max < LEAST_BYTES ? LEAST_BYTES : max,
        .speed_mbps = speed_mbps,
    };
    snprintf(port->name, sizeof(port->name), port_count > 1 ? "%s:%d" : "%s", hca->name, number);
}

static void add_ports(struct dpn_ports *ports, struct dpn_hca *hca, struct ibv_device *device,
                      int port_count, const struct dpn_verbs_options *options)
{
    struct dpn_rail_place place;
    struct ibv_port_attr attr;

    for (int p = 1; p <= port_count && p <= DPN_HCA_PORTS && ports->count < DPN_MAX_PORTS; p++) {
        memset(&attr, 0, sizeof(attr));
        if (!dpn_verbs_filter(options->hca, hca->name, p, &place) ||
            dpn_ibv.query_port(hca->context, (uint8_t)p, &attr) ||
            attr.state != IBV_PORT_ACTIVE ||
            (attr.link_layer != IBV_LINK_LAYER_ETHERNET &&
             attr.link_layer != IBV_LINK_LAYER_INFINIBAND))
            continue;
        add_port(ports, hca, p, port_count, read_speed(device->ibdev_path, p, &attr, options),
                 &attr, place);
    }
}

/* ---- devices --------------------------------------------------------------------------------- */

static void close_hca(struct dpn_hca *hca)
{
    if (hca->pd)
        dpn_ibv.dealloc_pd(hca->pd);
    if (hca->context)
        dpn_ibv.close_device(hca->context);
    free(hca->pci_path);
    *hca = (struct dpn_hca){.context = NULL};
}

/* A device without an active port that is admitted is closed again. */
static void try_device(struct ibv_device *device, const struct dpn_verbs_options *options,
                       struct dpn_ports *ports)
{
    struct dpn_hca *hca = &ports->hcas[ports->hca_count];
    const int before = ports->count;
    struct ibv_device_attr attr;

    snprintf(hca->name, sizeof(hca->name), "%s", dpn_ibv.get_device_name(device));
    hca->context = dpn_ibv.open_device(device);
    if (hca->context && !dpn_ibv.query_device(hca->context, &attr))
        hca->pd = dpn_ibv.alloc_pd(hca->context);
    if (hca->pd)
        add_ports(ports, hca, device, attr.phys_port_cnt, options);
    if (ports->count == before) {
        close_hca(hca);
        return;
    }
    read_properties(device, &attr, options, hca);
    /* dpn_hca_read_events polls; it never blocks */
    fcntl(hca->context->async_fd, F_SETFL, fcntl(hca->context->async_fd, F_GETFL) | O_NONBLOCK);
    pthread_mutex_init(&hca->lock, NULL);
    ports->hca_count++;
}

static int by_place(const void *a, const void *b)
{
    const struct dpn_port *p = a, *q = b;
    const char *pci[] = {p->hca->pci_path ? p->hca->pci_path : "~",
                         q->hca->pci_path ? q->hca->pci_path : "~"};
    int order = strcmp(pci[0], pci[1]);

    if (!order)
        order = p->hca->function - q->hca->function;
    if (!order)
        order = strverscmp(p->hca->name, q->hca->name);
    return order ? order : p->number - q->number;
}

static void try_all(struct ibv_device **devices, int count, const struct dpn_verbs_options *options,
                    struct dpn_ports *out)
{
    for (int i = 0; i < count && out->hca_count < DPN_MAX_PORTS; i++)
        try_device(devices[i], options, out);
    if (options->sorts_by_pci)
        qsort(out->list, (size_t)out->count, sizeof(out->list[0]), by_place);
}

void dpn_ports_find(const struct dpn_verbs_options *options, struct dpn_ports *out, char *why,
                    size_t why_len)
{
    int count = 0;

    if (options->disabled) {
        snprintf(why, why_len, "NCCL_IB_DISABLE=1");
        return;
    }
    if (dpn_verbs_load()) {
        snprintf(why, why_len, "%s", dp_last_error());
        return;
    }
    struct ibv_device **devices = dpn_ibv.get_device_list(&count);
    if (devices) {
        try_all(devices, count, options, out);
        dpn_ibv.free_device_list(devices);
    }
    snprintf(why, why_len, "%d of %d RDMA devices have an active port%s%s", out->hca_count, count,
             options->hca ? " and are admitted by NCCL_IB_HCA=" : "",
             options->hca ? options->hca : "");
}

void dpn_port_gids(const struct dpn_port *port, const struct dpn_verbs_options *options,
                   struct dpn_gids *out)
{
    enum { ENTRIES = 256 };
    struct ibv_gid_entry table[ENTRIES];
    ssize_t count = dpn_ibv.query_gid_table(port->hca->context, table, ENTRIES, 0,
                                            sizeof(table[0]));

    count = count > 0 ? dpn_gids_of_this_namespace(table, (int)count) : 0;
    dpn_gids_choose(table, (int)count, port->number, options, out);
}

void dpn_port_query(const struct dpn_port *port, uint16_t *lid, uint8_t *mtu)
{
    struct ibv_port_attr attr = {.lid = port->lid, .active_mtu = (enum ibv_mtu)port->mtu};

    dpn_ibv.query_port(port->hca->context, (uint8_t)port->number, &attr);
    *lid = attr.lid;
    *mtu = (uint8_t)attr.active_mtu;
}
