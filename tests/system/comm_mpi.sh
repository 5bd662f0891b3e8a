#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# comm_mpi.sh - the suite of the communicators over MPI: mpirun starts its programs as so many ranks,
# and they run the cases that are for so many.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"

DUALPIPE_COMM_MODULE_DIR=$DP_TOP_BUILDDIR/libdualpipe/.libs
DP_TEST_COMM=mpi
export DUALPIPE_COMM_MODULE_DIR DP_TEST_COMM
programs=$DP_TOP_BUILDDIR/tests/unit/comm/test_comm

reason=
[ -e "$DUALPIPE_COMM_MODULE_DIR/mpi.so" ] || reason='configure found no MPI'
[ -x "$programs" ] || reason='test_comm was not built: no cmocka'
command -v mpirun >/dev/null || reason='no mpirun'
case $(mpirun --version 2>/dev/null) in
*'Open MPI'*) flags='--allow-run-as-root --oversubscribe' ;;
*) flags= ;;
esac
# A sanitizer has much to say about MPI itself.
case $DP_CC in
*-fsanitize*) reason='MPI and sanitizers do not go together' ;;
esac

log=$(mktemp)
trap 'rm -f "$log"' EXIT
for DP_TEST_RANKS in 2 3 4 5; do
    export DP_TEST_RANKS
    if [ -n "$reason" ]; then
        case_skipped "$DP_TEST_RANKS ranks over MPI: $reason"
        continue
    fi
    for program in "$programs" "${programs}_collectives" "${programs}_groups" "${programs}_failure" \
        "${programs}_survival"; do
        # shellcheck disable=SC2086 # several flags
        mpirun $flags -n $DP_TEST_RANKS "$program" >"$log" 2>&1 && findings= || findings=$(cat "$log")
        case_is "$DP_TEST_RANKS ranks over MPI" "$findings"
    done
done

# losses HOW COMMAND... - of two steps.
losses()
{
    how=$1
    shift
    # shellcheck disable=SC2086 # words
    "$@" train --data "$DP_TOP_SRCDIR/LICENSE" --steps 2 --layers 2 --json $how 2>&1 | grep -o '"loss":[^,]*'
}

dualpipe=$DP_TOP_BUILDDIR/tools/dualpipe
"$dualpipe" train --help >/dev/null 2>&1 || reason=${reason:-'this build cannot train'}
if [ -n "$reason" ]; then
    case_skipped "dualpipe train over MPI: $reason"
else
    alone=$(losses '--schedule none' "$dualpipe")
    # shellcheck disable=SC2086 # several flags
    together=$(losses '-P 2 --transport mpi' mpirun $flags -n 2 "$dualpipe")
    findings=
    [ -n "$alone" ] && [ "$alone" = "$together" ] || findings="alone $alone, over MPI $together"
    case_is 'dualpipe train over MPI' "$findings"
fi

# Rank 1 is stopped while it trains: rank 0 says so, and does not wait for it to end MPI.
if [ -n "$reason" ] || [ -z "$flags" ]; then
    case_skipped "a stopped rank over MPI: ${reason:-mpirun is not that of Open MPI}"
else
    pages=$(mktemp -d)
    # shellcheck disable=SC2016,SC2086 # the inner shell's; several flags
    DUALPIPE_COMM_TIMEOUT_MS=2000 timeout -k 1 60 mpirun $flags -n 2 sh -c '
        if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then
            { until [ -e "$1/$$-"*.train ]; do sleep 0.1; done; kill -STOP $$; } >/dev/null 2>&1 &
        fi
        exec "$2" train --data "$3" --steps 1000000 --layers 2 -P 2 --transport mpi --stat-dir "$1"' \
        sh "$pages" "$dualpipe" "$DP_TOP_SRCDIR/LICENSE" >"$log" 2>&1 </dev/null && status=0 || status=$?
    findings=
    [ "$status" != 124 ] && grep -q 'rank 1 failed' "$log" || findings="status $status: $(tail -n 20 "$log")"
    rm -rf "$pages"
    case_is 'a stopped rank over MPI' "$findings"
fi
cases_end
