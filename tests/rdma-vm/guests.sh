# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
#
# guests.sh - sourced by the tests that boot guests.
set -eu

# All that this test may take, and a little to say so.
guests_limit_s=$((${DP_TEST_LIMIT_S:-300} - 20))

skip()
{
    echo "$*"
    exit 77
}

# in_guests OPTION... -- COMMAND... - boot once, run COMMAND there, and end with its output and
# status. A guest that hangs is given one more chance, with an emulator that is not known to.
in_guests()
{
    # What is found under the sanitizers is found without a guest, by the stand-in for libibverbs.
    case $DP_CC in *-fsanitize=*) skip 'guests run in the plain build only' ;; esac
    case $DP_TOP_BUILDDIR in */_build/sub) skip 'guests do not run in make distcheck' ;; esac
    [ -x "$DP_TOP_BUILDDIR/tests/faults/verbs-faults" ] || skip 'built without infiniband/verbs.h'

    guests_log=$(mktemp)
    trap 'rm -f "$guests_log"' EXIT
    status=0
    began_s=$(date +%s)
    run="sh $DP_TOP_SRCDIR/tests/rdma-vm/run.sh"
    $run --limit $guests_limit_s "$@" >"$guests_log" 2>&1 || status=$?
    if [ $status = 125 ]; then
        cat "$guests_log"
        echo 'a guest hung, which QEMU does once in some 300 runs: trying once more, in one thread'
        status=0
        left_s=$((guests_limit_s - $(date +%s) + began_s))
        $run --limit $((left_s > 1 ? left_s : 1)) --single "$@" >"$guests_log" 2>&1 || status=$?
    fi
    sed 's/^\[[0-9]*\] //' "$guests_log"
    case $status in
    77) skip "$(tail -n 1 "$guests_log")" ;;
    124) grep -q FAILED: "$guests_log" ||
        skip "out of time after $guests_limit_s s: this machine is slow, or busy" ;;
    125) skip 'the guest hung twice: look at QEMU' ;;
    esac
    exit $status
}
