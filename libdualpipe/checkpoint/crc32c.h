/* SPDX-License-Identifier: Apache-2.0
 *
 * crc32c.h - CRC-32C (Castagnoli's polynomial), as in iSCSI and ext4: finds every error of up to 32
 * consecutive bits, and CPUs have an instruction for it.
 */
#ifndef DP_CHECKPOINT_CRC32C_H
#define DP_CHECKPOINT_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Of `crc`'s bytes with data[len] behind them; 0 for none. Any thread. */
uint32_t dp_crc32c(uint32_t crc, const void *data, size_t len);

/* For tests: without the instruction. */
uint32_t dp_crc32c_table(uint32_t crc, const void *data, size_t len);

#endif
