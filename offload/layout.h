/* SPDX-License-Identifier: Apache-2.0
 *
 * layout.h - what is in a streamed model, and where: layers, parameters, shards, and the sizes of
 * all memory. It does not change once it is made, but for where shards are.
 */
#ifndef DPO_LAYOUT_H
#define DPO_LAYOUT_H

#include <dualpipe/offload.h>

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
    size_t value,
        grad; /* where in its slot, and in what is copied; grad is SIZE_MAX for frozen ones */
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
    struct dp_parameter *list; /* of the parameters it owns */
    int32_t list_count;
    struct dp_device_event *updated;
    struct dp_device_event *boundary_down; /* its input has been copied to the host */
    char *arrived; /* gradients as they were in the slot, for the update to take; NULL: in grads */
    bool accumulates; /* add them to what is there */
};

struct dpo_layout {
    struct dp_offload_config config;
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
    int32_t rings;
    bool widens;      /* gradients that have come down: mixed precision */
    bool images;      /* what goes up is not the values themselves, but these in 16 bits */
    bool copies_tied; /* a shard has a copy of a parameter of another one */

    size_t slot_values, slot_grads;
    size_t activation_bytes, input_at, boundary_stride;
    size_t piece_gradient[2]; /* inside a shard, in the activations */
    struct dp_offload_memory counts;
};

static inline size_t dpo_align(size_t n)
{
    return (n + 255) / 256 * 256;
}

/* A config that is sound, with sizes; there is nothing to free after an error. */
int dpo_layout_init(struct dpo_layout *layout, const struct dp_offload_config *config);
void dpo_layout_fini(struct dpo_layout *layout);
struct dp_offload_plan dpo_layout_plan(const struct dpo_layout *layout, bool forward_only);
/* Of a shard where it lives: values, gradients, and what layers are given if it is not these
 * values. */
size_t dpo_layout_home_bytes(const struct dpo_layout *layout, const struct dpo_shard *shard);

/* plan.c: the events of a step that begins with in_slot; how many. in_slot is then what it is at
 * the end. */
size_t dpo_plan(const struct dp_offload_plan *plan, int32_t *in_slot,
                struct dp_offload_event *events, size_t max);
int dpo_plan_check(const struct dp_offload_plan *plan);

/* Tensors of `rows` rows from row `first` on, at base (NULL: all data is NULL). */
void dpo_border_tensors(DLDevice device, const struct dpo_border *border, char *base, int64_t first,
                        int64_t rows, struct dpo_tensors *out);

/* parameters.c: which parameters are tied, the place of each in its shard, the list. */
int dpo_parameters_init(struct dpo_layout *layout);
int dpo_parameters_fill(struct dpo_layout *layout);
/* The values of a shard are what their owners have; those that go up in 16 bits are rounded. */
void dpo_parameters_renew(struct dpo_layout *layout, int32_t shard);
/* The same for what a shard owns, wherever it is. */
void dpo_parameters_renew_owned(struct dpo_layout *layout, int32_t shard);
void dpo_parameters_fini(struct dpo_layout *layout);
/* The types on the device. */
DLDataType dpo_value_type(const struct dp_offload_config *c, const struct dp_parameter *p);
DLDataType dpo_grad_type(const struct dp_offload_config *c, const struct dp_parameter *p);

/* shards.c: to += from, elements of any type of gradients; those of 16 bits are added in float32 and
 * rounded to the nearest. */
void dpo_add(DLDataType type, size_t count, void *to, const void *from);

#endif
