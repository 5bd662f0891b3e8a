#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# rdma_harm.sh - the plugin over lost and harmed packets, and without rails that it had, in a virtual
# machine with four Soft-RoCE devices.
. "$DP_TOP_SRCDIR/tests/rdma-vm/guests.sh"
in_guests --devices 4 -- sh "$DP_TOP_SRCDIR/tests/rdma-vm/harm.sh"
