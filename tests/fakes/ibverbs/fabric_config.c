/* SPDX-License-Identifier: Apache-2.0 */
#include "fabric_config.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char standard[] = "device fake0\n"
                               "port 1 net=0\n"
                               "gid 0 fe80::%h:a type=v1\n"
                               "gid 1 fe80::%h:a type=v2\n"
                               "gid 2 192.168.%h.10 type=v1\n"
                               "gid 3 192.168.%h.10 type=v2\n"
                               "device fake1\n"
                               "port 1 net=0\n"
                               "gid 0 fe80::%h:b type=v1\n"
                               "gid 1 fe80::%h:b type=v2\n"
                               "gid 2 192.168.%h.11 type=v1\n"
                               "gid 3 192.168.%h.11 type=v2\n";

struct reader {
    struct fv_device *devices;
    int count;
    struct fv_port *port; /* the one that GIDs belong to */
    bool port_is_new;
    int host_number;
};

const char *fv_host(void)
{
    const char *host = getenv("FAKE_VERBS_HOST");

    return host ? host : "host";
}

/* ---- words ----------------------------------------------------------------------------------- */

/* The value of name= in the rest of a line, or what it is otherwise. */
static const char *find_value(char *const *words, const char *name)
{
    const size_t len = strlen(name);

    for (; *words; words++)
        if (!strncmp(*words, name, len) && (*words)[len] == '=')
            return *words + len + 1;
    return NULL;
}

static unsigned number(char *const *words, const char *name, unsigned otherwise)
{
    const char *value = find_value(words, name);

    return value ? (unsigned)strtoul(value, NULL, 0) : otherwise;
}

static bool read_gid(const char *text, union ibv_gid *out)
{
    struct in_addr v4;

    if (inet_pton(AF_INET6, text, out->raw) == 1)
        return true;
    if (inet_pton(AF_INET, text, &v4) != 1)
        return false;
    memset(out->raw, 0, 10);
    memset(out->raw + 10, 0xff, 2);
    memcpy(out->raw + 12, &v4, 4);
    return true;
}

static enum ibv_mtu read_mtu(unsigned bytes)
{
    enum ibv_mtu mtu = IBV_MTU_256;

    while (mtu < IBV_MTU_4096 && 128u << (mtu + 1) <= bytes)
        mtu++;
    return mtu;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void set_names(struct ibv_device *d, const char *name, int index)
{
    const char *root = getenv("FAKE_VERBS_SYSFS");

    d->node_type = IBV_NODE_CA;
    snprintf(d->name, sizeof(d->name), "%s", name);
    snprintf(d->dev_name, sizeof(d->dev_name), "uverbs%d", index);
    snprintf(d->dev_path, sizeof(d->dev_path), "%s/sys/class/infiniband_verbs/uverbs%d",
             root ? root : "", index);
    snprintf(d->ibdev_path, sizeof(d->ibdev_path), "%s/sys/class/infiniband/%s", root ? root : "",
             name);
}

static bool read_device(struct reader *r, char *const *words)
{
    if (!words[1] || r->count == FV_DEVICES || strlen(words[1]) >= FV_NAME)
        return false;
    struct fv_device *d = &r->devices[r->count++];
    *d = (struct fv_device){
        .qps = number(words, "qps", 4000),
        .mrs = number(words, "mrs", 30000),
        .wrs = number(words, "wrs", 16384),
        .cqes = number(words, "cqes", 65536),
        .inline_bytes = number(words, "inline", 256),
        .ece = number(words, "ece", 0),
    };
    const char *guid = find_value(words, "guid");
    d->guid = guid ? strtoull(guid, NULL, 0)
                   : UINT64_C(0xfa4e000000000000) + (unsigned)(r->host_number << 8 | r->count);
    d->ib.transport_type = number(words, "iwarp", 0) ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
    set_names(&d->ib, words[1], r->count - 1);
    r->port = NULL;
    return true;
}

static int find_port(const char *device, int n, bool *is_new)
{
    int i = 0;

    for (; i < FV_PORTS && fv->ports[i].used; i++)
        if (fv->ports[i].number == n && !strcmp(fv->ports[i].device, device) &&
            !strcmp(fv->ports[i].host, fv_host())) {
            *is_new = false;
            return i;
        }
    *is_new = true;
    return i;
}

static bool read_port(struct reader *r, char *const *words)
{
    struct fv_device *d = r->count ? &r->devices[r->count - 1] : NULL;

    if (!d || !words[1] || d->port_count == FV_DEVICE_PORTS || atoi(words[1]) != d->port_count + 1)
        return false;
    const int at = find_port(d->ib.name, d->port_count + 1, &r->port_is_new);
    if (at == FV_PORTS)
        return false;
    d->ports[d->port_count++] = at;
    r->port = &fv->ports[at];
    if (!r->port_is_new)
        return true;
    const char *link = find_value(words, "link");
    *r->port = (struct fv_port){
        .used = true,
        .up = !number(words, "down", 0),
        .needs_grh = number(words, "grh", 0),
        .number = d->port_count,
        .net = (int)number(words, "net", 0),
        .link_layer = link && !strcmp(link, "infiniband") ? IBV_LINK_LAYER_INFINIBAND
                                                          : IBV_LINK_LAYER_ETHERNET,
        .gbps = (int)number(words, "gbps", 100),
        .lid = (int)number(words, "lid", (unsigned)at + 1),
        .mtu = read_mtu(number(words, "mtu", 4096)),
    };
    if (r->port->link_layer == IBV_LINK_LAYER_ETHERNET)
        r->port->lid = 0;
    snprintf(r->port->host, FV_NAME, "%s", fv_host());
    snprintf(r->port->device, FV_NAME, "%s", d->ib.name);
    return true;
}

static bool read_entry(struct reader *r, char *const *words)
{
    if (!r->port || !words[1] || !words[2])
        return false;
    const unsigned at = (unsigned)strtoul(words[1], NULL, 0);
    const char *type = find_value(words, "type");
    const bool is_ib = r->port->link_layer == IBV_LINK_LAYER_INFINIBAND;
    struct fv_gid g = {.used = true,
                       .vlan = (int)number(words, "vlan", 0),
                       .ifindex = (int)number(words, "ifindex", 0)};
    if (at >= FV_GIDS || !read_gid(words[2], &g.gid))
        return false;
    if (!type)
        type = is_ib ? "ib" : "v2";
    g.type = !strcmp(type, "ib")   ? IBV_GID_TYPE_IB
             : !strcmp(type, "v1") ? IBV_GID_TYPE_ROCE_V1
                                   : IBV_GID_TYPE_ROCE_V2;
    if (r->port_is_new)
        r->port->gids[at] = g;
    return true;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void fill_in_host(const char *line, size_t len, int host_number, char *out, size_t room)
{
    size_t n = 0;

    for (size_t i = 0; i < len && n + 8 < room; i++) {
        if (line[i] == '%' && i + 1 < len && line[i + 1] == 'h')
            n += (size_t)snprintf(out + n, room - n, "%d", host_number), i++;
        else
            out[n++] = line[i];
    }
    out[n] = '\0';
}

static bool read_line(struct reader *r, const char *line, size_t len)
{
    char text[256], *words[16] = {NULL}, *save = NULL;
    int n = 0;

    fill_in_host(line, len, r->host_number, text, sizeof(text));
    for (char *w = strtok_r(text, " \t", &save); w && n < 15; w = strtok_r(NULL, " \t", &save))
        words[n++] = w;
    if (!n || *words[0] == '#')
        return true;
    if (!strcmp(words[0], "device"))
        return read_device(r, words);
    if (!strcmp(words[0], "port"))
        return read_port(r, words);
    return !strcmp(words[0], "gid") && read_entry(r, words);
}

/* How many hosts were there before this one. */
static int find_host_number(void)
{
    const char *seen[FV_PORTS];
    int hosts = 0;

    for (int i = 0; i < FV_PORTS && fv->ports[i].used; i++) {
        int k = 0;
        while (k < hosts && strcmp(seen[k], fv->ports[i].host))
            k++;
        if (k < hosts)
            continue;
        if (!strcmp(fv->ports[i].host, fv_host()))
            break;
        seen[hosts++] = fv->ports[i].host;
    }
    return hosts;
}

static int read_text(struct fv_device *out, const char *text)
{
    struct reader r = {.devices = out, .host_number = find_host_number()};

    for (const char *line = text; *line; line += *line == '\n') {
        const size_t len = strcspn(line, "\n");
        if (!read_line(&r, line, len)) {
            fprintf(stderr, "fake verbs: FAKE_VERBS_DEVICES: cannot use the line \"%.*s\"\n",
                    (int)len, line);
            return 0;
        }
        line += len;
    }
    return r.count;
}

int fv_devices_read(struct fv_device *out)
{
    const char *file = getenv("FAKE_VERBS_DEVICES");
    static char text[16384];
    size_t len = 0;

    if (file) {
        FILE *f = fopen(file, "re");
        if (f) {
            len = fread(text, 1, sizeof(text) - 1, f);
            fclose(f);
        } else {
            fprintf(stderr, "fake verbs: cannot read FAKE_VERBS_DEVICES=%s\n", file);
        }
        text[len] = '\0';
    }
    fv_lock();
    const int count = read_text(out, file ? text : standard);
    fv_unlock();
    return count;
}
