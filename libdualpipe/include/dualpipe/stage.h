/* SPDX-License-Identifier: Apache-2.0
 *
 * stage.h - what a pipeline asks of a model: the callbacks of a stage and of the loss.
 *
 * A stage is a part of the model with its own parameters. The library owns every buffer that
 * crosses a border and every save area; the user owns parameters and gradients. Tensors are DLPack's
 * DLTensor, so that a torch, NumPy, CuPy or JAX array passes without a copy; those the library
 * hands out are contiguous (strides NULL) and on the pipeline's device. They are 256-byte aligned,
 * but for the inputs of a first stage, labels and returned outputs, which are views of the caller's
 * batch where its layout allows it.
 *
 * Life of one micro-batch in one stage:
 *
 *      forward   in -> out, keeps what it needs in call->save
 *      backward  gout -> gin, and DP_BACKWARD_FULL: adds to call->grads, done with call->save
 *                            DP_BACKWARD_INPUT: leaves that to weight
 *      weight    adds to call->grads what DP_BACKWARD_INPUT left out, done with call->save
 *
 * Input tensors may be read until the last of these; outputs are gone once forward has returned (a
 * stage that needs them in its backward copies them into the save area). Callbacks run in the
 * thread that called dp_pipeline_step, one at a time. They return 0 or a negative errno; a failure
 * aborts the step on every rank.
 */
#ifndef DUALPIPE_STAGE_H
#define DUALPIPE_STAGE_H

#include <dualpipe/dualpipe.h>
#include <dualpipe/random.h>
#include <dlpack/dlpack.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DP_MAX_DIMS 8
#define DP_MAX_TENSORS 16 /* at one border */

/* One tensor of a border: what one micro-batch of it looks like. */
struct dp_tensor_spec {
    DLDataType dtype;
    int32_t ndim;
    int64_t shape[DP_MAX_DIMS];
    bool no_grad; /* carries no gradient back (token ids, masks); its gradient is never sent */
};

/* All tensors that cross from one stage to the next, in order. Border s lies before stage s; border
 * 0 is the model's input, border S its output. */
struct dp_border {
    int32_t count;
    struct dp_tensor_spec tensors[DP_MAX_TENSORS];
};

enum dp_backward_mode { DP_BACKWARD_FULL, DP_BACKWARD_INPUT };

/* Who is being called, and for what. Valid during the call. */
struct dp_stage_call {
    int32_t slot, stage;
    int32_t mb;             /* in its stream */
    int32_t mb_global;      /* mb + stream * mb_per_stream: its place in the whole batch */
    uint64_t step;          /* counts the steps of the pipeline */
    bool training;          /* a backward follows; false in a forward-only schedule (no dropout) */
    struct dp_random_key random; /* (seed, step, stage, mb_global); derive a layer's from it with
                                  * dp_random_key(random.key, step, layer, mb_global) */
    void *save;             /* save_bytes, the same memory from forward to backward or weight */
    void *stream;           /* CUDA: the CUstream to queue the work in, without waiting for it (a
                             * loss waits for its values); NULL on the host */
    const DLTensor *in;     /* the micro-batch's inputs, also in backward and weight */
    DLTensor *const *grads; /* [grad_count] where to add weight gradients: the stage's own, or in
                             * fixed-order mode the library's */
};

/* The callbacks. forward is always needed; backward for training; weight too, unless the stage says
 * no_split; fwd_bwd is optional. Arrays of tensors are as long as the border. Outputs and gins
 * arrive uninitialised and must be written in full. Where there is no gradient, data is NULL: gins
 * of the first stage, gins and gouts of tensors that are no_grad. A backward that finds that an
 * input has no gradient after all sets that gin's data to NULL: the stage before gets zeros.
 * Any other change to a tensor's description is an error, DP_EMISMATCH. */
struct dp_stage_ops {
    int (*forward)(void *user, const struct dp_stage_call *call, const DLTensor *in, DLTensor *out);
    int (*backward)(void *user, const struct dp_stage_call *call, const DLTensor *gout,
                    DLTensor *gin, enum dp_backward_mode mode);
    int (*weight)(void *user, const struct dp_stage_call *call);
    /* Optional: one call for an overlapped pair, the forward of one slot and the full backward of
     * another that has the same ops table. Must have the effect of the two calls. Without it the
     * pair is executed as forward, then backward. The loss of a last stage is taken by the library
     * before or after, never inside. */
    int (*fwd_bwd)(void *user_f, const struct dp_stage_call *call_f, const DLTensor *in,
                   DLTensor *out, void *user_b, const struct dp_stage_call *call_b,
                   const DLTensor *gout, DLTensor *gin);
};

/* One stage as a rank holds it. Copied by dp_pipeline_new; what it points to must stay. */
struct dp_stage {
    const struct dp_stage_ops *ops;
    void *user;
    size_t save_bytes;       /* save area of one micro-batch */
    bool no_split;           /* backward cannot leave the weight part for later: an I is done as a B
                              * and its W does nothing */
    int32_t grad_count;      /* weight gradients, in the same order on every rank that holds the */
    DLTensor *const *grads;  /* stage; float32 or float64, contiguous, on the pipeline's device */
};

/* The loss, taken on what a last stage puts out. label is NULL where the pipeline has no labels. */
struct dp_loss_ops {
    /* Write the losses of one micro-batch to values[max], their number (>= 1, the same for every
     * micro-batch) to *count. */
    int (*loss)(void *user, const struct dp_stage_call *call, const DLTensor *out,
                const DLTensor *label, double *values, int32_t max, int32_t *count);
    /* Gradient of the sum of values, times scale, with respect to out; gout as gin above. */
    int (*loss_backward)(void *user, const struct dp_stage_call *call, const DLTensor *out,
                         const DLTensor *label, double scale, DLTensor *gout);
};

#ifdef __cplusplus
}
#endif
#endif
