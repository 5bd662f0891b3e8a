/* SPDX-License-Identifier: Apache-2.0
 *
 * shm_pair.h - both ends of a wire over shared memory in one process, for tests of large messages.
 */
#ifndef DP_TESTS_SHM_PAIR_H
#define DP_TESTS_SHM_PAIR_H

#include "base/clock.h"
#include "wire/shm.h"

#include <sys/types.h>

#define LONG_NS (20 * DP_NS_PER_S) /* longer than anything takes */

struct pair {
    struct dp_wire_listener *listener;
    struct dp_wire *a, *b; /* a has connected to b */
};

/* They have met, and tried whether they may copy from each other. */
struct pair make_pair(void);
/* Either end may have been closed, and be NULL. */
void free_pair(struct pair *p);
/* wire may be NULL. */
void progress(struct dp_wire *wire);
/* The one that connects to the listener; other, if not NULL, is the other end. */
struct dp_wire *accept_one(struct dp_wire_listener *listener, struct dp_wire *other);
void finish(struct pair *p, const struct dp_wire_request *req);
/* The kernel lets this process copy. */
bool goes_straight(const struct pair *p);

void fill(char *buf, size_t len, unsigned seed);
bool is_filled(const char *buf, size_t len, unsigned seed);

enum { BIG = 8 << 20 };
/* A message there, checked. */
void send_one(struct pair *p, char *from, char *to, size_t len, unsigned seed);
enum { LENS = 6 };
/* LENS messages that are large, up to BIG; returns how many of them went straight. */
unsigned send_sizes(struct pair *p, char *from, char *to);
/* A message of BIG that the receiver moves alone, then one that the sender does. */
void move_alone(struct pair *p, char *from, char *to);
/* A message of BIG that its receiver gives up, and then leaves; nothing is written to `to` any more. */
void drop_receive(struct pair *p, char *from, char *to);
/* Drop a request of the sender; its send buffer may be freed from then on. */
void drop_send(struct pair *p, char *from, char *to, void (*forget)(char *from));

/* Memory of dp_shared_alloc. */
char *new_shared(size_t len);

enum { HUGE_MESSAGE = 64 << 20 };
/* A child with one end, in the middle of such a message, of which it moves nothing more. buf: its memory;
 * NULL: memory that it shares. */
pid_t start_child(const struct dp_wire_address *address, char *buf, bool sends);
/* This end has copied some of a large message. */
bool has_moved_some(const struct dp_shm_wire *w);

/* From here on the kernel denies this process what it may deny, for good. Exits with 77 if there are no
 * filters to do it with. */
void deny_copies(void);
/* In a child, whose exit status is the result. */
int run_in_child(void (*fn)(void));

#endif
