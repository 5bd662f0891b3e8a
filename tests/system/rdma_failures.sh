#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# rdma_failures.sh - rails, the control connection and the peer fail between two virtual machines, and come
# back.
. "$DP_TOP_SRCDIR/tests/rdma-vm/guests.sh"
in_guests --hosts 2 --devices 4 -- sh "$DP_TOP_SRCDIR/tests/rdma-vm/two_guests_fail.sh"
