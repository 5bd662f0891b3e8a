/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin_path.h - where the shared objects for other people's processes are that belong to this program.
 */
#ifndef DP_TOOLS_PLUGIN_PATH_H
#define DP_TOOLS_PLUGIN_PATH_H

#include <stdbool.h>

#define NET_PLUGIN "libnccl-net-dualpipe.so"
#define TUNER_PLUGIN "libnccl-tuner-dualpipe.so"
#define PROFILER_PLUGIN "libnccl-profiler-dualpipe.so"
#define PRELOAD_LIBRARY "libdualpipe-preload.so"

enum { PLUGIN_PATH_LEN = 4096 + 64 };

/* The path of `file`, beside the program in its build tree or where both were installed. false: in
 * neither; then out is the bare name, for the dynamic linker to find. */
bool plugin_path(const char *file, char out[PLUGIN_PATH_LEN]);

#endif
