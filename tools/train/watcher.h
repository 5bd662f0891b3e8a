/* SPDX-License-Identifier: Apache-2.0
 *
 * watcher.h - what is told of a job while it runs: to `dualpipe stat` by the process's page, and
 * which ranks and links hold the others up (dp_watch).
 */
#ifndef DP_TRAIN_WATCHER_H
#define DP_TRAIN_WATCHER_H

#include "train/page.h"
#include "train/report.h"
#include "train/timeline.h"

enum { WATCHER_SLOW = 8 };

/* Zeroed memory watches nothing. */
struct watcher {
    const struct settings *settings;
    const struct dp_trainer_parts *parts;
    struct dp_watch *watch;     /* NULL: a rank alone, or replicas that survive each other */
    struct dp_rank_pace *paces; /* [processes] by replica and pipeline rank */
    struct page page;
    struct train_page_step now;
    struct dp_slow slow[WATCHER_SLOW];
    int slow_count;
    int64_t stepped_ns; /* the last step ended */
};

/* comm: of all processes, opened as `how` says; NULL: alone. Collective. The parts and the
 * settings must stay. */
int watcher_init(struct watcher *w, const struct settings *s, const struct dp_trainer_parts *parts,
                 struct dp_comm *comm, const struct dp_comm_config *how);
/* After the pipeline of the parts, which shows on the page what it does. */
void watcher_fini(struct watcher *w);

/* After a step, whose paces are the trainer's, by rank of `comm`. Whether the links want a timeline
 * (timeline_measure): the same on all ranks. */
bool watcher_paces(struct watcher *w, const struct dp_rank_pace *paces);
/* And when that has been seen: tell. told(user, text, begun) is called for all that is slow since,
 * or no longer. */
void watcher_tell(struct watcher *w, const struct progress *p,
                  void (*told)(void *user, const struct dp_slow *slow, bool begun), void *user);

#endif
