/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_environment.c - any bytes as an environment, a NAME=value a line: what launchers tell, this
 * library's options, addresses, lists of CPUs and GPUs.
 */
#include "config.h" /* GNU extensions: sets of CPUs */

#include "fuzz.h"

#include "base/bind.h"
#include "comm/settings.h"
#include "wire/net.h"
#include "wire/wire.h"

#include <string.h>

static const char OWN[] = "DUALPIPE_";
static char *text;

/* As from the environment: what is empty is not set. */
static const char *get(const char *name)
{
    const size_t len = strlen(name);

    for (const char *line = text; *line; line += strlen(line) + 1)
        if (!strncmp(line, name, len) && line[len] == '=')
            return line[len + 1] ? line + len + 1 : NULL;
    return NULL;
}

static void set_own(bool is_set)
{
    for (char *line = text; *line; line += strlen(line) + 1) {
        char *equals = strchr(line, '=');
        if (!equals || strncmp(line, OWN, strlen(OWN)))
            continue;
        *equals = '\0';
        if (is_set)
            setenv(line, equals + 1, 1);
        else
            unsetenv(line);
        *equals = '=';
    }
}

static void read_options(struct dp_comm_settings *comm)
{
    struct dp_wire_options wire;

    set_own(true);
    if (dp_options_read(&dp_comm_option_area, comm))
        *comm = (struct dp_comm_settings){.timeout_ms = 1};
    else
        must(comm->timeout_ms > 0 && comm->port >= 0 && comm->port < 65536);
    dp_options_read(&dp_wire_option_area, &wire);
}

static void read_launch(const struct dp_comm_settings *settings)
{
    struct dp_launch launch;
    char host[64];
    int port = 1;

    if (dp_launch_read(get, settings, &launch))
        return;
    must(launch.size > 0 && launch.rank >= 0 && launch.rank < launch.size);
    must(memchr(launch.address, '\0', sizeof(launch.address)));
    if (!dp_net_split(launch.address, host, sizeof(host), &port))
        must(*host && strlen(host) < sizeof(host) && port > 0 && port < 65536);
}

static void read_process(void)
{
    const char *gpus = get("CUDA_VISIBLE_DEVICES"), *own, *cpus = get("CPUS");
    struct dp_process process;
    cpu_set_t set;
    size_t len;

    if (!dp_process_read(get, &process) && gpus &&
        !dp_process_own_gpu(&process, gpus, &own, &len))
        must(own >= gpus && len && own + len <= gpus + strlen(gpus));
    if (cpus && dp_cpus_parse(cpus, &set))
        must(CPU_COUNT(&set) >= 0);
}

/* Lines become strings, an empty one is the last. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dp_comm_settings settings;
    size_t end = 0;

    text = calloc(size + 2, 1);
    must(text);
    for (size_t i = 0; i < size; i++)
        if (data[i] && (data[i] != '\n' || (end && text[end - 1])))
            text[end++] = data[i] == '\n' ? '\0' : (char)data[i];
    read_options(&settings);
    read_launch(&settings);
    read_process();
    set_own(false);
    free(text);
    return 0;
}
