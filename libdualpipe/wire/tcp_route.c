/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_route.c - properties of the route to a peer, before any byte is sent: within this host, or
 * over which interface, and how fast that is.
 */
#include "config.h" /* GNU extensions: struct ifaddrs' flags */

#include "wire/sockets.h"
#include "wire/tcp_wire.h"

#include <ifaddrs.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* One connection keeps to one processor on either side, which carries some 10 Gb/s, and networks of
 * clouds allow a flow 5 to 10; so one for each 10 Gb/s of the link. No fewer than four, as a long
 * way holds more than one window and a virtual card does not tell its speed; no more than eight, as
 * every one costs a system call to look at. */
enum { MBPS_OF_ONE = 10000, FEWEST = 4, MOST = 8 };

bool dp_tcp_stays_here(int fd)
{
    union dp_sockaddr here = {.room = {0}}, there = {.room = {0}};
    socklen_t here_len = sizeof(here), there_len = sizeof(there);

    return !getsockname(fd, &here.any, &here_len) && !getpeername(fd, &there.any, &there_len) &&
           (dp_sockaddr_is_loopback(&there) || dp_sockaddr_is_same_ip(&here, &there));
}

/* Connecting a UDP socket finds the route without sending anything. -1: there is none. */
static int look_there(const union dp_sockaddr *place)
{
    int fd = socket(place->any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd >= 0 && connect(fd, &place->any, dp_sockaddr_len(place))) {
        close(fd);
        return -1;
    }
    return fd;
}

static bool is_of(const struct ifaddrs *i, const union dp_sockaddr *address)
{
    union dp_sockaddr own = {.room = {0}};

    if (!i->ifa_addr || i->ifa_addr->sa_family != address->any.sa_family)
        return false;
    memcpy(&own, i->ifa_addr, dp_sockaddr_len(address));
    return dp_sockaddr_is_same_ip(&own, address);
}

/* 0: not known, as of most cards of virtual machines. */
static long speed_of(const char *root, const char *name)
{
    char path[512];
    long mbps = 0;

    snprintf(path, sizeof(path), "%s/sys/class/net/%s/speed", root, name);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    if (fscanf(f, "%ld", &mbps) != 1 || mbps < 0)
        mbps = 0;
    fclose(f);
    return mbps;
}

static long speed_from(const char *root, int fd)
{
    union dp_sockaddr own = {.room = {0}};
    socklen_t len = sizeof(own);
    struct ifaddrs *all = NULL;
    long mbps = 0;

    if (getsockname(fd, &own.any, &len) || getifaddrs(&all))
        return 0;
    for (const struct ifaddrs *i = all; i && !mbps; i = i->ifa_next)
        if (is_of(i, &own))
            mbps = speed_of(root, i->ifa_name);
    freeifaddrs(all);
    return mbps;
}

int dp_tcp_route_sockets(const char *root, const union dp_sockaddr *place)
{
    const int fd = look_there(place);

    if (fd < 0 || dp_tcp_stays_here(fd)) {
        dp_fd_close(fd);
        return 1;
    }
    const long wanted = (speed_from(root, fd) + MBPS_OF_ONE - 1) / MBPS_OF_ONE;
    close(fd);
    return wanted < FEWEST ? FEWEST : wanted > MOST ? MOST : (int)wanted;
}
