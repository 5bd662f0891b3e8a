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

# What cuBLASLt leaves behind where it does not start, as without a GPU.
echo leak:libcublasLt >"$work/leaks"
export LSAN_OPTIONS="suppressions=$work/leaks:print_suppressions=0"

on_cuda()
{
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
    run train $small --schedule none --json || return
    grep -o '"\(loss\|norm\|held_out\)":[^,}]*' "$work/out" >"$work/cpu"
    on_cuda $small --json "$@" || return
    grep -o '"\(loss\|norm\|held_out\)":[^,}]*' "$work/out" >"$work/cuda"
    [ "$(wc -l <"$work/cpu")" -ge 6 ] && near "$most"
}

# refused SENTENCE OPTIONS... - a mistake of the command line.
refused()
{
    sentence=$1
    shift
    on_cuda $small "$@" && return 1
    grep -q -- "$sentence" "$work/err" || wrong "$(cat "$work/err")"
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
    it refused 'expected a schedule' --schedule none
    it refused 'expected at most 128' --schedule 1f1b -P 1 --width 260 --heads 2
    it goes_on_as_it_was --schedule 1f1b -P 1 --dtype bf16
    it goes_on_near_the_cpu
    it says_that_there_is_no_gpu
else
    echo 'skipped: no simulated CUDA in this build'
fi
finish
