/* SPDX-License-Identifier: Apache-2.0
 *
 * star_gather.c - the one thing that all ranks of a star do together: each hands in its card, and
 * gets those of all. Who has the table knows that all others have come.
 */
#include "comm/star.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/number.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

void dp_star_begin_epoch(struct dp_star *star)
{
    star->epoch = star->gather;
    for (int i = 0; i < star->size; i++)
        atomic_store(&star->waiting_for[i], -1);
    dp_blame_clear(&star->blame);
}

static bool have_all_come(const struct dp_star *star)
{
    for (int i = 0; i < star->size; i++)
        if (star->came[i] != star->gather)
            return false;
    return true;
}

/* The gather has failed, on all ranks for one reason. */
static int fail_gather(struct dp_star *star, int rank, int error, const char *text)
{
    struct dp_abort why = {.rank = rank, .error = error};

    snprintf(why.text, sizeof(why.text), "%s", text);
    struct dp_star_message m = dp_star_record(star, DP_STAR_FAILED, &why);
    m.count = star->gather;
    dp_star_tell_all(star, &m);
    return dp_fail(error, "%s", why.text);
}

static int say_missing(struct dp_star *star)
{
    struct dp_text t = {0};
    int first = -1;

    for (int i = 0; i < star->size; i++)
        if (star->came[i] != star->gather) {
            dp_text_addf(&t, "%s%d", t.len ? ", " : "", i);
            first = first < 0 ? i : first;
        }
    char text[200];
    dp_snprintf(text, sizeof(text), "no word from rank %s within %.1f s", t.data ? t.data : "?",
                (double)star->timeout_ns / DP_NS_PER_S);
    dp_text_fini(&t);
    return fail_gather(star, first, DP_ETIMEDOUT, text);
}

/* The root's look at the gather: DP_EAGAIN while it may still succeed. */
static int check_gather(struct dp_star *star, bool anew, int64_t until_ns)
{
    struct dp_abort why;
    char text[64];

    for (int i = 1; i < star->size; i++)
        if (star->peers[i].is_gone) {
            snprintf(text, sizeof(text), "rank %d %s", i,
                     star->left[i] ? "has left the group" : "is gone: its process has ended");
            return fail_gather(star, i, DP_ECOMM, text);
        }
    if (!anew && dp_blame_get(&star->blame, &why))
        return fail_gather(star, why.rank, why.error, why.text);
    if (have_all_come(star))
        return 0;
    return dp_now_ns() > until_ns ? say_missing(star) : DP_EAGAIN;
}

static void send_table(struct dp_star *star, int64_t until_ns)
{
    const uint64_t tag = (uint64_t)star->gather << 32 | DP_STAR_TABLE;
    const size_t bytes = (size_t)star->size * sizeof(*star->cards);
    bool sending = true;

    memcpy(star->table, star->cards, bytes); /* cards for the next gather may come meanwhile */
    for (int i = 1; i < star->size; i++)
        dp_wire_isend(star->peers[i].wire, tag, star->table, bytes, &star->peers[i].table);
    while (sending && dp_now_ns() < until_ns) {
        sending = false;
        for (int i = 1; i < star->size; i++)
            sending |= star->peers[i].table.status == DP_EAGAIN;
        if (sending)
            dp_star_sleep(star);
    }
}

static int gather_at_root(struct dp_star *star, const struct dp_card *mine, bool anew,
                          int64_t until_ns)
{
    int err;

    star->cards[0] = *mine;
    star->came[0] = star->gather;
    while ((err = check_gather(star, anew, until_ns)) == DP_EAGAIN)
        dp_star_sleep(star);
    if (err)
        return err;
    dp_star_begin_epoch(star);
    send_table(star, until_ns);
    return 0;
}

static int gather_at_member(struct dp_star *star, const struct dp_card *mine, int64_t until_ns)
{
    const struct dp_star_message m = {
        .kind = DP_STAR_CARD, .count = star->gather, .rank = star->rank, .card = *mine};
    int err = 0;

    star->failure.error = 0;
    dp_star_tell(&star->peers[0], &m);
    while (star->epoch != star->gather && !star->failure.error && !err) {
        if (star->peers[0].is_gone)
            err = dp_fail(DP_ECOMM, "rank 0 is gone: its process has ended");
        else if (dp_now_ns() > until_ns)
            err = dp_fail(DP_ETIMEDOUT, "no word from rank 0 within %.1f s",
                          (double)star->timeout_ns / DP_NS_PER_S);
        else
            dp_star_sleep(star);
    }
    if (star->failure.error)
        err = dp_fail(star->failure.error, "%s", star->failure.text);
    return err;
}

int dp_star_gather(struct dp_star *star, const struct dp_card *mine, bool anew, int64_t until_ns)
{
    pthread_mutex_lock(&star->lock);
    star->gather++;
    star->is_gathering = true;
    int err = star->rank ? gather_at_member(star, mine, until_ns + DP_NS_PER_S)
                         : gather_at_root(star, mine, anew, until_ns);
    star->is_gathering = false;
    pthread_mutex_unlock(&star->lock);
    return err;
}
