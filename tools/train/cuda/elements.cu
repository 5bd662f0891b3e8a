/* SPDX-License-Identifier: Apache-2.0
 *
 * elements.cu - what is done to each element by itself.
 */

/* What is done to x and y, elements of a.x and a.y: which of the two are read and written is constant. */
#define ELEMENTS(name, read_x, read_y, write_x, write_y, ...)                                      \
    KERNEL(NAME(name), elements_args)                                                              \
    {                                                                                              \
        for (uint64_t i = 8 * first_element(); i < a.count; i += 8 * element_stride()) {           \
            const int64_t left = (int64_t)(a.count - i);                                           \
            const bool whole = left >= 8 && is_aligned(a.x, a.y);                                  \
            float xs[8] = {0}, ys[8] = {0};                                                        \
            if (read_x)                                                                            \
                NAME(load_eight)(a.x, i, whole, left, xs);                                         \
            if (read_y)                                                                            \
                NAME(load_eight)(a.y, i, whole, left, ys);                                         \
            UNROLL for (int k = 0; k < 8; k++) {                                                   \
                float x = xs[k], y = ys[k];                                                        \
                __VA_ARGS__                                                                        \
                xs[k] = x;                                                                         \
                ys[k] = y;                                                                         \
            }                                                                                      \
            if (write_x)                                                                           \
                NAME(store_eight)(a.x, i, whole, left, xs);                                        \
            if (write_y)                                                                           \
                NAME(store_eight)(a.y, i, whole, left, ys);                                        \
        }                                                                                          \
    }

ELEMENTS(copy, 1, 0, 0, 1, y = x;)
ELEMENTS(zero, 0, 0, 1, 0, x = 0;)
ELEMENTS(add, 1, 1, 1, 0, x += y;)
ELEMENTS(gelu_backward, 1, 1, 0, 1, y *= x;)
/* y = gelu(x); x becomes the slope (ops.c has the formula). */
ELEMENTS(gelu_forward, 1, 0, 1, 1,
    const float p = 0.7978845608028654f, q = 0.044715f, z = x, square = z * z;
    const float gate = 1 / (1 + expf(-2 * p * z * (1 + q * square)));
    y = z * gate;
    x = gate + 2 * p * z * (1 + 3 * q * square) * gate * (1 - gate);)

#undef ELEMENTS

/* The numbers of dp_random_uniform; a thread has the four of a block of the generator. */
KERNEL(NAME(dropout), dropout_args)
{
    for (uint64_t b = first_element(); 4 * b < a.count; b += element_stride()) {
        uint32_t random[4];

        philox(a.key, a.stream, b, random);
        for (int k = 0; k < 4; k++) {
            const uint64_t i = 4 * b + (uint64_t)k;
            const float u = (float)(random[k] >> 8) * 5.9604644775390625e-8f; /* 2^-24 */
            if (i < a.count)
                STORE(a.x, i, u < a.rate ? 0.0f : LOAD(a.x, i) * a.scale);
        }
    }
}
