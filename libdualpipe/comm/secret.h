/* SPDX-License-Identifier: Apache-2.0
 *
 * secret.h - how two processes show each other that they know the same secret, without telling it:
 * each answers the other's random number with an HMAC-SHA256 over both.
 */
#ifndef DP_COMM_SECRET_H
#define DP_COMM_SECRET_H

#include "base/hmac.h"

#include <dualpipe/dualpipe.h>

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
