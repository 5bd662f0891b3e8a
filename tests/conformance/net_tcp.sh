#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# net_tcp.sh - the net plugin does what NCCL asks of it in every version, over TCP.
. "$DP_TOP_SRCDIR/tests/conformance/conform.sh"

versions_over tcp
longest_over tcp
cases_end
