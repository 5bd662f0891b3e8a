/* SPDX-License-Identifier: Apache-2.0
 *
 * nvml.c - what NVML says of a machine's GPUs. Whether a link leads to a GPU or to an NVSwitch is
 * told as NCCL tells it: one that leads to a GPU that is known joins the two, every other one leads to
 * the switches, whose own address virtual machines are not shown.
 */
#include "base/dl.h"
#include "base/fail.h"
#include "topology/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the library ----------------------------------------------------------------------------- */

static const struct dp_dl_symbol symbols[] = {
#define SYMBOL(name, arguments) {#name, offsetof(struct dp_nvml, name), true},
    DP_NVML_FUNCTIONS(SYMBOL)
#undef SYMBOL
    {"nvmlErrorString", offsetof(struct dp_nvml, nvmlErrorString), true},
};

/* "Not Supported", or the number. */
static const char *reason_of(const struct dp_nvml *nvml, int result, char text[32])
{
    const char *reason = nvml->nvmlErrorString ? nvml->nvmlErrorString(result) : NULL;

    snprintf(text, 32, "error %d", result);
    return reason && *reason ? reason : text;
}

/* Load (file: NULL for the usual one) and start it. DP_ENOENT, DP_ENODEV, quietly: dp_last_error() has
 * the reason. */
static int open_nvml(const char *file, struct dp_nvml *out)
{
    const char *files[] = {file ? file : "libnvidia-ml.so.1", NULL};
    struct dp_nvml nvml = {.library = NULL};
    char text[32];
    int err = dp_dl_open(files, symbols, sizeof(symbols) / sizeof(symbols[0]), &nvml, &nvml.library);

    if (err)
        return err;
    if (!nvml.nvmlInit_v2 || !nvml.nvmlDeviceGetCount_v2 || !nvml.nvmlDeviceGetHandleByIndex_v2 ||
        !nvml.nvmlDeviceGetPciInfo_v3) {
        dlclose(nvml.library);
        return dp_fail_quietly(DP_ENOENT, "%s is too old, or no NVML: it lacks functions that count "
                               "and find GPUs", files[0]);
    }
    int result = nvml.nvmlInit_v2();
    if (result != DP_NVML_SUCCESS) {
        err = dp_fail_quietly(DP_ENODEV, "%s does not start: %s", files[0],
                              reason_of(&nvml, result, text));
        dlclose(nvml.library);
        return err;
    }
    *out = nvml;
    return 0;
}

static void close_nvml(struct dp_nvml *nvml)
{
    if (nvml->nvmlShutdown)
        nvml->nvmlShutdown();
    dlclose(nvml->library);
}

/* ---- questions about one GPU whose answers need some thought ----------------------------------- */

static bool ask_field(const struct dp_nvml *nvml, struct dp_nvml_device *device, unsigned id,
                      unsigned scope, unsigned *out)
{
    struct dp_nvml_field field = {.id = id, .scope = scope, .result = -1};

    if (!DP_NVML_CALL(nvml, nvmlDeviceGetFieldValues, device, 1, &field) ||
        field.result != DP_NVML_SUCCESS)
        return false;
    *out = field.value.number;
    return true;
}

/* NVML's numbers of versions: what is before the point, and GB/s of a link after coding. NVIDIA's white
 * papers of P100, V100, A100, GA102 (3.1), H100 and Blackwell. */
static const struct {
    int version;
    double rate;
} versions[] = {{0, 0}, {1, 20}, {2, 25}, {2, 25}, {3, 25}, {3, 14.0625}, {4, 25}, {5, 50}};

static unsigned ask_version(const struct dp_nvml *nvml, struct dp_nvml_device *device, unsigned link)
{
    unsigned number = 0;

    if (!DP_NVML_CALL(nvml, nvmlDeviceGetNvLinkVersion, device, link, &number) &&
        !ask_field(nvml, device, DP_NVML_FIELD_VERSION, link, &number))
        return 0;
    return number < sizeof(versions) / sizeof(versions[0]) ? number : 0;
}

struct speed {
    double rate; /* GB/s of one link, after coding; 0: not known */
    int version; /* of NVLink, what is before the point; 0: not known */
    bool is_assumed; /* it is the usual rate of this version, else of GPUs with this sm */
};

/* The usual rate, unless NVML says that the link runs much slower: its own figures have the coding in
 * them. */
static struct speed ask_speed(const struct dp_nvml *nvml, struct dp_nvml_device *device, unsigned link,
                              int sm)
{
    unsigned version = ask_version(nvml, device, link), mbps = 0;
    double usual = version ? versions[version].rate : dp_topo_assumed_nvlink_rate(sm);
    bool told = ask_field(nvml, device, DP_NVML_FIELD_SPEED, link, &mbps) && mbps;

    told = told || (ask_field(nvml, device, DP_NVML_FIELD_COMMON_SPEED, 0, &mbps) && mbps);
    return (struct speed){
        .version = versions[version].version, .is_assumed = !told,
        .rate = told && (usual <= 0 || mbps / 1000. < 0.9 * usual) ? mbps / 1000. : usual,
    };
}

/* GB/s of the C2C links that are up, which Grace's GPUs have; of how many in *count. */
static double ask_c2c(const struct dp_nvml *nvml, struct dp_nvml_device *device, int32_t *count)
{
    unsigned links = 0, state, mbps;
    double rate = 0;

    *count = 0;
    if (!ask_field(nvml, device, DP_NVML_FIELD_C2C_COUNT, 0, &links))
        return 0;
    for (unsigned i = 0; i < links && i < DP_NVML_LINKS_MAX; i++)
        if (ask_field(nvml, device, DP_NVML_FIELD_C2C_STATUS, i, &state) &&
            state == DP_NVML_ENABLED &&
            ask_field(nvml, device, DP_NVML_FIELD_C2C_RATE, i, &mbps)) {
            rate += mbps / 1000.;
            ++*count;
        }
    return rate;
}

static void put_hex(const unsigned char *bytes, int count, char *text)
{
    for (int i = 0; i < count; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

enum { DOMAIN_LEN = 64 };

/* What GPUs have in common that NVLink joins, whatever host they are in: their cluster's UUID and the
 * clique in it, "5c9a....32766"; "" where its NVLinks do not leave the host. NCCL asks in the same
 * way; NVSwitches of one host have a cluster of zeroes. */
static void ask_domain(const struct dp_nvml *nvml, struct dp_nvml_device *device, char text[DOMAIN_LEN])
{
    static const unsigned char none[16];
    struct dp_nvml_fabric f = {.version = DP_NVML_FABRIC_VERSION};
    char hex[33];

    *text = '\0';
    if (!DP_NVML_CALL(nvml, nvmlDeviceGetGpuFabricInfoV, device, &f) ||
        f.state != DP_NVML_FABRIC_DONE || f.status != DP_NVML_SUCCESS ||
        !memcmp(f.cluster, none, sizeof(none)))
        return;
    put_hex(f.cluster, 16, hex);
    snprintf(text, DOMAIN_LEN, "%.8s-%.4s-%.4s-%.4s-%s.%u", hex, hex + 8, hex + 12, hex + 16,
             hex + 20, f.clique);
}

/* ---- the machine ----------------------------------------------------------------------------- */

struct options {
    const char *library;
};

static const struct dp_option table[] = {
    {"NVML_LIBRARY", DP_OPTION_STRING, NULL,
     "file to ask about NVLink, instead of libnvidia-ml.so.1; also for captured machines",
     offsetof(struct options, library), .is_code = true},
};
const struct dp_option_area dp_topology_option_area = {"TOPOLOGY", table, 1};

/* A GPU as NVML counts them, which is a whole one: it counts no MIG devices. */
struct gpu {
    struct dp_nvml_device *device;
    int32_t node; /* -1: not to be had */
    bool has_mig;
    struct speed speed; /* of one NVLink */
};

struct reader {
    struct dp_topo_builder *b;
    struct dp_nvml nvml;
    int32_t host;
    int32_t count;
    struct gpu *gpus;
    int32_t *links; /* [i * (count + TARGETS) + k]: NVLinks from GPU i to GPU k, or to count + target */
};

enum { TO_SWITCH, TO_CPU, TO_HIDDEN_GPU, TARGETS };

/* ---- GPUs and their nodes ------------------------------------------------------------------- */

static bool is_nvidia_gpu(const struct dp_topo_node *n)
{
    return n->kind == DP_TOPO_GPU && (n->pci.vendor_id == 0x10de || n->uuid);
}

static int32_t count_gpus(const struct dp_topo_builder *b)
{
    int32_t count = 0;

    for (int32_t i = 0; i < b->t.node_count; i++)
        count += is_nvidia_gpu(&b->t.nodes[i]);
    return count;
}

/* The GPU at this place; functions are not counted by NVML. */
static int32_t find_gpu(const struct dp_topo_builder *b, const struct dp_nvml_pci *pci)
{
    for (int32_t i = 0; i < b->t.node_count; i++) {
        const struct dp_topo_node *n = &b->t.nodes[i];
        if (n->kind == DP_TOPO_GPU && n->pci.known && n->pci.domain == pci->domain &&
            n->pci.bus == pci->bus && n->pci.device == pci->device)
            return i;
    }
    return -1;
}

static bool is_numa(const struct reader *r, int32_t node, int32_t os_index)
{
    const struct dp_topo_node *n = &r->b->t.nodes[node];

    return n->kind == DP_TOPO_NUMA && n->parent == r->host &&
           (os_index < 0 || n->os_index == os_index);
}

/* The NUMA node next to a GPU of which only NVML knows. */
static int32_t numa_of(const struct reader *r, struct dp_nvml_device *device, bool *assumed)
{
    unsigned long near[16] = {0}; /* 1024 nodes */
    enum { WORDS = sizeof(near) / sizeof(near[0]), BITS = 8 * sizeof(near[0]), SCOPE_NODE = 0 };
    int32_t first = -1;

    *assumed = !DP_NVML_CALL(&r->nvml, nvmlDeviceGetMemoryAffinity, device, WORDS, near, SCOPE_NODE);
    for (int32_t i = r->host + 1; i < r->b->t.node_count; i++) {
        int32_t number = r->b->t.nodes[i].os_index;
        if (!is_numa(r, i, -1))
            continue;
        first = first < 0 ? i : first;
        if (number >= 0 && number < WORDS * BITS && near[number / BITS] >> number % BITS & 1)
            return i;
    }
    *assumed = true;
    return first;
}

/* A generation or width; 0: not known. */
static int ask_pcie(struct dp_nvml_device *device, int (*ask)(struct dp_nvml_device *, unsigned *),
                    unsigned most)
{
    unsigned number = 0;

    return ask && ask(device, &number) == DP_NVML_SUCCESS && number <= most ? (int)number : 0;
}

/* Containers are often shown the GPUs, but not the PCI buses. */
static int32_t add_gpu(struct reader *r, struct dp_nvml_device *device, const struct dp_nvml_pci *pci)
{
    char address[DP_TOPO_PCI_LEN];
    bool assumed;
    int32_t numa = numa_of(r, device, &assumed);
    int32_t gpu = dp_topo_add_node(r->b, DP_TOPO_GPU, numa);
    int gen = ask_pcie(device, r->nvml.nvmlDeviceGetMaxPcieLinkGeneration, DP_PCI_GEN_MAX);
    int width = ask_pcie(device, r->nvml.nvmlDeviceGetCurrPcieLinkWidth, 32);
    int width_max = ask_pcie(device, r->nvml.nvmlDeviceGetMaxPcieLinkWidth, 32);

    dp_topo_node(r->b, gpu)->pci = (struct dp_topo_pci){
        .known = true, .domain = pci->domain, .bus = (uint8_t)pci->bus,
        .device = (uint8_t)pci->device, .class_code = 0x030200,
        .vendor_id = (uint16_t)pci->id, .device_id = (uint16_t)(pci->id >> 16),
        .subsystem_vendor_id = (uint16_t)pci->subsystem_id,
        .subsystem_device_id = (uint16_t)(pci->subsystem_id >> 16),
    };
    dp_topo_add_pci_link(r->b, numa, gpu, gen, width, gen, width_max);
    dp_topo_add_note(r->b, DP_TOPO_ASSUMED, gpu, "%s: a GPU that NVML shows and /sys does "
                     "not: taken to stand right at %s",
                     dp_topo_pci_text(&dp_topo_node(r->b, gpu)->pci, address),
                     assumed ? "the first NUMA node" : "the NUMA node that NVML names");
    return gpu;
}

static bool has_node(const struct reader *r, int32_t node)
{
    for (int32_t i = 0; i < r->count; i++)
        if (r->gpus[i].node == node)
            return true;
    return false;
}

/* ---- one GPU -------------------------------------------------------------------------------- */

static void describe(struct reader *r, struct gpu *g, int32_t index)
{
    struct dp_nvml_memory memory;
    char text[96] = ""; /* NVML's own bound */
    unsigned current, pending;
    int major, minor;
    uint32_t model = 0, uuid = 0;

    if (DP_NVML_CALL(&r->nvml, nvmlDeviceGetName, g->device, text, sizeof(text)))
        model = dp_topo_add_text(r->b, text);
    if (DP_NVML_CALL(&r->nvml, nvmlDeviceGetUUID, g->device, text, sizeof(text)))
        uuid = dp_topo_add_text(r->b, text);
    struct dp_topo_node *n = dp_topo_node(r->b, g->node);
    n->os_index = index;
    n->model = model ? model : n->model;
    n->uuid = uuid ? uuid : n->uuid;
    if (DP_NVML_CALL(&r->nvml, nvmlDeviceGetCudaComputeCapability, g->device, &major, &minor) &&
        major > 0 && major < 100 && minor >= 0 && minor < 10)
        n->sm = 10 * major + minor;
    if (DP_NVML_CALL(&r->nvml, nvmlDeviceGetMemoryInfo, g->device, &memory))
        n->memory_bytes = memory.total;
    g->has_mig = DP_NVML_CALL(&r->nvml, nvmlDeviceGetMigMode, g->device, &current, &pending) &&
                 current == DP_NVML_ENABLED;
    if (g->has_mig)
        dp_topo_add_note(r->b, DP_TOPO_ASSUMED, g->node, "GPU %d is divided (MIG): shown whole, and "
                         "without NVLink, which its parts cannot use", index);
}

static void read_gpu(struct reader *r, int32_t index)
{
    struct gpu *g = &r->gpus[index];
    struct dp_nvml_pci pci = {.domain = 0};
    unsigned is_mig;
    char text[32];

    g->node = -1;
    int result = r->nvml.nvmlDeviceGetHandleByIndex_v2((unsigned)index, &g->device);
    if (!result)
        result = r->nvml.nvmlDeviceGetPciInfo_v3(g->device, &pci);
    if (result) {
        dp_topo_add_note(r->b, DP_TOPO_MISSING, r->host, "NVML does not show its GPU %d: %s", index,
                         reason_of(&r->nvml, result, text));
        return;
    }
    if (DP_NVML_CALL(&r->nvml, nvmlDeviceIsMigDeviceHandle, g->device, &is_mig) && is_mig)
        return;
    int32_t node = find_gpu(r->b, &pci);
    if (node < 0)
        node = add_gpu(r, g->device, &pci);
    if (has_node(r, node))
        return; /* a part of a GPU that is known */
    g->node = node;
    describe(r, g, index);
}

/* ---- NVLink --------------------------------------------------------------------------------- */

static bool is_up(const struct reader *r, const struct gpu *g, unsigned link)
{
    unsigned state, p2p;
    int enabled;

    if (DP_NVML_CALL(&r->nvml, nvmlDeviceGetNvLinkCapability, g->device, link, DP_NVML_CAPABILITY_P2P,
                     &p2p) && !p2p)
        return false;
    if (r->b->t.nodes[g->node].sm >= 90 &&
        ask_field(&r->nvml, g->device, DP_NVML_FIELD_STATE, link, &state))
        return state == DP_NVML_ENABLED;
    return DP_NVML_CALL(&r->nvml, nvmlDeviceGetNvLinkState, g->device, link, &enabled) &&
           enabled == DP_NVML_ENABLED;
}

/* Where a link that is up leads to: a GPU's number, count + TO_..., -1 if NVML does not say. */
static int32_t target_of(const struct reader *r, const struct gpu *g, unsigned link)
{
    struct dp_nvml_pci far = {.domain = 0};
    int type = -1;

    if (!DP_NVML_CALL(&r->nvml, nvmlDeviceGetNvLinkRemoteDeviceType, g->device, link, &type))
        type = -1;
    if (type == DP_NVML_REMOTE_SWITCH || type == DP_NVML_REMOTE_NPU)
        return r->count + (type == DP_NVML_REMOTE_NPU ? TO_CPU : TO_SWITCH);
    if (!DP_NVML_CALL(&r->nvml, nvmlDeviceGetNvLinkRemotePciInfo_v2, g->device, link, &far))
        return -1;
    int32_t node = find_gpu(r->b, &far);
    for (int32_t i = 0; i < r->count && node >= 0; i++)
        if (r->gpus[i].node == node)
            return i;
    return r->count + (node >= 0 || type == DP_NVML_REMOTE_GPU ? TO_HIDDEN_GPU : TO_SWITCH);
}

static void count_links(struct reader *r, int32_t index)
{
    struct gpu *g = &r->gpus[index];
    int32_t *row = r->links + index * (r->count + TARGETS);

    for (unsigned link = 0; link < DP_NVML_LINKS_MAX && g->node >= 0 && !g->has_mig; link++) {
        int32_t target = is_up(r, g, link) ? target_of(r, g, link) : -1;
        if (target < 0)
            continue;
        if (!g->speed.rate)
            g->speed = ask_speed(&r->nvml, g->device, link, r->b->t.nodes[g->node].sm);
        row[target]++;
    }
}

static int32_t links_between(const struct reader *r, int32_t a, int32_t b)
{
    int32_t there = r->links[a * (r->count + TARGETS) + b];
    int32_t back = b < r->count ? r->links[b * (r->count + TARGETS) + a] : there;

    return there > back ? there : back;
}

static void join(struct reader *r, const struct gpu *g, enum dp_topo_link_kind kind, int32_t node,
                 int32_t count)
{
    struct dp_topo_link *l = dp_topo_add_link(r->b, kind, g->node, node, g->speed.rate * count);

    l->count = count;
    l->gen = g->speed.version;
    l->flags = g->speed.rate <= 0 ? DP_TOPO_RATE_UNKNOWN
               : g->speed.is_assumed ? DP_TOPO_RATE_ASSUMED : 0;
}

/* All switches of a host are one node, unless its GPUs are in several domains. */
static int32_t get_hub(struct reader *r, uint32_t domain)
{
    for (int32_t i = r->host; i < r->b->t.node_count; i++)
        if (r->b->t.nodes[i].kind == DP_TOPO_NVSWITCH && r->b->t.nodes[i].name == domain)
            return i;
    int32_t hub = dp_topo_add_node(r->b, DP_TOPO_NVSWITCH, r->host);
    dp_topo_node(r->b, hub)->name = domain;
    return hub;
}

static void join_switches(struct reader *r)
{
    char domain[DOMAIN_LEN];

    for (int32_t i = 0; i < r->count && !r->b->failed; i++) {
        int32_t count = links_between(r, i, r->count + TO_SWITCH);
        if (!count)
            continue;
        ask_domain(&r->nvml, r->gpus[i].device, domain);
        join(r, &r->gpus[i], DP_TOPO_NVLINK, get_hub(r, dp_topo_add_text(r->b, domain)), count);
    }
}

static void join_gpus(struct reader *r)
{
    for (int32_t i = 0; i < r->count; i++)
        for (int32_t k = i + 1; k < r->count && !r->b->failed; k++) {
            int32_t count = links_between(r, i, k);
            if (count)
                join(r, &r->gpus[r->gpus[i].speed.rate > 0 ? i : k], DP_TOPO_NVLINK,
                     r->gpus[r->gpus[i].speed.rate > 0 ? k : i].node, count);
        }
}

/* ---- chip to chip --------------------------------------------------------------------------- */

static void join_cpus(struct reader *r)
{
    for (int32_t i = 0; i < r->count && !r->b->failed; i++) {
        const struct gpu *g = &r->gpus[i];
        int32_t count, nvlinks = links_between(r, i, r->count + TO_CPU);
        int32_t numa = dp_topology_above(&r->b->t, g->node, DP_TOPO_NUMA);
        double rate = g->node < 0 ? 0 : ask_c2c(&r->nvml, g->device, &count);
        if (rate > 0)
            dp_topo_add_link(r->b, DP_TOPO_C2C, numa, g->node, rate)->count = count;
        else if (nvlinks)
            join(r, g, DP_TOPO_C2C, numa, nvlinks);
    }
}

/* ---- notes ---------------------------------------------------------------------------------- */

/* Links that are up although the driver does not allow their use: one note about the first pair. */
static void note_refusals(struct reader *r)
{
    for (int32_t i = 0; i < r->count; i++)
        for (int32_t k = i + 1; k < r->count; k++) {
            bool over_switch = links_between(r, i, r->count + TO_SWITCH) &&
                               links_between(r, k, r->count + TO_SWITCH);
            int status = DP_NVML_P2P_OK;
            if ((!over_switch && !links_between(r, i, k)) ||
                !DP_NVML_CALL(&r->nvml, nvmlDeviceGetP2PStatus, r->gpus[i].device,
                              r->gpus[k].device, DP_NVML_P2P_OVER_NVLINK, &status) ||
                status == DP_NVML_P2P_OK)
                continue;
            dp_topo_add_note(r->b, DP_TOPO_ASSUMED, r->gpus[i].node, "NVLink joins GPUs %d and %d, but "
                             "the driver refuses it to them (status %d%s): shown as if it did not", i,
                             k, status, over_switch ? "; is the fabric manager running?" : "");
            return;
        }
}

static void note_what_is_hidden(struct reader *r, int32_t shown)
{
    int32_t asked = 0, hidden = 0;

    for (int32_t i = 0; i < r->count; i++) {
        asked += r->gpus[i].node >= 0;
        hidden += links_between(r, i, r->count + TO_HIDDEN_GPU);
    }
    if (shown > asked)
        dp_topo_add_note(r->b, DP_TOPO_MISSING, r->host, "NVML shows %d of the %d GPUs: how NVLink "
                         "joins the others is not known", asked, shown);
    if (hidden)
        dp_topo_add_note(r->b, DP_TOPO_MISSING, r->host, "%d NVLinks lead to GPUs that NVML does not "
                         "show: left out", hidden);
}

static void note_no_nvml(struct dp_topo_builder *b, int32_t host, int32_t gpus, const char *reason)
{
    const char *them = gpus == 1 ? "GPU is" : "GPUs are";

    if (gpus)
        dp_topo_add_note(b, DP_TOPO_MISSING, host, "NVLink is not known, the %d %s shown as if PCI "
                         "alone joined %s: %s", gpus, them, gpus == 1 ? "it" : "them", reason);
}

/* ---- all of it ------------------------------------------------------------------------------ */

static void read_all(struct reader *r)
{
    int32_t shown = count_gpus(r->b);

    for (int32_t i = 0; i < r->count; i++)
        r->gpus[i].node = -1;
    for (int32_t i = 0; i < r->count && !r->b->failed; i++)
        read_gpu(r, i);
    for (int32_t i = 0; i < r->count && !r->b->failed; i++)
        count_links(r, i);
    if (r->b->failed)
        return;
    join_gpus(r);
    join_switches(r);
    join_cpus(r);
    note_refusals(r);
    note_what_is_hidden(r, shown);
}

int dp_nvml_add(struct dp_topo_builder *b, int32_t host, bool is_here)
{
    struct reader r = {.b = b, .host = host};
    enum { MOST = 1024 }; /* GPUs of a host */
    struct options options;
    unsigned count = 0;
    int err = dp_options_read(&dp_topology_option_area, &options);

    if (err)
        return err;
    if (!is_here && !options.library) {
        note_no_nvml(b, host, count_gpus(b), "/sys does not describe it");
        return 0;
    }
    if (open_nvml(options.library, &r.nvml)) {
        note_no_nvml(b, host, count_gpus(b), dp_last_error());
        return 0;
    }
    if (!DP_NVML_CALL(&r.nvml, nvmlDeviceGetCount_v2, &count) || !count || count > MOST) {
        note_no_nvml(b, host, count_gpus(b), "NVML counts no GPUs");
        goto close;
    }
    r.count = (int32_t)count;
    r.gpus = calloc(count, sizeof(*r.gpus));
    r.links = calloc((size_t)count * (count + TARGETS), sizeof(*r.links));
    b->failed |= !r.gpus || !r.links;
    if (!b->failed)
        read_all(&r);
    free(r.gpus);
    free(r.links);
close:
    close_nvml(&r.nvml);
    return 0;
}
