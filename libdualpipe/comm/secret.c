/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/secret.h"

#include <string.h>

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
