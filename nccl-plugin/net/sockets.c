/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/net/sockets.h"

#include "base/fail.h"
#include "wire/tcp.h"
#include "wire/wire.h"

#include <stdatomic.h>
#include <stdlib.h>

/* 0: not set, or left to NCCL. One that is wrong is said once, and not for each listener. */
static long number_of(const char *name, atomic_flag *is_said)
{
    const char *text = dp_foreign_variable(name);
    char *end;

    if (!text)
        return 0;
    const long number = strtol(text, &end, 10);
    if (*end || number < -2 || number > 64) {
        if (!atomic_flag_test_and_set(is_said))
            dp_log(DP_LOG_WARN, "%s=%s: expected a number up to 64; going on without", name, text);
        return 0;
    }
    return number > 0 ? number : 0;
}

int dpn_sockets_asked_for(void)
{
    static atomic_flag threads_said = ATOMIC_FLAG_INIT, each_said = ATOMIC_FLAG_INIT;
    const long threads = number_of("NCCL_SOCKET_NTHREADS", &threads_said);
    const long each = number_of("NCCL_NSOCKS_PERTHREAD", &each_said);
    const long product = (threads ? threads : 1) * (each ? each : 1);

    if (!threads && !each)
        return 0;
    return product < DP_TCP_SOCKETS_MAX ? (int)product : DP_TCP_SOCKETS_MAX;
}

int dpn_sockets_tell(struct dp_wire_address *tcp)
{
    struct dp_wire_options options;
    const int err = dp_options_read(&dp_wire_option_area, &options);

    if (!err && !options.tcp_sockets)
        dp_wire_tcp_ask_for(tcp, dpn_sockets_asked_for());
    return err;
}
