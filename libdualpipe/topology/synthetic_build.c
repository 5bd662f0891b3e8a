/* SPDX-License-Identifier: Apache-2.0
 *
 * synthetic_build.c - from a description taken apart to a topology. PCI addresses are given out as a
 * machine's firmware would, a bus for everything behind a bridge.
 */
#include "base/fail.h"
#include "topology/build.h"
#include "topology/synthetic.h"

#include <stdlib.h>

enum { NODES_MAX = 1 << 21, LINKS_MAX = 1 << 23 };

/* Vendors' and classes' numbers as in the PCI ID registry. */
static const struct dp_topo_pci bridge_id = {.class_code = 0x060400, .vendor_id = 0x1000,
                                             .device_id = 0xc030};
static const struct dp_topo_pci gpu_id = {.class_code = 0x030200, .vendor_id = 0x10de,
                                          .device_id = 0x2330};
static const struct dp_topo_pci nic_id = {.class_code = 0x020000, .vendor_id = 0x15b3,
                                          .device_id = 0x1021};

struct maker {
    const struct dp_synthetic *s;
    struct dp_topo_builder b;
    int32_t host_number, host, numa, bus, nics, cpus;
    int32_t numa_count, gpu_count, port_count; /* of this host */
    int32_t *rails;      /* [ports of a host] or one */
    int32_t rail_count;
    double *rail_rates;
    int32_t nvswitch;    /* the first of those that hosts share; they are neighbours. -1 */
};

/* ---- PCI ------------------------------------------------------------------------------------ */

static struct dp_topo_pci next_address(struct maker *m, struct dp_topo_pci id)
{
    id.known = true;
    id.domain = (uint32_t)m->bus / 256;
    id.bus = (uint8_t)(m->bus++ % 256);
    return id;
}

static int32_t add_root(struct maker *m)
{
    int32_t root = dp_topo_add_node(&m->b, DP_TOPO_ROOT, m->numa);

    dp_topo_node(&m->b, root)->pci = next_address(m, (struct dp_topo_pci){.class_code = 0x060000});
    dp_topo_add_link(&m->b, DP_TOPO_MESH, m->numa, root, 0);
    return root;
}

/* Below what is no NUMA node: PCI devices stand on a root. */
static int32_t add_device(struct maker *m, enum dp_topo_kind kind, int32_t parent,
                          struct dp_topo_pci id, struct dp_synthetic_pcie lanes)
{
    if (parent == m->numa)
        parent = add_root(m);
    int32_t node = dp_topo_add_node(&m->b, kind, parent);
    dp_topo_node(&m->b, node)->pci = next_address(m, id);
    dp_topo_add_pci_link(&m->b, parent, node, lanes.gen, lanes.width, lanes.gen, lanes.width);
    return node;
}

/* ---- devices -------------------------------------------------------------------------------- */

static void add_gpu(struct maker *m, int32_t parent)
{
    const struct dp_synthetic *s = m->s;
    int32_t gpu = add_device(m, DP_TOPO_GPU, parent, gpu_id, s->pcie);
    struct dp_topo_node *n = dp_topo_node(&m->b, gpu);

    n->model = dp_topo_add_text(&m->b, s->gpu);
    n->os_index = m->gpu_count++;
    n->memory_bytes = s->gpu_memory_bytes;
    n->sm = s->sm;
    if (s->c2c_rate > 0)
        dp_topo_add_link(&m->b, DP_TOPO_C2C, m->numa, gpu, s->c2c_rate);
}

static void name_port(struct maker *m, struct dp_topo_port *port, uint32_t name)
{
    static const char rdma[] = "mlx";

    for (int i = 0; i < 3; i++)
        if (m->s->nicname[i] != rdma[i]) {
            port->net = name;
            return;
        }
    port->rdma = name;
}

static void add_ports(struct maker *m, int32_t nic)
{
    for (int32_t k = 0; k < m->s->ports; k++) {
        uint32_t name = dp_topo_add_textf(&m->b, "%s%d", m->s->nicname, m->nics);
        struct dp_topo_port *port = dp_topo_add_port(&m->b, nic, k + 1);
        port->fabric = m->s->fabric;
        port->up = true;
        port->mtu_bytes = 4096;
        port->guid = UINT64_C(0x0c42a10000000000) + ((uint64_t)m->host_number << 16) +
                     (uint64_t)m->nics;
        port->bytes_per_ns = m->s->net_rate;
        name_port(m, port, name);
        m->port_count++;
    }
}

static void add_nic(struct maker *m, int32_t parent)
{
    struct dp_synthetic_pcie lanes = m->s->nicpcie.is_given ? m->s->nicpcie : m->s->pcie;
    int32_t nic = add_device(m, DP_TOPO_NIC, parent, nic_id, lanes);
    uint32_t name = dp_topo_add_textf(&m->b, "%s%d", m->s->nicname, m->nics);
    struct dp_topo_node *n = dp_topo_node(&m->b, nic);

    n->name = name;
    n->model = dp_topo_add_text(&m->b, m->s->nic);
    if (m->s->fabric == DP_TOPO_INFINIBAND)
        n->pci.class_code = n->pci.class_code ? 0x020700 : 0;
    add_ports(m, nic);
    m->nics++;
}

static void add_numa(struct maker *m)
{
    const struct dp_synthetic *s = m->s;

    m->numa = dp_topo_add_node(&m->b, DP_TOPO_NUMA, m->host);
    uint32_t cpus = s->cpus > 1 ? dp_topo_add_textf(&m->b, "%d-%d", m->cpus, m->cpus + s->cpus - 1)
                    : s->cpus ? dp_topo_add_textf(&m->b, "%d", m->cpus) : 0;
    struct dp_topo_node *n = dp_topo_node(&m->b, m->numa);
    n->os_index = n->package = m->numa_count;
    n->cpus = cpus;
    n->memory_bytes = s->memory_bytes;
    m->cpus += s->cpus;
    m->numa_count++;
}

/* ---- levels --------------------------------------------------------------------------------- */

static int32_t enter(struct maker *m, enum dp_topo_kind kind, int32_t parent)
{
    struct dp_synthetic_pcie lanes = m->s->uplink.is_given ? m->s->uplink : m->s->pcie;

    switch (kind) {
    case DP_TOPO_NUMA:
        add_numa(m);
        return m->numa;
    case DP_TOPO_ROOT:
        return add_root(m);
    default:
        return add_device(m, kind, parent, bridge_id, lanes);
    }
}

/* What levels[i] and on put into `parent`. A word of the description is a frame at the most. */
static void fill(struct maker *m, int32_t i, int32_t parent)
{
    for (; i < m->s->level_count; i++) {
        const struct dp_synthetic_level *level = &m->s->levels[i];
        bool is_leaf = level->kind == DP_TOPO_GPU || level->kind == DP_TOPO_NIC;
        for (int32_t k = 0; k < level->count && !m->b.failed; k++) {
            if (level->kind == DP_TOPO_GPU)
                add_gpu(m, parent);
            else if (level->kind == DP_TOPO_NIC)
                add_nic(m, parent);
            else
                fill(m, i + 1, enter(m, level->kind, parent));
        }
        if (!is_leaf)
            return;
    }
}

/* ---- a host --------------------------------------------------------------------------------- */

/* The host's nodes of a kind are those added since. */
static int32_t next_of(const struct maker *m, enum dp_topo_kind kind, int32_t from)
{
    for (int32_t i = from; i < m->b.t.node_count; i++)
        if (m->b.t.nodes[i].kind == kind)
            return i;
    return -1;
}

static void link_numa_nodes(struct maker *m)
{
    double rate = m->s->cpu_rate;
    const char *vendor = m->s->vendor;

    for (int32_t a = m->host; (a = next_of(m, DP_TOPO_NUMA, a + 1)) >= 0;)
        for (int32_t b = a; (b = next_of(m, DP_TOPO_NUMA, b + 1)) >= 0;) {
            struct dp_topo_link *l = dp_topo_add_link(
                &m->b, DP_TOPO_CPU, a, b, rate > 0 ? rate : dp_topo_assumed_cpu_rate(vendor, false));
            l->flags = rate > 0 ? 0 : DP_TOPO_RATE_ASSUMED;
        }
}

static void add_nvlink(struct maker *m, int32_t a, int32_t b)
{
    struct dp_topo_link *l = dp_topo_add_link(&m->b, DP_TOPO_NVLINK, a, b,
                                              m->s->nvlink.count * m->s->nvlink.rate);
    l->count = m->s->nvlink.count;
}

static void link_gpus(struct maker *m)
{
    const enum dp_synthetic_shape shape = m->s->nvlink.shape;
    int32_t hub = m->nvswitch;

    if (shape == DP_NVLINK_NONE || !m->gpu_count)
        return;
    if (shape == DP_NVLINK_DOMAIN && m->s->domain_hosts)
        hub += m->host_number / m->s->domain_hosts;
    if (shape == DP_NVLINK_SWITCH)
        hub = dp_topo_add_node(&m->b, DP_TOPO_NVSWITCH, m->host);
    for (int32_t a = m->host, number = 0; (a = next_of(m, DP_TOPO_GPU, a + 1)) >= 0; number++) {
        if (shape == DP_NVLINK_SWITCH || shape == DP_NVLINK_DOMAIN) {
            add_nvlink(m, a, hub);
            continue;
        }
        for (int32_t b = a; (b = next_of(m, DP_TOPO_GPU, b + 1)) >= 0;) {
            if (shape == DP_NVLINK_MESH || number % 2 == 0)
                add_nvlink(m, a, b);
            if (shape == DP_NVLINK_PAIR)
                break;
        }
    }
}

static int32_t rail_of(const struct maker *m, int32_t port_of_host)
{
    if (!m->rail_count)
        return -1;
    return m->s->rails == DP_RAILS_ONE ? 0 : port_of_host;
}

static void join_rails(struct maker *m)
{
    int32_t first = m->b.t.port_count - m->port_count;

    for (int32_t k = 0; k < m->port_count && !m->b.failed; k++) {
        int32_t rail = rail_of(m, k);
        if (rail < 0)
            continue;
        dp_topo_join_rail(&m->b, first + k, m->rails[rail]);
        m->rail_rates[rail] += m->s->net_rate;
    }
}

static void add_host(struct maker *m, int32_t number)
{
    const struct dp_synthetic *s = m->s;
    uint32_t name = s->hosts > 1 ? dp_topo_add_textf(&m->b, "%s%d", s->name, number)
                                 : dp_topo_add_text(&m->b, s->name);

    m->host = dp_topo_add_node(&m->b, DP_TOPO_HOST, -1);
    m->host_number = number;
    m->bus = m->nics = m->cpus = m->numa_count = m->gpu_count = m->port_count = 0;
    struct dp_topo_node *n = dp_topo_node(&m->b, m->host);
    n->name = name;
    n->model = dp_topo_add_text(&m->b, s->cpumodel);
    n->arch = dp_topo_add_text(&m->b, s->arch);
    n->vendor = dp_topo_add_text(&m->b, s->vendor);
    if (s->level_count && s->levels[0].kind == DP_TOPO_NUMA) {
        fill(m, 0, m->host);
    } else {
        add_numa(m);
        fill(m, 0, m->numa);
    }
    link_numa_nodes(m);
    link_gpus(m);
    join_rails(m);
}

/* ---- the fabric ----------------------------------------------------------------------------- */

static void link_spine(struct maker *m)
{
    if (m->rail_count < 2 || m->s->spine_rate < 0)
        return;
    uint32_t name = dp_topo_add_text(&m->b, "spine0");
    int32_t spine = dp_topo_add_node(&m->b, DP_TOPO_SPINE, -1);
    dp_topo_node(&m->b, spine)->name = name;
    for (int32_t i = 0; i < m->rail_count; i++)
        dp_topo_add_link(&m->b, DP_TOPO_NET, m->rails[i], spine,
                         m->s->spine_rate > 0 ? m->s->spine_rate : m->rail_rates[i]);
}

static void add_domains(struct maker *m)
{
    int32_t step = m->s->domain_hosts ? m->s->domain_hosts : m->s->hosts;

    for (int32_t host = 0; host < m->s->hosts && !m->b.failed; host += step) {
        uint32_t name = dp_topo_add_textf(&m->b, "domain%d", host / step);
        int32_t hub = dp_topo_add_node(&m->b, DP_TOPO_NVSWITCH, -1);
        dp_topo_node(&m->b, hub)->name = name;
        m->nvswitch = host ? m->nvswitch : hub;
    }
}

static void add_shared(struct maker *m)
{
    if (m->s->nvlink.shape == DP_NVLINK_DOMAIN)
        add_domains(m);
    for (int32_t i = 0; i < m->rail_count; i++) {
        uint32_t name = dp_topo_add_textf(&m->b, "rail%d", i);
        m->rails[i] = dp_topo_add_node(&m->b, DP_TOPO_RAIL, -1);
        dp_topo_node(&m->b, m->rails[i])->name = name;
    }
}

/* ---- all of it ------------------------------------------------------------------------------ */

struct census {
    double nodes, gpus, nics, numas;
};

static struct census count_host(const struct dp_synthetic *s)
{
    struct census c = {.nodes = 2, .numas = 1};
    double containers = 1;

    for (int32_t i = 0; i < s->level_count; i++) {
        double count = containers * s->levels[i].count;
        c.nodes += 2 * count; /* with a root of its own */
        if (s->levels[i].kind == DP_TOPO_GPU)
            c.gpus += count;
        else if (s->levels[i].kind == DP_TOPO_NIC)
            c.nics += count;
        else
            containers = count;
        if (s->levels[i].kind == DP_TOPO_NUMA)
            c.numas = count;
    }
    return c;
}

/* Too large to be meant; and what would take minutes and gigabytes. */
static int check_size(const struct dp_synthetic *s, const struct census *c)
{
    double links = c->nodes + c->numas * c->numas + c->nics * s->ports;

    if (s->nvlink.shape == DP_NVLINK_MESH)
        links += c->gpus * c->gpus / 2;
    if (s->hosts * c->nodes > NODES_MAX || s->hosts * links > LINKS_MAX)
        return dp_fail(DP_EINVAL, "%d hosts of about %.0f nodes and %.0f links, expected at most %d "
                       "nodes and %d links in all", s->hosts, c->nodes, links, NODES_MAX, LINKS_MAX);
    return 0;
}

int dp_synthetic_build(const struct dp_synthetic *s, struct dp_topology **out)
{
    struct maker m = {.s = s, .nvswitch = -1};
    struct census c = count_host(s);
    bool has_rails = s->rails == DP_RAILS_DEFAULT ? s->hosts > 1 : s->rails != DP_RAILS_NONE;
    int err = check_size(s, &c);

    if (err)
        return err;
    if (has_rails && c.nics > 0)
        m.rail_count = s->rails == DP_RAILS_ONE ? 1 : (int32_t)c.nics * s->ports;
    m.rails = calloc((size_t)m.rail_count + 1, sizeof(*m.rails));
    m.rail_rates = calloc((size_t)m.rail_count + 1, sizeof(*m.rail_rates));
    m.b.failed = !m.rails || !m.rail_rates;
    if (!m.b.failed)
        add_shared(&m);
    for (int32_t i = 0; i < s->hosts && !m.b.failed; i++)
        add_host(&m, i);
    if (!m.b.failed)
        link_spine(&m);
    free(m.rails);
    free(m.rail_rates);
    return dp_topo_finish(&m.b, out);
}
