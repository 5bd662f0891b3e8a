/* SPDX-License-Identifier: Apache-2.0
 *
 * embed.cu - tokens to vectors and back. No atomics: each element of a gradient has one thread, which
 * adds up in the order of tokens, so that the bits are the same in every run.
 */

KERNEL(NAME(embed_forward), embed_args)
{
    const uint64_t count = (uint64_t)a.n * (uint64_t)a.width;

    for (uint64_t i = first_element(); i < count; i += element_stride()) {
        const uint64_t row = i / (uint64_t)a.width, j = i % (uint64_t)a.width;
        const uint64_t place = row % (uint64_t)a.context;
        STORE(a.y, i, a.table[a.tokens[row] * (uint64_t)a.width + j] +
                          a.positions[place * (uint64_t)a.width + j]);
    }
}

/* Block (x, y): columns from x * threads on, of token y. */
KERNEL(NAME(embed_table), embed_args)
{
    const int column = block_x() * thread_count() + thread_id(), token = block_y();
    float sum = 0;

    if (column >= a.width)
        return;
    for (int row = 0; row < a.n; row++)
        if (a.tokens[row] == token)
            sum += LOAD(a.dy, (size_t)row * (size_t)a.width + (size_t)column);
    a.dtable[(size_t)token * (size_t)a.width + (size_t)column] += sum;
}

/* Block (x, y): the same columns of position y. */
KERNEL(NAME(embed_positions), embed_args)
{
    const int column = block_x() * thread_count() + thread_id(), place = block_y();
    float sum = 0;

    if (column >= a.width)
        return;
    for (int row = place; row < a.n; row += a.context)
        sum += LOAD(a.dy, (size_t)row * (size_t)a.width + (size_t)column);
    a.dpositions[(size_t)place * (size_t)a.width + (size_t)column] += sum;
}
