#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# asyncpipe.sh [BUILD [RANKS [MICROBATCHES [FORWARD_MS [BACKWARD_MS [TURNS]]]]]] - steps of the schedule
# async, by the list and by messages, beside fairscale's AsyncPipe on the same model: layers that sleep in
# forward and backward and pass 64 KiB on. By turns; the best of the medians of each, and the critical path of
# the step, (M + P - 1) (F + B), messages free. If $PYTHON has no torch or fairscale, pip installs them once
# in a virtual environment, BUILD/peers.
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "$top/${1:-build}" && pwd) ranks=${2:-4} microbatches=${3:-8}
forward=${4:-2} backward=${5:-4} turns=${6:-3}
python=${PYTHON:-python3}
if ! "$python" -c 'import torch, fairscale' 2>/dev/null; then
    [ -x "$build/peers/bin/python" ] || python3 -m venv "$build/peers"
    python=$build/peers/bin/python
    "$python" -c 'import torch, fairscale' 2>/dev/null ||
        "$python" -m pip --disable-pip-version-check install --quiet torch numpy fairscale setuptools
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

ours()
{
    "$build/tools/dualpipe" bench step async -P "$ranks" -M "$microbatches" --execution "$1" \
        --cost "f=$forward,b=$backward" --samples 3 --limit 10s --json 2>/dev/null |
        "$python" -c '
import json, sys
for figure in json.load(sys.stdin)["figures"]:
    if figure["unit"] == "ms":
        print("dualpipe-" + sys.argv[1], figure["median"])' "$1"
}

turn()
{
    ours list
    ours messages
    "$python" "$top/tests/bench/asyncpipe.py" "$ranks" "$microbatches" "$forward" "$backward" 10 \
        2>"$work/errors" | sed -n 's/^[0-9.]*$/AsyncPipe &/p' >"$work/theirs"
    [ -s "$work/theirs" ] || tail -n 1 "$work/errors" >&2
    cat "$work/theirs"
}

for _ in $(seq "$turns"); do
    turn
done >"$work/lines"
awk -v path="$(((microbatches + ranks - 1) * (forward + backward)))" '
    !($1 in best) || $2 < best[$1] { best[$1] = $2 }
    END {
        printf "%-20s %10.2f ms\n", "critical-path", path
        for (who in best)
            printf "%-20s %10.2f ms %8.3f of it\n", who, best[who], best[who] / path
    }' "$work/lines" | sort -k2,2n
