/* SPDX-License-Identifier: Apache-2.0
 *
 * columns.cu - sums over rows: gradients of biases and of a norm's gain. A block has 32 x 8 columns and a
 * run of rows, which its warps take in turns; columns_sum adds up the blocks of a column. The order of every
 * sum follows from the shape alone.
 */

KERNEL(NAME(columns), columns_args)
{
    const int lane = thread_id() % WARP_LANES, warp = thread_id() / WARP_LANES;
    const int column = (block_x() * WARP_LANES + lane) * 8, first = block_y() * a.rows;
    const int end = first + a.rows < a.n ? first + a.rows : a.n, left = a.width - column;
    const bool whole = a.width % 8 == 0 && is_aligned(a.dy, a.xhat);
    float *shared = block_memory(), sum[8] = {0}, along[8] = {0}, d[8], x[8];

    for (int row = first + warp; row < end && left > 0; row += BLOCK_ROWS) {
        const size_t at = (size_t)row * (size_t)a.width + (size_t)column;
        NAME(load_eight)(a.dy, at, whole, left, d);
        if (a.xhat)
            NAME(load_eight)(a.xhat, at, whole, left, x);
        UNROLL for (int k = 0; k < 8; k++) {
            sum[k] += d[k];
            along[k] += a.xhat ? d[k] * x[k] : 0;
        }
    }
    UNROLL for (int k = 0; k < 8; k++) {
        shared[k * BLOCK_THREADS + thread_id()] = sum[k];
        shared[(8 + k) * BLOCK_THREADS + thread_id()] = along[k];
    }
    block_sync();
    for (int i = warp; i < (a.xhat ? 16 : 8); i += BLOCK_ROWS) {
        float total = 0;
        for (int w = 0; w < BLOCK_ROWS; w++)
            total += shared[i * BLOCK_THREADS + w * WARP_LANES + lane];
        if (i % 8 < left)
            a.parts[((size_t)(i / 8) * (size_t)blocks_y() + (size_t)block_y()) * (size_t)a.width +
                    (size_t)(column + i % 8)] = total;
    }
}
