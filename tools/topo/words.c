/* SPDX-License-Identifier: Apache-2.0 */
#include "topo/topo.h"

const char *topo_rate(const struct dp_topo_link *l, char out[TOPO_WORD])
{
    if (l->flags & DP_TOPO_RATE_UNKNOWN)
        snprintf(out, TOPO_WORD, "unknown rate");
    else if (l->bytes_per_ns <= 0)
        snprintf(out, TOPO_WORD, "unlimited");
    else
        snprintf(out, TOPO_WORD, "%s%.3g GB/s", l->flags & DP_TOPO_RATE_ASSUMED ? "~" : "",
                 l->bytes_per_ns);
    return out;
}

static void describe_pci(const struct dp_topo_link *l, char out[TOPO_WORD])
{
    int len = l->gen ? snprintf(out, TOPO_WORD, "PCIe %d.0 x%d", l->gen, l->width)
                     : snprintf(out, TOPO_WORD, "PCIe");

    if (l->flags & DP_TOPO_DEGRADED)
        snprintf(out + len, TOPO_WORD - (size_t)len, " (could be %d.0 x%d)",
                 l->gen_max ? l->gen_max : l->gen, l->width_max ? l->width_max : l->width);
}

const char *topo_link(const struct dp_topo_link *l, char out[TOPO_WORD])
{
    int len;

    switch (l->kind) {
    case DP_TOPO_PCI:
        describe_pci(l, out);
        break;
    case DP_TOPO_NVLINK:
        len = snprintf(out, TOPO_WORD, "%d NVLink%s", l->count, l->count == 1 ? "" : "s");
        if (l->gen)
            snprintf(out + len, TOPO_WORD - (size_t)len, " of version %d", l->gen);
        break;
    case DP_TOPO_XGMI:
        snprintf(out, TOPO_WORD, "%d xGMI link%s", l->count, l->count == 1 ? "" : "s");
        break;
    case DP_TOPO_C2C:
        snprintf(out, TOPO_WORD, "C2C");
        break;
    case DP_TOPO_CPU:
        snprintf(out, TOPO_WORD, "between NUMA nodes");
        break;
    case DP_TOPO_NET:
        snprintf(out, TOPO_WORD, "network");
        break;
    default:
        snprintf(out, TOPO_WORD, "in the CPU");
    }
    return out;
}

const char *topo_size(uint64_t bytes, char out[TOPO_WORD])
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;

    while (value >= 1024 && unit < 4) {
        value /= 1024;
        unit++;
    }
    snprintf(out, TOPO_WORD, value < 99.5 ? "%.3g %s" : "%.0f %s", value, units[unit]);
    return out;
}

const char *topo_class(const struct dp_topo_path *p, char out[TOPO_WORD])
{
    if (p->class_ == DP_TOPO_NV || p->class_ == DP_TOPO_XG)
        snprintf(out, TOPO_WORD, "%s%d", dp_name(DP_NAMES_PATH, p->class_), p->nvlinks);
    else
        snprintf(out, TOPO_WORD, "%s", dp_name(DP_NAMES_PATH, p->class_));
    return out;
}

const char *topo_nic(const struct dp_topology *t, int32_t nic, char label[DP_TOPO_LABEL_LEN])
{
    const char *name = dp_topology_text(t, t->nodes[nic].name);

    return *name ? name : dp_topology_label(t, nic, label);
}

const char *topo_port(const struct dp_topo_port *p, char out[TOPO_WORD])
{
    static const char *const fabrics[] = {"Ethernet", "InfiniBand", "unknown fabric"};

    if (p->bytes_per_ns > 0)
        snprintf(out, TOPO_WORD, "%.4g Gb/s %s", 8 * p->bytes_per_ns, fabrics[p->fabric]);
    else
        snprintf(out, TOPO_WORD, "%s of unknown rate", fabrics[p->fabric]);
    return out;
}
