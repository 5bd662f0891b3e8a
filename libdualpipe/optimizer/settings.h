/* SPDX-License-Identifier: Apache-2.0
 *
 * settings.h - what a dp_optimizer_config says, checked and resolved to groups.
 */
#ifndef DP_OPTIMIZER_SETTINGS_H
#define DP_OPTIMIZER_SETTINGS_H

#include <dualpipe/optimizer.h>

/* DP_EINVAL with the member that is wrong. */
int dp_optimizer_config_check(const struct dp_optimizer_config *config,
                              const struct dp_parameter *parameters, int32_t count);

/* The caller's groups, or two: without decay and with. */
int32_t dp_optimizer_group_count(const struct dp_optimizer_config *config);
struct dp_optimizer_group dp_optimizer_group_at(const struct dp_optimizer_config *config,
                                                int32_t group);
/* Of parameter `index` of the list. */
int32_t dp_optimizer_group_of(const struct dp_optimizer_config *config,
                              const struct dp_parameter *parameter, int32_t index);

#endif
