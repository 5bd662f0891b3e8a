#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# net_conformance.sh - the net plugin does what NCCL asks of it, in every version and on every wire;
# and the program that says so is not easily pleased.
. "$DP_TOP_SRCDIR/tests/checks/cases.sh"
cd "$DP_TOP_BUILDDIR"

plugin=nccl-plugin/.libs/libnccl-net-dualpipe.so
program=tests/conformance/net-conformance
NCCL_SOCKET_IFNAME=lo
export NCCL_SOCKET_IFNAME

# conform ARGUMENT... - what the program finds wrong.
conform()
{
    out=$($program "$@" 2>&1) || printf '%s\n' "$out" "status $?"
}

for wire in shm tcp; do
    for version in 6 7 8 9 10 11; do
        case_is "v$version over $wire" \
            "$(DUALPIPE_NET_WIRE=$wire conform --quick --version $version $plugin)"
    done
    case_is "v12 over $wire" "$(DUALPIPE_NET_WIRE=$wire conform --version 12 $plugin)"
done
# RDMA, on a stand-in for libibverbs.
over_verbs()
(
    FAKE_VERBS_FABRIC=$(mktemp -d)
    trap 'rm -rf "$FAKE_VERBS_FABRIC"' EXIT
    LD_LIBRARY_PATH=tests/fakes/ibverbs/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    DUALPIPE_NET_WIRE=verbs
    # The child of a fork starts a thread of its own; and no process waits a second for such at its end.
    TSAN_OPTIONS=die_after_fork=0:atexit_sleep_ms=0${TSAN_OPTIONS:+:$TSAN_OPTIONS}
    export FAKE_VERBS_FABRIC LD_LIBRARY_PATH DUALPIPE_NET_WIRE TSAN_OPTIONS
    conform "$@"
)
if [ -e tests/fakes/ibverbs/.libs/libibverbs.so.1 ]; then
    for version in 6 7 8 9 10 11; do
        case_is "v$version over verbs" "$(over_verbs --quick --version $version $plugin)"
    done
    case_is 'v12 over verbs' "$(over_verbs --version 12 $plugin)"
    case_is 'v12 over verbs, four queue pairs' \
        "$(NCCL_IB_QPS_PER_CONNECTION=4 NCCL_IB_SPLIT_DATA_ON_QPS=1 \
            over_verbs --quick --version 12 $plugin)"
    case_is 'v12 over verbs, with adaptive routing' \
        "$(NCCL_IB_QPS_PER_CONNECTION=2 NCCL_IB_ADAPTIVE_ROUTING=1 \
            over_verbs --quick --version 12 $plugin)"
else
    case_skipped 'over verbs: built without infiniband/verbs.h'
fi
case_is 'v12 over shm, large messages by the ring' \
    "$(DUALPIPE_NET_WIRE=shm DUALPIPE_WIRE_DIRECT=0 conform --version 12 $plugin)"
case_is 'v12 over the best wire' "$(conform --quick --version 12 $plugin)"
counters=$(mktemp -d)
case_is 'v12 over the best wire, counting' \
    "$(DUALPIPE_NET_STAT=1 DUALPIPE_NET_STAT_DIR=$counters conform --quick --version 12 $plugin)"
rm -rf "$counters"
case_is 'a plugin without devices passes' \
    "$(DUALPIPE_NET_DEVICES=0 conform --quick --version 12 $plugin | grep -q 'status 1' || echo yes)"

# Messages of 1 GiB: every version where there is time for it, else one; not under a sanitizer.
longest()
{
    free_kb=$(sed -n 's/^MemAvailable: *\([0-9]*\).*/\1/p' /proc/meminfo)
    case $DP_CC in
    *-fsanitize*) case_skipped '1 GiB: sanitizers take minutes for it' && return ;;
    esac
    [ "${free_kb:-0}" -gt 4000000 ] || {
        case_skipped '1 GiB: less than 4 GB of memory are free' && return
    }
    version='--version 12'
    [ -z "${DP_TEST_FULL:-}" ] || version=
    for wire in shm tcp; do
        # shellcheck disable=SC2086 # words
        case_is "1 GiB over $wire" \
            "$(DUALPIPE_NET_WIRE=$wire conform --full $version --case 'every size' $plugin)"
    done
    [ -e tests/fakes/ibverbs/.libs/libibverbs.so.1 ] || return 0
    # shellcheck disable=SC2086 # words
    case_is '1 GiB over verbs' "$(over_verbs --full $version --case 'every size' $plugin)"
}
longest

# It finds out what is wrong with another plugin, too.
for fault in no-devices one-receive unfilled flips grows; do
    case_is "a plugin passes that has the fault $fault" \
        "$(BROKEN_NET=$fault BROKEN_NET_PLUGIN=$PWD/$plugin DUALPIPE_NET_WIRE=shm \
            conform --quick --version 12 tests/fakes/net/.libs/broken_net.so |
            grep -q 'failed to' || echo yes)"
done

# refused STATUS TEXT ARGUMENT... - what it says to what it cannot try.
refused()
{
    status=$1 text=$2
    shift 2
    out=$($program "$@" 2>&1) && status_is=0 || status_is=$?
    [ "$status_is" = "$status" ] || echo "status $status_is"
    case $out in *"$text"*) ;; *) printf '%s\n' "$out" ;; esac
}

for version in '' abc 5 13 -1; do
    case_is "version '$version'" \
        "$(refused 2 "--version $version: expected a number from 6 to 12" --version "$version" $plugin)"
done
case_is 'no such case' "$(refused 2 "no case has the words 'of none'" --case 'of none' $plugin)"
case_is 'no file' "$(refused 2 'cannot open shared object file' /nowhere/plugin.so)"
case_is 'no name' "$(refused 2 'usage: net-conformance' '')"
case_is 'another library' "$(refused 2 'is no net plugin: it has none of ncclNetPlugin_v6 to _v12' \
    libdualpipe/.libs/libdualpipe.so)"
case_is 'a plugin without this version' \
    "$(BROKEN_NET_PLUGIN=$PWD/$plugin refused 2 'has no ncclNetPlugin_v6' --version 6 \
        tests/fakes/net/.libs/broken_net.so)"
half=$(mktemp)
head -c 40000 $plugin >"$half"
case $DP_CC in
*-fsanitize*) case_skipped 'a plugin that is cut off: a sanitizer catches the signal' ;;
*) case_is 'a plugin that is cut off' "$(refused 2 'dies when it is loaded (Bus error)' "$half")" ;;
esac
rm "$half"
cases_end
