#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# tcp_sockets.sh [SECONDS] - the plugin's tcp between two network namespaces: over the bare link; with a peer
# that is stopped, a host that falls silent, and a link that loses long packets without a word; and over one
# that allows each flow so much and no more, as networks of clouds do: there four sockets must carry more than
# one. Namespaces, a veth pair and htb by the sender's port; as root only.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"

plugin=$DP_TOP_BUILDDIR/nccl-plugin/.libs/libnccl-net-dualpipe.so
limit=${1:-2}s
rate=40mbit

if [ "${DP_SHAPED_LINK:-}" != inside ]; then
    DP_SHAPED_LINK=inside
    export DP_SHAPED_LINK
    if unshare -n true 2>/dev/null; then
        rm -rf "$work" # the script begins anew, and makes another
        exec unshare -n sh "$0" "$@"
    fi
    it skip 'this user may not make a network namespace (unshare -n)'
    finish
fi

# skip_all WHY
skip_all()
{
    it skip "$@"
    finish
}

for tool in ip tc nsenter jq; do
    command -v $tool >/dev/null || skip_all "$tool is not installed"
done

# ---- two hosts ------------------------------------------------------------------------------------

unshare -n sleep 250 &
far=$!
trap 'kill $far 2>/dev/null; rm -rf "$work"' EXIT

on_far()
{
    nsenter -t $far -n "$@"
}

# The other namespace is there when its own list of interfaces can be seen.
tries=0
until [ "$(readlink /proc/$far/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do
    tries=$((tries + 1))
    [ $tries -lt 1000 ] || skip_all 'the second network namespace did not come'
done
ip link add near0 type veth peer name far0 2>"$work/why" ||
    skip_all "this kernel makes no veth pair: $(cat "$work/why")"
ip link set far0 netns $far
ip link set lo up
ip addr add 10.99.0.1/24 dev near0
ip link set near0 up
on_far ip addr add 10.99.0.2/24 dev far0
on_far ip link set far0 up
# The kernel says so later, on a busy machine much later, that a link carries.
tries=0
until ip link show near0 | grep -q 'state UP' &&
    on_far ip link show far0 | grep -q 'state UP'; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] || skip_all 'the link between the two network namespaces does not come up'
    sleep 0.1
done

# One class for each of 64 groups of ports of this host, which calls and sends, so that two flows seldom
# share one.
shape()
{
    tc qdisc add dev near0 root handle 1: htb default 999 &&
        tc class add dev near0 parent 1: classid 1:999 htb rate 10gbit quantum 60000 || return
    class=0
    while [ $class -lt 64 ]; do
        echo "class add dev near0 parent 1: classid 1:$((class + 100)) htb rate $rate burst 32k"
        echo "filter add dev near0 parent 1: protocol ip prio 1 u32 match ip protocol 6 0xff" \
            "match ip sport $((class * 2)) 0x7e flowid 1:$((class + 100))"
        class=$((class + 1))
    done >"$work/tc"
    tc -batch "$work/tc"
}

# ---- what goes over it ----------------------------------------------------------------------------

# bandwidth SOCKETS - of 512 KiB messages from this host to the other, in MB/s.
bandwidth()
{
    DUALPIPE_WIRE_TCP_SOCKETS=$1 DUALPIPE_NET_WIRE=tcp WORLD_SIZE=2 MASTER_ADDR=10.99.0.1 \
        MASTER_PORT=$((20000 + $$ % 20000))
    export DUALPIPE_WIRE_TCP_SOCKETS DUALPIPE_NET_WIRE WORLD_SIZE MASTER_ADDR MASTER_PORT
    set -- bench net --plugin "$plugin" --sizes 512KiB --connections 1 --samples 1 --limit "$limit" --json
    RANK=1 on_far "$dualpipe" "$@" --device far0 >"$work/far" 2>&1 &
    side=$!
    if ! RANK=0 timeout 60 "$dualpipe" "$@" --device near0 >"$work/near" 2>"$work/err"; then
        cat "$work/err" "$work/far" >&2
        kill $side 2>/dev/null
        return 1
    fi
    wait $side || return 1
    jq '[.figures[] | select(.what == "bandwidth")][0].median * 1000 | round' "$work/near"
}

carries_messages_over_the_bare_link()
{
    for sockets in 1 4; do
        [ "$(bandwidth $sockets)" -gt 0 ] || wrong "nothing over $sockets sockets" || return
    done
}

# Bytes that this host has sent.
carried()
{
    awk '$1 == "near0:" { print $10 }' /proc/net/dev
}

# begin_messages SAMPLES SIZE - both sides, which go on for many seconds; it returns when messages flow. The communicator by which they
# meet is more patient than the plugin. What they say is short, so that none of it is cut off.
begin_messages()
{
    before=$(carried) tries=0
    cd "$(dirname "$plugin")" || return
    DUALPIPE_NET_TIMEOUT=2 DUALPIPE_COMM_TIMEOUT_MS=8000 DUALPIPE_WIRE_TCP_SOCKETS=1 DUALPIPE_NET_WIRE=tcp \
        WORLD_SIZE=2 MASTER_ADDR=10.99.0.1 MASTER_PORT=$((20000 + $$ % 20000))
    export DUALPIPE_NET_TIMEOUT DUALPIPE_COMM_TIMEOUT_MS DUALPIPE_WIRE_TCP_SOCKETS DUALPIPE_NET_WIRE \
        WORLD_SIZE MASTER_ADDR MASTER_PORT
    set -- bench net --plugin "./${plugin##*/}" --sizes "$2" --connections 1 --samples "$1" --limit 60s --json
    RANK=1 nsenter -t $far -n "$dualpipe" "$@" --device far0 >"$work/far" 2>&1 &
    side=$!
    RANK=0 "$dualpipe" "$@" --device near0 >"$work/near" 2>&1 &
    own=$!
    until [ "$(carried)" -gt $((before + 20000000)) ]; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] && [ -d /proc/$own ] || wrong "no messages: $(cat "$work/near" "$work/far")" || return
        sleep 0.1
    done
}

# fail_with_the_connection BREAK MEND - both end, and one at least with the connection, what it has not got
# through, and how often it tried. Messages are longer than what the system takes ahead, so that the sender
# still looks after its connection when it breaks. A rank tests its messages in turn, and may find first that
# the other has given up on another connection: which it is, is chance, so there are several tries.
fail_with_the_connection()
{
    end='10\.99\.0\.[12]:[0-9]+'
    for try in 1 2 3 4 5; do
        begin_messages 256 64MiB || return
        "$1"
        ended=0
        wait $own && ended=1
        wait $side && ended=1
        "$2"
        [ $ended = 0 ] || wrong "one has not failed: $(cat "$work/near" "$work/far")" || return
        ! grep -qE "no sign of life for [0-9]+ s \($end to $end, [0-9]+ bytes not acknowledged, [0-9]+ retransmissions\)" \
            "$work/near" "$work/far" || return 0
        echo "try $try: $(cat "$work/near" "$work/far")"
    done
    wrong 'no rank has said with which connection'
}

lose_long_packets()
{
    on_far ip link set far0 mtu 1000
}

lose_none()
{
    on_far ip link set far0 mtu 1500
}

fails_where_long_packets_are_lost()
{
    # One packet at a time: the pair passes what it has put together, however long it is.
    ip link set near0 gso_max_segs 1 2>"$work/why" || skip "this ip or kernel sets no gso_max_segs: $(cat "$work/why")"
    fail_with_the_connection lose_long_packets lose_none
    result=$?
    ip link set near0 gso_max_segs 65535
    return $result
}

fall_silent()
{
    on_far ip link set far0 down
}

answer_again()
{
    on_far ip link set far0 up
}

fails_where_the_host_is_silent()
{
    fail_with_the_connection fall_silent answer_again
}

# For longer than a silent host would be.
waits_for_a_peer_that_is_stopped()
{
    begin_messages 32 512KiB || return
    kill -s STOP $side
    end=$(($(date +%s) + 5))
    until [ "$(date +%s)" -ge $end ]; do sleep 0.1; done
    [ -d /proc/$own ] || wrong "rank 0 has ended: $(cat "$work/near")" || return
    kill -s CONT $side
    wait $own || wrong "$(cat "$work/near" "$work/far")" || return
    wait $side || wrong "$(cat "$work/far")"
}

# A busy machine carries less than the link lets through, and never more; so one of several tries will do.
carries_more_over_four_sockets_where_each_flow_is_limited()
{
    shape 2>"$work/why" || skip "this kernel cannot shape a link (htb, u32): $(head -n 1 "$work/why")"
    one=$(bandwidth 1) || return
    tries=0 four=0
    while [ "$four" -le $((one * 2)) ] && [ $tries -lt 5 ]; do
        four=$(bandwidth 4) || return
        echo "$rate a flow: $one MB/s over one socket, $four MB/s over four"
        tries=$((tries + 1))
    done
    [ "$four" -gt $((one * 2)) ] || wrong "four sockets carry $four MB/s, one $one"
}

it carries_messages_over_the_bare_link
it waits_for_a_peer_that_is_stopped
it fails_where_long_packets_are_lost
it fails_where_the_host_is_silent
it carries_more_over_four_sockets_where_each_flow_is_limited
finish
