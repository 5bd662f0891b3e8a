/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_read.c - NCCL's and RCCL's topology files: what NCCL_TOPO_DUMP_FILE leaves, and what
 * NCCL_TOPO_FILE names. They say nothing of PCI roots: each thing right in a CPU gets one of its
 * own. A dump of hosts that NVLink joins has the CPUs of all of them, told apart by host_hash.
 * Nothing is named a host, so hosts are left without a name.
 */
#include "config.h"
#include "topology/internal.h"

#include "base/array.h"
#include "base/fail.h"
#include "base/text.h"
#include "topology/build.h"
#include "topology/pci_tree.h"

#include <stdlib.h>

#ifdef HAVE_EXPAT

#include <expat.h>
#include <stdio.h>
#include <string.h>

/* Hosts that NVLink joins have hundreds of devices; with many more of them, finding what each link
 * leads to takes too long. */
enum { DEEPEST = 64, PASSED_OVER_MAX = 8, NODES_MAX = 1 << 14, NVLINKS_MAX = 1 << 16 };

struct nvlink {
    enum dp_topo_link_kind kind; /* NVLINK, XGMI */
    int32_t gpu, count;
    enum dp_topo_kind to; /* GPU, NVSWITCH, NUMA: a CPU that has NVLink */
    struct dp_topo_pci target;
};

/* An element that is open, and the node that it stands for; -1: none. A <pci> whose class does not
 * say what it is becomes a node once something inside says it. */
struct element {
    int32_t node;
    const char *name;
    struct dp_topo_pci pci;
    int gen, width;
    bool is_open;  /* it may become a node yet */
    bool is_known; /* its class says what it is, if not one of ours */
};

struct reader {
    struct dp_topo_builder b;
    XML_Parser parser;
    int32_t host, host_count; /* the one at hand */
    int32_t gpu_count;        /* with <gpu> */
    struct element stack[DEEPEST];
    int depth;
    struct dp_text passed_over; /* what was not understood, with commas between */
    int passed_count;
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

/* A class code: six digits as in sysfs, of which NCCL takes any beginning ("0x03", "0x0302"), with
 * or without "0x". The code, with zeros for what is missing, and its digits; 0: none. */
static int parse_class(const char *text, uint32_t *code)
{
    text += 2 * (text[0] == '0' && (text[1] == 'x' || text[1] == 'X'));
    const int digits = (int)strspn(text, "0123456789abcdefABCDEF");

    *code = 0;
    if (text[digits] || digits < 2 || digits > 6)
        return 0;
    *code = (uint32_t)strtoul(text, NULL, 16) << 4 * (6 - digits);
    return digits;
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
    return r->depth ? r->stack[r->depth - 1].node : -1;
}

/* What is not understood is said once, in one note. */
DP_PRINTF(2, 3) static void pass_over(struct reader *r, const char *fmt, ...)
{
    char what[128];
    va_list args;

    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    if (r->passed_over.data && strstr(r->passed_over.data, what))
        return;
    r->passed_count++;
    if (r->passed_count <= PASSED_OVER_MAX)
        dp_text_addf(&r->passed_over, "%s%s", r->passed_over.len ? ", " : "", what);
}

static enum dp_topo_kind kind_of(const struct reader *r, int32_t node)
{
    return node < 0 || r->b.failed ? DP_TOPO_KINDS : r->b.t.nodes[node].kind;
}

static void enter_host(struct reader *r, const char *hash)
{
    uint32_t text = dp_topo_add_text(&r->b, hash);

    for (int32_t i = 0; i < r->b.t.node_count; i++)
        if (r->b.t.nodes[i].kind == DP_TOPO_HOST && r->b.t.nodes[i].uuid == text) {
            r->host = i;
            return;
        }
    if (r->host_count)
        r->host = dp_topo_add_node(&r->b, DP_TOPO_HOST, -1);
    dp_topo_node(&r->b, r->host)->uuid = text;
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

static void pass_over_pci(struct reader *r, const struct element *e)
{
    char text[DP_TOPO_PCI_LEN];

    pass_over(r, "%s", dp_topo_pci_text(&e->pci, text));
}

/* The node of an open element. A <pci> that is none yet becomes a node of this kind, where it may
 * be one; so does what it stands in, which then is a switch. */
static int32_t decide(struct reader *r, int at, enum dp_topo_kind kind)
{
    struct element *e = &r->stack[at];

    if (!e->is_open || (kind == DP_TOPO_SWITCH && e->is_known))
        return e->node;
    e->is_open = false;
    int32_t parent = decide(r, at - 1, DP_TOPO_SWITCH);
    const enum dp_topo_kind within = kind_of(r, parent);
    if (within != DP_TOPO_NUMA && within != DP_TOPO_SWITCH) {
        pass_over_pci(r, e);
        return -1;
    }
    parent = root_for(r, parent, &e->pci);
    e->node = dp_topo_add_node(&r->b, kind, parent);
    dp_topo_node(&r->b, e->node)->pci = e->pci;
    dp_topo_add_pci_link(&r->b, parent, e->node, e->gen, e->width, 0, 0);
    return e->node;
}

/* NCCL takes any display for a GPU; a VGA one of no GPU's vendor is a management console. */
static enum dp_topo_kind kind_of_class(const struct dp_topo_pci *pci, int digits)
{
    if (dp_pci_is_gpu(pci) || (pci->class_code >> 16 == 0x03 && (digits < 4 || !pci->vendor_id)))
        return DP_TOPO_GPU;
    return dp_pci_is_nic(pci)      ? DP_TOPO_NIC
           : dp_pci_is_bridge(pci) ? DP_TOPO_SWITCH
                                   : DP_TOPO_KINDS;
}

static void open_pci(struct reader *r, const char *const *attributes, struct element *e)
{
    long width = get_number(attributes, "link_width", 0);
    struct dp_topo_pci pci = {
        .vendor_id = (uint16_t)get_number(attributes, "vendor", 0),
        .device_id = (uint16_t)get_number(attributes, "device", 0),
        .subsystem_vendor_id = (uint16_t)get_number(attributes, "subsystem_vendor", 0),
        .subsystem_device_id = (uint16_t)get_number(attributes, "subsystem_device", 0),
    };
    const int digits = parse_class(get(attributes, "class"), &pci.class_code);

    if (!dp_topo_parse_pci(get(attributes, "busid"), &pci)) {
        wrong(r, "pci", "expected a busid such as 0000:1b:00.0");
        return;
    }
    const enum dp_topo_kind kind = kind_of_class(&pci, digits);
    e->is_known = digits >= 4;
    if (digits < 4)
        pci.class_code = 0; /* it does not say which fabric, nor what kind of display */
    e->is_open = true;
    e->pci = pci;
    e->gen = dp_pci_gen(dp_strtod(get(attributes, "link_speed"), NULL));
    e->width = width > 0 && width <= 32 ? (int)width : 0;
    if (kind == DP_TOPO_SWITCH)
        e->is_known = false;
    if (kind != DP_TOPO_KINDS)
        decide(r, r->depth, kind);
}

static void open_gpu(struct reader *r, const char *const *attributes)
{
    struct dp_topo_node *n = dp_topo_node(&r->b, above(r));
    long sm = get_number(attributes, "sm", 0), dev = get_number(attributes, "dev", -1);

    n->sm = sm > 0 && sm < 1000 ? (int32_t)sm : 0;
    n->os_index = dev >= 0 ? (int32_t)dev : -1;
    r->gpu_count++;
    n->model = dp_topo_add_text(&r->b, get(attributes, "gcn"));
}

static void open_nvlink(struct reader *r, enum dp_topo_link_kind kind,
                        const char *const *attributes)
{
    struct nvlink link = {
        .kind = kind,
        .gpu = above(r),
        .count = (int32_t)get_number(attributes, "count", 1),
        .to = DP_TOPO_GPU,
    };
    uint32_t class_;

    parse_class(get(attributes, "tclass"), &class_);
    if (class_ >> 8 == 0x0680)
        link.to = class_ & 0xff ? DP_TOPO_NUMA : DP_TOPO_NVSWITCH;
    if (link.count < 1 || link.count > 1024 ||
        (!dp_topo_parse_pci(get(attributes, "target"), &link.target) && link.to == DP_TOPO_GPU)) {
        wrong(r, dp_topo_link_kind_name(kind),
              "expected a count of 1 to 1024 and a target such as 0000:1b:00.0");
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
    int32_t gpu = above(r), numa = r->b.failed ? -1 : dp_topology_above(&r->b.t, gpu, DP_TOPO_NUMA);

    if (mbps > 0 && count > 0 && numa >= 0)
        dp_topo_add_link(&r->b, DP_TOPO_C2C, numa, gpu, (double)mbps * (double)count / 1000);
}

/* Whether the name is that of an interface, not of an RDMA device. NCCL's sockets are never direct,
 * and say that they have 65536 connections; where neither is said, Linux' names tell. */
static bool is_interface(const char *const *attributes, const char *name)
{
    static const char *const begins[] = {"eth", "en", "ib", "wl", "bond", "br", "team", "veth"};
    bool is_one = false;

    if (get_number(attributes, "gdr", 0) > 0)
        return false;
    if (*get(attributes, "maxconn"))
        return get_number(attributes, "maxconn", 0) == 65536;
    for (size_t i = 0; i < sizeof(begins) / sizeof(begins[0]); i++)
        is_one |= !strncmp(name, begins[i], strlen(begins[i]));
    return is_one;
}

static void open_net(struct reader *r, const char *const *attributes)
{
    int32_t nic = above(r);
    const char *text = get(attributes, "name");
    uint32_t name = dp_topo_add_text(&r->b, text), *nic_name = &dp_topo_node(&r->b, nic)->name;
    long number = get_number(attributes, "port", 0), mbps = get_number(attributes, "speed", 0);
    struct dp_topo_port *p =
        dp_topo_add_port(&r->b, nic, number > 0 && number < 65536 ? (int32_t)number : 0);

    *(is_interface(attributes, text) ? &p->net : &p->rdma) = name;
    p->up = true;
    p->bytes_per_ns = mbps > 0 ? (double)mbps / 8000 : 0;
    p->guid = strtoull(get(attributes, "guid"), NULL, 16);
    p->fabric = dp_pci_fabric(&dp_topo_node(&r->b, nic)->pci);
    *nic_name = *nic_name ? *nic_name : name;
}

/* Without <pci> around it: what is on no PCI bus, such as a virtual interface. */
static int32_t open_virtual_nic(struct reader *r)
{
    int32_t numa = above(r), nic = dp_topo_add_node(&r->b, DP_TOPO_NIC, numa);

    dp_topo_add_pci_link(&r->b, numa, nic, 0, 0, 0, 0);
    return nic;
}

/* What is inside an element, as a kind of node that it says the element is. */
static enum dp_topo_kind said_by(const char *name)
{
    return !strcmp(name, "gpu")                           ? DP_TOPO_GPU
           : !strcmp(name, "nic") || !strcmp(name, "net") ? DP_TOPO_NIC
                                                          : DP_TOPO_KINDS;
}

/* Sets the node that the element stands for; what belongs to the node above it stands for that
 * node. */
static void open_element(struct reader *r, const char *name, const char *const *attributes,
                         struct element *e)
{
    if (said_by(name) != DP_TOPO_KINDS)
        decide(r, r->depth - 1, said_by(name));
    const enum dp_topo_kind within = kind_of(r, above(r));

    e->node = above(r);
    if (!strcmp(name, "cpu") && within == DP_TOPO_HOST && r->depth == 1)
        e->node = open_cpu(r, attributes);
    else if (!strcmp(name, "pci") && r->depth > 1) {
        e->node = -1;
        open_pci(r, attributes, e);
    } else if (!strcmp(name, "nic") && within == DP_TOPO_NUMA)
        e->node = open_virtual_nic(r);
    else if (within == DP_TOPO_GPU && !strcmp(name, "gpu"))
        open_gpu(r, attributes);
    else if (within == DP_TOPO_GPU && !strcmp(name, "nvlink"))
        open_nvlink(r, DP_TOPO_NVLINK, attributes);
    else if (within == DP_TOPO_GPU && !strcmp(name, "xgmi"))
        open_nvlink(r, DP_TOPO_XGMI, attributes);
    else if (within == DP_TOPO_GPU && !strcmp(name, "c2c"))
        open_c2c(r, attributes);
    else if (within == DP_TOPO_NIC && !strcmp(name, "net"))
        open_net(r, attributes);
    else if (within != DP_TOPO_NIC || strcmp(name, "nic")) {
        e->node = -1;
        pass_over(r, "<%s>", name);
    }
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
    if (r->b.t.node_count > NODES_MAX || r->nvlink_count > NVLINKS_MAX) {
        wrong(r, name, "more than 16384 devices or 65536 NVLinks");
        return;
    }
    if (!r->depth && strcmp(name, "system")) {
        wrong(r, name, "expected <system> of NCCL's files, or <topology> of hwloc's");
        return;
    }
    r->stack[r->depth] = (struct element){.node = r->host};
    if (r->depth)
        open_element(r, name, (const char *const *)attributes, &r->stack[r->depth]);
    r->depth++;
}

static void XMLCALL on_end(void *user, const char *name)
{
    struct reader *r = user;

    (void)name;
    r->depth -= r->depth > 0;
    const struct element *e = &r->stack[r->depth];
    if (e->is_open && !e->is_known)
        pass_over_pci(r, e);
}

/* ---- NVLink, once all GPUs are known -------------------------------------------------------- */

/* On the same host as another one. */
static int32_t find_gpu(const struct reader *r, int32_t neighbour, const struct dp_topo_pci *pci)
{
    for (int32_t i = 0; i < r->b.t.node_count; i++) {
        const struct dp_topo_node *n = &r->b.t.nodes[i];
        if (n->kind == DP_TOPO_GPU && dp_topo_same_pci(&n->pci, pci) &&
            dp_topology_above(&r->b.t, i, DP_TOPO_HOST) ==
                dp_topology_above(&r->b.t, neighbour, DP_TOPO_HOST))
            return i;
    }
    return -1;
}

/* Lists name each link once at either end, and may split a bundle: those of one end are added up. */
static void join(struct reader *r, enum dp_topo_link_kind kind, int32_t gpu, int32_t other,
                 int32_t count)
{
    const struct dp_topo_node *n = &r->b.t.nodes[gpu];
    double rate = kind == DP_TOPO_XGMI ? dp_topo_assumed_xgmi_rate(r->b.t.text + n->model)
                                       : dp_topo_assumed_nvlink_rate(n->sm);

    for (int32_t i = 0; i < r->b.t.link_count; i++) {
        struct dp_topo_link *l = &r->b.t.links[i];
        if (l->kind == kind && l->a == gpu && l->b == other) {
            l->count += count;
            l->bytes_per_ns = rate * l->count;
            return;
        }
        if (l->kind == kind && l->a == other && l->b == gpu)
            return;
    }
    struct dp_topo_link *l = dp_topo_add_link(&r->b, kind, gpu, other, rate * count);
    l->count = count;
    l->flags = rate > 0 ? DP_TOPO_RATE_ASSUMED : DP_TOPO_RATE_UNKNOWN;
}

static void join_gpus(struct reader *r)
{
    char text[DP_TOPO_PCI_LEN];
    int32_t hub = -1;

    for (int32_t i = 0; i < r->nvlink_count && !r->b.failed; i++) {
        const struct nvlink *n = &r->nvlinks[i];
        int32_t other = n->to == DP_TOPO_NVSWITCH ? hub
                        : n->to == DP_TOPO_NUMA   ? dp_topology_above(&r->b.t, n->gpu, DP_TOPO_NUMA)
                                                  : find_gpu(r, n->gpu, &n->target);
        if (n->to == DP_TOPO_NVSWITCH && hub < 0)
            other = hub = dp_topo_add_node(&r->b, DP_TOPO_NVSWITCH, r->host_count > 1 ? -1 : r->host);
        if (other < 0)
            pass_over(r, "<%s> to %s, which is no GPU here", dp_topo_link_kind_name(n->kind),
                      dp_topo_pci_text(&n->target, text));
        else if (other != n->gpu && !r->b.failed)
            join(r, n->to == DP_TOPO_NUMA ? DP_TOPO_C2C : n->kind, n->gpu, other, n->count);
    }
}

/* NCCL asks the GPUs themselves for what a file lacks. */
static void note_gpus_without_element(struct reader *r)
{
    int32_t count = 0;

    for (int32_t i = 0; i < r->b.t.node_count; i++)
        count += r->b.t.nodes[i].kind == DP_TOPO_GPU;
    if (count > r->gpu_count)
        dp_topo_add_note(&r->b, DP_TOPO_MISSING, -1,
                         "NVLink and compute capability of GPUs without <gpu>: "
                         "%d of %d",
                         count - r->gpu_count, count);
}

static void note_what_was_passed_over(struct reader *r)
{
    if (r->passed_count)
        dp_topo_add_note(&r->b, DP_TOPO_MISSING, -1, "not understood and passed over: %s%s",
                         r->passed_over.data ? r->passed_over.data : "",
                         r->passed_count > PASSED_OVER_MAX ? ", ..." : "");
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
        return dp_fail(DP_EINVAL, "line %lu, column %lu: %s; expected XML%s",
                       (unsigned long)XML_GetCurrentLineNumber(r->parser),
                       (unsigned long)XML_GetCurrentColumnNumber(r->parser),
                       XML_ErrorString(XML_GetErrorCode(r->parser)),
                       r->depth ? " up to </system>" : "");
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
        join_gpus(&r);
        for (int32_t i = 0, count = r.b.t.node_count; i < count; i++)
            if (kind_of(&r, i) == DP_TOPO_HOST)
                dp_topo_join_numas(&r.b, i);
        note_gpus_without_element(&r);
        note_what_was_passed_over(&r);
        if (r.host_count > 1)
            dp_topo_join_hosts(&r.b);
    }
    XML_ParserFree(r.parser);
    free(r.nvlinks);
    dp_text_fini(&r.passed_over);
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
