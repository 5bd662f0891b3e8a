#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# run.sh [BUILDDIR] - all that a machine with a GPU should run, without a network: build, run the device
# tests and the kernels against the CPU, train on the GPU and on the CPU, compare with PyTorch, and print one
# table. BUILDDIR (default build-gpu) is made with NVCC or the nvcc of /usr/local/cuda. What is compared with
# PyTorch needs $PYTHON (python3) with torch, and says so where it is not there. Files of NCCL are looked for
# as NCCL's users do: LD_LIBRARY_PATH or DUALPIPE_NCCL_LIBRARY.
#
# Not covered: a step over its critical path, as ops are timed where they are queued, not on the GPU;
# fairscale's offload; messages over RDMA.
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$top/build-gpu}
rows=

row()
{
    rows="$rows$(printf '%-44s %s' "$1" "$2")
"
}

# tokens of a second, of a run's last line.
tokens_of()
{
    timeout 300 "$build/tools/dualpipe" train --data "$top/LICENSE" --sample 0 --json "$@" 2>"$build/gpu.log" |
        grep -o '"tokens_per_second": *[0-9.]*' | tail -n 1 | grep -o '[0-9.]*$'
}

# beside_torch NAME DTYPE LAYERS WIDTH HEADS CONTEXT BATCH MICROBATCHES STEPS - tokens/s and model TFLOP/s of
# both, in turns: 6 flops for each weight of a product, and the scores of causal attention.
beside_torch()
{
    name=$1 dtype=$2
    shift 2
    ours='' theirs=''
    for _ in 1 2 3; do
        ours="$ours $(tokens_of --layers "$1" --width "$2" --heads "$3" --context "$4" --batch "$5" -M "$6" \
            --steps "$7" --schedule 1f1b -P 1 --device cuda --dtype "$dtype" || echo 0)"
        theirs="$theirs $("$python" "$top/tests/gpu/gpu_torch.py" train "$dtype" "$@" "$top/LICENSE" || echo 0)"
    done
    # shellcheck disable=SC2086 # words
    row "$name" "$(printf '%s\n' $ours -- $theirs | awk -v l="$1" -v w="$2" -v t="$4" '
        $1 == "--" { peer = 1; next }
        { if ($1 > best[peer]) best[peer] = $1 }
        END { flops = 6 * (12 * l * w * w + 256 * w) + 6 * l * w * t
            printf "dualpipe %.0f tokens/s (%.1f TFLOP/s), PyTorch %.0f (%.1f), ratio %.2f", best[0],
                best[0] * flops * 1e-12, best[1], best[1] * flops * 1e-12, best[1] ? best[0] / best[1] : 0 }')"
}

# torch_says NAME COMMAND... - what PyTorch's side prints.
torch_says()
{
    name=$1
    shift
    if said=$(timeout 300 "$@" 2>"$build/gpu.log"); then
        row "$name" "$said"
    else
        row "$name" FAILED
        tail -n 20 "$build/gpu.log"
    fi
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
python=${PYTHON:-python3}
passed tests/unit/test_device
passed tests/unit/test_device_cuda
passed tests/unit/test_pipeline_device
DP_TEST_GPU=cuda passed tests/unit/test_device_graphs
DP_TEST_GPU=cuda passed tests/unit/test_train_cuda
passed tools/dualpipe doctor
passed tools/dualpipe topo
passed tests/gpu/gpu-copies
row 'GB/s up, down, both; by dp_device_copy' "$(sed -n 's/^GB.s: //p' "$build/gpu.log")"
small='--steps 20 --layers 4 --width 128 --heads 4 --context 128 --batch 16 -M 4 --schedule 1f1b -P 1'
large='--steps 30 --layers 8 --width 1024 --heads 16 --context 1024 --batch 32 -M 4 --schedule 1f1b -P 1'
# shellcheck disable=SC2086 # words
{
    trained 'small, cpu' $small --any-order
    trained 'small, cuda f32' $small --device cuda
    trained 'small, cuda bf16' $small --device cuda --dtype bf16
    trained 'small, cuda f32, dualpipe on 2 ranks' $small --schedule dualpipe -P 2 --device cuda
    trained 'small, cuda f32, no graphs' $small --device cuda --no-graphs
    trained 'small, cuda f32, 2 replicas' $small -D 2 --device cuda
    trained 'small, cuda f32, dualpipe on 2 ranks, NCCL' $small --schedule dualpipe -P 2 --device cuda \
        --transport nccl
    trained 'large, cuda f32' $large --device cuda
    trained 'large, cuda bf16' $large --device cuda --dtype bf16
}
if "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    for dtype in f32 bf16; do
        beside_torch "width 128, $dtype, beside PyTorch" "$dtype" 4 128 4 128 16 4 100
        beside_torch "width 1024, $dtype, beside PyTorch" "$dtype" 8 1024 16 1024 32 4 20
    done
    torch_says 'GB/s up, down, both; PyTorch' "$python" "$top/tests/gpu/gpu_torch.py" copies 268435456
    plugin=$build/nccl-plugin/.libs/libnccl-net-dualpipe.so
    torch_says 'us all-reduce/send-recv, our net plugin' env NCCL_NET_PLUGIN="$plugin" NCCL_NET=dualpipe \
        "$python" "$top/tests/gpu/gpu_torch.py" collectives
    torch_says "us all-reduce/send-recv, NCCL's Socket" env NCCL_NET_PLUGIN=none NCCL_NET=Socket \
        "$python" "$top/tests/gpu/gpu_torch.py" collectives
    # NCCL's shared memory is between GPUs of a host, so it needs two.
    torch_says 'GB/s up, down, both; PyTorch, preload' env LD_PRELOAD="$build/offload/.libs/libdualpipe-preload.so" \
        "$python" "$top/tests/gpu/gpu_torch.py" copies 268435456
else
    row 'beside PyTorch' "skipped: no torch with CUDA for $python"
fi
printf '\n%s' "$rows"
