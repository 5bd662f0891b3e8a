/* SPDX-License-Identifier: Apache-2.0
 *
 * synthetic.c - take the words of a description apart: a table of keys, a parser a type.
 */
#include "topology/synthetic.h"

#include "base/fail.h"
#include "base/text.h"
#include "topology/build.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT_MAX = 1 << 20 };

/* ---- usual machines ------------------------------------------------------------------------- */

static const struct dp_topology_preset presets[] = {
    {"dgx-h100", "2 sockets, 8 H100 on NVSwitch, a 400 Gb/s NIC beside each",
     "numa:2 root:4 switch:1 gpu:1 nic:1 pcie=5x16 nvlink=switch:18x25 net=400Gb/s fabric=infiniband "
     "cpus=112 memory=1T gpumem=80G sm=90 gpumodel=NVIDIA_H100_80GB_HBM3 nicmodel=ConnectX-7 "
     "cpumodel=Intel_Xeon_Platinum_8480C arch=x86_64 vendor=GenuineIntel"},
    {"hgx-a100", "2 sockets, 8 A100 on NVSwitch, two and two 200 Gb/s NICs a PCI switch",
     "numa:2 root:2 switch:1 gpu:2 nic:2 pcie=4x16 nvlink=switch:12x25 net=200Gb/s fabric=infiniband "
     "cpus=128 memory=512G gpumem=80G sm=80 gpumodel=NVIDIA_A100-SXM4-80GB nicmodel=ConnectX-6 "
     "cpumodel=AMD_EPYC_7742 arch=x86_64 vendor=AuthenticAMD"},
    {"gb200-nvl72", "18 hosts of 2 Grace and 4 Blackwell in one NVLink domain",
     "host:18 numa:2 gpu:2 nic:2 pcie=5x16 c2c=450 nvlink=domain:18x50 domain=18 net=400Gb/s "
     "fabric=infiniband cpus=72 memory=480G gpumem=186G sm=100 gpumodel=NVIDIA_GB200 "
     "nicmodel=ConnectX-7 cpumodel=Grace arch=aarch64 vendor=ARM"},
    {"grace-hopper", "one Grace Hopper: a GPU beside the CPU's memory, a 400 Gb/s NIC",
     "gpu:1 nic:1 pcie=5x16 c2c=450 net=400Gb/s cpus=72 memory=480G gpumem=96G sm=90 "
     "gpumodel=NVIDIA_GH200_480GB nicmodel=ConnectX-7 cpumodel=Grace arch=aarch64 vendor=ARM"},
    {"pcie-server", "2 sockets, 2 GPUs and a 100 Gb/s NIC on each, no NVLink",
     "numa:2 nic:1 gpu:2 pcie=4x16 net=100Gb/s cpus=64 memory=256G gpumem=48G sm=89 "
     "gpumodel=NVIDIA_L40S nicmodel=ConnectX-6_Dx cpumodel=Intel_Xeon_Gold_6430 "
     "arch=x86_64 vendor=GenuineIntel"},
    {"cloud-vm", "a virtual machine: 8 GPUs and 4 NICs on one flat bus of unknown speed",
     "root:1 gpu:8 nic:4 pcie=unknown nvlink=switch:12x25 net=100Gb/s cpus=96 memory=1T gpumem=40G "
     "sm=80 gpumodel=NVIDIA_A100-SXM4-40GB nicmodel=Virtual_Function nicname=eth arch=x86_64 "
     "vendor=GenuineIntel"},
    {"laptop", "one GPU on 8 lanes, 1 Gb/s Ethernet",
     "gpu:1 nic:1 pcie=4x8 nicpcie=3x1 net=1Gb/s cpus=16 memory=32G gpumem=8G sm=89 "
     "gpumodel=NVIDIA_GeForce_RTX_4070_Laptop nicmodel=RTL8111 nicname=eth "
     "arch=x86_64 vendor=AuthenticAMD"},
    {0},
};

const struct dp_topology_preset *dp_topology_presets(void)
{
    return presets;
}

/* ---- values --------------------------------------------------------------------------------- */

static bool parse_count(const char *text, int32_t least, int32_t *out)
{
    char *end;
    long value = strtol(text, &end, 10);

    if (end == text || *end || value < least || value > COUNT_MAX)
        return false;
    *out = (int32_t)value;
    return true;
}

static bool parse_rate(const char *text, double *out)
{
    char *end;
    double value = dp_strtod(text, &end);

    if (end == text || !isfinite(value) || value <= 0 || value > 1e9)
        return false;
    if (!strcmp(end, "Gb/s"))
        value /= 8;
    else if (*end && strcmp(end, "GB/s"))
        return false;
    *out = value;
    return true;
}

static bool parse_size(const char *text, uint64_t *out)
{
    static const char units[] = "KMGT";
    char *end;
    double value = dp_strtod(text, &end);
    const char *unit = *end ? strchr(units, *end) : NULL;

    if (end == text || !isfinite(value) || value < 0 || (*end && (!unit || end[1])))
        return false;
    for (long i = unit ? unit - units + 1 : 0; i > 0; i--)
        value *= 1024;
    if (value > 1e18)
        return false;
    *out = (uint64_t)value;
    return true;
}

static bool parse_pcie(const char *text, struct dp_synthetic_pcie *out)
{
    int gen, width, end = 0;

    if (!strcmp(text, "unknown")) {
        *out = (struct dp_synthetic_pcie){0};
        return true;
    }
    if (sscanf(text, "%1dx%2d%n", &gen, &width, &end) != 2 || text[end] || gen < 1 || gen > 7 ||
        width < 1 || width > 32)
        return false;
    *out = (struct dp_synthetic_pcie){gen, width};
    return true;
}

static bool parse_nvlink(const char *text, struct dp_synthetic *s)
{
    static const char *const shapes[] = {"none", "switch", "mesh", "pair", "domain", NULL};
    size_t len = strcspn(text, ":");
    int shape = dp_topo_name_index(text, len, shapes);
    char count[16] = "";
    double rate;

    if (shape < 0 || (shape == DP_NVLINK_NONE) != !text[len])
        return false;
    s->nvlink = (enum dp_synthetic_nvlink)shape;
    if (shape == DP_NVLINK_NONE)
        return true;
    text += len + 1;
    len = strcspn(text, "x");
    if (!text[len] || len >= sizeof(count))
        return false;
    memcpy(count, text, len);
    if (!parse_count(count, 1, &s->nvlinks) || s->nvlinks > 1024 ||
        !parse_rate(text + len + 1, &rate))
        return false;
    s->nvlink_rate = rate;
    return true;
}

static bool parse_name(const char *text, char out[DP_SYNTHETIC_NAME])
{
    size_t len = strlen(text);

    if (!len || len >= DP_SYNTHETIC_NAME || strchr(text, '/'))
        return false;
    for (size_t i = 0; i <= len; i++)
        out[i] = text[i] == '_' ? ' ' : text[i];
    return true;
}

/* Names in which '_' is just that. */
static bool parse_prefix(const char *text, char out[DP_SYNTHETIC_NAME])
{
    return parse_name(text, out) && memcpy(out, text, strlen(text) + 1);
}

/* ---- keys ----------------------------------------------------------------------------------- */

static bool set_pcie(struct dp_synthetic *s, const char *v)
{
    return parse_pcie(v, &s->pcie);
}
static bool set_uplink(struct dp_synthetic *s, const char *v)
{
    return s->has_uplink = parse_pcie(v, &s->uplink);
}
static bool set_nicpcie(struct dp_synthetic *s, const char *v)
{
    return s->has_nicpcie = parse_pcie(v, &s->nicpcie);
}
static bool set_nvlink(struct dp_synthetic *s, const char *v)
{
    return parse_nvlink(v, s);
}
static bool set_domain(struct dp_synthetic *s, const char *v)
{
    return parse_count(v, 1, &s->domain_hosts);
}
static bool set_c2c(struct dp_synthetic *s, const char *v)
{
    return parse_rate(v, &s->c2c_rate);
}
static bool set_cpu(struct dp_synthetic *s, const char *v)
{
    return parse_rate(v, &s->cpu_rate);
}
static bool set_net(struct dp_synthetic *s, const char *v)
{
    return parse_rate(v, &s->net_rate);
}
static bool set_ports(struct dp_synthetic *s, const char *v)
{
    return parse_count(v, 1, &s->ports) && s->ports <= 64;
}
static bool set_spine(struct dp_synthetic *s, const char *v)
{
    if (strcmp(v, "none"))
        return parse_rate(v, &s->spine_rate);
    s->spine_rate = -1;
    return true;
}
static bool set_fabric(struct dp_synthetic *s, const char *v)
{
    s->fabric = !strcmp(v, "infiniband") ? DP_TOPO_INFINIBAND : DP_TOPO_ETHERNET;
    return s->fabric == DP_TOPO_INFINIBAND || !strcmp(v, "ethernet");
}
static bool set_rails(struct dp_synthetic *s, const char *v)
{
    static const char *const names[] = {"port", "one", "none", NULL};
    int which = dp_topo_name_index(v, strlen(v), names);

    s->rails = (enum dp_synthetic_rails)(which + 1);
    return which >= 0;
}
static bool set_cpus(struct dp_synthetic *s, const char *v)
{
    return parse_count(v, 0, &s->cpus) && s->cpus <= 65536;
}
static bool set_memory(struct dp_synthetic *s, const char *v)
{
    return parse_size(v, &s->memory_bytes);
}
static bool set_gpumem(struct dp_synthetic *s, const char *v)
{
    return parse_size(v, &s->gpu_memory_bytes);
}
static bool set_sm(struct dp_synthetic *s, const char *v)
{
    return parse_count(v, 0, &s->sm) && s->sm < 1000;
}
static bool set_gpumodel(struct dp_synthetic *s, const char *v)
{
    return parse_name(v, s->gpu);
}
static bool set_nicmodel(struct dp_synthetic *s, const char *v)
{
    return parse_name(v, s->nic);
}
static bool set_nicname(struct dp_synthetic *s, const char *v)
{
    return parse_prefix(v, s->nicname);
}
static bool set_cpumodel(struct dp_synthetic *s, const char *v)
{
    return parse_name(v, s->cpumodel);
}
static bool set_arch(struct dp_synthetic *s, const char *v)
{
    return parse_prefix(v, s->arch);
}
static bool set_vendor(struct dp_synthetic *s, const char *v)
{
    return parse_name(v, s->vendor);
}
static bool set_name(struct dp_synthetic *s, const char *v)
{
    return parse_prefix(v, s->name);
}

static const struct key {
    const char *name;
    bool (*set)(struct dp_synthetic *s, const char *value);
    const char *expected;
} keys[] = {
    {"arch", set_arch, "a name without '/'"},
    {"c2c", set_c2c, "a rate such as 450 (GB/s)"},
    {"cpu", set_cpu, "a rate such as 40 (GB/s)"},
    {"cpumodel", set_cpumodel, "a name without '/'"},
    {"cpus", set_cpus, "a number up to 65536"},
    {"domain", set_domain, "a number of hosts from 1"},
    {"fabric", set_fabric, "ethernet or infiniband"},
    {"gpumem", set_gpumem, "a size such as 80G"},
    {"gpumodel", set_gpumodel, "a name without '/'"},
    {"memory", set_memory, "a size such as 512G"},
    {"name", set_name, "a name without '/'"},
    {"net", set_net, "a rate such as 400Gb/s, or in GB/s"},
    {"nicmodel", set_nicmodel, "a name without '/'"},
    {"nicname", set_nicname, "a name without '/'"},
    {"nicpcie", set_nicpcie, "a generation and a width such as 5x16, or unknown"},
    {"nvlink", set_nvlink, "none, or a shape, links and a rate: switch:18x25, mesh:, pair:, domain:"},
    {"pcie", set_pcie, "a generation and a width such as 5x16, or unknown"},
    {"ports", set_ports, "a number from 1 to 64"},
    {"rails", set_rails, "port, one or none"},
    {"sm", set_sm, "a compute capability such as 90"},
    {"spine", set_spine, "a rate such as 400 (GB/s), or none"},
    {"uplink", set_uplink, "a generation and a width such as 5x16, or unknown"},
    {"vendor", set_vendor, "a name without '/'"},
};
enum { KEY_COUNT = sizeof(keys) / sizeof(keys[0]) };

static int no_such_word(const char *word, size_t len)
{
    const char *names[KEY_COUNT + DP_TOPO_KINDS + sizeof(presets) / sizeof(presets[0])];
    char name[64];
    size_t count = 0;

    snprintf(name, sizeof(name), "%.*s", (int)(len < 63 ? len : 63), word);
    for (int kind = DP_TOPO_HOST; kind <= DP_TOPO_NIC; kind++)
        names[count++] = dp_topo_kind_names[kind];
    for (size_t i = 0; i < KEY_COUNT; i++)
        names[count++] = keys[i].name;
    for (const struct dp_topology_preset *p = presets; p->name; p++)
        names[count++] = p->name;
    const char *near = dp_nearest(name, names, count);
    for (const struct dp_topology_preset *p = presets; p->name; p++)
        if (!strcmp(p->name, name))
            return dp_fail(DP_EINVAL, "'%s': expected nothing behind %s; host:4 makes four of them",
                           word, name);
    if (near && !strcmp(near, name))
        return dp_fail(DP_EINVAL, "'%s': expected a count or a value behind %s, as in gpu:8 or "
                       "pcie=5x16", word, name);
    return dp_fail(DP_EINVAL, "'%s': expected %s%s%sKIND:COUNT such as gpu:8, a machine such as "
                   "dgx-h100, or KEY=VALUE such as pcie=5x16", word, near ? "something like " : "",
                   near ? near : "", near ? "; there are " : "");
}

/* ---- words ---------------------------------------------------------------------------------- */

static int set_key(struct dp_synthetic *s, const char *word, size_t len)
{
    for (size_t i = 0; i < KEY_COUNT; i++)
        if (strlen(keys[i].name) == len && !strncmp(word, keys[i].name, len))
            return keys[i].set(s, word + len + 1)
                       ? 0 : dp_fail(DP_EINVAL, "'%s': expected %s", word, keys[i].expected);
    return no_such_word(word, len);
}

/* In a usual machine's description: the count of what is there already, but once only, so that a
 * second switch:N still nests. */
static bool replace_level(struct dp_synthetic *s, enum dp_topo_kind kind, int32_t count)
{
    for (int32_t i = 0; i < s->level_count; i++)
        if (s->levels[i].kind == kind && s->levels[i].replaceable) {
            s->levels[i].count = count;
            s->levels[i].replaceable = false;
            return true;
        }
    return false;
}

/* What may still be named inside: numa, root, switch, switch, ... each below the one before. */
static bool may_follow(const struct dp_synthetic *s, enum dp_topo_kind kind)
{
    enum dp_topo_kind deepest = DP_TOPO_HOST;

    for (int32_t i = 0; i < s->level_count; i++)
        if (s->levels[i].kind <= DP_TOPO_SWITCH)
            deepest = s->levels[i].kind;
    if (kind == DP_TOPO_NUMA)
        return !s->level_count;
    return kind > DP_TOPO_SWITCH || kind > deepest || kind == DP_TOPO_SWITCH;
}

static int add_level(struct dp_synthetic *s, const char *word, size_t len)
{
    int kind = dp_topo_name_index(word, len, dp_topo_kind_names);
    int32_t count;

    if (kind < 0 || kind > DP_TOPO_NIC)
        return no_such_word(word, len);
    bool is_leaf = kind == DP_TOPO_GPU || kind == DP_TOPO_NIC;
    if (!parse_count(word + len + 1, is_leaf ? 0 : 1, &count))
        return dp_fail(DP_EINVAL, "'%s': expected a number from %d to %d", word, !is_leaf, COUNT_MAX);
    if (kind == DP_TOPO_HOST) {
        s->hosts = count;
        return 0;
    }
    if (replace_level(s, (enum dp_topo_kind)kind, count))
        return 0;
    if (!may_follow(s, (enum dp_topo_kind)kind))
        return dp_fail(DP_EINVAL, "'%s': expected numa, root and switch in this order", word);
    if (s->level_count == DP_SYNTHETIC_LEVELS)
        return dp_fail(DP_EINVAL, "'%s': expected at most %d words of this kind", word,
                       DP_SYNTHETIC_LEVELS);
    s->levels[s->level_count++] = (struct dp_synthetic_level){(enum dp_topo_kind)kind, count, false};
    return 0;
}

static int read_words(const char *description, struct dp_synthetic *s);

static int use_preset(struct dp_synthetic *s, const char *name)
{
    for (const struct dp_topology_preset *p = presets; p->name; p++)
        if (!strcmp(name, p->name)) {
            int err = read_words(p->description, s);
            for (int32_t i = 0; i < s->level_count; i++)
                s->levels[i].replaceable = true;
            return err;
        }
    return no_such_word(name, strlen(name));
}

static int read_words(const char *description, struct dp_synthetic *s)
{
    static const char blanks[] = " \t\n";
    bool is_first = true;
    char word[192];
    int err = 0;

    for (const char *at = description + strspn(description, blanks); *at && !err;) {
        size_t len = strcspn(at, blanks);
        if (len >= sizeof(word))
            return dp_fail(DP_EINVAL, "'%.40s...': expected words of at most %zu characters", at,
                           sizeof(word) - 1);
        memcpy(word, at, len);
        word[len] = '\0';
        at += len;
        at += strspn(at, blanks);
        len = strcspn(word, ":=");
        if (word[len] == '=')
            err = set_key(s, word, len);
        else if (word[len] == ':')
            err = add_level(s, word, len);
        else
            err = is_first ? use_preset(s, word) : no_such_word(word, len);
        is_first = false;
    }
    return err;
}

int dp_topology_new_synthetic(const char *description, struct dp_topology **out)
{
    struct dp_synthetic s = {
        .hosts = 1, .pcie = {4, 16}, .net_rate = 25, .ports = 1, .nicname = "mlx5_", .name = "node",
    };
    int err = read_words(description, &s);

    return err ? err : dp_synthetic_build(&s, out);
}
