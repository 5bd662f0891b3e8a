#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# fetch.sh DIR [PACKAGE...] - put libnccl.so.2 of each of Python's packages into DIR/PACKAGE, unless
# it is there. Says why not and returns 0 where it cannot be had: who wants it then skips. About
# 190 MB to load and 210 MB to keep for each.
set -eu

dir=${1:?fetch.sh DIR [PACKAGE...]}
shift
[ $# -gt 0 ] || set -- nvidia-nccl-cu13==2.28.9

# fetch PACKAGE - in a directory of its own that gets its name when all is there.
fetch()
{
    part=$dir/part-$$
    mkdir -p "$part"
    if ! timeout 300 python3 -m pip --disable-pip-version-check download --quiet --no-deps \
        --timeout 15 --retries 1 --dest "$part" "$1" >"$dir/why" 2>&1; then
        rm -rf "$part"
        return 1
    fi
    (cd "$part" && python3 -m zipfile -e ./*.whl . && mv nvidia/nccl/lib/libnccl.so.2 . &&
        rm -rf ./*.whl nvidia ./*.dist-info) >>"$dir/why" 2>&1 && mv "$part" "$dir/$1"
}

[ "$(uname -m)" = x86_64 ] || {
    echo "no NCCL: $(uname -m) is not x86_64, which the simulated CUDA is written for"
    exit 0
}
for package; do
    [ ! -e "$dir/$package/libnccl.so.2" ] || continue
    mkdir -p "$dir"
    fetch "$package" || echo "no $package: $(tail -n 1 "$dir/why")"
done
