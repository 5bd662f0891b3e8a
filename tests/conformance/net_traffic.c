/* SPDX-License-Identifier: Apache-2.0
 *
 * net_traffic.c - messages over one connection each way while something is done to the network:
 *
 *      net-traffic [--messages N] [--size N] [--limit S] [--at N COMMAND]... [--from DEVICE,...]
 *                  [--to DEVICE,...] [--rank N --meet ADDRESS:PORT] PLUGIN.so
 *
 * Once message N has arrived COMMAND is run, with messages on their way; "reset" resets the TCP
 * connections of the plugin, as a middlebox does that forgets them. Several devices, by number, are
 * fused. Without --meet both ends are in this process; with it the other is in another one, rank 0
 * listening at that address.
 *
 * Every message has other bytes, so that one that is lost, doubled or changed is found out. Returns
 * 0 if all have arrived, 3 if the plugin has failed one, as it may when no rail is left, and 1 for
 * what it must not do. --limit is the longest that all may take, in seconds (60).
 */
#include "net_pair.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { WINDOW = 4, EVENTS = 8, EXIT_FAILED = 3 };

struct event {
    unsigned at;
    const char *command;
};

struct traffic {
    unsigned messages, limit_s;
    size_t size;
    struct event events[EVENTS];
    int event_count, rank;
    const char *from, *to, *meet;
};

struct net_setup setup;

/* ---- the other process ----------------------------------------------------------------------- */

static struct sockaddr_in address_of(const char *text)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    char ip[64] = "";
    int port = 0;

    must(sscanf(text, "%63[0-9.]:%d", ip, &port) == 2);
    must(inet_pton(AF_INET, ip, &a.sin_addr) == 1);
    a.sin_port = htons((uint16_t)port);
    return a;
}

static int listen_for(const struct sockaddr_in *a)
{
    int yes = 1, listener = socket(AF_INET, SOCK_STREAM, 0);

    must(listener >= 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    must(!bind(listener, (const struct sockaddr *)a, sizeof(*a)) && !listen(listener, 1));
    int fd = accept(listener, NULL, NULL);
    must(fd >= 0);
    close(listener);
    return fd;
}

/* The other may not be there yet; the alarm ends what never comes. */
static int connect_to(const struct sockaddr_in *a)
{
    for (;;) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        must(fd >= 0);
        if (!connect(fd, (const struct sockaddr *)a, sizeof(*a)))
            return fd;
        close(fd);
        nanosleep(&(struct timespec){.tv_nsec = 100 * 1000 * 1000}, NULL);
    }
}

static void swap(int fd, void *mine, void *theirs, size_t len)
{
    must(send(fd, mine, len, MSG_NOSIGNAL) == (ssize_t)len);
    must(recv(fd, theirs, len, MSG_WAITALL) == (ssize_t)len);
}

/* ---- events ---------------------------------------------------------------------------------- */

static int meeting = -1; /* the socket between both processes */

/* A TCP socket that is told to know nobody sends a reset. */
static void reset_connections(void)
{
    const struct sockaddr nobody = {.sa_family = AF_UNSPEC};
    struct sockaddr_storage peer;

    for (int fd = 3; fd < 1024; fd++) {
        socklen_t len = sizeof(peer);
        if (fd != meeting && !getpeername(fd, (struct sockaddr *)&peer, &len) &&
            (peer.ss_family == AF_INET || peer.ss_family == AF_INET6))
            must(!connect(fd, &nobody, sizeof(nobody)));
    }
}

static int run_command(const char *command)
{
    if (strcmp(command, "reset"))
        return system(command);
    reset_connections();
    return 0;
}

static void run_events(struct traffic *t, unsigned arrived)
{
    for (int i = 0; i < t->event_count; i++) {
        if (t->events[i].at != arrived)
            continue;
        int status = run_command(t->events[i].command);
        if (status)
            printf("%s: status %d\n", t->events[i].command, status);
        must(!status);
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* What the plugin must not do goes on ending the program; that it fails a message does so here. */
static void allow(ncclResult_t result, const struct message *m, double began_s)
{
    if (result == ncclSuccess)
        return;
    printf("a %s failed with %d after %.1f s\n", m->is_send ? "send" : "receive", (int)result,
           now_s() - began_s);
    fflush(stdout);
    _exit(EXIT_FAILED);
}

/* Message i in its place of the window, there until it is done and checked. */
static void open_message(struct traffic *t, struct pair *p, unsigned i, struct message window[2])
{
    window[0] = message_recv(p->receiver, t->size, 1);
    window[1] = message_send(p->sender, t->size, 1, 2 * i + (unsigned)t->rank);
}

static bool close_message(struct traffic *t, unsigned i, struct message window[2])
{
    if (!window[0].done || !window[1].done)
        return false;
    unsigned from = t->meet ? 1 - (unsigned)t->rank : (unsigned)t->rank;
    message_check(&window[0], 0, t->size, 2 * i + from);
    message_free(&window[0]);
    message_free(&window[1]);
    return true;
}

/* In order: the next is begun once the one before it has a request. */
static void exchange(struct traffic *t, struct pair *p)
{
    struct message window[WINDOW][2];
    unsigned opened = 0, arrived = 0;
    double began_s = now_s();

    while (arrived < t->messages) {
        while (opened < t->messages && opened - arrived < WINDOW) {
            open_message(t, p, opened, window[opened % WINDOW]);
            opened++;
        }
        for (int way = 0; way < 2; way++)
            for (unsigned i = arrived; i < opened; i++) {
                struct message *m = &window[i % WINDOW][way];
                allow(message_try(m), m, began_s);
                if (!m->req)
                    break;
            }
        while (arrived < opened && close_message(t, arrived, window[arrived % WINDOW]))
            run_events(t, ++arrived);
    }
    printf("%u messages of %zu bytes in %.2f s\n", t->messages, t->size, now_s() - began_s);
}

/* ---- the program ----------------------------------------------------------------------------- */

/* "0,2": one device of both. */
static int device_of(const char *numbers)
{
    int devices[4], count = 0, fused;

    for (const char *at = numbers; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        must(count < 4);
        devices[count++] = atoi(at);
    }
    if (count < 2)
        return count ? devices[0] : 0;
    setenv("NCCL_NET_FORCE_MERGE", "these", 0); /* wherever they are */
    must_succeed(setup.net->fuse(count, devices, &fused));
    return fused;
}

static void run(struct traffic *t)
{
    struct pair p = {.ctx = net_init()};
    char mine[NCCL_NET_HANDLE_MAXSIZE], last;
    struct sockaddr_in a;
    int fd = -1;

    setup.connects_from = device_of(t->from);
    setup.listens_on = t->to ? device_of(t->to) : setup.connects_from;
    must_succeed(setup.net->listen(p.ctx, setup.listens_on, mine, &p.listener));
    memcpy(p.handle, mine, sizeof(mine));
    if (t->meet) {
        a = address_of(t->meet);
        fd = t->rank ? connect_to(&a) : listen_for(&a);
        swap(fd, mine, p.handle, sizeof(mine));
        meeting = fd;
    }
    pair_connect(&p);
    exchange(t, &p);
    /* Nobody leaves before the other has everything. */
    if (fd >= 0)
        swap(fd, mine, &last, 1);
    pair_close(&p);
    net_finalize_all();
}

static int usage(void)
{
    fprintf(stderr, "usage: net-traffic [--messages N] [--size N] [--limit S] [--at N COMMAND]... "
                    "[--from DEVICE,...] [--to DEVICE,...] [--rank N --meet ADDRESS:PORT] "
                    "PLUGIN.so\n");
    return 2;
}

static bool parse(int argc, char **argv, struct traffic *t)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (argv[i][0] != '-') {
            setup.file = argv[i];
            continue;
        }
        if (!value)
            return false;
        i++;
        if (!strcmp(argv[i - 1], "--messages"))
            t->messages = (unsigned)atoi(value);
        else if (!strcmp(argv[i - 1], "--size"))
            t->size = (size_t)atoll(value);
        else if (!strcmp(argv[i - 1], "--limit"))
            t->limit_s = (unsigned)atoi(value);
        else if (!strcmp(argv[i - 1], "--rank"))
            t->rank = atoi(value);
        else if (!strcmp(argv[i - 1], "--from"))
            t->from = value;
        else if (!strcmp(argv[i - 1], "--to"))
            t->to = value;
        else if (!strcmp(argv[i - 1], "--meet"))
            t->meet = value;
        else if (!strcmp(argv[i - 1], "--at") && i + 1 < argc && t->event_count < EVENTS)
            t->events[t->event_count++] = (struct event){(unsigned)atoi(value), argv[++i]};
        else
            return false;
    }
    return setup.file && (t->rank == 0 || t->rank == 1);
}

int main(int argc, char **argv)
{
    struct traffic t = {.messages = 100, .size = 100000, .limit_s = 60};

    if (!parse(argc, argv, &t))
        return usage();
    alarm(t.limit_s);
    setup.library = dlopen(setup.file, RTLD_NOW | RTLD_LOCAL);
    if (!setup.library) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    for (int v = NEWEST_VERSION; v >= OLDEST_VERSION && !setup.net; v--)
        setup.net = net_caller_find(setup.library, v);
    must(setup.net);
    run(&t);
    return 0;
}
