/* SPDX-License-Identifier: Apache-2.0 */
#include "mixing/hash.h"
#include "base/hash.h"

uint64_t dp_hash_parameters(const struct dp_parameter *parameters, int32_t count)
{
    uint64_t hash = DP_HASH_BEGIN;

    for (int32_t i = 0; i < count; i++) {
        const struct dp_parameter *p = &parameters[i];
        hash = dp_hash_text(hash, p->name);
        hash = dp_hash_bytes(hash, &p->value->dtype, sizeof(p->value->dtype));
        hash = dp_hash_number(hash, dp_parameter_elements(p));
        hash = dp_hash_number(hash, (int64_t)p->flags);
    }
    return hash;
}
