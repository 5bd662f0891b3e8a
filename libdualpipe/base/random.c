/* SPDX-License-Identifier: Apache-2.0 */
#include <dualpipe/random.h>

#include <math.h>

/* Philox4x32-10: ten rounds of two 32 x 32 -> 64 bit products, the key bumped before each but the
 * first. Constants: Salmon et al., table 2 and section 4. */
enum { ROUNDS = 10 };
static const uint32_t M0 = 0xD2511F53, M1 = 0xCD9E8D57;
static const uint32_t W0 = 0x9E3779B9, W1 = 0xBB67AE85;

void dp_random_block(struct dp_random_key key, uint64_t i, uint32_t out[4])
{
    uint32_t c0 = (uint32_t)i, c1 = (uint32_t)(i >> 32);
    uint32_t c2 = (uint32_t)key.stream, c3 = (uint32_t)(key.stream >> 32);
    uint32_t k0 = (uint32_t)key.key, k1 = (uint32_t)(key.key >> 32);

    for (int round = 0; round < ROUNDS; round++) {
        uint64_t p0 = (uint64_t)M0 * c0, p1 = (uint64_t)M1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += W0;
        k1 += W1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* A bijection that maps 0 to 0: the finaliser of MurmurHash3. */
static uint64_t scramble(uint64_t h)
{
    h = (h ^ h >> 33) * UINT64_C(0xFF51AFD7ED558CCD);
    h = (h ^ h >> 33) * UINT64_C(0xC4CEB9FE1A85EC53);
    return h ^ h >> 33;
}

/* The low bits of the place are in the stream; the high ones, if any are set, change the key. Deriving
 * a second key out of such a key changes it again. */
static uint64_t add_high(uint64_t seed, uint64_t high)
{
    return high ? scramble(seed ^ scramble(high)) : seed;
}

struct dp_random_key dp_random_key(uint64_t seed, uint64_t step, uint32_t where, uint32_t mb)
{
    return (struct dp_random_key){
        .key = add_high(seed, step >> 32 << 32 | (uint64_t)(where >> 16) << 16 | mb >> 16),
        .stream = step << 32 | (uint64_t)(where & 0xFFFF) << 16 | (mb & 0xFFFF),
    };
}

void dp_random_uniform(struct dp_random_key key, uint64_t first, float *out, size_t n)
{
    uint32_t block[4];

    for (size_t i = 0; i < n; i++) {
        uint64_t at = first + i;
        if (i == 0 || at % 4 == 0)
            dp_random_block(key, at / 4, block);
        out[i] = (float)(block[at % 4] >> 8) * 0x1p-24f;
    }
}

void dp_random_normal(struct dp_random_key key, uint64_t first, float *out, size_t n)
{
    /* Number 2k and 2k + 1 are the two results of Box-Muller on uniform numbers 2k and 2k + 1. */
    for (size_t i = 0; i < n; i++) {
        uint64_t at = first + i;
        float u[2];
        dp_random_uniform(key, at & ~UINT64_C(1), u, 2);
        double radius = sqrt(-2.0 * log(1.0 - (double)u[0]));
        double angle = 2.0 * 3.14159265358979323846 * (double)u[1];
        out[i] = (float)(radius * (at % 2 ? sin(angle) : cos(angle)));
    }
}
