/* SPDX-License-Identifier: Apache-2.0
 *
 * flood.c - connects to a port of this host from some threads for some seconds, as fast as it can: every
 * other connection says the first word of a peer. Another user than root, where root starts it.
 *
 *      flood PORT THREADS SECONDS
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static struct sockaddr_in place = {.sin_family = AF_INET};

static void *flood(void *unused)
{
    const struct linger at_once = {.l_onoff = 1, .l_linger = 0}; /* no port stays in use */

    for (unsigned i = 0;; i++) {
        const int fd = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
        if (!connect(fd, (struct sockaddr *)&place, sizeof(place)) && i % 2)
            send(fd, "1wPD", 4, MSG_NOSIGNAL);
        close(fd);
    }
    return unused;
}

int main(int argc, char **argv)
{
    enum { NOBODY = 65534 };

    if (argc != 4) {
        fprintf(stderr, "usage: flood PORT THREADS SECONDS\n");
        return 2;
    }
    place.sin_port = htons((uint16_t)atoi(argv[1]));
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (!geteuid() && (setgid(NOBODY) || setuid(NOBODY)))
        return 1;
    for (int i = 0; i < atoi(argv[2]); i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, flood, NULL))
            return 1;
    }
    sleep((unsigned)atoi(argv[3]));
    return 0;
}
