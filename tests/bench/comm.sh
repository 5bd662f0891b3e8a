#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# comm.sh [BUILD [RANKS [TURNS]]] - all-reduces of `dualpipe bench comm` beside those of OpenMPI
# (mpicc, mpirun) and gloo ($PYTHON with torch), by turns; the best of the medians of each. What is
# not installed is left out.
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "$top/${1:-build}" && pwd) ranks=${2:-2} turns=${3:-3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

has_mpi=no has_gloo=no
if command -v mpicc >/dev/null && command -v mpirun >/dev/null; then
    mpicc -O2 -o "$work/peer" "$top/tests/bench/comm_mpi.c" && has_mpi=yes
fi
python=${PYTHON:-python3}
"$python" -c 'import torch.distributed' 2>/dev/null && has_gloo=yes

# Lines "SIZE WHO US".
turn()
{
    "$build/tools/dualpipe" bench comm --ranks "$ranks" --samples 3 --limit 60s --json 2>/dev/null |
        "$python" -c '
import json, sys
units = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}
for figure in json.load(sys.stdin)["figures"]:
    if figure["unit"] == "us":
        what, number, unit = figure["what"].rsplit(" ", 2)
        print(int(number) * units[unit], what.replace(" ", "-"), figure["median"])'
    [ $has_mpi = no ] ||
        mpirun --allow-run-as-root --oversubscribe -n "$ranks" "$work/peer"
    [ $has_gloo = no ] ||
        OMP_NUM_THREADS=1 "$python" "$top/tests/bench/comm_gloo.py" "$ranks"
}

for _ in $(seq "$turns"); do
    turn
done >"$work/lines"
awk '
    !(($1, $2) in best) || $3 < best[$1, $2] { best[$1, $2] = $3 }
    { size[$1] = 1; who[$2] = 1 }
    END {
        for (s in size)
            for (w in who)
                if ((s, w) in best)
                    printf "%12d %-24s %12.2f us %8.2f GB/s\n", s, w, best[s, w], s / best[s, w] / 1e3
    }' "$work/lines" | sort -k1,1n -k2,2
