/* SPDX-License-Identifier: Apache-2.0
 *
 * columns.cu - sums over rows: gradients of biases and of a norm's gain. The threads of a block that
 * have one column take turns with the rows; the order of every sum is fixed.
 */

KERNEL(NAME(columns), columns_args)
{
    const int place = thread_id() % COLUMNS, share = thread_id() / COLUMNS;
    const int shares = thread_count() / COLUMNS, column = block_x() * COLUMNS + place;
    float *sums = block_memory(), *along = sums + thread_count();
    float sum = 0, product = 0;

    for (int row = share; row < a.n && column < a.width; row += shares) {
        const size_t i = (size_t)row * (size_t)a.width + (size_t)column;
        const float d = LOAD(a.dy, i);
        sum += d;
        if (a.xhat)
            product += d * LOAD(a.xhat, i);
    }
    sums[thread_id()] = sum;
    along[thread_id()] = product;
    block_sync();
    if (share > 0 || column >= a.width)
        return;
    for (int k = 1; k < shares; k++) {
        sum += sums[k * COLUMNS + place];
        product += along[k * COLUMNS + place];
    }
    a.sums[column] += sum;
    if (a.xhat)
        a.dgain[column] += product;
}
