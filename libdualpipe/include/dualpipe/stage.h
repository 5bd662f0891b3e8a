/* SPDX-License-Identifier: Apache-2.0
 *
 * stage.h - what a pipeline asks of a model: the callbacks of a stage and of the loss.
 *
 * A stage is a part of the model with its own parameters. The library owns every buffer that
 * crosses a border and every save area; the user owns parameters and gradients. Tensors are DLPack's
 * DLTensor, so that a torch, NumPy, CuPy or JAX array passes without a copy; those the library
 * hands out are contiguous (strides NULL), 256-byte aligned and on the pipeline's device. Inputs of a
 * first stage, labels and returned outputs are the caller's own tensors: aligned and strided as they
 * are (dp_pipeline_config.copy_strided), and inputs and labels may be absent: data NULL.
 *
 * Life of one micro-batch in one stage:
 *
 *      forward   in -> out, keeps what it needs in the save areas
 *      backward  gout -> gin, and DP_BACKWARD_FULL: adds to call->grads, done with the save areas
 *                            DP_BACKWARD_INPUT: leaves that to weight
 *      weight    adds to call->grads what DP_BACKWARD_INPUT left out, done with the save areas
 *
 * Where a schedule recomputes (RECOMPUTE), forward is called twice, the second time before backward.
 *
 * Input tensors and output gradients may be read until the last of these; outputs are gone once
 * forward has returned (a stage that needs them in its backward copies them into a save area).
 * Callbacks run in the thread that called dp_pipeline_step, one at a time. They return 0 or a
 * negative errno; a failure aborts the step on every rank (dp_callback_error).
 */
#ifndef DUALPIPE_STAGE_H
#define DUALPIPE_STAGE_H

#include <dualpipe/dualpipe.h>
#include <dualpipe/microbatch.h>
#include <dualpipe/parameter.h>
#include <dualpipe/random.h>
#include <dlpack/dlpack.h>

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DP_MAX_DIMS 8
#define DP_MAX_TENSORS 16 /* at one border */
#define DP_MAX_EXTENTS 4  /* that vary */

/* One tensor of a border: what one micro-batch of it looks like. */
struct dp_tensor_spec {
    DLDataType dtype;
    int32_t ndim;
    int64_t shape[DP_MAX_DIMS];
    bool no_grad; /* carries no gradient back (token ids, masks); its gradient is never sent */
    uint8_t extent[DP_MAX_DIMS]; /* k > 0: this dimension follows extent k of dp_pipeline_config, of
                                  * which shape has the largest; 0: it is always as in shape */
};

/* All tensors that cross from one stage to the next, in order. Border s lies before stage s; border
 * 0 is the model's input, border S its output. */
struct dp_border {
    int32_t count;
    struct dp_tensor_spec tensors[DP_MAX_TENSORS];
};

enum dp_backward_mode { DP_BACKWARD_FULL, DP_BACKWARD_INPUT };

struct dp_stage_skips;

/* The stage that is called, and the micro-batch. Valid during the call. */
struct dp_stage_call {
    int32_t slot, stage;
    int32_t mb;             /* in its stream */
    int32_t mb_global; /* its place in the whole batch: mb + stream * mb_per_stream, and where there
                        * are replicas (pipeline.h) their first_mb more */
    uint64_t step;          /* counts the steps of the pipeline */
    bool training;          /* a backward follows; false in a forward-only step (no dropout) */
    bool discarded;         /* forward: what it saves is thrown away, as it is recomputed later: it
                             * need not save anything */
    bool recomputing;       /* forward, for the second time, with the same inputs and random key, for
                             * what it saves: its outputs are not used */
    struct dp_random_key random; /* (seed, step, stage, mb_global); derive a layer's from it with
                                  * dp_random_key(random.key, step, layer, mb_global) */
    /* The save areas of the micro-batch, NULL where no bytes were asked for: */
    void *save;             /* from forward to the weight part */
    void *save_input;       /* from forward to backward */
    void *save_weight;      /* from backward to the weight part */
    void **handle;          /* a pointer of the stage's own: NULL before forward, then what was put
                             * there; see dp_stage_ops.drop */
    void *stream;           /* CUDA: the CUstream to queue the work in, without waiting for it (a
                             * loss waits for its values); NULL on the host */
    const DLTensor *in;     /* the micro-batch's inputs, also in backward and weight */
    const DLTensor *gout;   /* its output gradients in backward and weight; NULL in forward */
    const struct dp_tree *args, *kwargs; /* first stage: the leaves that the step was given, opaque
                                          * ones included; else NULL */
    const struct dp_tree *context; /* any stage: a dict, what the step was given for the micro-batch
                                    * on this rank (dp_step.context); else NULL */
    DLTensor *const *grads; /* [parameter_count] where to add weight gradients, NULL for a frozen
                             * parameter: the parameter's own; in fixed order, and for a gradient of
                             * two bytes, memory of the library (float32) */
    struct dp_stage_skips *skips; /* skip connections of the stage: dp_skip_stash and the others;
                                   * NULL: none */
};

/* Skip connections (dp_skip in schedule.h), in the callbacks of the stage where one begins and of the
 * stage where it ends. space: the namespace, NULL or "" for none. The tensors are of the shape that
 * dp_pipeline_config.skips declares, compact, on the pipeline's device, and valid until the callback
 * returns.
 *
 *      callback     where it begins                        where it ends
 *      forward      dp_skip_stash: fill in the value       dp_skip_pop: read it
 *      backward     dp_skip_stash_gradient: read it and    dp_skip_pop_gradient: fill it in; dp_skip_pop
 *                   add it to what comes from gout
 *      weight       dp_skip_stash_gradient                 dp_skip_pop
 *
 * A stage may leave a value out by setting data to NULL, on devices whose memory the CPU reaches: then
 * its consumer finds NULL, and neither has a gradient. Gradients that are not there (no_grad, no value)
 * have data NULL and need not be asked for; a gradient whose data is set to NULL becomes zeros. Data
 * set to a buffer of the stage's own is copied.
 *
 * A forward must stash and pop each skip of its stage, a recomputed one again; a backward must ask for
 * each gradient. Else the step fails with DP_ECALLBACK, as for a name that is not declared, or a
 * function of another callback (those return NULL). Callbacks' thread only. */
enum dp_skip_end { DP_SKIP_STASH, DP_SKIP_POP, DP_SKIP_STASH_GRADIENT, DP_SKIP_POP_GRADIENT };
DP_PUBLIC DLTensor *dp_skip_tensor(const struct dp_stage_call *call, enum dp_skip_end end,
                                   const char *space, const char *name);

static inline DLTensor *dp_skip_stash(const struct dp_stage_call *call,
                                      const char *space, const char *name)
{
    return dp_skip_tensor(call, DP_SKIP_STASH, space, name);
}

static inline const DLTensor *dp_skip_pop(const struct dp_stage_call *call,
                                          const char *space, const char *name)
{
    return dp_skip_tensor(call, DP_SKIP_POP, space, name);
}

static inline const DLTensor *dp_skip_stash_gradient(const struct dp_stage_call *call,
                                                     const char *space, const char *name)
{
    return dp_skip_tensor(call, DP_SKIP_STASH_GRADIENT, space, name);
}

static inline DLTensor *dp_skip_pop_gradient(const struct dp_stage_call *call,
                                             const char *space, const char *name)
{
    return dp_skip_tensor(call, DP_SKIP_POP_GRADIENT, space, name);
}

/* A loss that an overlapped pair takes itself: of the forward's outputs, or the gradient with which
 * the backward begins. */
struct dp_loss_ops;
struct dp_pair_loss {
    const struct dp_loss_ops *ops;
    void *user;
    const DLTensor *labels; /* NULL: none */
    double *values;         /* forward: [max] */
    int32_t max, *count;
    const DLTensor *out;    /* backward: the outputs of its forward */
    double scale;
};

/* What an overlapped pair is given. */
struct dp_pair {
    struct {
        void *user;
        const struct dp_stage_call *call;
        const DLTensor *in;
        DLTensor *out;
        const struct dp_pair_loss *loss; /* of a last stage, to be taken of out; else NULL */
    } forward;
    struct {
        void *user;
        const struct dp_stage_call *call;
        DLTensor *gout;                  /* with loss: to be filled by its loss_backward first */
        DLTensor *gin;
        const struct dp_pair_loss *loss; /* of a last stage; else NULL */
    } backward;
};

/* The callbacks. forward is always needed; backward for training; weight too, unless the stage says
 * no_split; fwd_bwd is optional. Arrays of tensors are as long as the border. Outputs and gins
 * arrive uninitialised and must be written in full. Where there is no gradient, data is NULL: gins
 * of the first stage, gins and gouts of tensors that are no_grad. A backward that finds that an
 * input has no gradient after all sets that gin's data to NULL: the stage before gets zeros.
 * A stage may hand over a buffer of its own, compact and on the pipeline's device, by setting the
 * data of an output or gin to it; it must stay as it is until given_back, or the end of the step. Where
 * the border has one tensor it is sent from there, elsewhere it is copied. Any other change to a
 * tensor's description is an error, DP_EMISMATCH. */
struct dp_stage_ops {
    int (*forward)(void *user, const struct dp_stage_call *call, const DLTensor *in, DLTensor *out);
    int (*backward)(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                    DLTensor *gin, enum dp_backward_mode mode);
    int (*weight)(void *user, const struct dp_stage_call *call);
    /* Optional: one call for an overlapped pair, the forward of one slot and the full backward of
     * another that has the same ops table. Must have the effect of the two calls, with the losses of
     * last stages (dp_pair_take_loss, dp_pair_start_from_loss). Without it the pair is executed as
     * forward, then backward. */
    int (*fwd_bwd)(const struct dp_pair *pair);
    /* Optional: a step has failed or ended while *call->handle of a micro-batch was not NULL. */
    void (*drop)(void *user, void *handle);
    /* Optional: what the pipeline queues from now on in dp_stage_call.stream (host: nothing) does not
     * read a buffer any more that the stage has handed over: it has been copied, its message has been
     * sent, or the step has failed. Once for each that a callback which returned 0 has left. */
    void (*given_back)(void *user, void *data);
    /* Optional: the library is about to read the gradients (a sum, the end of a step). A stage that adds
     * them up in other memory than call->grads brings them there now, in dp_stage_call.stream.
     * Not for a step that fails. */
    int (*settle)(void *user);
    uint64_t reserved[2];
};

/* Bytes of the save areas of one micro-batch. */
struct dp_save_bytes {
    size_t whole;  /* of dp_stage_call.save */
    size_t input;  /* of save_input */
    size_t weight; /* of save_weight */
};

/* One stage as a rank holds it. Copied by dp_pipeline_new; what it points to must stay. */
struct dp_stage {
    const struct dp_stage_ops *ops;
    void *user;
    size_t save_bytes;       /* save areas of one micro-batch: dp_stage_call.save, */
    size_t save_input_bytes, save_weight_bytes; /* .save_input, .save_weight */
    /* Where they differ: changes *bytes, which holds those above. May be NULL. */
    void (*save_of)(void *user, int32_t mb_global, struct dp_save_bytes *bytes);
    bool no_split;           /* backward cannot leave the weight part for later: an I is done as a B
                              * and its W does nothing */
    int32_t parameter_count; /* the same list on every rank that holds the stage, values and */
    const struct dp_parameter *parameters; /* gradients on the pipeline's device */
    uint64_t reserved[2];
};

/* The loss, taken on what a last stage puts out. labels are those of the micro-batch, NULL where the
 * pipeline has none. */
struct dp_loss_ops {
    /* Write the losses of one micro-batch to values[max], their number (>= 1, the same for every
     * micro-batch) to *count. */
    int (*loss)(void *user, const struct dp_stage_call *call, const DLTensor *out,
                const DLTensor *labels, double *values, int32_t max, int32_t *count);
    /* Gradient of the sum of values, times scale, with respect to out; gout as gin above. */
    int (*loss_backward)(void *user, const struct dp_stage_call *call, const DLTensor *out,
                         const DLTensor *labels, double scale, DLTensor *gout);
    uint64_t reserved[2];
};

/* For an overlapped hook: take the loss of the forward's outputs, if there is one to take. */
static inline int dp_pair_take_loss(const struct dp_pair *pair)
{
    const struct dp_pair_loss *l = pair->forward.loss;

    return l ? l->ops->loss(l->user, pair->forward.call, pair->forward.out, l->labels, l->values,
                            l->max, l->count)
             : 0;
}

/* The same for the loss that the backward begins with: fills backward.gout. */
static inline int dp_pair_start_from_loss(const struct dp_pair *pair)
{
    const struct dp_pair_loss *l = pair->backward.loss;

    return l ? l->ops->loss_backward(l->user, pair->backward.call, l->out, l->labels, l->scale,
                                     pair->backward.gout)
             : 0;
}

/* dp_callback_error_text of a format, as in `return dp_callback_error(-EIO, "...")`. */
static inline int dp_callback_error(int err, const char *format, ...) DP_PRINTF(2, 3);
static inline int dp_callback_error(int err, const char *format, ...)
{
    char text[DP_ABORT_TEXT];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return dp_callback_error_text(err, text);
}

#ifdef __cplusplus
}
#endif
#endif
