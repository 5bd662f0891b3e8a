/* SPDX-License-Identifier: Apache-2.0
 *
 * net_data.c - messages: what is the same for every transport.
 */
#include "base/fail.h"
#include "nccl-plugin/net_comm.h"

int dpn_net_isend(struct dpn_comm *comm, const void *data, size_t size, int tag,
                  struct dpn_memory *memory, struct dpn_request **out)
{
    const struct dpn_piece piece = {(void *)data, size, tag, memory};

    if (size > DPN_MAX_BYTES)
        return dp_fail(DP_EINVAL, "send of %zu bytes: the longest message is %zu", size,
                       DPN_MAX_BYTES);
    *out = NULL;
    pthread_mutex_lock(&comm->lock);
    int err = comm->transport->isend(comm, &piece, out);
    pthread_mutex_unlock(&comm->lock);
    return err;
}

static int check_group(int n)
{
    return n >= 1 && n <= DPN_MAX_RECEIVES
               ? 0
               : dp_fail(DP_EINVAL, "a group of %d receives: expected 1 to %d", n,
                         DPN_MAX_RECEIVES);
}

int dpn_net_irecv(struct dpn_comm *comm, int n, void *const *data, const size_t *sizes,
                  const int *tags, struct dpn_memory *const *memories, struct dpn_request **out)
{
    struct dpn_piece pieces[DPN_MAX_RECEIVES];
    int err = check_group(n);

    if (err)
        return err;
    for (int i = 0; i < n; i++)
        pieces[i] = (struct dpn_piece){data[i], sizes[i], tags[i], memories ? memories[i] : NULL};
    *out = NULL;
    pthread_mutex_lock(&comm->lock);
    err = comm->transport->irecv(comm, n, pieces, out);
    pthread_mutex_unlock(&comm->lock);
    return err;
}

int dpn_net_iflush(struct dpn_comm *comm, int n, void *const *data, const int *sizes,
                   struct dpn_memory *const *memories, struct dpn_request **out)
{
    struct dpn_piece pieces[DPN_MAX_RECEIVES];
    int err = check_group(n);

    if (err)
        return err;
    for (int i = 0; i < n; i++)
        pieces[i] = (struct dpn_piece){.data = data[i], .size = (size_t)sizes[i],
                                       .memory = memories ? memories[i] : NULL};
    *out = NULL;
    pthread_mutex_lock(&comm->lock);
    err = comm->transport->iflush(comm, n, pieces, out);
    pthread_mutex_unlock(&comm->lock);
    return err;
}

int dpn_net_test(struct dpn_request *req, bool *done, int *sizes)
{
    if (!req)
        return dp_fail(DP_EINVAL, "test of no request");
    struct dpn_comm *comm = req->comm;
    *done = false;
    pthread_mutex_lock(&comm->lock);
    int err = comm->transport->test(req, done, sizes);
    pthread_mutex_unlock(&comm->lock);
    return err;
}
