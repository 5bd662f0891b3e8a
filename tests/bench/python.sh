#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# python.sh [BUILD [RANKS...]] - steps of the Python package's classes beside those that they stand for, by
# turns in the same processes: DeepSeek's DualPipe, torch's schedules, fairscale's AsyncPipe,
# Decent-DP and DDP, with small, medium and large layers; fairscale's OffloadModel does not run without CUDA. With more ranks than processors
# the time of all ranks' processors is what counts. Wants the virtual environment of tests/run.sh.
# $CASES: only those whose names have one of its words.
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "$top/${1:-build}" && pwd)
[ $# -eq 0 ] || shift
python=$build/cache/venv/bin/python
[ -x "$python" ] || {
    echo "no $python: sh tests/python/venv.sh $build/cache/venv makes it"
    exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
make -s -C "$build" wheel PYTHON="$python" >"$work/log" 2>&1 || {
    cat "$work/log"
    exit 1
}
"$python" -m pip -q --disable-pip-version-check install --no-deps --no-index --target "$work/packages" \
    "$build"/wheel/*.whl
echo "$(nproc) processors, load $(cut -d ' ' -f 1 /proc/loadavg) at the beginning"
for ranks in "${@:-2 4}"; do
    for count in $ranks; do
        # shellcheck disable=SC2086 # words
        PYTHONPATH=$work/packages "$python" "$top/tests/bench/python.py" "$count" ${CASES:-} 2>"$work/errors" ||
            tail -n 3 "$work/errors"
    done
done
