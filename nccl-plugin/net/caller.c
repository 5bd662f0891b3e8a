/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-plugin/net/caller.h"

#include <dlfcn.h>
#include <string.h>

/* The same text once per version. */
#define VERSION 6
#include "nccl-plugin/net/caller_version.h"
#define VERSION 7
#include "nccl-plugin/net/caller_version.h"
#define VERSION 8
#include "nccl-plugin/net/caller_version.h"
#define VERSION 9
#include "nccl-plugin/net/caller_version.h"
#define VERSION 10
#include "nccl-plugin/net/caller_version.h"
#define VERSION 11
#include "nccl-plugin/net/caller_version.h"
#define VERSION 12
#include "nccl-plugin/net/caller_version.h"

const struct net_caller *net_caller_find(void *library, int version)
{
    const struct net_caller *(*const find[])(void *) = {
        find_6, find_7, find_8, find_9, find_10, find_11, find_12,
    };

    if (version < OLDEST_VERSION || version > NEWEST_VERSION)
        return NULL;
    return find[version - OLDEST_VERSION](library);
}
