/* SPDX-License-Identifier: Apache-2.0
 *
 * survival.h - groups that survive their ranks:
 *
 *      dp_comm_survive(world)                      once, right after opening
 *      err = a step over comm                      DP_ECOMM, DP_ETIMEDOUT: a rank is dead or silent
 *      if (err)
 *          dp_comm_revoke(comm, err, dp_last_error())   the others' step ends, too, with DP_EABORTED
 *      if (any rank can have failed)
 *          dp_comm_shrink(comm, &survivors)        on all that live; then go on with survivors
 *
 * The semantics are those of MPI's User-Level Failure Mitigation (Bland et al., 2013; agreement:
 * Herault et al., SC 2015). A collective of a communicator that has a dead rank fails on every rank
 * as soon as that hears of the death, which the ranks tell each other, without a revoke.
 *
 * A dead rank. Its process has ended, the connection to it is lost, or it did not call an agreement
 * within twice the deadline in which the others did (to a mixer it may be dead before: mixer.h). A
 * request that needs it ends with DP_ECOMM naming it, also one in flight; so does every collective
 * of a communicator that has it, on all ranks, and that communicator has no collectives any more.
 * Messages between other ranks go on, also on that communicator. What it sent just before may be
 * lost. A receive from any source goes on until its deadline, unless dp_comm_wait names a rank. A
 * rank that has left in order is not among those that live either, but what it had sent arrives.
 *
 * A silent rank. A wait that reaches its deadline ends with DP_ETIMEDOUT and gives up its request,
 * and with it the channel between the two ranks in this communicator: its other messages, and later
 * ones, get DP_ECOMM or DP_ETIMEDOUT on both sides. Nothing else ends; whether the rank is dead the
 * next agreement decides.
 *
 * A rank that was stopped, and continues after the others have declared it dead, gets DP_EABORTED
 * from its next call on; dp_comm_aborted names it as the culprit, with the error DP_ETIMEDOUT. The
 * others take nothing of what it sends. Only where a rank was stopped within a copy between the
 * memories of two processes of one host is this not certain; DUALPIPE_WIRE_CMA=0 excludes that.
 *
 * A rank that has no files or no memory for its part (DP_EIO, DP_ENOMEM) has left: dp_comm_aborted
 * names it there, and to the others it is dead.
 *
 * No rank is the centre: each is watched by at least two others (as far as there are any), and the
 * group outlives rank 0. There is no majority either: where a network parts the ranks in two, both
 * parts go on by themselves, and never exchange a message again.
 *
 * dp_comm_abort still ends the group on all ranks, and dp_comm_reset is DP_EUNSUPPORTED.
 */
#ifndef DUALPIPE_SURVIVAL_H
#define DUALPIPE_SURVIVAL_H

#include <dualpipe/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Collective over a communicator that was opened, before anything has failed: from now on the group
 * survives. DP_EUNSUPPORTED over MPI, which ends all processes with the first. DP_ENOMEM aborts. */
DP_PUBLIC int dp_comm_survive(struct dp_comm *comm);

/* Whether the rank is not known to be dead here, as far as this rank has heard by its last call; of
 * this rank itself: whether no other one has declared it dead. Ranks may know more or less at a time:
 * what they agree on says agree_alive. */
DP_PUBLIC bool dp_comm_is_alive(const struct dp_comm *comm, int rank);

/* Whether dp_comm_survive was called for the group of comm. */
static inline bool dp_comm_survives(const struct dp_comm *comm)
{
    return comm && dp_comm_get(comm, DP_COMM_SURVIVES);
}

/* This rank cannot go on with what comm is used for: end that on all ranks, MPIX_Comm_revoke. All
 * requests of comm that are in flight on any rank, and all that is started later, end with
 * DP_EABORTED there, as soon as the rank has heard of it; buffers are the caller's again. What was
 * done before stays done. dp_comm_aborted says of comm why: the error and text given here, and the
 * culprit. That is with DP_ECOMM a rank of comm that is known here to be dead, with DP_ETIMEDOUT the
 * one that this rank's last wait was given up for (-1: none is known), otherwise this rank. Where
 * several ranks revoke at once, ranks may have heard of different ones first.
 *
 * Nothing else ends: not other communicators of the family, not those made of comm, and comm itself
 * still agrees, shrinks, grows and is closed. Each rank passes the news on with its next call, so a
 * rank hears of it once any neighbor that lives does, and at its own deadline at the latest its wait
 * ends anyway. Not collective; 0 also if comm was revoked already. DP_EUNSUPPORTED in a group that
 * does not survive, and over MPI; DP_ENOMEM. */
DP_PUBLIC int dp_comm_revoke(struct dp_comm *comm, int error, const char *text);
/* alive[size]: which ranks of comm are alive; the same on every rank that returns 0, which is
 * itself among them. Called by all that live, also after its collectives have failed. Deaths
 * meanwhile, that of any rank included, end nothing; ranks that die later may still be in the set.
 * A rank that does not call it within twice the deadline in which the others do (counted from the
 * end of what dp_comm_busy announced) is declared dead; so it ends within that time, and once more
 * twice that for every rank that stops meanwhile while it coordinates. The live rank with the
 * lowest number is connected to all meanwhile. DP_EABORTED: this rank was declared dead itself, or
 * the group was aborted. DP_EINVAL: the group does not survive. */
static inline int dp_comm_agree_alive(struct dp_comm *comm, bool *alive);
/* The same, and *flags becomes the bitwise and of what it was on all that live, and perhaps on some that
 * have died since: MPIX_Comm_agree. So all know whether a part of their work has got through on all. */
DP_PUBLIC int dp_comm_agree_flags(struct dp_comm *comm, uint64_t *flags, bool *alive);

static inline int dp_comm_agree_alive(struct dp_comm *comm, bool *alive)
{
    uint64_t none = 0;

    return dp_comm_agree_flags(comm, &none, alive);
}

/* The communicator of the ranks that agree_alive finds, in the order of their ranks in comm and
 * counted from 0: MPIX_Comm_shrink. Of the same family, with channels of its own, so that no
 * message of before is taken for one of it. comm stays, and is closed as any other. Errors as those
 * of agree_alive; DP_ENOMEM. */
DP_PUBLIC int dp_comm_shrink(struct dp_comm *comm, struct dp_comm **out);

/* Admit `count` processes, 1 or more: new ones, or such as were lost and have been started again.
 * Called by all ranks of comm that live, with the same arguments; the new processes call
 * dp_comm_join.
 *
 *      comm   0  1  2  3      2 has died, grow by 2:      0  1  3  and two new ones
 *      out                                                0  1  2  3  4
 *
 * The live ranks agree on their set, as in dp_comm_agree_alive, and come first in their order; the
 * new ones get the ranks after them in the order in which they come. out is a group of its own, of
 * no family with comm, opened as by dp_comm_open; it survives only once all its ranks have called
 * dp_comm_survive. comm stays as it is, and is closed as any other. Ranks that are threads are
 * connected as processes are: the new ones may be either.
 *
 * config: as for dp_comm_open, with rank, size and listener 0. It says where the first live rank of
 * comm listens: where that rank, and so its host, is not known in advance, a store does that. The
 * timeout counts from the agreement on.
 *
 * DP_ETIMEDOUT naming the ranks of out that did not come; DP_EMISMATCH where counts differ;
 * DP_ECOMM, DP_ETIMEDOUT where a rank has died meanwhile; and the errors of dp_comm_agree_alive and
 * dp_comm_open. After an error comm can still be used, and ranks that got out may find it lost: all
 * that live agree or shrink, and call it again if they want. DP_EUNSUPPORTED over MPI. */
DP_SIZED(dp_comm_grow, (comm, count, config, out, sizeof(struct dp_comm_config)),
         struct dp_comm *comm, int count, const struct dp_comm_config *config,
         struct dp_comm **out);

/* Join the group that a dp_comm_grow with the same config makes; it may be called before that one,
 * and waits for it up to the timeout. Rank and size are dp_comm_rank's and dp_comm_size's.
 * DP_ETIMEDOUT; DP_EMISMATCH where the secret is another one, or all new ranks have come; and the
 * errors of dp_comm_open. */
DP_SIZED(dp_comm_join, (config, out, sizeof(struct dp_comm_config)),
         const struct dp_comm_config *config, struct dp_comm **out);

#ifdef __cplusplus
}
#endif
#endif
