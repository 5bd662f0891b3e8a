#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# rdma_classes.sh - traffic classes of the plugin over real verbs, in a virtual machine with two Soft-RoCE
# devices, one of them behind a bottleneck: with --full only, as it compares times within one boot.
. "$DP_TOP_SRCDIR/tests/rdma-vm/guests.sh"
[ -n "${DP_TEST_FULL:-}" ] || skip 'with --full only'
in_guests --devices 2 -- sh "$DP_TOP_SRCDIR/tests/rdma-vm/classes.sh"
