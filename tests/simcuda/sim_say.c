/* SPDX-License-Identifier: Apache-2.0 */
#include "simcuda/sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((format(printf, 1, 0)))
static void say(const char *format, va_list args)
{
    char line[512];

    vsnprintf(line, sizeof(line), format, args);
    fprintf(stderr, "simcuda %d: %s\n", (int)getpid(), line);
}

void sim_say(const char *format, ...)
{
    va_list args;

    if (!getenv("SIMCUDA_LOG"))
        return;
    va_start(args, format);
    say(format, args);
    va_end(args);
}

void sim_die(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    say(format, args);
    va_end(args);
    abort();
}

int sim_setting(const char *name, int otherwise)
{
    const char *value = getenv(name);

    return value ? atoi(value) : otherwise;
}
