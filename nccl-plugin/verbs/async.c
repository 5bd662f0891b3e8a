/* SPDX-License-Identifier: Apache-2.0
 *
 * async.c - asynchronous events of devices. No thread waits for them: they are read at intervals
 * while messages are polled for.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "nccl-plugin/verbs/device.h"
#include "nccl-plugin/verbs/load.h"

/* An odd number of changes means down, see port_changes. */
static void set_port(struct dpn_hca *hca, int port, bool down)
{
    if (port < 1 || port > DPN_HCA_PORTS ||
        atomic_load(&hca->port_changes[port]) % 2 == (unsigned)down)
        return;
    atomic_fetch_add(&hca->port_changes[port], 1);
    dp_log(down ? DP_LOG_WARN : DP_LOG_INFO, "%s port %d is %s", hca->name, port,
           down ? "down: look at its cable and switch, or at 'ip link' and 'ibstat'" : "up again");
}

static void take_event(struct dpn_hca *hca, const struct ibv_async_event *event)
{
    switch (event->event_type) {
    case IBV_EVENT_PORT_ERR:
        set_port(hca, event->element.port_num, true);
        break;
    case IBV_EVENT_PORT_ACTIVE:
        set_port(hca, event->element.port_num, false);
        break;
    case IBV_EVENT_DEVICE_FATAL:
        dp_log(DP_LOG_WARN, "%s has failed: look at the kernel's log", hca->name);
        atomic_store(&hca->is_dead, true);
        break;
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
        break;
    default: /* events of a queue pair show in its completions as well */
        dp_log(DP_LOG_INFO, "%s: %s", hca->name, dpn_ibv.event_type_str(event->event_type));
        break;
    }
}

void dpn_hca_read_events(struct dpn_hca *hca, int64_t now_ns)
{
    struct ibv_async_event event;

    if (pthread_mutex_trylock(&hca->lock))
        return;
    if (now_ns - hca->events_read_ns >= DP_NS_PER_MS) {
        hca->events_read_ns = now_ns;
        while (!dpn_ibv.get_async_event(hca->context, &event)) {
            take_event(hca, &event);
            dpn_ibv.ack_async_event(&event);
        }
    }
    pthread_mutex_unlock(&hca->lock);
}
