#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# harm.sh - messages in one guest with four RDMA devices, while packets are harmed and rails are lost. In
# the guest, by tests/system/rdma_harm.sh.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
. "$DP_TOP_SRCDIR/tests/rdma-vm/plugin.sh"

# harmed KIND... - what packets from device 0 suffer, as tc-netem(8) has it.
harmed()
{
    tc qdisc replace dev roce0 root netem "$@"
}

for harm in 'loss 2%' 'corrupt 2%' 'duplicate 5%' 'delay 1ms reorder 20%'; do
    # shellcheck disable=SC2086 # words
    harmed $harm
    case_is "no harm from packets with $harm" "$(wrong traffic --messages 30 --from 0 --to 2)"
done
tc qdisc del dev roce0 root

sent_before=$(sent_packets 0)
case_is 'two rails carry messages' "$(wrong traffic --messages 50 --from 0,1 --to 2,3)"
case_is 'the first rail carried none of them' \
    "$([ "$(sent_packets 0)" -gt "$sent_before" ] || echo "as many packets as before")"
case_is 'the receiver loses a rail' "$(
    wrong traffic --from 0,1 --to 2,3 --at 30 'ip link set roce3 down'
)"
up 3
case_is 'the sender loses a rail' "$(
    wrong traffic --from 0,1 --to 2,3 --at 30 'ip link set roce0 down'
)"
up 0
case_is 'a rail swallows everything' "$(
    wrong traffic --from 0,1 --to 2,3 --at 30 'tc qdisc add dev roce1 root netem loss 100%' \
        --at 31 'tc qdisc add dev roce3 root netem loss 100%'
)"
tc qdisc del dev roce1 root
tc qdisc del dev roce3 root
case_is 'the only rail is lost: an error, and in time' "$(
    DUALPIPE_NET_TIMEOUT=10 fails traffic --messages 1000 --from 0 --to 2 --at 30 'ip link set roce2 down'
)"
up 2
case_is 'what has come back is used again' "$(wrong traffic --messages 30 --from 0 --to 2)"
# The kernel takes the device away once nobody has it open.
case_is 'a device is deleted' "$(
    wrong traffic --from 0,1 --to 2,3 --at 30 'rdma link delete rxe3 &'
)"
case_is 'the plugin does without what was deleted' "$(wrong traffic --messages 30 --from 0 --to 2)"
case_is 'a card is pulled out' "$(
    wrong traffic --from 0,1 --to 2 --at 30 'echo 1 >/sys/class/net/roce1/device/remove &'
)"
cases_end
