#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# bench_net.sh - `dualpipe bench net`: plugins beside each other, in every form of output, and files
# that are none. Whether the figures are any good is not asked here.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"

brief="--samples 1 --limit 1ms"
plugin=$DP_TOP_BUILDDIR/nccl-plugin/.libs/libnccl-net-dualpipe.so
NCCL_SOCKET_IFNAME=lo
export NCCL_SOCKET_IFNAME

sets_net_plugins_beside_each_other()
{
    # shellcheck disable=SC2086 # words
    run bench net $brief --sizes 8 --connections 2 --plugin "$plugin" \
        --plugin "DUALPIPE_NET_WIRE=tcp $plugin" &&
        says "A  dualpipe v12, device lo" "B  dualpipe v12, device lo" "DUALPIPE_NET_WIRE=tcp /" \
            "latency, us one way" "bandwidth, GB/s, 2 connections" "rate, million/s, 2 connections"
}

# What man dualpipe-bench promises of the JSON, and every figure that was asked for.
tells_net_figures_in_json()
{
    command -v jq >/dev/null || skip "jq is not installed"
    # shellcheck disable=SC2086 # words
    run bench net $brief --sizes 8,64KiB --connections 1 --plugin "$plugin" --abi 9 --json || return
    jq -e '.bench == "net" and .format == 1 and (.contenders | length) == 1 and
        (.contenders[0] | .contender == "A" and .kind == "plugin" and .abi == 9 and .device == "lo" and
            .plugin == "dualpipe" and .environment == "" and .speed_mbps > 0) and
        ([.figures[] | select(.contender == "A")] | length) == 2 + 2 + 2 and
        all(.figures[]; .median > 0 and .best > 0 and (.samples | length) > 0 and
            (.noisy | type) == "boolean" and .size_bytes >= 8 and .connections >= 1) and
        ([.figures[] | .what + " " + .unit] | unique) ==
            ["bandwidth GB/s", "latency us", "rate million/s"]' "$work/out" >/dev/null ||
        wrong "not as promised: $(cat "$work/out")"
}

# The plugin that belongs to the program.
finds_its_own_net_plugin()
{
    run bench net --sizes 8 --connections 1 $brief && says "libnccl-net-dualpipe.so"
}

# side RANK ARGUMENT... - one of two processes that find each other, in place of this shell.
side()
{
    RANK=$1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port
    export RANK WORLD_SIZE MASTER_ADDR MASTER_PORT
    shift
    # shellcheck disable=SC2086 # words
    exec "$dualpipe" bench net $brief --sizes 8 --connections 2 "$@"
}

# As on two machines: each process is one side. A port may be taken: then another.
measures_between_processes_that_others_start()
{
    for try in 1 2 3 4; do
        port=$((20000 + ($$ * 7 + try * 1009) % 10000))
        side 1 >"$work/out1" 2>"$work/err1" &
        (side 0 --json) >"$work/out" 2>"$work/err" && break
        kill $! 2>/dev/null
        wait $!
    done
    wait $! || wrong "rank 1: $(cat "$work/err1")" || return
    [ ! -s "$work/out1" ] || wrong "rank 1 prints" || return
    says '"hosts": 1' '"what": "latency"' '"what": "rate"' '"contender": "A"' || return
}

refuses_ranks_that_are_no_pair()
{
    export RANK=0 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=20000
    refuses 2 "expected 2: the sides of a connection" bench net || return
    export WORLD_SIZE=2
    refuses 2 "2 plugins, expected one" bench net --plugin a --plugin b
}

refuses_what_is_no_net_plugin()
{
    echo text >"$work/text.so"
    refuses 2 "cannot load the plugin: $work/text.so" bench net --plugin "$work/text.so" || return
    refuses 2 "is no net plugin: it has none of ncclNetPlugin_v6 to _v12" \
        bench net --plugin "$DP_TOP_BUILDDIR/libdualpipe/.libs/libdualpipe.so" || return
    refuses 2 "has no ncclNetPlugin_v5" bench net --abi 5 --plugin "$plugin" || return
    refuses 1 "has no device on this machine" \
        bench net --plugin "DUALPIPE_NET_DEVICES=0 $plugin" || return
    refuses 1 "init returns ncclInvalidArgument" \
        bench net --plugin "DUALPIPE_NET_WIRE=string $plugin" || return
    refuses 2 "has no such device" bench net --device eth99 --plugin "$plugin" || return
    refuses 2 "no file behind the variables" bench net --plugin "A=1 " || return
    refuses 2 "--plugin '': no file, expected [NAME=VALUE ...] FILE" bench net --plugin "" || return
    # A sanitizer catches the signal and says so itself.
    case $DP_CC in *-fsanitize*) return ;; esac
    head -c 40000 "$plugin" >"$work/half.so"
    refuses 1 "half.so: dies when it is loaded, or in its init (Bus error): is the file whole?" \
        bench net --plugin "$work/half.so"
}

refuses_lists_with_holes()
{
    for list in '' ',' '8,,16' '8,' ',8' 0 1.5 2GiB nan; do
        refuses 2 "expected up to 16 sizes from 1 to 1GiB" bench net --sizes "$list" || return
    done
    refuses 2 "expected up to 16 numbers from 1 to 64" bench net --connections 1,,2
}

# In a network of its own, whose only address is ::1. What the machine could do is measured by 127.0.0.1.
measures_where_there_is_only_ipv6()
{
    unshare -rn true 2>/dev/null && command -v ip >/dev/null ||
        skip "network namespaces cannot be made here, or ip is not installed"
    # shellcheck disable=SC2016 # for the other shell
    unshare -rn sh -c 'ip link set lo up && ip addr del 127.0.0.1/8 dev lo && exec "$@"' sh \
        "$dualpipe" bench net $brief --sizes 8 --connections 1 --plugin "$plugin" \
        >"$work/out" 2>"$work/err" || wrong "$(cat "$work/err")" || return
    says "A  dualpipe v12, device lo"
}

it sets_net_plugins_beside_each_other
it tells_net_figures_in_json
it finds_its_own_net_plugin
it measures_between_processes_that_others_start
it refuses_ranks_that_are_no_pair
it refuses_what_is_no_net_plugin
it refuses_lists_with_holes
it measures_where_there_is_only_ipv6
finish
