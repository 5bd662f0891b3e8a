/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_read.c - NCCL's topology files: what NCCL_TOPO_DUMP_FILE leaves, and what NCCL_TOPO_FILE names.
 * They say nothing of PCI roots: each thing right in a CPU gets one of its own. A dump of hosts that
 * NVLink joins has the CPUs of all of them, told apart by host_hash.
 */
#include "config.h"

#include "base/array.h"
#include "base/fail.h"
#include "base/number.h"
#include "topology/format.h"
#include "topology/pci_tree.h"

#include <stdlib.h>

#ifdef HAVE_EXPAT

#include <expat.h>
#include <stdio.h>
#include <string.h>

enum { DEEPEST = 64 };

struct nvlink {
    int32_t gpu, count;
    bool is_switch;
    struct dp_topo_pci target;
};

struct reader {
    struct dp_topo_builder b;
    XML_Parser parser;
    int32_t host, host_count; /* the one at hand */
    int32_t stack[DEEPEST]; /* the node that each open element stands for; -1: none */
    int depth;
    struct nvlink *nvlinks;
    int32_t nvlink_count;
    size_t nvlink_room;
    int err;
};

/* ---- attributes ----------------------------------------------------------------------------- */

static int wrong(struct reader *r, const char *element, const char *what)
{
    if (!r->err)
        r->err = dp_fail(DP_EINVAL, "line %lu: <%s>: %s",
                         (unsigned long)XML_GetCurrentLineNumber(r->parser), element, what);
    XML_StopParser(r->parser, XML_FALSE);
    return r->err;
}

static const char *get(const char *const *attributes, const char *key)
{
    for (; attributes[0]; attributes += 2)
        if (!strcmp(attributes[0], key))
            return attributes[1];
    return "";
}

static long get_number(const char *const *attributes, const char *key, long otherwise)
{
    const char *text = get(attributes, key);
    char *end;
    long number = strtol(text, &end, 0);

    return end != text && number > -1000000000 && number < 1000000000 ? number : otherwise;
}

/* "0000ffff,ffff0000" to "16-47". */
static uint32_t add_cpus(struct reader *r, const char *mask)
{
    struct dp_text list = {0};
    const char *groups[256];
    int count = 0, first = -1;

    for (const char *at = mask; *at && count < 256; at += strcspn(at, ","), at += *at == ',')
        groups[count++] = at;
    for (int cpu = 0; cpu <= 32 * count; cpu++) {
        bool is_set = cpu < 32 * count &&
                      strtoul(groups[count - 1 - cpu / 32], NULL, 16) >> cpu % 32 & 1;
        if (is_set && first < 0)
            first = cpu;
        if (is_set || first < 0)
            continue;
        dp_text_addf(&list, "%s%d", list.len ? "," : "", first);
        if (cpu - 1 > first)
            dp_text_addf(&list, "-%d", cpu - 1);
        first = -1;
    }
    uint32_t text = dp_topo_add_text(&r->b, list.data);
    dp_text_fini(&list);
    return text;
}

/* ---- elements ------------------------------------------------------------------------------- */

static int32_t above(const struct reader *r)
{
    return r->depth ? r->stack[r->depth - 1] : -1;
}

static enum dp_topo_kind kind_of(const struct reader *r, int32_t node)
{
    return node < 0 || r->b.failed ? DP_TOPO_KINDS : r->b.t.nodes[node].kind;
}

/* The hash is the host's model until the end, when names are given. */
static void enter_host(struct reader *r, const char *hash)
{
    uint32_t text = dp_topo_add_text(&r->b, hash);

    for (int32_t i = 0; i < r->b.t.node_count; i++)
        if (r->b.t.nodes[i].kind == DP_TOPO_HOST && r->b.t.nodes[i].model == text) {
            r->host = i;
            return;
        }
    if (r->host_count)
        r->host = dp_topo_add_node(&r->b, DP_TOPO_HOST, -1);
    dp_topo_node(&r->b, r->host)->model = text;
    r->host_count++;
}

static int32_t open_cpu(struct reader *r, const char *const *attributes)
{
    enter_host(r, get(attributes, "host_hash"));
    int32_t numa = dp_topo_add_node(&r->b, DP_TOPO_NUMA, r->host);
    const char *arch = get(attributes, "arch");
    uint32_t cpus = add_cpus(r, get(attributes, "affinity"));
    struct dp_topo_node *host = dp_topo_node(&r->b, r->host), *n = dp_topo_node(&r->b, numa);

    n->os_index = (int32_t)get_number(attributes, "numaid", -1);
    n->os_index = n->os_index < -1 ? -1 : n->os_index;
    n->cpus = cpus;
    host->arch = dp_topo_add_text(&r->b, !strcmp(arch, "arm64") ? "aarch64" : arch);
    host->vendor = dp_topo_add_text(&r->b, get(attributes, "vendor"));
    host->family = (int32_t)get_number(attributes, "familyid", -1);
    host->cpu_model = (int32_t)get_number(attributes, "modelid", -1);
    if (host->family < -1 || host->cpu_model < -1)
        wrong(r, "cpu", "a familyid or modelid that is negative");
    return numa;
}

static int32_t root_for(struct reader *r, int32_t parent, const struct dp_topo_pci *pci)
{
    if (kind_of(r, parent) != DP_TOPO_NUMA)
        return parent;
    int32_t root = dp_topo_add_node(&r->b, DP_TOPO_ROOT, parent);
    dp_topo_node(&r->b, root)->pci = (struct dp_topo_pci){
        .known = true, .domain = pci->domain, .bus = pci->bus, .class_code = 0x060000,
    };
    dp_topo_add_link(&r->b, DP_TOPO_MESH, parent, root, 0);
    return root;
}

static int32_t open_pci(struct reader *r, const char *const *attributes)
{
    int32_t parent = above(r);
    enum dp_topo_kind within = kind_of(r, parent);
    struct dp_topo_pci pci = {
        .class_code = (uint32_t)get_number(attributes, "class", 0) & 0xffffff,
        .vendor_id = (uint16_t)get_number(attributes, "vendor", 0),
        .device_id = (uint16_t)get_number(attributes, "device", 0),
        .subsystem_vendor_id = (uint16_t)get_number(attributes, "subsystem_vendor", 0),
        .subsystem_device_id = (uint16_t)get_number(attributes, "subsystem_device", 0),
    };
    long width = get_number(attributes, "link_width", 0);

    if (!dp_topo_parse_pci(get(attributes, "busid"), &pci)) {
        wrong(r, "pci", "expected a busid such as 0000:1b:00.0");
        return -1;
    }
    if (within != DP_TOPO_NUMA && within != DP_TOPO_SWITCH)
        return -1; /* in something that is passed over */
    bool is_gpu = dp_pci_is_gpu(&pci), is_nic = dp_pci_is_nic(&pci);
    if (!is_gpu && !is_nic && !dp_pci_is_bridge(&pci))
        return -1;
    parent = root_for(r, parent, &pci);
    int32_t node = dp_topo_add_node(&r->b, is_gpu ? DP_TOPO_GPU : is_nic ? DP_TOPO_NIC : DP_TOPO_SWITCH,
                                    parent);
    dp_topo_node(&r->b, node)->pci = pci;
    dp_topo_add_pci_link(&r->b, parent, node,
                         dp_pci_gen(dp_strtod(get(attributes, "link_speed"), NULL)),
                         width > 0 && width <= 32 ? (int)width : 0, 0, 0);
    return node;
}

static void open_gpu(struct reader *r, const char *const *attributes)
{
    struct dp_topo_node *n = dp_topo_node(&r->b, above(r));
    long sm = get_number(attributes, "sm", 0), dev = get_number(attributes, "dev", -1);

    n->sm = sm > 0 && sm < 1000 ? (int32_t)sm : 0;
    n->os_index = dev >= 0 ? (int32_t)dev : -1;
}

static void open_nvlink(struct reader *r, const char *const *attributes)
{
    struct nvlink link = {.gpu = above(r), .count = (int32_t)get_number(attributes, "count", 1)};
    long class_ = get_number(attributes, "tclass", 0);

    link.is_switch = class_ >> 8 == 0x0680;
    if (link.count < 1 || link.count > 1024 ||
        (!dp_topo_parse_pci(get(attributes, "target"), &link.target) && !link.is_switch)) {
        wrong(r, "nvlink", "expected a count of 1 to 1024 and a target such as 0000:1b:00.0");
        return;
    }
    struct nvlink *more =
        dp_array_grow(r->nvlinks, &r->nvlink_room, (size_t)r->nvlink_count + 1, sizeof(*more));
    if (!more) {
        r->b.failed = true;
        return;
    }
    r->nvlinks = more;
    r->nvlinks[r->nvlink_count++] = link;
}

static void open_c2c(struct reader *r, const char *const *attributes)
{
    long mbps = get_number(attributes, "bw", 0), count = get_number(attributes, "count", 1);
    int32_t gpu = above(r), numa = gpu;

    while (numa >= 0 && !r->b.failed && kind_of(r, numa) != DP_TOPO_NUMA)
        numa = r->b.t.nodes[numa].parent;
    if (mbps > 0 && count > 0 && numa >= 0)
        dp_topo_add_link(&r->b, DP_TOPO_C2C, numa, gpu, (double)mbps * (double)count / 1000);
}

static void open_net(struct reader *r, const char *const *attributes)
{
    int32_t nic = above(r), last = 0;
    uint32_t name = dp_topo_add_text(&r->b, get(attributes, "name"));
    long number = get_number(attributes, "port", 1);

    if (r->b.t.port_count && r->b.t.ports[r->b.t.port_count - 1].nic == nic)
        last = r->b.t.ports[r->b.t.port_count - 1].number;
    struct dp_topo_port *p = dp_topo_add_port(&r->b, nic, number > last && number < 65536
                                                              ? (int32_t)number : last + 1);
    uint32_t class_ = dp_topo_node(&r->b, nic)->pci.class_code;
    long mbps = get_number(attributes, "speed", 0);
    *(get_number(attributes, "gdr", 1) ? &p->rdma : &p->net) = name;
    p->up = true;
    p->bytes_per_ns = mbps > 0 ? (double)mbps / 8000 : 0;
    p->guid = strtoull(get(attributes, "guid"), NULL, 16);
    p->fabric = class_ >> 8 == 0x0207 ? DP_TOPO_INFINIBAND : DP_TOPO_ETHERNET;
    if (!last)
        dp_topo_node(&r->b, nic)->name = name;
}

/* Without <pci> around it: what is on no PCI bus, such as a virtual interface. */
static int32_t open_virtual_nic(struct reader *r)
{
    int32_t numa = above(r), nic = dp_topo_add_node(&r->b, DP_TOPO_NIC, numa);

    dp_topo_add_pci_link(&r->b, numa, nic, 0, 0, 0, 0);
    return nic;
}

/* What the element stands for; what belongs to the node above it stands for that node. */
static int32_t open_element(struct reader *r, const char *name, const char *const *attributes)
{
    enum dp_topo_kind within = kind_of(r, above(r));

    if (!strcmp(name, "cpu") && within == DP_TOPO_HOST && r->depth == 1)
        return open_cpu(r, attributes);
    if (!strcmp(name, "pci"))
        return open_pci(r, attributes);
    if (!strcmp(name, "nic") && within == DP_TOPO_NUMA)
        return open_virtual_nic(r);
    if (within == DP_TOPO_GPU && !strcmp(name, "gpu"))
        open_gpu(r, attributes);
    else if (within == DP_TOPO_GPU && !strcmp(name, "nvlink"))
        open_nvlink(r, attributes);
    else if (within == DP_TOPO_GPU && !strcmp(name, "c2c"))
        open_c2c(r, attributes);
    else if (within == DP_TOPO_NIC && !strcmp(name, "net"))
        open_net(r, attributes);
    else if (strcmp(name, "nic"))
        return -1;
    return above(r);
}

static void XMLCALL on_start(void *user, const char *name, const char **attributes)
{
    struct reader *r = user;

    if (r->err || r->b.failed)
        return;
    if (r->depth == DEEPEST) {
        wrong(r, name, "more than 64 elements in one another");
        return;
    }
    if (!r->depth && strcmp(name, "system")) {
        wrong(r, name, "expected <system> of NCCL's files, or <topology> of hwloc's");
        return;
    }
    int32_t node = r->depth ? open_element(r, name, (const char *const *)attributes) : r->host;
    r->stack[r->depth++] = node;
}

static void XMLCALL on_end(void *user, const char *name)
{
    struct reader *r = user;

    (void)name;
    r->depth -= r->depth > 0;
}

/* ---- NVLink, once all GPUs are known -------------------------------------------------------- */

static int32_t host_above(const struct reader *r, int32_t node)
{
    while (r->b.t.nodes[node].parent >= 0)
        node = r->b.t.nodes[node].parent;
    return node;
}

/* On the same host as another one. */
static int32_t find_gpu(const struct reader *r, int32_t neighbour, const struct dp_topo_pci *pci)
{
    for (int32_t i = 0; i < r->b.t.node_count; i++) {
        const struct dp_topo_pci *p = &r->b.t.nodes[i].pci;
        if (r->b.t.nodes[i].kind == DP_TOPO_GPU && p->domain == pci->domain && p->bus == pci->bus &&
            p->device == pci->device && p->function == pci->function &&
            host_above(r, i) == host_above(r, neighbour))
            return i;
    }
    return -1;
}

/* Lists name each link once at either end, and may split a bundle: those of one end are added up. */
static void join(struct reader *r, int32_t gpu, int32_t other, int32_t count)
{
    double rate = dp_topo_assumed_nvlink_rate(r->b.t.nodes[gpu].sm);

    for (int32_t i = 0; i < r->b.t.link_count; i++) {
        struct dp_topo_link *l = &r->b.t.links[i];
        if (l->kind == DP_TOPO_NVLINK && l->a == gpu && l->b == other) {
            l->count += count;
            l->bytes_per_ns = rate * l->count;
            return;
        }
        if (l->kind == DP_TOPO_NVLINK && l->a == other && l->b == gpu)
            return;
    }
    struct dp_topo_link *l = dp_topo_add_link(&r->b, DP_TOPO_NVLINK, gpu, other, rate * count);
    l->count = count;
    l->flags = rate > 0 ? DP_TOPO_RATE_ASSUMED : DP_TOPO_RATE_UNKNOWN;
}

static void join_gpus(struct reader *r)
{
    int32_t hub = -1;

    for (int32_t i = 0; i < r->nvlink_count && !r->b.failed; i++) {
        const struct nvlink *n = &r->nvlinks[i];
        int32_t other = n->is_switch ? hub : find_gpu(r, n->gpu, &n->target);
        if (n->is_switch && hub < 0)
            other = hub = dp_topo_add_node(&r->b, DP_TOPO_NVSWITCH, r->host_count > 1 ? -1 : r->host);
        if (other >= 0 && other != n->gpu && !r->b.failed)
            join(r, n->gpu, other, n->count);
    }
}

static void join_cpus(struct reader *r)
{
    const char *vendor = r->b.t.text + r->b.t.nodes[r->host].vendor;
    double rate = dp_topo_assumed_cpu_rate(vendor, false);

    for (int32_t a = 0; a < r->b.t.node_count; a++)
        for (int32_t b = a + 1; b < r->b.t.node_count && kind_of(r, a) == DP_TOPO_NUMA; b++)
            if (kind_of(r, b) == DP_TOPO_NUMA && host_above(r, a) == host_above(r, b))
                dp_topo_add_link(&r->b, DP_TOPO_CPU, a, b, rate)->flags = DP_TOPO_RATE_ASSUMED;
}

/* "node", or node0, node1, ... in the order in which they stand there. */
static void name_hosts(struct reader *r)
{
    int32_t number = 0;

    for (int32_t i = 0; i < r->b.t.node_count && !r->b.failed; i++) {
        if (r->b.t.nodes[i].kind != DP_TOPO_HOST)
            continue;
        uint32_t name = r->host_count > 1 ? dp_topo_add_textf(&r->b, "node%d", number++)
                                          : dp_topo_add_text(&r->b, "node");
        dp_topo_node(&r->b, i)->name = name;
        dp_topo_node(&r->b, i)->model = 0;
    }
}

/* ---- all of it ------------------------------------------------------------------------------ */

static int parse(struct reader *r, const char *text, size_t len)
{
    enum XML_Status status;

    if (len > INT32_MAX)
        return dp_fail(DP_EINVAL, "%zu bytes of XML, expected at most 2 GiB", len);
    XML_SetUserData(r->parser, r);
    XML_SetElementHandler(r->parser, on_start, on_end);
    status = XML_Parse(r->parser, text, (int)len, XML_TRUE);
    if (r->err)
        return r->err;
    if (status != XML_STATUS_OK)
        return dp_fail(DP_EINVAL, "line %lu, column %lu: %s; expected XML",
                       (unsigned long)XML_GetCurrentLineNumber(r->parser),
                       (unsigned long)XML_GetCurrentColumnNumber(r->parser),
                       XML_ErrorString(XML_GetErrorCode(r->parser)));
    if (!r->b.failed && kind_of(r, r->b.t.node_count > 1 ? 1 : -1) != DP_TOPO_NUMA)
        return dp_fail(DP_EINVAL, "<system> has no <cpu>, expected one at least");
    return 0;
}

int dp_topo_read_nccl(const char *text, size_t len, struct dp_topology **out)
{
    struct reader r = {.parser = XML_ParserCreate(NULL)};
    int err;

    if (!r.parser)
        return dp_fail(DP_ENOMEM, "no memory for an XML parser");
    r.host = dp_topo_add_node(&r.b, DP_TOPO_HOST, -1);
    err = parse(&r, text, len);
    if (!err && !r.b.failed) {
        name_hosts(&r);
        join_gpus(&r);
        join_cpus(&r);
        if (r.host_count > 1)
            dp_topo_join_hosts(&r.b);
    }
    XML_ParserFree(r.parser);
    free(r.nvlinks);
    if (err)
        dp_topo_builder_fini(&r.b);
    return err ? err : dp_topo_finish(&r.b, out);
}

#else

int dp_topo_read_nccl(const char *text, size_t len, struct dp_topology **out)
{
    (void)text, (void)len, (void)out;
    return dp_fail(DP_EUNSUPPORTED, "NCCL's topology files: this build has no expat to read them with");
}

#endif
