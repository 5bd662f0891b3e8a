/* SPDX-License-Identifier: Apache-2.0
 *
 * fault.h - a wire that wraps another one and makes it worse, repeatably: the same
 * seed does the same to the same messages.
 */
#ifndef DP_WIRE_FAULT_H
#define DP_WIRE_FAULT_H

#include "wire/wire.h"

struct dp_wire_fault {
    uint64_t seed;
    int64_t delay_ns;   /* every message starts this much later; they do not add up */
    int64_t jitter_ns;  /* and up to this much more, by chance */
    uint64_t cut;       /* the wire breaks before this many messages were sent and one more; 0: never */
    uint64_t silent;    /* from there on nothing passes, either way, and nothing fails; 0: never */
    double shorten;     /* probability that a message loses its end */
    double flip;        /* probability that one bit of a message arrives the wrong way round */
};

/* "seed=1,delay_us=50,jitter_us=20,cut=100,silent=100,shorten=0.01,flip=0.01", each one optional;
 * DP_EINVAL naming what is wrong. */
int dp_wire_fault_parse(const char *text, struct dp_wire_fault *out);

/* Takes inner, also on failure. The address and the handshake are the inner wire's. */
int dp_wire_fault_wrap(struct dp_wire *inner, const struct dp_wire_fault *fault,
                       struct dp_wire **out);

/* Of such a wire: cut it now, or make it silent. */
void dp_wire_fault_break(struct dp_wire *wire, bool silently);

#endif
