#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# trainer.sh - the example of the trainer, as a program of a user's: the same losses under every layout, and
# across a resume under another one; and the one with CUDA kernels, which run on the CPU here.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"

top=$(cd "$DP_TOP_SRCDIR" && pwd)
lib=$(cd "$DP_TOP_BUILDDIR/libdualpipe/.libs" && pwd)
sim=$(cd "$DP_TOP_BUILDDIR" && pwd)/tests/simcuda/.libs/libsimcuda.so
cd "$work" || exit 1
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT OMPI_COMM_WORLD_RANK PMI_RANK PMIX_RANK SLURM_PROCID \
    SLURM_NTASKS SLURM_JOB_ID DUALPIPE_COMM_ADDRESS
# shellcheck disable=SC2086 # words
$DP_CC -Wall -Wextra -Werror "$top/tests/system/example_trainer.c" -I"$top/libdualpipe/include" -L"$lib" -ldualpipe \
    -lm -o example || exit 1
LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH

# example RANKS OUTPUT ARGUMENT... - $program by the variables that a launcher sets. A port may be taken: then
# another.
program=./example
example()
{
    ranks=$1 output=$2
    shift 2
    WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1
    export WORLD_SIZE MASTER_ADDR MASTER_PORT
    for try in 1 2 3 4; do
        MASTER_PORT=$((20000 + ($$ * 7 + try * 1009) % 10000))
        rank=1 others=
        while [ $rank -lt "$ranks" ]; do
            RANK=$rank $program "$@" >other 2>&1 &
            others="$others $!" rank=$((rank + 1))
        done
        RANK=0 $program "$@" >"$output" 2>errors && break
        for other in $others; do
            kill "$other" 2>/dev/null
            wait "$other"
        done
        grep -q 'Address already in use' errors && [ $try -lt 4 ] || {
            cat errors
            return 1
        }
    done
    for other in $others; do
        wait "$other" || return 1
    done
}

is_short()
{
    lines=$(wc -l <"$top/tests/system/example_trainer.c")
    [ "$lines" -lt 120 ] || wrong "$lines lines"
}

learns_the_same() # RANKS REPLICAS
{
    example "$1" losses "$2" 20 && cmp expected losses
}

goes_on() # RANKS REPLICAS, of what RANKS REPLICAS has saved
{
    example "$3" first "$4" 15 "saved$1$3" && example "$1" second "$2" 20 "saved$1$3" &&
        cat first second | cmp expected - && [ "$(echo "saved$1$3"/*)" = "saved$1$3/step-000015 saved$1$3/step-000020" ]
}

example 1 expected 1 20 || exit 1
it is_short
it learns_the_same 4 1
it learns_the_same 4 2
it learns_the_same 2 2
it goes_on 4 2 2 1
it goes_on 1 1 4 1

# ---- with CUDA kernels -----------------------------------------------------------------------------------

is_compiled_by_nvcc()
{
    nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
    [ -x "$nvcc" ] || skip 'no nvcc'
    "$nvcc" -std=c++20 "$top/tests/system/example_trainer.cu" -I"$top/libdualpipe/include" -c -o example_cuda.o
}

can_run()
{
    [ -e "$sim" ] || skip 'no simulated CUDA in this build'
    case $DP_CC in *-fsanitize=thread*) skip 'the thread sanitizer does not know the stacks of simulated threads' ;; esac
    [ -x on_cpu ] || skip 'no compiler of C++20'
    DUALPIPE_DEVICE_CUDA_LIBRARY=$sim
    export DUALPIPE_DEVICE_CUDA_LIBRARY
}

# Pipelines, whose messages go by the host's memory.
learns_the_same_on_cuda() # RANKS
{
    can_run && program=./on_cpu && example "$1" losses 1 20 && cmp expected losses
}

goes_on_where_the_other_was() # PROGRAM RANKS, of what PROGRAM RANKS has saved
{
    can_run && program=$3 && example "$4" first 1 15 "moved${1#./}" && program=$1 && example "$2" second 1 20 "moved${1#./}" &&
        cat first second | cmp expected -
}

# shellcheck disable=SC2086 # words
$DP_CC -std=c++20 -ffp-contract=off -include "$top/tests/system/cuda_on_cpu.h" -x c++ \
    "$top/tests/system/example_trainer.cu" -I"$top/libdualpipe/include" -L"$lib" -ldualpipe -lstdc++ -lm \
    -o on_cpu 2>compiler || :
it is_compiled_by_nvcc
it learns_the_same_on_cuda 1
it learns_the_same_on_cuda 2
it goes_on_where_the_other_was ./on_cpu 2 ./example 1
it goes_on_where_the_other_was ./example 2 ./on_cpu 1
finish
