/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_device.h - a device whose memory the wire must not touch and whose streams do nothing before
 * somebody asks: a copy is carried out when an event behind it is waited for, or on its third test.
 * A caller that forgets to wait works on old bytes.
 */
#ifndef DP_TESTS_FAKE_DEVICE_H
#define DP_TESTS_FAKE_DEVICE_H

#include <dualpipe/device.h>

int fake_device_open(struct dp_device **out);
/* Carry out all that was queued in dp_stage_call.stream. */
void fake_device_sync(void *stream);
/* From now on tests of events, and waits with a timeout, find no work done (or do so again): as if the
 * device were busy. */
void fake_device_hold(struct dp_device *dev, bool held);
/* Copies carried out on this device so far. */
int fake_device_copies(const struct dp_device *dev);

#endif
