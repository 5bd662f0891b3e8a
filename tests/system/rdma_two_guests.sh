#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# rdma_two_guests.sh - the plugin and real verbs between two virtual machines.
. "$DP_TOP_SRCDIR/tests/rdma-vm/guests.sh"
in_guests --hosts 2 -- sh "$DP_TOP_SRCDIR/tests/rdma-vm/two_guests.sh"
