#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# mixing.sh [BUILD [PARAMETERS [TURNS]]] - an iteration of decentralized training in two processes:
# `dp-bench mixing` beside decent-dp and torch's DistributedDataParallel on gloo, by turns; the
# median of the turns of each. $PYTHON must have torch; decent-dp is left out if it is not there:
#
#     python3 -m venv peers && peers/bin/pip install torch numpy decent-dp
#     PYTHON=peers/bin/python3 tests/bench/mixing.sh build
#
# The peers' gradients are made by a backward that only copies, those of the bench by nothing: what that
# backward takes by itself is subtracted from them ("net").
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "$top/${1:-build}" && pwd) parameters=${2:-33600000} turns=${3:-3} ranks=2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${PYTHON:-python3}
"$python" -c 'import torch.distributed' || {
    echo "mixing.sh: PYTHON=$python has no torch" >&2
    exit 1
}

# Lines "WHAT MS".
turn()
{
    "$build/tests/bench/dp-bench" mixing -N $ranks --parameters "$parameters" --transport shm --samples 3 \
        --limit 60s --json 2>/dev/null | "$python" -c '
import json, sys
names = {"iteration of the mixer": "mixer", "all-reduce of gradients, then update": "all-reduce"}
for figure in json.load(sys.stdin)["figures"]:
    if figure["what"] in names:
        print(names[figure["what"]], figure["median"])'
    OMP_NUM_THREADS=1 "$python" "$top/tests/bench/mixing_torch.py" $ranks "$parameters" 2>/dev/null
}

for _ in $(seq "$turns"); do
    turn
done >"$work/lines"
"$python" - "$work/lines" "$parameters" <<'END'
import statistics
import sys

times = {}
for line in open(sys.argv[1]):
    what, ms = line.split()
    times.setdefault(what, []).append(float(ms))
median = {what: statistics.median(list) for what, list in times.items()}
print(f"{int(sys.argv[2])} float32 parameters, 2 processes, AdamW")
for what, ms in median.items():
    net = ms - median["backward"] if what in ("decent-dp", "torch-ddp") else ms
    ratio = f"   mixer over it {median['mixer'] / net:6.3f}" if what != "mixer" else ""
    print(f"  {what:12} {ms:9.1f} ms   net {net:9.1f} ms{ratio if what != 'backward' else ''}")
END
