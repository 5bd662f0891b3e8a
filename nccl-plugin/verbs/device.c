/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/verbs/device.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/text.h"
#include "nccl-plugin/nccl_abi.h"
#include "nccl-plugin/net/devices.h"
#include "nccl-plugin/verbs/load.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- sysfs ----------------------------------------------------------------------------------- */

/* ".../0000:17:00.1": 0x17000001, in the order of NCCL */
static uint64_t bus_of(const char *pci_path)
{
    unsigned domain, bus, device, function;

    if (!pci_path ||
        sscanf(strrchr(pci_path, '/'), "/%x:%x:%x.%x", &domain, &bus, &device, &function) != 4)
        return UINT64_MAX;
    return (uint64_t)domain << 32 | bus << 16 | device << 8 | function;
}

/* A Soft-RoCE device has no PCI device of its own; its parent interface may have one. */
static void find_pci(const char *dir, struct dpn_hca *hca)
{
    char path[PATH_MAX], interface[64];

    snprintf(path, sizeof(path), "%s/device", dir);
    hca->pci_path = dpn_pci_path(path);
    hca->bus = bus_of(hca->pci_path);
    if (hca->pci_path || !dpn_read_line(dir, "parent", interface, sizeof(interface)))
        return;
    snprintf(path, sizeof(path), "%s/../../net/%s/device", dir, interface);
    hca->pci_path = dpn_pci_path(path);
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
                            const struct dpn_verbs_options *options, bool wants_direct,
                            struct dpn_hca *hca)
{
    find_pci(device->ibdev_path, hca);
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
    if (wants_direct && hca->pointers & NCCL_PTR_DMABUF)
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
    double gbps = dpn_read_line(dir, file, line, sizeof(line)) ? dp_strtod(line, NULL) : 0;
    return gbps >= 1 && gbps < 1e6 ? (int)(gbps * 1000) : speed_of(attr);
}

/* Limits on the size of one work request. Soft-RoCE reports 8 MiB, and more fails. */
enum { MOST_BYTES = 1 << 30, LEAST_BYTES = 1 << 20 };

static uint8_t needs_grh(const struct ibv_port_attr *attr)
{
    return attr->flags & IBV_QPF_GRH_REQUIRED && attr->link_layer == IBV_LINK_LAYER_INFINIBAND;
}

static void add_port(struct dpn_ports *ports, struct dpn_hca *hca, int number, int port_count,
                     int speed_mbps, const struct ibv_port_attr *attr, struct dpn_rail_place place)
{
    struct dpn_port *port = &ports->list[ports->count++];
    const uint32_t max = attr->max_msg_sz;

    *port = (struct dpn_port){
        .hca = hca, .number = number, .place = place,
        .is_ethernet = attr->link_layer == IBV_LINK_LAYER_ETHERNET,
        .mtu = (uint8_t)attr->active_mtu, .lid = attr->lid, .needs_grh = needs_grh(attr),
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
        if (!dpn_verbs_filter(options->hca, dpn_ibv.get_device_name(device), p, &place) ||
            dpn_ibv.query_port(hca->context, (uint8_t)p, &attr) || attr.state != IBV_PORT_ACTIVE ||
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

/* A device without an active port that is admitted is closed again, and so is the second of a
 * device without Data Direct. Returns whether it is used. */
static bool try_device(struct ibv_device *device, const struct dpn_verbs_options *options,
                       bool is_second, struct dpn_ports *ports)
{
    struct dpn_hca *hca = &ports->hcas[ports->hca_count];
    const int before = ports->count;
    struct ibv_device_attr attr;

    snprintf(hca->name, sizeof(hca->name), "%.59s%s", dpn_ibv.get_device_name(device),
             is_second ? "_dma" : "");
    hca->context = dpn_ibv.open_device(device);
    if (hca->context && !dpn_ibv.query_device(hca->context, &attr))
        hca->pd = dpn_ibv.alloc_pd(hca->context);
    if (hca->pd)
        add_ports(ports, hca, device, attr.phys_port_cnt, options);
    if (ports->count > before)
        read_properties(device, &attr, options,
                        options->data_direct == 2 ? is_second : options->data_direct, hca);
    if (ports->count == before || (is_second && !hca->has_data_direct)) {
        ports->count = before;
        close_hca(hca);
        return false;
    }
    /* dpn_hca_read_events polls; it never blocks */
    fcntl(hca->context->async_fd, F_SETFL, fcntl(hca->context->async_fd, F_GETFL) | O_NONBLOCK);
    pthread_mutex_init(&hca->lock, NULL);
    ports->hca_count++;
    return true;
}

/* Stable: ports of one PCI function stay in the order of libibverbs. */
static void sort_by_bus(struct dpn_ports *ports)
{
    for (int i = 1; i < ports->count; i++) {
        const struct dpn_port port = ports->list[i];
        int at = i;
        for (; at > 0 && ports->list[at - 1].hca->bus > port.hca->bus; at--)
            ports->list[at] = ports->list[at - 1];
        ports->list[at] = port;
    }
}

/* The queue pairs of iWARP and others are connected by other means. With NCCL_IB_DATA_DIRECT=2 a
 * device that has Data Direct is offered once without it and once with it, as a second device.
 * Returns how many devices are used. */
static int try_all(struct ibv_device **devices, int count, const struct dpn_verbs_options *options,
                   struct dpn_ports *out, int *others)
{
    int used = 0;

    for (int i = 0; i < count && out->count < DPN_MAX_PORTS; i++) {
        if (devices[i]->transport_type != IBV_TRANSPORT_IB) {
            ++*others;
            continue;
        }
        const bool is_used = try_device(devices[i], options, false, out);
        if (is_used && options->data_direct == 2 && out->count < DPN_MAX_PORTS)
            try_device(devices[i], options, true, out);
        used += is_used;
    }
    if (options->sorts_by_pci)
        sort_by_bus(out);
    return used;
}

void dpn_ports_find(const struct dpn_verbs_options *options, struct dpn_ports *out, char *why,
                    size_t why_len)
{
    int count = 0, used = 0, others = 0;

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
        used = try_all(devices, count, options, out, &others);
        dpn_ibv.free_device_list(devices);
    }
    size_t at = (size_t)snprintf(
        why, why_len, "%d of %d RDMA devices have an active port%s%.100s", used, count,
        options->hca ? " and are admitted by NCCL_IB_HCA=" : "", options->hca ? options->hca : "");
    if (others)
        at += (size_t)snprintf(why + at, why_len - at,
                               "; %d of iWARP or other protocols are not used", others);
    if (out->count == DPN_MAX_PORTS)
        snprintf(why + at, why_len - at, "; more than %d ports are not used", DPN_MAX_PORTS);
}

/* Room for all entries of all ports: with too little the kernel gives none. libibverbs passes the
 * size of the room in 16 bits, and refuses more. */
int dpn_port_gids(const struct dpn_port *port, const struct dpn_verbs_options *options,
                  struct dpn_gids *out)
{
    enum { ENTRIES = UINT16_MAX / sizeof(struct ibv_gid_entry) };
    struct ibv_gid_entry *table = calloc(ENTRIES, sizeof(*table));
    const ssize_t count =
        table ? dpn_ibv.query_gid_table(port->hca->context, table, ENTRIES, 0, sizeof(*table))
              : -ENOMEM;

    dpn_gids_choose(table, (int)count, port->number, options, out);
    free(table);
    if (count >= 0 || !port->is_ethernet)
        return 0;
    return dp_fail_quietly(DP_EIO, "the GIDs of %s cannot be read: %s", port->name,
                           strerror((int)-count));
}

void dpn_port_query(const struct dpn_port *port, uint16_t *lid, uint8_t *mtu, uint8_t *grh)
{
    struct ibv_port_attr attr = {.lid = port->lid, .active_mtu = (enum ibv_mtu)port->mtu};

    *grh = dpn_ibv.query_port(port->hca->context, (uint8_t)port->number, &attr) ? port->needs_grh
                                                                                : needs_grh(&attr);
    *lid = attr.lid;
    *mtu = (uint8_t)attr.active_mtu;
}

/* ---- asynchronous events --------------------------------------------------------------------- */

/* An odd number of changes means down, see port_changes. */
static void set_port(struct dpn_hca *hca, int port, bool down)
{
    if (port < 1 || port > DPN_HCA_PORTS ||
        atomic_load(&hca->port_changes[port]) % 2 == (unsigned)down)
        return;
    atomic_fetch_add(&hca->port_changes[port], 1);
    dp_log(down ? DP_LOG_WARN : DP_LOG_INFO, "%s port %d is %s", hca->name, port,
           down ? "down: look at its cable and switch, or at 'ip link' and 'ibstat'" : "up again");
}

static void take_event(struct dpn_hca *hca, const struct ibv_async_event *event)
{
    switch (event->event_type) {
    case IBV_EVENT_PORT_ERR:
        set_port(hca, event->element.port_num, true);
        break;
    case IBV_EVENT_PORT_ACTIVE:
        set_port(hca, event->element.port_num, false);
        break;
    case IBV_EVENT_DEVICE_FATAL:
        dp_log(DP_LOG_WARN, "%s has failed: look at the kernel's log", hca->name);
        atomic_store(&hca->is_dead, true);
        break;
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
        break;
    default: /* events of a queue pair show in its completions as well */
        dp_log(DP_LOG_INFO, "%s: %s", hca->name, dpn_ibv.event_type_str(event->event_type));
        break;
    }
}

void dpn_hca_read_events(struct dpn_hca *hca, int64_t now_ns)
{
    struct ibv_async_event event;

    if (pthread_mutex_trylock(&hca->lock))
        return;
    if (now_ns - hca->events_read_ns >= DP_NS_PER_MS) {
        hca->events_read_ns = now_ns;
        while (!dpn_ibv.get_async_event(hca->context, &event)) {
            take_event(hca, &event);
            dpn_ibv.ack_async_event(&event);
        }
    }
    pthread_mutex_unlock(&hca->lock);
}
