/* SPDX-License-Identifier: Apache-2.0
 *
 * entropy.cu - cross entropy, a warp a row.
 */

/* log(sum(exp(row))), without overflow, in every lane. */
DEVICE float NAME(log_sum_exp)(const void *logits, size_t at, int classes, int lane)
{
    float most = -3.402823466e38f, sum = 0;

    for (int j = lane; j < classes; j += WARP_LANES)
        most = fmaxf(most, LOAD(logits, at + (size_t)j));
    most = warp_max(most);
    for (int j = lane; j < classes; j += WARP_LANES)
        sum += expf(LOAD(logits, at + (size_t)j) - most);
    return most + logf(warp_sum(sum));
}

KERNEL(NAME(entropy_forward), entropy_args)
{
    const int row = block_x() * BLOCK_ROWS + thread_id() / WARP_LANES;
    const int lane = thread_id() % WARP_LANES;
    const size_t at = (size_t)row * (size_t)a.classes;

    if (row >= a.n)
        return;
    const float lse = NAME(log_sum_exp)(a.logits, at, a.classes, lane);
    if (lane == 0)
        a.losses[row] = lse - LOAD(a.logits, at + a.labels[row]);
}

KERNEL(NAME(entropy_backward), entropy_args)
{
    const int row = block_x() * BLOCK_ROWS + thread_id() / WARP_LANES;
    const int lane = thread_id() % WARP_LANES;
    const size_t at = (size_t)row * (size_t)a.classes;

    if (row >= a.n)
        return;
    const float lse = NAME(log_sum_exp)(a.logits, at, a.classes, lane);
    for (int j = lane; j < a.classes; j += WARP_LANES) {
        const float p = expf(LOAD(a.logits, at + (size_t)j) - lse);
        STORE(a.dlogits, at + (size_t)j, (p - (j == a.labels[row] ? 1.0f : 0.0f)) * a.each);
    }
}
