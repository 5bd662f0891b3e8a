/* SPDX-License-Identifier: Apache-2.0 */
#include "mixing/hash.h"

#include <string.h>

uint64_t dp_hash_bytes(uint64_t hash, const void *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

uint64_t dp_hash_parameters(const struct dp_parameter *parameters, int32_t count)
{
    uint64_t hash = DP_HASH_BEGIN;

    for (int32_t i = 0; i < count; i++) {
        const struct dp_parameter *p = &parameters[i];
        int64_t elements = dp_parameter_elements(p);
        hash = dp_hash_bytes(hash, p->name, strlen(p->name) + 1);
        hash = dp_hash_bytes(hash, &p->value->dtype, sizeof(p->value->dtype));
        hash = dp_hash_bytes(hash, &elements, sizeof(elements));
        hash = dp_hash_bytes(hash, &p->flags, sizeof(p->flags));
    }
    return hash;
}
