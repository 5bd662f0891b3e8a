/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_comm.c - the communicator of dualpipe/nccl.h: messages are work in the streams of their
 * links (nccl_links.h); everything else is passed on to a communicator of the host.
 *
 *      isend, irecv -> part -> [batch -> commit] -> link's stream -> event -> test, stream_wait
 */
#include "comm/nccl_links.h"

#include "base/array.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/sized.h"
#include "base/text.h"
#include "comm/comm_ops.h"

#include <stdlib.h>

/* A sleep looks after the device that often; NCCL's errors are asked for that often. */
static const int64_t SLEEP_NS = 100 * DP_NS_PER_US, POLL_NS = DP_NS_PER_MS;

/* A message of this rank that is not done, or room for one. */
struct part {
    const struct dp_request *req; /* NULL: free */
    struct dp_device_event *done;
    bool started; /* in its stream, with `done` behind it */
};

/* A request of ours names its part, which names the request: that tells it from one of the host's.
 */
struct request {
    struct dp_request_head head;
    uint64_t part;
    uint64_t done; /* mark_of: the message is done, and has no part any more */
};
_Static_assert(sizeof(struct request) <= sizeof(struct dp_request), "a request has room");

struct nccl_comm {
    struct dp_comm base;
    struct dp_comm *given; /* what the caller opened this one over */
    struct dp_comm *host;  /* a part of that with channels of its own, which has all its ranks */
    struct dp_nccl_links links;
    struct dp_device_event *after;
    struct part *parts;
    size_t part_count, part_room;
    struct dp_nccl_message *batch; /* started since begin: messages, and their parts */
    size_t *batch_parts;
    size_t batch_count, batch_room, batch_parts_room;
    bool in_batch;
    bool is_ended; /* after an abort, the links have been */
    int64_t polled_ns;
    int waiting_for; /* of the last call of progress: a test in between is part of that wait */
};

static struct nccl_comm *of(const struct dp_comm *comm)
{
    return (struct nccl_comm *)(uintptr_t)comm;
}

static struct dp_comm *host_of(const struct dp_comm *comm)
{
    return of(comm)->host->world;
}

static const struct dp_comm_ops *host_ops(const struct dp_comm *comm)
{
    return of(comm)->host->ops;
}

static int host_rank(const struct dp_comm *comm, int rank)
{
    return rank < 0 ? rank : dp_comm_world_rank(of(comm)->host, rank);
}

static int host_channel(const struct dp_comm *comm, int channel)
{
    return of(comm)->host->first_channel + channel;
}

/* ---- aborts ---------------------------------------------------------------------------------- */

/* No stream touches a caller's memory afterwards. */
static void end_all(struct nccl_comm *c)
{
    if (c->is_ended)
        return;
    c->is_ended = true;
    dp_nccl_links_abort(&c->links);
    for (size_t i = 0; i < c->part_count; i++)
        c->parts[i].req = NULL;
    c->batch_count = 0;
}

static int check_abort(struct dp_comm *comm)
{
    if (!host_ops(comm)->aborted(host_of(comm), NULL))
        return 0;
    end_all(of(comm));
    return DP_EABORTED;
}

/* Any thread: the links are ended by this rank's next call. */
static int nccl_abort(struct dp_comm *comm, const struct dp_abort *why)
{
    struct dp_abort there = *why;

    there.rank = host_rank(comm, why->rank);
    return host_ops(comm)->abort(host_of(comm), &there);
}

static bool nccl_aborted(struct dp_comm *comm, struct dp_abort *why)
{
    if (!check_abort(comm))
        return false;
    dp_comm_aborted(of(comm)->host, why);
    return true;
}

static int nccl_reset(struct dp_comm *comm)
{
    struct nccl_comm *c = of(comm);
    int err;

    if (c->given != c->given->world)
        return dp_fail(DP_EUNSUPPORTED,
                       "reset: this NCCL communicator was opened over a part of the "
                       "communicator that was opened; expected that one");
    end_all(c);
    err = dp_comm_reset(c->given);
    if (err)
        return err;
    c->is_ended = false;
    c->waiting_for = -1;
    return dp_nccl_links_connect(&c->links);
}

/* The rank at the other end of a link with an error is the one to look at. */
static int check_links(struct dp_comm *comm)
{
    struct nccl_comm *c = of(comm);
    const int64_t now_ns = dp_now_ns();

    if (now_ns - c->polled_ns < POLL_NS)
        return 0;
    c->polled_ns = now_ns;
    const struct dp_nccl_link *failed = dp_nccl_links_failed(&c->links);
    if (!failed)
        return 0;
    struct dp_abort why = {.rank = failed->peer, .error = DP_ECOMM};
    dp_snprintf(why.text, sizeof(why.text), "%s", dp_last_error());
    nccl_abort(comm, &why);
    return check_abort(comm);
}

/* ---- starting messages ----------------------------------------------------------------------- */

static bool is_for_host(int channel)
{
    return channel == DP_CHANNEL_CONTROL || channel == DP_CHANNEL_COLLECTIVE;
}

static int refuse_part(void)
{
    return dp_fail(DP_EUNSUPPORTED,
                   "a message of a part of an NCCL communicator: expected one opened "
                   "over a part of the host's communicator (dualpipe/nccl.h)");
}

static int find_link(const struct nccl_comm *c, int peer, int channel, bool sends,
                     struct dp_nccl_link **out)
{
    *out = dp_nccl_links_find(&c->links, peer, channel, sends);
    return *out ? 0
                : dp_fail(DP_EINVAL,
                          "a message %s rank %d on channel %d, with which the NCCL communicator "
                          "was not opened",
                          sends ? "to" : "from", peer, channel);
}

static int add_part(struct nccl_comm *c)
{
    struct part *more = dp_array_grow(c->parts, &c->part_room, c->part_count + 1, sizeof(*more));

    if (!more)
        return dp_fail(DP_ENOMEM, "no memory for %zu messages in flight", c->part_count + 1);
    c->parts = more;
    c->parts[c->part_count] = (struct part){0};
    int err = dp_device_event_new(c->links.dev, &c->parts[c->part_count].done);
    c->part_count += !err;
    return err;
}

/* Only the first time that so many messages are in flight anything is allocated. */
static int take_part(struct nccl_comm *c, size_t *out)
{
    size_t i = 0;

    while (i < c->part_count && c->parts[i].req)
        i++;
    int err = i == c->part_count ? add_part(c) : 0;
    *out = i;
    return err;
}

static struct part *part_of(const struct nccl_comm *c, const struct dp_request *req)
{
    const size_t i = ((const struct request *)req)->part;

    return i < c->part_count && c->parts[i].req == req ? &c->parts[i] : NULL;
}

/* What no request of the host's has in this place. */
static uint64_t mark_of(const struct nccl_comm *c, const struct dp_request *req)
{
    return ((uint64_t)(uintptr_t)c << 20) ^ (uint64_t)(uintptr_t)req ^ UINT64_C(0x6e63636c646f6e65);
}

static int add_to_batch(struct nccl_comm *c, const struct dp_nccl_message *message, size_t part)
{
    void *messages = dp_array_grow(c->batch, &c->batch_room, c->batch_count + 1, sizeof(*c->batch));
    c->batch = messages ? messages : c->batch;
    void *parts = dp_array_grow(c->batch_parts, &c->batch_parts_room, c->batch_count + 1,
                                sizeof(*c->batch_parts));
    c->batch_parts = parts ? parts : c->batch_parts;

    if (!messages || !parts)
        return dp_fail(DP_ENOMEM, "no memory for %zu messages in a batch", c->batch_count + 1);
    c->batch[c->batch_count] = *message;
    c->batch_parts[c->batch_count++] = part;
    return 0;
}

/* What NCCL has taken of a batch that failed is not known: the group ends. */
static int give_up(struct nccl_comm *c, int err)
{
    struct dp_abort why = {.rank = c->base.rank, .error = err};

    dp_snprintf(why.text, sizeof(why.text), "%s", dp_last_error());
    nccl_abort(&c->base, &why);
    end_all(c);
    return err;
}

static bool has_link(const struct dp_nccl_message *messages, size_t count,
                     const struct dp_nccl_link *link)
{
    for (size_t i = 0; i < count; i++)
        if (messages[i].link == link)
            return true;
    return false;
}

/* The messages that one group of calls may take: no two of the same link. NCCL would make one
 * kernel of them, which ends when both are done; but the second may be what the other rank sends
 * only in answer to the first. */
static size_t take_group(const struct dp_nccl_message *messages, size_t count)
{
    size_t n = 1;

    while (n < count && !has_link(messages, n, messages[n].link))
        n++;
    return n;
}

static int start_group(struct nccl_comm *c, size_t first, size_t count)
{
    int err = dp_nccl_links_start(&c->links, c->batch + first, count);

    for (size_t i = first; i < first + count && !err; i++) {
        struct part *part = &c->parts[c->batch_parts[i]];
        err = dp_device_event_record(part->done, c->batch[i].link->stream);
        part->started = !err;
    }
    return err;
}

static int start_batch(struct nccl_comm *c)
{
    int err = 0;

    for (size_t i = 0, n; i < c->batch_count && !err; i += n) {
        n = take_group(c->batch + i, c->batch_count - i);
        err = start_group(c, i, n);
    }
    c->batch_count = 0;
    return err ? give_up(c, err) : 0;
}

static int start(struct dp_comm *comm, int peer, int channel, void *buf, size_t len, bool sends,
                 struct dp_request *req)
{
    struct nccl_comm *c = of(comm);
    struct dp_nccl_message message = {.buf = buf, .len = len};
    size_t part = 0;
    int err = check_abort(comm);

    if (!err)
        err = find_link(c, peer, channel, sends, &message.link);
    if (!err)
        err = dp_device_stream_wait(message.link->stream, c->after);
    if (!err)
        err = take_part(c, &part);
    if (!err)
        err = add_to_batch(c, &message, part);
    if (err)
        return err;
    *(struct request *)req = (struct request){.part = part};
    c->parts[part].req = req;
    c->parts[part].started = false;
    return c->in_batch ? 0 : start_batch(c);
}

static int nccl_isend(struct dp_comm *comm, int peer, int channel, uint64_t tag, const void *buf,
                      size_t len, struct dp_request *req)
{
    if (channel >= DP_CHANNELS)
        return refuse_part();
    if (!is_for_host(channel))
        return start(comm, peer, channel, (void *)(uintptr_t)buf, len, true, req);
    ((struct request *)req)->done = 0;
    return host_ops(comm)->isend(host_of(comm), host_rank(comm, peer), host_channel(comm, channel),
                                 tag, buf, len, req);
}

static int nccl_irecv(struct dp_comm *comm, int peer, int channel, uint64_t tag, void *buf,
                      size_t len, struct dp_request *req)
{
    if (channel >= DP_CHANNELS)
        return refuse_part();
    if (!is_for_host(channel))
        return start(comm, peer, channel, buf, len, false, req);
    ((struct request *)req)->done = 0;
    return host_ops(comm)->irecv(host_of(comm), host_rank(comm, peer), host_channel(comm, channel),
                                 tag, buf, len, req);
}

static int nccl_irecv_any(struct dp_comm *comm, int peer, int channel, void *buf, size_t room,
                          struct dp_request *req)
{
    if (channel >= DP_CHANNELS)
        return refuse_part();
    if (!is_for_host(channel))
        return dp_fail(DP_EUNSUPPORTED, "a receive of any tag by NCCL, whose messages have none");
    ((struct request *)req)->done = 0;
    return host_ops(comm)->irecv_any(host_of(comm), host_rank(comm, peer),
                                     host_channel(comm, channel), buf, room, req);
}

static int nccl_begin(struct dp_comm *comm)
{
    of(comm)->in_batch = true;
    return 0;
}

static int nccl_commit(struct dp_comm *comm)
{
    int err = check_abort(comm);

    of(comm)->in_batch = false;
    return err ? err : start_batch(of(comm));
}

/* ---- order with streams ---------------------------------------------------------------------- */

static int nccl_after(struct dp_comm *comm, struct dp_device_stream *stream)
{
    return dp_device_event_record(of(comm)->after, stream);
}

static int nccl_stream_wait(struct dp_comm *comm, struct dp_request *req,
                            struct dp_device_stream *stream)
{
    int err = check_abort(comm);

    if (err)
        return err;
    const struct part *part = part_of(of(comm), req);
    if (!part || !part->started)
        return dp_fail(DP_EINVAL, "a stream waits for a message that %s",
                       part ? "has not been committed" : "is not in a stream");
    return dp_device_stream_wait(stream, part->done);
}

/* ---- testing --------------------------------------------------------------------------------- */

static int nccl_progress(struct dp_comm *comm, int waiting_for)
{
    of(comm)->waiting_for = waiting_for;
    int err = host_ops(comm)->progress(host_of(comm), host_rank(comm, waiting_for));

    if (err || host_ops(comm)->aborted(host_of(comm), NULL)) {
        int aborted = check_abort(comm);
        return err ? err : aborted;
    }
    return check_links(comm);
}

static int nccl_test(struct dp_comm *comm, struct dp_request *req)
{
    struct part *part = part_of(of(comm), req);
    int err = check_abort(comm);

    if (err)
        return err;
    if (!part && ((struct request *)req)->done == mark_of(of(comm), req))
        return 0;
    if (!part)
        return host_ops(comm)->test(host_of(comm), req);
    err = dp_device_event_test(part->done);
    if (err != DP_EAGAIN) {
        part->req = NULL;
        if (!err)
            ((struct request *)req)->done = mark_of(of(comm), req);
        return err;
    }
    err = nccl_progress(comm, of(comm)->waiting_for);
    return err ? err : DP_EAGAIN;
}

/* Only messages of collectives are asked for, which are the host's. */
static bool nccl_is_done(struct dp_comm *comm, const struct dp_request *req)
{
    return host_ops(comm)->is_done(host_of(comm), req);
}

static void nccl_received(struct dp_comm *comm, const struct dp_request *req,
                          struct dp_received *out)
{
    const struct dp_comm *host = of(comm)->host;

    host->ops->received(host->world, req, out);
    for (int r = 0; host->ranks && r < host->size; r++)
        if (host->ranks[r] == out->peer) {
            out->peer = r;
            return;
        }
}

static void nccl_sleep(struct dp_comm *comm, int64_t until_ns)
{
    const int64_t soon_ns = dp_now_ns() + SLEEP_NS;

    host_ops(comm)->sleep(host_of(comm), until_ns < soon_ns ? until_ns : soon_ns);
}

/* Parts of it have no messages. */
static void nccl_close_channels(struct dp_comm *comm, int first, int count)
{
    (void)comm, (void)first, (void)count;
}

static int nccl_register(struct dp_comm *comm, void *ptr, size_t bytes)
{
    int err = check_abort(comm);

    return err ? err : dp_nccl_links_register(&of(comm)->links, ptr, bytes);
}

static void nccl_unregister(struct dp_comm *comm, void *ptr)
{
    check_abort(comm);
    dp_nccl_links_unregister(&of(comm)->links, ptr);
}

static int nccl_busy(struct dp_comm *comm, int64_t ns)
{
    return host_ops(comm)->busy(host_of(comm), ns);
}

static int64_t nccl_busy_until(struct dp_comm *comm)
{
    return host_ops(comm)->busy_until(host_of(comm));
}

/* ---- open and close -------------------------------------------------------------------------- */

static void nccl_close(struct dp_comm *comm)
{
    struct nccl_comm *c = of(comm);

    if (c->host) {
        check_abort(comm);
        dp_nccl_links_fini(&c->links);
    }
    for (size_t i = 0; i < c->part_count; i++)
        dp_device_event_free(c->parts[i].done);
    dp_device_event_free(c->after);
    dp_comm_close(c->host);
    free(c->batch_parts);
    free(c->batch);
    free(c->parts);
    free(c);
}

static const struct dp_comm_ops nccl_ops = {
    .name = "nccl",
    .caps = {.device_memory = true, .stream_ordered = true},
    .isend = nccl_isend,
    .irecv = nccl_irecv,
    .irecv_any = nccl_irecv_any,
    .received = nccl_received,
    .close_channels = nccl_close_channels,
    .test = nccl_test,
    .is_done = nccl_is_done,
    .progress = nccl_progress,
    .sleep = nccl_sleep,
    .begin = nccl_begin,
    .commit = nccl_commit,
    .after = nccl_after,
    .stream_wait = nccl_stream_wait,
    .register_memory = nccl_register,
    .unregister_memory = nccl_unregister,
    .busy = nccl_busy,
    .busy_until = nccl_busy_until,
    .abort = nccl_abort,
    .aborted = nccl_aborted,
    .reset = nccl_reset,
    .close = nccl_close,
};

static int open_links(struct nccl_comm *c, const struct dp_nccl_config *config)
{
    int err = dp_comm_split(c->given, 0, c->given->rank, &c->host);

    if (err)
        return err;
    err = dp_device_event_new(config->device, &c->after);
    if (!err)
        err = dp_nccl_links_init(&c->links, c->host, config);
    if (err)
        dp_nccl_links_abort(&c->links);
    return err;
}

/* Errors that all ranks have found together leave the host's communicator as it was. */
static bool is_common(int err)
{
    return err == DP_ENOENT || err == DP_EUNSUPPORTED || err == DP_EMISMATCH || err == DP_EABORTED;
}

int dp_comm_nccl_open_sized(struct dp_comm *host, const struct dp_nccl_config *config,
                            struct dp_comm **out, size_t size)
{
    DP_TAKE_KNOWN(dp_nccl_config, config, size);
    if (!host || !config || !config->device || !out)
        return dp_fail(DP_EINVAL, "an NCCL communicator without a %s",
                       !host     ? "host's communicator"
                       : !config ? "config"
                       : !out    ? "place for it"
                                 : "device");
    if (dp_device_dl(config->device).device_type != kDLCUDA)
        return dp_fail(DP_EINVAL, "an NCCL communicator on device %s: expected one of CUDA",
                       dp_device_name(config->device));
    struct nccl_comm *c = calloc(1, sizeof(*c));
    if (!c)
        return dp_fail(DP_ENOMEM, "no memory for an NCCL communicator");
    c->base = (struct dp_comm){.ops = &nccl_ops,
                               .rank = host->rank,
                               .size = host->size,
                               .world = &c->base,
                               .users = 1,
                               .contexts = 1,
                               .deadline_ns = host->deadline_ns,
                               .spin_ns = host->spin_ns,
                               .doing = host->world->doing};
    c->given = host;
    c->waiting_for = -1;
    int err = config_err ? config_err : open_links(c, config);
    if (!err) {
        *out = &c->base;
        return 0;
    }
    if (!is_common(err))
        dp_comm_abort(host, err, dp_last_error());
    nccl_close(&c->base);
    return err;
}
