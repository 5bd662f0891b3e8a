/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hmac.h"

#include "base/fail.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

int dp_random_bytes(void *bytes, size_t len)
{
    if (getrandom(bytes, len, 0) != (ssize_t)len)
        return dp_fail(DP_EIO, "no random numbers from the kernel: %s", strerror(errno));
    return 0;
}

/* ---- SHA-256, FIPS 180-4 section 6.2 ------------------------------------------------------- */

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};
static const uint32_t INITIAL[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

static uint32_t rotate(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

/* The message schedule. */
static void expand(const uint8_t *block, uint32_t w[64])
{
    for (int t = 0; t < 16; t++)
        w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 |
               (uint32_t)block[4 * t + 2] << 8 | block[4 * t + 3];
    for (int t = 16; t < 64; t++) {
        const uint32_t a = w[t - 15], b = w[t - 2];
        w[t] = w[t - 16] + w[t - 7] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) +
               (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
}

static void compress(uint32_t state[8], const uint8_t *block)
{
    uint32_t w[64], s[8];

    expand(block, w);
    memcpy(s, state, sizeof(s));
    for (int t = 0; t < 64; t++) {
        const uint32_t a = s[0], e = s[4];
        const uint32_t t1 = s[7] + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) +
                            ((e & s[5]) ^ (~e & s[6])) + K[t] + w[t];
        const uint32_t t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) +
                            ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof(s[0]));
        s[4] += t1;
        s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        state[i] += s[i];
}

static void begin(struct dp_sha256 *hash)
{
    hash->len = 0;
    memcpy(hash->state, INITIAL, sizeof(INITIAL));
}

static void add(struct dp_sha256 *hash, const uint8_t *bytes, size_t len)
{
    while (len) {
        const size_t at = hash->len % DP_SHA256_BLOCK, room = DP_SHA256_BLOCK - at;
        const size_t n = len < room ? len : room;
        memcpy(hash->block + at, bytes, n);
        hash->len += n;
        bytes += n;
        len -= n;
        if (n == room)
            compress(hash->state, hash->block);
    }
}

static void end(struct dp_sha256 *hash, uint8_t out[DP_HMAC_BYTES])
{
    static const uint8_t padding[DP_SHA256_BLOCK] = {0x80};
    const uint64_t bits = hash->len * 8;
    uint8_t length[8];

    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(bits >> (56 - 8 * i));
    add(hash, padding, 1 + (2 * DP_SHA256_BLOCK - 9 - hash->len % DP_SHA256_BLOCK) % DP_SHA256_BLOCK);
    add(hash, length, sizeof(length));
    for (int i = 0; i < DP_HMAC_BYTES; i++)
        out[i] = (uint8_t)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
}

/* ---- HMAC, RFC 2104 ------------------------------------------------------------------------ */

static void begin_with(struct dp_sha256 *hash, const uint8_t key[DP_SHA256_BLOCK], uint8_t pad)
{
    uint8_t block[DP_SHA256_BLOCK];

    for (int i = 0; i < DP_SHA256_BLOCK; i++)
        block[i] = key[i] ^ pad;
    begin(hash);
    add(hash, block, sizeof(block));
}

void dp_hmac_begin(struct dp_hmac *hmac, const void *key, size_t len)
{
    uint8_t block[DP_SHA256_BLOCK] = {0};

    if (len > sizeof(block)) {
        begin(&hmac->inner);
        add(&hmac->inner, key, len);
        end(&hmac->inner, block);
    } else if (len) {
        memcpy(block, key, len);
    }
    begin_with(&hmac->inner, block, 0x36);
    begin_with(&hmac->outer, block, 0x5c);
}

void dp_hmac_add(struct dp_hmac *hmac, const void *bytes, size_t len)
{
    add(&hmac->inner, bytes, len);
}

void dp_hmac_end(struct dp_hmac *hmac, uint8_t out[DP_HMAC_BYTES])
{
    end(&hmac->inner, out);
    add(&hmac->outer, out, DP_HMAC_BYTES);
    end(&hmac->outer, out);
}

bool dp_hmac_is_equal(const uint8_t a[DP_HMAC_BYTES], const uint8_t b[DP_HMAC_BYTES])
{
    uint8_t differing = 0;

    for (int i = 0; i < DP_HMAC_BYTES; i++)
        differing |= a[i] ^ b[i];
    return !differing;
}

/* ---- secret ---------------------------------------------------------------------------------- */

void dp_secret_prove(const char *secret, enum dp_prover prover,
                     const struct dp_handshake *handshake, uint8_t proof[DP_PROOF_BYTES])
{
    static const char purpose[] = "dualpipe comm 1";
    const uint8_t side = (uint8_t)prover;
    struct dp_hmac hmac;

    dp_hmac_begin(&hmac, secret, secret ? strlen(secret) : 0);
    dp_hmac_add(&hmac, purpose, sizeof(purpose));
    dp_hmac_add(&hmac, &side, sizeof(side));
    dp_hmac_add(&hmac, handshake, sizeof(*handshake));
    dp_hmac_end(&hmac, proof);
}

bool dp_secret_is_proof(const char *secret, enum dp_prover prover,
                        const struct dp_handshake *handshake, const uint8_t proof[DP_PROOF_BYTES])
{
    uint8_t expected[DP_PROOF_BYTES];

    dp_secret_prove(secret, prover, handshake, expected);
    return dp_hmac_is_equal(expected, proof);
}
