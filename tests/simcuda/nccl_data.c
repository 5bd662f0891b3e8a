/* SPDX-License-Identifier: Apache-2.0 */
#include "simcuda/nccl_data.h"

#include "base/fp16.h"
#include "simcuda/nccl_api.h"

#include <string.h>

int nccl_data_value(int rank, size_t index, unsigned round)
{
    uint32_t x = (uint32_t)index * 0x9e3779b1u ^ (uint32_t)rank * 0x85ebca6bu ^ round * 0xc2b2ae35u;

    x = (x ^ x >> 15) * 0x2c1b3c6du;
    return (int)((x ^ x >> 13) % 29);
}

size_t nccl_data_type_bytes(int type)
{
    switch (type) {
    case NCCL_UINT8:
        return 1;
    case NCCL_BFLOAT16:
        return 2;
    case NCCL_INT64:
        return 8;
    default:
        return 4;
    }
}

#define STORE(type, number)                                                                        \
    do {                                                                                           \
        type stored = (type)(number);                                                              \
        memcpy(at, &stored, sizeof(stored));                                                       \
    } while (0)

void nccl_data_store(void *at, int type, double value)
{
    switch (type) {
    case NCCL_UINT8:
        STORE(uint8_t, value);
        break;
    case NCCL_BFLOAT16:
        STORE(uint16_t, dp_bfloat16_store((float)value));
        break;
    case NCCL_INT64:
        STORE(int64_t, value);
        break;
    case NCCL_INT32:
        STORE(int32_t, value);
        break;
    default:
        STORE(float, value);
    }
}
