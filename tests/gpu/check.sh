#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# check.sh [--dry-run] PACK [PART...] - what one GPU shows, in less than 300 s, the parts in the order of what
# they tell; with names only these parts. PACK was made by pack.sh. Every part has its own limit, and its lines
# are in $OUT/report.txt (default out/report.txt) as soon as they are known, so that a run that is cut off
# loses nothing; whole outputs are in $OUT/log.txt. What compares with PyTorch needs $PYTHON (python3) with
# torch. --dry-run: the same on the simulated CUDA, with small sizes; what needs a GPU says that it was left out.
#
# Exit status: 0 if no part failed. A part that was left out is no failure.
set -eu
dry=
[ "${1-}" != --dry-run ] || { dry=yes && shift; }
parts='start device graphs copies kernels speed streamed step ranks torch preload net ncu'
# misused WHAT
misused()
{
    echo "check.sh: $1; expected [--dry-run] PACK [PART...] with a PACK of pack.sh and of the parts $parts" >&2
    exit 2
}
[ -e "${1-}/dualpipe" ] || misused "no pack in '${1-}'"
pack=$(cd "$1" && pwd)
shift
for name in "$@"; do
    case " $parts " in *" $name "*) ;; *) misused "no part '$name'" ;; esac
done
only=" $* "
out=${OUT:-out}
mkdir -p "$out"
out=$(cd "$out" && pwd)
report=$out/report.txt
python=${PYTHON:-python3}
case $python in */*) PATH=${python%/*}:$PATH ;; esac # libraries are looked for beside python3, too
began=$(date +%s)
slow=1 # by how much limits grow: a dry run shares its cores with others
[ -z "$dry" ] || slow=$(awk -v cores="$(nproc)" '{ print 1 + int($1 / cores) }' /proc/loadavg)
total=$((300 * slow))
failed=0
: >"$report"

say()
{
    printf '%4ss  %s\n' "$(($(date +%s) - began))" "$*" | tee -a "$report"
}

# fails NAME: WHAT... - what only the caller of a part can tell; and whether that part has ended well.
fails()
{
    failed=$((failed + 1))
    say "$*"
}
is_ok()
{
    [ -s "$out/part.log" ] && [ "$rc" = 0 ]
}

# is_wanted NAME - is it among those asked for, and is there time left?
is_wanted()
{
    named=${1%% *}
    case $only in
    '  ' | *" ${named%,} "*) ;;
    *) return 1 ;;
    esac
    [ $(($(date +%s) - began)) -lt $total ] || {
        say "$1: left out, $total s are over"
        return 1
    }
}

# part SECONDS NAME COMMAND... - run it under its limit; its line is the status, the time and the sentence that
# `tells` finds in the output, which stays in part.log for the caller. What is left of the whole time is a limit,
# too, and no failure of the part that it ends. The program is looked for behind `env NAME=...`.
part()
{
    limit=$(($1 * slow)) name=$2
    shift 2
    : >"$out/part.log"
    is_wanted "$name" || return 0
    for program in "$@"; do
        case $program in env | [A-Z]*=*) ;; *) break ;; esac
    done
    command -v "$program" >/dev/null || {
        say "$name: left out, there is no $program"
        return 0
    }
    at=$(date +%s)
    left=$((total - at + began))
    [ "$left" -gt 0 ] || left=1 # 0 is no limit
    rc=0 cut=
    [ "$limit" -le "$left" ] || limit=$left cut=cut
    timeout -k 5 "$limit" "$@" >"$out/part.log" 2>&1 || rc=$?
    case $cut$rc in cut124 | cut137) rc=over ;; esac
    case $rc in
    0) word=ok ;;
    77) word='left out' ;;
    over) word="left out, $total s are over" ;;
    124 | 137) word="FAILED: over its $limit s" ;;
    *) word="FAILED ($rc)" ;;
    esac
    case $rc in
    0 | 77 | over) ;;
    *) failed=$((failed + 1)) ;;
    esac
    say "$name: $word, $(($(date +%s) - at)) s: $(tells)"
    { echo "==== $name: $word" && tail -c 60000 "$out/part.log"; } >>"$out/log.txt"
    case $rc in
    0 | 77) ;;
    over) : >"$out/part.log" ;; # the caller would take a part of its numbers for all
    *) tail -n 8 "$out/part.log" | cut -c1-200 | sed 's/^/        /' | tee -a "$report" ;;
    esac
}

# What a part has to say: of a cmocka program how many tests passed, and which did not; of a training run its
# losses and its rate; of others the last line.
tells()
{
    case $(tail -n 1 "$out/part.log") in
    *'"event":"end"'*)
        tail -n 1 "$out/part.log" | sed 's/[{,]/\n/g' | grep -E 'loss|held_out|per_second|limit' | tr -d '"' | tr '\n' ' '
        ;;
    *)
        if grep -q '^\[  *PASSED  *\]' "$out/part.log"; then
            grep -E '^\[ *(PASSED|FAILED|SKIPPED) *\]' "$out/part.log" | sed 's/[][]//g; s/, listed below//' | tr -s ' \n' ' '
        else
            grep -vE '^[[:space:]]*$|^busy with|^\(!\)|^half from' "$out/part.log" | tail -n 1 | cut -c1-200
        fi
        ;;
    esac
}

# lines PATTERN - of the last part, into the report.
lines()
{
    grep -E "$1" "$out/part.log" | cut -c1-200 | sed 's/^/        /' | tee -a "$report" || true
}

dualpipe=$pack/dualpipe
chmod +x "$pack"/* 2>/dev/null || true
path=$pack${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
for d in /usr/local/nvidia/lib64 /usr/local/nvidia/lib; do [ ! -e "$d/libcuda.so.1" ] || path=$path:$d; done
export NCCL_SOCKET_IFNAME=lo DP_TOP_SRCDIR="$pack" DP_TOP_BUILDDIR="$pack"
if [ "$dry" ]; then
    say 'dry run on the simulated CUDA: no line of this report is of a GPU'
    export DUALPIPE_DEVICE_CUDA_LIBRARY="$pack/tests/simcuda/.libs/libsimcuda.so"
    path=$pack/tests/simcuda/.libs:$path
    printf simulated >"$out/kernels"
    kernels="--kernels $out/kernels"
    size='--layers 1 --width 8 --heads 2 --context 8 --batch 4 -M 2'
    stage='-M 2 --layers 1 --width 8 --context 4 --batch 1'
    steps=4 from=2 tokens=32 shards='-n 4 --shard-bytes 1M' bench=2s kernel_tests='a_*' budget=1M
else
    say "$(nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,memory.total --format=csv,noheader 2>&1)"
    kernels=
    size='--layers 8 --width 1024 --heads 16 --context 1024 --batch 32 -M 4'
    stage='-M 8 --layers 2'
    steps=16 from=6 tokens=32768 shards='-n 16 --shard-bytes 64M' bench=15s kernel_tests='*' budget=4G
    export DP_TEST_GPU=cuda
fi
export LD_LIBRARY_PATH="$path"
say "$(nproc) processors, $(cat /sys/devices/system/node/online 2>/dev/null) nodes, glibc $(ldd --version 2>&1 | head -n 1 | grep -o '[0-9.]*$'), shm $(df -h /dev/shm | awk 'END { print $2 }')"
[ "$dry" ] || mount -o remount,size=16G /dev/shm 2>/dev/null || true
# Its files come from the disk meanwhile.
[ "$dry" ] || (timeout 100 "$python" -c 'import torch; torch.ones(1).cuda()' >/dev/null 2>&1 &)

# ---- is the device one? ----------------------------------------------------------------------
part 20 start "$dualpipe" info
lines '^  lib'
# The simulated CUDA does copies of pageable memory at once, whatever their stream waits for.
if [ "$dry" ]; then say 'device: left out'; else part 60 device "$pack/test_device"; fi
part 30 graphs "$pack/test_device_graphs"
# Alone, and how much of the longer one of copies and compute is left of a step.
# shellcheck disable=SC2086 # words
part 40 copies "$dualpipe" bench offload --device cuda $shards --samples 3 --limit $bench
lines '^offload|alone|max'

# ---- are the kernels right? ------------------------------------------------------------------
# With our own product and with cuBLASLt; all sizes of the simulated CUDA are a unit test's.
part 60 kernels "$pack/test_train_cuda" "$kernel_tests"

# ---- how fast are they beside PyTorch? -------------------------------------------------------
# The rate of the steps behind `from`, of the rates since the start that every step prints.
late_rate()
{
    grep -o '"tokens_per_second": *[0-9.]*' "$out/part.log" | grep -o '[0-9.]*$' |
        awk -v n=$tokens -v from=$from -v to=$steps '{ r[NR] = $1 }
            END { if (NR >= to) printf "        steps %d to %d: %.0f tokens/s\n", from, to,
                (to - from) * n / (to * n / r[to] - from * n / r[from]) }' | tee -a "$report"
}

tr='--sample 0 --eval-every 0 --device cuda'
for type in bf16 f32; do
    # shellcheck disable=SC2086 # words
    part 45 "speed $type" "$dualpipe" train --data "$pack/LICENSE" $tr $kernels --json --steps $steps $size \
        --schedule 1f1b -P 1 --dtype $type
    late_rate
    [ "$dry" ] || part 45 "speed $type, PyTorch" "$python" "$pack/gpu_torch.py" train $type 8 1024 16 1024 32 4 10 "$pack/LICENSE"
done

# ---- a model that is larger than its part of the card ------------------------------------------
# `limited_by` the copies: their share of a step is beside the rate of `copies` above.
# shellcheck disable=SC2086 # words
part 45 streamed "$dualpipe" train --data "$pack/LICENSE" $tr $kernels --json --steps 4 $size --schedule none --dtype bf16 \
    --offload params --device-memory $budget

# ---- what does the runtime add? --------------------------------------------------------------
for how in '' --no-graphs; do
    # shellcheck disable=SC2086 # words
    part 30 "step DualPipeV over the critical path${how:+, $how}" "$dualpipe" bench step dualpipev -P 1 --samples 3 \
        --limit $bench --device cuda $kernels $stage $how
    lines 'path|ratio|over|step'
done

# ---- ranks that share the card: equal losses by the host and by NCCL ---------------------------
small='--fixed-order --steps 6 --layers 4 --width 128 --heads 4 --context 128 --batch 16 -M 4'
[ -z "$dry" ] || small='--fixed-order --steps 2 --layers 4 --width 8 --heads 2 --context 4 --batch 4 -M 4'
losses()
{
    grep -o '"loss":[^,}]*' "$out/part.log" | tr '\n' ' '
}
# shellcheck disable=SC2086 # words
{
    part 40 'ranks by the host' "$dualpipe" train --data "$pack/LICENSE" $tr $kernels --json $small --schedule dualpipe -P 2
    by_host=$(losses)
    if [ -z "$dry" ]; then
        part 60 'ranks by NCCL' "$dualpipe" train --data "$pack/LICENSE" $tr --json $small --schedule dualpipe -P 2 --transport nccl
        by_nccl=$(losses)
        # The one card that was tried had them equal to eight digits, before the last mend (report-h100.md). A part
        # without losses has failed or was left out already.
        [ -z "$by_host" ] || [ -z "$by_nccl" ] || echo "$by_host $by_nccl" | sed 's/"loss"://g' | awk '{
            for (i = 1; i <= NF / 2; i++) { d = $i - $(i + NF / 2); if (d < 0) d = -d; if (d > 1e-6 * $i) bad = 1 }
            exit bad || NF < 2 || NF % 2 }' ||
            fails "ranks: FAILED: expected losses equal to 1e-6, by the host $by_host, by NCCL $by_nccl"
    fi
}

# ---- torch's stages over this runtime, beside torch's own ------------------------------------------
# The package is the wheel of `make wheel`, where pack.sh found one and this Python has cffi.
stages="$python $pack/gpu_torch.py stages"
if ! is_wanted 'torch stages'; then
    :
elif "$python" -c 'import torch, cffi' 2>/dev/null && [ -e "$pack/python/libdualpipe" ]; then
    export PYTHONPATH="$pack/python${PYTHONPATH:+:$PYTHONPATH}"
    # shellcheck disable=SC2086 # words
    if [ "$dry" ]; then part 60 'torch stages' $stages cpu 16; else part 60 'torch stages' $stages cuda 4096; fi
    lines right
else
    say 'torch stages: left out, no wheel in the pack or no torch and cffi here'
fi
[ -z "$dry" ] || { say "end: $failed failed" && exit "$((failed > 0))"; }

# ---- torch over the plugins ------------------------------------------------------------------
# is_counted - what was counted by hand is in the library's report, with at most 2 MiB of small ones more.
is_counted()
{
    awk '{ line = $0; sub(".*by hand:", ""); gsub("[^0-9]+", " ") }
        line ~ /by hand:/ { split($0, hand) }
        line ~ /^  pinned memory / { counted[1] = $1; counted[2] = $2 }
        line ~ /^  copies  / { for (i = 1; i <= 4; i++) counted[2 + i] = $i }
        END { for (i = 1; i <= 6; i++)
            bad += counted[i] < hand[i] || counted[i] > hand[i] + (i % 2 ? 100 : 2097152)
            exit bad || !hand[1] }' "$out/part.log"
}
for stage in 0 1; do
    part 40 "preload, staging $stage" env LD_PRELOAD="$pack/libdualpipe-preload.so" DUALPIPE_PRELOAD_STAGE=$stage \
        DUALPIPE_PRELOAD_REPORT=- "$python" "$pack/gpu_torch.py" preload
    lines 'GB/s|by hand|pinned memory|copies  |staged'
    ! is_ok || is_counted || fails "preload: FAILED: expected the pinned memory and the copies counted by hand"
done
part 30 'preload, without it' "$python" "$pack/gpu_torch.py" preload
lines 'GB/s'
part 60 'net, by the plugin' env NCCL_NET_PLUGIN="$pack/libnccl-net-dualpipe.so" NCCL_NET=dualpipe NCCL_DEBUG=INFO \
    "$python" "$pack/gpu_torch.py" collectives
lines 'right'
via=$(grep -o 'via NET/[A-Za-z]*' "$out/part.log" | sort | uniq -c | tr -s ' \n' ' ')
case $via in
*NET/dualpipe*) say "       $via" ;;
*) ! is_ok || fails "net: FAILED: expected via NET/dualpipe in NCCL's log, found '$via'" ;;
esac

# ---- where the time goes ---------------------------------------------------------------------
part 90 'kernels under memcheck' compute-sanitizer --error-exitcode 9 "$pack/test_train_cuda"
# One layer and one micro-batch: all kernels of a step behind the first ones of the start, the longest first.
# shellcheck disable=SC2086 # words
part 40 'ncu of a step' ncu --csv --clock-control none --metrics gpu__time_duration.sum --launch-skip 20 \
    --launch-count 90 "$dualpipe" train --data "$pack/LICENSE" $tr --steps 1 --layers 1 --width 1024 --heads 16 \
    --context 1024 --batch 8 -M 1 --schedule 1f1b -P 1 --dtype bf16 --no-graphs
awk -F '","' '/gpu__time_duration/ { name = $5; sub("[(<].*", "", name); ns = $NF; gsub("[\",]", "", ns)
    sum[name] += ns; calls[name]++ }
    END { for (name in sum) printf "        %9.1f us  %3d calls  %s\n", sum[name] / 1000, calls[name], substr(name, 1, 60) }' \
    "$out/part.log" | sort -rn | head -n 16 | tee -a "$report"
say "end: $failed failed"
exit "$((failed > 0))"
