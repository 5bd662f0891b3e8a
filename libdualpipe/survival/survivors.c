/* SPDX-License-Identifier: Apache-2.0
 *
 * survivors.c - groups that outlive their ranks: what the live ones agree on, the communicator that
 * they go on with, and the processes that they admit. The protocol is in survival.h.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "base/sized.h"
#include "base/text.h"
#include "comm/comm_core.h"
#include "comm/comm_ops.h"
#include "comm/engine.h"
#include "comm/peers.h"
#include "survival/internal.h"
#include "survival/survival.h"

#include <stdlib.h>

/* Collectives and a poll function of the caller go on meanwhile. */
static int64_t end_of_sleep(const struct dp_comm *world, int64_t now_ns, int64_t until_ns)
{
    const int64_t most_ns = now_ns + (world->poll ? 1 : 20) * DP_NS_PER_MS;

    return until_ns < most_ns ? until_ns : most_ns;
}

/* Call progress and sleep until it is decided. The clock is read first: what came until then is
 * handled before anything is declared dead, also where this rank itself was stopped meanwhile. */
static int agree(struct dp_comm *comm, uint64_t *flags, const uint64_t **dead, int *contexts)
{
    struct dp_comm *world = comm->world;
    struct dp_agreement *a;
    int64_t until_ns = 0;
    int err = dp_comm_progress_all(world);

    if (!err)
        err = dp_agreement_begin(world->survival, comm, *flags, &a);
    while (!err) {
        const int64_t now_ns = dp_now_ns();
        err = dp_comm_progress_all(world);
        if (!err)
            err = dp_agreement_step(world->survival, comm, a, now_ns, 2 * comm->deadline_ns,
                                    &until_ns);
        if (!err)
            break;
        if (err != DP_EAGAIN)
            return err;
        err = dp_comm_poll(comm);
        if (!err)
            world->ops->sleep(world, end_of_sleep(world, now_ns, until_ns));
    }
    if (err)
        return err;
    *dead = dp_agreement_result(a, contexts, flags);
    return 0;
}

static int check_survives(const struct dp_comm *comm, const void *out, const char *what)
{
    if (!comm || !out)
        return dp_fail(DP_EINVAL, "%s without a %s", what, comm ? "place for the result" : "comm");
    if (comm->world->in_batch)
        return dp_fail(DP_EINVAL, "%s between begin and commit", what);
    if (!comm->world->survival)
        return dp_fail(DP_EINVAL, "%s: expected a group that survives (dp_comm_survive)", what);
    return 0;
}

int dp_comm_agree_flags(struct dp_comm *comm, uint64_t *flags, bool *alive)
{
    const uint64_t *dead;
    int contexts, err = check_survives(comm, flags ? alive : NULL, "agreement");

    if (!err)
        err = agree(comm, flags, &dead, &contexts);
    for (int i = 0; i < comm->size && !err; i++)
        alive[i] = !dp_survival_has(dead, dp_comm_world_rank(comm, i));
    return err;
}

int dp_comm_shrink(struct dp_comm *comm, struct dp_comm **out)
{
    const uint64_t *dead;
    uint64_t none = 0;
    int contexts, size = 0, rank = 0, err = check_survives(comm, out, "shrink");

    if (err)
        return err;
    int *ranks = calloc((size_t)comm->size, sizeof(*ranks));
    if (!ranks)
        return dp_fail(DP_ENOMEM, "no memory for the survivors of %d ranks", comm->size);
    err = agree(comm, &none, &dead, &contexts);
    if (!err && dp_survival_has(dead, comm->world->rank))
        err = dp_fail_quietly(DP_EABORTED, "rank %d is not among the survivors", comm->rank);
    for (int i = 0; i < comm->size && !err; i++) {
        const int world_rank = dp_comm_world_rank(comm, i);
        if (dp_survival_has(dead, world_rank))
            continue;
        rank = i == comm->rank ? size : rank;
        ranks[size++] = world_rank;
    }
    if (!err) {
        comm->world->contexts = contexts + 1;
        err = dp_comm_new_group(comm, rank, size, ranks, contexts, out);
    }
    free(ranks);
    return err;
}

/* A process that is stopped gives none; one that waits or computes does, from that call or by its
 * progress thread. */
static int64_t end_of_silence(struct dp_comm *world, int64_t deadline_ns)
{
    const int64_t most_ns = DP_NS_PER_S / 2, busy_ns = world->ops->busy_until(world);
    const int64_t now_ns = dp_now_ns(), from_ns = busy_ns > now_ns ? busy_ns : now_ns;

    return from_ns + (deadline_ns / 2 < most_ns ? deadline_ns / 2 : most_ns);
}

int dp_comm_settle_silence(struct dp_comm *comm)
{
    struct dp_comm *world = comm->world;
    const int rank = world->silent - 1;
    int err = 0;

    if (rank < 0 || !world->survival)
        return 0;
    world->silent = 0;
    dp_comm_progress_stop(comm);
    dp_survival_ask(world->survival, rank);
    const int64_t until_ns = end_of_silence(world, comm->deadline_ns);
    while (!err && dp_survival_is_owed(world->survival, rank)) {
        const int64_t now_ns = dp_now_ns();
        err = dp_comm_progress_all(world);
        if (!err && now_ns >= until_ns && dp_survival_is_owed(world->survival, rank))
            dp_survival_declare(world->survival, rank);
        else if (!err)
            err = dp_comm_poll(comm);
        if (!err)
            world->ops->sleep(world, end_of_sleep(world, now_ns, until_ns));
    }
    return err;
}

static uint64_t last_note_of(const struct dp_comm *world, int world_rank)
{
    if (world_rank == world->rank)
        return world->doing ? atomic_load(world->doing) : 0;
    return world->hooks ? world->hooks->doing(world, world_rank) : 0;
}

uint64_t dp_comm_last_note(const struct dp_comm *comm, int rank)
{
    if (!comm || rank < 0 || rank >= comm->size)
        return 0;
    return last_note_of(comm->world, dp_comm_world_rank(comm, rank));
}

/* A rank of comm, by its number in the world; -1: unknown. */
static int find_culprit(struct dp_comm *comm, int error)
{
    const struct dp_comm *world = comm->world;

    if (error == DP_ECOMM)
        return world->hooks->find_dead(comm);
    return error == DP_ETIMEDOUT ? world->silent - 1 : world->rank;
}

int dp_comm_revoke(struct dp_comm *comm, int error, const char *text)
{
    if (!comm || error >= 0)
        return dp_fail(DP_EINVAL, "revoke with error %d: expected a comm and a negative error",
                       error);
    struct dp_comm *world = comm->world;
    if (!world->ops->survival)
        return dp_fail(DP_EUNSUPPORTED, "revoke: the transport %s ends with its first failure",
                       world->ops->name);
    if (world->in_batch)
        return dp_fail(DP_EINVAL, "revoke between begin and commit");
    if (!world->survival)
        return dp_fail(DP_EUNSUPPORTED,
                       "revoke: expected a group that survives (dp_comm_survive); dp_comm_abort "
                       "ends this one");
    dp_comm_progress_stop(comm);
    struct dp_abort why = {.rank = find_culprit(comm, error), .error = error};
    dp_snprintf(why.text, sizeof(why.text), "%s", text ? text : "");
    if (why.rank >= 0)
        why.doing = last_note_of(world, why.rank);
    const bool is_over = world->ops->aborted(world, NULL);
    int err = is_over ? 0 : dp_survival_revoke(world->survival, comm, &why);
    if (world->engine) /* collectives give the memory of the caller back */
        dp_engine_progress(world->engine);
    return err;
}

/* Threads have no neighbors: it costs the same to tell them all. */
static void mail(struct dp_survival *s, int peer, const void *message, size_t len)
{
    s->ops->tell(s->world, peer, message, len);
}

static void mail_to_all(struct dp_survival *s, const void *message, size_t len)
{
    for (int peer = 0; peer < s->world->size; peer++)
        if (peer != s->world->rank && !dp_survival_has(s->dead, peer))
            mail(s, peer, message, len);
}

/* They hear of each other's end anyway. */
static void watch_none(struct dp_survival *s, int peer)
{
    (void)s;
    (void)peer;
}

static void flush_none(struct dp_survival *s)
{
    (void)s;
}

static const struct dp_survival_news by_mail = {mail, mail_to_all, watch_none, flush_none};

static int begin(struct dp_comm *world)
{
    struct dp_survival *s;
    int err = dp_survival_new(world, &s);

    if (err)
        return err;
    struct dp_peers *peers = s->ops->survive(world);
    s->hooks = dp_survival_hooks;
    s->news = &by_mail;
    if (peers)
        dp_watch_use(s, peers);
    world->survival = s;
    world->hooks = &s->hooks;
    return 0;
}

/* All ranks are ready for messages about survival before the first one is sent. */
int dp_comm_survive(struct dp_comm *comm)
{
    if (!comm)
        return dp_fail(DP_EINVAL, "survive without a comm");
    if (comm != comm->world)
        return dp_fail(DP_EINVAL, "survive: expected the communicator that was opened, not a part");
    if (!comm->ops->survival)
        return dp_fail(DP_EUNSUPPORTED,
                       "survive: the transport %s ends with the first process that dies",
                       comm->ops->name);
    if (comm->survival)
        return 0;
    int err = begin(comm);
    if (err) {
        dp_comm_abort(comm, err, dp_last_error());
        return err;
    }
    err = dp_comm_barrier(comm);
    if (err && err != DP_ECOMM && !comm->is_revoked) /* a rank that dies here ends nothing more */
        return err;
    if (comm->survival->watch.peers)
        dp_watch_begin(comm->survival);
    return 0;
}

int dp_comm_wait_alive(struct dp_comm *comm, struct dp_request *req, int peer,
                       const struct dp_comm *group)
{
    if (!group || (comm && group->world != comm->world))
        return dp_fail(DP_EINVAL, "a wait with %s, expected a communicator of the same family",
                       group ? "a group of another family" : "no group");
    return dp_comm_wait_in(comm, req, peer, group);
}

bool dp_comm_is_alive(const struct dp_comm *comm, int rank)
{
    if (!comm || rank < 0 || rank >= comm->size)
        return false;
    if (rank != comm->rank)
        return !dp_comm_has_lost(comm->world, dp_comm_world_rank(comm, rank), true);
    return !comm->world->hooks || !comm->world->hooks->is_excluded(comm->world, NULL);
}

/* ---- more processes: the live ranks meet them as the ranks of a job meet at its start ----------- */

static int check_config(const char *what, const struct dp_comm_config *config, const void *out)
{
    if (!config || !out)
        return dp_fail(DP_EINVAL, "%s without a %s", what,
                       config ? "place for the comm" : "config");
    if (config->rank || config->size || config->listener)
        return dp_fail(DP_EINVAL,
                       "%s: expected a config with rank, size and listener 0, as the group "
                       "decides on them",
                       what);
    return 0;
}

/* The ranks of comm that live are the first ones, in their order. refused: this one's error, or 0. */
static int count_alive(struct dp_comm *comm, int refused, struct dp_comm_config *config)
{
    uint64_t all_can = !refused;
    bool *alive = calloc((size_t)comm->size, sizeof(*alive));
    int err = alive ? dp_comm_agree_flags(comm, &all_can, alive)
                    : dp_fail(DP_ENOMEM, "no memory to agree with %d ranks", comm->size);

    for (int i = 0; i < comm->size && !err; i++) {
        config->rank += alive[i] && i < comm->rank;
        config->size += alive[i];
    }
    free(alive);
    if (err || refused)
        return err ? err : refused;
    return all_can ? 0 : dp_fail(DP_EINVAL, "grow: another rank's config was refused there");
}

int dp_comm_grow_sized(struct dp_comm *comm, int count, const struct dp_comm_config *config,
                       struct dp_comm **out, size_t size)
{
    DP_TAKE_KNOWN(dp_comm_config, config, size);
    if (!comm || count < 1)
        return dp_fail(DP_EINVAL, "grow by %d ranks: expected a comm and 1 or more", count);
    if (!comm->ops->survival)
        return dp_fail(DP_EUNSUPPORTED,
                       "grow: the transport %s takes in no process after its start",
                       comm->ops->name);
    int err = config_err ? config_err : check_config("grow", config, out);
    struct dp_comm_config full = err ? (struct dp_comm_config){0} : *config;
    err = count_alive(comm, err, &full);
    if (err)
        return err;
    const int first_new = full.size;
    full.size += count;
    if (!full.poll) {
        full.poll = comm->world->poll;
        full.poll_user = comm->world->poll_user;
    }
    return dp_comm_meet(&full, first_new, out);
}

int dp_comm_join_sized(const struct dp_comm_config *config, struct dp_comm **out, size_t size)
{
    DP_TAKE(dp_comm_config, config, size);
    int err = check_config("join", config, out);

    if (err)
        return err;
    struct dp_comm_config full = *config;
    full.rank = -1;
    return dp_comm_meet(&full, 0, out);
}
