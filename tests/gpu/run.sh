#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# run.sh [BUILDDIR] - on a machine with a GPU, without a network: build, run the device tests and the
# kernels against the CPU, train on the GPU and on the CPU, and print one table. BUILDDIR (default build-gpu)
# is made with NVCC or the nvcc of /usr/local/cuda.
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$top/build-gpu}
rows=

row()
{
    rows="$rows$(printf '%-44s %s' "$1" "$2")
"
}

passed()
{
    if DP_TOP_SRCDIR=$top DP_TOP_BUILDDIR=$build timeout 200 "$@" >"$build/gpu.log" 2>&1; then
        row "$*" passed
    else
        row "$*" "FAILED ($?)"
        tail -n 20 "$build/gpu.log"
    fi
}

# trained NAME OPTIONS... - first and last loss and tokens/s.
trained()
{
    name=$1
    shift
    if timeout 200 "$build/tools/dualpipe" train --data "$top/LICENSE" --sample 1 "$@" >"$build/gpu.log" 2>&1; then
        row "$name" "$(sed -n -e 's/^done *//p' -e 's/^loss *//p' "$build/gpu.log" | tr '\n' ' ')"
    else
        row "$name" FAILED
        tail -n 20 "$build/gpu.log"
    fi
}

nvidia-smi -L || { echo 'no GPU: nvidia-smi finds none' >&2; exit 77; }
cd "$top"
[ -f configure ] || autoreconf -fi
mkdir -p "$build"
cd "$build"
[ -f config.status ] || "$top/configure" -q
make -s -j "$(nproc)" all
make -s -j "$(nproc)" check TESTS= >/dev/null
passed tests/unit/test_device
DP_TEST_GPU=cuda passed tests/unit/test_train_cuda
small='--steps 20 --layers 4 --width 128 --heads 4 --context 128 --batch 16 -M 4 --schedule 1f1b -P 1'
large='--steps 30 --layers 8 --width 1024 --heads 16 --context 1024 --batch 32 -M 4 --schedule 1f1b -P 1'
# shellcheck disable=SC2086 # words
{
    trained 'small, cpu' $small --any-order
    trained 'small, cuda f32' $small --device cuda
    trained 'small, cuda bf16' $small --device cuda --dtype bf16
    trained 'small, cuda f32, dualpipe on 2 ranks' $small --schedule dualpipe -P 2 --device cuda
    trained 'large, cuda f32' $large --device cuda
    trained 'large, cuda bf16' $large --device cuda --dtype bf16
}
printf '\n%s' "$rows"
