/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_abi_layout.c - our declarations have NCCL's layout, or this does not compile.
 */
#include "nccl-plugin/nccl_abi.h"

#define NCCL_STRUCT(type, bytes) \
    _Static_assert(sizeof(struct type) == (bytes), "the size of " #type);
#define NCCL_MEMBER(type, member, offset, bytes)                                                 \
    _Static_assert(offsetof(struct type, member) == (offset), "where " #type "." #member " is"); \
    _Static_assert(sizeof(((struct type *)0)->member) == (bytes), "the size of " #type "." #member);
#include "tests/conformance/nccl_abi_layout.h"
