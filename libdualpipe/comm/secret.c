/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/secret.h"

#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <string.h>

void dp_secret_prove(const char *secret, enum dp_prover prover,
                     const struct dp_handshake *handshake, uint8_t proof[DP_PROOF_BYTES])
{
    static const char purpose[] = "dualpipe comm 1";
    const uint8_t side = (uint8_t)prover;
    struct hmac_sha256_ctx hmac;

    hmac_sha256_set_key(&hmac, secret ? strlen(secret) : 0,
                        (const uint8_t *)(secret ? secret : ""));
    hmac_sha256_update(&hmac, sizeof(purpose), (const uint8_t *)purpose);
    hmac_sha256_update(&hmac, sizeof(side), &side);
    hmac_sha256_update(&hmac, sizeof(*handshake), (const uint8_t *)handshake);
    hmac_sha256_digest(&hmac, DP_PROOF_BYTES, proof);
}

bool dp_secret_is_proof(const char *secret, enum dp_prover prover,
                        const struct dp_handshake *handshake, const uint8_t proof[DP_PROOF_BYTES])
{
    uint8_t expected[DP_PROOF_BYTES];

    dp_secret_prove(secret, prover, handshake, expected);
    return memeql_sec(expected, proof, sizeof(expected));
}
