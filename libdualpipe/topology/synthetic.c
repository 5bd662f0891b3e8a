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

/* ---- values: what a key may say, into a member of struct dp_synthetic ------------------------ */

static bool parse_number(const char *text, int32_t least, int32_t most, int32_t *out)
{
    char *end;
    long value = strtol(text, &end, 10);

    if (end == text || *end || value < least || value > most)
        return false;
    *out = (int32_t)value;
    return true;
}

static bool parse_hosts(const char *text, void *out)
{
    return parse_number(text, 1, COUNT_MAX, out);
}
static bool parse_ports(const char *text, void *out)
{
    return parse_number(text, 1, 64, out);
}
static bool parse_cpus(const char *text, void *out)
{
    return parse_number(text, 0, 65536, out);
}
static bool parse_sm(const char *text, void *out)
{
    return parse_number(text, 0, 999, out);
}

static bool parse_rate(const char *text, void *out)
{
    char *end;
    double value = dp_strtod(text, &end);

    if (end == text || !isfinite(value) || value <= 0 || value > 1e9)
        return false;
    if (!strcmp(end, "Gb/s"))
        value /= 8;
    else if (*end && strcmp(end, "GB/s"))
        return false;
    *(double *)out = value;
    return true;
}

static bool parse_spine(const char *text, void *out)
{
    if (strcmp(text, "none"))
        return parse_rate(text, out);
    *(double *)out = -1;
    return true;
}

static bool parse_size(const char *text, void *out)
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
    *(uint64_t *)out = (uint64_t)value;
    return true;
}

static bool parse_pcie(const char *text, void *out)
{
    int gen = 0, width = 0, end = 0;

    if (strcmp(text, "unknown") &&
        (sscanf(text, "%1dx%2d%n", &gen, &width, &end) != 2 || text[end] || gen < 1 || gen > 7 ||
         width < 1 || width > 32))
        return false;
    *(struct dp_synthetic_pcie *)out = (struct dp_synthetic_pcie){true, gen, width};
    return true;
}

/* "switch:18x25" */
static bool parse_nvlink(const char *text, void *out)
{
    static const char *const shapes[] = {"none", "switch", "mesh", "pair", "domain", NULL};
    const size_t len = strcspn(text, ":");
    const int shape = dp_topo_name_index(text, len, shapes);
    struct dp_synthetic_nvlink n = {.shape = (enum dp_synthetic_shape)shape};
    char count[16] = "";

    if (shape < 0 || (shape == DP_NVLINK_NONE) != !text[len])
        return false;
    if (shape != DP_NVLINK_NONE) {
        const char *links = text + len + 1;
        const size_t digits = strcspn(links, "x");
        if (!links[digits] || digits >= sizeof(count))
            return false;
        memcpy(count, links, digits);
        if (!parse_number(count, 1, 1024, &n.count) || !parse_rate(links + digits + 1, &n.rate))
            return false;
    }
    *(struct dp_synthetic_nvlink *)out = n;
    return true;
}

/* Names in which '_' is just that. */
static bool parse_prefix(const char *text, void *out)
{
    const size_t len = strlen(text);

    if (!len || len >= DP_SYNTHETIC_NAME || strchr(text, '/'))
        return false;
    memcpy(out, text, len + 1);
    return true;
}

static bool parse_name(const char *text, void *out)
{
    if (!parse_prefix(text, out))
        return false;
    for (char *at = out; (at = strchr(at, '_'));)
        *at = ' ';
    return true;
}

static bool parse_fabric(const char *text, void *out)
{
    const int fabric = dp_topo_name_index(text, strlen(text), dp_topo_fabric_names);

    *(enum dp_topo_fabric *)out = (enum dp_topo_fabric)fabric;
    return fabric == DP_TOPO_ETHERNET || fabric == DP_TOPO_INFINIBAND;
}

static bool parse_rails(const char *text, void *out)
{
    static const char *const names[] = {"port", "one", "none", NULL};
    const int which = dp_topo_name_index(text, strlen(text), names);

    *(enum dp_synthetic_rails *)out = (enum dp_synthetic_rails)(which + 1);
    return which >= 0;
}

/* ---- keys ----------------------------------------------------------------------------------- */

static const char a_name[] = "a name without '/'", a_size[] = "a size such as 80G",
                  a_rate[] = "a rate such as 450 (GB/s)",
                  lanes[] = "a generation and a width such as 5x16, or unknown";

#define AT(member) offsetof(struct dp_synthetic, member)

static const struct key {
    const char *name;
    bool (*parse)(const char *text, void *out);
    size_t offset;
    const char *expected;
} keys[] = {
    {"arch", parse_prefix, AT(arch), a_name},
    {"c2c", parse_rate, AT(c2c_rate), a_rate},
    {"cpu", parse_rate, AT(cpu_rate), a_rate},
    {"cpumodel", parse_name, AT(cpumodel), a_name},
    {"cpus", parse_cpus, AT(cpus), "a number up to 65536"},
    {"domain", parse_hosts, AT(domain_hosts), "a number of hosts from 1"},
    {"fabric", parse_fabric, AT(fabric), "ethernet or infiniband"},
    {"gpumem", parse_size, AT(gpu_memory_bytes), a_size},
    {"gpumodel", parse_name, AT(gpu), a_name},
    {"memory", parse_size, AT(memory_bytes), a_size},
    {"name", parse_prefix, AT(name), a_name},
    {"net", parse_rate, AT(net_rate), "a rate such as 400Gb/s, or in GB/s"},
    {"nicmodel", parse_name, AT(nic), a_name},
    {"nicname", parse_prefix, AT(nicname), a_name},
    {"nicpcie", parse_pcie, AT(nicpcie), lanes},
    {"nvlink", parse_nvlink, AT(nvlink),
     "none, or a shape, links and a rate: switch:18x25, mesh:, pair:, domain:"},
    {"pcie", parse_pcie, AT(pcie), lanes},
    {"ports", parse_ports, AT(ports), "a number from 1 to 64"},
    {"rails", parse_rails, AT(rails), "port, one or none"},
    {"sm", parse_sm, AT(sm), "a compute capability such as 90"},
    {"spine", parse_spine, AT(spine_rate), "a rate such as 400 (GB/s), or none"},
    {"uplink", parse_pcie, AT(uplink), lanes},
    {"vendor", parse_name, AT(vendor), a_name},
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
            return keys[i].parse(word + len + 1, (char *)s + keys[i].offset)
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
    if (!parse_number(word + len + 1, !is_leaf, COUNT_MAX, &count))
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
        .hosts = 1, .pcie = {true, 4, 16}, .net_rate = 25, .ports = 1,
        .nicname = "mlx5_", .name = "node",
    };
    int err = read_words(description, &s);

    return err ? err : dp_synthetic_build(&s, out);
}
