/* SPDX-License-Identifier: Apache-2.0
 *
 * norm.cu - layer normalisation, a warp a row.
 */

KERNEL(NAME(norm_forward), norm_args)
{
    const int row = block_x() * BLOCK_ROWS + thread_id() / WARP_LANES;
    const int lane = thread_id() % WARP_LANES;
    const size_t at = (size_t)row * (size_t)a.width;
    float sum = 0, squares = 0;

    if (row >= a.n)
        return;
    for (int j = lane; j < a.width; j += WARP_LANES)
        sum += LOAD(a.x, at + (size_t)j);
    const float mean = warp_sum(sum) / (float)a.width;
    for (int j = lane; j < a.width; j += WARP_LANES) {
        const float d = LOAD(a.x, at + (size_t)j) - mean;
        squares += d * d;
    }
    const float rstd = 1 / sqrtf(warp_sum(squares) / (float)a.width + 1e-5f);
    if (lane == 0)
        a.rstd[row] = rstd;
    for (int j = lane; j < a.width; j += WARP_LANES) {
        const float xhat = (LOAD(a.x, at + (size_t)j) - mean) * rstd;
        STORE(a.xhat, at + (size_t)j, xhat);
        STORE(a.y, at + (size_t)j, xhat * a.gain[j] + a.bias[j]);
    }
}

/* With g = dy gain: dx += rstd (g - mean(g) - xhat mean(g xhat)). */
KERNEL(NAME(norm_backward), norm_args)
{
    const int row = block_x() * BLOCK_ROWS + thread_id() / WARP_LANES;
    const int lane = thread_id() % WARP_LANES;
    const size_t at = (size_t)row * (size_t)a.width;
    float sum = 0, along = 0;

    if (row >= a.n)
        return;
    for (int j = lane; j < a.width; j += WARP_LANES) {
        const float g = LOAD(a.x, at + (size_t)j) * a.gain[j];
        sum += g;
        along += g * LOAD(a.xhat, at + (size_t)j);
    }
    const float mean = warp_sum(sum) / (float)a.width;
    const float slope = warp_sum(along) / (float)a.width;
    for (int j = lane; j < a.width; j += WARP_LANES) {
        const float g = LOAD(a.x, at + (size_t)j) * a.gain[j];
        const float d = a.rstd[row] * (g - mean - LOAD(a.xhat, at + (size_t)j) * slope);
        STORE(a.y, at + (size_t)j, LOAD(a.y, at + (size_t)j) + d);
    }
}
