/* SPDX-License-Identifier: Apache-2.0
 *
 * net.h - names of hosts and addresses: which host this is, what its interfaces are called, what
 * "host:port" means.
 */
#ifndef DP_WIRE_NET_H
#define DP_WIRE_NET_H

#include <dualpipe/dualpipe.h>

#include <netinet/in.h>
#include <sys/socket.h>

union dp_sockaddr {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_storage room;
};

enum { DP_HOST_ID_BYTES = 16, DP_SOCKADDR_TEXT = 80 };

/* The same for all processes that can reach each other without a network: same boot of the same
 * machine, same network namespace (a container has its own). root: where /proc is, "" as a rule.
 * Without a readable boot id it is made of the host's name. DP_EIO: too many open files to read it,
 * which is a state of this process and must not make another host of it. */
int dp_host_id(const char *root, uint8_t id[DP_HOST_ID_BYTES]);

socklen_t dp_sockaddr_len(const union dp_sockaddr *a);
bool dp_sockaddr_is_loopback(const union dp_sockaddr *a);
/* The same host, whatever the ports. */
bool dp_sockaddr_is_same_ip(const union dp_sockaddr *a, const union dp_sockaddr *b);
int dp_sockaddr_port(const union dp_sockaddr *a);
void dp_sockaddr_set_port(union dp_sockaddr *a, int port);
/* "10.0.0.1:80", "[fe80::1]:80" */
void dp_sockaddr_text(const union dp_sockaddr *a, char text[DP_SOCKADDR_TEXT]);

/* The address of an interface ("eth0") or a literal address of this host; port 0. DP_EINVAL naming
 * the interfaces that there are. */
int dp_interface_address(const char *name, union dp_sockaddr *out);
/* An address of an interface that is up and not the loopback, those of real networks first; the
 * loopback's if there is no other, or, with a warning, if they cannot be listed. */
void dp_interface_guess(union dp_sockaddr *out);

/* Split "host:port" or "[host]:port"; DP_EINVAL. */
int dp_net_split(const char *text, char *host, size_t host_len, int *port);
/* All addresses of host, at most max. DP_ECOMM if it has none. */
int dp_net_resolve(const char *host, int port, union dp_sockaddr *out, int max, int *count);

#endif
