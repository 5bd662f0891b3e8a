#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# offload.sh [BUILD [PARAMETERS [LAYERS WIDTH ROWS SLICES MICROBATCHES [TURNS]]]] - what lives on the host
# beside its peers, by turns, two threads each; the medians of the turns:
#
#   AdamW over PARAMETERS, `dp-bench optimizer`, its share of memory's limit, and torch's fused one
#   a step of LAYERS linear layers in SLICES shards, and of fairscale's OffloadModel on the CPU
#
# $PYTHON must have torch and fairscale:
#
#     python3 -m venv peers && peers/bin/pip install torch numpy fairscale setuptools
#     PYTHON=peers/bin/python3 tests/bench/offload.sh build
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "$top/${1:-build}" && pwd) parameters=${2:-16777216}
layers=${3:-16} width=${4:-1024} rows=${5:-256} slices=${6:-8} microbatches=${7:-2} turns=${8:-3} steps=7
python=${PYTHON:-python3}
"$python" -c 'import torch, fairscale' || {
    echo "offload.sh: PYTHON=$python has no torch or no fairscale" >&2
    exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Lines "WHAT NUMBER".
turn()
{
    "$build/tests/bench/dp-bench" optimizer --elements "$parameters" --threads 2 --samples 3 --limit 15s \
        --json 2>/dev/null | "$python" -c '
import json, sys
names = {"AdamW": "adamw", "limit over AdamW": "limit"}
for figure in json.load(sys.stdin)["figures"]:
    if figure["what"].strip() in names:
        print(names[figure["what"].strip()], figure["median"])'
    echo "torch-adamw $("$python" "$top/tests/bench/offload.py" adamw "$parameters" 2>"$work/errors")"
    echo "step $("$build/tests/bench/offload-linear" "$layers" "$width" "$rows" "$slices" \
        "$microbatches" $steps)"
    echo "OffloadModel $("$python" "$top/tests/bench/offload.py" step "$layers" "$width" "$rows" \
        "$slices" "$microbatches" $steps 2>"$work/errors" || tail -n 1 "$work/errors" >&2)"
}

for _ in $(seq "$turns"); do
    turn
done >"$work/lines"
"$python" - "$work/lines" "$parameters" "$layers linear layers of width $width, $rows rows" <<'END'
import statistics
import sys

taken = {}
for line in open(sys.argv[1]):
    what, *number = line.split()
    if number:
        taken.setdefault(what, []).append(float(number[0]))
median = {what: statistics.median(numbers) for what, numbers in taken.items()}
print(f"AdamW over {int(sys.argv[2])} float32 parameters, 2 threads")
print(f"  dualpipe      {median['adamw']:9.2f} ms   {median.get('limit', float('nan')):.3f} of its limit")
print(f"  torch, fused  {median['torch-adamw']:9.2f} ms   {median['torch-adamw'] / median['adamw']:.3f} x ours")
print(f"a step of {sys.argv[3]}, and AdamW on the host, 2 threads")
print(f"  dualpipe      {median['step']:9.2f} ms")
if "OffloadModel" in median:
    print(f"  OffloadModel  {median['OffloadModel']:9.2f} ms   {median['OffloadModel'] / median['step']:.3f} x ours")
END
