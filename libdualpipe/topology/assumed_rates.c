/* SPDX-License-Identifier: Apache-2.0
 *
 * assumed_rates.c - figures that no interface reports. What is built on them is marked as assumed.
 */
#include "topology/build.h"

#include <string.h>

/* Rate on the wire and line coding: 8b/10b for 1 and 2, 128b/130b from 3 on, 242B of 256B flits from 6
 * (PCI Express Base Specification, 6.0). */
static const struct {
    double gigatransfers, coding;
} generations[DP_PCI_GEN_MAX + 1] = {
    {0, 0},
    {2.5, 8 / 10.},
    {5, 8 / 10.},
    {8, 128 / 130.},
    {16, 128 / 130.},
    {32, 128 / 130.},
    {64, 242 / 256.},
    {128, 242 / 256.},
};

double dp_pci_lane_rate(int gen)
{
    if (gen < 1 || gen > DP_PCI_GEN_MAX)
        return 0;
    return generations[gen].gigatransfers * generations[gen].coding / 8;
}

int dp_pci_gen(double gigatransfers)
{
    for (int gen = 1; gen <= DP_PCI_GEN_MAX; gen++)
        if (gigatransfers == generations[gen].gigatransfers)
            return gen;
    return 0;
}

/* Orders of magnitude: a switch hop about 0.1 us, a CPU's mesh somewhat more, NVLink as seen by a
 * remote load, a NIC and a leaf switch about 0.6 us together. */
double dp_topo_assumed_latency(enum dp_topo_link_kind kind)
{
    static const double ns[DP_TOPO_LINK_KINDS] = {
        [DP_TOPO_MESH] = 150, [DP_TOPO_PCI] = 100, [DP_TOPO_CPU] = 130, [DP_TOPO_NVLINK] = 250,
        [DP_TOPO_XGMI] = 250, [DP_TOPO_C2C] = 200, [DP_TOPO_NET] = 600,
    };

    return ns[kind];
}

/* Two or three UPI links at 16 GT/s and more, xGMI of Milan and Genoa, NVIDIA's NVLink between Graces;
 * a package's own mesh is wider than that. */
double dp_topo_assumed_cpu_rate(const char *vendor, bool same_package)
{
    static const struct {
        const char *vendor;
        double rate;
    } known[] = {{"GenuineIntel", 40}, {"AuthenticAMD", 64}, {"NVIDIA", 100}, {"ARM", 40}};

    if (same_package)
        return 100;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (!strcmp(vendor, known[i].vendor))
            return known[i].rate;
    return 20;
}

double dp_topo_port_rate(const struct dp_topo_port *p)
{
    return p->bytes_per_ns > 0 ? p->bytes_per_ns : 1.25;
}

double dp_topo_assumed_nvlink_rate(int sm)
{
    return sm >= 100 ? 50 : sm == 86 ? 14.0625 : sm >= 70 ? 25 : sm >= 60 ? 20 : 0;
}

/* By the architecture that RCCL names, each direction of a link (AMD's data sheets of Instinct). */
double dp_topo_assumed_xgmi_rate(const char *gcn)
{
    static const struct {
        const char *gcn;
        double rate;
    } known[] = {{"gfx906", 46}, {"gfx908", 46}, {"gfx90a", 50}, {"gfx94", 64}, {"gfx95", 76.8}};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (!strncmp(gcn, known[i].gcn, strlen(known[i].gcn)))
            return known[i].rate;
    return 0;
}
