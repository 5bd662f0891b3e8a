/* SPDX-License-Identifier: Apache-2.0
 *
 * settings.c - the options of communicators.
 */
#include "config.h" /* GNU extensions: the set of cores */

#include "comm/settings.h"

#include "base/clock.h"
#include "base/fail.h"

#include <sched.h>
#include <string.h>

const char *const dp_transport_names[DP_TRANSPORTS + 1] = {"auto", "shm", "tcp", "mpi", NULL};

int dp_transport_find(const char *name, enum dp_transport *out)
{
    for (int i = 0; i < DP_TRANSPORTS; i++)
        if (!strcmp(name, dp_transport_names[i])) {
            *out = (enum dp_transport)i;
            return 0;
        }
    return dp_fail(DP_EINVAL, "transport '%s': expected auto, shm, tcp or mpi", name);
}

static const struct dp_option table[] = {
    {"TIMEOUT_MS", DP_OPTION_INT, "60000", "longest wait of any call, in ms",
     offsetof(struct dp_comm_settings, timeout_ms), .min = 1, .max = 86400000},
    {"SPIN_US", DP_OPTION_INT, "-1",
     "how long a wait tests before it sleeps, in us; -1: 50, or 0 where ranks share cores",
     offsetof(struct dp_comm_settings, spin_us), .min = -1, .max = 1000000},
    {"TRANSPORT", DP_OPTION_CHOICE, "auto",
     "how messages travel; auto: shm between processes of one host, tcp between hosts",
     offsetof(struct dp_comm_settings, transport), .choices = dp_transport_names},
    {"ADDRESS", DP_OPTION_STRING, NULL,
     "host:port where rank 0 listens; without it by the launcher's variables",
     offsetof(struct dp_comm_settings, address), .choices = NULL},
    {"PORT", DP_OPTION_INT, "0",
     "where rank 0 listens; 0: MASTER_PORT + 1, since torchrun itself uses MASTER_PORT",
     offsetof(struct dp_comm_settings, port), .min = 0, .max = 65535},
    {"INTERFACE", DP_OPTION_STRING, NULL,
     "network interface, or address of this host, for messages over tcp",
     offsetof(struct dp_comm_settings, interface), .choices = NULL},
    {"SECRET", DP_OPTION_SECRET, NULL, "a text that all ranks must know to take part",
     offsetof(struct dp_comm_settings, secret), .choices = NULL},
    {"MODULE_DIR", DP_OPTION_STRING, NULL, "where mpi.so is; without it where it was installed",
     offsetof(struct dp_comm_settings, module_dir), .is_code = true},
};
const struct dp_option_area dp_comm_option_area = {"COMM", table, sizeof(table) / sizeof(table[0])};

/* Waking a sleeping core takes 30 to 40 us: spinning longer than that costs more than it can
 * save. */
enum { WAKE_UP_US = 50 };

static int cores_count(void)
{
    cpu_set_t cores;

    return sched_getaffinity(0, sizeof(cores), &cores) ? 1 : CPU_COUNT(&cores);
}

int64_t dp_comm_spin_ns(const struct dp_comm_settings *settings, int ranks_here)
{
    int64_t spin_us = settings->spin_us;

    if (spin_us < 0)
        spin_us = ranks_here > cores_count() ? 0 : WAKE_UP_US;
    return spin_us * DP_NS_PER_US;
}
