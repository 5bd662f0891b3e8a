/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: struct ifaddrs' flags */

#include "wire/net.h"

#include "base/fail.h"
#include "base/text.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- this host ----------------------------------------------------------------------------- */

static bool is_id(const char *text, uint8_t id[DP_HOST_ID_BYTES])
{
    int digits = 0;

    /* Hexadecimal digits with dashes between. */
    for (const char *c = text; *c && digits < 2 * DP_HOST_ID_BYTES; c++) {
        unsigned nibble;
        if (sscanf((const char[]){*c, 0}, "%1x", &nibble) != 1)
            continue;
        id[digits / 2] = (uint8_t)(id[digits / 2] << 4 | nibble);
        digits++;
    }
    return digits == 2 * DP_HOST_ID_BYTES;
}

/* 0, DP_ENOENT: there is none, or DP_EIO. */
static int read_boot_id(const char *root, uint8_t id[DP_HOST_ID_BYTES])
{
    char path[512], text[64] = "";

    snprintf(path, sizeof(path), "%s/proc/sys/kernel/random/boot_id", root);
    FILE *f = fopen(path, "re");
    if (!f && (errno == EMFILE || errno == ENFILE))
        return dp_fail(DP_EIO, "cannot read %s: %s", path, dp_errno_text(errno));
    if (!f)
        return DP_ENOENT;
    const bool ok = fgets(text, sizeof(text), f);
    fclose(f);
    return ok && is_id(text, id) ? 0 : DP_ENOENT;
}

int dp_host_id(const char *root, uint8_t id[DP_HOST_ID_BYTES])
{
    char path[512];
    struct stat ns;

    memset(id, 0, DP_HOST_ID_BYTES);
    const int err = read_boot_id(root, id);
    if (err == DP_EIO)
        return err;
    if (err)
        gethostname((char *)id, DP_HOST_ID_BYTES);
    snprintf(path, sizeof(path), "%s/proc/self/ns/net", root);
    if (!stat(path, &ns))
        for (size_t i = 0; i < sizeof(ns.st_ino); i++)
            id[i] ^= (uint8_t)(ns.st_ino >> (8 * i));
    return 0;
}

/* ---- socket addresses ------------------------------------------------------------------------ */

socklen_t dp_sockaddr_len(const union dp_sockaddr *a)
{
    return a->any.sa_family == AF_INET6 ? sizeof(a->v6) : sizeof(a->v4);
}

bool dp_sockaddr_is_loopback(const union dp_sockaddr *a)
{
    if (a->any.sa_family == AF_INET6) {
        const struct in6_addr *ip = &a->v6.sin6_addr;
        return IN6_IS_ADDR_LOOPBACK(ip) || (IN6_IS_ADDR_V4MAPPED(ip) && ip->s6_addr[12] == 127);
    }
    return ntohl(a->v4.sin_addr.s_addr) >> 24 == 127;
}

bool dp_sockaddr_is_same_ip(const union dp_sockaddr *a, const union dp_sockaddr *b)
{
    if (a->any.sa_family != b->any.sa_family)
        return false;
    return a->any.sa_family == AF_INET6
               ? !memcmp(&a->v6.sin6_addr, &b->v6.sin6_addr, sizeof(a->v6.sin6_addr))
               : a->v4.sin_addr.s_addr == b->v4.sin_addr.s_addr;
}

int dp_sockaddr_port(const union dp_sockaddr *a)
{
    return ntohs(a->any.sa_family == AF_INET6 ? a->v6.sin6_port : a->v4.sin_port);
}

void dp_sockaddr_set_port(union dp_sockaddr *a, int port)
{
    if (a->any.sa_family == AF_INET6)
        a->v6.sin6_port = htons((uint16_t)port);
    else
        a->v4.sin_port = htons((uint16_t)port);
}

void dp_sockaddr_text(const union dp_sockaddr *a, char text[DP_SOCKADDR_TEXT])
{
    char host[INET6_ADDRSTRLEN] = "?";
    bool v6 = a->any.sa_family == AF_INET6;

    inet_ntop(a->any.sa_family, v6 ? (const void *)&a->v6.sin6_addr : &a->v4.sin_addr, host,
              sizeof(host));
    snprintf(text, DP_SOCKADDR_TEXT, v6 ? "[%s]:%d" : "%s:%d", host, dp_sockaddr_port(a));
}

/* ---- interfaces ------------------------------------------------------------------------------ */

static bool is_ip(const struct ifaddrs *i)
{
    return i->ifa_addr && (i->ifa_flags & IFF_UP) &&
           (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6);
}

static void copy_ip(const struct ifaddrs *i, union dp_sockaddr *out)
{
    memset(out, 0, sizeof(*out));
    memcpy(out, i->ifa_addr,
           i->ifa_addr->sa_family == AF_INET6 ? sizeof(out->v6) : sizeof(out->v4));
}

static bool parse_ip(const char *text, union dp_sockaddr *out)
{
    memset(out, 0, sizeof(*out));
    if (inet_pton(AF_INET, text, &out->v4.sin_addr) == 1)
        out->any.sa_family = AF_INET;
    else if (inet_pton(AF_INET6, text, &out->v6.sin6_addr) == 1)
        out->any.sa_family = AF_INET6;
    return out->any.sa_family;
}

/* The lower the better: IPv4 before IPv6 (whose link-local addresses are of use within a link only),
 * networks before bridges for containers, then the loopback, and last what has no carrier. */
static int rank_interface(const struct ifaddrs *i)
{
    static const char *const local_bridges[] = {"docker", "br-", "virbr", "veth", "cni", "lxc"};
    int rank = i->ifa_addr->sa_family == AF_INET6;

    for (size_t b = 0; b < sizeof(local_bridges) / sizeof(local_bridges[0]); b++)
        if (!strncmp(i->ifa_name, local_bridges[b], strlen(local_bridges[b])))
            rank += 10;
    if (i->ifa_flags & IFF_LOOPBACK)
        rank += 100;
    if (!(i->ifa_flags & IFF_RUNNING))
        rank += 1000;
    return rank;
}

void dp_interface_guess(union dp_sockaddr *out)
{
    struct ifaddrs *all = NULL;
    int best = INT32_MAX;

    memset(out, 0, sizeof(*out));
    out->v4.sin_family = AF_INET;
    out->v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (getifaddrs(&all)) {
        /* Where files have run out, the next call that needs one says so as an error. */
        dp_log(errno == EMFILE || errno == ENFILE ? DP_LOG_INFO : DP_LOG_WARN,
               "cannot list the network interfaces: %s; going on with 127.0.0.1, where only "
               "this host reaches this process",
               dp_errno_text(errno));
        return;
    }
    for (const struct ifaddrs *i = all; i; i = i->ifa_next)
        if (is_ip(i) && rank_interface(i) < best) {
            best = rank_interface(i);
            copy_ip(i, out);
        }
    dp_sockaddr_set_port(out, 0);
    freeifaddrs(all);
}

static int no_interface(const char *name, const struct ifaddrs *all)
{
    struct dp_text t = {0};

    for (const struct ifaddrs *i = all; i; i = i->ifa_next)
        if (is_ip(i) && i->ifa_addr->sa_family == AF_INET)
            dp_text_addf(&t, "%s%s", t.len ? ", " : "", i->ifa_name);
    int err = dp_fail(DP_EINVAL, "interface '%s': expected an address of this host or one of: %s",
                      name, t.data ? t.data : "(none is up)");
    dp_text_fini(&t);
    return err;
}

int dp_interface_address(const char *name, union dp_sockaddr *out)
{
    struct ifaddrs *all = NULL;
    union dp_sockaddr literal, found = {0};
    const bool is_literal = parse_ip(name, &literal);
    int best = INT32_MAX;

    if (getifaddrs(&all))
        return dp_fail(DP_EIO, "cannot list the network interfaces: %s", dp_errno_text(errno));
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        union dp_sockaddr a;
        if (!is_ip(i) || rank_interface(i) >= best)
            continue;
        copy_ip(i, &a);
        if (is_literal ? dp_sockaddr_is_same_ip(&a, &literal) : !strcmp(i->ifa_name, name)) {
            best = rank_interface(i);
            found = a;
        }
    }
    int err = best == INT32_MAX ? no_interface(name, all) : 0;
    freeifaddrs(all);
    if (!err)
        *out = found;
    return err;
}

/* ---- names --------------------------------------------------------------------------------- */

int dp_net_split(const char *text, char *host, size_t host_len, int *port)
{
    const char *colon = strrchr(text, ':');
    const char *begin = text, *end = colon;
    char *rest;

    if (colon && text[0] == '[') {
        begin++;
        end--;
    }
    long number = colon ? strtol(colon + 1, &rest, 10) : 0;
    if (!colon || end <= begin || (text[0] == '[' && *end != ']') || *rest || number < 1 ||
        number > 65535 || (size_t)(end - begin) >= host_len)
        return dp_fail(DP_EINVAL, "address '%s': expected host:port with a port from 1 to 65535",
                       text);
    memcpy(host, begin, (size_t)(end - begin));
    host[end - begin] = '\0';
    *port = (int)number;
    return 0;
}

int dp_net_resolve(const char *host, int port, union dp_sockaddr *out, int max, int *count)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int err = getaddrinfo(host, NULL, &hints, &found), n = 0;

    if (err)
        return dp_fail(DP_ECOMM, "host '%s': %s", host, gai_strerror(err));
    for (const struct addrinfo *a = found; a && n < max; a = a->ai_next) {
        if (a->ai_family != AF_INET && a->ai_family != AF_INET6)
            continue;
        memset(&out[n], 0, sizeof(out[n]));
        memcpy(&out[n], a->ai_addr, a->ai_addrlen);
        dp_sockaddr_set_port(&out[n++], port);
    }
    freeaddrinfo(found);
    if (!n)
        return dp_fail(DP_ECOMM, "host '%s' has no address", host);
    *count = n;
    return 0;
}
