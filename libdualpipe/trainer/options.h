/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DP_TRAINER_OPTIONS_H
#define DP_TRAINER_OPTIONS_H

#include "base/options.h"

/* Of struct dp_trainer_config. */
extern const struct dp_option_area dp_train_option_area;

#endif
