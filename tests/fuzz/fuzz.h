/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz.h - what a fuzz target defines: take any bytes, and crash if something is wrong.
 */
#ifndef DP_TESTS_FUZZ_H
#define DP_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
