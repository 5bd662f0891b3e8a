/* SPDX-License-Identifier: Apache-2.0
 *
 * trace.c - a process of the trace is a process of the job, a row is a communicator's queue, or what it
 * sends to, or receives from, a peer over a channel. Times are since 1970, so that the processes of a
 * job may share a file.
 */
#include "config.h"

#include "nccl-plugin/profiler/profiler.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/text.h"
#include "nccl-plugin/profiler/counters.h"
#include "nccl-plugin/options.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COMMS_MAX = 65536, PID_BITS = 22 };

/* A record's turn is 0 while it is written. */
static struct entry {
    _Atomic uint64_t turn;
    struct dpn_trace_record record;
} *entries; /* [room], a power of 2 */
static uint64_t room;
static _Atomic uint64_t next;
static pid_t owner; /* a forked child has nothing to write */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct dpn_profiled *comms; /* [comm_count], from 1 on */
static uint32_t comm_count;

/* ---- recording ------------------------------------------------------------------------------- */

/* Locked. */
static void make_room(void)
{
    const struct dpn_profiler_options *o = dpn_profiler_options();
    uint64_t n = 1;

    if (entries || !o->trace || !*o->trace)
        return;
    while (n < (uint64_t)o->trace_events)
        n *= 2;
    owner = getpid();
    room = n;
    entries = calloc(n, sizeof(*entries));
}

uint32_t dpn_trace_comm(const struct dpn_profiled *comm)
{
    uint32_t number = 0;

    pthread_mutex_lock(&lock);
    make_room();
    struct dpn_profiled *more =
        comm_count < COMMS_MAX ? realloc(comms, (comm_count + 1) * sizeof(*comms)) : NULL;
    if (more) {
        comms = more;
        comms[comm_count++] = *comm;
        number = comm_count;
    }
    pthread_mutex_unlock(&lock);
    return number;
}

void dpn_trace_add(const struct dpn_trace_record *record)
{
    if (!entries)
        return;
    const uint64_t turn = 1 + atomic_fetch_add_explicit(&next, 1, memory_order_relaxed);
    struct entry *e = &entries[turn & (room - 1)];

    atomic_store_explicit(&e->turn, 0, memory_order_relaxed);
    e->record = *record;
    atomic_store_explicit(&e->turn, turn, memory_order_release);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

struct writer {
    struct dp_text text;
    int64_t real_ns; /* of CLOCK_REALTIME, when CLOCK_MONOTONIC was 0 */
    unsigned pid;
    char host[128];
};

static void begin_event(struct writer *w)
{
    if (w->text.len)
        dp_text_adds(&w->text, ",\n");
}

static void put_name(struct writer *w, const char *what, unsigned row, const char *name)
{
    begin_event(w);
    dp_text_addf(&w->text,
                 "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%u,\"tid\":%u,\"args\":{\"name\":\"%s\"}}", what,
                 w->pid, row, name);
}

/* Rows of a process: every different kind, communicator, peer and channel. */
struct rows {
    int count, room;
    uint64_t *keys;
};

static uint64_t row_key(const struct dpn_trace_record *r)
{
    return r->kind == DPN_TRACE_QUEUED
               ? (uint64_t)r->comm << 40
               : dpn_profile_key(r->comm - 1u, r->peer, r->kind == DPN_TRACE_SEND, r->channel) |
                     UINT64_C(1) << 33;
}

static void name_row(struct writer *w, const struct dpn_trace_record *r, unsigned row)
{
    static const char *const ways[] = {"queue", "to", "from"};
    const char *rail = dpn_counters_rail(r->rail);
    char name[256], comm[32] = "another process's communicator";

    if (r->comm)
        snprintf(comm, sizeof(comm), "%016" PRIx64, comms[r->comm - 1].hash);
    if (r->kind == DPN_TRACE_QUEUED)
        snprintf(name, sizeof(name), "%s: calls", comm);
    else
        snprintf(name, sizeof(name), "%s: %s rank %d, channel %u%s%s", comm, ways[r->kind], r->peer,
                 r->channel, *rail ? ", " : "", rail);
    put_name(w, "thread_name", row, name);
}

/* Its number, from 1 on; 0: no memory. */
static unsigned find_row(struct writer *w, struct rows *rows, const struct dpn_trace_record *r)
{
    const uint64_t key = row_key(r);

    for (int i = rows->count - 1; i >= 0; i--)
        if (rows->keys[i] == key)
            return (unsigned)i + 1;
    if (rows->count == rows->room) {
        const int more = rows->room ? 2 * rows->room : 64;
        uint64_t *keys = realloc(rows->keys, (size_t)more * sizeof(*keys));
        if (!keys)
            return 0;
        rows->keys = keys;
        rows->room = more;
    }
    rows->keys[rows->count++] = key;
    name_row(w, r, (unsigned)rows->count);
    return (unsigned)rows->count;
}

static void put_us(struct writer *w, const char *name, int64_t ns)
{
    dp_text_addf(&w->text, ",\"%s\":%" PRId64 ".%03d", name, ns / 1000, (int)(ns % 1000));
}

static void put_args(struct writer *w, const struct dpn_trace_record *r)
{
    dp_text_addf(&w->text, ",\"args\":{\"bytes\":%" PRIu64 ",\"sequence\":%" PRIu64, r->bytes,
                 r->sequence);
    if (r->peer >= 0)
        dp_text_addf(&w->text, ",\"peer\":%d", r->peer);
    if (r->kind != DPN_TRACE_QUEUED) {
        dp_text_addf(&w->text, ",\"chunks\":%" PRIu64 ",\"rail\":\"%s\"", r->chunks,
                     dpn_counters_rail(r->rail));
        for (int i = 0; i < DPN_WAITS; i++)
            dp_text_addf(&w->text, ",\"wait_%s_us\":%" PRIu64,
                         dpn_wait_name((enum dpn_profile_wait)i), r->wait_ns[i] / 1000);
    }
    dp_text_adds(&w->text, "}}");
}

static void put_record(struct writer *w, struct rows *rows, const struct dpn_trace_record *r)
{
    const char *name = r->function < DPN_FUNCTIONS
                           ? dpn_function_name((enum dpn_function)r->function)
                           : "unknown";
    const unsigned row = find_row(w, rows, r);

    begin_event(w);
    dp_text_addf(&w->text, "{\"ph\":\"%s\",\"name\":\"%s\",\"cat\":\"%s\",\"pid\":%u,\"tid\":%u",
                 r->kind == DPN_TRACE_QUEUED ? "i\",\"s\":\"t" : "X", name,
                 r->kind == DPN_TRACE_QUEUED ? "call"
                 : r->kind == DPN_TRACE_SEND ? "send"
                                             : "receive",
                 w->pid, row);
    put_us(w, "ts", w->real_ns + r->start_ns);
    if (r->kind != DPN_TRACE_QUEUED)
        put_us(w, "dur", r->end_ns - r->start_ns);
    put_args(w, r);
}

/* ---- together -------------------------------------------------------------------------------- */

/* Numbers of processes are a host's own: the host's name goes in front of them. */
static void begin_writer(struct writer *w)
{
    struct timespec real;
    uint32_t hash = 0;
    char name[256];

    clock_gettime(CLOCK_REALTIME, &real);
    w->real_ns = real.tv_sec * DP_NS_PER_S + real.tv_nsec - dp_now_ns();
    gethostname(name, sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    dpn_counters_name(w->host, sizeof(w->host), name);
    for (const char *c = w->host; *c; c++)
        hash = hash * 31 + (unsigned char)*c;
    w->pid = (hash & 0x1ff) << PID_BITS | ((unsigned)getpid() & ((1u << PID_BITS) - 1));
    snprintf(name, sizeof(name), "rank %d of %d, %s, process %d", comm_count ? comms[0].rank : 0,
             comm_count ? comms[0].ranks : 0, w->host, (int)getpid());
    put_name(w, "process_name", 0, name);
}

/* Oldest first. */
static void put_records(struct writer *w)
{
    const uint64_t end = atomic_load_explicit(&next, memory_order_relaxed);
    struct rows rows = {0};

    for (uint64_t turn = end > room ? end - room + 1 : 1; turn <= end; turn++) {
        struct entry *e = &entries[turn & (room - 1)];
        const struct dpn_trace_record r = e->record;
        if (atomic_load_explicit(&e->turn, memory_order_acquire) == turn)
            put_record(w, &rows, &r);
    }
    free(rows.keys);
}

/* ---- the file -------------------------------------------------------------------------------- */

/* One JSON object whose array grows by what each process adds, and which is complete after every one. */
static const char head[] = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n";
static const char tail[] = "\n]}\n";
enum { HEAD_LEN = sizeof(head) - 1, TAIL_LEN = sizeof(tail) - 1, LOCK_S = 10, LOCK_PAUSE_NS = 1000000 };

/* 0 or an errno. */
static int lock_file(int fd)
{
    const int64_t until_ns = dp_now_ns() + LOCK_S * DP_NS_PER_S;
    const struct timespec pause = {.tv_nsec = LOCK_PAUSE_NS};

    while (flock(fd, LOCK_EX | LOCK_NB)) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return errno;
        if (dp_now_ns() > until_ns)
            return ETIMEDOUT;
        nanosleep(&pause, NULL);
    }
    return 0;
}

/* Where the tail of the array is; 0: the file is empty; -1: it is no trace. */
static off_t find_tail(int fd)
{
    char begin[HEAD_LEN], end[TAIL_LEN];
    const off_t len = lseek(fd, 0, SEEK_END);

    if (!len)
        return 0;
    const bool is_trace = len >= HEAD_LEN + TAIL_LEN &&
                          pread(fd, begin, HEAD_LEN, 0) == HEAD_LEN &&
                          pread(fd, end, TAIL_LEN, len - TAIL_LEN) == TAIL_LEN &&
                          !memcmp(begin, head, HEAD_LEN) && !memcmp(end, tail, TAIL_LEN);
    return is_trace ? len - TAIL_LEN : -1;
}

/* NULL or why not. */
static const char *add_to(int fd, const char *text, size_t len)
{
    const off_t at = find_tail(fd);
    const char *before = at ? ",\n" : head;

    if (at < 0)
        return "it is no trace that can be added to: expected one of dualpipe, whole";
    const struct iovec parts[] = {{(void *)(uintptr_t)before, strlen(before)},
                                  {(void *)(uintptr_t)text, len},
                                  {(void *)(uintptr_t)tail, TAIL_LEN}};
    const size_t all = parts[0].iov_len + len + TAIL_LEN;
    const ssize_t n = pwritev(fd, parts, 3, at);
    return n < 0 ? dp_errno_text(errno) : (size_t)n != all ? "only a part of it" : NULL;
}

/* What fails is warned of; a file that is no such trace stays as it is. */
static void add_to_file(const char *path, const char *text, size_t len)
{
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    const int err = fd < 0 ? errno : lock_file(fd);
    const char *why = err ? dp_errno_text(err) : add_to(fd, text, len);

    if (why)
        dp_log(DP_LOG_WARN, "DUALPIPE_PROFILER_TRACE=%s: not written: %s", path, why);
    if (fd >= 0)
        close(fd);
}

void dpn_trace_write(void)
{
    struct writer w = {.pid = 0};
    char *text;
    size_t len;

    pthread_mutex_lock(&lock);
    const bool is_due = entries && owner == getpid();
    if (is_due) {
        begin_writer(&w);
        put_records(&w);
        if (!dp_text_take(&w.text, &text, &len)) {
            add_to_file(dpn_profiler_options()->trace, text, len);
            free(text);
        }
        owner = -1; /* once */
    }
    pthread_mutex_unlock(&lock);
}
