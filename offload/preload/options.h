/* SPDX-License-Identifier: Apache-2.0
 *
 * options.h - DUALPIPE_PRELOAD_*: what the preload library does. Read at the first call of CUDA
 * that it sees, and where a rank begins with BIND; another process never reads them.
 */
#ifndef DPO_PRELOAD_OPTIONS_H
#define DPO_PRELOAD_OPTIONS_H

#include "base/options.h"

struct dpo_preload_options {
    bool pinned;           /* place pinned memory */
    bool check;            /* count where its pages are */
    int64_t node;          /* instead of the nearest; -1: the nearest */
    bool bind;             /* ranks, as they begin */
    bool stage;            /* copies of pageable memory */
    int64_t stage_min;     /* bytes of the smallest one */
    int64_t stage_threads; /* that copy, the caller among them; 0: by the processors */
    bool stat;             /* count where others can read it */
    const char *stat_dir;  /* NULL: where the net plugin does as a rule */
    bool pace;             /* copies of pinned memory give way to the network */
    int64_t pace_mbs;      /* MB/s that both have together; 0: not known */
    const char *pace_nics; /* "mlx5_0,mlx5_1" on the same switch; NULL: all */
    const char *report;    /* NULL: none */
    const char *root;
};

extern const struct dp_option_area dpo_preload_option_area;

#endif
