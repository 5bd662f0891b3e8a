#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# python.sh - the wheel of the PyTorch package is built and installed, and does what tests/python asks
# of it. With AddressSanitizer exceptions and collections at every callback alone: the library is compiled
# with it; CPython and PyTorch are not, and keep what they have until the end, so that leaks are not
# looked for. Tests that take long are those of python_long.sh and python_cuda.sh, which find the wheel made.
. "$DP_TOP_SRCDIR/tests/system/cases.sh"

python=${DP_TEST_CACHE:-}/venv/bin/python
if [ ! -e "${python%/bin/python}/complete" ]; then
    echo 'no PyTorch in a virtual environment: sh tests/run.sh without --no-install makes one'
    exit 77
fi
others=''
for name in test_trainer test_checkpoint test_cuda test_stress; do
    others="$others --ignore $DP_TOP_SRCDIR/tests/python/$name.py"
done
tests=
if grep -q __tsan_init "$DP_TOP_BUILDDIR/libdualpipe/.libs/libdualpipe.so.0"; then
    echo 'with ThreadSanitizer the library cannot be loaded into a Python that has been built without'
    exit 77
elif grep -q __asan_init "$DP_TOP_BUILDDIR/libdualpipe/.libs/libdualpipe.so.0"; then
    [ -z "${DP_PYTHON_LONG:-}" ] || {
        echo 'with AddressSanitizer test_stress.py alone is run, by python.sh'
        exit 77
    }
    # shellcheck disable=SC2086 # words
    tests=/test_stress.py preload=$($DP_CC -print-file-name=libasan.so):$($DP_CC -print-file-name=libubsan.so)
    case $preload in /*:/*) ;; *)
        echo "$DP_CC has no libasan.so and libubsan.so to load before Python"
        exit 77
        ;;
    esac
fi
unset MAKEFLAGS MFLAGS MAKELEVEL LD_LIBRARY_PATH
[ -n "${DP_PYTHON_LONG:-}" ] || make -s -C "$DP_TOP_BUILDDIR" wheel PYTHON="$python" >"$work/log" 2>&1 || {
    cat "$work/log"
    exit 1
}
"$python" -m pip -q --disable-pip-version-check install --no-deps --no-index \
    --target "$work/packages" "$DP_TOP_BUILDDIR"/wheel/*.whl
# The sdist, which configures and builds the library, takes minutes.
if [ -n "${DP_TEST_FULL:-}" ] && [ -z "${DP_PYTHON_LONG:-}" ]; then
    make -s -C "$DP_TOP_BUILDDIR" wheel-sdist >"$work/log" 2>&1 &&
        "$python" -m pip -q --disable-pip-version-check install --no-build-isolation --no-deps \
            --target "$work/sdist" "$DP_TOP_BUILDDIR"/libdualpipe-*.tar.gz >>"$work/log" 2>&1 &&
        (cd / && PYTHONPATH=$work/sdist "$python" -m libdualpipe) || {
        tail -n 40 "$work/log"
        exit 1
    }
fi
cd "$work" || exit 1
if [ -n "$tests" ]; then
    LD_PRELOAD=$preload
    ASAN_OPTIONS=detect_leaks=0
    export LD_PRELOAD ASAN_OPTIONS
fi
set -- "$DP_TOP_SRCDIR/tests/python$tests"
# shellcheck disable=SC2086 # words
if [ -n "${DP_PYTHON_LONG:-}" ]; then
    set --
    for name in $DP_PYTHON_LONG; do set -- "$@" "$DP_TOP_SRCDIR/tests/python/$name.py"; done
elif [ -z "$tests" ]; then
    set -- "$@" $others
fi
PYTHONPATH=$work/packages PYTHONDONTWRITEBYTECODE=1 "$python" -m pytest -q -p no:cacheprovider \
    --rootdir "$work" "$@"
