/* SPDX-License-Identifier: Apache-2.0
 *
 * hmac.h - HMAC-SHA256 (RFC 2104, FIPS 180-4), for the proofs of handshakes: short messages, no speed.
 * Our own, as a library of cryptography must not come into other programs along with the plugin.
 *
 *      dp_hmac_begin(&h, key, len); dp_hmac_add(&h, bytes, len) ...; dp_hmac_end(&h, out);
 */
#ifndef DP_BASE_HMAC_H
#define DP_BASE_HMAC_H

#include <dualpipe/dualpipe.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DP_HMAC_BYTES = 32, DP_NONCE_BYTES = 16, DP_SHA256_BLOCK = 64 };

struct dp_sha256 {
    uint32_t state[8];
    uint64_t len; /* bytes so far */
    uint8_t block[DP_SHA256_BLOCK];
};

struct dp_hmac {
    struct dp_sha256 inner, outer;
};

/* A key of any length. */
void dp_hmac_begin(struct dp_hmac *hmac, const void *key, size_t len);
void dp_hmac_add(struct dp_hmac *hmac, const void *bytes, size_t len);
void dp_hmac_end(struct dp_hmac *hmac, uint8_t out[DP_HMAC_BYTES]);
/* Random bytes of the kernel, 256 at most, for keys and names that are not to be guessed. DP_EIO. */
int dp_random_bytes(void *bytes, size_t len);
/* In a time that does not depend on what differs. */
bool dp_hmac_is_equal(const uint8_t a[DP_HMAC_BYTES], const uint8_t b[DP_HMAC_BYTES]);

/* ---- secret ---------------------------------------------------------------------------------- */

/* How two processes show each other that they know the same secret, without telling it:
 * each answers the other's random number with an HMAC-SHA256 over both. */

enum { DP_PROOF_BYTES = DP_HMAC_BYTES };

/* What a proof is about. A proof holds for one side of one handshake of one rank only. */
struct dp_handshake {
    uint8_t member_nonce[DP_NONCE_BYTES], root_nonce[DP_NONCE_BYTES];
    int32_t rank, size;
};

enum dp_prover { DP_PROVER_MEMBER = 1, DP_PROVER_ROOT };

/* secret may be NULL: then every process can prove it. */
void dp_secret_prove(const char *secret, enum dp_prover prover,
                     const struct dp_handshake *handshake, uint8_t proof[DP_PROOF_BYTES]);
/* In a time that does not depend on what is wrong. */
bool dp_secret_is_proof(const char *secret, enum dp_prover prover,
                        const struct dp_handshake *handshake, const uint8_t proof[DP_PROOF_BYTES]);

#endif
