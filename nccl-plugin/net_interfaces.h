/* SPDX-License-Identifier: Apache-2.0
 *
 * net_interfaces.h - which network interfaces are used, by the rules of NCCL's own sockets.
 */
#ifndef DPN_NET_INTERFACES_H
#define DPN_NET_INTERFACES_H

#include <dualpipe/dualpipe.h>

enum { DPN_INTERFACE_NAME = 16, DPN_ADDRESS_TEXT = 48 };

struct dpn_interface {
    char name[DPN_INTERFACE_NAME];
    char address[DPN_ADDRESS_TEXT]; /* "10.0.0.1", "fd00::1" */
};

/* Whether NCCL_SOCKET_IFNAME admits a name: a comma-separated list of prefixes ("eth,ib"), of whole
 * names with = before it ("=eth0"), or of what is not to be used with ^ ("^docker,lo"). */
bool dpn_interface_is_wanted(const char *list, const char *name);

/* Without NCCL_SOCKET_IFNAME all interfaces of the first group that there is: 0 ib*; 1 any other; 2
 * docker*; 3 lo*; 4 virbr*. */
int dpn_interface_group(const char *name);

/* Those that are up and have an address of family ("AF_INET", "AF_INET6", NULL: either, IPv4 first),
 * each once, at most max; addresses that need a scope are none. 0 found is no error. */
int dpn_interfaces_find(const char *list, const char *family, struct dpn_interface *out, int max);

#endif
