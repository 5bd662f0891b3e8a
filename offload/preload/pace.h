/* SPDX-License-Identifier: Apache-2.0
 *
 * pace.h - large copies of pinned memory that give way to the network (offload/pacer.h): they go in
 * chunks, and in the stream before each of them there is a call that waits for its turn. So the
 * calling thread waits no longer than for the copy as it was. Off by default.
 */
#ifndef DPO_PRELOAD_PACE_H
#define DPO_PRELOAD_PACE_H

#include "offload/preload/driver.h"
#include "offload/preload/options.h"

/* true: done, or queued in its stream, as the real call would have done it. false: as of dpo_stage.
 */
bool dpo_pace(const struct dpo_preload_options *options, const struct dpo_driver *driver,
              const struct dpo_copy *copy, int direction);

#endif
