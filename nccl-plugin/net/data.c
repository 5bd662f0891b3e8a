/* SPDX-License-Identifier: Apache-2.0
 *
 * data.c - messages: what is the same for every transport; it counts, too.
 */
#include "base/fail.h"
#include "nccl-plugin/net/comm.h"
#include "nccl-plugin/net/slice.h"

/* DP_ECOMM in a process that was forked after the connection was made. */
static int check_process(const struct dpn_comm *comm)
{
    return dpn_is_inherited(comm->open.net)
               ? dp_fail(DP_ECOMM,
                         "this process was forked after the connection was made, which is "
                         "its parent's")
               : 0;
}

/* A request for `count` messages was asked for, and there may be one now. */
static void count_begun(struct dpn_comm *comm, int err, int count, size_t bytes,
                        struct dpn_request *req)
{
    if (err)
        dpn_stat_count(&comm->stat, DPN_STAT_ERRORS, 1);
    else if (req)
        dpn_stat_began(&comm->stat, count, bytes, &req->mark);
    else
        dpn_stat_held_up(&comm->stat);
}

int dpn_net_isend(struct dpn_comm *comm, const void *data, size_t size, int tag,
                  struct dpn_memory *memory, struct dpn_request **out)
{
    const struct dpn_piece piece = {(void *)data, size, tag, memory, false};

    if (size > DPN_MAX_BYTES)
        return dp_fail(DP_EINVAL, "send of %zu bytes: the longest message is %zu", size,
                       DPN_MAX_BYTES);
    *out = NULL;
    if (check_process(comm))
        return DP_ECOMM;
    pthread_mutex_lock(&comm->lock);
    int err = comm->transport->isend(comm, &piece, out);
    count_begun(comm, err, 1, size, *out);
    pthread_mutex_unlock(&comm->lock);
    return err;
}

static int check_group(const struct dpn_comm *comm, int n)
{
    return n >= 1 && n <= DPN_MAX_RECEIVES
               ? check_process(comm)
               : dp_fail(DP_EINVAL, "a group of %d receives: expected 1 to %d", n,
                         DPN_MAX_RECEIVES);
}

int dpn_net_irecv(struct dpn_comm *comm, int n, void *const *data, const size_t *sizes,
                  const int *tags, struct dpn_memory *const *memories, bool is_watched,
                  struct dpn_request **out)
{
    struct dpn_piece pieces[DPN_MAX_RECEIVES];
    int err = check_group(comm, n);

    if (err)
        return err;
    for (int i = 0; i < n; i++)
        pieces[i] = (struct dpn_piece){data[i], sizes[i], tags[i], memories ? memories[i] : NULL,
                                       is_watched};
    *out = NULL;
    pthread_mutex_lock(&comm->lock);
    err = comm->transport->irecv(comm, n, pieces, out);
    count_begun(comm, err, n, sizes[0], *out);
    pthread_mutex_unlock(&comm->lock);
    return err;
}

int dpn_net_iflush(struct dpn_comm *comm, int n, void *const *data, const int *sizes,
                   struct dpn_memory *const *memories, struct dpn_request **out)
{
    struct dpn_piece pieces[DPN_MAX_RECEIVES];
    int err = check_group(comm, n);

    if (err)
        return err;
    for (int i = 0; i < n; i++)
        pieces[i] = (struct dpn_piece){.data = data[i], .size = (size_t)sizes[i],
                                       .memory = memories ? memories[i] : NULL};
    *out = NULL;
    pthread_mutex_lock(&comm->lock);
    err = comm->transport->iflush(comm, n, pieces, out);
    if (*out)
        (*out)->mark = (struct dpn_stat_mark){0};
    pthread_mutex_unlock(&comm->lock);
    return err;
}

int dpn_net_test(struct dpn_request *req, bool *done, int *sizes)
{
    if (!req)
        return dp_fail(DP_EINVAL, "test of no request");
    struct dpn_comm *comm = req->comm;
    int own_sizes[DPN_MAX_RECEIVES] = {0};
    *done = false;
    if (check_process(comm))
        return DP_ECOMM;
    pthread_mutex_lock(&comm->lock);
    int err = comm->transport->test(req, done, sizes ? sizes : own_sizes);
    if (err)
        dpn_stat_count(&comm->stat, DPN_STAT_ERRORS, 1);
    else if (*done)
        dpn_stat_ended(&comm->stat, &req->mark, sizes ? sizes : own_sizes);
    if (*done)
        comm->late = (struct dpn_late){0};
    else
        dpn_late_test(&comm->late, comm->peer,
                      comm->is_sender ? "does not receive what is to be sent" : "sends nothing");
    pthread_mutex_unlock(&comm->lock);
    if (!*done)
        dpn_slice_waited();
    return err;
}

/* ---- registration ---------------------------------------------------------------------------- */

int dpn_net_register(struct dpn_comm *comm, const struct dpn_region *region,
                     struct dpn_memory **out)
{
    struct dpn_memory *memory = NULL;
    int err = check_process(comm);

    if (!err)
        err = comm->transport->reg(comm, region, &memory);
    if (err)
        return err;
    pthread_mutex_lock(&comm->lock);
    memory->next = comm->memories;
    comm->memories = memory;
    pthread_mutex_unlock(&comm->lock);
    *out = memory;
    return 0;
}

static bool unlink_memory(struct dpn_comm *comm, const struct dpn_memory *memory)
{
    for (struct dpn_memory **at = &comm->memories; *at; at = &(*at)->next)
        if (*at == memory) {
            *at = memory->next;
            return true;
        }
    return false;
}

int dpn_net_deregister(struct dpn_comm *comm, struct dpn_memory *memory)
{
    if (!memory || dpn_is_inherited(comm->open.net))
        return 0;
    pthread_mutex_lock(&comm->lock);
    bool is_ours = unlink_memory(comm, memory);
    pthread_mutex_unlock(&comm->lock);
    if (is_ours)
        comm->transport->dereg(comm, memory);
    return is_ours
               ? 0
               : dp_fail(DP_EINVAL, "deregistering what was not registered with this connection");
}
