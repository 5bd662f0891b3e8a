/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/net.h"

#include "base/fail.h"
#include "nccl-plugin/net_comm.h"
#include "nccl-plugin/net_ll128.h"
#include "nccl-plugin/net_log.h"

#include <stdlib.h>
#include <string.h>

/* What the first init of the process found; it stays, as NCCL keeps pointers into it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_known;
static struct dpn_devices devices;
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

static int look_around(bool names_watched)
{
    int err = dp_options_read(&dpn_net_option_area, &dpn_options);

    if (err)
        return err;
    dpn_devices_find("", &dpn_options, &devices);
    if (devices.count)
        dpn_ll128_decide(names_watched);
    pthread_atfork(before_fork, after_fork, after_fork);
    is_known = true;
    return 0;
}

static int new_net(struct dpn_net **out)
{
    struct dpn_net *net = calloc(1, sizeof(*net));

    if (!net)
        return dp_fail(DP_ENOMEM, "no memory for a context");
    pthread_mutex_init(&net->lock, NULL);
    *out = net;
    return 0;
}

static int init_locked(ncclDebugLogger_t logger, bool names_watched, struct dpn_net **out)
{
    dpn_log_to(logger);
    int err = is_known ? 0 : look_around(names_watched);
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

    if (!net)
        return;
    for (; net->open; leaked++)
        net->open->close(net->open);
    if (leaked)
        dp_log(DP_LOG_INFO, "closed %d connections and listeners that were left open", leaked);
    pthread_mutex_destroy(&net->lock);
    free(net);
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
