/* SPDX-License-Identifier: Apache-2.0
 *
 * sums.cu - sums in a fixed order, those of losses in double; and random numbers.
 */

/* What the blocks of columns_f32 and columns_bf16 have, added up. */
KERNEL(columns_sum, columns_args)
{
    const int column = block_x() * thread_count() + thread_id();
    float sum = 0, along = 0;

    if (column >= a.width)
        return;
    for (int i = 0; i < a.part_count; i++) {
        sum += a.parts[(size_t)i * (size_t)a.width + (size_t)column];
        if (a.xhat)
            along += a.parts[(size_t)(a.part_count + i) * (size_t)a.width + (size_t)column];
    }
    a.sums[column] += sum;
    if (a.xhat)
        a.dgain[column] += along;
}

/* The sum of what each thread of the block has, in thread 0; the block's size is a power of two. */
DEVICE double block_sum(double x)
{
    double *sums = (double *)block_memory();

    sums[thread_id()] = x;
    for (int half = thread_count() / 2; half; half /= 2) {
        block_sync();
        if (thread_id() < half)
            sums[thread_id()] += sums[thread_id() + half];
    }
    return sums[thread_id()];
}

KERNEL(sum, sum_args)
{
    double sum = 0;

    for (int i = thread_id(); i < a.count; i += thread_count())
        sum += (double)a.x[i];
    sum = block_sum(sum);
    if (thread_id() == 0)
        *a.sum = sum * a.scale;
}

/* Philox4x32-10, as random.c. */
DEVICE void philox(uint64_t key, uint64_t stream, uint64_t i, uint32_t out[4])
{
    uint32_t c0 = (uint32_t)i, c1 = (uint32_t)(i >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}
