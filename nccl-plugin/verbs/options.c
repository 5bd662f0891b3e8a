/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/verbs/options.h"

#include "base/fail.h"
#include "base/options.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

static int number(const char *name, int fallback, int min, int max)
{
    const char *text = dp_foreign_variable(name);
    char *end;

    if (!text)
        return fallback;
    long value = strtol(text, &end, 0);
    if (end != text && !*end && value >= min && value <= max)
        return (int)value;
    if (fallback < min) /* the variable cannot be set to the fallback */
        dp_log(DP_LOG_WARN, "%s=%s: expected a whole number from %d to %d; going on without", name,
               text, min, max);
    else
        dp_log(DP_LOG_WARN, "%s=%s: expected a whole number from %d to %d; going on with %d", name,
               text, min, max, fallback);
    return fallback;
}

static bool flag(const char *name, bool fallback)
{
    return number(name, fallback, 0, 1);
}

static int family(void)
{
    const char *text = dp_foreign_variable("NCCL_IB_ADDR_FAMILY");

    if (!text)
        return AF_UNSPEC;
    if (!strcmp(text, "AF_INET"))
        return AF_INET;
    if (!strcmp(text, "AF_INET6"))
        return AF_INET6;
    dp_log(DP_LOG_WARN, "NCCL_IB_ADDR_FAMILY=%s: expected AF_INET or AF_INET6; going on with both",
           text);
    return AF_UNSPEC;
}

static int parse_address(const char *text, struct dpn_range *out)
{
    struct in_addr v4;

    if (inet_pton(AF_INET6, text, &out->address) == 1) {
        out->prefix = 0;
        return 0;
    }
    if (inet_pton(AF_INET, text, &v4) != 1)
        return DP_EINVAL;
    memset(&out->address, 0, 10);
    memset(&out->address.s6_addr[10], 0xff, 2);
    memcpy(&out->address.s6_addr[12], &v4, sizeof(v4));
    out->prefix = 96; /* of the IPv4-mapped prefix */
    return 0;
}

int dpn_range_parse(const char *text, struct dpn_range *out)
{
    const char *slash = strchr(text, '/');
    char address[INET6_ADDRSTRLEN], *end = NULL;
    struct dpn_range range;

    if (!slash || (size_t)(slash - text) >= sizeof(address))
        return DP_EINVAL;
    memcpy(address, text, (size_t)(slash - text));
    address[slash - text] = '\0';
    if (parse_address(address, &range))
        return DP_EINVAL;
    long bits = strtol(slash + 1, &end, 10);
    if (end == slash + 1 || *end || bits < 0 || bits > 128 - range.prefix)
        return DP_EINVAL;
    range.prefix += (int)bits;
    *out = range;
    return 0;
}

static struct dpn_range range(void)
{
    const char *text = dp_foreign_variable("NCCL_IB_ADDR_RANGE");
    struct dpn_range out = {.prefix = 0};

    if (text && dpn_range_parse(text, &out))
        dp_log(DP_LOG_WARN,
               "NCCL_IB_ADDR_RANGE=%s: expected a range like 10.0.0.0/8; going on without", text);
    return out;
}

void dpn_verbs_options_read(struct dpn_verbs_options *out)
{
    const int adaptive = number("NCCL_IB_ADAPTIVE_ROUTING", -2, -2, 1);
    const int bits = number("NCCL_IB_SUBNET_PREFIX_LEN", 24, 1, 32);

    *out = (struct dpn_verbs_options){
        .disabled = flag("NCCL_IB_DISABLE", false),
        .hca = dp_foreign_variable("NCCL_IB_HCA"),
        .gid_index = number("NCCL_IB_GID_INDEX", DPN_AUTO, DPN_AUTO, 255),
        .flid_index = number("NCCL_IB_ROUTABLE_FLID_GID_INDEX", 1, 0, 255),
        .roce_version = number("NCCL_IB_ROCE_VERSION_NUM", DPN_AUTO, 1, 2),
        .family = family(),
        .range = range(),
        .timeout = number("NCCL_IB_TIMEOUT", 20, 1, 31),
        .retries = number("NCCL_IB_RETRY_CNT", 7, 0, 7),
        .pkey_index = number("NCCL_IB_PKEY", 0, 0, 65535),
        .service_level = number("NCCL_IB_SL", DPN_AUTO, DPN_AUTO, 15),
        .traffic_class = number("NCCL_IB_TC", DPN_AUTO, DPN_AUTO, 255),
        .cts_class = number("NCCL_IB_FIFO_TC", DPN_AUTO, DPN_AUTO, 255),
        .inlines_cts = flag("NCCL_IB_USE_INLINE", true),
        .qps = number("NCCL_IB_QPS_PER_CONNECTION", 1, 1, 128),
        .split = flag("NCCL_IB_SPLIT_DATA_ON_QPS", false),
        .relaxed_ordering = number("NCCL_IB_PCI_RELAXED_ORDERING", 2, 0, 2),
        .adaptive_routing = adaptive < 0 ? DPN_AUTO : adaptive,
        .adaptive_bytes = number("NCCL_IB_AR_THRESHOLD", 8192, 0, 1 << 30),
        .out_of_order = flag("NCCL_IB_OOO_RQ", false),
        .data_direct = number("NCCL_IB_DATA_DIRECT", DPN_AUTO, 0, 2),
        .ece = flag("NCCL_IB_ECE_ENABLE", true),
        .merge_functions = flag("NCCL_IB_MERGE_VFS", true),
        .merge_nics = flag("NCCL_IB_MERGE_NICS", true),
        .sorts_by_pci = flag("NCCL_IB_DEVICE_PCI_ORDER", true),
        .asks_kernel_speed = flag("NCCL_IB_QUERY_PORT_SPEED", true),
        .warns_of_rails = flag("NCCL_IB_WARN_RAIL_LOCAL", false),
        .subnet_bits = flag("NCCL_IB_SUBNET_AWARE_ROUTING", false) ? bits : 0,
        .handles_events = flag("NCCL_IB_RETURN_ASYNC_EVENTS", true),
        .flushes = !flag("NCCL_GDR_FLUSH_DISABLE", false),
    };
}

/* ---- which ports are used -------------------------------------------------------------------- */

/* "name:port:rail:plane"; missing numbers are -1. */
struct entry {
    const char *name;
    size_t name_len;
    int numbers[3];
};

static struct entry parse_entry(const char *text, size_t len)
{
    struct entry e = {.name = text, .numbers = {-1, -1, -1}};
    const char *end = text + len, *at = memchr(text, ':', len);

    e.name_len = at ? (size_t)(at - text) : len;
    for (int i = 0; i < 3 && at && at + 1 < end; i++) {
        char *after;
        long value = strtol(at + 1, &after, 10);
        if (after > at + 1 && value >= 0 && value < 32768)
            e.numbers[i] = (int)value;
        at = memchr(at + 1, ':', (size_t)(end - at - 1));
    }
    return e;
}

static bool matches(const struct entry *e, bool exactly, const char *device, int port)
{
    if (strncmp(e->name, device, e->name_len) || (exactly && device[e->name_len]))
        return false;
    return e->numbers[0] < 0 || e->numbers[0] == port;
}

bool dpn_verbs_filter(const char *list, const char *device, int port, struct dpn_rail_place *place)
{
    bool is_named = false;

    *place = (struct dpn_rail_place){-1, -1};
    if (!list || !*list)
        return true;
    const bool all_but = *list == '^';
    list += all_but;
    const bool exactly = *list == '=';
    list += exactly;
    for (size_t len; *list && !is_named; list += len + (list[len] == ',')) {
        len = strcspn(list, ",");
        const struct entry e = parse_entry(list, len);
        is_named = e.name_len && matches(&e, exactly, device, port);
        if (is_named && !all_but)
            *place = (struct dpn_rail_place){e.numbers[1], e.numbers[2]};
    }
    return is_named != all_but;
}
