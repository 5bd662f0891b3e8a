/* SPDX-License-Identifier: Apache-2.0
 *
 * nearest.h - "did you mean": dp_nearest, which programs may use as well.
 */
#ifndef DP_BASE_NEAREST_H
#define DP_BASE_NEAREST_H

#include <dualpipe/options.h>

#endif
