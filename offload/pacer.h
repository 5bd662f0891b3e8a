/* SPDX-License-Identifier: Apache-2.0
 *
 * pacer.h - copies between host and device that give way to a network on the same switch: while it is
 * idle they go as fast as they can; while it is at work they go at what it leaves, in chunks.
 *
 *      network bytes   ____/~~~~~~~~\______      read once a window (below)
 *      copies          |||| |   |   |  ||||      a chunk passes when the one before has had its time
 *
 * Stands on base alone, for the preload library.
 */
#ifndef DPO_PACER_H
#define DPO_PACER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dpo_pacer;

enum { DPO_PACER_DIRECTIONS = 2 };

struct dpo_pacer_config {
    const char *directory;       /* of the net plugin's pages; NULL: where it puts them as a rule */
    const char *const *devices;  /* [device_count] the NICs on the same switch; 0: all */
    int device_count;
    double switch_bytes_per_s;   /* what copies and network have together, in each direction; 0: not
                                  * known, and copies have least_bytes_per_s beside a network */
    double least_bytes_per_s;    /* what copies have however busy the network is; 0: 1e9 */
    int64_t window_ns;           /* how often the network is looked at, and how long without a byte is
                                  * idle; 0: 1 ms */
};

/* Everything in config is copied. DP_EINVAL for a rate or a window below 0; DP_ENOMEM. */
int dpo_pacer_new(const struct dpo_pacer_config *config, struct dpo_pacer **out);
/* p may be NULL. */
void dpo_pacer_free(struct dpo_pacer *p);

/* Whether `bytes` may go now in a direction (0, 1); if not, ask again. Never waits, allocates nothing;
 * any thread. */
bool dpo_pacer_pass(struct dpo_pacer *p, int direction, size_t bytes);
/* The same at a given time of dp_now_ns, which must not go back. */
bool dpo_pacer_pass_at(struct dpo_pacer *p, int direction, size_t bytes, int64_t now_ns);

#endif
