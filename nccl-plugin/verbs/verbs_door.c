/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_door.c - where the peers of this process call when they have lost the wire of a connection: a
 * socket for each interface, as long as connections may come back over it. Who knocks must know the
 * door's cookie, and says by a label, as random, which connection is meant.
 */
#include "nccl-plugin/verbs/verbs_door.h"

#include "base/fail.h"
#include "nccl-plugin/net_interfaces.h"
#include "wire/net.h"
#include "wire/tcp.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { DOORS = 8 };

struct door {
    int users;
    char interface[DPN_ADDRESS_TEXT];
    struct dp_wire_listener *listener;
    struct dp_wire_address address;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct door doors[DOORS];

void dpn_doors_lock(void)
{
    pthread_mutex_lock(&lock);
}

void dpn_doors_forget(void)
{
    for (int i = 0; i < DOORS; i++)
        doors[i].users = 0;
}

void dpn_doors_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

static struct door *find(const char *interface)
{
    struct door *empty = NULL;

    for (int i = 0; i < DOORS; i++) {
        if (doors[i].users && !strcmp(doors[i].interface, interface))
            return &doors[i];
        if (!doors[i].users && !empty)
            empty = &doors[i];
    }
    return empty;
}

static int open_door(struct door *door, const char *interface)
{
    const struct dp_wire_config config = {.interface = interface};

    dp_wire_tcp.unlisten(door->listener); /* inherited */
    door->listener = NULL;
    snprintf(door->interface, sizeof(door->interface), "%s", interface);
    int err = dp_wire_tcp.listen(&config, &door->listener, &door->address);
    if (!err)
        dp_wire_tcp_ask_for(&door->address, 1); /* words are short */
    return err;
}

int dpn_door_use(const char *interface, struct dp_wire_address *address, uint64_t *label)
{
    uint64_t number;
    int err = dp_random_bytes(&number, sizeof(number));

    if (err)
        return err;
    pthread_mutex_lock(&lock);
    struct door *door = find(interface);
    if (!door)
        err = dp_fail_quietly(DP_EIO, "connections over more than %d interfaces", DOORS);
    else if (!door->users)
        err = open_door(door, interface);
    if (!err) {
        door->users++;
        *address = door->address;
        *label = number | 1; /* 0 is none */
    }
    pthread_mutex_unlock(&lock);
    return err;
}

void dpn_door_leave(const char *interface)
{
    pthread_mutex_lock(&lock);
    struct door *door = find(interface);
    if (door && door->users && !--door->users) {
        dp_wire_tcp.unlisten(door->listener);
        door->listener = NULL;
    }
    pthread_mutex_unlock(&lock);
}

int dpn_door_admit(uint64_t *label, struct dp_wire **out)
{
    int err = DP_EAGAIN;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < DOORS && err; i++)
        if (doors[i].users)
            err = dp_wire_tcp.accept(doors[i].listener, label, out);
    pthread_mutex_unlock(&lock);
    return err;
}
