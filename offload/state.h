/* SPDX-License-Identifier: Apache-2.0
 *
 * state.h - a streamed model inside.
 *
 *      host     [shard 0: values | gradients] [shard 1 ...]          pinned, shard after shard
 *                   |            ^
 *      copies up    | load       | gradients     copies down (copy_engine.c)
 *                   v            |
 *      device   slot 0: [values | gradients]   slot 1 ...            compute stream
 *               [shard n - 1: values | gradients] ...                those that stay (kept_share)
 *
 *      load of a slot      waits for  used[slot]       (compute: the last that was done with it)
 *                                     updated[shard]   (the host has changed the values, or rounded)
 *      compute             waits for  loaded[slot]
 *      gradients down      wait for   used[slot], updated[shard] (the host has done with the last)
 *      zeroing gradients   waits for  emptied[slot]    (down: the copy of the last)
 *      update of a shard   waits for  emptied[slot]
 *
 * A shard that stays has no copies. Its backward writes to `kept_grads`, which the update stream
 * takes to where gradients live:
 *
 *      compute             waits for  updated[shard], and the owner's where parameters are tied
 *      zeroing kept_grads  waits for  kept_taken       (update: the last was taken)
 *      update of a shard   waits for  used[slot]
 */
#ifndef DPO_STATE_H
#define DPO_STATE_H

#include <dualpipe/offload.h>

#include <stdatomic.h>

/* The bytes of a border's tensors, one after the other, 256-byte aligned. */
struct dpo_border {
    const struct dp_border *spec;
    size_t offset[DP_MAX_TENSORS]; /* of the tensors of `rows` rows */
    size_t row_bytes[DP_MAX_TENSORS];
    size_t bytes;
};

/* Tensors of one border, with room for their shapes. */
struct dpo_tensors {
    DLTensor t[DP_MAX_TENSORS];
    int64_t shape[DP_MAX_TENSORS][DP_MAX_DIMS];
};

/* A parameter of a layer. */
struct dpo_parameter {
    const struct dp_parameter *given;
    int32_t shard;
    size_t value, grad; /* where in its slot, and in what is copied; grad is SIZE_MAX for frozen ones */
    size_t value_bytes, grad_bytes;
    DLDataType value_type, grad_type;
    size_t host_value_at, host_grad_at; /* where on the host */
    size_t count;
    struct dpo_parameter *owner; /* the first occurrence of a tied one, itself if it is that */
    bool alias;                  /* the owner is in the same shard: no memory of its own */
    DLTensor host_value, host_grad;
};

struct dpo_layer {
    const struct dp_offload_layer *given;
    struct dpo_parameter *parameters;
    DLTensor *values, *grads;           /* what is handed to the callback */
    struct dpo_border whole;            /* its output, all rows */
    struct dpo_border piece;            /* of the largest micro-batch */
    size_t whole_at, piece_at, save_at; /* in the activations; each where there is such */
};

struct dpo_shard {
    int32_t first, end; /* layers */
    size_t value_bytes, grad_bytes;
    size_t host_value_bytes, host_grad_bytes; /* the same without mixed precision */
    char *values, *grads;                     /* on the host */
    char *up;                  /* what is copied to its slot: values, or these in 16 bits */
    int32_t wait_for;          /* the lowest shard that owns a parameter of this one */
    int32_t slot;              /* where it is now; -1: nowhere */
    bool kept;                 /* always in the same slot, on the device with all that it has */
    struct dp_parameter *list; /* of the parameters it owns */
    int32_t list_count;
    struct dp_device_event *updated;
    struct dp_device_event *boundary_down; /* its input has been copied to the host */
    char *arrived;    /* gradients as they were in the slot, for the update to take; NULL: in grads */
    bool accumulates; /* add them to what is there */
};

struct dpo_slot {
    char *values, *grads;
    struct dp_device_event *loaded, *used, *emptied;
};

/* Where inputs of shards are kept if they wait on the host: input i in place i % rings. */
struct dpo_ring {
    char *at;
    int32_t holds; /* the shard whose input it is; -1: none */
    struct dp_device_event *filled, *used;
};

/* A gradient buffer on the host, for what is to be added or widened. */
struct dpo_staging {
    char *at;
    struct dp_device_event *done;
};

struct dpo_task {
    struct dp_offload *o;
    struct dpo_shard *shard;
};

/* The update of a shard whose gradients the pace holds up. */
struct dpo_pending {
    int32_t shard, slot;
    struct dpo_staging *staging;
};

/* How long a stream has been at work; written in its order. */
enum { DPO_COMPUTE, DPO_UPDATE, DPO_METERS };
struct dpo_meter {
    int64_t begun_ns;
    _Atomic int64_t busy_ns;
};

struct dp_offload {
    struct dp_offload_config config;
    struct dp_device *dev;
    struct dp_pinned *pinned;
    int node;  /* whose CPUs copy and update; -1: any */
    bool host; /* compute in the calling thread, when it is time */

    struct dpo_layer *layers;
    struct dpo_parameter *parameters; /* of all layers */
    int32_t parameter_count;
    struct dp_parameter *list; /* the owners */
    int32_t list_count;
    struct dpo_border input;
    int64_t batch, *rows; /* of each micro-batch */
    int32_t microbatches;

    struct dpo_shard *shards;
    int32_t shard_count;
    int32_t streamed; /* of the shards: the first ones; the others are kept */
    struct dpo_slot *slots; /* config.slots, and one for each that is kept */
    size_t slot_values, slot_grads;
    struct dp_offload_event *events; /* of this step */
    size_t event_count, backward_at;
    int32_t *in_slot, *plan_slot; /* the shard in each slot, -1: none: now, and for the planner */

    struct dp_device_stream *compute, *update;
    struct dp_copy_engine *copies; /* up and down */
    struct dp_device_event *done, *inputs_up, *gouts_up, *gins_ready;
    char *memory;                                   /* all of it on the device */
    char *slot_memory, *activations, *gradients[2]; /* at borders between shards, all rows */
    size_t activation_bytes, input_at, boundary_stride;
    struct dpo_ring *ring;
    int32_t rings;
    char *boundaries;         /* on the host, boundary_stride apart */
    size_t piece_gradient[2]; /* inside a shard, in the activations */
    int32_t levels;           /* log2 of order_blocks */
    char *sums;               /* [levels] gradients of a shard, on the device: see visit.c */
    size_t sum_bytes;         /* of one of them */
    char *kept_memory;        /* of all shards that stay, then what their layers want beside */
    char *kept_grads;         /* of one of these shards, as its backward makes them */
    size_t kept_shard_bytes, kept_grad_bytes, kept_state_bytes;
    struct dp_device_event *kept_taken;
    struct dpo_staging staging[2];
    uint32_t staged;
    struct dpo_task *tasks;
    struct dpo_pending *pending; /* [pending_count], of which the first pending_first are launched */
    int32_t pending_first, pending_count;
    _Atomic int failed; /* the first error of an update */

    const struct dp_offload_step *step;
    const struct dp_offload_gradients *grad_step;
    uint64_t number;
    bool built;
    bool widens;         /* gradients that have come down: mixed precision */
    bool images;         /* what goes up is not the values themselves: rounded, or older than they */
    bool due;            /* an update that was delayed is to come */
    bool copies_tied;    /* a shard has a copy of a parameter of another one */
    bool exposed;        /* the values on the host may have been written */
    bool trained;         /* a training forward is done: a backward may come */
    int32_t gradient_now; /* which of gradients[] holds those of the last shard's output */
    struct dp_offload_memory counts;
    struct dpo_meter meters[DPO_METERS];
    int64_t wait_ns; /* of the calling thread */
};

/* threads.c: the device's threads to the CPUs of o->node; and the calling one, in calls that a driver
 * makes in threads of its own. */
void dpo_threads_bind(struct dp_offload *o);
void dpo_thread_bind(const struct dp_offload *o);

/* copy_engine.c: in a paced engine an event that a copy records means something only when the pace has
 * let all of the copy pass. DP_ETIMEDOUT. */
bool dpo_copy_is_queued(const struct dp_copy_engine *engine, const struct dp_device_event *event);
int dpo_copy_wait_queued(struct dp_copy_engine *engine, const struct dp_device_event *event,
                         int64_t timeout_ns);

/* kept.c: which shards stay on the device, when layers are cut. */
void dpo_kept_choose(struct dp_offload *o);

/* plan.c: the events of a step that begins with in_slot; how many. in_slot is then what it is at
 * the end. */
size_t dpo_plan(const struct dp_offload_plan *plan, int32_t *in_slot, struct dp_offload_event *events,
                size_t max);
int dpo_plan_check(const struct dp_offload_plan *plan);

/* border.c */
size_t dpo_border_init(struct dpo_border *border, const struct dp_border *spec, int64_t rows);
/* Tensors of `rows` rows from row `first` on, at base (NULL: all data is NULL). */
void dpo_border_tensors(const struct dp_offload *o, const struct dpo_border *border, char *base,
                        int64_t first, int64_t rows, struct dpo_tensors *out);
int dpo_border_check(const struct dp_border *spec, int64_t rows, const char *what, int32_t index);

/* parameters.c: which parameters are tied, the place of each in its shard, the list. */
int dpo_parameters_init(struct dp_offload *o);
int dpo_parameters_fill(struct dp_offload *o);
/* The values of a shard are what their owners have; those that go up in 16 bits are rounded. */
void dpo_parameters_renew(struct dp_offload *o, int32_t shard);
/* The same for what a shard owns, wherever it is. */
void dpo_parameters_renew_owned(struct dp_offload *o, int32_t shard);
/* The types on the device. */
DLDataType dpo_value_type(const struct dp_offload_config *c, const struct dp_parameter *p);
DLDataType dpo_grad_type(const struct dp_offload_config *c, const struct dp_parameter *p);

/* add.c: to += from, elements of any type of parameters; and, in float32, elements of another type. */
void dpo_add(DLDataType type, size_t count, void *to, const void *from);
void dpo_add_widened(DLDataType type, size_t count, float *to, const void *from);
void dpo_parameters_fini(struct dp_offload *o);

/* memory.c: how much is needed, into o->counts; then the memory itself. */
int dpo_memory_count(struct dp_offload *o);
int dpo_memory_init(struct dp_offload *o);
void dpo_memory_fini(struct dp_offload *o);

/* shards.c: what begins and ends with copies. */
int dpo_shard_load(struct dp_offload *o, int32_t shard, int32_t slot);
/* Values have been written on the host: for loads of this step. */
int dpo_shard_renew(struct dp_offload *o);
/* Launch the update that is due, behind what loads of this step wait for. */
int dpo_shard_update(struct dp_offload *o);
int dpo_shard_drop(struct dp_offload *o, int32_t shard, int32_t slot);
int dpo_shard_grads_down(struct dp_offload *o, int32_t shard);
/* Launch the updates of shards whose gradients are on their way; wait until at most `left` are not. */
int dpo_shard_launch(struct dp_offload *o, int32_t left);
/* Add all gradients of a shard, laid out as in its slot, to others. */
void dpo_shard_add(const struct dp_offload *o, int32_t shard, char *to, const char *from);
/* Where the input of a shard is on the device, for reading and for writing. */
int dpo_boundary_read(struct dp_offload *o, int32_t shard, char **out);
int dpo_boundary_write(struct dp_offload *o, int32_t shard, char **out);
/* The shard has been written / has been read for the last time. */
int dpo_boundary_written(struct dp_offload *o, int32_t shard);
int dpo_boundary_fetch(struct dp_offload *o, int32_t shard);

/* visit.c: all micro-batches of a shard. */
int dpo_visit_forward(struct dp_offload *o, int32_t shard);
int dpo_visit_backward(struct dp_offload *o, int32_t shard);

/* times.c: calls that take the times of a struct dpo_meter; what the stream is given between the
 * two is counted, where it is to be measured. */
void dpo_stamp_begin(void *user);
void dpo_stamp_end(void *user);
int dpo_meter_begin(struct dp_offload *o, int meter);
int dpo_meter_end(struct dp_offload *o, int meter);
int64_t dpo_meter_busy_ns(const struct dp_offload *o, int meter);

/* waits.c: let `stream` wait for an event that a copy records. */
int dpo_stream_wait(struct dp_offload *o, struct dp_device_stream *stream,
                    struct dp_device_event *event);
/* Wait until the pace has let that copy pass. */
int dpo_wait_queued(struct dp_offload *o, const struct dp_device_event *event);
/* Wait for all of a stream, no longer than the deadline. */
int dpo_wait(struct dp_offload *o, struct dp_device_stream *stream);

/* step.c: o with sizes, without memory on device or host; what was made of it is freed with
 * dp_offload_close. */
int dpo_count(const struct dp_offload_config *config, struct dp_offload **out);

#endif
