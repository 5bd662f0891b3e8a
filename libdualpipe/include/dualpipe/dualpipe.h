/* SPDX-License-Identifier: Apache-2.0
 *
 * dualpipe.h - what every other header of libdualpipe stands on: the version, the error
 * vocabulary, where messages go.
 *
 * Errors. A function that can fail returns 0 or a negative errno out of the short list below, and
 * writes its outputs only on success. The function that first finds something wrong describes it once:
 * the sentence, which names what was wrong and what was expected, goes to the log and stays
 * readable through dp_last_error() in the thread that called.
 *
 * Threads. Objects of this library are not locked: one thread at a time may use one object, and
 * different threads may use different objects at once. Exceptions are named where they occur.
 */
#ifndef DUALPIPE_DUALPIPE_H
#define DUALPIPE_DUALPIPE_H

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DP_PUBLIC __attribute__((visibility("default")))
#define DP_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* Structs that grow. A function that is declared by one of these takes a pointer to a struct to which
 * later releases may append members, and tells the library its size: name(...) is inline, and the symbol
 * is name_sized(..., size), for bindings. Of what is given to the library, bytes that it does not know
 * must be zero: DP_EINVAL. Of what it fills in, it writes what the caller has room for, and zeros what
 * it does not know. So programs and libraries of different releases go together. Others keep their size:
 * tables of callbacks and lists of options end in reserved words for what may come, values (a shape, an
 * op) do not. What callbacks are handed may grow at its end. Members called reserved are to be zero.
 * Source: openat2(2) of Linux. */
#define DP_SIZED(name, args, ...)                                                                     \
    DP_PUBLIC int name##_sized(__VA_ARGS__, size_t size);                                             \
    static inline int name(__VA_ARGS__)                                                               \
    {                                                                                                 \
        return name##_sized args;                                                                     \
    }                                                                                                 \
    struct dp_sized
#define DP_SIZED_REPORT(name, args, ...)                                                              \
    DP_PUBLIC void name##_sized(__VA_ARGS__, size_t size);                                            \
    static inline void name(__VA_ARGS__)                                                              \
    {                                                                                                 \
        name##_sized args;                                                                            \
    }                                                                                                 \
    struct dp_sized

#define DP_VERSION_MAJOR 0
#define DP_VERSION_MINOR 1
#define DP_VERSION_PATCH 0

/* "0.1.0": the version of the library that is loaded (the macros say which one was compiled
 * against). */
DP_PUBLIC const char *dp_version(void);

/* For programs that may be loaded with another release, as bindings in other languages: is this
 * library's struct of that name, any that a public header defines, of that size, or one that grows? Ask
 * for each one that you pass, before the first call. DP_EMISMATCH naming both sizes, DP_EINVAL for a
 * name that this release has not. Any thread. */
DP_PUBLIC int dp_check_struct(const char *name, size_t size);
#define DP_CHECK_STRUCT(name) dp_check_struct(#name, sizeof(struct name))

/* What can go wrong. Each is a negative errno, so strerror(-e) also says something of use. */
enum dp_error {
    DP_EAGAIN = -EAGAIN,          /* not done yet: call again */
    DP_EINVAL = -EINVAL,          /* a bad argument */
    DP_ENOMEM = -ENOMEM,          /* no memory, or more than a limit allows */
    DP_ENODEV = -ENODEV,          /* no such device, or none at all */
    DP_ENOENT = -ENOENT,          /* no such file, library or symbol */
    DP_EUNSUPPORTED = -ENOTSUP,   /* legal, but not by this device, transport or build */
    DP_ESTATE = -EBADFD,          /* a call out of order, or state left over */
    DP_EMISMATCH = -EPROTO,       /* ranks, shapes or messages disagree */
    DP_ECOMM = -ECONNRESET,       /* a peer or the way to it is gone */
    DP_ETIMEDOUT = -ETIMEDOUT,    /* a deadline passed */
    DP_EIO = -EIO,                /* the system failed a read, a write, a map; or a device failed */
    DP_ECALLBACK = -EREMOTEIO,    /* a callback of the user's failed */
    DP_EINTERRUPTED = -EINTR,     /* the user stopped it: dp_comm_set_poll */
    DP_EABORTED = -ECANCELED,     /* another rank failed; dp_comm_aborted() says which and why */
};

#define DP_ABORT_TEXT 4096 /* room for the sentence, or a traceback, that all ranks read of a failure */

/* The name of an error of the list above, "DP_EINVAL"; strerror's text for any other number. Never
 * NULL; any thread. */
DP_PUBLIC const char *dp_strerror(int err);

/* The sentence that described the last failure in the calling thread, "" before the first. It
 * stays until the next failure in this thread. */
DP_PUBLIC const char *dp_last_error(void);

/* In a callback: say why it fails, in a sentence or a traceback. Every rank gets to read it, up to
 * DP_ABORT_TEXT bytes with what is said around it. Returns err. */
DP_PUBLIC int dp_callback_error_text(int err, const char *text);

/* The words of what results and options have as numbers. */
enum dp_names {
    DP_NAMES_SCHEDULE,   /* enum dp_schedule_kind: "gpipe", "1f1b", "dualpipe" ... */
    DP_NAMES_OP,         /* enum dp_op_kind: "F", "RECV_F" ... as in traces */
    DP_NAMES_RECOMPUTE,  /* enum dp_recompute: "never", "except_last", "always" */
    DP_NAMES_RULE,       /* enum dp_rule: "deadlock" ... */
    DP_NAMES_EXECUTION,  /* enum dp_execution: "list", "messages" */
    DP_NAMES_FLOW,       /* enum dp_flow_kind: "activation", "mixing" ... */
    DP_NAMES_NODE,       /* enum dp_topo_kind: "host", "gpu", "nic" ... */
    DP_NAMES_LINK,       /* enum dp_topo_link_kind: "pci", "nvlink" ... */
    DP_NAMES_PATH,       /* enum dp_topo_class: "X", "NV", "PIX" ... */
    DP_NAMES_FUNCTION,   /* enum dp_tuning_function: "allreduce" ...; "default" for DP_TUNING_DEFAULT, */
    DP_NAMES_ALGORITHM,  /* and so for enum dp_tuning_algorithm: "nvls_tree" ..., */
    DP_NAMES_PROTOCOL,   /* and enum dp_tuning_protocol: "ll128" ... */
    DP_NAMES_MIXER,      /* enum dp_mixer_algorithm: "d-psgd", "local-sgd" */
    DP_NAMES_GRAPH_RULE, /* enum dp_graph_rule: "row" ... */
    DP_NAMES_OPTIMIZER   /* enum dp_optimizer_kind: "sgd", "adamw" ... */
};
/* The word of a value, "?" for any other. Any thread. */
DP_PUBLIC const char *dp_name(enum dp_names of, int value);

enum dp_log_level {
    DP_LOG_DEFAULT = -1, /* for dp_log_set: DP_LOG_WARN, or what DUALPIPE_LOG_LEVEL says */
    DP_LOG_ERROR,
    DP_LOG_WARN,
    DP_LOG_INFO,
    DP_LOG_DEBUG
};

/* Receives every message: one line without its newline, from any thread, several at once. */
typedef void (*dp_log_fn)(void *user, enum dp_log_level level, const char *line);

/* Send messages to fn instead of standard error, or back to standard error with NULL. Messages
 * above `level` are dropped before they are formatted; DUALPIPE_LOG_LEVEL is error, warn, info or
 * debug, and anything else is warned of, once. Call it before other threads use the library. */
DP_PUBLIC void dp_log_set(dp_log_fn fn, void *user, enum dp_log_level level);

/* ---- a pipeline in 40 lines ---------------------------------------------------------------------
 * Equal stages of one float32 tensor, plain gradient descent: tests/system/example_quick.c. What this
 * leaves out is in pipeline.h, and models of layers in trainer.h.
 *
 *      struct dp_quick *quick;
 *      err = dp_quick_new(&model, &quick);
 *      for (...)
 *          err = dp_quick_step(quick, x, labels, 0.01f, &loss);
 */
struct dp_quick_model {
    const char *schedule; /* "dualpipe", "dualpipev", "zb1p", "1f1b", "gpipe": dp_schedule_kind_parse */
    int32_t microbatches; /* of a step */
    int32_t values;       /* of a micro-batch: what enters a stage, and what leaves it */
    int32_t parameters;   /* of a stage, at least 1 */
    void *user;
    /* Callbacks return 0 or a negative errno. `start` fills in a stage's parameters, NULL: zeros. */
    int (*start)(void *user, int stage, float *parameters);
    int (*forward)(void *user, const float *parameters, const float *x, float *y);
    /* Write the gradient of x to gx, which is NULL in the first stage; add that of the parameters. */
    int (*backward)(void *user, const float *parameters, const float *x, const float *gy, float *gx,
                    float *gradients);
    /* The loss of a micro-batch and, unless gy is NULL, its gradient. */
    double (*loss)(void *user, const float *y, const float *label, float *gy);
    int32_t label_values; /* of a micro-batch's labels */
};

struct dp_quick;

/* Collective over the processes of a job, as a launcher has started them (dp_comm_open). Errors:
 * DP_EINVAL, naming the member; those of dp_comm_open, dp_schedule_new and dp_pipeline_new. *model is
 * copied. */
DP_PUBLIC int dp_quick_new(const struct dp_quick_model *model, struct dp_quick **out);
/* Collective: one step on x[microbatches * values] and labels[microbatches * label_values], whole on
 * every rank; each reads what its stages need. Then parameters -= rate * the gradient of the mean
 * loss, which *loss is on every rank. Errors of dp_pipeline_step. */
DP_PUBLIC int dp_quick_step(struct dp_quick *quick, const float *x, const float *labels, float rate,
                            double *loss);
/* The parameters of this rank's slot-th stage, whose number goes to *stage; NULL: it has fewer. */
DP_PUBLIC float *dp_quick_parameters(struct dp_quick *quick, int slot, int *stage);
DP_PUBLIC void dp_quick_free(struct dp_quick *quick); /* may be NULL */

#ifdef __cplusplus
}
#endif
#endif
