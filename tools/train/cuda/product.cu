/* SPDX-License-Identifier: Apache-2.0
 *
 * product.cu - a matrix product for machines without cuBLASLt: correct, not fast. A thread an element
 * of c, tiles of both factors in the block's memory.
 */

KERNEL(NAME(product), product_args)
{
    enum { TILE = PRODUCT_TILE, STRIDE = TILE + 1 };
    float *left = block_memory(), *right = left + TILE * STRIDE;
    const int i = thread_id() / TILE, j = thread_id() % TILE;
    const int row = block_y() * TILE + i, column = block_x() * TILE + j;
    const size_t at = (size_t)row * (size_t)a.n + (size_t)column;
    float sum = 0;

    for (int k = 0; k < a.k; k += TILE) {
        left[i * STRIDE + j] = row < a.m && k + j < a.k
                                   ? LOAD(a.a, (size_t)row * (size_t)a.a_row +
                                                   (size_t)(k + j) * (size_t)a.a_column)
                                   : 0.0f;
        right[i * STRIDE + j] = k + i < a.k && column < a.n
                                    ? LOAD(a.b, (size_t)(k + i) * (size_t)a.b_row +
                                                    (size_t)column * (size_t)a.b_column)
                                    : 0.0f;
        block_sync();
        for (int d = 0; d < TILE; d++)
            sum += left[i * STRIDE + d] * right[d * STRIDE + j];
        block_sync();
    }
    if (row >= a.m || column >= a.n)
        return;
    if (a.bias)
        sum += LOAD(a.bias, column);
    if (a.wide)
        ((float *)a.c)[at] = a.accumulate ? ((float *)a.c)[at] + sum : sum;
    else
        STORE(a.c, at, a.accumulate ? LOAD(a.c, at) + sum : sum);
}
