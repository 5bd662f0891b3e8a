#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# train_cuda.sh - `dualpipe train --device cuda` on the simulated CUDA: the losses are those of the CPU,
# nearly, and what cannot be is said.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"

sim=$DP_TOP_BUILDDIR/tests/simcuda/.libs/libsimcuda.so
data=$DP_TOP_SRCDIR/LICENSE
small="--data $data --layers 4 --width 8 --heads 2 --context 4 --batch 8 -M 4 --steps 2 --sample 4"
case " $DP_CC " in
*-fsanitize=thread*)
    echo 'the thread sanitizer does not know the stacks that simulated threads have'
    exit 77
    ;;
esac
printf simulated >"$work/kernels"

# What cuBLASLt leaves behind where it does not start, as without a GPU; and NCCL some of its own memory.
printf '%s\n' leak:libcublasLt leak:ncclCalloc leak:libnccl.so >"$work/leaks"
export LSAN_OPTIONS="suppressions=$work/leaks:print_suppressions=0"

# With the stand-in for cuBLASLt, as NCCL's cases have it: its sums are in another order than our own.
on_cuda()
{
    LD_LIBRARY_PATH=$DP_TOP_BUILDDIR/tests/simcuda/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
        DUALPIPE_DEVICE_CUDA_LIBRARY=$sim run train --device cuda --kernels "$work/kernels" "$@"
}

# near MOST - of the numbers of two runs.
near()
{
    paste -d: "$work/cpu" "$work/cuda" |
        awk -F: -v most="$1" '{ d = $2 - $4; if (d < 0) d = -d; if ($1 != $3 || d > most * $2) bad = 1 }
            END { exit bad || NR < 3 }' || wrong "$(paste "$work/cpu" "$work/cuda")"
}

# near_the_cpu MOST OPTIONS... - losses and norms, relative to the CPU's.
near_the_cpu()
{
    most=$1
    shift
    case " $* " in
    *' --tie-embeddings '*) tie=--tie-embeddings ;;
    *) tie= ;;
    esac
    case " $* " in
    *' -M 8 '*) mbs='-M 8' ;;
    *) mbs= ;;
    esac
    # shellcheck disable=SC2086 # words
    run train $small $mbs $tie --schedule none --json || return
    grep -o '"\(loss\|norm\|held_out\)":[^,}]*' "$work/out" >"$work/cpu"
    on_cuda $small --json "$@" || return
    grep -o '"\(loss\|norm\|held_out\)":[^,}]*' "$work/out" >"$work/cuda"
    [ "$(wc -l <"$work/cpu")" -ge 6 ] && near "$most"
}

mixes_as_the_cpu()
{
    mix='--schedule 1f1b -P 1 -D 2 --mix ring'
    # shellcheck disable=SC2086 # words
    run train $small $mix --json || return
    grep -o '"\(loss\|norm\|held_out\)":[^,}]*' "$work/out" >"$work/cpu"
    # shellcheck disable=SC2086 # words
    on_cuda $small $mix --json || return
    grep -o '"\(loss\|norm\|held_out\)":[^,}]*' "$work/out" >"$work/cuda"
    near 1e-5
}

# From GPU to GPU, what the case before has made of the host's mixing.
mixes_by_nccl()
{
    needs_nccl
    with_nccl on_cuda $small --schedule 1f1b -P 1 -D 2 --mix ring --json || return
    grep -o '"\(loss\|norm\|held_out\)":[^,}]*' "$work/out" >"$work/cuda"
    near 1e-5 || return
    cat "$work"/nccl.* | grep -q 'dualpipe reduce 0 to 1' || wrong 'no NCCL communicator for sums'
    rm -f "$work"/nccl.*
}

# refused SENTENCE OPTIONS... - a mistake of the command line.
refused()
{
    sentence=$1
    shift
    on_cuda $small "$@" && return 1
    grep -q -- "$sentence" "$work/err" || wrong "$(cat "$work/err")"
}

refused_on_the_cpu()
{
    sentence=$1
    shift
    run train $small "$@" && return 1
    grep -q -e "$sentence" "$work/err" || wrong "$(cat "$work/err")"
}

# NCCL is there, or the case is skipped.
needs_nccl()
{
    package=${DP_TEST_NCCL:-nvidia-nccl-cu13==2.28.9}
    libnccl=${DP_TEST_CACHE:-$DP_TOP_BUILDDIR/cache}/nccl/$package/libnccl.so.2
    [ -e "$libnccl" ] || skip "no $package: sh tests/simcuda/fetch.sh loads it, as tests/run.sh does"
}

# with_nccl COMMAND... - messages go by the real NCCL, from simulated GPU to simulated GPU.
with_nccl()
{
    (
        LD_LIBRARY_PATH=$DP_TOP_BUILDDIR/tests/simcuda/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        SIMCUDA_NCCL=$libnccl DUALPIPE_NCCL_LIBRARY=$libnccl SIMCUDA_LOOKS=1
        NCCL_SOCKET_IFNAME=lo NCCL_NET_PLUGIN=none NCCL_RAS_ENABLE=0 NCCL_MAX_NCHANNELS=1
        NCCL_BUFFSIZE=131072 NCCL_DEBUG=INFO NCCL_DEBUG_FILE=$work/nccl.%p
        export LD_LIBRARY_PATH SIMCUDA_NCCL DUALPIPE_NCCL_LIBRARY SIMCUDA_LOOKS NCCL_SOCKET_IFNAME \
            NCCL_NET_PLUGIN NCCL_RAS_ENABLE NCCL_MAX_NCHANNELS NCCL_BUFFSIZE NCCL_DEBUG NCCL_DEBUG_FILE
        "$@" --transport nccl
    )
}

# The losses of two runs are the same to the last bit; norms, which the GPU adds up in another order than the
# host, to rounding.
same_but_norms()
{
    cp "$work/host" "$work/cpu"
    near 1e-14 || return
    grep -v norm "$work/cuda" >"$work/losses"
    grep -v norm "$work/host" | cmp - "$work/losses"
}

# same_by_nccl NAME OPTIONS... - the numbers are those of the case before. NCCL has a communicator of that name.
same_by_nccl()
{
    name=$1
    shift
    needs_nccl
    with_nccl on_cuda $small --json "$@" || return
    grep -o '"\(loss\|norm\|held_out\)":[^,}]*' "$work/out" >"$work/cuda"
    same_but_norms || return
    grep -q "$name" "$work"/nccl.* || wrong "no NCCL communicator '$name'"
    rm -f "$work"/nccl.*
}

# by_nccl NAME OPTIONS... - the numbers are those of messages and sums through the host.
by_nccl()
{
    needs_nccl
    name=$1
    shift
    on_cuda $small --json "$@" || return
    grep -o '"\(loss\|norm\|held_out\)":[^,}]*' "$work/out" >"$work/host"
    same_by_nccl "$name" "$@"
}

# learns_in_passing KIB OPTIONS... - parameters that pass over a GPU with room for a part of the model (which takes
# 3.7 MB with gradients and averages) learn the same, also by graphs of callbacks that find them in windows.
learns_in_passing()
{
    budget=$1
    shift
    on_cuda $small --width 64 --steps 4 --json "$@" || return
    grep -o '"\(loss\|norm\|held_out\)":[^,}]*' "$work/out" >"$work/host"
    on_cuda $small --width 64 --steps 4 --json "$@" --offload params --device-memory "${budget}K" || return
    says '"params_on_host":true' || return
    taken=$(sed -n 's/.*"device_bytes":\([0-9]*\).*/\1/p' "$work/out")
    [ "${taken:-0}" -gt 0 ] && [ "$taken" -le $((budget * 1024)) ] || wrong "$taken bytes of $budget KiB" || return
    grep -o '"\(loss\|norm\|held_out\)":[^,}]*' "$work/out" >"$work/cuda"
    same_but_norms
}

# Two schedules have the numbers of one another, to the last bit.
in_the_fixed_order()
{
    on_cuda $small --layers 2 --steps 1 --json --fixed-order --schedule 1f1b -P 1 "$@" || return
    grep -o '"\(loss\|norm\|held_out\)":[^,}]*' "$work/out" >"$work/one"
    on_cuda $small --layers 2 --steps 1 --json --fixed-order --schedule dualpipe -P 2 "$@" || return
    grep -o '"\(loss\|norm\|held_out\)":[^,}]*' "$work/out" | cmp - "$work/one"
}

numbers()
{
    grep -o '"\(loss\|norm\|held_out\)":[^,}]*' "$work/out" | tail -n 3
}

# The second half of a run that is saved in between has the numbers of one that is not, to the last bit.
goes_on_as_it_was()
{
    on_cuda $small --layers 1 --json "$@" --save "$work/bf16" --save-every 1 || return
    numbers >"$work/whole"
    rm -r "$work/bf16/step-000002"
    on_cuda --data "$data" --json --resume "$work/bf16" "$@" || return
    numbers | cmp - "$work/whole" || wrong "$(cat "$work/out" "$work/whole")"
}

shards_go_on_as_they_were()
{
    needs_nccl
    with_nccl goes_on_as_it_was --schedule 1f1b -P 1 -D 2 --mix reduce-scatter
}

# What a GPU has begun the CPU finishes.
goes_on_near_the_cpu()
{
    on_cuda $small --layers 1 --schedule 1f1b -P 1 --json --save "$work/half" --save-every 1 || return
    numbers >"$work/cuda"
    rm -r "$work/half/step-000002"
    run train --data "$data" --json --resume "$work/half" --schedule none || return
    numbers >"$work/cpu"
    near 1e-5
}

says_that_there_is_no_gpu()
{
    DUALPIPE_DEVICE_CUDA_LIBRARY=$work/none run train $small --device cuda --kernels "$work/kernels" \
        --schedule 1f1b -P 1 && return 1
    grep -q 'no CUDA driver' "$work/err" || wrong "$(cat "$work/err")"
}

if [ -f "$sim" ]; then
    it near_the_cpu 1e-5 --schedule 1f1b -P 1
    it near_the_cpu 1e-5 --schedule dualpipe -P 2
    it near_the_cpu 0.05 --schedule 1f1b -P 2 --dtype bf16
    it mixes_as_the_cpu
    it mixes_by_nccl
    it in_the_fixed_order
    it by_nccl 'dualpipe activation 0 to 1' --schedule dualpipe -P 2 --tie-embeddings
    it by_nccl 'dualpipe reduce 0 to 1' --schedule 1f1b -P 1 -D 2
    it same_by_nccl 'dualpipe reduce 0 to 1' --schedule 1f1b -P 1 -D 2 --mix reduce-scatter
    it refused_on_the_cpu '--transport nccl: expected --device cuda' --transport nccl
    it refused_on_the_cpu '--no-graphs: expected --device cuda' --no-graphs
    it refused 'expected --execution list' --schedule async -P 2 --execution messages --transport nccl
    it near_the_cpu 1e-5 --schedule none
    it learns_in_passing 1300 --schedule none
    it learns_in_passing 1300 --schedule none --dtype bf16
    it learns_in_passing 2300 --schedule none --fixed-order
    it learns_in_passing 2500 --schedule dualpipe -P 2
    it learns_in_passing 2500 --schedule dualpipe -P 2 --dtype bf16
    it refused 'expected params among them' --schedule none --offload params --device-memory 64K --device-share 0.5
    it refused 'expected at most 128' --schedule 1f1b -P 1 --width 260 --heads 2
    it goes_on_as_it_was --schedule 1f1b -P 1 --dtype bf16
    it goes_on_as_it_was --schedule 1f1b -P 1 --tie-embeddings -D 2
    if [ -n "${DP_TEST_FULL:-}" ]; then
        it near_the_cpu 1e-5 --schedule 1f1b -P 1 -D 2
        it near_the_cpu 1e-5 --schedule dualpipe -P 2 -D 2 -M 8 --mix reduce-scatter
        it near_the_cpu 0.05 --schedule 1f1b -P 2 --dtype bf16 -D 2 --tie-embeddings
        it by_nccl 'dualpipe activation 0 to 1' --schedule dualpipe -P 4 -M 8 --layers 8
        it by_nccl 'dualpipe reduce 1 to 3' --schedule dualpipe -P 2 -D 2 -M 8
        it same_by_nccl 'dualpipe reduce 1 to 3' --schedule dualpipe -P 2 -D 2 -M 8 --mix reduce-scatter
        it shards_go_on_as_they_were
        it goes_on_as_it_was --schedule 1f1b -P 1 -D 2 --mix ring
    fi
    it goes_on_near_the_cpu
    it says_that_there_is_no_gpu
else
    echo 'skipped: no simulated CUDA in this build'
fi
finish
