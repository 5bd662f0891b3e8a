/* SPDX-License-Identifier: Apache-2.0
 *
 * mixer_device.h - the exchanges of a mixer whose values are on a device: all values are one bucket, and
 * what is said here is queued in the config's stream.
 */
#ifndef DP_MIXING_MIXER_DEVICE_H
#define DP_MIXING_MIXER_DEVICE_H

#include <dualpipe/mixer.h>

struct dp_mixer_device;

/* What it takes beside a sound graph and list. */
int dp_mixer_device_check(const struct dp_mixer_config *config);
/* Collective. config must stay; *out is to be freed also after an error. */
int dp_mixer_device_new(const struct dp_mixer_config *config, struct dp_mixer_device **out);
/* What is in flight is waited for, if the communicator still works. May be NULL. */
void dp_mixer_device_free(struct dp_mixer_device *m);

/* The exchange of the values of the next round. They may be read, not written, until the next mix or
 * average. Not while one is in flight. */
int dp_mixer_device_send(struct dp_mixer_device *m);
/* What came, with the factor of its exchange; nothing where none is in flight. */
int dp_mixer_device_mix(struct dp_mixer_device *m, double factor);
/* The host waits until all messages have come that the stream was made to wait for. */
int dp_mixer_device_wait(struct dp_mixer_device *m);
/* The average of all workers' values, for which the host waits; values as they were before it. */
int dp_mixer_device_average(struct dp_mixer_device *m, bool revert);
int dp_mixer_device_revert(struct dp_mixer_device *m);

#endif
