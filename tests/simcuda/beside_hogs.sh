#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# beside_hogs.sh [TURNS] - the real NCCL on the simulated CUDA, two processes as two hosts: over our plugin
# by tcp, and over NCCL's own Socket transport, by turns; on an idle machine, and beside a process for each
# of two cores that computes all the time. Medians of TURNS turns (3), each of eight times twenty messages:
# beside others a message takes one turn of the scheduler, or two, or three. Only the ratios say something.
#
#       sh tests/simcuda/fetch.sh build/cache/nccl nvidia-nccl-cu13==2.28.9    # once
#       sh tests/simcuda/beside_hogs.sh 5
set -eu
cd "$(dirname "$0")/../.."
turns=${1:-3}
build=$(cd "${DP_TOP_BUILDDIR:-build}" && pwd)
package=${DP_TEST_NCCL:-nvidia-nccl-cu13==2.28.9}
libnccl=${DP_TEST_CACHE:-$build/cache}/nccl/$package/libnccl.so.2
job=$build/tests/simcuda/nccl-job
sizes=8,524288
[ -x "$job" ] && [ -e "$libnccl" ] || {
    echo "beside_hogs.sh: skipped: no $package, or no nccl-job (sh tests/simcuda/fetch.sh, make check TESTS=)"
    exit 77
}
work=$(mktemp -d)
hogs=
# shellcheck disable=SC2086 # process numbers
trap '[ -z "$hogs" ] || kill $hogs; rm -rf "$work"' EXIT

# job_of WHO WHEN NAME=VALUE... - time a job, and put down "WHEN, SIZE|WHO|MICROSECONDS" for each size.
job_of()
{
    who=$1 when=$2
    shift 2
    env "$@" NCCL_DEBUG=WARN NCCL_SOCKET_IFNAME=lo timeout 100 "$job" --bytes $sizes "$libnccl" \
        "$build/tests/simcuda/.libs/libnvidia-ml.so.1" timed timed timed timed timed timed timed timed \
        >"$work/job" 2>&1 || {
        cat "$work/job" >&2
        exit 1
    }
    awk -v who="$who" -v when="$when" \
        '/^send and receive of/ { print when ", " $5 " B|" who "|" $7 }' "$work/job" >>"$work/figures"
}

take_turns()
{
    for _ in $(seq "$turns"); do
        job_of Socket "$1" NCCL_NET=Socket NCCL_NET_PLUGIN=none
        job_of dualpipe "$1" NCCL_NET=dualpipe DUALPIPE_NET_WIRE=tcp \
            "NCCL_NET_PLUGIN=$build/nccl-plugin/.libs/libnccl-net-dualpipe.so"
    done
}

take_turns idle
for _ in 1 2; do
    sh -c 'while :; do :; done' &
    hogs="$hogs $!"
done
take_turns 'two hogs'

sort -t '|' -s -k 3,3g "$work/figures" | awk -F '|' '
    { value[$1, $2, ++n[$1, $2]] = $3; if (!seen[$1]++) what[++rows] = $1 }
    function median(row, who) { return value[row, who, int((n[row, who] + 1) / 2)] }
    END {
        printf "%-22s %10s %10s %8s\n", "there and back, us", "Socket", "dualpipe", "ratio"
        for (i = 1; i <= rows; i++)
            printf "%-22s %10.0f %10.0f %8.2f\n", what[i], median(what[i], "Socket"),
                median(what[i], "dualpipe"), median(what[i], "Socket") / median(what[i], "dualpipe")
        print "ratio: of NCCL\047s own time to ours; above 1, ours is the faster one"
    }'
