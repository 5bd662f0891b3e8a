/* SPDX-License-Identifier: Apache-2.0
 *
 * options_read.c - a bad option is said once; NCCL goes on, and nothing is written.
 */
#include "nccl-plugin/profiler/options.h"

#include <pthread.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct dpn_profiler_options options;

static void read_options(void)
{
    if (dp_options_read(&dpn_profiler_option_area, &options))
        options = (struct dpn_profiler_options){0};
}

const struct dpn_profiler_options *dpn_profiler_options(void)
{
    pthread_once(&once, read_options);
    return &options;
}
