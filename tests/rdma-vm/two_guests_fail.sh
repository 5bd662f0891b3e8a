#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# two_guests_fail.sh - what fails, and comes back, between two guests with four RDMA devices each while
# there are messages. In both, by tests/system/rdma_failures.sh. The control connection goes over roce0,
# messages over the others.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
socket_interface=roce0
. "$DP_TOP_SRCDIR/tests/rdma-vm/plugin.sh"
rails=". $DP_TOP_SRCDIR/tests/rdma-vm/rails.sh"

# on HOST COMMAND - what that guest does; the other nothing.
on()
{
    if [ "$RDMA_VM_HOST" = "$1" ]; then echo "$2"; else echo true; fi
}

# ---- rails ----------------------------------------------------------------------------------------

# What there is to see in this guest of a rail that was lost twice and is used again.
used_again()
{
    lost=$(sed -n 's/.*"failovers": *\([0-9]*\).*/\1/p' /run/counted | sort -n | tail -n 1)
    [ "$lost" -ge 2 ] || echo "$lost failovers were counted, expected 2 at least"
    more=$(($(sent_packets 1) - $(cat /run/came_back)))
    [ $more -ge 100 ] || echo "$more packets over the rail since it came back, expected 100 at least"
}

DUALPIPE_NET_STAT=1 DUALPIPE_NET_STAT_DIR=/run/stat
export DUALPIPE_NET_STAT DUALPIPE_NET_STAT_DIR
back="$rails; before=\$(sent_packets 1); up 1; await_packets 1 \$((before + 1))"
note="$rails; sent_packets 1 >/run/came_back"
case_is 'a rail goes and comes back, twice' "$(
    wrong between 7101 --messages 200 --from 1,2 \
        --at 30 "$(on 1 'ip link set roce1 down')" --at 60 "$(on 1 "$back")" \
        --at 90 "$(on 1 'ip link set roce1 down')" --at 120 "$(on 1 "$back")" --at 130 "$note" \
        --at 199 "$DP_TOP_BUILDDIR/tools/dualpipe stat --json >/run/counted"
)"
case_is 'it was lost twice, and is used again' "$([ "$RDMA_VM_HOST" = 0 ] || used_again)"
unset DUALPIPE_NET_STAT DUALPIPE_NET_STAT_DIR

lose='ip link set roce1 down'
[ "$RDMA_VM_HOST" = 0 ] || lose='ip link set roce2 down'
case_is 'both hosts lose a rail, not the same' "$(wrong between 7102 --from 1,2,3 --at 30 "$lose")"
up 1
up 2

# ---- the control connection -------------------------------------------------------------------------

case_is 'the control connection is reset by either side' "$(
    wrong between 7103 --from 1,2 --at 30 "$(on 0 reset)" --at 60 "$(on 1 reset)"
)"
case_is 'it is reset while a rail is lost' "$(
    wrong between 7104 --from 1,2 --at 30 "$(on 1 'ip link set roce1 down')" \
        --at 30 "$(on 1 reset)" --at 60 "$(on 0 reset)"
)"
up 1

# ---- the end ----------------------------------------------------------------------------------------

case_is 'all rails are lost: an error on both sides, and in time' "$(
    DUALPIPE_NET_TIMEOUT=10 fails between 7105 --messages 100000 --from 1,2 --limit 60 \
        --at 30 "$(on 1 'ip link set roce1 down; ip link set roce2 down')"
)"
up 1
up 2
# shellcheck disable=SC2016 # its shell's parent
case_is 'the other host dies while a rail is lost: an error, and in time' "$(
    if [ "$RDMA_VM_HOST" = 0 ]; then
        DUALPIPE_NET_TIMEOUT=10 fails between 7106 --messages 100000 --from 1,2 --limit 60
    else
        between 7106 --messages 100000 --from 1,2 \
            --at 30 'ip link set roce1 down; kill -9 $PPID' >/dev/null 2>&1 || :
    fi
)"
cases_end
