/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin_path.h - where the plugin for NCCL is that belongs to this program.
 */
#ifndef DP_TOOLS_PLUGIN_PATH_H
#define DP_TOOLS_PLUGIN_PATH_H

/* Beside the program in its build tree, or where both were installed; the bare name, for the dynamic
 * linker to find, if it is in neither. Lives as long as the program; one thread. */
const char *plugin_path(void);

#endif
