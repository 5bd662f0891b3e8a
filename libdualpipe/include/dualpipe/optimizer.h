/* SPDX-License-Identifier: Apache-2.0
 *
 * optimizer.h - from gradients to better parameters: optimizers over a list of parameters
 * (parameter.h), learning rates, gradient norms, clipping, loss scales.
 *
 *      struct dp_optimizer_config config = dp_optimizer_defaults(DP_OPTIMIZER_ADAMW);
 *      err = dp_optimizer_new(&config, parameters, count, &optimizer);
 *      ...
 *      dp_gradient_squares(parameters, count, squares);
 *      sum = dp_gradient_sum(parameters, count, NULL, squares);      (sum it over the ranks)
 *      if (isfinite(sum))
 *          err = dp_optimizer_step(optimizer, &(struct dp_optimizer_step){
 *              .rate = dp_rate_at(&rate, step),
 *              .scale = dp_clip_factor(sqrt(sum), 1.0, 0),
 *              .zero_grads = true});
 *      else
 *          dp_gradients_zero(parameters, count);
 *
 * Nothing here communicates. A sum over the ranks that holds a NaN or an infinity is not finite on any
 * of them, so all ranks skip the same steps.
 *
 * Numbers. float64 parameters are updated in float64, all others in float32: bfloat16 and float16
 * parameters have a float32 master copy, which is what is updated, and are the master rounded to the
 * nearest. Results are the same bits on every instruction set (NaNs aside), for any number of
 * threads, and however parameters are cut into lists.
 *
 * Memory. The state of a group of parameters is one block, allocated by dp_optimizer_new; a step
 * allocates nothing. Parameters and gradients lie in host memory, or all in that of a device, with the
 * state: then updates are queued in a stream (dp_optimizer_config.stream), and have the same bits.
 *
 * Sources: Kingma and Ba, "Adam", 2015; Loshchilov and Hutter, "Decoupled weight decay
 * regularization", 2019; Decent-DP (decent_dp.optim) for the accumulating variants and the warm-up
 * with cosine; torch.optim.SGD for momentum.
 */
#ifndef DUALPIPE_OPTIMIZER_H
#define DUALPIPE_OPTIMIZER_H

#include <dualpipe/device.h>
#include <dualpipe/parameter.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- optimizers ----------------------------------------------------------------------------- */

/* g: the gradient times scale; x: the parameter; t: the number of this step, from 1.
 *
 *  SGD          g += decay x;  b = momentum b + g;  x -= rate (nesterov ? g + momentum b : b)
 *  ADAM         g += decay x;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
 *               x -= rate  m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + epsilon)
 *  ADAMW        the same without decay in g; x *= 1 - rate decay instead
 *  ACCUM_ADAM   the moments move once in K steps, from the mean gradient a of these; in between each
 *               step adds its own gradient provisionally. e = ceil(t / K):
 *               g += decay x;  a += g / K;  m' = m + (1 - b1) g;  v' = v + (1 - b2) g^2
 *               x -= rate / (1 - b1^e)  m' / (sqrt(v') / sqrt(1 - b2^e) + epsilon)
 *               if K divides t:  m = b1 (m + (1 - b1) a);  v = b2 (v + (1 - b2) a^2);  a = 0
 *               With K = 1 this is Adam.
 *  ACCUM_ADAMW  the same without decay in g; x *= 1 - rate decay instead */
enum dp_optimizer_kind {
    DP_OPTIMIZER_SGD,
    DP_OPTIMIZER_ADAM,
    DP_OPTIMIZER_ADAMW,
    DP_OPTIMIZER_ACCUM_ADAM,
    DP_OPTIMIZER_ACCUM_ADAMW,
    DP_OPTIMIZER_KINDS
};

/* DP_EINVAL, with the nearest name. */
DP_PUBLIC int dp_optimizer_kind_find(const char *name, enum dp_optimizer_kind *out);

/* Which parameters the weight decay is for. */
enum dp_decay_rule {
    DP_DECAY_FLAGGED, /* those without DP_PARAMETER_NO_DECAY */
    DP_DECAY_COMPAT   /* those whose name contains "bn" or "bias", and no others: the reverse of what
                       * was meant, but what Decent-DP does */
};

/* Parameters with a weight decay and a rate of their own. */
struct dp_optimizer_group {
    double weight_decay;
    double rate_factor; /* of the rate of a step */
};

struct dp_optimizer_config {
    enum dp_optimizer_kind kind;
    double momentum; /* SGD: [0, 1); 0 needs no state */
    bool nesterov;   /* SGD with momentum */
    double beta1, beta2, epsilon;
    int32_t accumulation; /* K of the accumulating kinds, at least 1 */
    double weight_decay;  /* without groups: of those parameters that decay_rule says; others 0 */
    enum dp_decay_rule decay_rule;

    /* Or groups of the caller's: parameter i is of groups[group_of[i]]. Copied. */
    const struct dp_optimizer_group *groups;
    int32_t group_count;
    const int32_t *group_of;

    /* Where the state lies; NULL: in memory of its own. Must stay; is set to zero. Of a parameter
     * it takes each array (of float64 or float32; so many as the kind has, and a master of 16
     * bits) rounded up to 256 bytes. 256-byte aligned; the CPU must reach it. */
    void *memory;
    size_t memory_bytes;

    /* NULL: the host's memory. Otherwise all is in that of its device, and a step is queued in it;
     * it must stay. SGD, Adam and AdamW of float32 and float64 with gradients of the same type,
     * without `memory`, mixing and dp_optimizer_begin (else DP_EUNSUPPORTED); what state tensors
     * hold is what the stream has reached, but for "NAME/step", which is in host memory. */
    struct dp_device_stream *stream;
    uint64_t reserved[2];
};

/* SGD: no momentum, no decay. Adam and AdamW: betas 0.9 and 0.999, epsilon 1e-8, decay 1/32768 and
 * 0.1; accumulation 4. */
DP_PUBLIC struct dp_optimizer_config dp_optimizer_defaults(enum dp_optimizer_kind kind);

struct dp_optimizer;

/* The list is copied; names, tensors and what those point to must stay. Frozen parameters have no
 * state and are left alone. Masters begin as the values are now. DP_EINVAL for a config or a list
 * that is not sound (the sentence names the member or the parameter), DP_EUNSUPPORTED for memory
 * that the host does not reach, DP_ENOMEM, also for a state that is larger than `memory`. */
DP_PUBLIC int dp_optimizer_new(const struct dp_optimizer_config *config,
                               const struct dp_parameter *parameters, int32_t count,
                               struct dp_optimizer **out);
DP_PUBLIC void dp_optimizer_free(struct dp_optimizer *optimizer);

/* Mixing in the same sweep: before the update x = keep x + take c, after it c = put x, where c is a
 * communication buffer beside each parameter. */
struct dp_optimizer_mix {
    double keep, take, put;
    void *const *buffers; /* [count] c of each parameter: the type and the memory order of its value;
                           * not looked at for frozen ones */
};

struct dp_optimizer_step {
    double rate;  /* learning rate */
    double scale; /* what gradients are multiplied with: 1, a clip factor, 1 / loss scale ... */
    bool zero_grads;                    /* leave the gradients zero */
    bool skip; /* no update, as after an overflow: gradients are not read, the state stays; mixing and
                * zeroing happen all the same */
    uint8_t reserved[6];
    const struct dp_optimizer_mix *mix; /* NULL: none; else used until the step is over */
    /* [count] whether parameter i has a gradient; NULL: all have one; else used until the step is over.
     * `skip` holds for those that have none, as torch leaves a parameter whose grad is None. */
    const bool *present;
};

/* One update. DP_EINVAL for a rate or scale that is not finite; then nothing has changed. */
DP_SIZED(dp_optimizer_step, (optimizer, step, sizeof(struct dp_optimizer_step)),
         struct dp_optimizer *optimizer, const struct dp_optimizer_step *step);

/* The same by several threads: begin by one of them, then run of each part 0 .. parts - 1 once, by any
 * threads at the same time. All must be over before the next begin. Errors as above. */
DP_SIZED(dp_optimizer_begin, (optimizer, step, sizeof(struct dp_optimizer_step)),
         struct dp_optimizer *optimizer, const struct dp_optimizer_step *step);
DP_PUBLIC void dp_optimizer_run(struct dp_optimizer *optimizer, int32_t part, int32_t parts);

/* The state, to be written to a checkpoint and read back in place: for each parameter "NAME/step"
 * (int64, no dimensions: steps taken) and, as its kind has it, "NAME/momentum", "NAME/mean",
 * "NAME/square", "NAME/accumulated", "NAME/master", in shape and memory order of the value. The
 * names and tensors last as long as the optimizer. Reading "NAME/master" back does not write the value,
 * which a checkpoint has beside it. */
DP_PUBLIC const struct dp_named_tensor *dp_optimizer_tensors(const struct dp_optimizer *optimizer,
                                                             int32_t *count);

static inline int32_t dp_optimizer_state_count(const struct dp_optimizer *optimizer)
{
    int32_t count;

    dp_optimizer_tensors(optimizer, &count);
    return count;
}

static inline const struct dp_named_tensor *dp_optimizer_state(const struct dp_optimizer *optimizer)
{
    int32_t count;

    return dp_optimizer_tensors(optimizer, &count);
}

/* ---- learning rates ------------------------------------------------------------------------- */

enum dp_rate_kind { DP_RATE_CONSTANT, DP_RATE_COSINE, DP_RATE_LINEAR, DP_RATE_STEP };

/* For the first `warmup` steps, step k = 0, 1 ...: peak (w + (1 - w) k / warmup), w = warmup_factor.
 * Then, with k counted from the end of the warm-up:
 *
 *  CONSTANT  peak
 *  COSINE    last + (peak - last) (1 + cos(pi k / period)) / 2; after the period up again, as torch
 *            and Decent-DP have it, or `last` for good with `hold`
 *  LINEAR    peak + (last - peak) k / period, then last
 *  STEP      peak factor^floor(k / period) */
struct dp_rate {
    enum dp_rate_kind kind;
    double peak;
    double last;
    double factor;
    int64_t period; /* at least 1, but for CONSTANT */
    bool hold;
    int64_t warmup;
    double warmup_factor;
};

/* Decent-DP's schedule: COSINE down to 1e-6, warm-up from 0.01 of the peak. */
static inline struct dp_rate dp_rate_defaults(double peak, int64_t warmup, int64_t period)
{
    struct dp_rate rate = {DP_RATE_COSINE, peak, 1e-6, 1, period, false, warmup, 0.01};

    return rate;
}

/* DP_EINVAL with the member that is wrong. */
DP_PUBLIC int dp_rate_check(const struct dp_rate *rate);
/* The rate of a step, counted from 0; `rate` must pass dp_rate_check. */
DP_PUBLIC double dp_rate_at(const struct dp_rate *rate, int64_t step);

/* ---- norms and clipping --------------------------------------------------------------------- */

/* squares[i]: the sum of the squares of gradient i in float64, 0 for a frozen one; not finite if one
 * of its elements is not. The order of additions depends on the number of elements alone. The list
 * must be sound. DP_EUNSUPPORTED for memory that the host does not reach. */
DP_PUBLIC int dp_gradient_squares(const struct dp_parameter *parameters, int32_t count,
                                  double *squares);

/* Their sum with every parameter of the model counted once: of a tied group only the first in the
 * list; and only those with counted[i], if there is such a list: exactly one of the ranks that hold a
 * copy (mirrors, replicas, other members of a tied group) counts it. The square root of the sum over
 * all ranks is the global norm; over the parameters of a bucket, the bucket's. */
DP_PUBLIC double dp_gradient_sum(const struct dp_parameter *parameters, int32_t count,
                                 const bool *counted, const double *squares);

/* What to multiply gradients of this norm with, so that it becomes `limit` at most:
 * min(1, limit / (norm + epsilon)); 1 if limit is 0. torch's clip_grad_norm_ has an epsilon of 1e-6. */
static inline double dp_clip_factor(double norm, double limit, double epsilon)
{
    double factor = limit > 0 ? limit / (norm + epsilon) : 1;

    return factor < 1 ? factor : 1;
}

/* Multiply all gradients, for programs that clip without an optimizer of this library; 0 makes a NaN of
 * what is not finite. DP_EUNSUPPORTED as above. */
DP_PUBLIC int dp_gradients_scale(const struct dp_parameter *parameters, int32_t count,
                                 double factor);
/* Set all gradients to zero, whatever they were. DP_EUNSUPPORTED as above. */
DP_PUBLIC int dp_gradients_zero(const struct dp_parameter *parameters, int32_t count);

/* ---- loss scale ----------------------------------------------------------------------------- */

/* The loss is multiplied with `scale` before the backward, so that small gradients survive in 16
 * bits, and the gradients with its inverse before the update. */
struct dp_loss_scale {
    double scale;
    double growth, backoff; /* of scale: after `interval` good steps in a row; after an overflow */
    int32_t interval;
    double least, most; /* of scale */
    int32_t good;       /* steps in a row without an overflow */
};

/* As torch's GradScaler: 65536, growth 2, backoff 0.5, interval 2000; from 1 to 2^24. */
static inline struct dp_loss_scale dp_loss_scale_defaults(void)
{
    struct dp_loss_scale scale = {65536, 2, 0.5, 2000, 1, 16777216, 0};

    return scale;
}

/* After every step, with the same `overflow` on all ranks (the global norm was not finite). */
DP_PUBLIC void dp_loss_scale_update(struct dp_loss_scale *scale, bool overflow);

#ifdef __cplusplus
}
#endif
#endif
