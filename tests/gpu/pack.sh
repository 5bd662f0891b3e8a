#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# pack.sh BUILDDIR DEST - collect in DEST what a machine with a GPU needs to run check.sh: programs without
# libtool's wrappers, the libraries that it may lack, and the scripts; then say which glibc they need there. No
# compiler is needed there. BUILDDIR has been built with `make` and `make check TESTS=`.
set -eu
[ $# = 2 ] || {
    echo 'pack.sh: expected BUILDDIR DEST' >&2
    exit 2
}
build=$1 dest=$2
top=$(cd "$(dirname "$0")/../.." && pwd)
programs='tools/dualpipe tests/unit/device/test_device tests/unit/device/test_device_graphs
    tests/unit/train/test_train_cuda'
libraries='libdualpipe/libdualpipe.so.0 nccl-plugin/libnccl-net-dualpipe.so offload/libdualpipe-preload.so
    tests/simcuda/libsimcuda.so tests/simcuda/libcublasLt.so.13'

mkdir -p "$dest/tests/simcuda/.libs"
for f in $programs $libraries; do
    real=$build/${f%/*}/.libs/${f##*/}
    [ -e "$real" ] || real=$build/$f
    [ -e "$real" ] || {
        echo "pack.sh: expected $build/$f, which 'make check TESTS=' builds" >&2
        exit 1
    }
    cp -L "$real" "$dest/"
done
mv "$dest/libsimcuda.so" "$dest/libcublasLt.so.13" "$dest/tests/simcuda/.libs/" # where tests look for them
for wheel in "$build"/wheel/libdualpipe-*.whl; do # of `make wheel`
    [ ! -e "$wheel" ] || python3 -m zipfile -e "$wheel" "$dest/python"
done
cp "$top/LICENSE" "$top/tests/gpu/check.sh" "$top/tests/gpu/gpu_torch.py" "$top/tests/bench/train_torch.py" "$dest/"
for f in "$dest"/*; do ldd "$f" 2>/dev/null || true; done |
    awk '$3 ~ /^\// && $1 !~ /^(libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+|libdualpipe)\.so/ { print $3 }' |
    sort -u | while read -r library; do cp -L "$library" "$dest/"; done
for f in "$dest"/*; do strip -g "$f" 2>/dev/null || true; done

needs=$(for f in "$dest"/*; do objdump -T "$f" 2>/dev/null || true; done | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
kernels='without kernels, for a dry run only'
[ ! -e "$build/tools/train/cuda/kernels.fatbin" ] || kernels='with kernels'
echo "$dest: $(du -cm "$dest"/* | tail -n 1 | cut -f1) MB, $kernels, for machines with $needs"
