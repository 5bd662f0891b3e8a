/* SPDX-License-Identifier: Apache-2.0
 *
 * typed.cuh - the kernels that there are for each type of activations; no guard, for kernels.cu.
 */
#include "attention.cu"
#include "columns.cu"
#include "elements.cu"
#include "embed.cu"
#include "entropy.cu"
#include "norm.cu"
#include "product.cu"
