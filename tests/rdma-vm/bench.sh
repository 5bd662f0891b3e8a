#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# bench.sh [perftest] [nccl] - in a guest: the plugin over verbs beside perftest, and in the real NCCL
# beside NCCL's own transport; by turns, on one device. Medians and quartiles of BENCH_TURNS turns (3), of
# perftest's latency of 8 B of three times as many; only the ratios say something, and each is of the turns'
# ratios, as what else the machine does changes more slowly than the turns.
#
#       sh tests/rdma-vm/run.sh --memory 3072 sh tests/rdma-vm/bench.sh
set -eu
cd "$(dirname "$0")/../.."
build=${DP_TOP_BUILDDIR:-build}
dualpipe=$build/tools/dualpipe
plugin=$(cd "$build" && pwd)/nccl-plugin/.libs/libnccl-net-dualpipe.so
package=${DP_TEST_NCCL:-nvidia-nccl-cu13==2.28.9}
libnccl=${DP_TEST_CACHE:-$build/cache}/nccl/$package/libnccl.so.2
export NCCL_IB_HCA=rxe0
. tests/rdma-vm/peers.sh

# ---- figures --------------------------------------------------------------------------------------

figures=/run/figures

is_number()
{
    case $1 in
    '' | *[!0-9.e+-]*) return 1 ;;
    esac
}

# figure WHO WHAT VALUE
figure()
{
    is_number "$3" || { echo "no figure of $1 for $2: '$3'" >&2 && exit 1; }
    echo "$1|$2|$3" >>$figures
}

# report PEER - a line for each of what there are figures of, in the order in which they came.
report()
{
    awk -F '|' -v peer="$1" '
        $1 == "dualpipe" { ours[$2, ++n[$2]] = $3; if (n[$2] == 1) order[++kinds] = $2 }
        $1 == peer { theirs[$2, ++m[$2]] = $3 }
        # quantile WHAT OF SHARE - of what this or that one took, or of the turns of the ratios.
        function quantile(what, of, share,    i, j, sorted, value) {
            for (i = 1; i <= n[what]; i++) {
                value = of == "peer" ? theirs[what, i] : ours[what, i]
                if (of == "ratio") value /= theirs[what, i]
                for (j = i; j > 1 && sorted[j - 1] > value; j--) sorted[j] = sorted[j - 1]
                sorted[j] = value
            }
            return sorted[int((n[what] - 1) * share + 1.5)]
        }
        function cell(what, of) {
            return sprintf("%.4g (%.4g-%.4g)", quantile(what, of, 0.5), quantile(what, of, 0.25), \
                quantile(what, of, 0.75))
        }
        END {
            printf "%-32s %22s %22s %22s\n", "median (quartiles)", peer, "dualpipe", "ratio"
            for (k = 1; k <= kinds; k++) {
                what = order[k]
                printf "%-32s %22s %22s %22s\n", what, cell(what, "peer"), cell(what, ""), cell(what, "ratio")
            }
        }' $figures
    rm $figures
}

# ---- perftest -------------------------------------------------------------------------------------

# of_perftest NAME SIZE COUNT COLUMN - a figure of its table. On a busy machine it sometimes mistakes
# the speed of the clock and says inf or nan; then once more.
of_perftest()
{
    for _ in 1 2 3 4 5; do
        serve "$1" -F -d rxe0 -x 1 -s "$2" -n "$3" --report_gbits
        wrong=$(visit "$1" -F -d rxe0 -x 1 -s "$2" -n "$3" --report_gbits 10.10.0.1)
        served
        value=$(awk -v column="$4" '/#bytes/ { getline; print $column }' /run/client.out)
        if is_number "$value"; then break; fi
    done
    [ -z "$wrong" ] || echo "$wrong" >&2
    echo "$value"
}

# of_ours WHAT SIZE - from the table in /run/ours.
of_ours()
{
    awk -v what="$1" -v size="$2" '
        $1 == what { on = 1 }
        on && $1 " " $2 == size { print $3; exit }' /run/ours
}

# ours SIZES - the plugin's table, in /run/ours.
ours()
{
    DUALPIPE_NET_WIRE=verbs "$dualpipe" bench net --plugin "$plugin" --device rxe0 --sizes "$1" \
        --connections 1 --samples 3 --limit 60s >/run/ours
}

beside_perftest()
{
    for _ in $(seq $((3 * turns))); do
        figure perftest 'latency of 8 B, us' "$(of_perftest ib_write_lat 8 1000 6)"
        ours 8
        figure dualpipe 'latency of 8 B, us' "$(of_ours latency, '8 B')"
    done
    for _ in $(seq "$turns"); do
        figure perftest 'latency of 4 KiB, us' "$(of_perftest ib_write_lat 4096 1000 6)"
        figure perftest 'bandwidth at 512 KiB, MB/s' \
            "$(of_perftest ib_write_bw 524288 100 4 | awk '{ print $1 * 125 }')"
        ours 4KiB,512KiB
        figure dualpipe 'latency of 4 KiB, us' "$(of_ours latency, '4 KiB')"
        figure dualpipe 'bandwidth at 512 KiB, MB/s' \
            "$(of_ours bandwidth, '512 KiB' | awk '{ print $1 * 1000 }')"
    done
    report perftest
}

# ---- NCCL -----------------------------------------------------------------------------------------

# NCCL wants to know where a device is on the PCI bus, or it ends in a segmentation fault; of a
# Soft-RoCE device the kernel does not say.
place_device()
{
    mkdir -p /run/infiniband/rxe0
    ln -sf "$(readlink -f /sys/class/infiniband/rxe0)"/* /run/infiniband/rxe0/
    ln -sf "$(readlink -f /sys/class/net/roce0/device)" /run/infiniband/rxe0/device
    mount --bind /run/infiniband /sys/class/infiniband
}

job_sizes='8 4096 524288 4194304'

# job WHO NAME=VALUE... - the figures of a job on NCCL. NCCL_GIN_TYPE: NCCL 2.28 ends in a segmentation
# fault when its own transport is told to choose one that the (simulated) GPU cannot have.
job()
{
    who=$1
    shift
    env "$@" NCCL_DEBUG=WARN NCCL_GIN_TYPE=2 NCCL_SOCKET_IFNAME=lo "$build/tests/simcuda/nccl-job" \
        --bytes "$(echo $job_sizes | tr ' ' ,)" "$libnccl" "$build/tests/simcuda/.libs/libnvidia-ml.so.1" \
        timed >/run/job 2>&1 || { cat /run/job >&2 && exit 1; }
    for size in $job_sizes; do
        figure "$who" "send and receive of $size B, us" \
            "$(awk -v size=$size '/^send and receive/ && $5 == size { print $7 }' /run/job)"
    done
}

beside_nccl()
{
    if ! [ -e "$libnccl" ]; then
        echo "beside NCCL's own transport: skipped, no $package; sh tests/simcuda/fetch.sh loads it"
        return
    fi
    place_device
    for _ in $(seq "$turns"); do
        job NCCL_IB NCCL_NET=IB NCCL_NET_PLUGIN=none
        job dualpipe NCCL_NET=dualpipe "NCCL_NET_PLUGIN=$plugin" DUALPIPE_NET_WIRE=verbs
    done
    report NCCL_IB
}

# ---- all of it ------------------------------------------------------------------------------------

turns=${BENCH_TURNS:-3}
rm -f $figures
[ $# -gt 0 ] || set -- perftest nccl
for part; do
    case $part in
    perftest | nccl) "beside_$part" ;;
    *) echo "bench.sh: expected 'perftest' or 'nccl', not '$part'" >&2 && exit 2 ;;
    esac
done
