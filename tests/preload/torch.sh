#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# torch.sh - PyTorch with the preload library does on a CPU what it does without, alone and under torchrun with
# two processes. Takes $PYTHON, or python3, with torch, which pip installs; in the long form only.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
cd "$DP_TOP_BUILDDIR"

# skip_all WHY
skip_all()
{
    echo "skipped: $1"
    exit 77
}

library=$PWD/offload/.libs/libdualpipe-preload.so
python=${PYTHON:-python3}
case $DP_CC in
*-fsanitize* | *--coverage*) skip_all 'a library that is built with a sanitizer or for coverage cannot be preloaded' ;;
esac
[ -n "${DP_TEST_FULL:-}" ] || skip_all 'PyTorch under the preload library: --full runs it'
[ -e "$library" ] || skip_all 'no shared library was built'
"$python" -c 'import torch' 2>/dev/null || skip_all "no torch for $python: pip install torch, or set PYTHON"

unset RANK WORLD_SIZE LOCAL_RANK LD_PRELOAD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
checks=$DP_TOP_SRCDIR/tests/preload/torch_checks.py
dualpipe=$PWD/tools/dualpipe

# differs NAME - what two runs printed, if not the same.
differs()
{
    diff "$work/$1.without" "$work/$1.with" || tail -n 5 "$work/err"
}

"$python" "$checks" >"$work/alone.without" 2>"$work/err" || echo "status $?" >>"$work/alone.without"
LD_PRELOAD=$library DUALPIPE_PRELOAD_REPORT="$work/report" "$python" "$checks" >"$work/alone.with" 2>"$work/err" ||
    echo "status $?" >>"$work/alone.with"
case_is 'PyTorch without the library is as it should be' \
    "$(grep -q '^gradcheck True' "$work/alone.without" || cat "$work/alone.without" "$work/err")"
case_is 'PyTorch is the same with the library' "$(differs alone)"

# ranks OUT COMMAND... - its sorted lines.
ranks()
{
    out=$1
    shift
    timeout 400 "$@" >"$work/ranks" 2>"$work/err" || echo "status $?" >>"$work/ranks"
    sort "$work/ranks" >"$work/$out"
}
ranks two.without "$python" -m torch.distributed.run --standalone --nproc-per-node 2 "$checks"
ranks two.with "$dualpipe" run --quiet -- "$python" -m torch.distributed.run --standalone --nproc-per-node 2 "$checks"
case_is 'torchrun with two processes' "$(grep -c '^sum 3.0 3.0' "$work/two.without" | grep -v 2 || :)"
case_is 'torchrun under dualpipe run' "$(differs two)"
ranks two.with "$python" -m torch.distributed.run --standalone --nproc-per-node 2 --no-python \
    "$dualpipe" run --report "$work/report.json" -- "$python" "$checks"
case_is 'each rank of torchrun under dualpipe run' "$(differs two)"
case_is 'both ranks report' "$([ "$(grep -c '"size": 2, .*"status": 0, ' "$work/report.json")" = 2 ] || {
    echo 'not both:'
    cat "$work/report.json" "$work/err"
})"
cases_end
