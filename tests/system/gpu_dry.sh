#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# gpu_dry.sh - the check for a machine with a GPU (tests/gpu): its pack is made and its script runs to the
# end on the simulated CUDA, with small sizes, so that it does not fail first where a GPU is paid for.
# shellcheck disable=SC2154 # what cases.sh sets
. "$DP_TOP_SRCDIR/tests/system/cases.sh"

case " $DP_CC " in
*-fsanitize=*)
    echo 'a pack is of a build without sanitizers'
    exit 77
    ;;
esac
if [ ! -e "$DP_TOP_BUILDDIR/tests/simcuda/.libs/libsimcuda.so" ] ||
    [ ! -e "$DP_TOP_BUILDDIR/tests/unit/train/test_train_cuda" ]; then
    echo 'no simulated CUDA in this build'
    exit 77
fi
unset DP_TEST_GPU OUT PYTHON

packs()
{
    sh "$DP_TOP_SRCDIR/tests/gpu/pack.sh" "$DP_TOP_BUILDDIR" "$work/pack" >"$work/out" 2>"$work/err" ||
        wrong "$(cat "$work/err")" || return
    says "$work/pack: " 'MB, with' 'for machines with GLIBC_'
}

# Lines of the report begin with the seconds.
reports()
{
    grep -qE -e "^ *([0-9]+s  )?$1" "$work/report/report.txt" ||
        wrong "no line '$1' in: $(cat "$work/report/report.txt")"
}

checks()
{
    status=0
    OUT=$work/report sh "$work/pack/check.sh" --dry-run "$work/pack" >"$work/out" 2>&1 || status=$?
    [ "$status" = 0 ] || wrong "exits with $status: $(cat "$work/out")" || return
    while read -r line; do
        reports "$line" || return
    done <<EXPECTED
dry run on the simulated CUDA: no line of this report is of a GPU
start: ok, .*
libcuda +.*/libsimcuda.so$
libcublasLt +13.0.0, .*/pack/tests/simcuda/.libs/libcublasLt.so.13
device: left out
graphs: ok, .* PASSED [0-9]+ test
copies: ok, .*
.*offload, cuda, (of no|pinned memory on) NUMA node.*
.*copies alone: up +[0-9.]+ .*GB/s.*
kernels: ok, .* PASSED [0-9]+ test
speed bf16: ok, .*loss:[0-9.]+
speed f32: ok, .*loss:[0-9.]+
steps 2 to 4: [0-9]+ tokens/s
streamed: ok, .*loss:[0-9.]+.*limited_by:
step DualPipeV over the critical path: ok
step DualPipeV over the critical path, --no-graphs: ok
ranks by the host: ok, .*loss:[0-9.]+
torch stages: (ok|left out), .*
end: 0 failed
EXPECTED
}

says_what_failed()
{
    printf '#!/bin/sh\necho "no such device" && exit 3\n' >"$work/pack/test_device_graphs"
    OUT=$work/report sh "$work/pack/check.sh" --dry-run "$work/pack" graphs >"$work/out" 2>&1 &&
        wrong 'ends with 0' && return 1
    reports 'graphs: FAILED \(3\), [0-9]+ s: no such device' && reports 'end: 1 failed'
}

# What is left of the whole time, here less than the part's own limit, is no fault of the part.
leaves_out_what_time_cuts_off()
{
    printf '#!/bin/sh\necho "half of it" && exit 124\n' >"$work/pack/test_device_graphs"
    sed 's/^total=.*/total=$((19 * slow))/' "$work/pack/check.sh" >"$work/pack/short.sh"
    OUT=$work/report sh "$work/pack/short.sh" --dry-run "$work/pack" graphs >"$work/out" 2>&1 ||
        wrong "$(cat "$work/out")" || return
    reports 'graphs: left out, [0-9]+ s are over' && reports 'end: 0 failed' || return
    OUT=$work/report sh "$work/pack/check.sh" --dry-run "$work/pack" graphs >"$work/out" 2>&1 &&
        wrong 'ends with 0' && return 1
    reports 'graphs: FAILED: over its [0-9]+ s'
}

refuses_what_is_no_part()
{
    for args in '' "$work/none" "--dry-run $work" "$work/pack copy" "--dry-run $work/pack start preload,"; do
        # shellcheck disable=SC2086 # words
        sh "$work/pack/check.sh" $args >"$work/out" 2>&1 && wrong "takes '$args'" && return 1
        says 'expected [--dry-run] PACK [PART...]' 'of the parts start device' || return
    done
    sh "$DP_TOP_SRCDIR/tests/gpu/pack.sh" "$work" >"$work/out" 2>&1 && wrong 'packs nothing' && return 1
    says 'expected BUILDDIR DEST'
}

# The parts behind the end of a dry run, none of which it could run.
leaves_out_what_needs_python()
{
    sed '/^\[ -z "$dry" \] || { say "end/d' "$work/pack/check.sh" >"$work/pack/longer.sh"
    OUT=$work/report PYTHON=no-python sh "$work/pack/longer.sh" --dry-run "$work/pack" preload net \
        >"$work/out" 2>&1 || wrong "$(cat "$work/out")" || return
    for part in 'preload, staging 0' 'preload, staging 1' 'preload, without it' 'net, by the plugin'; do
        reports "$part: left out, there is no no-python" || return
    done
    reports 'end: 0 failed'
}

# judges FAILED PART - of a run in which a stand-in for PyTorch prints $work/counts.
judges()
{
    COUNTS=$work/counts OUT=$work/report PYTHON=$work/python sh "$work/pack/longer.sh" --dry-run "$work/pack" "$2" \
        >"$work/out" 2>&1 || :
    reports "end: $1 failed"
}

# Copies that the library's report lacks are a failure, small ones are none; and so are messages by another net.
judges_what_pytorch_says()
{
    printf '#!/bin/sh\ncat "$COUNTS"\n' >"$work/python"
    chmod +x "$work/python"
    while read -r pinned up down ends; do
        cat >"$work/counts" <<END
pinned up 12.5 GB/s; by hand: 2 pinned (3145728 bytes), 10 copies up (10485760 bytes), 10 down (10485760 bytes), beside a few
  pinned memory  2 calls, $pinned bytes; 100.0 % of 1024 pages on the nearest node, 0 pages not known, 0 calls not placed
  copies         to the device $up bytes), to the host $down bytes), other 0 (0 bytes)
END
        judges "$ends" preload || return
    done <<ROWS
4194304 12(10485800 10(10485760 0
3145727 12(10485800 10(10485760 2
4194304 9(10485760 10(10485760 2
4194304 10(10485760 10(20971520 2
ROWS
    echo 'via NET/dualpipe/0 right: all-reduce' >"$work/counts" && judges 0 net || return
    echo 'via NET/Socket/0 right: all-reduce' >"$work/counts" && judges 1 net
}

# A tool that is not there fails nothing.
leaves_out()
{
    rm "$work/pack/test_device_graphs"
    OUT=$work/report sh "$work/pack/check.sh" --dry-run "$work/pack" graphs >"$work/out" 2>&1 ||
        wrong "$(cat "$work/out")" || return
    reports 'graphs: left out, there is no .*/test_device_graphs' && reports 'end: 0 failed'
}

it packs
it checks
it says_what_failed
it leaves_out_what_time_cuts_off
it leaves_out_what_needs_python
it judges_what_pytorch_says
it refuses_what_is_no_part
it leaves_out
finish
