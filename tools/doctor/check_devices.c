/* SPDX-License-Identifier: Apache-2.0
 *
 * check_devices.c - GPUs and network cards: the libraries without which GPUs are not used, or slowly;
 * their PCIe links; what sends traffic between two devices round by the processor; devices on different
 * sockets, and whether a card can reach a GPU's memory at all.
 */
#include "config.h"

#include "doctor/doctor.h"
#include "doctor/library.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- where they are --------------------------------------------------------------------------- */

enum { NVIDIA = 0x10de, CLASS_DISPLAY = 0x03 };

static struct device *add(struct devices *devices)
{
    struct device *more = realloc(devices->items, (devices->count + 1) * sizeof(*more));

    if (!more)
        return NULL;
    devices->items = more;
    more[devices->count] = (struct device){.node = -1};
    return &more[devices->count++];
}

/* A virtio device is one level below its PCI function. */
static void place(struct doctor *d, struct device *device, const char *link)
{
    double node;

    if (!tree_real(&d->tree, &device->path, "%s", link))
        device->path.text[0] = 0;
    else if (!tree_has(&d->tree, "%s/class", device->path.text))
        device->path = devices_parent(d, device->path.text);
    if (*device->path.text && tree_number(&d->tree, &node, "%s/numa_node", device->path.text))
        device->node = (int)node;
}

static void find_gpus(struct doctor *d, struct devices *devices)
{
    struct tree_list list = tree_glob(&d->tree, "/sys/bus/pci/devices/*");

    for (size_t i = 0; i < list.count; i++) {
        double vendor, class;
        if (!tree_number(&d->tree, &vendor, "%s/vendor", list.paths[i]) || vendor != NVIDIA ||
            !tree_number(&d->tree, &class, "%s/class", list.paths[i]) ||
            ((int)class >> 16) != CLASS_DISPLAY)
            continue;
        struct device *gpu = add(devices);
        if (!gpu)
            break;
        gpu->gpu = true;
        snprintf(gpu->name, sizeof(gpu->name), "GPU %s", tree_base(list.paths[i]));
        place(d, gpu, list.paths[i]);
    }
    tree_list_free(&list);
}

bool devices_interface(struct doctor *d, const char *name, char interface[static 64])
{
    char line[256];
    struct tree_list list;
    bool found = tree_line(&d->tree, line, "/sys/class/infiniband/%s/ports/1/gid_attrs/ndevs/0",
                           name) && *line;

    /* Soft-RoCE and soft-iWARP name it another way. */
    found = found || (tree_line(&d->tree, line, "/sys/class/infiniband/%s/parent", name) && *line);
    if (!found) {
        list = tree_glob(&d->tree, "/sys/class/infiniband/%s/device/net/*", name);
        if ((found = list.count))
            snprintf(line, sizeof(line), "%s", tree_base(list.paths[0]));
        tree_list_free(&list);
    }
    if (found)
        snprintf(interface, 64, "%.63s", line);
    return found;
}

static void find_cards(struct doctor *d, struct devices *devices)
{
    struct tree_list list = tree_glob(&d->tree, "/sys/class/infiniband/*");

    for (size_t i = 0; i < list.count; i++) {
        struct device *card = add(devices);
        char interface[64];
        if (!card)
            break;
        snprintf(card->name, sizeof(card->name), "%s", tree_base(list.paths[i]));
        place(d, card, doctor_text(d, "%s/device", list.paths[i]));
        if (!*card->path.text && devices_interface(d, card->name, interface))
            place(d, card, doctor_text(d, "/sys/class/net/%s/device", interface));
    }
    tree_list_free(&list);
}

struct devices devices_find(struct doctor *d)
{
    struct devices devices = {0};

    find_gpus(d, &devices);
    find_cards(d, &devices);
    return devices;
}

void devices_free(struct devices *devices)
{
    free(devices->items);
    *devices = (struct devices){0};
}

int devices_gpu_count(struct doctor *d)
{
    struct devices devices = {0};

    find_gpus(d, &devices);
    int count = (int)devices.count;
    devices_free(&devices);
    return count;
}

struct tree_path devices_parent(struct doctor *d, const char *path)
{
    struct tree_path parent;

    snprintf(parent.text, sizeof(parent.text), "%.*s",
             (int)(strlen(path) - strlen(tree_base(path)) - (*path != 0)), path);
    if (!tree_has(&d->tree, "%s/class", parent.text))
        parent.text[0] = 0;
    return parent;
}

/* ---- libraries ------------------------------------------------------------------------------- */

static const struct wanted {
    const char *names[2];
    enum doctor_severity severity; /* where there is none */
    const char *consequence, *remedy;
} wanted[] = {
    {{"libcuda.so.1"}, DOCTOR_FAULT, "no program can use a GPU",
     "install the driver's libraries; a container gets them by --gpus all"},
    {{"libnvidia-ml.so.1"}, DOCTOR_FAULT, "NCCL does not start, and NVLink is not seen",
     "install the driver's libraries; a container gets them by --gpus all"},
    {{"libcublasLt.so.13", "libcublasLt.so.12"}, DOCTOR_NOTE,
     "'dualpipe train' computes matrix products by a slow kernel of its own",
     "install CUDA's cuBLAS, or nvidia-cublas by pip, or set CUDA_HOME"},
};

static void look_for(struct doctor *d, const struct wanted *w)
{
    const char *other = w->names[1], *rule;
    struct tree_path path;

    for (int i = 0; i < 2 && w->names[i]; i++)
        if (library_find(d, w->names[i], &path, &rule) ||
            library_find_packaged(d, w->names[i], true, &path, &rule) ||
            library_find_packaged(d, w->names[i], false, &path, &rule)) {
            doctor_say(d, DOCTOR_FINE, "%s is found by %s\v%s", w->names[i], rule, path.text);
            return;
        }
    doctor_say(d, w->severity,
               "no %s%s%s\v"
               "looked through the loader's directories, Python's packages and CUDA's\v%s\v%s",
               w->names[0], other ? " or " : "", other ? other : "", w->consequence, w->remedy);
}

/* Heterogeneous memory management: the open kernel modules, on Linux 6.1.24 or 6.2.11 and later,
 * unless it is switched off. Those who program for it save copies; those who do not lose nothing.
 */
static void look_at_pageable_memory(struct doctor *d)
{
    static const char file[] = "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm";
    char driver[256] = "", kernel[256] = "", off[256] = "";
    int v[3] = {0};

    tree_line(&d->tree, driver, "/proc/driver/nvidia/version");
    tree_line(&d->tree, kernel, "/proc/sys/kernel/osrelease");
    sscanf(kernel, "%d.%d.%d", &v[0], &v[1], &v[2]);
    const int release = v[0] * 1000000 + v[1] * 1000 + v[2];
    const bool is_new = release >= 6002011 || (release >= 6001024 && release < 6002000);
    const char *why = !strstr(driver, "Open Kernel Module")
                          ? "the kernel modules are not the open ones"
                      : !is_new                         ? "Linux is older than 6.1.24"
                      : !tree_line(&d->tree, off, file) ? NULL
                      : *off == 'Y'                     ? "it is switched off"
                                                        : "";
    if (!why)
        doctor_say(d, DOCTOR_UNKNOWN,
                   "whether GPUs can read pageable memory (HMM) cannot be seen\v%s\v"
                   "programs that hand pageable memory to kernels may fail\v"
                   "modprobe nvidia_uvm", file);
    else
        doctor_say(d, DOCTOR_FINE,
                   "GPUs can%s read pageable memory where it lies (HMM)%s%s\v"
                   "/proc/driver/nvidia/version, %s",
                   *why ? "not" : "", *why ? ": " : "", why, file);
}

/* Only of a process that runs can it be seen that offload's preload library sees no CUDA runtime. */
static void look_at_runtime(struct doctor *d)
{
    struct tree_path path;

    if (library_mapped(d, "libdualpipe-preload.so", &path) &&
        library_mapped(d, "libcuda.so", &path) && !library_mapped(d, "libcudart", &path))
        doctor_say(d, DOCTOR_NOTE,
                   "the process has CUDA's driver and no libcudart: its runtime is linked statically\v"
                   "/proc/%s/maps\v"
                   "libdualpipe-preload neither changes nor counts its copies and its pinned memory\v"
                   "link with nvcc -cudart shared; builds of JAX and CuPy have it inside", d->process);
}

void doctor_gpu(struct doctor *d)
{
    look_at_runtime(d);
    if (!devices_gpu_count(d))
        return;
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        look_for(d, &wanted[i]);
    look_at_pageable_memory(d);
}

/* ---- links: every one between a device and its processor, as wide and as fast as both ends can ---- */

/* What the function and the one above it can both do; a number of the file max_link_..., else 0. */
static double both_can(struct doctor *d, const char *path, const char *above, const char *what)
{
    double mine, theirs;

    if (!tree_number(&d->tree, &mine, "%s/max_link_%s", path, what))
        return 0;
    if (*above && tree_number(&d->tree, &theirs, "%s/max_link_%s", above, what) && theirs > 0 &&
        theirs < mine)
        return theirs;
    return mine;
}

static bool look_at_width(struct doctor *d, const char *path, const char *above, const char *name)
{
    double now, can = both_can(d, path, above, "width");

    if (!tree_number(&d->tree, &now, "%s/current_link_width", path) || now <= 0 || now >= can)
        return true;
    doctor_say(d, DOCTOR_WARNING,
               "the PCIe link of %s, on the way to %s, has %.0f of %.0f lanes\v"
               "%s/current_link_width, max_link_width\v"
               "at most %.0f %% of its bandwidth\v"
               "reseat the card, try another slot; look into the BIOS for bifurcation",
               tree_base(path), name, now, can, path, 100 * now / can);
    return false;
}

/* An idle GPU lets its link slow down. */
static bool look_at_speed(struct doctor *d, const char *path, const char *above,
                          const struct device *device)
{
    double now, can = both_can(d, path, above, "speed");

    if (!tree_number(&d->tree, &now, "%s/current_link_speed", path) || now <= 0 || now >= can)
        return true;
    doctor_say(d, device->gpu ? DOCTOR_UNKNOWN : DOCTOR_WARNING,
               "the PCIe link of %s, on the way to %s, runs at %g of %g GT/s\v"
               "%s/current_link_speed, max_link_speed\v%s\v%s",
               tree_base(path), device->name, now, can, path,
               device->gpu ? "slow, unless the GPU is idle: then its link rests"
                           : doctor_text(d, "at most %.0f %% of its bandwidth", 100 * now / can),
               device->gpu ? "look again while the GPU works"
                           : "reseat the card, try another slot; look for errors of the link in the "
                             "kernel's log (AER)");
    return false;
}

static int generation(double gigatransfers)
{
    static const double speeds[] = {2.5, 5, 8, 16, 32, 64}; /* of generation 1 and so on */
    int g = 0;

    while (g < 6 && speeds[g] <= gigatransfers)
        g++;
    return g;
}

/* A link runs as both ends can; for a GPU it is also said what the card could do in another slot. */
static void look_at_slot(struct doctor *d, const struct device *gpu)
{
    const char *path = gpu->path.text;
    const struct tree_path above = devices_parent(d, path);
    double speed, width;

    if (!tree_number(&d->tree, &speed, "%s/max_link_speed", path) ||
        !tree_number(&d->tree, &width, "%s/max_link_width", path))
        return;
    const double slot_speed = both_can(d, path, above.text, "speed");
    const double slot_width = both_can(d, path, above.text, "width");
    doctor_say(d, slot_speed < speed || slot_width < width ? DOCTOR_NOTE : DOCTOR_FINE,
               "%s can do PCIe generation %d with %.0f lanes, its slot generation %d with %.0f\v"
               "%s/max_link_speed, max_link_width\v"
               "copies reach %.0f %% of the card's bandwidth\v"
               "use a slot that has as much",
               gpu->name, generation(speed), width, generation(slot_speed), slot_width, path,
               100 * slot_speed * slot_width / (speed * width));
}

/* Every link up to the processor. */
static bool look_at_way(struct doctor *d, const struct device *device)
{
    struct tree_path at = device->path;
    bool good = true;

    while (*at.text) {
        struct tree_path above = devices_parent(d, at.text);
        good &= look_at_width(d, at.text, above.text, device->name);
        good &= look_at_speed(d, at.text, above.text, device);
        at = above;
    }
    return good;
}

void doctor_links(struct doctor *d)
{
    struct devices devices = devices_find(d);
    bool good = true;
    int seen = 0;

    for (size_t i = 0; i < devices.count; i++)
        if (*devices.items[i].path.text) {
            good &= look_at_way(d, &devices.items[i]);
            if (devices.items[i].gpu)
                look_at_slot(d, &devices.items[i]);
            seen++;
        }
    if (good && seen)
        doctor_say(d, DOCTOR_FINE,
                   "the PCIe links of %d GPUs and network cards run as they can\v"
                   "/sys/bus/pci/devices/*/current_link_*", seen);
    devices_free(&devices);
}

/* ---- isolation: the IOMMU when it translates, and ACS, with which a PCIe switch passes traffic between
 * devices up instead of across ------------------------------------------------------------------- */

/* PCIe base specification 7.7.11, and the extended capabilities' list at 0x100. */
enum {
    CONFIG_EXTENDED = 0x100,
    CAPABILITY_ACS = 0x0d,
    ACS_CONTROL = 6,
    ACS_REQUEST_REDIRECT = 1 << 2,
    ACS_COMPLETION_REDIRECT = 1 << 3
};

static unsigned little(const char *bytes, int count)
{
    unsigned value = 0;

    while (count--)
        value = value << 8 | (unsigned char)bytes[count];
    return value;
}

/* The control register of ACS, 0 if there is none. */
static unsigned acs_control(const char *config, size_t len)
{
    size_t at = CONFIG_EXTENDED;

    /* A list that goes round is no list. */
    for (int hops = 0; hops < 64 && at >= CONFIG_EXTENDED && at + 8 <= len; hops++) {
        unsigned head = little(config + at, 4);
        if ((head & 0xffff) == CAPABILITY_ACS)
            return little(config + at + ACS_CONTROL, 2);
        at = head >> 20;
    }
    return 0;
}

struct seen {
    int redirecting, hidden, bridges;
    const char *first; /* that redirects, or else that is hidden */
};

static void look_at_bridge(struct doctor *d, const char *path, struct seen *seen)
{
    size_t len = 0;
    char *config = tree_read(&d->tree, &len, "%s/config", path);
    const bool hidden = !config || len <= CONFIG_EXTENDED;
    const bool redirects =
        !hidden && acs_control(config, len) & (ACS_REQUEST_REDIRECT | ACS_COMPLETION_REDIRECT);

    seen->bridges++;
    seen->hidden += hidden;
    seen->redirecting += redirects;
    if ((redirects && seen->redirecting == 1) || (hidden && !seen->first))
        seen->first = doctor_text(d, "%s/config", path);
    free(config);
}

static void look_at_acs(struct doctor *d, const struct devices *devices)
{
    struct seen seen = {0};

    for (size_t i = 0; i < devices->count; i++) {
        struct tree_path at = devices->items[i].path;
        while (*at.text && *(at = devices_parent(d, at.text)).text)
            look_at_bridge(d, at.text, &seen);
    }
    if (seen.redirecting)
        doctor_say(d, DOCTOR_WARNING,
                   "ACS sends traffic between devices up to the processor, at %d of %d bridges\v"
                   "%s, ACS control\v"
                   "GPUDirect and peer copies are slow, or hang in a virtual machine\v"
                   "switch ACS off in the BIOS, or for each: setpci -s %s ECAP_ACS+6.w=0",
                   seen.redirecting, seen.bridges, seen.first,
                   tree_base(devices_parent(d, seen.first).text));
    else if (seen.hidden)
        doctor_say(d, DOCTOR_UNKNOWN,
                   "whether ACS is on at %d bridges cannot be seen\v%s\v"
                   "if it is, GPUDirect and peer copies are slow\vrun as root, on the host",
                   seen.hidden, seen.first);
    else if (seen.bridges)
        doctor_say(d, DOCTOR_FINE, "ACS redirects nothing above the GPUs and cards\v"
                                   "/sys/bus/pci/devices/*/config");
}

/* "identity" passes addresses through; "DMA" and "DMA-FQ" translate. */
static void look_at_iommu(struct doctor *d, const struct devices *devices)
{
    const char *first = NULL;
    char type[256];
    int translated = 0;

    for (size_t i = 0; i < devices->count; i++)
        if (*devices->items[i].path.text &&
            tree_line(&d->tree, type, "%s/iommu_group/type", devices->items[i].path.text) &&
            !strncmp(type, "DMA", 3) && !translated++)
            first = doctor_text(d, "%s/iommu_group/type: %s", devices->items[i].path.text, type);
    if (translated)
        doctor_say(d, DOCTOR_WARNING,
                   "the IOMMU translates the addresses of %d GPUs and cards\v%s\v"
                   "GPUDirect goes through the processor, and may fail\v"
                   "boot with iommu=pt, or switch the IOMMU off where no virtual machine needs it",
                   translated, first);
    else
        doctor_say(d, DOCTOR_FINE, "the IOMMU translates nothing for GPUs and cards\v"
                                   "/sys/bus/pci/devices/*/iommu_group/type");
}

void doctor_isolation(struct doctor *d)
{
    struct devices devices = devices_find(d);

    if (devices.count) {
        look_at_iommu(d, &devices);
        look_at_acs(d, &devices);
    }
    devices_free(&devices);
}

/* ---- places ---------------------------------------------------------------------------------- */

static size_t node_count(struct doctor *d)
{
    struct tree_list nodes = tree_glob(&d->tree, "/sys/devices/system/node/node[0-9]*");
    size_t count = nodes.count;

    tree_list_free(&nodes);
    return count;
}

/* A card on that node, or just any. */
static const struct device *card_on(const struct devices *devices, int node, bool any)
{
    for (size_t i = 0; i < devices->count; i++)
        if (!devices->items[i].gpu && (any || devices->items[i].node == node))
            return &devices->items[i];
    return NULL;
}

/* With one node only it does not matter which the GPU is on. */
static void look_at_gpu(struct doctor *d, const struct devices *devices, const struct device *gpu,
                        size_t nodes)
{
    const struct device *card = card_on(devices, gpu->node, true);
    const struct device *near = card_on(devices, gpu->node, false);
    const char *path = gpu->path.text;

    if (gpu->node < 0)
        doctor_say(d, nodes > 1 ? DOCTOR_WARNING : nodes ? DOCTOR_FINE : DOCTOR_UNKNOWN,
                   "the kernel does not know the NUMA node of %s%s\v%s/numa_node\v"
                   "threads and buffers end up on any node, and NCCL guesses distances\v"
                   "update the BIOS; in a virtual machine give NCCL_TOPO_FILE", gpu->name,
                   nodes == 1 ? ", and there is one only" : "", path);
    else if (nodes < 2 || !card)
        doctor_say(d, DOCTOR_FINE, "%s is on NUMA node %d\v%s/numa_node", gpu->name, gpu->node, path);
    else if (near)
        doctor_say(d, DOCTOR_FINE, "%s and %s are both on NUMA node %d\v%s/numa_node", gpu->name,
                   near->name, gpu->node, path);
    else
        doctor_say(d, DOCTOR_WARNING,
                   "%s is on NUMA node %d, where no RDMA card is; %s is on %d\v"
                   "%s/numa_node, %s/numa_node\v"
                   "its messages cross the link between the sockets, and GPUDirect is not used at "
                   "NCCL's usual level\v"
                   "move a card to that socket, or let the stages with most traffic run on the other "
                   "GPUs",
                   gpu->name, gpu->node, card->name, card->node, path, card->path.text);
}

/* nvidia_peermem, or dma-buf: Linux 5.12 and NVIDIA's open kernel modules. */
static void look_at_gpudirect(struct doctor *d)
{
    size_t len;
    char *modules = tree_read(&d->tree, &len, "/proc/modules"), driver[256] = "", kernel[256] = "";
    int major = 0, minor = 0;

    tree_line(&d->tree, kernel, "/proc/sys/kernel/osrelease");
    sscanf(kernel, "%d.%d", &major, &minor);
    tree_line(&d->tree, driver, "/proc/driver/nvidia/version");
    if (modules && (strstr(modules, "nvidia_peermem ") || strstr(modules, "nv_peer_mem ")))
        doctor_say(d, DOCTOR_FINE, "GPUDirect through nvidia_peermem\v/proc/modules");
    else if (strstr(driver, "Open Kernel Module") && (major > 5 || (major == 5 && minor >= 12)))
        doctor_say(d, DOCTOR_FINE, "GPUDirect through dma-buf\v/proc/driver/nvidia/version");
    else
        doctor_say(d, DOCTOR_WARNING,
                   "network cards cannot reach the memory of GPUs\v"
                   "/proc/modules: no nvidia_peermem; /proc/driver/nvidia/version: not the open kernel "
                   "module\v"
                   "NCCL copies every message through host memory\v"
                   "modprobe nvidia_peermem, or install the open kernel modules");
    free(modules);
}

void doctor_places(struct doctor *d)
{
    struct devices devices = devices_find(d);

    for (size_t i = 0; i < devices.count && devices.items[i].gpu; i++)
        look_at_gpu(d, &devices, &devices.items[i], node_count(d));
    if (devices.count && devices.items[0].gpu && card_on(&devices, 0, true))
        look_at_gpudirect(d);
    devices_free(&devices);
}
