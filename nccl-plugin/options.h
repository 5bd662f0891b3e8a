/* SPDX-License-Identifier: Apache-2.0
 *
 * options.h - what can be set of the plugins: DUALPIPE_NET_*, DUALPIPE_PROFILER_*, DUALPIPE_TUNER_*.
 */
#ifndef DPN_OPTIONS_H
#define DPN_OPTIONS_H

#include "base/options.h"

extern const struct dp_option_area dpn_net_option_area, dpn_profiler_option_area,
    dpn_tuner_option_area;

/* ---- net ------------------------------------------------------------------------------------- */

enum { DPN_MAX_EAGER = 65536 }; /* bytes of a message that does not wait for its receive */

/* Of a kind of connections; -1: nothing of its own. */
struct dpn_class {
    int64_t traffic_class, service_level;
};

struct dpn_net_options {
    const char *wire; /* auto, shm, tcp, verbs */
    int64_t devices;  /* at most */
    struct dpn_class pipeline, gradient;
    int64_t stripe_bytes;
    int64_t eager_bytes;
    bool eager_gpu; /* also where receives are in memory of GPUs */
    int64_t timeout_s;
    int64_t slice_us; /* see net/slice.h; 0: leave them as they are */
    bool profile;         /* tell NCCL's profiler the device of each message */
    bool stat;            /* count, for `dualpipe stat` */
    const char *stat_dir; /* NULL: see net/stat_page.h */
    bool has_force_flush; /* no variable: NCCL's version can be told that a device needs flushes */
};

/* ---- what a connection is for ---------------------------------------------------------------- */

enum dpn_traffic { DPN_TRAFFIC_ANY, DPN_TRAFFIC_PIPELINE, DPN_TRAFFIC_GRADIENT };

/* ops: a bit for each of NCCL's functions, all of them: not said. Pipeline if there are only sends,
 * receives and what consists of them. */
enum dpn_traffic dpn_traffic_of(uint32_t ops);

/* What the options of a kind say, else (-1) what the operator asked of NCCL, else (-1) what the
 * communicator was given; 0 if that is out of 0 to most. */
int dpn_traffic_choose(int64_t by_kind, int by_operator, int by_communicator, int most);

/* ---- profiler -------------------------------------------------------------------------------- */

struct dpn_profiler_options {
    const char *traffic, *trace; /* NULL: none */
    int64_t trace_events;        /* that are kept */
    bool stat;                   /* count, for `dualpipe stat` */
    const char *stat_dir;        /* NULL: see profiler/page.h */
};

/* Those of this process, read once; with a bad one, which is logged, all are as if nothing was set. */
const struct dpn_profiler_options *dpn_profiler_options(void);

/* ---- tuner ----------------------------------------------------------------------------------- */

struct dpn_tuner_options {
    const char *table;      /* path; NULL or empty: none */
    const char *registered; /* ignore, trust */
    const char *links;      /* for dp_tuning_links_parse, or "placement"; NULL or empty: none */
    bool is_strict;
};

#endif
