#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# net_shm.sh - the net plugin does what NCCL asks of it in every version, over shared memory.
. "$DP_TOP_SRCDIR/tests/conformance/conform.sh"

versions_over shm
case_is 'v12 over shm, large messages by the ring' \
    "$(DUALPIPE_WIRE_CMA=0 over shm --version 12 $plugin)"
longest_over shm
cases_end
