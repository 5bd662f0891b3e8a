#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# real_placement.sh - observe, place, run again: NCCL as it is shipped, four ranks on two hosts, which are
# network name spaces with a slow link between them. How much less the link carries in the second run is what
# the placement has predicted; how long both runs took is printed.
#
#       node0: ranks 0, 1  ----- 20 Mb/s -----  node1: ranks 2, 3        0 and 2, and 1 and 3, send each other most
. "$DP_TOP_SRCDIR/tests/simcuda/real.sh"

[ "$(id -u)" = 0 ] || skip_all 'name spaces for two hosts: that takes root'
for tool in ip tc unshare hostname; do
    command -v $tool >/dev/null || skip_all "no $tool here"
done
host0=dualpipe-$$-0 host1=dualpipe-$$-1
# shellcheck disable=SC2329 # for the trap
clean()
{
    ip netns del "$host0" 2>/dev/null || :
    ip netns del "$host1" 2>/dev/null || :
    rm -rf "$work"
}
trap clean EXIT

state()
{
    ip netns exec "$1" cat /sys/class/net/card/operstate
}

# connect - two hosts, each with one card; nothing goes faster than the link from one to the other.
connect()
{
    ip netns add "$host0" && ip netns add "$host1" &&
        ip -n "$host0" link add card type veth peer name card netns "$host1" || return
    i=0
    for host in "$host0" "$host1"; do
        ip -n "$host" addr add 10.77.0.$((i + 1))/24 dev card && ip -n "$host" link set lo up &&
            ip -n "$host" link set card up &&
            ip netns exec "$host" tc qdisc add dev card root tbf rate 20mbit burst 32k latency 200ms || return
        i=$((i + 1))
    done
    tries=0 # the kernel notices some time later that they are connected
    until [ "$(state "$host0") $(state "$host1")" = 'up up' ]; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || { echo 'the link does not come up' && return 1; }
        sleep 0.1
    done
}
connect >"$work/connect" 2>&1 ||
    skip_all "two hosts with a slow link between them: $(tail -n 1 "$work/connect")"

cluster='host:2 gpu:2 nic:1 net=0.02Gb/s'
dualpipe=$DP_TOP_BUILDDIR/tools/dualpipe
export DUALPIPE_NET_WIRE=tcp NCCL_SOCKET_IFNAME=card NCCL_DEBUG=WARN MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 \
    WORLD_SIZE=4 TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RUN_ID=$$
unset NCCL_NET_PLUGIN NCCL_NET DUALPIPE_PLACEMENT

# rank NAME NUMBER OPTION... - one rank, where it came, of the run of that name.
rank()
{
    name=$1 number=$2
    shift 2
    host=$host0
    [ "$number" -lt 2 ] || host=$host1
    # shellcheck disable=SC2016 # for the shell that it starts
    RANK=$number LOCAL_RANK=$((number % 2)) exec ip netns exec "$host" \
        unshare --uts sh -c 'hostname "$1" && shift && exec "$@"' sh "node$((number / 2))" \
        "$dualpipe" run --no-bind --synthetic "$cluster" --no-tuner --traffic "$work/$name.traffic" \
        --report "$work/$name.json" "$@" -- \
        $job --id "$work/$name.id" --seconds 100 --bytes "$bytes" "$libnccl" $libnvml distant
}

# sent - bytes of both directions of the link.
sent()
{
    for host in "$host0" "$host1"; do
        ip netns exec "$host" cat /sys/class/net/card/statistics/tx_bytes
    done | awk '{ sum += $1 } END { print sum }'
}

# run_ranks NAME OPTION... - all of them; what is wrong. NAME.log has what they say, NAME.sent the link's bytes.
run_ranks()
{
    run=$1
    shift
    before=$(sent)
    pids=
    for number in 0 1 2 3; do
        (rank "$run" $number "$@") >"$work/$run.$number" 2>&1 &
        pids="$pids $!"
    done
    for pid in $pids; do
        wait "$pid" || echo "a rank ends with $?"
    done >"$work/ended"
    echo $(($(sent) - before)) >"$work/$run.sent"
    cat "$work/$run".[0-3] >"$work/log"
    [ ! -s "$work/ended" ] || cat "$work/ended" "$work/log"
}

bytes=200000
case_is 'a job on two hosts is observed' "$(run_ranks first)"
case_is 'rank 0 says what another order would save' \
    "$(logged '^dualpipe: the slowest link of what NCCL sent: ' && logged '^dualpipe: another order: [0-9]+ % less')"
case_is 'what was seen is placed' "$("$dualpipe" topo place --traffic "$work/first.traffic" --synthetic "$cluster" \
    -f assignment -o "$work/place.txt" 2>&1)"
case_is 'it runs again where it was placed' "$(run_ranks second --placement "$work/place.txt")"
case_is 'ranks are numbered by the placement, and no other order is better' \
    "$(logged '^dualpipe: ranks  *by the placement: rank 0 is here, where [0-3] was'
        logged '^dualpipe: no other order of the ranks is better')"

# of NAME - the slowest rank's time, ms.
of()
{
    awk '/^rank .* distant messages/ && $8 > most { most = $8 } END { printf "%.0f\n", most / 1000 }' "$work/$1".[0-3]
}

predicted=$(sed -n 's/.*busy for \(.*\) ns in a step, as the ranks came for \(.*\) ns.$/\1 \2/p' "$work/place.txt" |
    awk '{ printf "%.0f\n", 100 * (1 - $1 / $2) }')
carried=$(awk '{ sent[NR] = $1 } END { printf "%.0f\n", 100 * (1 - sent[2] / sent[1]) }' \
    "$work/first.sent" "$work/second.sent")
echo "the slowest link: $predicted % less is predicted; it carried $carried % less; the job took" \
    "$(of first) ms, then $(of second) ms"
case_is 'the link carries as much less as was predicted' \
    "$([ $((carried - predicted)) -ge -5 ] && [ $((carried - predicted)) -le 5 ] ||
        echo "$predicted % was predicted, and it was $carried %")"
cases_end
