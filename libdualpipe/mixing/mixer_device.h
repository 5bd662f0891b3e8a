/* SPDX-License-Identifier: Apache-2.0
 *
 * mixer_device.h - the exchanges of a mixer whose values are on a device: all values are one bucket, and
 * what is said here is queued in the config's stream.
 */
#ifndef DP_MIXING_MIXER_DEVICE_H
#define DP_MIXING_MIXER_DEVICE_H

#include <dualpipe/mixer.h>

struct dp_mixer_device;

/* A piece of memory of one element type. */
struct dp_mixer_piece {
    DLDataType type;
    size_t elements;
    char *at;
};

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

/* Values i of those that follow each other in memory; false: there is no number i. */
bool dp_mixer_device_piece(const struct dp_mixer_device *m, int32_t i, struct dp_mixer_piece *out);
/* What is being sent may change after what the stream is given from now on. */
int dp_mixer_device_hold(struct dp_mixer_device *m);
/* Values become the sum of all workers'; the host waits. */
int dp_mixer_device_sum(struct dp_mixer_device *m);
/* What is in flight will not be mixed. */
void dp_mixer_device_drop(struct dp_mixer_device *m);

#endif
