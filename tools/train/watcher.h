/* SPDX-License-Identifier: Apache-2.0
 *
 * watcher.h - what is told of a job while it runs: to `dualpipe stat` by the process's page, and
 * which ranks and links hold the others up (dp_watch); and what its last step looked like.
 */
#ifndef DP_TRAIN_WATCHER_H
#define DP_TRAIN_WATCHER_H

#include "stat/train_page.h"
#include "train/report.h"

enum { WATCHER_SLOW = 8 };

/* The page (stat/train_page.h) by which `dualpipe stat` sees this process; zeroed memory has none. */
struct page {
    struct train_page *at; /* NULL: none could be made, or none is wanted */
    char path[4096];
    uint64_t use; /* of its first row: ranks are in the order of their jobs */
    int fd;       /* of the file, whose lock says that this process lives */
};

/* Zeroed memory watches nothing. */
struct watcher {
    const struct settings *settings;
    const struct dp_trainer_parts *parts;
    struct dp_watch *watch;     /* NULL: a rank alone, or replicas that survive each other */
    struct dp_rank_pace *paces; /* [processes] by replica and pipeline rank */
    struct page page;
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
 * (timeline_take): the same on all ranks. */
bool watcher_paces(struct watcher *w, const struct dp_rank_pace *paces);
/* And when that has been seen: tell. told(user, text, begun) is called for all that is slow since,
 * or no longer. */
void watcher_tell(struct watcher *w, const struct progress *p,
                  void (*told)(void *user, const struct dp_slow *slow, bool begun), void *user);

/* Collective: collect the last step on rank 0 and measure it, show `watch` (or NULL) its links, and
 * write `files` (or NULL), settings.drawn. One that cannot be written, as on a full disk, costs neither
 * the others nor the figures: `unwritten` says so. On other ranks *times becomes NAN. DP_ENOMEM, or the
 * errors of dp_recorder_gather. */
int timeline_take(const struct dp_trainer_parts *p, const char *const *files,
                  struct dp_watch *watch, struct step_times *times);

#endif
