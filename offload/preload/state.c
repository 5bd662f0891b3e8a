/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h" /* GNU extensions: program_invocation_short_name */

#include "offload/preload/state.h"

#include "offload/preload/real.h"

#include "base/fail.h"
#include "base/launchers.h"
#include "base/text.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

/* Of this process alone, or in a page that others read. */
static struct dpo_page own;
static struct dp_page owned = {.kind = &dpo_kind, .own = &own, .at = &own};
_Thread_local int dpo_depth;

static inline struct dpo_row *get_row(void)
{
    return ((struct dpo_page *)owned.at)->rows;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct dpo_preload_options options;
static size_t least_copy;
static atomic_bool is_on;

static void read_options(void)
{
    /* The loader drops most preloads of a setuid program, but not those of its trusted directories.
     */
    if (getauxval(AT_SECURE) || dp_options_read(&dpo_preload_option_area, &options))
        return;
    least_copy = options.pace ? 1 : options.stage ? (size_t)options.stage_min : SIZE_MAX;
    pthread_mutex_lock(&dp_page_lock);
    if (options.stat) {
        (void)dp_page_ensure(&owned, true, options.stat_dir);
        dp_page_set(&get_row()->use, 2);
    }
    pthread_mutex_unlock(&dp_page_lock);
    atomic_store_explicit(&is_on, true, memory_order_release);
}

const struct dpo_preload_options *dpo_preload_options(void)
{
    if (atomic_load_explicit(&is_on, memory_order_acquire))
        return &options; /* the hot path */
    pthread_once(&once, read_options);
    return atomic_load_explicit(&is_on, memory_order_acquire) ? &options : NULL;
}

size_t dpo_least_copy(void)
{
    return dpo_preload_options() ? least_copy : SIZE_MAX;
}

void dpo_count(enum dpo_value counter, uint64_t add)
{
    atomic_fetch_add_explicit(&get_row()->values[counter], add, memory_order_relaxed);
}

uint64_t dpo_counted(enum dpo_value counter)
{
    return atomic_load_explicit(&get_row()->values[counter], memory_order_relaxed);
}

/* ---- the report ------------------------------------------------------------------------------ */

static double percent(uint64_t part, uint64_t whole)
{
    return whole ? 100.0 * (double)part / (double)whole : 0;
}

static int write_head(char *out, size_t len)
{
    const char *rank = dp_foreign_variable("RANK");

    return dp_snprintf(out, len, "dualpipe-preload: %.255s, process %d%s%.32s\n",
                       program_invocation_short_name, (int)getpid(), rank ? ", rank " : "",
                       rank ? rank : "");
}

/* A runtime within the program asks the driver for its functions by dlsym, past this library. */
static const char *unseen_text(void)
{
    return dpo_is_loaded("libcudart")
               ? ""
               : "  not seen       calls of a CUDA runtime that is linked statically, as no libcudart "
                 "is loaded (nvcc -cudart shared loads it)\n";
}

static int write_report(char *out, size_t len)
{
    const uint64_t known = dpo_counted(DPO_PAGES) - dpo_counted(DPO_PAGES_UNKNOWN);
    const int head = write_head(out, len);

    return head + dp_snprintf(
        out + head, len - (size_t)head,
        "  pinned memory  %" PRIu64 " calls, %" PRIu64 " bytes; %.1f %% of %" PRIu64
        " pages on the nearest node, %" PRIu64 " pages not known, %" PRIu64 " calls not placed\n"
        "  copies         to the device %" PRIu64 " (%" PRIu64 " bytes), to the host %" PRIu64
        " (%" PRIu64 " bytes), other %" PRIu64 " (%" PRIu64 " bytes)\n"
        "  staged         to the device %" PRIu64 " (%" PRIu64 " bytes), to the host %" PRIu64
        " (%" PRIu64 " bytes); %" PRIu64 " pageable copies left to CUDA; %" PRIu64
        " paced (%" PRIu64 " bytes)\n%s",
        dpo_counted(DPO_PINNED_CALLS), dpo_counted(DPO_PINNED_BYTES),
        percent(dpo_counted(DPO_PAGES_ON_NODE), known), known, dpo_counted(DPO_PAGES_UNKNOWN),
        dpo_counted(DPO_WITHOUT_NODE), dpo_counted(DPO_COPIES_TO_DEVICE),
        dpo_counted(DPO_COPIES_TO_DEVICE_BYTES), dpo_counted(DPO_COPIES_TO_HOST),
        dpo_counted(DPO_COPIES_TO_HOST_BYTES), dpo_counted(DPO_COPIES_OTHER),
        dpo_counted(DPO_COPIES_OTHER_BYTES), dpo_counted(DPO_STAGED_TO_DEVICE),
        dpo_counted(DPO_STAGED_TO_DEVICE_BYTES), dpo_counted(DPO_STAGED_TO_HOST),
        dpo_counted(DPO_STAGED_TO_HOST_BYTES), dpo_counted(DPO_NOT_STAGED), dpo_counted(DPO_PACED),
        dpo_counted(DPO_PACED_BYTES), unseen_text());
}

/* Nothing was called, but CUDA's driver is there, and no runtime that could be seen. */
static int write_unseen(char *out, size_t len)
{
    const int head = write_head(out, len);

    return head + dp_snprintf(out + head, len - (size_t)head,
                              "  nothing seen   CUDA's driver is loaded, and no call of it came here\n"
                              "%s", unseen_text());
}

enum { REPORT_LEN = 2048 };

static void say(int (*write)(char *out, size_t len), const char *path)
{
    char text[REPORT_LEN];
    const int len = write(text, sizeof(text));

    dp_append("DUALPIPE_PRELOAD_REPORT", path, text,
              (size_t)len < sizeof(text) ? (size_t)len : sizeof(text) - 1);
}

__attribute__((destructor)) static void report(void)
{
    const bool was_called = atomic_load_explicit(&is_on, memory_order_acquire);

    if (!was_called && (!dpo_is_loaded("libcuda.so") || dpo_is_loaded("libcudart")))
        return;
    const struct dpo_preload_options *asked = dpo_preload_options();
    const char *path = !asked                             ? NULL
                       : asked->report && *asked->report  ? asked->report
                       : asked->stat && !was_called       ? "-" /* for `dualpipe run` */
                                                          : NULL;
    if (path)
        say(was_called ? write_report : write_unseen, path);
}
