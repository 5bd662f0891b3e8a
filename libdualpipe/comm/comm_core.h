/* SPDX-License-Identifier: Apache-2.0
 *
 * comm_core.h - what the files that implement the public functions share.
 */
#ifndef DP_COMM_COMM_CORE_H
#define DP_COMM_COMM_CORE_H

#include "comm/internal.h"

struct dp_engine;

/* Before anything is started: the rank takes the transfers back from the progress thread. *engine:
 * the family's, made at the first use. DP_ENOMEM, or DP_EABORTED naming the culprit. */
int dp_comm_enter(struct dp_comm *comm, struct dp_engine **engine);
int dp_comm_check_transfer(const struct dp_comm *comm, int peer, int channel, const void *buf,
                           size_t len, const struct dp_request *req);
/* An all-gather of unequal parts: rank r's bytes, from offsets[r] to offsets[r + 1], are in place.
 */
int dp_comm_iallgatherv(struct dp_comm *comm, void *all, const size_t *offsets,
                        struct dp_request *req);
/* A communicator of these ranks of the world, this one's rank among them, on channels of its
 * own. */
int dp_comm_new_group(struct dp_comm *parent, int rank, int size, const int *world_ranks,
                      int context, struct dp_comm **out);
/* dp_comm_progress of the whole family, whatever has been revoked. */
int dp_comm_progress_all(struct dp_comm *world);
/* dp_comm_wait, which any death in `group`, a communicator of the family, ends; the request stays. */
int dp_comm_wait_in(struct dp_comm *comm, struct dp_request *req, int peer,
                    const struct dp_comm *group);
/* A receive has met a message with this tag and length; any_tag: for up to `room` bytes. */
int dp_comm_check_other(int peer, bool any_tag, uint64_t tag, size_t room, uint64_t met_tag,
                        size_t met_len);
static inline int dp_comm_check_message(int peer, bool any_tag, uint64_t tag, size_t room,
                                        uint64_t met_tag, size_t met_len)
{
    if (!any_tag && met_tag == tag && met_len == room)
        return 0;
    return dp_comm_check_other(peer, any_tag, tag, room, met_tag, met_len);
}
/* ---- threads --------------------------------------------------------------------------------- */

/* What tests ask of the communicator of threads. */

/* For the others of a group that survives, this rank has died. Nothing but dp_comm_close comes
 * next. */
void dp_comm_threads_die(struct dp_comm *comm);

#endif
