/* SPDX-License-Identifier: Apache-2.0
 *
 * elements.cu - what is done to each element by itself.
 */

#define EACH for (uint64_t i = first_element(); i < a.count; i += element_stride())

KERNEL(NAME(copy), elements_args)
{
    EACH STORE(a.y, i, LOAD(a.x, i));
}

KERNEL(NAME(zero), elements_args)
{
    EACH STORE(a.x, i, 0.0f);
}

/* x += y */
KERNEL(NAME(add), elements_args)
{
    EACH STORE(a.x, i, LOAD(a.x, i) + LOAD(a.y, i));
}

/* y = gelu(x); x becomes the slope (ops.c has the formula). */
KERNEL(NAME(gelu_forward), elements_args)
{
    const float p = 0.7978845608028654f, q = 0.044715f;

    EACH {
        const float z = LOAD(a.x, i), square = z * z;
        const float gate = 1 / (1 + expf(-2 * p * z * (1 + q * square)));
        STORE(a.y, i, z * gate);
        STORE(a.x, i, gate + 2 * p * z * (1 + 3 * q * square) * gate * (1 - gate));
    }
}

/* y *= x */
KERNEL(NAME(gelu_backward), elements_args)
{
    EACH STORE(a.y, i, LOAD(a.y, i) * LOAD(a.x, i));
}

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

#undef EACH
