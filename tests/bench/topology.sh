#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# topology.sh [BUILD] - a machine of 256 GPUs, printed: `dualpipe topo show` from a description and from
# JSON, and lstopo-no-graphics (hwloc-nox) from XML, in turns. A turn is 20 processes, one after the
# other; medians of 9 turns, in ms a process, and of the ratios within a turn.
set -eu
tests=$(cd "$(dirname "$0")/.." && pwd)
cd "$tests/../${1:-build}"
command -v lstopo-no-graphics >/dev/null || { echo 'lstopo-no-graphics is not installed' && exit 1; }

turns=9 runs=20
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
machine='numa:8 root:4 switch:1 gpu:8 nic:8 cpus=16'
# The program itself, without libtool's script around it.
LD_LIBRARY_PATH=$PWD/libdualpipe/.libs:$PWD/offload/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
ours=tools/.libs/dualpipe
[ -x $ours ] || ours=tools/dualpipe
$ours topo json --synthetic "$machine" >"$work/machine.json"
# The same machine, as hwloc writes it.
gzip -dc "$tests/data/topology/hwloc-256-gpus.xml.gz" >"$work/machine.xml"

# turn NAME COMMAND... - us of one run, into a file of the name.
turn()
{
    name=$1
    shift
    began=$(date +%s%N)
    i=0
    while [ $i -lt $runs ]; do
        "$@" >/dev/null
        i=$((i + 1))
    done
    echo $((($(date +%s%N) - began) / runs / 1000)) >>"$work/$name"
}

n=0
while [ $n -lt $turns ]; do
    turn described $ours topo show --synthetic "$machine"
    turn lstopo lstopo-no-graphics -i "$work/machine.xml" --of console
    turn json $ours topo show -t "$work/machine.json"
    n=$((n + 1))
done

# median - of the lines of standard input.
median()
{
    sort -n | sed -n "$((turns / 2 + 1))p"
}
for name in described json lstopo; do
    us=$(median <"$work/$name")
    ratio=$(paste "$work/$name" "$work/lstopo" | awk '{ print $1 / $2 }' | median)
    printf '%-10s %4d.%01d ms, %.2f of lstopo\n' $name $((us / 1000)) $((us % 1000 / 100)) "$ratio"
done
