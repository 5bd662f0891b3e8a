/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DP_PLACEMENT_FORMAT_H
#define DP_PLACEMENT_FORMAT_H

enum { DP_PLACEMENT_JSON_VERSION = 1 };

#endif
