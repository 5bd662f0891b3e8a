/* SPDX-License-Identifier: Apache-2.0
 *
 * net.c - contexts, the devices that they are offered, and what all of a process share.
 */
#include "nccl-plugin/net/net.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/options.h"
#include "nccl-plugin/net/comm.h"
#include "nccl-plugin/nccl_log.h"
#include "nccl-plugin/net/placement.h"
#include "nccl-plugin/verbs/verbs.h"
#include "wire/sockets.h"

#include <dualpipe/dualpipe.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* ---- whether NCCL may use LL128 -------------------------------------------------------------- */

/* As NCCL reads numbers. */
static bool is_told_not_to(void)
{
    const char *value = dp_foreign_variable("NCCL_NET_OPTIONAL_RECV_COMPLETION");

    return value && *value && strtol(value, NULL, 0) == 0;
}

/* Rule it out if NCCL does not name the receives that its kernels watch, by NCCL_PROTO, which it
 * reads later; warn if NCCL_PROTO is set already and admits it. names_watched: this version of the
 * plugin's interface is of a NCCL that does, unless it is told not to. */
static void ll128_decide(bool names_watched)
{
    static const char why[] = "this NCCL does not say which receives need the order of stores that "
                              "LL128 relies on";
    const char *asked = dp_foreign_variable("NCCL_PROTO");

    if (names_watched && !is_told_not_to())
        return;
    if (!asked) {
        setenv("NCCL_PROTO", "^LL128", 1);
        dp_log(DP_LOG_INFO, "NCCL_PROTO=^LL128 from now on: %s", why);
    } else if (dpn_list_admits(asked, "LL128")) {
        dp_log(DP_LOG_WARN, "NCCL_PROTO=%s admits LL128, but %s: data may arrive wrong", asked,
               why);
    }
}

/* ---- the process ----------------------------------------------------------------------------- */

/* What the first init of the process found; it stays, as NCCL keeps pointers into it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_known;
static bool is_inherited; /* known by the parent: a child has to open RDMA devices for itself */
static struct dpn_devices devices;
static int plain_devices; /* the rest is fused */
static int contexts;
static bool
    is_left; /* the last context has gone: NCCL goes on with what is fused, or counts anew */
static struct dpn_net *shared;

struct dpn_net_options dpn_options;

/* A child that was forked while another thread was here finds the lock open. */
static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

/* The child's own contexts are all that it counts and has. */
static void after_fork_in_child(void)
{
    is_inherited = true;
    is_left = false;
    contexts = 0;
    shared = NULL;
    after_fork();
}

/* A device writes to memory in the order of addresses, so with RDMA alone LL128 is safe. */
static bool keeps_order(void)
{
    return devices.list[0].rail_count &&
           (!strcmp(dpn_options.wire, "verbs") || dpn_device_reaches_gpus(&devices.list[0]));
}

static int look_around(bool names_watched)
{
    int err = dp_options_read(&dpn_net_option_area, &dpn_options);

    if (err)
        return err;
    dpn_options.has_force_flush = names_watched; /* both came with version 9 */
    dpn_placement_open();
    dpn_devices_find("", &dpn_options, &devices);
    plain_devices = devices.count;
    if (devices.count && !keeps_order())
        ll128_decide(names_watched);
    dp_sockets_stay(); /* known to fork first, so that its lock is taken last */
    if (!is_known)
        pthread_atfork(before_fork, after_fork, after_fork_in_child);
    is_known = true;
    is_inherited = false;
    return 0;
}

static _Thread_local struct {
    const struct dpn_net *net;
    uint32_t ops;
    int traffic_class;
} said;

static int new_net(struct dpn_net **out)
{
    struct dpn_net *net = calloc(1, sizeof(*net));

    if (!net)
        return dp_fail(DP_ENOMEM, "no memory for a context");
    pthread_mutex_init(&net->lock, NULL);
    net->traffic_class = NCCL_NET_TRAFFIC_CLASS_UNDEF;
    net->forks = dp_forks_passed;
    said.net = NULL; /* which may have had the same address */
    contexts++;
    *out = net;
    return 0;
}

static int init_locked(ncclDebugLogger_t logger, bool names_watched, struct dpn_net **out)
{
    dpn_log_to(logger);
    int err = is_known && !is_inherited ? 0 : look_around(names_watched);
    return err || *out ? err : new_net(out);
}

int dpn_net_init(ncclDebugLogger_t logger, struct dpn_net **out)
{
    struct dpn_net *net = NULL;

    pthread_mutex_lock(&lock);
    int err = init_locked(logger, true, &net);
    pthread_mutex_unlock(&lock);
    if (!err)
        *out = net;
    return err;
}

int dpn_net_init_shared(ncclDebugLogger_t logger, bool names_watched)
{
    pthread_mutex_lock(&lock);
    int err = init_locked(logger, names_watched, &shared);
    pthread_mutex_unlock(&lock);
    return err;
}

struct dpn_net *dpn_net_shared(void)
{
    pthread_mutex_lock(&lock);
    struct dpn_net *net = shared;
    pthread_mutex_unlock(&lock);
    return net;
}

void dpn_net_finalize(struct dpn_net *net)
{
    int leaked = 0;

    if (!net || dpn_is_inherited(net))
        return;
    for (; net->open; leaked++)
        net->open->close(net->open);
    if (leaked)
        dp_log(DP_LOG_INFO, "closed %d connections and listeners that were left open", leaked);
    pthread_mutex_destroy(&net->lock);
    free(net);
    pthread_mutex_lock(&lock);
    is_left = !--contexts;
    pthread_mutex_unlock(&lock);
}

void dpn_net_say_next(const struct dpn_net *net, uint32_t ops, int traffic_class)
{
    said.net = net;
    said.ops = ops;
    said.traffic_class = traffic_class;
}

uint32_t dpn_net_said(const struct dpn_net *net, int *traffic_class)
{
    const bool has_said = net == said.net;

    *traffic_class = has_said && said.traffic_class != NCCL_NET_TRAFFIC_CLASS_UNDEF
                         ? said.traffic_class : net->traffic_class;
    return has_said ? said.ops : UINT32_MAX;
}

int dpn_net_devices(int *count)
{
    pthread_mutex_lock(&lock);
    int err = is_known ? 0 : dp_fail(DP_ESTATE, "devices: the plugin was not initialized");
    if (!err)
        *count = devices.count;
    pthread_mutex_unlock(&lock);
    return err;
}

int dpn_net_count_devices(int *count)
{
    pthread_mutex_lock(&lock);
    if (is_left)
        devices.count = plain_devices;
    is_left = false;
    pthread_mutex_unlock(&lock);
    return dpn_net_devices(count);
}

int dpn_net_device(int dev, const struct dpn_device **out)
{
    int count, err = dpn_net_devices(&count);

    if (err)
        return err;
    if (dev < 0 || dev >= count)
        return dp_fail(DP_EINVAL, "device %d: there are %d, counted from 0", dev, count);
    *out = &devices.list[dev];
    return 0;
}

/* The name is one that NCCL may keep for ever; the same device again has the same. */
static int fuse_locked(const int *members, int count, int *out)
{
    if (devices.count == DPN_MAX_DEVICES)
        return dp_fail(DP_EUNSUPPORTED, "fusing devices: there are %d already", DPN_MAX_DEVICES);
    int err = dpn_verbs_fuse(&devices, members, count);
    if (err)
        return err;
    *out = devices.count - 1;
    dp_log(DP_LOG_INFO, "device %d is %s, %d Mbit/s", *out, devices.list[*out].name,
           devices.list[*out].speed_mbps);
    return 0;
}

/* NCCL 2.28 loses a fused device that has no place on the PCI bus and then finds none at all; if it
 * may not fuse them it keeps them. */
static int has_place(const struct dpn_device *device)
{
    if (device->pci_path || dp_foreign_variable("NCCL_NET_FORCE_MERGE"))
        return 0;
    dp_log(DP_LOG_INFO, "%s is not fused: it has no place on the PCI bus", device->name);
    return dp_fail_quietly(DP_EUNSUPPORTED, "%s has no place on the PCI bus", device->name);
}

int dpn_net_fuse(const int *devs, int count, int *out)
{
    const struct dpn_device *member = NULL;

    if (count < 1 || count > DPN_DEVICE_RAILS)
        return dp_fail(DP_EINVAL, "fusing %d devices: expected 1 to %d", count, DPN_DEVICE_RAILS);
    for (int i = 0; i < count; i++) {
        int err = dpn_net_device(devs[i], &member);
        if (!err && member->member_count > 1)
            err = dp_fail(DP_EINVAL, "fusing device %d, which is fused already", devs[i]);
        if (!err)
            err = has_place(member);
        if (err)
            return err;
    }
    pthread_mutex_lock(&lock);
    int err = fuse_locked(devs, count, out);
    pthread_mutex_unlock(&lock);
    return err;
}

void dpn_open_add(struct dpn_open *open, struct dpn_net *net)
{
    pthread_mutex_lock(&net->lock);
    open->net = net;
    open->next = net->open;
    open->link = &net->open;
    if (open->next)
        open->next->link = &open->next;
    net->open = open;
    pthread_mutex_unlock(&net->lock);
}

void dpn_open_remove(struct dpn_open *open)
{
    pthread_mutex_lock(&open->net->lock);
    *open->link = open->next;
    if (open->next)
        open->next->link = open->link;
    pthread_mutex_unlock(&open->net->lock);
}

/* ---- a peer that is waited for --------------------------------------------------------------- */

static const int64_t SAY_EVERY_NS = 60 * DP_NS_PER_S;

void dpn_late_wait(struct dpn_late *late, const char *peer, const char *what)
{
    const int64_t now_ns = dp_now_ns();

    if (!late->since_ns)
        late->since_ns = late->said_ns = now_ns;
    if (now_ns - late->said_ns < SAY_EVERY_NS)
        return;
    late->said_ns = now_ns;
    dp_log(DP_LOG_WARN, "peer at %s is late by %lld s: it %s; waiting goes on", peer,
           (long long)((now_ns - late->since_ns) / DP_NS_PER_S), what);
}
