#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# plan.sh [BUILD [RANKS [SAMPLES [LIMIT_S]]]] - how well `dualpipe plan` predicts the step that
# `dualpipe train --plan` takes, from one step's end to the next: the ratio of the two, of the median
# of samples. A sample during which other work had more than a quarter of a core is taken again;
# after LIMIT_S seconds without enough of them there is no result. Exits with 1 where the prediction
# is more than 10 % off, 77 without a result. RANKS is at most the number of cores: each rank wants
# one.
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "$top/${1:-build}" && pwd) ranks=${2:-2} samples=${3:-5} limit_s=${4:-300}
[ "$ranks" -le "$(nproc)" ] || {
    echo "plan.sh: $ranks ranks on $(nproc) cores: expected a core for each"
    exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
hertz=$(getconf CLK_TCK)
began_s=$(date +%s)

# Jiffies that all cores were busy, and those of the commands that this shell has waited for.
busy() { awk '/^cpu / { print $2 + $3 + $4 + $7 + $8; exit }' /proc/stat; }
own() { awk '{ sub(/.*\) /, ""); print $14 + $15 }' /proc/$$/stat; }
now_ms() { date +%s%3N; }

# The median time from the end of a step to the end of the next one, in ms, of a run whose rates (tokens
# per second since it began) are in a file; not of the last step, after which it evaluates.
step_ms()
{
    awk -F '[:,}]' '/"event":"step"/ {
        for (i = 1; i < NF; i++)
            if ($i == "\"tokens_per_second\"") ended = ++steps * 1000 * 16 * 64 / $(i + 1)
        if (steps > 1) print ended - before
        before = ended
    }' "$1" | sed '$d' | sort -n | awk '{ ms[NR] = $0 } END { print ms[int((NR + 1) / 2)] }'
}

# One prediction and one run: "PREDICTED_MS TAKEN_MS", nothing if other work was in the way.
sample()
{
    busy0=$(busy) own0=$(own) ms0=$(now_ms)
    "$build/tools/dualpipe" plan --data "$top/LICENSE" -P "$ranks" -s "$kind" -M 8 --width 128 \
        --context 64 --batch 16 -o "$work/plan.json" >"$work/table" || exit 1
    "$build/tools/dualpipe" train --data "$top/LICENSE" --plan "$work/plan.json" --steps 30 \
        --eval-every 0 --sample 0 --stat-dir none --json >"$work/run" || exit 1
    others=$(echo "$busy0 $(busy) $own0 $(own) $ms0 $(now_ms) $hertz" |
        awk '{ printf "%d", 1000 * ($2 - $1 - $4 + $3) / $7 / (($6 - $5) / 1000) }')
    [ "$others" -le 250 ] || return 0
    predicted=$(sed -n 's/.*"step_ns": \([0-9]*\).*/\1/p' "$work/plan.json")
    taken=$(step_ms "$work/run")
    echo "$kind $predicted $taken" |
        awk '{ printf "%s %.3f %.3f %.4f\n", $1, $2 / 1e6, $3, $2 / 1e6 / $3 }'
}

# The middle of column 4.
median() { sort -n -k 4 "$1" | awk '{ line[NR] = $0 } END { print line[int((NR + 1) / 2)] }'; }

worst=0
for kind in 1f1b zb1p dualpipe; do
    : >"$work/samples"
    while [ "$(wc -l <"$work/samples")" -lt "$samples" ]; do
        [ $(($(date +%s) - began_s)) -lt "$limit_s" ] || {
            echo "plan.sh: no $samples quiet samples within $limit_s s: the machine is busy"
            exit 77
        }
        sample >>"$work/samples"
    done
    median "$work/samples" | awk '{
        printf "%-10s predicted %8.2f ms, taken %8.2f ms: %.3f of it\n", $1, $2, $3, $4 }'
    off=$(median "$work/samples" | awk '{ d = $4 - 1; printf "%d", 1000 * (d < 0 ? -d : d) }')
    [ "$off" -le "$worst" ] || worst=$off
done
[ "$worst" -le 100 ]
