/* SPDX-License-Identifier: Apache-2.0
 *
 * acceptor.c - the listening sockets to which peers connect again when they have lost the control
 * wire of a connection: one for each interface, as long as connections may use it. A peer must know
 * the acceptor's cookie, and a random label names the connection.
 */
#include "nccl-plugin/verbs/acceptor.h"

#include "base/fail.h"
#include "base/hmac.h"
#include "nccl-plugin/net/interfaces.h"
#include "wire/tcp.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { ACCEPTORS = 8 };

struct acceptor {
    int users;
    char interface[DPN_ADDRESS_TEXT];
    struct dp_wire_listener *listener;
    struct dp_wire_address address;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct acceptor acceptors[ACCEPTORS];

void dpn_acceptors_lock(void)
{
    pthread_mutex_lock(&lock);
}

void dpn_acceptors_forget(void)
{
    for (int i = 0; i < ACCEPTORS; i++)
        acceptors[i].users = 0;
}

void dpn_acceptors_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

static struct acceptor *find(const char *interface)
{
    struct acceptor *empty = NULL;

    for (int i = 0; i < ACCEPTORS; i++) {
        if (acceptors[i].users && !strcmp(acceptors[i].interface, interface))
            return &acceptors[i];
        if (!acceptors[i].users && !empty)
            empty = &acceptors[i];
    }
    return empty;
}

static int open_acceptor(struct acceptor *acceptor, const char *interface)
{
    const struct dp_wire_config config = {.interface = interface};

    dp_wire_tcp.unlisten(acceptor->listener); /* inherited through a fork */
    acceptor->listener = NULL;
    snprintf(acceptor->interface, sizeof(acceptor->interface), "%s", interface);
    int err = dp_wire_tcp.listen(&config, &acceptor->listener, &acceptor->address);
    if (!err)
        dp_wire_tcp_ask_for(&acceptor->address, 1); /* control messages are short */
    return err;
}

int dpn_acceptor_use(const char *interface, struct dp_wire_address *address, uint64_t *label)
{
    uint64_t number;
    int err = dp_random_bytes(&number, sizeof(number));

    if (err)
        return err;
    pthread_mutex_lock(&lock);
    struct acceptor *acceptor = find(interface);
    if (!acceptor)
        err = dp_fail_quietly(DP_EIO, "connections over more than %d interfaces", ACCEPTORS);
    else if (!acceptor->users)
        err = open_acceptor(acceptor, interface);
    if (!err) {
        acceptor->users++;
        *address = acceptor->address;
        *label = number | 1; /* 0 is none */
    }
    pthread_mutex_unlock(&lock);
    return err;
}

void dpn_acceptor_release(const char *interface)
{
    pthread_mutex_lock(&lock);
    struct acceptor *acceptor = find(interface);
    if (acceptor && acceptor->users && !--acceptor->users) {
        dp_wire_tcp.unlisten(acceptor->listener);
        acceptor->listener = NULL;
    }
    pthread_mutex_unlock(&lock);
}

int dpn_acceptor_accept(uint64_t *label, struct dp_wire **out)
{
    int err = DP_EAGAIN;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < ACCEPTORS && err; i++)
        if (acceptors[i].users)
            err = dp_wire_tcp.accept(acceptors[i].listener, label, out);
    pthread_mutex_unlock(&lock);
    return err;
}
