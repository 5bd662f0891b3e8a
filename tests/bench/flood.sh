#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# flood.sh [BUILD [ROUNDS]] - the speed of training while 1, 2 and 4 threads connect to rank 1 as fast as
# they can and know no cookie, as a part of what it is without them, in turns. Fails where that is not more
# than half. The threads and the three ranks share the host's processors.
set -eu
cd "$(dirname "$0")/../.."
build=$(cd "${1:-build}" && pwd) rounds=${2:-3} seconds=3
text=$PWD/CHANGELOG.md
work=$(mktemp -d)
job=
trap '[ -z "$job" ] || kill $job; rm -rf "$work"' EXIT

# port_of PROCESS - where it listens.
port_of()
{
    inodes=$(ls -l "/proc/$1/fd" | sed -n 's/.*socket:\[\([0-9]*\)\].*/\1/p')
    hex=$(awk -v inodes="$inodes" 'BEGIN { split(inodes, list); for (i in list) is_own[list[i]] = 1 }
        $4 == "0A" && ($10 in is_own) { sub(/.*:/, "", $2); print $2 }' /proc/net/tcp /proc/net/tcp6)
    printf '%d' "0x$hex"
}

# rate THREADS - steps while so many threads connect.
rate()
{
    "$build/tests/bench/flood" "$port" "$1" $((seconds + 1)) &
    before=$(grep -c '"step"' "$work/steps")
    sleep $seconds
    kill -0 $job || exit 1
    echo $(($(grep -c '"step"' "$work/steps") - before))
    wait $!
}

for transport in auto tcp; do
    : >"$work/steps"
    "$build/tools/dualpipe" train --data "$text" --width 16 --heads 2 --context 16 --sample 0 --eval-every 0 \
        --steps 100000000 --schedule 1f1b -P 3 -L 6 -M 8 --batch 16 --stat-dir none --transport $transport \
        --json >"$work/steps" &
    job=$!
    until grep -q '"step"' "$work/steps"; do sleep 1; done
    port=$(port_of "$(cut -d ' ' -f 2 "/proc/$job/task/$job/children")")
    i=0
    while [ $i -lt "$rounds" ]; do
        for threads in 1 2 4; do
            echo "$threads $(rate 0) $(rate $threads)"
        done
        i=$((i + 1))
    done | awk -v transport=$transport '
        { quiet[$1] += $2; flooded[$1] += $3 }
        END {
            for (threads = 1; threads <= 4; threads *= 2) {
                ratio = quiet[threads] ? flooded[threads] / quiet[threads] : 0
                printf "%-5s %d threads: %.2f\n", transport, threads, ratio
                bad += ratio <= 0.5
            }
            exit bad > 0
        }'
    kill $job
    wait $job || :
    job=
done
