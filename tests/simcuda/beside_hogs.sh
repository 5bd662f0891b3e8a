#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# beside_hogs.sh [TURNS [NAME=VALUE...]] - the real NCCL on the simulated CUDA, two processes as two
# hosts: over NCCL's own Socket transport, over our plugin by tcp, and, if variables are given, over
# our plugin with these, by turns; idle, and beside a process for each of two cores that computes
# all the time.
#
# A job is the mean of three medians of twenty messages each way. Jobs differ more than messages of
# one job do, so a turn (20 as a rule) gives one ratio, of NCCL's time to ours. Printed is the
# median of those, and between which two of them it lies with 95 % certainty, whatever they are
# distributed like; that takes 6 turns.
#
#       sh tests/simcuda/fetch.sh build/cache/nccl nvidia-nccl-cu13==2.28.9    # once
#       sh tests/simcuda/beside_hogs.sh 20 DUALPIPE_NET_SLICE=0
set -eu
cd "$(dirname "$0")/../.."
turns=${1:-20}
[ $# -eq 0 ] || shift
build=$(cd "${DP_TOP_BUILDDIR:-build}" && pwd)
package=${DP_TEST_NCCL:-nvidia-nccl-cu13==2.28.9}
libnccl=${DP_TEST_CACHE:-$build/cache}/nccl/$package/libnccl.so.2
job=$build/tests/simcuda/nccl-job
sizes=8,524288
if ! [ -x "$job" ] || ! [ -e "$libnccl" ]; then
    echo "beside_hogs.sh: skipped: no $package (sh tests/simcuda/fetch.sh), or no nccl-job" \
        "(make check TESTS=)"
    exit 77
fi
work=$(mktemp -d)
hogs=
# shellcheck disable=SC2086 # process numbers
trap '[ -z "$hogs" ] || kill $hogs; rm -rf "$work"' EXIT

# job_of WHO WHEN TURN NAME=VALUE... - time a job, and put down "WHEN, SIZE|TURN|WHO|MICROSECONDS".
job_of()
{
    who=$1 when=$2 turn=$3
    shift 3
    env "$@" NCCL_DEBUG=WARN NCCL_SOCKET_IFNAME=lo timeout 100 "$job" --bytes $sizes "$libnccl" \
        "$build/tests/simcuda/.libs/libnvidia-ml.so.1" timed timed timed >"$work/job" 2>&1 || {
        cat "$work/job" >&2
        exit 1
    }
    awk -v head="$when, " -v tail=" B|$turn|$who|" \
        '/^send and receive of/ { print head $5 tail $7 }' "$work/job" >>"$work/figures"
}

ours()
{
    job_of "$@" NCCL_NET=dualpipe DUALPIPE_NET_WIRE=tcp \
        "NCCL_NET_PLUGIN=$build/nccl-plugin/.libs/libnccl-net-dualpipe.so"
}

# take_turns WHEN [NAME=VALUE...]
take_turns()
{
    when=$1
    shift
    for turn in $(seq "$turns"); do
        job_of Socket "$when" "$turn" NCCL_NET=Socket NCCL_NET_PLUGIN=none
        ours dualpipe "$when" "$turn"
        [ $# -eq 0 ] || ours "$*" "$when" "$turn" "$@"
    done
}

take_turns idle "$@"
for _ in 1 2; do
    sh -c 'while :; do :; done' &
    hogs="$hogs $!"
done
take_turns 'two hogs' "$@"

awk -F '|' '
    !seen[$1]++ { rows[++row_count] = $1 }
    !known[$3]++ { whos[++who_count] = $3 }
    { sum[$1, $2, $3] += $4; n[$1, $2, $3]++ }
    function time_of(row, turn, who) { return sum[row, turn, who] / n[row, turn, who] }
    function sort_values(count,    i, j, v) {
        for (i = 2; i <= count; i++) {
            v = values[i]
            for (j = i - 1; j && values[j] > v; j--)
                values[j + 1] = values[j]
            values[j + 1] = v
        }
    }
    function quantile(count, part,    at) {
        at = 1 + (count - 1) * part
        values[count + 1] = values[count]
        return values[int(at)] + (at - int(at)) * (values[int(at) + 1] - values[int(at)])
    }
    # The median is below the k smallest with as many ways as k or fewer of count coins show heads.
    function rank_of_bound(count,    k, ways, all) {
        ways = all = 0.5 ^ count
        for (k = 0; 2 * all <= 0.05; all += ways) {
            k++
            ways *= (count - k + 1) / k
        }
        return k
    }
    function times(row, who,    turn) {
        for (turn = 1; turn <= turns; turn++)
            values[turn] = time_of(row, turn, who)
        sort_values(turns)
        return sprintf("%.0f (%.0f to %.0f)", quantile(turns, 0.5), quantile(turns, 0.25),
            quantile(turns, 0.75))
    }
    function ratios(row, who,    turn, k) {
        for (turn = 1; turn <= turns; turn++)
            values[turn] = time_of(row, turn, "Socket") / time_of(row, turn, who)
        sort_values(turns)
        k = rank_of_bound(turns)
        return sprintf("%.2f", quantile(turns, 0.5)) \
            (k ? sprintf(" (%.2f to %.2f)", values[k], values[turns + 1 - k]) : "")
    }
    END {
        for (i = 1; i <= row_count; i++)
            for (w = 1; w <= who_count; w++)
                printf "%-20s %-22s %-24s %s\n", rows[i], whos[w], times(rows[i], whos[w]),
                    (w > 1 ? ratios(rows[i], whos[w]) : "")
        print "us for a message each way: the median job, and what half of the jobs lie between."
        print "Ratio: of NCCL\047s own time to ours, median and 95 % interval; above 1, ours is faster."
    }' turns="$turns" "$work/figures"
