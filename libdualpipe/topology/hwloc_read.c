/* SPDX-License-Identifier: Apache-2.0
 *
 * hwloc_read.c - what hwloc knows: this machine, or one that `lstopo FILE.xml` wrote down. It says how
 * many GB/s a PCI link carries and not its generation and width, and of RDMA ports their state and GIDs,
 * not their rate.
 */
#include "config.h"

#include "base/fail.h"
#include "base/text.h"
#include "topology/build.h"
#include "topology/nvml.h"
#include "topology/pci_tree.h"

#ifdef HAVE_HWLOC

#include <errno.h>
#include <fcntl.h>
#include <hwloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOAD_S = 20 }; /* a machine of thousands of cores takes less than one */

struct reader {
    struct dp_topo_builder b;
    hwloc_topology_t h;
    int32_t host;
    struct dp_pci_functions f;
    hwloc_obj_t *objects; /* of f's functions, in step */
};

/* ---- the host ------------------------------------------------------------------------------- */

/* An info of the object or of one above it; "" for none. */
static const char *info_of(hwloc_obj_t obj, const char *name)
{
    for (; obj; obj = obj->parent) {
        const char *value = hwloc_obj_get_info_by_name(obj, name);
        if (value)
            return value;
    }
    return "";
}

static int info_number(hwloc_obj_t obj, const char *name)
{
    const char *text = info_of(obj, name);
    char *end;
    long number = strtol(text, &end, 10);

    return end != text && number >= 0 && number < INT32_MAX ? (int)number : -1;
}

static void add_host(struct reader *r)
{
    hwloc_obj_t root = hwloc_get_root_obj(r->h);
    hwloc_obj_t package = hwloc_get_obj_by_type(r->h, HWLOC_OBJ_PACKAGE, 0);
    hwloc_obj_t cpu = package ? package : root;
    const char *name = info_of(root, "HostName");

    r->host = dp_topo_add_node(&r->b, DP_TOPO_HOST, -1);
    struct dp_topo_node *n = dp_topo_node(&r->b, r->host);
    n->name = dp_topo_add_text(&r->b, *name && !strchr(name, '/') ? name : "node");
    n->model = dp_topo_add_text(&r->b, info_of(cpu, "CPUModel"));
    n->vendor = dp_topo_add_text(&r->b, info_of(cpu, "CPUVendor"));
    n->arch = dp_topo_add_text(&r->b, info_of(root, "Architecture"));
    n->family = info_number(cpu, "CPUFamilyNumber");
    n->cpu_model = info_number(cpu, "CPUModelNumber");
}

/* The largest caches among the CPUs of a NUMA node, together. */
static uint64_t cache_of(struct reader *r, hwloc_obj_t numa)
{
    static const hwloc_obj_type_t types[] = {HWLOC_OBJ_L4CACHE, HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE};

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        uint64_t sum = 0;
        for (hwloc_obj_t c = NULL; (c = hwloc_get_next_obj_by_type(r->h, types[i], c));)
            if (hwloc_bitmap_isincluded(c->cpuset, numa->cpuset))
                sum += c->attr->cache.size;
        if (sum)
            return sum;
    }
    return 0;
}

static void add_numa(struct reader *r, hwloc_obj_t numa)
{
    char *cpus = NULL;
    hwloc_obj_t package = numa;

    while (package && package->type != HWLOC_OBJ_PACKAGE)
        package = package->parent;
    if (hwloc_bitmap_list_asprintf(&cpus, numa->cpuset) < 0)
        r->b.failed = true;
    uint32_t text = dp_topo_add_text(&r->b, cpus);
    free(cpus);
    struct dp_topo_node *n = dp_topo_node(&r->b, dp_topo_add_node(&r->b, DP_TOPO_NUMA, r->host));
    n->os_index = (int32_t)numa->os_index;
    n->cpus = text;
    n->package = package ? (int32_t)package->os_index : -1;
    n->memory_bytes = numa->attr->numanode.local_memory;
    n->cache_bytes = cache_of(r, numa);
}

static void add_numas(struct reader *r)
{
    for (hwloc_obj_t o = NULL; (o = hwloc_get_next_obj_by_type(r->h, HWLOC_OBJ_NUMANODE, o));)
        add_numa(r, o);
    dp_topo_join_numas(&r->b, r->host);
}

/* ---- PCI ------------------------------------------------------------------------------------ */

static const struct hwloc_pcidev_attr_s *pci_of(hwloc_obj_t o)
{
    if (o->type == HWLOC_OBJ_PCI_DEVICE)
        return &o->attr->pcidev;
    return o->type == HWLOC_OBJ_BRIDGE && o->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI
               ? &o->attr->bridge.upstream.pci : NULL;
}

/* The NUMA node whose CPUs the object is near to. */
static int32_t numa_of(hwloc_obj_t o)
{
    while (o && !o->nodeset)
        o = o->parent;
    return o ? (int32_t)hwloc_bitmap_first(o->nodeset) : -1;
}

static int32_t add_function(struct reader *r, hwloc_obj_t o, const struct hwloc_pcidev_attr_s *p)
{
    size_t n = (size_t)r->f.count + 1;
    struct dp_pci_function *list = realloc(r->f.list, n * sizeof(*list));
    hwloc_obj_t *objects = list ? realloc(r->objects, n * sizeof(*objects)) : NULL;

    r->f.list = list ? list : r->f.list;
    if (!objects) {
        r->b.failed = true;
        return -1;
    }
    r->objects = objects;
    objects[r->f.count] = o;
    list[r->f.count] = (struct dp_pci_function){
        .id = {.known = true, .domain = p->domain, .bus = p->bus, .device = p->dev,
               .function = p->func, .class_code = (uint32_t)p->class_id << 8,
               .vendor_id = p->vendor_id, .device_id = p->device_id,
               .subsystem_vendor_id = p->subvendor_id, .subsystem_device_id = p->subdevice_id},
        .parent = -1, .numa = numa_of(o), .rate = p->linkspeed,
        .model = hwloc_obj_get_info_by_name(o, "PCIDevice"),
    };
    return r->f.count++;
}

/* The functions below a host bridge, each with the bridge before it. */
static void walk(struct reader *r, hwloc_obj_t o, int32_t bridge, uint32_t domain, uint8_t bus,
                 int depth)
{
    const struct hwloc_pcidev_attr_s *pci = pci_of(o);

    if (r->b.failed || depth > 64)
        return;
    if (pci) {
        int32_t f = add_function(r, o, pci);
        if (f < 0)
            return;
        r->f.list[f].parent = bridge;
        r->f.list[f].root_domain = domain;
        r->f.list[f].root_bus = bus;
        bridge = f;
    } else if (o->type == HWLOC_OBJ_BRIDGE) {
        domain = o->attr->bridge.downstream.pci.domain;
        bus = o->attr->bridge.downstream.pci.secondary_bus;
    }
    for (hwloc_obj_t child = o->io_first_child; child; child = child->next_sibling)
        walk(r, child, bridge, domain, bus, depth + 1);
}

static void walk_all(struct reader *r, hwloc_obj_t o)
{
    for (hwloc_obj_t io = o->io_first_child; io; io = io->next_sibling) {
        const struct hwloc_pcidev_attr_s *pci = pci_of(io);
        walk(r, io, -1, pci ? pci->domain : 0, pci ? pci->bus : 0, 0);
    }
    for (unsigned i = 0; i < o->arity; i++)
        walk_all(r, o->children[i]);
}

/* ---- devices -------------------------------------------------------------------------------- */

/* PortNGIDk. hwloc does not tell the types: those of Ethernet are taken for RoCE v2. */
static void add_gid(struct reader *r, const struct dp_topo_port *p, const char *name,
                    const char *value)
{
    int port, index, end = -1;
    uint8_t raw[16];

    if (sscanf(name, "Port%9dGID%9d%n", &port, &index, &end) == 2 && end > 0 && !name[end] &&
        port == p->number && dp_topo_parse_gid(value, raw))
        dp_topo_add_gid(&r->b, index, p->fabric == DP_TOPO_INFINIBAND ? DP_TOPO_GID_IB
                                                                      : DP_TOPO_GID_ROCE_V2, raw);
}

static void add_port(struct reader *r, int32_t nic, int32_t number, hwloc_obj_t rdma, hwloc_obj_t net)
{
    char key[32];
    struct dp_topo_port *p = dp_topo_add_port(&r->b, nic, number);

    p->rdma = dp_topo_add_text(&r->b, rdma ? rdma->name : NULL);
    p->net = dp_topo_add_text(&r->b, net ? net->name : NULL);
    p->guid = rdma ? dp_topo_parse_guid(info_of(rdma, "SysImageGUID")) : 0;
    p->fabric = dp_pci_fabric(&dp_topo_node(&r->b, nic)->pci);
    snprintf(key, sizeof(key), "Port%dState", number);
    p->up = !rdma || atoi(info_of(rdma, key)) == 4;
    if (number == 1)
        dp_topo_node(&r->b, nic)->name = rdma ? p->rdma : p->net;
    for (unsigned i = 0; rdma && i < rdma->infos_count; i++)
        add_gid(r, p, rdma->infos[i].name, rdma->infos[i].value);
}

/* RDMA ports are those that the device's infos name; else each interface is one. */
static void add_ports(struct reader *r, int32_t nic, hwloc_obj_t o)
{
    hwloc_obj_t rdma = NULL, net = NULL;
    int32_t number = 1;
    char key[32];

    for (hwloc_obj_t c = o->io_first_child; c; c = c->next_sibling)
        if (c->type == HWLOC_OBJ_OS_DEVICE && c->name) {
            rdma = c->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS && !rdma ? c : rdma;
            net = c->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK && !net ? c : net;
        }
    for (hwloc_obj_t c = o->io_first_child; c && !rdma; c = c->next_sibling)
        if (c->type == HWLOC_OBJ_OS_DEVICE && c->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK)
            add_port(r, nic, number++, NULL, c);
    for (; rdma; number++) {
        snprintf(key, sizeof(key), "Port%dState", number);
        if (number > 1 && !*info_of(rdma, key))
            break;
        add_port(r, nic, number, rdma, number == 1 ? net : NULL);
    }
}

/* NVML's object, "nvml0", has its UUID; CUDA's, "cuda0", its memory in KiB. */
static void describe_gpu(struct reader *r, int32_t gpu, hwloc_obj_t o)
{
    for (hwloc_obj_t c = o->io_first_child; c; c = c->next_sibling) {
        const char *model = hwloc_obj_get_info_by_name(c, "GPUModel");
        const char *uuid = hwloc_obj_get_info_by_name(c, "NVIDIAUUID");
        const char *memory = hwloc_obj_get_info_by_name(c, "CUDAGlobalMemorySize");
        struct dp_topo_node *n = dp_topo_node(&r->b, gpu);
        if (c->name && !strncmp(c->name, "nvml", 4) && c->name[4])
            n->os_index = atoi(c->name + 4);
        if (memory)
            n->memory_bytes = strtoull(memory, NULL, 10) << 10;
        n->model = model ? dp_topo_add_text(&r->b, model) : n->model;
        n->uuid = uuid ? dp_topo_add_text(&r->b, uuid) : n->uuid;
    }
}

static void describe(struct reader *r)
{
    for (int32_t i = 0; i < r->f.count && !r->b.failed; i++) {
        const struct dp_pci_function *f = &r->f.list[i];
        if (f->node >= 0 && dp_pci_is_nic(&f->id))
            add_ports(r, f->node, r->objects[i]);
        else if (f->node >= 0 && dp_pci_is_gpu(&f->id))
            describe_gpu(r, f->node, r->objects[i]);
    }
}

/* ---- all of it ------------------------------------------------------------------------------ */

/* With a point, also where hwloc itself asks the locale. */
static int load(hwloc_topology_t h, const char *xml, size_t len)
{
    locale_t before = dp_point_begin();
    int err = hwloc_topology_set_io_types_filter(h, HWLOC_TYPE_FILTER_KEEP_ALL);

#if HWLOC_API_VERSION >= 0x00020100
    /* Its plugin over libpciaccess never frees the names of vendors; hwloc reads /sys as well. */
    if (!err && !xml)
        err = hwloc_topology_set_components(h, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "pci");
#endif
    if (!err && xml)
        err = hwloc_topology_set_xmlbuffer(h, xml, (int)len);
    if (!err)
        err = hwloc_topology_load(h);
    dp_point_end(before);
    return err ? dp_fail(DP_EIO, "hwloc cannot read this %s: %s", xml ? "XML" : "machine",
                         strerror(errno))
               : 0;
}

/* In the child: whether hwloc loads it. What it logs comes from the parent, too. */
_Noreturn static void try_to_load(int report, const char *xml, size_t len)
{
    static const int fatal[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGALRM};
    const int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
    hwloc_topology_t h;

    for (size_t i = 0; i < sizeof(fatal) / sizeof(fatal[0]); i++)
        signal(fatal[i], SIG_DFL);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    alarm(LOAD_S);
    dup2(nowhere, STDERR_FILENO);
    dp_log_set(NULL, NULL, DP_LOG_ERROR);
    const char loads = !hwloc_topology_init(&h) && !load(h, xml, len);
    _exit(write(report, &loads, 1) != 1);
}

/* hwloc 2.9 trusts XML: it crashes without complete_cpuset, and asserts. So a child tries first. */
static int check_that_it_loads(const char *xml, size_t len)
{
    char loads = 0;
    int report[2], error = 0;

    if (pipe2(report, O_CLOEXEC))
        return dp_fail(DP_EIO, "no pipe to a process that tries to read XML: %s",
                       dp_errno_text(errno));
    const pid_t child = fork();
    if (!child)
        try_to_load(report[1], xml, len);
    if (child < 0)
        error = errno;
    close(report[1]);
    while (child > 0 && read(report[0], &loads, 1) < 0 && errno == EINTR)
        ;
    close(report[0]);
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
    if (error)
        return dp_fail(DP_EIO, "no process that tries to read XML: %s", strerror(error));
    return loads ? 0 : dp_fail(DP_EINVAL, "hwloc cannot read this, expected XML of hwloc 2 "
                                          "(lstopo FILE.xml), with all sets of CPUs");
}

static int read_loaded(struct reader *r, bool is_here, struct dp_topology **out)
{
    int err = 0;

    add_host(r);
    add_numas(r);
    walk_all(r, hwloc_get_root_obj(r->h));
    if (!r->b.failed) {
        dp_pci_tree_add(&r->b, r->host, &r->f);
        describe(r);
    }
    free(r->f.list); /* without directories */
    free(r->objects);
    if (!r->b.failed && is_here)
        err = dp_nvml_add(&r->b, r->host, true);
    if (err)
        dp_topo_builder_fini(&r->b);
    return err ? err : dp_topo_finish(&r->b, out);
}

int dp_topo_read_hwloc(const char *xml, size_t len, struct dp_topology **out)
{
    struct reader r = {.host = 0};

    if (len >= INT32_MAX)
        return dp_fail(DP_EINVAL, "%zu bytes of XML, expected less than 2 GiB", len);
    int err = xml ? check_that_it_loads(xml, len) : 0;
    if (err)
        return err;
    if (hwloc_topology_init(&r.h))
        return dp_fail(DP_ENOMEM, "no memory for hwloc");
    err = load(r.h, xml, len);
    if (!err)
        err = read_loaded(&r, !xml, out);
    hwloc_topology_destroy(r.h);
    return err;
}

#else

int dp_topo_read_hwloc(const char *xml, size_t len, struct dp_topology **out)
{
    (void)xml, (void)len, (void)out;
    return dp_fail(DP_EUNSUPPORTED, "this build has no hwloc to ask");
}

#endif
