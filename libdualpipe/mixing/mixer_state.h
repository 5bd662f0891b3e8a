/* SPDX-License-Identifier: Apache-2.0
 *
 * mixer_state.h - what a mixer consists of, for its files:
 *
 *      mixer.c           new and free, what a program asks, buckets and their blocks
 *      mixer_update.c    forward, ready, step; what a bucket takes of what came; local SGD
 *      mixer_average.c   the average of all workers
 *      mixer_device.c    exchanges of values on a device, in the order of a stream
 *      mixer_checkpoint.c  the state, and going on from it
 *      mixer_survive.c   going on without workers that have died, and with new ones
 */
#ifndef DP_MIXING_MIXER_STATE_H
#define DP_MIXING_MIXER_STATE_H

#include "base/fail.h"
#include "mixing/bucket.h"
#include "mixing/exchange.h"
#include "mixing/internal.h"
#include <dualpipe/mixer.h>

/* ---- mixer device ---------------------------------------------------------------------------- */

/* The exchanges of a mixer whose values are on a device: all values are one bucket, and
 * what is said here is queued in the config's stream. */

struct dp_mixer_device;

/* What it takes beside a sound graph and list. */
int dp_mixer_device_check(const struct dp_mixer_config *config);
/* Collective. config must stay; *out is to be freed also after an error. */
int dp_mixer_device_new(const struct dp_mixer_config *config, struct dp_mixer_device **out);
/* What is in flight is waited for, if the communicator still works. May be NULL. */
void dp_mixer_device_free(struct dp_mixer_device *m);

/* The exchange of the values of the next round. They may be read, not written, until the next mix or
 * hold. Not while one is in flight. */
int dp_mixer_device_send(struct dp_mixer_device *m);
/* What came, with the factor of its exchange; nothing where none is in flight. */
int dp_mixer_device_mix(struct dp_mixer_device *m, double factor);
/* The host waits until all messages have come that the stream was made to wait for. */
int dp_mixer_device_wait(struct dp_mixer_device *m);

/* Values i of those that follow each other in memory; false: there is no number i. */
bool dp_mixer_device_piece(const struct dp_mixer_device *m, int32_t i, struct dp_mixer_piece *out);
/* What is being sent may change after what the stream is given from now on. */
int dp_mixer_device_hold(struct dp_mixer_device *m);
/* Values become the sum of all workers'; the host waits. */
int dp_mixer_device_sum(struct dp_mixer_device *m);
/* What is in flight will not be mixed. */
void dp_mixer_device_drop(struct dp_mixer_device *m);

/* ---- mixer state ----------------------------------------------------------------------------- */

struct dp_mixer_bucket {
    struct dp_optimizer *optimizer;
    struct dp_parameter *parameters; /* [count], for the optimizer */
    const int32_t *numbers;          /* [count] in the mixer's list */
    int32_t count;
    int32_t came;                    /* parameters with a complete gradient in this iteration */
    bool *present;                   /* [count] of which a gradient is in the update under way */
    DLDataType type;
    size_t elements;
    char *view;                      /* the block that the values are views of, or NULL */
    struct dp_exchange exchange;
    bool pending;                    /* an exchange was started and not used yet */
    double factor;                   /* of mixing, that held when it was started */
    int64_t used;                    /* exchanges that are over, counted since the workers are these */
    int64_t updates;
    void *blocks[2];                 /* of `exchange` */
    void **beside[2];                /* [count] of each block of the exchange, by parameter */
    char *memory[2]; /* blocks that local SGD keeps, by the layout of the exchange's */
};

struct dp_mixer {
    struct dp_mixer_config config;
    struct dp_parameter *parameters; /* [count] */
    struct dp_rate schedule;
    struct dp_loss_scale loss_scale;
    struct dp_exchange_group shared;
    struct dp_mixer_device *on_device; /* NULL: the host. Otherwise its one bucket has no exchange */

    /* Gradients of an iteration. A tied group is its first member. */
    int32_t *leader;       /* [count] of its tied group, itself otherwise; -1: frozen */
    int32_t *members;      /* [count] of a leader's group */
    int32_t *came;         /* [count] of those, in this iteration */
    bool *ready;           /* [count] */
    bool *given;           /* [count] a leader's gradient came since its last update */
    bool any_given;        /* one came since the last step that did not accumulate */
    int32_t *trace, traced;

    struct dp_buckets cut;
    struct dp_mixer_bucket *buckets;
    int32_t bucket_count, next; /* next: the first bucket not yet updated in this iteration */
    void *memory;               /* of all exchanges */
    bool memory_is_shared;
    void **original;            /* [count] addresses of values before they became views */
    uint64_t *original_offset;

    int64_t iterations;
    bool started;      /* buckets are made */
    bool open;         /* between a forward and its step */
    bool accumulating;
    bool averaged;     /* values are an average that masters do not know of yet */

    struct dp_mixer_state *state; /* what dp_mixer_state has handed out, or NULL */
    char *backup;      /* of all values that an average changes */
    bool has_backup;
    struct dp_mixer_death *death; /* NULL: the group does not survive */
    double *squares;   /* [count] */
    bool overflow;     /* in a bucket of this iteration */
    bool has_update;   /* the next member was set */
    struct dp_mixer_update set;
    char *flags;       /* [ranks] */
};

/* What a mixer needs whose workers may die. */
struct dp_mixer_death {
    const struct dp_graph *given; /* that the run began with */
    struct dp_graph *own_given;   /* the same where it is the mixer's, or NULL */
    struct dp_graph *graph;       /* in its place, or NULL */
    struct dp_comm *comm;         /* in place of the config's, or NULL */
    int64_t averages;             /* that are over, since the workers are these */
    enum { AVERAGE_NONE, AVERAGE_BEGUN } average; /* BEGUN: values are not what they were */
    bool reverts;                 /* that average */
    char *buffers;                /* what they were before the average, or NULL */
};

/* A mixer that no other worker knows of: nothing is agreed on, and there are no exchanges. */
int dp_mixer_new_alone(const struct dp_mixer_config *config, struct dp_mixer **out);
struct dp_text;
/* What all workers must have in common beside parameters and graph. */
void dp_mixer_add_options(const struct dp_mixer_config *c, struct dp_text *lines);
/* As dp_mixer_resume, without asking the others. */
int dp_mixer_take_numbers(struct dp_mixer *m, const int64_t *numbers, int64_t count);
/* The rest of a new mixer: what all workers must agree on. Collective. */
int dp_mixer_meet(struct dp_mixer *m);
int dp_mixer_start(struct dp_mixer *m);
/* The same without asking the others whether they have the same trace. */
int dp_mixer_make_buckets(struct dp_mixer *m);
/* What all exchanges share. Collective. */
int dp_mixer_make_group(struct dp_mixer *m);
/* The exchanges of all buckets, on blocks that they have. Collective with compression. */
int dp_mixer_make_exchanges(struct dp_mixer *m);
/* Local SGD: mix what came into all buckets; nothing to do with D-PSGD. */
int dp_mixer_settle(struct dp_mixer *m);
/* Mix what came into one bucket, without an update. */
int dp_mixer_use(struct dp_mixer *m, struct dp_mixer_bucket *b);
/* What came is mixed, or dropped by all. */
void dp_mixer_note_used(struct dp_mixer_bucket *b);
/* For what a bucket has in flight. */
int dp_mixer_wait(struct dp_mixer_bucket *b);
/* Copies of tied parameters become what the leader is. */
void dp_mixer_spread_tied(struct dp_mixer *m);
/* No gradient of this iteration has come. */
void dp_mixer_begin_iteration(struct dp_mixer *m);
/* Values, and buffers, become what they were before the average that was cut off or is reverted. */
int dp_mixer_undo_average(struct dp_mixer *m);
void dp_mixer_end_average(struct dp_mixer *m, bool revert);
/* Tensors at the end of the state that are of this worker's place in the graph. */
int32_t dp_mixer_known_count(const struct dp_mixer *m);
/* Updates are the caller's. */
static inline bool dp_mixer_is_bare(const struct dp_mixer *m)
{
    return m->config.update || m->config.device;
}

/* What came is mixed by the next forward, not by the next update. */
static inline bool dp_mixer_is_local(const struct dp_mixer *m)
{
    return m->config.algorithm == DP_MIXER_LOCAL_SGD;
}

/* End the group: this rank cannot go on. A death does not, where the mixer survives. */
static inline int dp_mixer_leave(struct dp_mixer *m, int err)
{
    if (m->death && err == DP_ECOMM)
        return err;
    if (err && err != DP_EABORTED && err != DP_ETIMEDOUT)
        dp_comm_abort(m->config.comm, err, dp_last_error());
    return err;
}

#endif
