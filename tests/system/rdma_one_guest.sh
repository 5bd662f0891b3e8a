#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# rdma_one_guest.sh - the plugin and real verbs, in a virtual machine with four Soft-RoCE devices.
. "$DP_TOP_SRCDIR/tests/rdma-vm/guests.sh"
in_guests --devices 4 -- sh "$DP_TOP_SRCDIR/tests/rdma-vm/one_guest.sh"
