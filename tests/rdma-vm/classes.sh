#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# classes.sh - traffic classes in a guest with two RDMA devices: messages between stages and gradients leave
# by one device whose link is a bottleneck, as the port of a switch is, with two queues of which the one
# for class 128 goes first. By tests/system/rdma_classes.sh.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
. "$DP_TOP_SRCDIR/tests/rdma-vm/plugin.sh"
export NCCL_IB_TIMEOUT=19 # a full queue takes longer than a lost packet is waited for otherwise

# ---- the bottleneck -------------------------------------------------------------------------------

# bottleneck - 20 Mbit/s, so that the guest waits for it and not for its processors; in front of it a
# strict priority by traffic class.
bottleneck()
{
    tc qdisc replace dev roce0 root handle 1: tbf rate 20mbit burst 32kb limit 16mb &&
        tc qdisc replace dev roce0 parent 1:1 handle 2: prio bands 2 priomap 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 &&
        tc qdisc replace dev roce0 parent 2:2 handle 3: bfifo limit 8mb &&
        tc filter add dev roce0 parent 2: protocol ip u32 match ip dsfield 128 0xfc flowid 2:1
}

if why=$(bottleneck 2>&1); then :; else
    case_skipped "two queues by traffic class: $why"
    cases_end
    exit
fi

# packets BAND - that have left through a queue.
packets()
{
    tc -s class show dev roce0 |
        awk -v band="2:$1" '$1 == "class" { on = $3 == band } on && $1 == "Sent" { print $4; exit }'
}

# flows BULK [NAME=VALUE...] - median and 90th percentile of the stage's messages, us, and the others' MB/s.
flows()
{
    bulk=$1
    shift
    env "$@" timeout -k 5 200 "$DP_TOP_BUILDDIR/tests/conformance/net-classes" --messages 60 --bulk "$bulk" \
        "$plugin" 2>&1
}

# ---- three runs -----------------------------------------------------------------------------------

alone=$(flows 0)
before=$(packets 1)
mixed=$(flows 2)
case_is 'without classes all of it goes through one queue' "$(
    [ "$(packets 1)" = "$before" ] || echo "$(packets 1) packets went first, $before before"
)"
queued=$(packets 2)
classes=$(flows 2 DUALPIPE_NET_PIPELINE_TC=128 DUALPIPE_NET_GRADIENT_TC=8)
case_is 'with classes the messages between stages have a queue of their own' "$(
    [ "$(packets 1)" -ge $((before + 60)) ] || echo "$(packets 1) packets, $before before"
)"
case_is 'and gradients stay in the other' "$(
    [ "$(packets 2)" -gt $((queued + 200)) ] || echo "$(packets 2) packets, $queued before"
)"
echo "stage messages of 4 KiB alone, median and 90 % in us, gradients in MB/s:  $alone"
echo "beside gradients in the same class:                                       $mixed"
echo "beside gradients, with classes of their own:                              $classes"
# The queue of gradients takes some 200 ms, a message of its own queue waits for one packet.
case_is 'the latency of messages between stages is protected' "$(
    echo "$mixed $classes" | awk '{ if (!($4 > 0 && $4 < $1 / 2)) print "median " $4 " us, without classes " $1 }'
)"
case_is 'and gradients use what is left' "$(
    echo "$mixed $classes" | awk '{ if (!($6 > $3 / 2)) print $6 " MB/s, without classes " $3 }'
)"
cases_end
