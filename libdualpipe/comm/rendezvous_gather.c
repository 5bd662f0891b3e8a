/* SPDX-License-Identifier: Apache-2.0
 *
 * rendezvous_gather.c - the one thing that all ranks of a rendezvous do together: each hands in its
 * endpoint, and gets those of all. A rank that has the table knows that all others have come.
 */
#include "comm/rendezvous.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

static bool have_all_come(const struct dp_rendezvous *rv)
{
    for (int i = 0; i < rv->size; i++)
        if (rv->came[i] != rv->gather)
            return false;
    return true;
}

/* The gather has failed, on all ranks for one reason. */
static int fail_gather(struct dp_rendezvous *rv, int rank, int error, const char *text)
{
    struct dp_abort why = {.rank = rank, .error = error};

    snprintf(why.text, sizeof(why.text), "%s", text);
    struct dp_rendezvous_message m = dp_rendezvous_record(rv, DP_RENDEZVOUS_FAILED, &why);
    m.count = rv->gather;
    dp_rendezvous_tell_all(rv, &m);
    return dp_fail(error, "%s", why.text);
}

static int report_missing(struct dp_rendezvous *rv)
{
    struct dp_text t = {0};
    int first = -1;

    for (int i = 0; i < rv->size; i++)
        if (rv->came[i] != rv->gather) {
            dp_text_addf(&t, "%s%d", t.len ? ", " : "", i);
            first = first < 0 ? i : first;
        }
    char text[200];
    dp_snprintf(text, sizeof(text), "no message from rank %s within %.1f s", t.data ? t.data : "?",
                (double)rv->timeout_ns / DP_NS_PER_S);
    dp_text_fini(&t);
    return fail_gather(rv, first, DP_ETIMEDOUT, text);
}

/* The root's look at the gather: DP_EAGAIN while it may still succeed. */
static int check_gather(struct dp_rendezvous *rv, bool anew, int64_t until_ns)
{
    struct dp_abort why;
    char text[sizeof(why.text)];

    for (int i = 1; i < rv->size; i++)
        if (rv->peers[i].is_gone) {
            if (rv->left[i])
                snprintf(text, sizeof(text), "rank %d has left the group", i);
            else
                dp_rendezvous_describe_loss(&rv->peers[i], i, text, sizeof(text));
            return fail_gather(rv, i, DP_ECOMM, text);
        }
    if (!anew && dp_abort_record_get(&rv->abort_record, &why))
        return fail_gather(rv, why.rank, why.error, why.text);
    if (have_all_come(rv))
        return 0;
    if (rv->interrupted)
        return fail_gather(rv, 0, rv->interrupted, "rank 0 was interrupted");
    return dp_now_ns() > until_ns ? report_missing(rv) : DP_EAGAIN;
}

static void send_table(struct dp_rendezvous *rv, int64_t until_ns)
{
    const uint64_t tag = (uint64_t)rv->gather << 32 | DP_RENDEZVOUS_TABLE;
    const size_t bytes = (size_t)rv->size * sizeof(*rv->endpoints);
    bool sending = true;

    memcpy(rv->table, rv->endpoints, bytes); /* endpoints for the next gather may come meanwhile */
    for (int i = 1; i < rv->size; i++)
        dp_wire_isend(rv->peers[i].wire, tag, rv->table, bytes, &rv->peers[i].table);
    while (sending && dp_now_ns() < until_ns) {
        sending = false;
        for (int i = 1; i < rv->size; i++)
            sending |= rv->peers[i].table.status == DP_EAGAIN;
        if (sending)
            dp_rendezvous_sleep(rv);
    }
}

static int gather_at_root(struct dp_rendezvous *rv, const struct dp_endpoint *mine, bool anew,
                          int64_t until_ns)
{
    int err;

    rv->endpoints[0] = *mine;
    rv->came[0] = rv->gather;
    while ((err = check_gather(rv, anew, until_ns)) == DP_EAGAIN)
        dp_rendezvous_sleep(rv);
    if (err)
        return err;
    dp_rendezvous_begin_epoch(rv);
    send_table(rv, until_ns);
    return 0;
}

static int fail_without_root(const struct dp_rendezvous *rv)
{
    char text[sizeof(rv->failure.text)];

    if (rv->left[0])
        return dp_fail(DP_ECOMM, "rank 0 has left the group");
    dp_rendezvous_describe_loss(&rv->peers[0], 0, text, sizeof(text));
    return dp_fail(DP_ECOMM, "%s", text);
}

static int gather_at_member(struct dp_rendezvous *rv, const struct dp_endpoint *mine,
                            int64_t until_ns)
{
    const struct dp_rendezvous_message m = {
        .kind = DP_RENDEZVOUS_ENDPOINT, .count = rv->gather, .rank = rv->rank, .endpoint = *mine};
    int err = 0;

    rv->failure.error = 0;
    dp_rendezvous_tell(&rv->peers[0], &m);
    while (rv->epoch != rv->gather && !rv->failure.error && !err) {
        if (rv->peers[0].is_gone || rv->left[0])
            err = fail_without_root(rv);
        else if (rv->interrupted)
            err = rv->interrupted;
        else if (dp_now_ns() > until_ns)
            err = dp_fail(DP_ETIMEDOUT, "no message from rank 0 within %.1f s",
                          (double)rv->timeout_ns / DP_NS_PER_S);
        else
            dp_rendezvous_sleep(rv);
    }
    if (rv->failure.error)
        err = dp_fail(rv->failure.error, "%s", rv->failure.text);
    return err;
}

int dp_rendezvous_gather(struct dp_rendezvous *rv, const struct dp_endpoint *mine, bool anew,
                         int64_t until_ns)
{
    pthread_mutex_lock(&rv->lock);
    rv->gather++;
    rv->is_gathering = rv->polls = true;
    rv->interrupted = 0;
    int err = rv->rank ? gather_at_member(rv, mine, until_ns + DP_NS_PER_S)
                       : gather_at_root(rv, mine, anew, until_ns);
    rv->is_gathering = rv->polls = false;
    pthread_mutex_unlock(&rv->lock);
    return err;
}
