#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# train.sh [BUILD [TURNS]] - tokens of a second of one thread: `dualpipe train --schedule none` and the same
# model in PyTorch, in turns; medians, in CPU time, without what a run takes to begin and to end. $PYTHON
# must have torch:
#
#     python3 -m venv peers && peers/bin/pip install torch numpy
#     PYTHON=peers/bin/python3 sh tests/bench/train.sh build
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "$top/${1:-build}" && pwd) turns=${2:-5}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${PYTHON:-python3}
text=$top/CHANGELOG.md layers=4 heads=4 context=128 batch=8 microbatches=2
"$python" -c 'import torch' || {
    echo "train.sh: PYTHON=$python has no torch" >&2
    exit 1
}

# spent STEPS WIDTH - the CPU time of a run, in seconds.
spent()
{
    "$python" - "$build/tools/dualpipe" train --data "$text" --schedule none --layers $layers --width "$2" \
        --heads $heads --context $context --batch $batch -M $microbatches --steps "$1" --sample 0 \
        --eval-every 0 <<'END'
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime)
END
}

# turn WIDTH STEPS - a line "dualpipe PyTorch".
turn()
{
    begin=$(spent 2 "$1")
    whole=$(spent $(($2 + 2)) "$1")
    peer=$(OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 "$python" "$top/tests/bench/train_torch.py" $layers "$1" \
        $heads $context $batch $microbatches $(($2 + 1)) "$text")
    echo "$begin $whole $peer" | awk -v tokens=$((batch * context * $2)) '{ print tokens / ($2 - $1), $3 }'
}

echo 'tokens a second of one thread        dualpipe    PyTorch      ratio'
for shape in '64 40' '256 10'; do
    i=0
    while [ $i -lt "$turns" ]; do
        turn $shape
        i=$((i + 1))
    done >"$work/lines"
    "$python" - "$work/lines" "$layers" "${shape% *}" <<'END'
import statistics, sys
lines = [[float(word) for word in line.split()] for line in open(sys.argv[1])]
ours, peer = (statistics.median(line[i] for line in lines) for i in (0, 1))
ratio = statistics.median(line[0] / line[1] for line in lines)
print(f"{sys.argv[2]} blocks of width {sys.argv[3]:>4}, context 128 {ours:12.0f} {peer:10.0f} {ratio:10.2f}")
END
done
