/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_cuda_impl.h - the stand-in inside: one lock over everything, one struct a kind of handle.
 */
#ifndef DP_TESTS_FAKE_CUDA_IMPL_H
#define DP_TESTS_FAKE_CUDA_IMPL_H

#include "fakes/fake_cuda.h"

#include <pthread.h>

#define EXPORT __attribute__((visibility("default")))

struct buffer {
    struct buffer *next;
    char *start;
    size_t bytes;
};

struct CUctx_st {
    int retained;
    CUresult sticky;
    char *memory; /* no access */
    char *reach;  /* the same bytes, for us */
    struct buffer *buffers;
};

struct work {
    enum { WORK_COPY, WORK_ZERO, WORK_HOST, WORK_WAIT, WORK_WRITE, WORK_AWAIT } kind;
    char *dst;
    const char *src;
    size_t bytes;
    unsigned char value;
    CUhostFn fn;
    void *user;
    CUstream other; /* WORK_WAIT: until its done is count */
    uint64_t count; /* the value of WORK_WRITE and WORK_AWAIT, which is at dst */
    struct work *next;
};

/* Streams stay allocated, as events may refer to them. */
struct CUstream_st {
    CUcontext context;
    struct CUstream_st *next_all;
    bool destroyed;
    int priority;
    uint64_t given, done;
    struct work *first, **last;
};

/* Listed, so that one that was never destroyed is alive and not lost. */
struct CUevent_st {
    struct CUevent_st *next_all;
    CUcontext context;
    CUstream stream; /* NULL: never recorded */
    uint64_t count;
};

struct faults {
    char function[40]; /* "": any */
    int calls;         /* until it strikes; 0: not armed */
    CUresult call_result;
    int works;
    CUresult work_result;
};

/* What the lock guards; `change` is broadcast whenever a stream may be able to go on. */
struct fake_state {
    pthread_mutex_t lock;
    pthread_cond_t change;
    struct CUctx_st contexts[FAKE_CUDA_DEVICES];
    CUstream streams;
    CUevent events;
    int alive;
    bool initialised, held;
    uint64_t shake_state;
    unsigned shake_most_us;
    struct faults fault;
};
extern struct fake_state fake;

/* Every call begins and ends with these: take the lock; the error to return at once, if any. */
CUresult fake_begin(const char *function, bool needs_context);
CUresult fake_end(CUresult result);

#define BEGIN(needs_context)                                                                       \
    CUresult result = fake_begin(__func__, needs_context);                                         \
    if (result != CUDA_SUCCESS)                                                                    \
        return fake_end(result);

/* The calling thread's current context; NULL: none. */
CUcontext fake_current(void);

/* Streams with work that is not done; with the lock. */
int fake_busy(void);

/* Reserve a device's memory. */
bool fake_map_memory(CUcontext context);
/* Host memory, or inside a live buffer of the context. */
bool fake_accessible(CUcontext context, const void *ptr, size_t bytes);
/* Where we can read and write what is at ptr. */
char *fake_reach(const void *ptr);

#endif
